"""Rounds of masked answers, of which the aggregator learns the sum alone: secure aggregation.

Sites first say that they are ready. Those that are become the members of the round; once that is stored, they are
asked to mask their answers over exactly these members. If one of them is missing, what the others sent is noise:
the round is void, for good, and the next one begins. Masked answers are kept in memory until then, and never stored.

``coordinator_of`` a study chooses between these rounds and those of ``Uploads``, by what its sites trust.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from logging import Logger
from math import prod, sqrt
from typing import Any

import numpy as np

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.release_plan import gaussian
from dpadmm.accounting.statement import ROW_GROUPS
from dpadmm.engine.method import RoundResult
from dpadmm.engine.noise import pooled_mean
from dpadmm.federation.protocol import BadMessageError, Kind, Message, digest_of, packed
from dpadmm.federation.server.coordinator import Coordinator, Member, StudyStoppedError, Uploads
from dpadmm.federation.server.journal import Journal, Opening, Void
from dpadmm.matrices.arrays import Integers
from dpadmm.trusted.discrete_gaussian import Lattice
from dpadmm.trusted.masking import bitmap_of, members_of

MOST_VOIDS = 2
"""A site that made a round void sits out the next one; after so many it takes part no more."""

MOST_GARBLED = 2
"""After more garbled rounds a study stops, for good: nobody can tell whose masks are wrong, and each costs budget."""

UNMASKABLE = ("round-forked", "members-malformed", "members-without-me", "members-few")
"""Refusals after which a site cannot complete this round, though it can answer others."""


class Sums(Coordinator):
    """Phases of a round: ready, ``open``; masked, ``close`` or void."""

    def __init__(self, journal: Journal, log: Logger | None = None) -> None:
        masking = journal.study.terms.masking
        assert masking is not None
        self.masking, self.n_masked = masking, len(masking.roster)
        super().__init__(journal, log)
        self._mu *= max(1.0, sqrt(masking.honest) / max(ROW_GROUPS))  # a statement has that of one share, too
        self._index = {name: i for i, name in enumerate(self._names)}
        self._tags = np.zeros((self.n_masked, self.n_masked), np.uint64)
        self._tagged = np.zeros(self.n_masked, bool)
        self._clash = np.zeros((self.n_masked, self.n_masked), bool)
        """Pairs of sites whose tags differ: one of them does not have the key that the study says."""
        self.voids = journal.voids()
        for name in self._excluded():
            self.members[name].state = "excluded"
        self._asked: dict[str, list[int]] = {name: [] for name in self._names}
        """The rounds that a site was a member of: it may have masked its answer in each."""
        self._round_members: tuple[str, ...] = ()
        """Those of the last round that was opened."""
        self._forget()
        openings = journal.openings()
        for opening in openings:
            self._admit(opening)
        if openings and openings[-1].round == self.rounds_done + 1:
            self.called = self._resumed = True
            self.request = self._request()
            self._opened(openings[-1])

    def _forget(self) -> None:
        """Begin a round: masked answers of the last one are of no use."""
        self._ready: set[str] = set()
        self._masked: dict[str, Integers] = {}
        self._opening: Opening | None = None
        self._seconds_to_open, self._all_needed, self._resumed = 0.0, False, False

    def _admit(self, opening: Opening) -> None:
        self._round_members = tuple(self._names[i] for i in members_of(opening.members, self.n_masked))
        for name in self._round_members:
            self._asked[name].append(opening.round)

    # Requests

    def messages(self, *, again: bool) -> Sequence[bytes]:
        """The members of a round have its request, unless somebody was started since."""
        if self._opening is None:
            return [self.request]
        return [self.request, self._mask] if again or self._resumed else [self._mask]

    def _digests_now(self) -> set[str]:
        return {self._digest} if self._opening is None else {self._digest, digest_of(self._mask)}

    def _is_final(self, code: str) -> bool:
        return super()._is_final(code) and code not in UNMASKABLE

    # Answers

    def _refused(self, member: Member, answer: Message) -> None:
        if self._opening is None or member.name in self._round_members:  # others need not mask
            super()._refused(member, answer)

    def _check_sizes(self, member: Member, n_rows: int, k: int) -> None:
        super()._check_sizes(member, n_rows, k)
        if n_rows > self.masking.most_rows:
            raise BadMessageError(f"it has {n_rows:,} rows, and this study at most {self.masking.most_rows:,} a site")

    def _answered(self, member: Member, answer: Message) -> None:
        if answer.round > self.round or (self.done and answer.round):
            raise BadMessageError(f"it answers round {answer.round}, which was not requested")
        if answer.masked is None:
            self._compare_tags(member.name, answer.body)
        if answer.round < self.round or answer.kind is Kind.PRESENT:
            return  # a round that is over, whatever became of it
        if answer.kind is Kind.READY:
            if answer.digest != self._digest:
                raise BadMessageError(f"it answers a different request for round {answer.round}")
            self._ready.add(member.name)
            return
        assert answer.masked is not None
        if self._opening is None or member.name not in self._round_members:
            raise BadMessageError(f"it is not a member of round {self.round}")
        if answer.digest != digest_of(self._mask):
            raise BadMessageError(f"it answers a different request for round {answer.round}")
        known = self._masked.setdefault(member.name, answer.masked)
        if known.tobytes() != answer.masked.tobytes():
            raise BadMessageError("a second, different answer to the same round; do two agents share a certificate?")

    def _compare_tags(self, site: str, body: bytes) -> None:
        """Name the sites whose tags differ: masks would not cancel, and the whole round would be void."""
        i, tags = self._index[site], np.frombuffer(body, "<u8")
        if self._tagged[i] and np.array_equal(self._tags[i], tags):
            return
        self._tags[i], self._tagged[i] = tags, True
        self._clash[i] = self._clash[:, i] = (self._tags[i] != self._tags[:, i]) & self._tagged
        for j in np.flatnonzero(self._clash[i]):
            text = f"its key and that of {self._names[j]} do not match: one of them does not have the key in the study"
            self.note("warning", site, text)

    def _matching(self, sites: set[str]) -> set[str]:
        """Without sites whose tags differ: whoever differs from most of the others, and both if that is no answer."""
        if not self._clash.any():
            return sites
        left = np.isin(np.arange(self.n_masked), [self._index[name] for name in sites])
        while (clashes := (self._clash & left & left[:, None]).sum(axis=1)).any():
            left &= clashes < clashes.max()
        return {self._names[i] for i in np.flatnonzero(left)}

    # Phases

    def able(self) -> set[str]:
        return super().able() - self._excluded()

    def _excluded(self) -> set[str]:
        counts = Counter(name for void in self.voids if void.reason == "missing" for name in void.sites)
        return {name for name, count in counts.items() if count >= MOST_VOIDS}

    def _resting(self) -> set[str]:
        """The sites that made the last round void, unless they are needed."""
        resting = {name for void in self.voids[-1:] if void.round == self.rounds_done for name in void.sites}
        return resting if not self._all_needed and len(self.able() - resting) >= self.quorum else set()

    def answered_now(self) -> set[str]:
        if self._opening is not None:
            return set(self._masked)
        here = self._ready if self.called else self.here()
        return self._matching(here & (self.able() - self._resting()))

    def missing(self) -> set[str]:
        if self._opening is not None:
            return set(self._round_members) - self._masked.keys()
        if self.called:  # there is nothing more to wait for of those whose keys do not match
            return self._waited_for() - self._resting() - self._ready
        return super().missing()

    def over(self, waited: float) -> bool:
        """Whether enough sites are ready, or the members' answers are there or will not come."""
        garbled = sum(void.reason == "garbled" for void in self.voids)
        if garbled > MOST_GARBLED:
            raise StudyStoppedError(
                f"the study stops before round {self.rounds_done + 1}: {garbled} sums were garbled, so a site's masks "
                "are wrong, and nobody can tell whose; agree on a new study once all sites were checked"
            )
        if self._opening is None:
            late = self.study.deadline is None or self._too_late(waited)
            self._all_needed = self._all_needed or (late and len(self.answered_now()) < self.quorum)
            return super().over(waited)
        return not self.missing() or bool(self._lost()) or self._too_late(waited)

    def _lost(self) -> set[str]:
        """The members whose answers will not come."""
        found = (self.members[name] for name in self.missing())
        return {each.name for each in found if each.out or each.code in UNMASKABLE}

    def proceed(self, seconds: float) -> None:
        if not self.called:
            self.begin()
        elif self._opening is None:
            self.open_round(seconds)
        elif self.missing():
            self.void_round("missing", tuple(sorted(self._lost() or self.missing())), seconds)
        else:
            self.close_round(seconds)

    def open_round(self, seconds: float = 0.0) -> None:
        """Store who takes part; only then they are asked to mask."""
        members = bitmap_of([self._index[name] for name in self.answered_now()], self.n_masked)
        opening = Opening(self.round, self._digest, members)
        self._journal.open_round(opening)
        self._missed(self._waited_for() - self._resting() - self._ready)
        self._seconds_to_open = seconds
        self._admit(opening)
        self._opened(opening)

    def _opened(self, opening: Opening) -> None:
        self._opening = opening
        asked = Message(Kind.MASK, self.study.hash, opening.round, digest=opening.request, body=opening.members)
        self._mask = packed(asked)

    def _n_rows(self, name: str) -> int:
        sizes = self.members[name].sizes
        assert sizes is not None  # it was ready
        return sizes[0]

    def close_round(self, seconds: float = 0.0) -> None:
        """Compute w^k from the sum of the masked answers, or find that it is garbled."""
        members, release = self._round_members, self.study.terms.plan.at(self.round)
        assert release is not None
        asked, shape = gaussian(release), self._shape(self.round)
        grid = Lattice(self.study.terms.statistics[asked.statistic].row_norm, prod(shape), self.masking.most_rows)
        total = np.zeros(shape, np.int64)
        for name in members:
            total += self._masked[name]  # modulo 2^64, where the masks cancel
        largest = len(members) * grid.max_upload(grid.noise_scale(asked.noise_multiplier, self.masking.honest))
        if np.any(total > largest) or np.any(total < -largest):
            return self.void_round("garbled", (), seconds)
        n_rows = np.array([self._n_rows(name) for name in members])
        mean = pooled_mean(total, grid, int(n_rows.sum()))[None]
        gathered = RoundResult(mean, self.consensus, self.round, self.study.problem, n_rows)
        consensus = self._aggregated(gathered.pooled(self.masking.honest))
        seconds += self._seconds_to_open
        answers = {name: sha256(self._masked[name].astype("<i8").tobytes()).hexdigest() for name in members}
        self._journal.close_sum(self.round, consensus, total, answers, seconds)
        for name in members:
            self.members[name].answered.append(self.round)
        self._forget()
        return self._close(consensus, seconds)

    def void_round(self, reason: str, sites: tuple[str, ...], seconds: float = 0.0) -> None:
        """Give a round up for good; what is broadcast stays as it was."""
        void, seconds = Void(self.round, reason, sites), seconds + self._seconds_to_open
        self._journal.close_void(void, self.consensus, seconds)
        self.voids.append(void)
        if reason == "garbled":
            self.note("warning", "", f"round {void.round} is void: its sum is garbled, so a site's masks are wrong")
        else:
            self._blame(void)
        self._forget()
        self._close(self.consensus, seconds)

    def _blame(self, void: Void) -> None:
        self.note("warning", "", f"round {void.round} is void: no masked answer of {', '.join(void.sites)}")
        for name in void.sites:
            member = self.members[name]
            if name in self._excluded():
                member.state = "excluded"
                self.note("warning", name, f"it made {MOST_VOIDS} rounds void, and takes part no more")
            elif member.state in ("present", "late"):
                member.state = "absent"

    # Status

    def _charged(self, member: Member) -> Sequence[int]:
        return list(self._asked[member.name])

    def snapshot(self) -> dict[str, Any]:
        """With what holds if all other sites work together, the members of the round, and void rounds."""
        seen, delta, honest = super().snapshot(), float(self.study.training.delta), self.masking.honest
        alone = exact_epsilon(sqrt(honest) * self._mu_so_far(), np.full(self.n_masked, delta)).tolist()
        for site, epsilon in zip(seen["sites"], alone, strict=True):
            site |= {"epsilon_alone": epsilon, "member": site["name"] in self._round_members}
        planned = sqrt(honest * float(self.study.terms.plan.mu_squared()))
        seen["study"]["epsilon_alone"] = float(exact_epsilon(planned, delta))
        return seen | {"honest": honest, "voids": [void._asdict() for void in self.voids]}


def coordinator_of(journal: Journal, log: Logger | None = None) -> Coordinator:
    """The coordinator of a study: what sites send is summed under masks, if the study says so."""
    kind = Uploads if journal.study.terms.masking is None else Sums
    return kind(journal, log)


def snapshot_of_journal(journal: Journal) -> dict[str, Any]:
    """A snapshot from the journal alone, of a run that may be active in another process."""
    run = coordinator_of(journal)
    run.served = False
    for member in run.members.values():
        if member.answered and member.state == "unseen":
            member.state = "present" if member.answered[-1] == run.rounds_done else "absent"
    return run.snapshot() | {"round": 0 if run.is_over else run.rounds_done + 1}
