"""An agent of the algorithm at a site. Its guard answers the queries; this module post-processes the answers.

The agent's models and duals are a function of its releases, so they are not stored: after a crash they are computed
again from the guard's transcript. With the same noise, the uploads are identical to those of a simulation, bit for
bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from dpadmm.errors import RefusalError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.queries.problem import PublicSizes
from dpadmm.studies.study import Study
from dpadmm.trusted.discrete_gaussian import as_mean
from dpadmm.trusted.guard import Guard


class Agent:
    """An agent in a study: ``step(round, consensus) -> upload``. The constructor enrols the study.

    With secure aggregation: ``prepare`` the answer, then ``mask`` it over the members of the round.
    """

    def __init__(self, guard: Guard, study: Study) -> None:
        study.check_concrete()
        self._guard, self._study, self._enrolled = guard, study, guard.enrol(study)
        self._method = study.method(self.n_rows)
        self._broadcast = study.broadcast_shape
        self.tags = self._enrolled.masks.tags if self._enrolled.masks else b""
        """8 bytes for each site of the roster, with which pairs of sites compare their keys."""
        self._state, self._last = self._state_after(guard.transcript(study.hash))

    @property
    def n_rows(self) -> int:
        """The number of rows, which is public."""
        return self._enrolled.rows.n_rows

    @property
    def last_round(self) -> int:
        """The last answered round; 0 at first."""
        return self._last

    def prepare(self, round: int, consensus: Floats) -> str:
        """Compute the answer to a broadcast without releasing it; return the digest of the guard's request."""
        consensus = self._checked(consensus)
        with np.errstate(all="ignore"):  # extreme requests may overflow
            point = np.array(self._method.parameters(self._state, consensus, round=round)[0])
        return self._guard.prepare(self._study.hash, round, point, consensus.astype("<f8").tobytes())

    def mask(self, round: int, request: str, members: bytes) -> Integers:
        """Return the masked answer to a request. A repeated call returns the same numbers."""
        answer = self._guard.mask(self._study.hash, round, request, members)
        self._last = max(self._last, round)
        return answer

    def step(self, round: int, consensus: Floats) -> Floats:
        """Return c_i^k, the upload for a broadcast. A repeated request gets the same upload."""
        consensus = self._checked(consensus)
        is_repeated = type(round) is int and round <= self._last
        state = self._state_before(round) if is_repeated else self._state
        with np.errstate(all="ignore"):  # extreme requests may overflow
            point = np.array(self._method.parameters(state, consensus, round=round)[0])
            answer = self._guard.answer(self._study.hash, round, point, consensus.astype("<f8").tobytes())
            state, uploads = self._advanced(state, round, answer, consensus)
        if not is_repeated:
            self._state, self._last = state, round
        return np.asarray(uploads[0])

    def _advanced(self, state: Any, round: int, answer: Any, consensus: Floats) -> tuple[Any, Floats]:
        mean = as_mean(answer, self._enrolled.query_at(round).grid)[None]
        return self._method.advance(state, mean, consensus, round=round, problem=self._study.problem)

    def _state_before(self, round: int) -> Any:
        transcript = self._guard.transcript(self._study.hash)
        return self._state_after(entry for entry in transcript if entry[0] < round)[0]

    def _state_after(self, transcript: Iterable[tuple[int, Any, bytes]]) -> tuple[Any, int]:
        """Return the state after the (round, answer, memo) entries of a transcript, and the last round."""
        sizes = PublicSizes(np.array([self.n_rows]), self._study.shape[0])
        state, last = self._method.init(self._study.problem, sizes), 0
        with np.errstate(all="ignore"):
            for last, answer, memo in transcript:
                consensus = np.frombuffer(memo, "<f8").astype(np.float64).reshape(self._broadcast)
                state, _ = self._advanced(state, last, answer, consensus)
        return state, last

    def _checked(self, consensus: Floats) -> Floats:
        is_array = type(consensus) is np.ndarray and consensus.dtype == np.float64
        if not is_array or consensus.shape != self._broadcast or not np.isfinite(consensus).all():
            expected = f"expected a consensus of finite float64 numbers of shape {self._broadcast}"
            raise RefusalError("request-malformed", f"invalid request: {expected}")
        return consensus.copy()
