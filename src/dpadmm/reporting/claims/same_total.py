"""Claims at the same exact total ε and δ, which the paper does not compare."""

from __future__ import annotations

import numpy as np

from dpadmm.reporting.claims.base import (
    ALL_SOME_NONE,
    Claim,
    Comparison,
    both_models,
    decide,
    paired,
    worse_by,
)
from dpadmm.reporting.claims.methods import lines_of, with_tally
from dpadmm.reporting.claims.trends import private_lines
from dpadmm.reporting.series import METHODS, at_end, distinct, keep, split, where
from dpadmm.reporting.style import power
from dpadmm.results import Results


def same_total_claims(results: Results) -> list[Claim]:
    """DP-ADMM beside agents that work alone, and beside DPSGD on samples of the rows."""
    return [_alone(results), _sampled(results)]


def _alone(results: Results) -> Claim:
    ours = private_lines(results, "choices")
    comparisons: list[Comparison] = []
    evidence: list[str] = []
    if ours is not None:
        ours = keep(ours, np.isfinite(np.array(ours.column("epsilon"), dtype=float)))
    for method in ("output_perturbation", "objective_perturbation"):
        theirs = lines_of(results, "choices", method)
        if theirs is None or ours is None or not len(ours):
            continue
        for (value, share), group in split(theirs, "epsilon", "reg_share").items():
            mine = where(ours, epsilon=value)
            label = f"{METHODS[method]}, λ/n {power(share)}"
            for column in ("train_loss_global", "test_error_global"):
                one = paired(at_end(group, column), at_end(mine, column), label=label)
                comparisons += [one] if one else []
            evidence.append(f"{label}, total ε = {value:g}: {both_models(group)}.")
    if ours is not None and len(ours):
        evidence.append(f"DP-ADMM at the same total ε: {both_models(ours)}.")
    return Claim(
        "alone",
        False,
        "Section VII, related work",
        "At the same exact total ε and δ, DP-ADMM beats agents that perturb their own solution once and "
        "average (output and objective perturbation, L2).",
        f"Their loss and error (global) are higher at every λ. {ALL_SOME_NONE}",
        decide(comparisons),
        with_tally(comparisons, evidence, "choices"),
    )


def _sampled(results: Results) -> Claim:
    lines = lines_of(results, "choices", "dp_sgd")
    ours = private_lines(results, "choices")
    comparisons: list[Comparison] = []
    evidence: list[str] = []
    if lines is not None and ours is not None:
        total = max(distinct(lines, "epsilon"), default=0.0)
        totals = np.array(ours.column("total_epsilon"), dtype=float)
        same = keep(ours, np.isclose(totals, total, rtol=1e-3))
        shares, radii = distinct(lines, "reg_share"), distinct(lines, "weight_radius")
        if len(same) and shares and radii:
            same = where(same, reg_share=shares[0], weight_radius=radii[0])
            comparisons = [
                each for each in worse_by(lines, same, f"total ε {total:g}") if "global" in each.kind
            ]
            evidence = [f"DPSGD on a sample of the rows: {both_models(lines)}. DP-ADMM: {both_models(same)}."]
    return Claim(
        "sampled-dpsgd",
        False,
        "Section VI, setup",
        "At the same exact total ε and δ, DP-ADMM beats tuned DPSGD that uses a random tenth of the rows in "
        "every round.",
        f"DPSGD's loss and error (global) are higher. {ALL_SOME_NONE}",
        decide(comparisons),
        with_tally(comparisons, evidence, "choices"),
    )
