"""Release noisy sums over an agent's rows. Every release is recorded before it is returned.

A query is a statistic from the closed list, with public parameters. Each row's contribution is clipped, so any
parameters are safe. Choosing the parameters and using the answer are therefore outside the trusted core. Enrolment
fixes the noise and the number of releases of a study. All state is in the ledger: after a crash, the same enrolment
and the same request return the same bytes.

With secure aggregation an answer is released only under a mask (``masking.py``). ``prepare`` computes the answer with
a share of the noise. When the members of the round are fixed, ``mask`` masks the answer for them and records it. A
round answers one request, for one set of members. A prepared answer is used once. If a crash loses it, it is computed
again with fresh noise.
"""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Callable, Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from dpadmm.accounting.events import AnyRelease, Release
from dpadmm.accounting.release_plan import gaussian
from dpadmm.errors import RefusalError, StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.trusted.discrete_gaussian import Lattice, with_noise
from dpadmm.trusted.ledger import Ending, Ledger, LedgerState
from dpadmm.trusted.policy import MaskingTerms, Policy, Terms
from dpadmm.trusted.unit import PrivacyUnit

if TYPE_CHECKING:
    from dpadmm.queries import Query
    from dpadmm.trusted.masking import Masks

MAX_MEMO = 2**27
DIGEST = re.compile("[0-9a-f]{64}")


class EnrollableStudy(Protocol):
    """The part of a study that the guard reads."""

    @property
    def terms(self) -> Terms: ...


class PrivateRows(Protocol):
    """The owner's rows in the encoding of one study. They must not change while the guard holds them."""

    @property
    def unit(self) -> PrivacyUnit:
        """Privacy unit: no person has more than ``unit.rows`` rows that are not zero."""

    @property
    def n_rows(self) -> int: ...
    @property
    def n_features(self) -> int:
        """Number of columns d of a row."""

    @property
    def n_parts(self) -> int:
        """Number of parts of the rows. The sum over each part is rounded separately."""

    def digest(self) -> str:
        """Return the SHA-256 of all rows, part by part."""

    def total(self, statistic: Query, parameters: Floats, grid: Lattice) -> Integers:
        """Return the sum of a statistic in steps of ``grid``, each row's contribution clipped to ``grid.row_bound``."""


class EnrolledQuery(NamedTuple):
    """A release of a study's plan, with its cost μ², its statistic and the grid of its answers.

    An answer carries one of ``shares`` shares of the noise.
    """

    release: Release
    mu_squared: float
    statistic: Query
    grid: Lattice
    shares: int

    def upload(self, stored: bytes) -> Integers:
        """Return the answer from the bytes that the ledger stores for a round."""
        numbers = np.frombuffer(stored, "<i8", self.grid.size)
        return numbers.astype(np.int64).reshape(self.statistic.shape)


class EnrolledStudy(NamedTuple):
    """An enrolled study, with one query for each release of its plan."""

    terms: Terms
    rows: PrivateRows
    queries: Mapping[AnyRelease, EnrolledQuery]
    masks: Masks | None

    def query_at(self, round: int) -> EnrolledQuery:
        """Return the query of a round, or raise ``RefusalError`` if the round releases nothing."""
        n_rounds = self.terms.plan.n_rounds
        if type(round) is int and round > n_rounds:
            raise RefusalError("round-over", f"the study has {n_rounds} rounds; a later round was requested")
        release = self.terms.plan.at(round) if type(round) is int and round >= 1 else None
        if release is None:
            text = f"invalid request: the round is not one of 1 to {n_rounds}, or it releases nothing"
            raise RefusalError("request-malformed", text)
        return self.queries[release]


class PendingAnswer(NamedTuple):
    """A prepared answer of a round whose members are not fixed yet. It is held in memory only."""

    round: int
    request: str
    numbers: bytes
    memo: bytes


class Guard:
    """Enrol studies and answer their rounds.

    Without secure aggregation, call ``answer`` for each round. With it, call ``prepare`` and then ``mask``.

    Parameters
    ----------
    policy : Policy
        The owner's limits.
    ledger : Ledger
        Record of all releases.
    open_rows : callable
        Return the owner's table in the encoding of a study.
    key_of : callable, optional
        Return the site's private key for a roster. Needed for secure aggregation.
    """

    def __init__(
        self,
        policy: Policy,
        ledger: Ledger,
        open_rows: Callable[[Any], PrivateRows],
        key_of: Callable[[MaskingTerms], bytes] | None = None,
    ) -> None:
        self._policy, self._ledger, self._open_rows, self._key_of = policy, ledger, open_rows, key_of
        self._studies: dict[str, EnrolledStudy] = {}
        self._pending: dict[str, PendingAnswer] = {}
        self._lock = threading.RLock()

    def enrol(self, study: EnrollableStudy) -> EnrolledStudy:
        """Check a study against the policy, pin it to the current rows, and reserve its cost.

        A study must be enrolled again after a restart, at no further cost. If its terms or the rows have changed, this
        is refused.
        """
        terms = study.terms
        self._policy.check(terms)
        masks = self._masks(terms)
        try:
            rows = self._open_rows(study)
            queries = enrolled_queries(terms, rows, self._policy)
            for query in queries.values():
                scale = query.grid.noise_scale(query.release.noise_multiplier, query.shares)
                if masks and masks.n_sites * query.grid.max_upload(scale) >= 2**63:
                    raise StudyError("the sum over all sites could exceed 63 bits")
                if rows.n_rows > query.grid.n_rows:
                    raise StudyError(f"the table has {rows.n_rows} rows, and max_rows_per_site is {query.grid.n_rows}")
        except Exception as error:  # the refusal leaves the site, so it contains no details
            text = "the rows do not fit this study, or its noise level cannot be reached; see the site's log"
            raise RefusalError("study-unfit", text) from error
        if rows.unit != self._policy.unit:
            raise RefusalError("study-unfit", "the rows are not limited to the owner's number of rows per person")
        widths = {statistic.n_features for statistic in terms.statistics.values()}
        if widths != {rows.n_features}:
            text = f"the rows have {rows.n_features} features, which differs from the study"
            raise RefusalError("study-unfit", text)
        self._policy.check(terms, rows.n_rows)
        with self._lock:
            state = self._ledger.status()
            account = state.accounts.get(terms.hash)
            salt = account.about["salt"] if account else os.urandom(16).hex()
            digest = sha256(f"{salt} {rows.digest()}".encode()).hexdigest()
            if account and account.about["rows"] != digest:
                raise RefusalError("data-changed", "the rows have changed since this study was enrolled")
            if not account:
                self._policy.check(terms, rows.n_rows, (state.promised, state.collusion_promised))
            pinned = {"n_rows": rows.n_rows, "rows_per_person": self._policy.unit.rows}
            about = {**terms.to_dict(), **pinned, "salt": salt, "rows": digest}
            cost, gaps = self._policy.cost(terms.plan), terms.may_miss_rounds
            self._ledger.reserve(terms.hash, cost, about=about, may_miss_rounds=gaps, shares=terms.shares)
            return self._studies.setdefault(terms.hash, EnrolledStudy(terms, rows, queries, masks))

    def answer(self, study: str, round: int, parameters: Floats, memo: bytes = b"") -> Integers:
        """Return ``round(Σ_j f(row_j, parameters) / g) + noise``. A repeated request returns the same bytes.

        The ledger stores ``memo`` with the answer, and ``transcript`` returns it. An agent restores its state from it.
        """
        with self._lock:
            enrolled = self._enrolled(study)
            if enrolled.masks:
                raise RefusalError("request-malformed", "this study uses secure aggregation: call prepare and mask")
            query = enrolled.query_at(round)
            parameters, digest = _request(study, round, query.statistic, parameters, memo)
            stored = self._ledger.replay(study, round, digest=digest)
            if stored is None:
                stored = _release(enrolled.rows, query, parameters) + memo
                self._ledger.spend(study, round, digest=digest, mu_squared=query.mu_squared, upload=stored)
            return query.upload(stored)

    def prepare(self, study: str, round: int, parameters: Floats, memo: bytes = b"") -> str:
        """Compute the answer to a request, hold it until the members of its round are fixed, and return the digest.

        This charges nothing, so a round prepares one answer only, to its first request. Otherwise the server could
        have the rows summed at any number of points, and measure the time, without any charge.
        """
        with self._lock:
            enrolled, _ = self._with_masks(study)
            query = enrolled.query_at(round)
            parameters, request = _request(study, round, query.statistic, parameters, memo)
            account, pending = self._ledger.status().account(study), self._pending.get(study)
            if round not in account.rounds and (pending is None or pending[:2] != (round, request)):
                account.check_round(round)
                if pending is not None and round <= pending.round:
                    raise RefusalError("round-forked", f"round {pending.round} is prepared for another request")
                numbers = _release(enrolled.rows, query, parameters)
                self._pending[study] = PendingAnswer(round, request, numbers, memo)
            return request

    def mask(self, study: str, round: int, request: str, members: bytes) -> Integers:
        """Return the prepared answer, masked for the members of its round. A repeated call returns the same bytes.

        ``members`` has a bit for each site of the roster; see ``masking.bitmap_of``.
        """
        with self._lock:
            enrolled, masks = self._with_masks(study)
            query = enrolled.query_at(round)
            if type(request) is not str or not DIGEST.fullmatch(request):
                raise RefusalError("request-malformed", "the request must be a SHA-256, in hexadecimal digits")
            mask = masks.for_round(round, request, members)
            if masks.me not in mask.members:
                raise RefusalError("members-without-me", "this site is not among the members of the round")
            if len(mask.members) < enrolled.terms.quorum:
                text = f"the round has {len(mask.members)} members; the study requires {enrolled.terms.quorum}"
                raise RefusalError("members-few", text)
            digest = mask.context.hex()
            stored = self._ledger.replay(study, round, digest=digest)
            if stored is None:
                pending = self._pending.get(study)
                if pending is None or pending[:2] != (round, request):
                    raise RefusalError("round-not-ready", "no prepared answer for this request; send the request again")
                del self._pending[study]  # two masks on one answer would leak information on it
                numbers = np.frombuffer(pending.numbers, "<i8") + mask.numbers(query.grid.size)
                stored = numbers.astype("<i8").tobytes() + pending.memo + members
                self._ledger.spend(study, round, digest=digest, mu_squared=query.mu_squared, upload=stored)
            return query.upload(stored)

    def transcript(self, study: str) -> list[tuple[int, Integers, bytes]]:
        """Return round, answer and memo of all answered rounds, in order; masked answers with secure aggregation."""
        enrolled, past = self._enrolled(study), []
        for record, stored in self._ledger.transcript(study):
            query = enrolled.query_at(record.round)
            end = len(stored) - (enrolled.masks.n_sites + 7) // 8 if enrolled.masks else len(stored)
            past.append((record.round, query.upload(stored), stored[8 * query.grid.size : end]))
        return past

    @property
    def ledger_state(self) -> LedgerState:
        """State of the ledger, read-only."""
        return self._ledger.status()

    def leave(self, study: str, ending: Ending = "close") -> None:
        """Close a study in the ledger and free the unspent part of its reservation.

        No process answers new rounds of it. Answered rounds may be repeated and return the same bytes. ``ending`` is
        the reason (``ledger.Ending``).
        """
        self._ledger.close_study(study, ending)

    def _enrolled(self, study: str) -> EnrolledStudy:
        if type(study) is not str or study not in self._studies:
            raise RefusalError("study-unknown", "this study is not enrolled at this site")
        return self._studies[study]

    def _with_masks(self, study: str) -> tuple[EnrolledStudy, Masks]:
        enrolled = self._enrolled(study)
        if enrolled.masks is None:
            raise RefusalError("request-malformed", "this study does not use secure aggregation: call answer")
        return enrolled, enrolled.masks

    def _masks(self, terms: Terms) -> Masks | None:
        if terms.masking is None:
            return None
        from dpadmm.trusted.masking import Masks  # needs cryptography, an optional dependency

        roster = terms.masking.roster
        if len({name for name, _ in roster}) < len(roster):
            raise RefusalError("roster-unfit", "two sites of the study's roster have the same name")
        if self._key_of is None:
            raise RefusalError("roster-not-mine", "this site has no key for secure aggregation")
        return Masks(terms.hash, self._key_of(terms.masking), [key for _, key in roster])


def enrolled_queries(terms: Terms, rows: PrivateRows, policy: Policy) -> Mapping[AnyRelease, EnrolledQuery]:
    """Return the query for each release of the plan."""
    # Masked answers are added up, so all sites need the same grid
    masking = terms.masking
    n_rows, shares = (masking.max_rows_per_site, masking.min_honest_sites) if masking else (rows.n_rows, 1)
    queries = {}
    for release, _ in terms.plan.tally():
        single = gaussian(release)
        statistic = terms.statistics[single.statistic]
        grid = Lattice(statistic.row_norm, math.prod(statistic.shape), n_rows, rows.n_parts)
        queries[release] = EnrolledQuery(single, policy.release_cost(release), statistic, grid, shares)
    return MappingProxyType(queries)


def _request(study: str, round: int, statistic: Query, parameters: Floats, memo: bytes) -> tuple[Floats, str]:
    """Return a copy of the parameters and the digest of the request. Every malformed request gets the same refusal."""
    shape = statistic.parameter_shape
    good = type(parameters) is np.ndarray and parameters.dtype == np.float64 and parameters.shape == shape
    good = good and type(memo) is bytes and len(memo) <= MAX_MEMO
    if not good or not np.isfinite(parameters).all() or not statistic.accepts(parameters):
        expected = f"expected a round and finite float64 numbers of shape {shape}, within their bounds"
        raise RefusalError("request-malformed", f"invalid request: {expected}")
    parameters = np.array(parameters, order="C")
    head = f"dpadmm-request/2 {study} {round} {statistic.name} {shape} {len(memo)}\n".encode()
    return parameters, sha256(head + parameters.tobytes() + memo).hexdigest()


def _release(rows: PrivateRows, query: EnrolledQuery, parameters: Floats) -> bytes:
    """Return the answer. Every failure raises the same refusal, since the details of an error may depend on rows."""
    try:
        total = rows.total(query.statistic, parameters, query.grid)
        z = query.release.noise_multiplier
        return with_noise(total, query.grid, z, shares=query.shares).astype("<i8").tobytes()
    except Exception:
        pass
    raise RefusalError("release-failed", "the agent could not compute an answer")
