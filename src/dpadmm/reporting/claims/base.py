"""A claim, the comparisons it rests on, and the rule that decides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from scipy import stats

from dpadmm.reporting.series import at_end, has, has_local, mean_std
from dpadmm.results import Results

CLEAR = (
    "A difference is clear when the 95% interval (Student's t) of its mean over the splits, each split "
    "compared with itself, lies on the claimed side of 0."
)
ALL_SOME_NONE = (
    "Holds when all comparisons are clear; in part when some are, and more than are clearly the other "
    "way round."
)


class Verdict(StrEnum):
    """What became of a claim."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    FAILS = "does not hold"
    UNMEASURED = "not measured"


@dataclass(frozen=True)
class Claim:
    """One row of the claims page.

    Attributes
    ----------
    key : str
        Short name, unique.
    from_paper : bool
        Whether Section VI says it; else it is what Section VI leaves out.
    place : str
        Where it stands.
    statement, rule : str
        The claim in our words, and the rule that decides it.
    verdict : Verdict
    evidence : tuple of str
        Sentences with numbers.
    figures : tuple of str
        Names of the figures that show it.
    n_splits : int
        How many splits the results have; 0 where nobody counted.
    """

    key: str
    from_paper: bool
    place: str
    statement: str
    rule: str
    verdict: Verdict
    evidence: tuple[str, ...]
    figures: tuple[str, ...] = ()
    n_splits: int = 0

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "verdict": str(self.verdict)}


@dataclass(frozen=True)
class Comparison:
    """Mean of paired differences over the splits, positive when as claimed, and half its 95% interval."""

    kind: str
    label: str
    mean: float
    half: float

    @property
    def clear(self) -> bool:
        """Whether the whole interval is as claimed."""
        return self.mean - self.half > 0.0

    @property
    def reversed(self) -> bool:
        """Whether the whole interval is the other way round."""
        return self.mean + self.half < 0.0


def paired(
    more: Mapping[int, float], less: Mapping[int, float], *, kind: str = "", label: str = ""
) -> Comparison | None:
    """Compare two settings split by split; None with fewer than two splits in common."""
    seeds = sorted(set(more) & set(less))
    if len(seeds) < 2:
        return None
    differences = np.array([more[seed] - less[seed] for seed in seeds])
    error = differences.std(ddof=1) / np.sqrt(len(seeds))
    half = float(stats.t.ppf(0.975, len(seeds) - 1) * error)
    return Comparison(kind, label, float(differences.mean()), half)


def decide(comparisons: Sequence[Comparison]) -> Verdict:
    """Holds when all are clear; in part when some are, and more than are clearly the other way round."""
    if sum(each.clear for each in comparisons) <= sum(each.reversed for each in comparisons) > 0:
        return Verdict.FAILS
    return by_share([each.clear for each in comparisons])


def by_share(outcomes: Sequence[bool]) -> Verdict:
    """Holds when all are true, in part when some are; not measured when there are none."""
    if not outcomes:
        return Verdict.UNMEASURED
    return Verdict.HOLDS if all(outcomes) else Verdict.IN_PART if any(outcomes) else Verdict.FAILS


def tally(comparisons: Sequence[Comparison]) -> str:
    """``local models: 12 of 12 comparisons clear; global model: 9 of 12, 2 clearly the other way round``."""
    parts = []
    for kind in dict.fromkeys(each.kind for each in comparisons):
        mine = [each for each in comparisons if each.kind == kind]
        clear, turned = sum(each.clear for each in mine), [each.label for each in mine if each.reversed]
        unclear = [each.label for each in mine if not each.clear and not each.reversed]
        part = f"{kind + ': ' if kind else ''}{clear} of {len(mine)} comparisons clear"
        part += f", {len(turned)} clearly the other way round ({_some(turned)})" if turned else ""
        part += f", {len(unclear)} not clear ({_some(unclear)})" if unclear else ""
        parts.append(part)
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _some(labels: Sequence[str], most: int = 3) -> str:
    rest = f" and {len(labels) - most} more" if len(labels) > most else ""
    return f"{'; '.join(labels[:most])}{rest}"


MEASURES = (
    ("local models", "train_loss_local", "loss"),
    ("local models", "test_error_local", "error"),
    ("global model", "train_loss_global", "loss"),
    ("global model", "test_error_global", "error"),
)
"""(which models, column, in a word): the paper's two measures, for both kinds of model."""


def worse_by(worse: Results, better: Results, label: str) -> list[Comparison]:
    """Loss and error of local and global models: is ``worse`` worse?"""
    out = []
    for kind, column, word in MEASURES:
        if has(worse, column) and has(better, column):
            one = paired(at_end(worse, column), at_end(better, column), kind=kind, label=f"{word} at {label}")
            out += [one] if one else []
    return out


def shown(results: Results, column: str) -> str:
    """``19.7 ± 0.4%`` for errors, ``0.4168 ± 0.0007`` for the rest; without ± where there is one split."""
    values = at_end(results, column)
    mean, std = mean_std(values)
    if not np.isfinite(mean):
        return "–"
    scale, unit, digits = (100.0, "%", 1) if "error" in column else (1.0, "", 4 if abs(mean) < 10 else 2)
    around = f" ± {scale * std:.{digits}f}" if len(values) > 1 else ""
    return f"{scale * mean:.{digits}f}{around}{unit}"


def both_models(results: Results) -> str:
    """Loss and error, local and global, in a few words."""
    error = "test_error" if has(results, "test_error_global") else "train_error"
    ours = f"loss {shown(results, 'train_loss_global')}, error {shown(results, f'{error}_global')}"
    if not has_local(results):
        return ours  # one model only
    local = f"loss {shown(results, 'train_loss_local')}"
    local += f", error {shown(results, 'test_error_local')}" if has(results, "test_error_local") else ""
    return f"{local} (local); {ours} (global)"
