"""Secure aggregation: rounds of masked answers, of which the server learns only the sum.

1. Sites that are ready become the members of the round. The journal stores them.
2. Each member masks its answer over exactly these members.
3. If an answer is missing, the masks do not cancel and the other answers are useless. The round is aborted for
   good and the next one starts.

Masked answers stay in memory until the end of the round and are never stored.
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
from dpadmm.accounting.report import ROW_GROUPS
from dpadmm.engine.method import RoundResult
from dpadmm.engine.noise import pooled_mean
from dpadmm.federation.protocol import BadMessageError, Kind, Message, digest_of, packed
from dpadmm.federation.server.coordinator import (
    SECOND_ANSWER,
    Coordinator,
    Member,
    StudyStoppedError,
    Uploads,
)
from dpadmm.federation.server.journal import AbortedRound, Journal, Opening
from dpadmm.matrices.arrays import Integers
from dpadmm.trusted.discrete_gaussian import Lattice
from dpadmm.trusted.masking import bitmap_of, members_of

MAX_ABORTED = 2
"""A site that aborts a round skips the next one. After this many aborted rounds it is excluded."""

MAX_GARBLED = 2
"""Garbled rounds after which a study stops for good: wrong masks cannot be attributed, and each round costs budget."""

UNMASKABLE = ("round-forked", "members-malformed", "members-without-me", "members-few")
"""Refusals after which a site cannot complete this round but can answer others."""


class Sums(Coordinator):
    """Phases of a round: sites are ready, ``open_round``; answers are masked, ``close_round`` or ``abort_round``."""

    def __init__(self, journal: Journal, log: Logger | None = None) -> None:
        masking = journal.study.terms.masking
        assert masking is not None
        self.masking, self.n_masked = masking, len(masking.roster)
        super().__init__(journal, log)
        self._mu *= max(
            1.0, sqrt(masking.min_honest_sites) / max(ROW_GROUPS)
        )  # a privacy report also lists the μ of one share
        self._index = {name: i for i, name in enumerate(self._names)}
        self._tags = np.zeros((self.n_masked, self.n_masked), np.uint64)
        self._tagged = np.zeros(self.n_masked, bool)
        self._clash = np.zeros((self.n_masked, self.n_masked), bool)
        """Pairs of sites whose tags differ: one of them does not have the key in the study."""
        self.aborted_rounds = journal.aborted_rounds()
        for name in self._excluded():
            self.members[name].state = "excluded"
        self._rounds_joined: dict[str, list[int]] = {name: [] for name in self._names}
        """The rounds of which a site was a member, and in which it may have masked an answer."""
        self._round_members: tuple[str, ...] = ()
        """The members of the last opened round."""
        self._reset()
        openings = journal.openings()
        for opening in openings:
            self._admit(opening)
        if openings and openings[-1].round == self.rounds_done + 1:
            self.called = self._resumed = True
            self.request = self._request()
            self._opened(openings[-1])

    def _reset(self) -> None:
        """Discard the masked answers of the last round."""
        self._ready: set[str] = set()
        self._masked: dict[str, Integers] = {}
        self._opening: Opening | None = None
        self._seconds_to_open, self._all_needed, self._resumed = 0.0, False, False

    def _admit(self, opening: Opening) -> None:
        self._round_members = tuple(self._names[i] for i in members_of(opening.members, self.n_masked))
        for name in self._round_members:
            self._rounds_joined[name].append(opening.round)

    # Requests

    def messages(self, *, again: bool) -> Sequence[bytes]:
        """Send the request again only if a member may have restarted and lost it."""
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
        if n_rows > self.masking.max_rows_per_site:
            raise BadMessageError(
                f"{n_rows:,} rows exceed the study's limit of {self.masking.max_rows_per_site:,} per site"
            )

    def _answered(self, member: Member, answer: Message) -> None:
        if answer.round > self.round or (self.done and answer.round):
            raise BadMessageError(f"answer to round {answer.round}, which was not requested")
        if answer.masked is None:
            self._compare_tags(member.name, answer.body)
        if answer.round < self.round or answer.kind is Kind.PRESENT:
            return  # that round is over
        if answer.kind is Kind.READY:
            if answer.digest != self._digest:
                raise BadMessageError(f"answer to a different request for round {answer.round}")
            self._ready.add(member.name)
            return
        assert answer.masked is not None
        if self._opening is None or member.name not in self._round_members:
            raise BadMessageError(f"not a member of round {self.round}")
        if answer.digest != digest_of(self._mask):
            raise BadMessageError(f"answer to a different request for round {answer.round}")
        earlier = self._masked.setdefault(member.name, answer.masked)
        if earlier.tobytes() != answer.masked.tobytes():
            raise BadMessageError(SECOND_ANSWER)

    def _compare_tags(self, site: str, body: bytes) -> None:
        """Record pairs of sites whose tags differ: their masks would not cancel, and the round would be aborted."""
        i, tags = self._index[site], np.frombuffer(body, "<u8")
        if self._tagged[i] and np.array_equal(self._tags[i], tags):
            return
        self._tags[i], self._tagged[i] = tags, True
        self._clash[i] = self._clash[:, i] = (self._tags[i] != self._tags[:, i]) & self._tagged
        for j in np.flatnonzero(self._clash[i]):
            text = f"its key does not match that of {self._names[j]}: one of them does not use the key in the study"
            self.note("warning", site, text)

    def _matching(self, sites: set[str]) -> set[str]:
        """Return the sites without conflicting tags.

        The sites with the largest number of conflicts are removed, all of them on a tie, until none is left.
        """
        if not self._clash.any():
            return sites
        remaining = np.isin(np.arange(self.n_masked), [self._index[name] for name in sites])
        while (clashes := (self._clash & remaining & remaining[:, None]).sum(axis=1)).any():
            remaining &= clashes < clashes.max()
        return {self._names[i] for i in np.flatnonzero(remaining)}

    # Phases

    def active_sites(self) -> set[str]:
        return super().active_sites() - self._excluded()

    def _excluded(self) -> set[str]:
        counts = Counter(
            name for aborted in self.aborted_rounds if aborted.reason == "missing" for name in aborted.sites
        )
        return {name for name, count in counts.items() if count >= MAX_ABORTED}

    def _resting(self) -> set[str]:
        """Return the sites that aborted the last round, unless the quorum needs them."""
        resting = {
            name for aborted in self.aborted_rounds[-1:] if aborted.round == self.rounds_done for name in aborted.sites
        }
        return resting if not self._all_needed and len(self.active_sites() - resting) >= self.quorum else set()

    def answered_now(self) -> set[str]:
        if self._opening is not None:
            return set(self._masked)
        present = self._ready if self.called else self.connected_sites()
        return self._matching(present & (self.active_sites() - self._resting()))

    def missing(self) -> set[str]:
        if self._opening is not None:
            return set(self._round_members) - self._masked.keys()
        if self.called:  # sites that are ready need no wait, even if their keys do not match
            return self._expected() - self._resting() - self._ready
        return super().missing()

    def over(self, waited: float) -> bool:
        """Return whether enough sites are ready, or all members answered, or an answer is lost."""
        garbled = sum(aborted.reason == "garbled" for aborted in self.aborted_rounds)
        if garbled > MAX_GARBLED:
            raise StudyStoppedError(
                f"the study stops before round {self.rounds_done + 1}: {garbled} sums were garbled because a site "
                "sends wrong masks. The protocol cannot identify it: check all sites, then start a new study"
            )
        if self._opening is None:
            late = self.study.deadline is None or self._too_late(waited)
            self._all_needed = self._all_needed or (late and len(self.answered_now()) < self.quorum)
            return super().over(waited)
        return not self.missing() or bool(self._lost()) or self._too_late(waited)

    def _lost(self) -> set[str]:
        """Return the members that cannot answer this round."""
        missing = (self.members[name] for name in self.missing())
        return {member.name for member in missing if member.out or member.code in UNMASKABLE}

    def proceed(self, seconds: float) -> None:
        if not self.called:
            self.begin()
        elif self._opening is None:
            self.open_round(seconds)
        elif self.missing():
            self.abort_round("missing", tuple(sorted(self._lost() or self.missing())), seconds)
        else:
            self.close_round(seconds)

    def open_round(self, seconds: float = 0.0) -> None:
        """Store the members of the round, before they are requested to mask."""
        members = bitmap_of([self._index[name] for name in self.answered_now()], self.n_masked)
        opening = Opening(self.round, self._digest, members)
        self._journal.open_round(opening)
        self._missed(self._expected() - self._resting() - self._ready)
        self._seconds_to_open = seconds
        self._admit(opening)
        self._opened(opening)

    def _opened(self, opening: Opening) -> None:
        self._opening = opening
        self._mask = packed(
            Message(Kind.MASK, self.study.hash, opening.round, digest=opening.request, body=opening.members)
        )

    def _n_rows(self, name: str) -> int:
        sizes = self.members[name].sizes
        assert sizes is not None  # it was ready
        return sizes[0]

    def close_round(self, seconds: float = 0.0) -> None:
        """Compute w^k from the sum of the masked answers, or abort the round if the sum is out of range."""
        members, planned = self._round_members, self.study.terms.plan.at(self.round)
        assert planned is not None
        release, shape = gaussian(planned), self._shape(self.round)
        grid = Lattice(
            self.study.terms.statistics[release.statistic].row_norm, prod(shape), self.masking.max_rows_per_site
        )
        total = np.zeros(shape, np.int64)
        for name in members:
            total += self._masked[name]  # modulo 2^64, where the masks cancel
        bound = len(members) * grid.max_upload(
            grid.noise_scale(release.noise_multiplier, self.masking.min_honest_sites)
        )
        if np.any(total > bound) or np.any(total < -bound):
            return self.abort_round("garbled", (), seconds)
        n_rows = np.array([self._n_rows(name) for name in members])
        mean = pooled_mean(total, grid, int(n_rows.sum()))[None]
        result = RoundResult(mean, self.consensus, self.round, self.study.problem, n_rows)
        consensus = self._aggregate(result.pooled(self.masking.min_honest_sites))
        seconds += self._seconds_to_open
        answers = {name: sha256(self._masked[name].astype("<i8").tobytes()).hexdigest() for name in members}
        self._journal.close_sum(self.round, consensus, total, answers, seconds)
        for name in members:
            self.members[name].answered.append(self.round)
        self._reset()
        return self._close(consensus, seconds)

    def abort_round(self, reason: str, sites: tuple[str, ...], seconds: float = 0.0) -> None:
        """Abort a round for good. The consensus does not change."""
        aborted, seconds = AbortedRound(self.round, reason, sites), seconds + self._seconds_to_open
        self._journal.close_aborted(aborted, self.consensus, seconds)
        self.aborted_rounds.append(aborted)
        if reason == "garbled":
            self.note("warning", "", f"round {aborted.round} aborted: sum garbled; a site sends wrong masks")
        else:
            self._blame(aborted)
        self._reset()
        self._close(self.consensus, seconds)

    def _blame(self, aborted: AbortedRound) -> None:
        self.note("warning", "", f"round {aborted.round} aborted: no masked answer from {', '.join(aborted.sites)}")
        for name in aborted.sites:
            member = self.members[name]
            if name in self._excluded():
                member.state = "excluded"
                self.note("warning", name, f"excluded: it aborted {MAX_ABORTED} rounds")
            elif member.state in ("present", "late"):
                member.state = "missing"

    # Status

    def _charged(self, member: Member) -> Sequence[int]:
        return list(self._rounds_joined[member.name])

    def snapshot(self) -> dict[str, Any]:
        """Add ε if all other sites collude, the members of the round, and aborted rounds."""
        status, delta, min_honest_sites = (
            super().snapshot(),
            float(self.study.training.delta),
            self.masking.min_honest_sites,
        )
        collusion = exact_epsilon(sqrt(min_honest_sites) * self._mu_so_far(), np.full(self.n_masked, delta)).tolist()
        for site, epsilon in zip(status["sites"], collusion, strict=True):
            site |= {"epsilon_if_others_collude": epsilon, "member": site["name"] in self._round_members}
        planned = sqrt(min_honest_sites * float(self.study.terms.plan.mu_squared()))
        status["study"]["epsilon_if_others_collude"] = float(exact_epsilon(planned, delta))
        return status | {
            "min_honest_sites": min_honest_sites,
            "aborted_rounds": [aborted._asdict() for aborted in self.aborted_rounds],
        }


def coordinator_of(journal: Journal, log: Logger | None = None) -> Coordinator:
    """Return the coordinator of a study: ``Sums`` with secure aggregation, otherwise ``Uploads``."""
    kind = Uploads if journal.study.terms.masking is None else Sums
    return kind(journal, log)


def snapshot_of_journal(journal: Journal) -> dict[str, Any]:
    """Return a snapshot from the journal only. Another process may be running the study."""
    run = coordinator_of(journal)
    run.served = False
    for member in run.members.values():
        if member.answered and member.state == "unseen":
            member.state = "present" if member.answered[-1] == run.rounds_done else "missing"
    return run.snapshot() | {"round": 0 if run.is_over else run.rounds_done + 1}
