"""A small study with secure aggregation, and guards of its sites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from guards import POLICY, STUDY, D, M, OpenRows, guarded, rows, tiny

from dpadmm.matrices.arrays import Integers
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.masking import bitmap_of, public_key
from dpadmm.trusted.policy import MaskingLimits, MaskingTerms, Policy

N, HONEST, QUORUM = 5, 3, 4
KEYS = [sha256(f"private key of site {i}".encode()).digest() for i in range(N)]
ROSTER = tuple((f"site-{i}", public_key(key)) for i, key in enumerate(KEYS))
MASKING = MaskingTerms(min_honest_sites=HONEST, quorum=QUORUM, max_rows_per_site=2 * M, roster=ROSTER)
OWNER = replace(POLICY, masking=MaskingLimits(epsilon_if_others_collude=2.0, min_honest_sites=2, min_withstood=1))
POINT = np.zeros((D, 1))
ALL = bitmap_of(range(N), N)


def masked_study(name: str = "a masked study", terms: dict[str, Any] | None = None, **masking: Any) -> SimpleNamespace:
    """Return a study as a guard reads it: ``masked_study(quorum=4)``. Another name or other terms are another study."""
    changes = {"may_miss_rounds": True, **(terms or {})}
    asked = STUDY.terms._replace(masking=MASKING._replace(**masking), **changes)
    hash = sha256(f"{name} {asked}".encode()).hexdigest()
    return SimpleNamespace(terms=asked._replace(hash=hash), hash=hash)


MASKED = masked_study()


@contextmanager
def site(
    folder: Path, i: int = 0, study: SimpleNamespace = MASKED, policy: Policy = OWNER, open_rows: OpenRows | None = None
) -> Iterator[Guard]:
    """Yield the guard of site i, with the study enrolled."""
    with guarded(folder, open_rows or tiny(*rows(i)), policy, key=KEYS[i]) as guard:
        guard.enrol(study)
        yield guard


@contextmanager
def sites(folder: Path, which: Sequence[int] = range(N), study: SimpleNamespace = MASKED) -> Iterator[dict[int, Guard]]:
    with ExitStack() as held:
        yield {i: held.enter_context(site(folder / str(i), i, study)) for i in which}


def unmasked(guard: Guard, round: int, request: str, members: bytes, answer: Integers) -> Integers:
    """Return the integers under a mask, which only the site itself can compute."""
    ((_, enrolled),) = guard._studies.items()
    mask = enrolled.masks.for_round(round, request, members)
    return answer - mask.numbers(answer.size).reshape(answer.shape)
