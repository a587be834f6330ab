"""The claims of ``claims.toml``, judged by the rules of ``rules.py``."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.resources import files
from typing import Any

from reproduction.figures import PAPER
from reproduction.results import Results
from reproduction.rules import ALL_SOME_NONE, ClaimVerdict, Findings, judge
from reproduction.series import distinct, done, started

MIN_SPLITS = 5
"""With fewer, the 95% intervals are so wide that little is clear."""


Judge = Callable[[Results], Findings | None]
"""A rule of ``rules.py`` with its arguments; None if the results have no runs for the claim."""


@dataclass(frozen=True)
class Claim:
    """A claim in plain words, the ``rule`` that decides it, and the outcome.

    ``place`` is the section of the paper that it refers to, ``quote`` the paper's own words (empty for a claim that we
    added), ``figures`` the names of the figures that show it, and ``evidence`` sentences with numbers.
    """

    key: str
    statement: str
    rule: str
    place: str
    quote: str
    figures: tuple[str, ...] = ()
    verdict: ClaimVerdict = ClaimVerdict.UNMEASURED
    evidence: tuple[str, ...] = ()
    n_splits: int = 0

    @property
    def from_paper(self) -> bool:
        """Whether the claim is the paper's. Otherwise we added it."""
        return bool(self.quote)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": str(self.verdict), "from_paper": self.from_paper}


def claims(results: Results) -> list[Claim]:
    """Judge all claims for which there are runs. Claims of the paper come first."""
    if not set(PAPER) & set(started(results)):
        return []
    n_splits = len(distinct(done(results), "seed"))
    found = [
        replace(claim, verdict=findings.verdict, evidence=findings.sentences, n_splits=n_splits)
        for claim, judged in read_claims()
        if (findings := judged(results)) is not None
    ]
    return sorted(found, key=lambda claim: not claim.from_paper)


def few_splits_warning(found: Sequence[Claim]) -> str:
    """Return a warning if there are too few splits, or an empty string."""
    n_splits = max((claim.n_splits for claim in found), default=0)
    if not 0 < n_splits < MIN_SPLITS:
        return ""
    return (
        f"These results have only {n_splits} random split{'s' if n_splits > 1 else ''}, so some claims are unclear "
        "for lack of evidence, not because they were refuted."
    )


def verdict_counts(found: Sequence[Claim]) -> dict[ClaimVerdict, int]:
    """Count the claims by verdict."""
    counts = Counter(claim.verdict for claim in found)
    return {verdict: counts[verdict] for verdict in ClaimVerdict if counts[verdict]}


_WORDS = {
    ClaimVerdict.HOLDS: ("holds", "hold"),
    ClaimVerdict.IN_PART: ("holds in part", "hold in part"),
    ClaimVerdict.FAILS: ("does not hold", "do not hold"),
    ClaimVerdict.NOT_APPLICABLE: ("is not applicable", "are not applicable"),
    ClaimVerdict.UNMEASURED: ("is not measured", "are not measured"),
}


def summary_of(found: Sequence[Claim]) -> str:
    """Summarise: ``Of 37 claims of the paper, 20 hold, 9 hold in part. Of 10 claims that we added, 2 hold.``"""
    parts = []
    for from_paper, whose in ((True, "of the paper"), (False, "that we added")):
        counts = verdict_counts([claim for claim in found if claim.from_paper is from_paper])
        words = ", ".join(f"{n} {_WORDS[verdict][n > 1]}" for verdict, n in counts.items())
        total = sum(counts.values())
        parts += [f"Of {total} claim{'s' if total > 1 else ''} {whose}, {words}."] if total else []
    return " ".join(parts)


def read_claims() -> Iterator[tuple[Claim, Judge]]:
    """Yield the claims of ``claims.toml`` with their rules. Claims with {kind} occur for L1 and for L2."""
    table = tomllib.loads(files("reproduction").joinpath("claims.toml").read_text(encoding="utf-8"))
    for written in table["claims"]:
        for kind in table["kinds"] if "{kind}" in written["key"] else [""]:
            words = {"all": ALL_SOME_NONE, "kind": kind, **table["kinds"].get(kind, {})}
            entry = _fill_in({"quote": "", "figures": [], **written}, words)
            ((rule, arguments),) = entry.pop("judge").items()
            quote = entry["quote"] if isinstance(entry["quote"], str) else entry["quote"][kind]
            claim = Claim(**{**entry, "quote": quote, "figures": tuple(entry["figures"])})
            yield claim, partial(judge, rule=rule, arguments=arguments)


def _fill_in(value: Any, words: Mapping[str, Any]) -> Any:
    """Insert the words into all strings of a value."""
    if isinstance(value, str):
        return value.format_map(words)
    if isinstance(value, dict):
        return {name: _fill_in(item, words) for name, item in value.items()}
    return [_fill_in(item, words) for item in value] if isinstance(value, list) else value
