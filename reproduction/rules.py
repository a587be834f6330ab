"""Rules that decide claims: from results to findings, and from findings to a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise, product
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.baselines import METHOD_TITLES
from dpadmm.figures.style import power
from dpadmm.losses import LOSSES
from dpadmm.parameters.suggestions import first_of
from reproduction import series
from reproduction.measurements import gaps, rounds_to_settle, times
from reproduction.results import Results
from reproduction.series import at_end, budget_column, distinct, mean_std, need, split

CLEAR = (
    "A difference is clear if the 95% confidence interval of its mean, by a paired t-test over the splits, "
    "lies on the claimed side of 0."
)
ALL_SOME_NONE = "Holds when all comparisons are clear; in part when some are, and more than are clearly reversed."


class ClaimVerdict(StrEnum):
    """The outcome of a claim.

    ``NOT_APPLICABLE``: a premise of the theorem is not met, so it does not apply to these runs. ``UNMEASURED``: there
    are runs, but too few splits.
    """

    HOLDS = "holds"
    IN_PART = "holds in part"
    FAILS = "does not hold"
    NOT_APPLICABLE = "not applicable"
    UNMEASURED = "not measured"


@dataclass(frozen=True)
class Comparison:
    """Mean of paired differences over the splits, positive in the claimed direction, and half its 95% interval."""

    kind: str
    label: str
    mean: float
    half: float

    @property
    def clear(self) -> bool:
        return self.mean - self.half > 0.0

    @property
    def reversed(self) -> bool:
        return self.mean + self.half < 0.0


@dataclass
class Findings:
    """The findings of a rule: comparisons or plain outcomes, evidence, and unmet premises.

    ``decided`` is the verdict of a rule with neither comparisons nor plain outcomes.
    """

    comparisons: list[Comparison] = field(default_factory=list)
    outcomes: list[bool] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    unmet: list[str] = field(default_factory=list)
    decided: ClaimVerdict | None = None

    def compare(self, more: pd.Series, less: pd.Series, label: str, kind: str = "") -> None:
        """Add the comparison "``more`` exceeds ``less``", if they have two splits in common."""
        one = paired(more, less, kind=kind, label=label)
        self.comparisons += [one] if one else []

    def add(self, outcome: bool, sentence: str) -> None:
        self.outcomes.append(outcome)
        self.note(sentence)

    def note(self, sentence: str) -> None:
        self.evidence.append(sentence)

    def compare_measures(self, worse: Results, better: Results, label: str, *, models: str = "") -> None:
        """Add "``worse`` has a higher loss and error than ``better``" for local and global models.

        Two methods without local models are compared once.
        """
        models = models if series.has_local(worse) or series.has_local(better) else "global"
        for kind, column, word in MEASURES:
            if models in kind and series.has(worse, column) and series.has(better, column):
                self.compare(at_end(worse, column), at_end(better, column), f"{word} at {label}", kind)

    @property
    def verdict(self) -> ClaimVerdict:
        if self.unmet:
            return ClaimVerdict.NOT_APPLICABLE
        if self.decided:
            return self.decided
        return decide(self.comparisons) if self.comparisons else by_share(self.outcomes)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Unmet premises, the summary of the comparisons, and the numbers."""
        counted = [tally(self.comparisons)] if self.comparisons else []
        few = ["There are too few splits or settings to compare."]
        return (*self.unmet, *counted, *self.evidence, *(few if self.verdict is ClaimVerdict.UNMEASURED else []))


def paired(more: pd.Series, less: pd.Series, *, kind: str = "", label: str = "") -> Comparison | None:
    """Compare measures of two settings split by split. Return None with fewer than two common splits."""
    differences = (more - less).dropna()
    if len(differences) < 2:
        return None
    half = float(stdtrit(len(differences) - 1, 0.975) * differences.sem())
    return Comparison(kind, label, float(differences.mean()), half)


def decide(comparisons: Sequence[Comparison]) -> ClaimVerdict:
    """Return HOLDS if all are clear, IN_PART if some are and more than are clearly reversed."""
    clear = [comparison.clear for comparison in comparisons]
    return (
        ClaimVerdict.FAILS
        if sum(clear) <= sum(comparison.reversed for comparison in comparisons) > 0
        else by_share(clear)
    )


def by_share(outcomes: Sequence[bool]) -> ClaimVerdict:
    """Return HOLDS if all are true, IN_PART if some are, UNMEASURED if there are none."""
    if not outcomes:
        return ClaimVerdict.UNMEASURED
    return ClaimVerdict.HOLDS if all(outcomes) else ClaimVerdict.IN_PART if any(outcomes) else ClaimVerdict.FAILS


def tally(comparisons: Sequence[Comparison]) -> str:
    """Summarise: ``Local models: 12 of 12 comparisons clear; global model: 9 of 12 comparisons clear, 2 ...``."""
    parts = []
    for kind in dict.fromkeys(comparison.kind for comparison in comparisons):
        group = [comparison for comparison in comparisons if comparison.kind == kind]
        turned = [comparison.label for comparison in group if comparison.reversed]
        unclear = [one.label for one in group if not one.clear and not one.reversed]
        part = f"{kind + ': ' if kind else ''}{sum(comparison.clear for comparison in group)} of {len(group)} "
        part += "comparisons clear" if len(group) > 1 else "comparison clear"
        part += f", {len(turned)} clearly reversed ({first_of(turned, 3, between='; ')})" if turned else ""
        part += f", {len(unclear)} not clear ({first_of(unclear, 3, between='; ')})" if unclear else ""
        parts.append(part)
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


MEASURES = (
    ("local models", "train_loss_local", "loss"),
    ("local models", "test_error_local", "error"),
    ("global model", "train_loss_global", "loss"),
    ("global model", "test_error_global", "error"),
)
"""(which models, column, short name): the paper's two measures, for both kinds of model."""


def measure_text(results: Results, column: str) -> str:
    """Format a measure: ``19.7 ± 0.4%`` for errors, ``0.4168 ± 0.0007`` otherwise, without ± for a single split."""
    values, percent = at_end(results, column), "error" in column
    small = abs(mean_std(values)[0]) < 10
    return series.mean_and_spread(values, percent=percent, digits=1 if percent else 4 if small else 2)


def both_models(results: Results) -> str:
    """Format loss and error of local and global models."""
    error = measure_text(results, series.error_column(results))
    ours = f"loss {measure_text(results, 'train_loss_global')}, error {error}"
    if not series.has_local(results):
        return ours
    local = f"loss {measure_text(results, 'train_loss_local')}"
    if series.has(results, "test_error_local"):
        local += f", error {measure_text(results, 'test_error_local')}"
    return f"{local} (local); {ours} (global)"


PAPER_RATE = 0.1
PAPER_SHARE = 1e-6
PAPER_RADIUS = {"l1": 23.0, "l2": 89.0}
PAPER_SHAPE = (45222, 104)
PAPER_TOTALS = {0.05: 0.5009, 0.1: 1.0193}
"""The paper's ε̄ of 100 rounds at δ = 10⁻³, by ε per round."""
MAX_PROOF_DELTA = 0.01
"""The proof of Theorem 1 needs δ ≤ 0.01 (and ε ≤ 1)."""
MUCH_LESS = 5.0
"""A method that takes at least this many times longer costs much more."""
RATE, RATE_MARGIN = -0.5, 0.05
"""Slope of a rate of 1/√t on two logarithmic scales, and how much flatter a slope may be."""
POINT = 0.01
"""One percentage point of error."""


def judge(results: Results, rule: str, arguments: Mapping[str, Any]) -> Findings | None:
    """Apply the rule of this name. Return None if the results have no runs for it."""
    found = Findings()
    try:
        globals()[rule](found, results, **arguments)
    except series.NoRunsError:
        return None
    return found


def lines_of(results: Results, experiment: str, who: str) -> Results:
    """Return the lines of a method, by its display name, in an experiment.

    "DPSGD" has the paper's learning rate, "tuned DPSGD" any other.
    """
    need(experiment in series.started(results))
    name = who.removeprefix("tuned ")
    method = next(method for method, words in METHOD_TITLES.items() if words == name)
    lines = series.done(results.select(experiment)).select(method=method)
    if method == "dp_sgd" and experiment in ("fig3", "fig7"):
        paper = lines.frame["learning_rate"] == PAPER_RATE
        lines = lines.keep(~paper if who != name else paper)
    need(lines)
    return lines


def _each_budget(lines: Results) -> list[tuple[float, float, Results]]:
    """Return (ε, δ, lines) for every budget."""
    found = split(lines, budget_column(lines), "delta")
    return [(value, delta, group) for (value, delta), group in found.items() if value is not None]


def _rivals(results: Results, experiment: str, names: Sequence[str]) -> dict[str, Results]:
    """Return the lines of those methods that were run."""
    found = {}
    for name in names:
        with suppress(series.NoRunsError):
            found[name] = lines_of(results, experiment, name)
    need(found)
    return found


def trend(
    found: Findings, results: Results, experiment: str, axis: str, *, improves: bool, objective: bool = False
) -> None:
    """Decide whether DP-ADMM improves (or worsens) at every step to the next larger n, ε or δ.

    Measured by loss and error, local and global, or by the augmented ``objective``.
    """
    lines = lines_of(results, experiment, "DP-ADMM")
    budget = budget_column(lines)
    moving = {"n": "n_agents", "ε": budget, "δ": "delta"}[axis]
    fixed, other = ("delta", "δ") if axis == "ε" else (budget, "ε")
    asked = False
    for (at,), group in split(lines, fixed).items():
        values = distinct(group, moving)
        groups = {value: group.select(**{moving: value}) for value in values}
        asked |= len(values) > 1
        for low, high in pairwise(values):
            worse, better = (groups[low], groups[high]) if improves else (groups[high], groups[low])
            label = f"{axis} {power(low)}→{power(high)}, {other} {power(at)}"
            if objective:
                high_end, low_end = (at_end(item, "augmented_objective") for item in (worse, better))
                found.compare(high_end, low_end, label)
            else:
                found.compare_measures(worse, better, label)
        for value in (values[0], values[-1]) if len(values) > 1 else ():
            numbers = measure_text(groups[value], "augmented_objective") if objective else both_models(groups[value])
            found.note(f"{axis} = {power(value)} ({other} = {power(at)}): {numbers}.")
    need(asked)


def worse_than(found: Findings, results: Results, experiment: str, who: str, rivals: Sequence[str]) -> None:
    """Decide whether ``who`` has a higher loss and error than each rival at the same ε and δ."""
    lines_of_who, others = lines_of(results, experiment, who), _rivals(results, experiment, rivals)
    budget = budget_column(lines_of_who)
    most, shown_budgets = max(distinct(lines_of_who, "delta")), (0.05, 0.1, max(distinct(lines_of_who, budget)))
    for value, delta, group in _each_budget(lines_of_who):
        beside = {name: lines.select(**{budget: value, "delta": delta}) for name, lines in others.items()}
        beside = {name: lines for name, lines in beside.items() if len(lines)}
        for name, ours in beside.items():
            words = f", compared with {name}" if len(others) > 1 else ""
            found.compare_measures(group, ours, f"ε {value:g}, δ {power(delta)}{words}")
        if beside and delta == most and value in shown_budgets:
            every = {**beside, who: group}
            numbers = "; ".join(f"{name} {both_models(lines)}" for name, lines in every.items())
            found.note(f"ε = {value:g}, δ = {power(delta)}: {numbers}.{_totals(every)}")


def _totals(every: Mapping[str, Results]) -> str:
    """Return the exact total ε of each method, if equal ε per round do not give equal totals."""
    totals = {name: float(lines.last().frame["total_epsilon"].max()) for name, lines in every.items()}
    if max(totals.values()) <= 1.01 * min(totals.values()):
        return ""
    return f" Exact total ε: {', '.join(f'{name} {total:.3f}' for name, total in totals.items())}."


def suffers_more(found: Findings, results: Results, experiment: str, who: Sequence[str], than: Sequence[str]) -> None:
    """Decide whether ``who`` loses more than ``than`` in loss and error from the largest to the smallest ε."""
    everybody = _rivals(results, experiment, (*who, *than))
    groups = {name: ends for name, lines in everybody.items() if len(ends := _widest(lines)) > 1}
    ours, reference = ([name for name in names if name in groups] for names in (who, than))
    need(ours, reference)
    for one, other in product(ours, reference):
        for kind, column, word in MEASURES:
            increase, beside = (_rise(groups[name], column) for name in (one, other))
            found.compare(increase, beside, f"{word}, {one} compared with {other}", kind)
    for name, ends in groups.items():
        for value in (max(ends), min(ends)):
            found.note(f"{name} at ε = {value:g}: {both_models(ends[value])}.")


def _widest(lines: Results) -> dict[float, Results]:
    """Return lines by ε, at the δ with most values of ε."""
    budget = budget_column(lines)
    by_delta = [
        {value: part for (value,), part in split(group, budget).items() if value is not None}
        for group in split(lines, "delta").values()
    ]
    return max(by_delta, key=len)


def _rise(ends: Mapping[float, Results], column: str) -> pd.Series:
    """Return the increase of a measure from the largest to the smallest ε, by seed."""
    return (at_end(ends[min(ends)], column) - at_end(ends[max(ends)], column)).dropna()


def settles_later(found: Findings, results: Results, experiment: str, who: str, rivals: Sequence[str]) -> None:
    """Decide whether ``who`` needs more rounds than each rival for 90% of its own change in training loss."""
    lines_of_who, others = lines_of(results, experiment, who), _rivals(results, experiment, rivals)
    budget = budget_column(lines_of_who)
    for value, delta, group in _each_budget(lines_of_who):
        rounds_of_who = rounds_to_settle(group)
        words = [f"{who} {mean_std(rounds_of_who)[0]:.0f}"]
        for name, lines in others.items():
            # results of a method without noise do not depend on the budget
            at = lines.select(**{budget: value, "delta": delta}) if distinct(lines, budget) else lines
            if len(at):
                rounds = rounds_to_settle(at)
                found.compare(rounds_of_who, rounds, f"ε {value:g}, δ {power(delta)}, compared with {name}")
                words.append(f"{name} {mean_std(rounds)[0]:.0f}")
        if delta == max(distinct(lines_of_who, "delta")):
            found.note(f"Rounds to 90% of the change at ε = {value:g}: {', '.join(words)}.")


def admm_is_fast(found: Findings, results: Results) -> None:
    """Decide whether ADMM is below the final losses of DP-ADMM and DPSGD within a quarter of the rounds."""
    admm, others = lines_of(results, "fig7", "ADMM"), _rivals(results, "fig7", ("DP-ADMM", "DPSGD"))
    curve = series.by_round(admm, "train_loss_global")
    for name, lines in others.items():
        budget = budget_column(lines)
        best = lines.select(**{budget: max(distinct(lines, budget)), "delta": max(distinct(lines, "delta"))})
        end = mean_std(at_end(best, "train_loss_global"))[0]
        below = curve.x[curve.mean < end]
        when = f"from round {below[0]:.0f}" if len(below) else "in no round"
        found.add(
            bool(len(below)) and float(below[0]) <= curve.x[-1] / 4,
            f"ADMM's training loss is below {name}'s final {end:.4f} {when} of {curve.x[-1]:.0f}.",
        )


def admm_converges(found: Findings, results: Results) -> None:
    """Decide whether ADMM's final objective is within 1% of the optimum."""
    admm, best = lines_of(results, "fig7", "ADMM"), lines_of(results, "fig7", "optimum")
    have, floor = (mean_std(at_end(lines, "objective_global"))[0] for lines in (admm, best))
    found.add(
        have / floor <= 1.01,
        f"Objective after {max(distinct(admm, 'round'))} rounds {have:.4f}, optimum {floor:.4f}: "
        f"{100 * (have / floor - 1.0):.1f}% above it.",
    )
    found.note(f"ADMM: {both_models(admm)}. Optimum: {both_models(best)}.")


def refused(found: Findings, results: Results) -> None:
    """Decide whether every PVP and DVP run with L1 was refused."""
    for method in ("admm_pvp", "admm_dvp") if "fig3" in series.started(results) else ():
        lines = results.select("fig3").select(method=method)
        if len(lines):
            no = lines.select(status="refused")
            reason = no.frame["reason"].iloc[0] if len(no) else "it ran"
            found.add(len(no) == len(lines), f"{METHOD_TITLES[method]}: {reason}")
    need(found.outcomes)


def takes_less_time(found: Findings, results: Results) -> None:
    """Decide whether ADMM, PVP and DVP take much longer than DP-ADMM."""
    rows = times(results.select("table3")) if "table3" in series.started(results) else []
    others = [row for row in rows if row.name in ("admm", "admm_pvp", "admm_dvp") and np.isfinite(row.ratio)]
    need(others)
    ratios = [row.ratio for row in others]
    in_part = ClaimVerdict.IN_PART if max(ratios) > 1.0 else ClaimVerdict.FAILS
    found.decided = ClaimVerdict.HOLDS if min(ratios) >= MUCH_LESS else in_part
    for row in others:
        paper = f" (paper: {row.paper_ratio:.1f})" if row.paper_ratio else ""
        solver = f", {row.iterations:.1f} iterations of the local solver per agent and round"
        found.note(
            f"{row.method} at ε = {row.budget:g}: {row.seconds:.3f} s, {row.ratio:.1f} times DP-ADMM's{paper}"
            f"{solver if row.iterations > 0 else ''}."
        )
    ours = [row for row in rows if row.name == "dp_admm"]
    found.evidence += [f"DP-ADMM at ε = {row.budget:g}: {row.seconds:.3f} s." for row in ours]


def totals_agree(found: Findings, results: Results, *, exact: bool) -> None:
    """Decide whether ε̄, computed here, equals the paper's; or is at most 1% above the ``exact`` total ε.

    Both for DP-ADMM after 100 rounds at δ = 10⁻³.
    """
    lines = series.done(results).select(method="dp_admm", delta=1e-3, n_rounds=100, calibration="paper")
    lines = lines.keep(lines.frame["total_paper_epsilon"].notna())
    for value, paper in PAPER_TOTALS.items():
        group = lines.select(round_epsilon=value)
        if not len(group):
            continue
        ours, true = (float(group.frame[name].max()) for name in ("total_paper_epsilon", "total_epsilon"))
        words = f"ε̄ = {ours:.4f}, paper {paper:.4f}"
        if exact:
            words = f"exact total ε = {true:.4f}, paper's ε̄ = {ours:.4f}, {ours / true:.2f} times as much"
        agrees = true >= 0.99 * ours if exact else abs(ours - paper) <= 5.1e-5
        found.add(agrees, f"ε = {value:g} per round: {words}.")
    need(found.outcomes)


def round_is_private(found: Findings, results: Results) -> None:
    """Decide whether one round of the paper's noise has an exact ε of at most the ε per round (Theorem 1)."""
    lines = series.done(results).select(method="dp_admm", calibration="paper")
    lines = lines.keep(lines.frame[["round_epsilon", "z"]].notna().all(axis="columns")).last()
    need(lines)
    found.unmet = _noise_premises(lines)
    for (value, delta), group in split(lines, "round_epsilon", "delta").items():
        exact = exact_epsilon(1.0 / float(group.frame["z"].min()), float(delta))
        found.add(exact <= value, f"ε = {value:g}, δ = {power(delta)}: exact ε of one round {exact:.4f}.")


def _noise_premises(lines: Results) -> list[str]:
    """Return unmet conditions of Theorem 1, one sentence each."""
    delta, epsilon = max(distinct(lines, "delta")), max(distinct(lines, "round_epsilon"), default=0.0)
    found = []
    if delta > MAX_PROOF_DELTA:
        found.append(f"The proof of Theorem 1 needs δ ≤ {MAX_PROOF_DELTA:g}, but δ = {delta:g} here.")
    if epsilon > 1.0:
        found.append(f"Theorem 1 needs ε ≤ 1 per round, but ε = {epsilon:g} here.")
    return found


def below_bound(found: Findings, results: Results, regularizer: str) -> None:
    """Decide whether the mean gap is below the bound of Theorem 2 or 3 at every measured round and ε."""
    need("bounds" in series.started(results))
    here = series.done(series.with_optimum(results, "bounds")).select(regularizer=regularizer)
    private, best = here.select(method="dp_admm"), here.select(method="centralized")
    need(private)
    found.unmet = _premises(private, best, smooth=regularizer == "l2")
    for gap in gaps(here):
        found.add(
            bool((gap.measured.mean <= gap.bound).all()),
            f"ε = {gap.budget:g}: at round {gap.measured.x[-1]:.0f} {gap.measured.mean[-1]:.2f} ± "
            f"{gap.measured.std[-1]:.2f}, bound {gap.bound[-1]:.1f}; over all rounds at most "
            f"{100 * float((gap.measured.mean / gap.bound).max()):.2f}% of the bound.",
        )


def _premises(private: Results, best: Results, *, smooth: bool) -> list[str]:
    """Return conditions of Theorem 2 or 3 (``smooth``) that these runs do not meet, one sentence each."""
    found = _noise_premises(private)
    schedule, share = set(distinct(private, "schedule")), min(distinct(private, "participation"))
    if schedule != {"theorem"} or share < 1.0:
        found.append(
            "The theorem assumes its own step sizes and all agents in every round; these runs have "
            f"{' and '.join(sorted(schedule))} step sizes and a participation of {share:g}."
        )
    rough = [loss for loss in distinct(private, "loss") if LOSSES[loss].smoothness is None]
    if smooth and rough:
        found.append(f"The theorem needs a smooth loss, and {', '.join(rough)} is not smooth.")
    norm = mean_std(at_end(best, "weight_norm_global"))[0] if len(best) else np.nan
    radius = min(distinct(private, "weight_radius"), default=np.inf)
    if norm > radius:
        found.append(
            f"The theorem needs c_w to be at least the norm of the optimum; here c_w = {radius:g} and the "
            f"norm is {norm:.1f}."
        )
    return found


def has_rate(found: Findings, results: Results, regularizer: str) -> None:
    """Decide whether the gap falls at least as fast as 1/√t, by its slope on two logarithmic scales."""
    need("bounds" in series.started(results))
    runs = [gap for gap in gaps(series.with_optimum(results, "bounds")) if gap.regularizer == regularizer]
    need(runs)
    for gap in runs:
        limit = pd.Series(RATE + RATE_MARGIN, index=gap.slopes.index)
        found.compare(limit, gap.slopes, f"ε {gap.budget:g}")
        mean, std = mean_std(gap.slopes)
        found.note(
            f"ε = {gap.budget:g}: slope {mean:.3f} ± {std:.3f} from round {gap.measured.x[-1] / 10:.0f} to "
            f"{gap.measured.x[-1]:.0f}.".replace("-", "−")
        )
    found.note(
        "O(1/√t) is an asymptotic upper bound, which the measured gap may satisfy with a flatter slope at first. "
        "The slope is the rate in these rounds."
    )


def data_matches(found: Findings, results: Results) -> None:
    """Decide whether the data set has the paper's shape."""
    data = results.meta.get("data", {})
    need(data.get("name") == "adult")
    rows, features = data.get("rows"), data.get("features")
    found.add((rows, features) == PAPER_SHAPE, f"adult: {rows} rows, {features} features.")


def models_agree(found: Findings, results: Results, experiment: str) -> None:
    """Decide whether the test errors of DP-ADMM's local and global models do not differ clearly."""
    lines = lines_of(results, experiment, "DP-ADMM")
    need(series.has(lines, "test_error_local"))
    for value, delta, group in _each_budget(lines):
        one = paired(at_end(group, "test_error_local"), at_end(group, "test_error_global"))
        if one is not None:
            found.outcomes.append(abs(one.mean) <= one.half)
            if delta == max(distinct(lines, "delta")):
                apart = f"local − global {100 * one.mean:+.1f} points of error"
                found.note(f"ε = {value:g}: {both_models(group)}; {apart}.")
    found.note("The paper's loss is that of the local models; it does not state which models its error rates refer to.")


def radius_is_norm(found: Findings, results: Results, regularizer: str) -> None:
    """Decide whether the norm of the non-private optimum is within 10% of the paper's c_w."""
    lines = series.done(results).select(method="centralized", regularizer=regularizer, alpha=PAPER_SHARE)
    need(lines)
    paper, mean = PAPER_RADIUS[regularizer], mean_std(at_end(lines, "weight_norm_global"))[0]
    norm = measure_text(lines, "weight_norm_global")
    found.add(abs(mean / paper - 1.0) <= 0.1, f"Norm of the optimum {norm}, c_w = {paper:g}.")
    found.note("The norm is a function of the private rows, and no ε accounts for publishing it.")


def constant_is_harmless(found: Findings, results: Results, column: str, name: str) -> None:
    """Decide whether other values of a constant change the test error by at most one percentage point."""
    lines = lines_of(results, "choices", "DP-ADMM")
    paper = {"weight_radius": PAPER_RADIUS["l2"], "alpha": PAPER_SHARE}
    other = next(item for item in paper if item != column)
    lines = lines.keep(lines.frame["round_epsilon"].notna()).select(**{other: paper[other]})
    base = lines.select(**{column: paper[column]})
    values = distinct(lines, column)
    need(base, len(values) > 1)
    error = mean_std(at_end(base, "test_error_global"))[0]
    for value in values:
        group = lines.select(**{column: value})
        found.note(f"{name} = {power(value)}: {both_models(group)}.")
        if value != paper[column]:
            moved = mean_std(at_end(group, "test_error_global"))[0] - error
            found.outcomes.append(abs(moved) <= POINT)


def schedule_helps(found: Findings, results: Results, regularizer: str) -> None:
    """Decide whether every constant step size gives a higher loss and error than the theorem's schedule."""
    lines = lines_of(results, "schedule", "DP-ADMM").select(regularizer=regularizer)
    need(len(distinct(lines, "schedule")) > 1)
    for value, _, group in _each_budget(lines):
        ours, constants = group.select(schedule="theorem"), group.select(schedule="constant")
        found.note(f"ε = {value:g}, theorem's schedule: {both_models(ours)}.")
        for (size,), constant_lines in split(constants, "step_size").items():
            found.compare_measures(constant_lines, ours, f"η {size:g}, ε {value:g}")
            found.note(f"ε = {value:g}, constant η = {size:g}: {both_models(constant_lines)}.")


def share_is_best(found: Findings, results: Results) -> None:
    """Decide whether no λ/n has a clearly lower loss or error on held-out rows than the paper's."""
    lines = lines_of(results, "lambda", "optimum")
    need(series.has(lines, "test_loss_global"))
    asked = False
    for (regularizer,), group in split(lines, "regularizer").items():
        shares = {share: part for (share,), part in split(group, "alpha").items()}
        if len(shares) < 2 or PAPER_SHARE not in shares:
            continue
        asked = True
        for column in ("test_loss_global", "test_error_global"):
            ends = {share: at_end(part, column) for share, part in shares.items()}
            best = min(ends, key=lambda share: mean_std(ends[share])[0])
            one = paired(ends[PAPER_SHARE], ends[best])
            if one is not None:
                found.outcomes.append(not one.clear)
            lowest, paper = measure_text(shares[best], column), measure_text(shares[PAPER_SHARE], column)
            found.note(
                f"{regularizer.upper()}, held-out {column.split('_')[1]}: lowest at λ/n = {power(best)}, "
                f"{lowest}; {paper} at {power(PAPER_SHARE)}."
            )
    need(asked)


def beats_single_agents(found: Findings, results: Results) -> None:
    """Decide whether agents that perturb their own solution once are worse than DP-ADMM at the same total ε."""
    ours = lines_of(results, "choices", "DP-ADMM")
    others = _rivals(results, "choices", ("output perturbation", "objective perturbation"))
    need(distinct(ours, "epsilon"))
    for name, lines in others.items():
        for (value, share), group in split(lines, "epsilon", "alpha").items():
            label = f"{name}, λ/n {power(share)}"
            found.compare_measures(group, ours.select(epsilon=value), label, models="global")
            found.note(f"{label}, total ε = {value:g}: {both_models(group)}.")
    for (value,), group in split(ours.keep(ours.frame["epsilon"].notna()), "epsilon").items():
        found.note(f"DP-ADMM at total ε = {value:g}: {both_models(group)}.")


def beats_sampled(found: Findings, results: Results) -> None:
    """Decide whether DPSGD on samples of the rows is worse than DP-ADMM at the same total ε."""
    dpsgd, ours = lines_of(results, "choices", "DPSGD"), lines_of(results, "choices", "DP-ADMM")
    need(distinct(dpsgd, "epsilon"))
    total = max(distinct(dpsgd, "epsilon"))
    same = ours.keep(np.isclose(ours.frame["total_epsilon"], total, rtol=1e-3))
    same = same.select(**{name: distinct(dpsgd, name)[0] for name in ("alpha", "weight_radius")})
    need(same)
    found.compare_measures(dpsgd, same, f"total ε {total:g}", models="global")
    found.note(f"DPSGD on a sample of the rows: {both_models(dpsgd)}. DP-ADMM: {both_models(same)}.")
