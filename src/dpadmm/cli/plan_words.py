"""What ``dpadmm plan`` says of a forecast in sentences: what is reached, and what would reach more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpadmm.planning.forecast import Grid, Outlook, Value
from dpadmm.planning.verdict import Verdict, best_rounds, least_epsilon, rounds_help, too_short

if TYPE_CHECKING:
    from dpadmm.cli.plan_table import Plan

MUCH = 0.015
"""A standard error of an accuracy that is worth a sentence: twice as much is 3 points."""


def sentences(plan: Plan) -> list[str]:
    """The study's own forecast beside its goal, better rounds, and what would reach the goal."""
    out, grid, percent = [], plan.grid, plan.higher
    several = len(plan.outlooks) > 1
    for outlook, verdict in zip(plan.outlooks, plan.verdicts, strict=True):
        where = outlook.name if several else ""
        own, best = outlook.at(*grid.own), best_rounds(outlook, grid, higher=plan.higher)
        if not several:
            asked = "" if plan.goal_given else ", half-way from no learning to no privacy"
            out.append(
                f"The study's own ε = {grid.own[0]:.4g} in {grid.own[1]} rounds: "
                f"{plan_text([own], percent=percent)} (luck of the noise "
                f"± {_spread(own.luck, percent=percent)}, few rows to test on "
                f"± {_spread(own.sampling, percent=percent)}). Goal: "
                f"{in_words(verdict.goal, percent=percent)}{asked}."
            )
            if percent and plan.public is not None and own.sampling > MUCH:
                out.append(_few_rows(outlook.rows, own.sampling))
        if best is not None:
            out.append(
                _of(
                    where,
                    f"With {best.n_rounds} rounds the same ε reaches "
                    f"{plan_text([best.value], percent=percent)}{_beyond(best.n_rounds, grid)}.",
                )
            )
        elif not several:
            out.append("No other number of rounds that was tried is clearly better at this ε.")
        if verdict.word != "go":
            found = least_epsilon(outlook, grid, verdict, higher=plan.higher)
            if found is not None and found[0] > grid.own[0]:
                out.append(_of(where, f"The goal would take ε = {found[0]:.4g}, in {found[1]} rounds."))
            elif found is None:
                way_out = _way_out(outlook, grid, verdict, higher=plan.higher)
                out.append(_of(where, f"No ε and rounds that were tried reach the goal; {way_out}."))
    return out


def but(plan: Plan) -> str:
    """That another number of rounds would do, where the study's own does not."""
    found = [
        rounds_help(outlook, plan.grid, verdict, higher=plan.higher)
        for outlook, verdict in zip(plan.outlooks, plan.verdicts, strict=True)
    ]
    if None in found or not found:
        return ""
    own = plan.grid.own[1]
    return f" in {own} rounds; with n_rounds = {max(each or 0 for each in found)} it is not: see above"


def _few_rows(rows: int, sampling: float) -> str:
    """What no forecast from so few rows can know; a standard error falls with the root of the rows."""
    wanted = rows * (100.0 * sampling) ** 2
    rounded = round(wanted, -2 if wanted > 1000 else -1)
    return (
        f"{rows:,} public rows alone leave ± {100 * sampling:.1f} points, however good the forecast is; "
        f"about {rounded:,.0f} rows would leave ± 1."
    )


def _of(where: str, sentence: str) -> str:
    return f"With {where}, {sentence[0].lower()}{sentence[1:]}" if where else sentence


def _way_out(outlook: Outlook, grid: Grid, verdict: Verdict, *, higher: bool) -> str:
    if (verdict.goal - outlook.ceiling.mean) * (1 if higher else -1) > 0:
        return "nor would a model without privacy"
    if too_short(outlook, grid, higher=higher):
        return f"ε hardly matters here, the run is too short: try --rounds {4 * grid.rounds[-1]}"
    return "more rows would help"


def _beyond(rounds: int, grid: Grid) -> str:
    return "; more than were tried may do better still" if rounds == grid.rounds[-1] else ""


def plan_text(values: Sequence[Value], *, percent: bool) -> str:
    """``78.3 ± 1.2%`` for one forecast, ``56–85%`` for several."""
    if len(values) > 1:
        low, high = min(v.mean for v in values), max(v.mean for v in values)
        return f"{100 * low:.0f}–{100 * high:.0f}%" if percent else f"{low:.3g}–{high:.3g}"
    mean, spread = values[0].mean, values[0].spread
    return f"{100 * mean:.1f} ± {100 * spread:.1f}%" if percent else f"{mean:.4g} ± {spread:.2g}"


def in_words(value: float, *, percent: bool) -> str:
    """An accuracy in percent, or an error in the label's units."""
    return f"{100 * value:.1f}%" if percent else f"{value:.4g}"


def _spread(value: float, *, percent: bool) -> str:
    return f"{100 * value:.1f}" if percent else f"{value:.2g}"
