"""A claim, the comparisons it rests on, and the rules that decide it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from scipy import stats

from dpadmm.experiments.results import Results
from dpadmm.reporting.series import at_end, has, has_local, mean_std

CLEAR = (
    "A difference is clear when the 95% interval (Student's t) of its mean over the splits, each split "
    "compared with itself, lies on the claimed side of 0."
)
ALL_SOME_NONE = (
    "Holds when all comparisons are clear; in part when some are, and more than are clearly reversed."
)


class Verdict(StrEnum):
    """The outcome of a claim.

    ``NOT_APPLICABLE``: a premise of the theorem is not met, so it says nothing about these runs.
    ``UNMEASURED``: the runs are there, but too few splits of them.
    """

    HOLDS = "holds"
    IN_PART = "holds in part"
    FAILS = "does not hold"
    NOT_APPLICABLE = "not applicable"
    UNMEASURED = "not measured"


@dataclass(frozen=True)
class Claim:
    """One row of the claims page.

    Attributes
    ----------
    key : str
        Short unique name.
    statement, rule : str
        The claim in plain words, and the rule that decides it.
    place : str
        The section of the paper it is about.
    quote : str
        The paper's own words; empty for a claim that we added.
    figures : tuple of str
        Names of the figures that show it.
    verdict : Verdict
        The outcome; not measured before it is judged.
    evidence : tuple of str
        Sentences with numbers.
    n_splits : int
        Number of splits in the results.
    """

    key: str
    statement: str
    rule: str
    place: str
    quote: str
    figures: tuple[str, ...] = ()
    verdict: Verdict = Verdict.UNMEASURED
    evidence: tuple[str, ...] = ()
    n_splits: int = 0

    @property
    def from_paper(self) -> bool:
        """Whether the paper says it; otherwise we added the claim."""
        return bool(self.quote)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "verdict": str(self.verdict), "from_paper": self.from_paper}


@dataclass(frozen=True)
class Comparison:
    """Mean of paired differences over the splits, positive if as claimed, and half its 95% interval."""

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
        """Whether the whole interval contradicts the claim."""
        return self.mean + self.half < 0.0


@dataclass
class Findings:
    """What a rule found in the results: comparisons or plain outcomes, evidence, and unmet premises.

    ``decided`` is the verdict of a rule that is neither about comparisons nor about plain outcomes.
    """

    comparisons: list[Comparison] = field(default_factory=list)
    outcomes: list[bool] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    unmet: list[str] = field(default_factory=list)
    decided: Verdict | None = None

    def compare(
        self, more: Mapping[int, float], less: Mapping[int, float], label: str, kind: str = ""
    ) -> None:
        """Add the comparison "``more`` exceeds ``less``", if they have two splits in common."""
        one = paired(more, less, kind=kind, label=label)
        self.comparisons += [one] if one else []

    def compare_measures(self, worse: Results, better: Results, label: str, *, models: str = "") -> None:
        """Add "``worse`` has a higher loss and error than ``better``" for local and global models.

        Two methods without local models are compared once.
        """
        models = models if has_local(worse) or has_local(better) else "global"
        for kind, column, word in MEASURES:
            if models in kind and has(worse, column) and has(better, column):
                self.compare(at_end(worse, column), at_end(better, column), f"{word} at {label}", kind)

    @property
    def verdict(self) -> Verdict:
        """The verdict of these findings."""
        if self.unmet:
            return Verdict.NOT_APPLICABLE
        if self.decided:
            return self.decided
        return decide(self.comparisons) if self.comparisons else by_share(self.outcomes)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Unmet premises, the tally of the comparisons, and the numbers."""
        counted = [tally(self.comparisons)] if self.comparisons else []
        found = (*self.unmet, *counted, *self.evidence)
        if self.verdict is Verdict.UNMEASURED:
            return (*found, "There are too few splits or settings to compare.")
        return found


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
    """Holds when all are clear; in part when some are, and more than are clearly reversed."""
    if sum(each.clear for each in comparisons) <= sum(each.reversed for each in comparisons) > 0:
        return Verdict.FAILS
    return by_share([each.clear for each in comparisons])


def by_share(outcomes: Sequence[bool]) -> Verdict:
    """Holds when all are true, in part when some are; not measured when there are none."""
    if not outcomes:
        return Verdict.UNMEASURED
    return Verdict.HOLDS if all(outcomes) else Verdict.IN_PART if any(outcomes) else Verdict.FAILS


def tally(comparisons: Sequence[Comparison]) -> str:
    """``Local models: 12 of 12 comparisons clear; global model: 9 of 12 comparisons clear, 2 ...``."""
    parts = []
    for kind in dict.fromkeys(each.kind for each in comparisons):
        mine = [each for each in comparisons if each.kind == kind]
        turned = [each.label for each in mine if each.reversed]
        unclear = [each.label for each in mine if not each.clear and not each.reversed]
        part = f"{kind + ': ' if kind else ''}{sum(each.clear for each in mine)} of {len(mine)} "
        part += "comparisons clear" if len(mine) > 1 else "comparison clear"
        part += f", {len(turned)} clearly reversed ({_some(turned)})" if turned else ""
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
"""(which models, column, short name): the paper's two measures, for both kinds of model."""


def shown(results: Results, column: str) -> str:
    """``19.7 ± 0.4%`` for errors, ``0.4168 ± 0.0007`` otherwise; without ± for a single split."""
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
        return ours
    local = f"loss {shown(results, 'train_loss_local')}"
    local += f", error {shown(results, 'test_error_local')}" if has(results, "test_error_local") else ""
    return f"{local} (local); {ours} (global)"
