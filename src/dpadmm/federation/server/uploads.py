"""Plain aggregation: rounds of answers that carry their own noise."""

from __future__ import annotations

from logging import Logger

import numpy as np

from dpadmm.engine.method import PATIENCE, RoundResult
from dpadmm.federation.protocol import BadMessageError, Message
from dpadmm.federation.server.coordinator import SECOND_ANSWER, Coordinator, Member
from dpadmm.federation.server.journal import Journal, Received
from dpadmm.matrices.arrays import Floats

MAX_LATE = 8
"""Limit of late uploads of one site in a round."""


class Uploads(Coordinator):
    """Rounds whose answers carry their own noise.

    After a dropout, a site's last upload stays in the mean for ``PATIENCE`` rounds. A late upload enters the next
    mean. Server-side methods use only the answers of the current round.
    """

    def __init__(self, journal: Journal, log: Logger | None = None) -> None:
        super().__init__(journal, log)
        self._uploads: dict[str, Floats] = {}
        self._rounds = dict.fromkeys(self._names, 0)
        for name, received in journal.last_uploads().items():
            self._uploads[name] = received.values
            self._rounds[name] = received.round
        self._new: dict[str, Received] = {}
        self._late: list[Received] = []

    def answered_now(self) -> set[str]:
        if not self.called:
            return self.connected_sites()
        return {name for name, received in self._new.items() if received.round == self.round}

    def proceed(self, seconds: float) -> None:
        if self.called:
            self.close_round(seconds)
        else:
            self.begin()

    def _answered(self, member: Member, answer: Message) -> None:
        if answer.values is None:  # present
            return
        sizes = (answer.n_rows, answer.rows_per_person)
        received = Received(member.name, answer.round, answer.values, *sizes)
        if answer.round > self.round or self.done:
            raise BadMessageError(f"answer to round {answer.round}, which was not requested")
        if answer.digest != self._digests[answer.round]:
            raise BadMessageError(f"answer to a different request for round {answer.round}")
        earlier = [upload.values for upload in (*self._late, *self._new.values()) if upload[:2] == received[:2]]
        if not earlier and answer.round == self._rounds[member.name]:  # already in a mean
            earlier = [self._uploads[member.name]]
        if earlier:
            if earlier[0].tobytes() != answer.values.tobytes():
                raise BadMessageError(SECOND_ANSWER)
        elif answer.round == self.round:
            self._new[member.name] = received
        elif answer.round > self._rounds[member.name]:  # late: it enters the next mean
            if sum(upload.site == member.name for upload in self._late) >= MAX_LATE:
                raise BadMessageError("too many late answers")
            self._rounds[member.name] = answer.round
            self._late.append(received)

    def _left_out(self, member: Member) -> bool:
        return not self._method.server_side and self.rounds_done - self._rounds[member.name] >= PATIENCE

    def close_round(self, seconds: float) -> None:
        """Compute and store w^k, from the latest upload of every site or (server-side methods) this round's answers."""
        new = [*self._late, *self._new.values()]
        uploads = self._uploads | {received.site: received.values for received in new}
        rounds = self._rounds | {received.site: received.round for received in new}
        current = {received.site: received.values for received in self._new.values()}
        used = current if self._method.server_side else uploads
        zeros = np.zeros(self._shape(self.round))
        result = RoundResult(
            uploads=np.array([used.get(name, zeros) for name in self._names]),
            consensus=self.consensus,
            round=self.round,
            problem=self.study.problem,
            n_rows=np.array([member.sizes[0] if member.sizes else 0 for member in self.members.values()]),
            active=np.flatnonzero([name in current for name in self._names]),
            answered=np.array([rounds[name] for name in self._names]),
        )
        consensus = self._aggregate(result)
        self._journal.close_round(self.round, consensus, new, seconds)
        for received in new:
            self.members[received.site].answered.append(received.round)
        self._missed(set(self._names) - self.answered_now())
        self._uploads, self._rounds, self._new, self._late = uploads, rounds, {}, []
        self._close(consensus, seconds)
        for member in self.members.values():
            if self._left_out(member) and self.rounds_done - self._rounds[member.name] == PATIENCE:
                text = f"missed {PATIENCE} rounds: its last upload left the mean until it answers again"
                self.note("warning", member.name, text)
