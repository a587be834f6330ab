"""A study with secure aggregation: its keys, and in-process sites with real guards and ledgers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from guards import private, rows

from dpadmm.federation.site.responder import Responder
from dpadmm.studies.roster import RosterEntry
from dpadmm.studies.study import Study
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import Ledger
from dpadmm.trusted.masking import public_key
from dpadmm.trusted.policy import MaskingLimits, Policy
from dpadmm.trusted.private_rows import CheckedRows

NAMES = ("a", "b", "c", "d")
ROUNDS, MOST_ROWS, D = 5, 100, 3
ROWS = {"a": 20, "b": 37, "c": 60, "d": 95}
LIMITS = MaskingLimits(1e3, 2, 1)
POLICY = Policy(1e3, 1e-5, frozenset({"pgd"}), frozenset({"logistic"}), 1000, 2, masking=LIMITS)
LOG = logging.getLogger("masked")


def key(name: str) -> bytes:
    """Return the private key of a site."""
    return sha256(f"key of {name}".encode()).digest()


def masked_study(names: Sequence[str] = NAMES, **more: Any) -> Study:
    """Return a study that by default tolerates one missing site, with at least two honest sites."""
    training = {"noise_multiplier": 30.0, "n_rounds": ROUNDS, "intercept": False, "aggregation": "secure"}
    choices: dict[str, Any] = {"allow_missed_rounds": True, "quorum": 3, "deadline": 10.0, **more}
    return Study(
        name="masked", features=("x", "y", "z"), classes=(-1, 1), max_rows_per_site=MOST_ROWS,
        training={**training, "min_honest_sites": 2}, **choices,
        roster=tuple(RosterEntry(name, public_key(key(name)).hex()) for name in names),
    )  # fmt: skip


class MaskedSite:
    """A responder over a guard with a ledger in a folder. Call ``start`` again after a crash."""

    def __init__(self, folder: Path, name: str, study: Study, held: CheckedRows | None = None) -> None:
        self.folder, self.name, self.study, self.key = folder / name, name, study, key(name)
        self.rows = private(*rows(ord(name), ROWS[name], D)) if held is None else held
        self.responder: Responder | None = None

    @contextmanager
    def guard(self) -> Iterator[Guard]:
        with Ledger.open(self.folder, cap=POLICY.cap, collusion_cap=POLICY.collusion_cap, create=True) as ledger:
            yield Guard(POLICY, ledger, lambda _: self.rows, lambda _: self.key)

    def start(self) -> None:
        self.close()
        self.responder = Responder(self.guard, 1, LOG)
        self.responder.open()
        assert self.responder.accept(self.study) is None

    def close(self) -> None:
        if self.responder is not None:
            self.responder.close()

    def __call__(self, data: bytes) -> bytes | None:
        assert self.responder is not None
        return self.responder.answer(self.study.hash, data)
