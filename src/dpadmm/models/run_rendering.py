"""Rendering of the result of a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpadmm.rendering import Block, Fact, Facts, Paragraph, Rendering
from dpadmm.rendering.formats import number_range, plural

if TYPE_CHECKING:
    from dpadmm.models.run import Result


def render_run(result: Result) -> Rendering:
    """Return size, method, privacy loss and, for a simulation, the last measures."""
    training, privacy, study = result.training, result.privacy, result.of_study
    rows_per_agent, n_features = result.n_rows, len(study.features) if study else result.rows.n_features
    agents = "one agent"
    if len(rows_per_agent) > 1:
        agents = f"{len(rows_per_agent)} agents with {number_range(rows_per_agent, ',d')} rows each"
    name = study.name if study else result.dataset.name if result.dataset else training.method.name
    losses = f"{training.loss.name} loss, {training.regularizer.name} regularizer"
    body: list[Block] = [
        Paragraph(f"{training.method.name}, {losses}, {plural(result.outcome.rounds, 'round')}"),
        Paragraph("Privacy loss of a person with one row", "bold"),
        *(block for block in privacy.rendering().body if isinstance(block, Facts)),
    ]
    if study and any(map(math.isnan, privacy.noise_multiplier)):
        body.append(Facts([Fact("", "noise multiplier z", study.terms.plan.describe_noise())]))
    if measures := result.trace.last():
        facts = [Fact("", label.replace("_", " "), value) for label, value in measures.items() if label != "round"]
        body.append(Facts(facts, title="Measures after the last round"))
    names = list(result.names) or [str(i + 1) for i in range(len(rows_per_agent))]
    return Rendering(
        title=f"{name}: {sum(rows_per_agent):,} rows × {n_features} features, {agents}",
        body=body,
        data={
            **({"study": {"name": study.name, "hash": study.hash}} if study else {}),
            "noise": "exact" if privacy.exact_noise else "simulated",
            "epsilon": privacy.epsilon,
            "epsilon_paper": None if math.isnan(privacy.paper_epsilon) else privacy.paper_epsilon,
            "epsilon_if_others_collude": None
            if privacy.min_honest_sites is None
            else privacy.epsilon_if_others_collude,
            "delta": privacy.delta,
            "agents": dict(zip(names, rows_per_agent, strict=True)),
            "rows": sum(rows_per_agent),
            "rounds": result.outcome.rounds,
            "interrupted": result.interrupted,
        },
    )
