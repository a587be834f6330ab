"""Go or no-go: a forecast beside a goal, and the number of rounds that would do best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dpadmm.runs.planning.forecast import Cell, Grid, Outlook

Word = Literal["go", "no-go", "open"]

HALF = 0.5
"""Without a goal: this share of the way from the baseline to what is reached without privacy."""

WORTH_NAMING = 0.005
"""A better number of rounds is named if it gains this share of the ceiling."""


@dataclass(frozen=True)
class Verdict:
    """What a forecast says about the study's own ε and rounds.

    ``go`` and ``no-go`` are said where the goal lies outside mean ± spread, ``open`` where it lies within.
    """

    word: Word
    goal: float
    reason: str

    def as_json(self) -> dict[str, Any]:
        return {"verdict": self.word, "goal": self.goal, "reason": self.reason}


def judged(outlook: Outlook, grid: Grid, *, goal: float | None, higher: bool) -> Verdict:
    """The verdict of one scenario; ``higher`` says that more is better (accuracy, not an error)."""
    sign = 1.0 if higher else -1.0
    own, ceiling, baseline = outlook.at(*grid.own), outlook.ceiling, outlook.baseline
    if _is_nothing_learnt(outlook, higher=higher):
        target = baseline if goal is None else goal
        if goal is None or sign * (goal - baseline) > 0.0:
            return Verdict("no-go", target, "even without privacy nothing is learnt from these rows")
    target = baseline + HALF * (ceiling.mean - baseline) if goal is None else goal
    gain = sign * (own.mean - target)
    if gain > own.spread:
        return Verdict("go", target, "the goal is passed by more than the spread")
    if gain < -own.spread:
        beyond = sign * (target - ceiling.mean) > ceiling.spread
        reason = "the goal is missed by more than the spread"
        return Verdict("no-go", target, f"{reason}, even without privacy" if beyond else reason)
    return Verdict("open", target, "the goal lies within the spread")


def rounds_help(outlook: Outlook, grid: Grid, verdict: Verdict, *, higher: bool) -> int | None:
    """A number of rounds with which the same ε would not be a no-go; None where none was found or needed."""
    best, sign = best_rounds(outlook, grid, higher=higher), 1.0 if higher else -1.0
    if verdict.word != "no-go" or best is None or _is_nothing_learnt(outlook, higher=higher):
        return None
    return best.n_rounds if sign * (best.value.mean - verdict.goal) >= -best.value.spread else None


def too_short(outlook: Outlook, grid: Grid, *, higher: bool) -> bool:
    """Whether the most rounds that were tried do best, and more ε than the study's gives next to nothing."""
    best = best_rounds(outlook, grid, higher=higher)
    if best is None or best.n_rounds != grid.rounds[-1] or grid.epsilons[-1] <= grid.own[0]:
        return False
    most = outlook.at(grid.epsilons[-1], grid.own[1])
    return (1.0 if higher else -1.0) * (most.mean - outlook.at(*grid.own).mean) < most.spread


def _is_nothing_learnt(outlook: Outlook, *, higher: bool) -> bool:
    """Whether a model without privacy is not clearly better than one that looks at no column."""
    gain = outlook.ceiling.mean - outlook.baseline
    return (gain if higher else -gain) <= 2.0 * outlook.ceiling.sampling


def joined(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict for all scenarios: theirs where they agree."""
    words = {each.word for each in verdicts}
    if len(words) == 1:
        return verdicts[0]
    return Verdict("open", verdicts[0].goal, "it depends on how strong the signal is")


def best_rounds(outlook: Outlook, grid: Grid, *, higher: bool) -> Cell | None:
    """The best number of rounds for the study's ε; None where its own are as good."""
    sign, own = 1.0 if higher else -1.0, outlook.at(*grid.own)
    cells = [cell for cell in outlook.cells if cell.epsilon == grid.own[0]]
    best = max(cells, key=lambda cell: sign * cell.value.mean)
    gain = sign * (best.value.mean - own.mean)
    return best if gain > WORTH_NAMING * outlook.ceiling.mean else None


def least_epsilon(
    outlook: Outlook, grid: Grid, verdict: Verdict, *, higher: bool
) -> tuple[float, int] | None:
    """The smallest ε of the grid that reaches the goal, with its rounds; None where none does."""
    sign = 1.0 if higher else -1.0
    for epsilon in grid.epsilons:
        cells = [cell for cell in outlook.cells if cell.epsilon == epsilon]
        best = max(cells, key=lambda cell: sign * cell.value.mean)
        if sign * (best.value.mean - verdict.goal) > 0.0:
            return epsilon, best.n_rounds
    return None
