"""Claims about more agents, larger ε and larger δ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from dpadmm.reporting.claims.base import (
    ALL_SOME_NONE,
    Claim,
    Comparison,
    both_models,
    decide,
    paired,
    shown,
    tally,
    worse_by,
)
from dpadmm.reporting.series import BUDGETS, at_end, begun, budget_column, distinct, done, split, where
from dpadmm.reporting.style import power
from dpadmm.results import Results

_PLACES = {
    "fig1": "Section VI-A, Figure 1",
    "fig2": "Section VI-A, Figure 2",
    "fig3": "Section VI-A, Figure 3",
    "fig4": "Section VI-B, Figure 4",
    "fig6": "Section VI-B, Figure 6",
    "fig7": "Section VI-B, Figure 7",
}
_KINDS = {"fig1": "L1", "fig2": "L1", "fig3": "L1", "fig4": "L2", "fig6": "L2", "fig7": "L2"}


def trend_claims(results: Results) -> list[Claim]:
    """Every claim of the form "more of this, better or worse that"."""
    out = []
    for agents, objective, methods in (("fig1", "fig2", "fig3"), ("fig4", "fig6", "fig7")):
        out += [
            _more_agents(results, agents),
            _convergence(results, objective, "ε"),
            _convergence(results, objective, "δ"),
            _utility(results, methods, "ε"),
            _utility(results, methods, "δ"),
        ]
    return out


def private_lines(results: Results, experiment: str) -> Results | None:
    """DP-ADMM's lines of an experiment; None where it was not run."""
    if experiment not in begun(results):
        return None
    lines = where(done(results.select(experiment)), method="dp_admm")
    return lines if len(lines) else None


def _more_agents(results: Results, experiment: str) -> Claim:
    lines = private_lines(results, experiment)
    comparisons: list[Comparison] = []
    evidence: list[str] = []
    if lines is not None:
        budget = budget_column(lines)
        for (value,), group in split(lines, budget).items():
            for low, high, a, b in _neighbours(group, "n_agents"):
                comparisons += worse_by(b, a, f"n {low}→{high}, ε {value:g}")
            agents = distinct(group, "n_agents")
            evidence += [
                f"{BUDGETS[budget]} {value:g}, n = {n}: {both_models(where(group, n_agents=n))}."
                for n in dict.fromkeys((agents[0], agents[-1]))
            ]
    return _trend(
        experiment,
        "agents",
        "With the same rows over more agents, the model gets less accurate",
        "Loss and error, local and global, rise at every step to the next larger n, at every ε.",
        comparisons,
        evidence,
    )


def _convergence(results: Results, experiment: str, letter: str) -> Claim:
    lines = private_lines(results, experiment)
    comparisons: list[Comparison] = []
    evidence: list[str] = []
    if lines is not None:
        moving, fixed = _axes(lines, letter)
        for (value,), group in split(lines, fixed).items():
            for low, high, a, b in _neighbours(group, moving):
                label = f"{letter} {power(low)}→{power(high)} at {power(value)}"
                one = paired(at_end(a, "augmented_objective"), at_end(b, "augmented_objective"), label=label)
                comparisons += [one] if one else []
            ends = distinct(group, moving)
            if len(ends) > 1:
                first, last = (
                    shown(where(group, **{moving: end}), "augmented_objective") for end in (ends[0], ends[-1])
                )
                evidence.append(
                    f"{'δ' if letter == 'ε' else 'ε'} = {power(value)}: {first} at {letter} = "
                    f"{power(ends[0])}, {last} at {letter} = {power(ends[-1])}."
                )
    return _trend(
        experiment,
        f"convergence-{'epsilon' if letter == 'ε' else 'delta'}",
        f"With a larger {letter}, DP-ADMM's augmented objective converges better",
        f"The augmented objective after the last round falls at every step to the next larger {letter}.",
        comparisons,
        evidence,
    )


def _utility(results: Results, experiment: str, letter: str) -> Claim:
    lines = private_lines(results, experiment)
    comparisons: list[Comparison] = []
    evidence: list[str] = []
    if lines is not None:
        moving, fixed = _axes(lines, letter)
        for (value,), group in split(lines, fixed).items():
            for low, high, a, b in _neighbours(group, moving):
                comparisons += worse_by(a, b, f"{letter} {power(low)}→{power(high)}")
            ends = distinct(group, moving)
            if len(ends) > 1:
                evidence += [
                    f"{letter} = {power(end)} ({'δ' if letter == 'ε' else 'ε'} = {power(value)}): "
                    f"{both_models(where(group, **{moving: end}))}."
                    for end in (ends[0], ends[-1])
                ]
    return _trend(
        experiment,
        f"utility-{'epsilon' if letter == 'ε' else 'delta'}",
        f"A larger {letter}, so weaker privacy, gives a more useful model",
        f"Loss and error, local and global, fall at every step to the next larger {letter}.",
        comparisons,
        evidence,
        more_figures=(f"{experiment}_global",),
    )


def _trend(
    experiment: str,
    key: str,
    statement: str,
    rule: str,
    comparisons: Sequence[Comparison],
    evidence: Sequence[str],
    *,
    more_figures: tuple[str, ...] = (),
) -> Claim:
    """A claim that something moves one way at every step."""
    kind = _KINDS[experiment]
    return Claim(
        f"{key}-{kind.lower()}",
        True,
        _PLACES[experiment],
        f"{statement} ({kind}).",
        f"{rule} {ALL_SOME_NONE}",
        decide(comparisons),
        (tally(comparisons), *evidence) if comparisons else _missing(experiment),
        (experiment, *more_figures),
    )


def _axes(lines: Results, letter: str) -> tuple[str, str]:
    budget = budget_column(lines)
    return (budget, "delta") if letter == "ε" else ("delta", budget)


def _neighbours(group: Results, column: str) -> Iterator[tuple[Any, Any, Results, Results]]:
    """Every value and the next larger one, with their lines."""
    values = distinct(group, column)
    for low, high in pairwise(values):
        yield low, high, where(group, **{column: low}), where(group, **{column: high})


def _missing(experiment: str) -> tuple[str, ...]:
    return (f"Experiment {experiment} is not in this results file, or has too few splits or settings.",)
