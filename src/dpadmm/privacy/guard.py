"""The agent's only door: noisy mean gradients of its rows, each recorded before it leaves, or a refusal.

Any point is safe to ask at, since every row's gradient is clipped; so what is asked, and what is made of the
answer, is outside. Which study may ask, how much noise it gets and how often it may ask was fixed when it was
enrolled. All state is in the ledger: after a crash the same enrolment and request give the same bytes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

import numpy as np

from dpadmm.arrays import Floats, Integers
from dpadmm.errors import Refusal
from dpadmm.privacy.exact_noise import Grid, release_sum
from dpadmm.privacy.ledger import Ledger
from dpadmm.privacy.policy import Policy, Terms
from dpadmm.privacy.unit import PrivacyUnit

MAX_MEMO = 2**27


class Study(Protocol):
    """A study, as far as a guard cares."""

    @property
    def terms(self) -> Terms: ...


class PrivateRows(Protocol):
    """The rows of the owner in one study's encoding; they may not change while they are held."""

    @property
    def unit(self) -> PrivacyUnit:
        """Whose rows go together: no person has more than ``unit.rows`` that are not zero."""

    @property
    def n_rows(self) -> int: ...
    @property
    def shape(self) -> tuple[int, int]:
        """(d, p) of a gradient."""

    def digest(self) -> str:
        """SHA-256 of all rows."""

    def gradient_sum(self, point: Floats, bound: float) -> Floats:
        """``Σ_j g_j`` at a point, (d, p), the gradient of every row shortened to a norm of ``bound``."""


class Enrolled(NamedTuple):
    """What a study may ask for, since it was enrolled."""

    terms: Terms
    rows: PrivateRows
    grid: Grid


class Guard:
    """``enrol`` a study, then ``answer`` its rounds. ``open_rows`` encodes the owner's table for a study."""

    def __init__(self, policy: Policy, ledger: Ledger, open_rows: Callable[[Any], PrivateRows]) -> None:
        self._policy, self._ledger, self._open_rows = policy, ledger, open_rows
        self._studies: dict[str, Enrolled] = {}
        self._one_at_a_time = threading.RLock()

    def enrol(self, study: Study) -> Enrolled:
        """Check a study against the policy, pin it to the rows as they are now, and reserve what it costs.

        To enrol it again, after a restart say, is needed and harmless; refused for other numbers or rows.
        """
        terms = study.terms
        self._policy.check(terms)
        try:
            rows = self._open_rows(study)
            grid = Grid(terms.lipschitz, terms.shape[0] * terms.shape[1], rows.n_rows)
            grid.noise_scale(terms.noise_multiplier)
        except Exception as error:  # whoever asked learns no more than that
            text = (
                "the rows here do not fit this study, or it asks for noise that cannot be; its owner sees why"
            )
            raise Refusal("study-unfit", text) from error
        if rows.unit != self._policy.unit:
            raise Refusal("study-unfit", "the rows were not limited to the owner's rows per person")
        if rows.shape != terms.shape:
            raise Refusal("study-unfit", f"the rows here make gradients of {rows.shape}, not {terms.shape}")
        self._policy.check_rows(rows.n_rows)
        with self._one_at_a_time:
            book = self._ledger.status()
            known = book.accounts.get(terms.hash)
            salt = known.about["salt"] if known else os.urandom(16).hex()
            digest = sha256(f"{salt} {rows.digest()}".encode()).hexdigest()
            if known and known.about["rows"] != digest:
                raise Refusal("data-changed", "the rows are not those that this study was enrolled with")
            if not known:
                self._policy.check_budget(terms, book.promised)
            pinned = {"n_rows": rows.n_rows, "rows_per_person": self._policy.unit.rows}
            about = {**terms._asdict(), **pinned, "salt": salt, "rows": digest}
            cost = terms.n_rounds * self._policy.price(terms)
            self._ledger.reserve(terms.hash, cost, about=about, gaps=terms.gaps)
            return self._studies.setdefault(terms.hash, Enrolled(terms, rows, grid))

    def answer(self, study: str, round: int, point: Floats, memo: bytes = b"") -> Integers:
        """``round(Σ_j g_j(point) / g) + noise``, (d, p) whole numbers; to the same request, the same again.

        ``memo`` is kept with the answer, for whoever has to find the way here again; see ``transcript``.
        """
        with self._one_at_a_time:
            enrolled = self._enrolled(study)
            terms = enrolled.terms
            if type(round) is int and round > terms.n_rounds:
                raise Refusal(
                    "round-over", f"the study has {terms.n_rounds} rounds, and asks for a later one"
                )
            point, digest = _request(terms, round, point, memo)
            stored = self._ledger.replay(study, round, digest=digest)
            if stored is None:
                upload = _release(enrolled, point)
                if upload is None:
                    raise Refusal("release-failed", "the agent could not compute an answer")
                stored, price = upload + memo, self._policy.price(terms)
                self._ledger.spend(study, round, digest=digest, mu_squared=price, upload=stored)
            return _upload(stored, terms)

    def transcript(self, study: str) -> list[tuple[int, Integers, bytes]]:
        """Round, answer and memo of all rounds answered, in order."""
        terms = self._enrolled(study).terms
        size = 8 * terms.shape[0] * terms.shape[1]
        past = self._ledger.transcript(study)
        return [(record.round, _upload(stored, terms), stored[size:]) for record, stored in past]

    def leave(self, study: str) -> None:
        """Answer this study no more, and give back what it reserved and did not use, in whatever process."""
        self._ledger.close_study(study)

    def _enrolled(self, study: str) -> Enrolled:
        if type(study) is not str or study not in self._studies:
            raise Refusal("study-unknown", "this study is not enrolled here")
        return self._studies[study]


def _request(terms: Terms, round: int, point: Floats, memo: bytes) -> tuple[Floats, str]:
    """A copy of the point, and the digest of the request; whatever is wrong with it, the same refusal."""
    good = type(point) is np.ndarray and point.dtype == np.float64 and point.shape == terms.shape
    good = good and type(round) is int and round >= 1 and type(memo) is bytes and len(memo) <= MAX_MEMO
    if not good or not np.isfinite(point).all():
        wanted = f"a round and finite float64 numbers of shape {terms.shape}"
        raise Refusal("request-malformed", f"the request is not what this study may send: {wanted}")
    point = np.array(point, order="C")
    head = f"dpadmm-request/1 {terms.hash} {round} {terms.shape} {len(memo)}\n".encode()
    return point, sha256(head + point.tobytes() + memo).hexdigest()


def _release(enrolled: Enrolled, point: Floats) -> bytes | None:
    """The answer; None for whatever went wrong, since what is said of it might depend on rows."""
    terms, rows, grid = enrolled
    try:
        total = rows.gradient_sum(point, grid.row_bound)
        return release_sum(total, grid, terms.noise_multiplier).astype("<i8").tobytes()
    except Exception:
        return None


def _upload(stored: bytes, terms: Terms) -> Integers:
    count = terms.shape[0] * terms.shape[1]
    return np.frombuffer(stored, "<i8", count).astype(np.int64).reshape(terms.shape)
