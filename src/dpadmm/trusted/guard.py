"""The agent's only door: noisy sums over its rows, each recorded before it leaves, or a refusal.

A question is a statistic of the closed list with public parameters. Any parameters are safe, since what a row
adds to a sum is clipped; so what is asked, and what is made of the answer, is outside. Which study may ask,
how much noise it gets and how often it may ask was fixed when it was enrolled. All state is in the ledger:
after a crash the same enrolment and request give the same bytes.

With secure aggregation an answer leaves only under a mask (``masking.py``): ``prepare`` computes it, with a share of
the noise, and ``masked`` masks it for the members of the round, once they are known, and records it. One request with
one set of members is answered in a round, and what was prepared is used once; what is lost in a crash is computed
again, with other noise.
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
    def n_features(self) -> int:
        """d, the width of the rows."""

    @property
    def n_parts(self) -> int:
        """How many parts the rows are in, each with a rounded sum of its own."""

    def digest(self) -> str:
        """SHA-256 of all rows, part by part."""

    def total(self, statistic: Query, parameters: Floats, grid: Lattice) -> Integers:
        """The sum over rows of a statistic in steps of a grid, what every row adds shortened to its ``row_bound``."""


class EnrolledQuery(NamedTuple):
    """A release of a study's plan: the noise it gets, its price (μ²), the statistic, and the grid of its answers.

    The noise of an answer is one of ``shares`` shares.
    """

    release: Release
    price: float
    statistic: Query
    grid: Lattice
    shares: int

    def upload(self, stored: bytes) -> Integers:
        """The answer in what the ledger keeps of a round."""
        numbers = np.frombuffer(stored, "<i8", self.grid.size)
        return numbers.astype(np.int64).reshape(self.statistic.shape)


class EnrolledStudy(NamedTuple):
    """What a study may ask for, since it was enrolled: a question for each release of its plan."""

    terms: Terms
    rows: PrivateRows
    questions: Mapping[AnyRelease, EnrolledQuery]
    masks: Masks | None

    def question(self, round: int) -> EnrolledQuery:
        """What may be asked in a round."""
        n_rounds = self.terms.plan.n_rounds
        if type(round) is int and round > n_rounds:
            raise RefusalError("round-over", f"the study has {n_rounds} rounds, and asks for a later one")
        release = self.terms.plan.at(round) if type(round) is int and round >= 1 else None
        if release is None:
            text = "the request is not what this study may send: a round from 1 on that releases something"
            raise RefusalError("request-malformed", text)
        return self.questions[release]


class PendingAnswer(NamedTuple):
    """An answer that waits for the members of its round; in memory only."""

    round: int
    request: str
    numbers: bytes
    memo: bytes


class Guard:
    """``enrol`` a study, then ``answer`` its rounds, or ``prepare`` and ``masked`` with secure aggregation.

    ``open_rows`` encodes the owner's table for a study; ``key_of`` has the owner's private key in a roster.
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
        self._prepared: dict[str, PendingAnswer] = {}
        self._one_at_a_time = threading.RLock()

    def enrol(self, study: EnrollableStudy) -> EnrolledStudy:
        """Check a study against the policy, pin it to the rows as they are now, and reserve what it costs.

        To enrol it again, after a restart say, is needed and harmless; refused for other numbers or rows.
        """
        terms = study.terms
        self._policy.check(terms)
        masks = self._masks(terms)
        try:
            rows = self._open_rows(study)
            questions = questions_of(terms, rows, self._policy)
            for asked in questions.values():
                scale = asked.grid.noise_scale(asked.release.noise_multiplier, asked.shares)
                if masks and masks.n_sites * asked.grid.reach(scale) >= 2**63:
                    raise StudyError("the sum of all sites' answers might not fit 63 bits")
                if rows.n_rows > asked.grid.n_rows:
                    raise StudyError(f"there are {rows.n_rows} rows here, and most_rows is {asked.grid.n_rows}")
        except Exception as error:  # whoever asked learns no more than that
            text = "the rows here do not fit this study, or its noise level is unattainable; see the site's log"
            raise RefusalError("study-unfit", text) from error
        if rows.unit != self._policy.unit:
            raise RefusalError("study-unfit", "the rows were not limited to the owner's rows per person")
        widths = {statistic.n_features for statistic in terms.statistics.values()}
        if widths != {rows.n_features}:
            text = f"the rows here have {rows.n_features} features, and not those of the study"
            raise RefusalError("study-unfit", text)
        self._policy.check(terms, rows.n_rows)
        with self._one_at_a_time:
            book = self._ledger.status()
            known = book.accounts.get(terms.hash)
            salt = known.about["salt"] if known else os.urandom(16).hex()
            digest = sha256(f"{salt} {rows.digest()}".encode()).hexdigest()
            if known and known.about["rows"] != digest:
                raise RefusalError("data-changed", "the rows are not those that this study was enrolled with")
            if not known:
                self._policy.check(terms, rows.n_rows, (book.promised, book.promised_alone))
            pinned = {"n_rows": rows.n_rows, "rows_per_person": self._policy.unit.rows}
            about = {**terms.as_json(), **pinned, "salt": salt, "rows": digest}
            cost, gaps = self._policy.cost(terms.plan), terms.may_miss_rounds
            self._ledger.reserve(terms.hash, cost, about=about, may_miss_rounds=gaps, shares=terms.shares)
            return self._studies.setdefault(terms.hash, EnrolledStudy(terms, rows, questions, masks))

    def answer(self, study: str, round: int, parameters: Floats, memo: bytes = b"") -> Integers:
        """``round(Σ_j f(row_j, parameters) / g) + noise``; to the same request, the same again.

        ``memo`` is kept with the answer, for whoever has to find the way here again; see ``transcript``.
        """
        with self._one_at_a_time:
            enrolled = self._enrolled(study)
            if enrolled.masks:
                raise RefusalError("request-malformed", "this study has secure aggregation: answers leave masked")
            asked = enrolled.question(round)
            parameters, digest = _request(study, round, asked.statistic, parameters, memo)
            stored = self._ledger.replay(study, round, digest=digest)
            if stored is None:
                stored = _release(enrolled.rows, asked, parameters) + memo
                self._ledger.spend(study, round, digest=digest, mu_squared=asked.price, upload=stored)
            return asked.upload(stored)

    def prepare(self, study: str, round: int, parameters: Floats, memo: bytes = b"") -> str:
        """Compute the answer to a request, keep it until its round has members, and tell the request's digest.

        Nothing is spent, so a round has one prepared answer, that to its first request: else whoever asks could have
        rows summed at any number of points, and time it, for nothing.
        """
        with self._one_at_a_time:
            enrolled, _ = self._with_masks(study)
            asked = enrolled.question(round)
            parameters, request = _request(study, round, asked.statistic, parameters, memo)
            account, ready = self._ledger.status().account(study), self._prepared.get(study)
            if round not in account.rounds and (ready is None or ready[:2] != (round, request)):
                account.check_round(round)
                if ready is not None and round <= ready.round:
                    raise RefusalError("round-forked", f"round {ready.round} is prepared, for another request")
                numbers = _release(enrolled.rows, asked, parameters)
                self._prepared[study] = PendingAnswer(round, request, numbers, memo)
            return request

    def masked(self, study: str, round: int, request: str, members: bytes) -> Integers:
        """The answer to a prepared request, masked for the members of its round; to the same again, the same.

        ``members`` has a bit for each site of the roster; see ``masking.bitmap_of``.
        """
        with self._one_at_a_time:
            enrolled, masks = self._with_masks(study)
            asked = enrolled.question(round)
            if type(request) is not str or not DIGEST.fullmatch(request):
                raise RefusalError("request-malformed", "the request is named by its SHA-256, in hexadecimal digits")
            mask = masks.over(round, request, members)
            if masks.me not in mask.members:
                raise RefusalError("members-without-me", "this site is not among the members of the round")
            if len(mask.members) < enrolled.terms.quorum:
                text = f"the round has {len(mask.members)} members, and the study needs {enrolled.terms.quorum}"
                raise RefusalError("members-few", text)
            digest = mask.context.hex()
            stored = self._ledger.replay(study, round, digest=digest)
            if stored is None:
                ready = self._prepared.get(study)
                if ready is None or ready[:2] != (round, request):
                    raise RefusalError("round-not-ready", "no answer to this request is prepared; send it again")
                del self._prepared[study]  # two masks on one answer would tell of it
                numbers = np.frombuffer(ready.numbers, "<i8") + mask.numbers(asked.grid.size)
                stored = numbers.astype("<i8").tobytes() + ready.memo + members
                self._ledger.spend(study, round, digest=digest, mu_squared=asked.price, upload=stored)
            return asked.upload(stored)

    def transcript(self, study: str) -> list[tuple[int, Integers, bytes]]:
        """Round, answer and memo of all rounds answered, in order; with secure aggregation, masked answers."""
        enrolled, past = self._enrolled(study), []
        for record, stored in self._ledger.transcript(study):
            asked = enrolled.question(record.round)
            end = len(stored) - (enrolled.masks.n_sites + 7) // 8 if enrolled.masks else len(stored)
            past.append((record.round, asked.upload(stored), stored[8 * asked.grid.size : end]))
        return past

    @property
    def book(self) -> LedgerState:
        """The state of the ledger: to look at, not to change."""
        return self._ledger.status()

    def leave(self, study: str, ending: Ending = "close") -> None:
        """Answer no new round of this study, and give back what it reserved and did not use, in whatever process.

        ``ending`` says why (``ledger.Ending``). Rounds that were answered may be repeated, with the same bytes.
        """
        self._ledger.close_study(study, ending)

    def _enrolled(self, study: str) -> EnrolledStudy:
        if type(study) is not str or study not in self._studies:
            raise RefusalError("study-unknown", "this study is not enrolled here")
        return self._studies[study]

    def _with_masks(self, study: str) -> tuple[EnrolledStudy, Masks]:
        enrolled = self._enrolled(study)
        if enrolled.masks is None:
            raise RefusalError("request-malformed", "this study has no secure aggregation: nothing is masked")
        return enrolled, enrolled.masks

    def _masks(self, terms: Terms) -> Masks | None:
        if terms.masking is None:
            return None
        from dpadmm.trusted.masking import Masks  # needs cryptography, which other studies do not

        roster = terms.masking.roster
        if len({name for name, _ in roster}) < len(roster):
            raise RefusalError("roster-unfit", "two sites of the study's roster have the same name")
        if self._key_of is None:
            raise RefusalError("roster-not-mine", "there is no key for secure aggregation here")
        return Masks(terms.hash, self._key_of(terms.masking), [key for _, key in roster])


def questions_of(terms: Terms, rows: PrivateRows, policy: Policy) -> Mapping[AnyRelease, EnrolledQuery]:
    """What each release of the plan costs and answers, and on which grid."""
    # Answers that are added need one grid
    n_rows, shares = (terms.masking.most_rows, terms.masking.honest) if terms.masking else (rows.n_rows, 1)
    found = {}
    for release, _ in terms.plan.tally():
        asked = gaussian(release)
        statistic = terms.statistics[asked.statistic]
        grid = Lattice(statistic.row_norm, math.prod(statistic.shape), n_rows, rows.n_parts)
        found[release] = EnrolledQuery(asked, policy.price(release), statistic, grid, shares)
    return MappingProxyType(found)


def _request(study: str, round: int, statistic: Query, parameters: Floats, memo: bytes) -> tuple[Floats, str]:
    """A copy of the parameters, and the request's digest; whatever is wrong with it, the same refusal."""
    shape = statistic.parameter_shape
    good = type(parameters) is np.ndarray and parameters.dtype == np.float64 and parameters.shape == shape
    good = good and type(memo) is bytes and len(memo) <= MAX_MEMO
    if not good or not np.isfinite(parameters).all() or not statistic.accepts(parameters):
        wanted = f"a round and finite float64 numbers of shape {shape}, within their bounds"
        raise RefusalError("request-malformed", f"the request is not what this study may send: {wanted}")
    parameters = np.array(parameters, order="C")
    head = f"dpadmm-request/2 {study} {round} {statistic.name} {shape} {len(memo)}\n".encode()
    return parameters, sha256(head + parameters.tobytes() + memo).hexdigest()


def _release(rows: PrivateRows, asked: EnrolledQuery, parameters: Floats) -> bytes:
    """The answer; whatever goes wrong, the same refusal, since what is said of it might depend on rows."""
    try:
        total = rows.total(asked.statistic, parameters, asked.grid)
        z = asked.release.noise_multiplier
        return with_noise(total, asked.grid, z, shares=asked.shares).astype("<i8").tobytes()
    except Exception:
        pass
    raise RefusalError("release-failed", "the agent could not compute an answer")
