"""Claims about DP-ADMM beside the other methods."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpadmm.reporting.claims.base import (
    ALL_SOME_NONE,
    Claim,
    Comparison,
    Verdict,
    both_models,
    by_share,
    decide,
    paired,
    tally,
    worse_by,
)
from dpadmm.reporting.claims.trends import private_lines
from dpadmm.reporting.series import (
    METHODS,
    at_end,
    begun,
    budget_column,
    by_round,
    distinct,
    done,
    keep,
    mean_std,
    measure,
    split,
    where,
)
from dpadmm.reporting.style import power
from dpadmm.results import Results

PAPER_RATE = 0.1
_PLACES = {"fig3": "Section VI-A, Figure 3", "fig7": "Section VI-B, Figure 7"}
_KINDS = {"fig3": "L1", "fig7": "L2"}


def method_claims(results: Results) -> list[Claim]:
    """Every claim that sets one method beside another."""
    out = []
    for experiment in ("fig3", "fig7"):
        out += [_beats_sgd(results, experiment, tuned=False), _beats_sgd(results, experiment, tuned=True)]
    out += [_beats(results, "admm_pvp"), _beats(results, "admm_dvp")]
    out += [_fast(results), _arrived(results), _poor(results, "admm_pvp"), _poor(results, "admm_dvp")]
    out += [_slow(results), _refused(results)]
    return out


def lines_of(results: Results, experiment: str, method: str) -> Results | None:
    """The lines of a method that ran in an experiment; None where it did not."""
    if experiment not in begun(results):
        return None
    lines = where(done(results.select(experiment)), method=method)
    return lines if len(lines) else None


def _sgd(results: Results, experiment: str, *, tuned: bool) -> Results | None:
    lines = lines_of(results, experiment, "dp_sgd")
    if lines is None:
        return None
    paper = np.array(lines.column("learning_rate"), dtype=float) == PAPER_RATE
    chosen = keep(lines, ~paper if tuned else paper)
    return chosen if len(chosen) else None


def _side_by_side(
    ours: Results | None, theirs: Results | None, name: str
) -> tuple[list[Comparison], list[str]]:
    """Comparisons at every budget both have, and the numbers at the largest δ."""
    comparisons: list[Comparison] = []
    evidence: list[str] = []
    if ours is None or theirs is None:
        return comparisons, evidence
    budget = budget_column(ours)
    most = max(distinct(ours, "delta"))
    for (value, delta), group in split(theirs, budget, "delta").items():
        mine = where(ours, **{budget: value, "delta": delta})
        if not len(mine):
            continue
        comparisons += worse_by(group, mine, f"ε {value:g}, δ {power(delta)}")
        if delta == most and value in (0.05, 0.1, max(distinct(theirs, budget))):
            evidence.append(
                f"ε = {value:g}, δ = {power(delta)}: DP-ADMM {both_models(mine)}; {name} "
                f"{both_models(group)}." + _totals(mine, group, name)
            )
    return comparisons, evidence


def _totals(ours: Results, theirs: Results, name: str) -> str:
    """A word where the same ε per round is not the same total."""
    mine, other = (float(np.nanmax(each.last().column("total_epsilon"))) for each in (ours, theirs))
    if not abs(mine - other) > 0.01 * mine:
        return ""
    return f" Exact total ε: DP-ADMM {mine:.3f}, {name} {other:.3f}."


def _beats_sgd(results: Results, experiment: str, *, tuned: bool) -> Claim:
    theirs = _sgd(results, experiment, tuned=tuned)
    rates = distinct(theirs, "learning_rate") if theirs is not None else []
    name = "DPSGD with a tuned step" if tuned else "DPSGD"
    comparisons, evidence = _side_by_side(private_lines(results, experiment), theirs, name)
    how = (
        f" (learning rate {', '.join(f'{rate:g}' for rate in rates)}, tail average)"
        if tuned and rates
        else ""
    )
    return Claim(
        f"beats-dpsgd-{'tuned-' if tuned else ''}{_KINDS[experiment].lower()}",
        not tuned,
        _PLACES[experiment],
        f"DP-ADMM is more accurate than DPSGD with a tuned step{how} too ({_KINDS[experiment]})."
        if tuned
        else f"DP-ADMM is more accurate than DPSGD with learning rate 0.1 ({_KINDS[experiment]}).",
        "DPSGD's loss and error, against local and global models, are higher at every ε and δ. "
        f"{ALL_SOME_NONE}",
        decide(comparisons),
        with_tally(comparisons, evidence, experiment),
        (experiment, f"{experiment}_global"),
    )


def _beats(results: Results, method: str) -> Claim:
    name = METHODS[method]
    comparisons, evidence = _side_by_side(
        private_lines(results, "fig7"), lines_of(results, "fig7", method), name
    )
    return Claim(
        f"beats-{name.lower()}",
        True,
        _PLACES["fig7"],
        f"DP-ADMM is more accurate than ADMM with {'primal' if name == 'PVP' else 'dual'} variable "
        f"perturbation, {name} (L2).",
        f"{name}'s loss and error, local and global, are higher at every ε and δ. {ALL_SOME_NONE}",
        decide(comparisons),
        with_tally(comparisons, evidence, "fig7"),
        ("fig7", "fig7_global"),
    )


def _fast(results: Results) -> Claim:
    admm, ours, sgd = (
        lines_of(results, "fig7", "admm"),
        private_lines(results, "fig7"),
        _sgd(results, "fig7", tuned=False),
    )
    outcomes: list[bool] = []
    evidence: list[str] = []
    if admm is not None:
        curve = by_round(admm, "train_loss_global")
        n_rounds = float(curve.x[-1])
        for name, lines in (("DP-ADMM", ours), ("DPSGD", sgd)):
            if lines is None:
                continue
            budget = budget_column(lines)
            best = where(
                lines, **{budget: max(distinct(lines, budget)), "delta": max(distinct(lines, "delta"))}
            )
            end = mean_std(at_end(best, "train_loss_global"))[0]
            below = curve.x[curve.mean < end]
            outcomes.append(bool(len(below)) and float(below[0]) <= n_rounds / 4)
            when = f"after {below[0]:.0f} measured rounds" if len(below) else "never"
            evidence.append(
                f"ADMM's training loss is below {name}'s final {end:.4f} {when} of {n_rounds:.0f}."
            )
    return Claim(
        "admm-fast",
        True,
        _PLACES["fig7"],
        "ADMM without noise converges fast (L2).",
        "Holds when ADMM's training loss (global, mean over the splits) falls below the final loss of "
        "DP-ADMM and of DPSGD at their largest ε within a quarter of the rounds; in part when below one of "
        "them.",
        by_share(outcomes),
        tuple(evidence) or missing_sentence("fig7"),
        ("fig7_global",),
    )


def _arrived(results: Results) -> Claim:
    admm, best = lines_of(results, "fig7", "admm"), lines_of(results, "fig7", "centralized")
    verdict, evidence = Verdict.UNMEASURED, missing_sentence("fig7")
    if admm is not None and best is not None:
        have, floor = (mean_std(at_end(lines, "objective_global"))[0] for lines in (admm, best))
        excess = have / floor - 1.0
        verdict = Verdict.HOLDS if excess <= 0.01 else Verdict.FAILS
        rounds = int(max(admm.column("round")))
        evidence = (
            f"Objective after {rounds} rounds {have:.4f}, optimum {floor:.4f}: {100 * excess:.1f}% above it.",
            f"ADMM: {both_models(admm)}. Optimum: {both_models(best)}.",
        )
    return Claim(
        "admm-arrived",
        False,
        "Section VI-B, setup",
        "After the paper's number of rounds, ADMM without noise is at the optimum, so it can stand for it.",
        "Holds when ADMM's objective (global, mean over the splits) is within 1% of the non-private optimum.",
        verdict,
        evidence,
        ("fig7_global",),
    )


def _poor(results: Results, method: str) -> Claim:
    admm, theirs = lines_of(results, "fig7", "admm"), lines_of(results, "fig7", method)
    name = METHODS[method]
    comparisons: list[Comparison] = []
    evidence: list[str] = []
    if admm is not None and theirs is not None:
        budget = budget_column(theirs)
        for (value, delta), group in split(theirs, budget, "delta").items():
            comparisons += worse_by(group, admm, f"ε {value:g}, δ {power(delta)}")
            if delta == max(distinct(theirs, "delta")):
                evidence.append(f"{name} at ε = {value:g}: {both_models(group)}.")
        evidence.append(f"ADMM without noise: {both_models(admm)}.")
    return Claim(
        f"poor-{name.lower()}",
        True,
        _PLACES["fig7"],
        f"ADMM is sensitive to noise, so perturbing its exact solutions performs poorly ({name}, L2).",
        f"{name}'s loss and error, local and global, are higher than those of ADMM without noise at every ε "
        f"and δ. {ALL_SOME_NONE}",
        decide(comparisons),
        with_tally(comparisons, evidence, "fig7"),
        ("fig7", "fig7_global"),
    )


def _slow(results: Results) -> Claim:
    lines = _sgd(results, "fig7", tuned=False)
    comparisons: list[Comparison] = []
    evidence: list[str] = []
    if lines is not None:
        rounds = np.array(lines.column("round"), dtype=float)
        last = rounds.max()
        before = rounds[rounds <= 0.9 * last].max(initial=1.0)
        for (value, delta), group in split(lines, budget_column(lines), "delta").items():
            earlier, end = keep(group, np.array(group.column("round")) == before), group.last()
            one = paired(_by_seed(earlier), _by_seed(end), label=f"ε {value:g}, δ {power(delta)}")
            comparisons += [one] if one else []
            if delta == max(distinct(lines, "delta")):
                a, b = mean_std(_by_seed(earlier))[0], mean_std(_by_seed(end))[0]
                evidence.append(
                    f"ε = {value:g}: loss {a:.4f} at round {before:.0f}, {b:.4f} at round {last:.0f}."
                )
    return Claim(
        "dpsgd-slow",
        True,
        _PLACES["fig7"],
        "DPSGD (learning rate 0.1) converges slowly (L2).",
        f"Its training loss still falls over the last tenth of the rounds, at every ε and δ. {ALL_SOME_NONE}",
        decide(comparisons),
        with_tally(comparisons, evidence, "fig7"),
        ("fig7_global",),
    )


def _by_seed(lines: Results) -> dict[int, float]:
    pairs = zip(lines.column("seed"), measure(lines, "train_loss_global"), strict=True)
    return {int(seed): float(value) for seed, value in pairs}


def _refused(results: Results) -> Claim:
    outcomes: list[bool] = []
    evidence: list[str] = []
    if "fig3" in begun(results):
        for method in ("admm_pvp", "admm_dvp"):
            lines = where(results.select("fig3"), method=method)
            if len(lines):
                refused = where(lines, status="refused")
                outcomes.append(len(refused) == len(lines))
                reason = refused.column("reason")[0] if len(refused) else "it ran"
                evidence.append(f"{METHODS[method]}: {reason}")
    return Claim(
        "refused-l1",
        True,
        "Section VI-A",
        "PVP and DVP cannot be applied to a non-smooth objective such as L1.",
        "Holds when every such run is refused. The reason is the program's own.",
        by_share(outcomes),
        tuple(evidence) or missing_sentence("fig3"),
    )


def with_tally(comparisons: Sequence[Comparison], evidence: list[str], experiment: str) -> tuple[str, ...]:
    """How many comparisons are clear, then the numbers."""
    return (tally(comparisons), *evidence) if comparisons else missing_sentence(experiment)


def missing_sentence(experiment: str) -> tuple[str, ...]:
    """Evidence where there is none."""
    return (f"Experiment {experiment} is not in this results file, or has too few splits.",)
