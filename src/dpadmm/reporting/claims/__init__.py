"""The claims page: what Section VI says and leaves out, decided by rules in code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from dpadmm.reporting.claims.base import CLEAR, Claim, Verdict
from dpadmm.reporting.claims.choices import choice_claims
from dpadmm.reporting.claims.cost import cost_claims
from dpadmm.reporting.claims.methods import method_claims
from dpadmm.reporting.claims.same_total import same_total_claims
from dpadmm.reporting.claims.trends import trend_claims
from dpadmm.reporting.series import distinct, done
from dpadmm.results import Results

ENOUGH_SPLITS = 5
"""With fewer, the 95% intervals are so wide that little is clear."""


def claims(results: Results) -> list[Claim]:
    """Every claim, those of the paper first."""
    found = [
        *trend_claims(results),
        *method_claims(results),
        *same_total_claims(results),
        *cost_claims(results),
        *choice_claims(results),
    ]
    n_splits = len(distinct(done(results), "seed"))
    counted_in = [replace(claim, n_splits=n_splits) for claim in found]
    return sorted(counted_in, key=lambda claim: not claim.from_paper)


def few_splits(found: Sequence[Claim]) -> str:
    """The sentence that warns of too few splits; empty where there are enough."""
    n_splits = max((claim.n_splits for claim in found), default=0)
    if not 0 < n_splits < ENOUGH_SPLITS:
        return ""
    return (
        f"These results have only {n_splits} random split{'s' if n_splits > 1 else ''}, so much is not clear "
        "for lack of evidence, not because it was refuted."
    )


def counted(found: Sequence[Claim]) -> dict[Verdict, int]:
    """How many claims have each verdict."""
    counts = Counter(claim.verdict for claim in found)
    return {verdict: counts[verdict] for verdict in Verdict}


def claims_markdown(found: Sequence[Claim], *, n_missing: int = 0) -> str:
    """The claims page as Markdown; ``n_missing`` runs of the experiments are not there yet."""
    lines = ["# Claims of the paper's Section VI, measured", ""]
    if n_missing:
        lines += [f"**These results are not complete: {n_missing} runs are missing.**", ""]
    return "\n".join([*lines, f"{in_short(found)}.", "", evidence_markdown(found)])


def in_short(found: Sequence[Claim]) -> str:
    """``13 claims hold, 16 hold in part, 1 does not hold``."""
    several = {"holds": "hold", "holds in part": "hold in part", "does not hold": "do not hold"}
    parts = [
        f"{n} {verdict if n == 1 else several.get(verdict, verdict)}"
        for verdict, n in counted(found).items()
        if n
    ]
    return ", ".join(parts).replace(
        " ", " claims " if parts and not parts[0].startswith("1 ") else " claim ", 1
    )


def evidence_markdown(found: Sequence[Claim], *, level: int = 2) -> str:
    """Every claim with its verdict, evidence and rule, under headings of this level and the next."""
    lines = [" ".join(filter(None, [CLEAR, few_splits(found)]))]
    for from_paper, title in ((True, "What the paper says"), (False, "What the paper leaves out")):
        lines += ["", f"{'#' * level} {title}"]
        for claim in (each for each in found if each.from_paper is from_paper):
            lines += ["", f"{'#' * level}# {claim.statement}", "", f"**{claim.verdict}**. {claim.place}."]
            if claim.figures:
                lines[-1] += f" Figures: {', '.join(claim.figures)}."
            lines += ["", *(f"- {_escaped(sentence)}" for sentence in claim.evidence)]
            lines += ["", f"Rule: {claim.rule}"]
    return "\n".join(lines) + "\n"


def claims_json(found: Sequence[Claim]) -> str:
    """The claims page for machines."""
    return json.dumps([claim.as_json() for claim in found], indent=2, ensure_ascii=False) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


__all__ = [
    "CLEAR",
    "Claim",
    "Verdict",
    "claims",
    "claims_json",
    "claims_markdown",
    "counted",
    "evidence_markdown",
    "few_splits",
    "in_short",
]
