"""Repeats a deployed run in one process, with the same noise, and compares every round bit by bit.

``noise_i^k = answer_i^k − round(Σ_j g_j(w̃_i^{k−1}) / g)`` is the noise that a site's guard added. It is
computed from the tables and ledgers, so all sites must be on this machine. With this noise the round loop of
simulations must reach the consensus of every round in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from scipy.sparse import csr_array, vstack

from dpadmm._base.arrays import Floats, Integers
from dpadmm._base.errors import DataError
from dpadmm.federation.aggregator.journal import Journal
from dpadmm.optim.features import clip_rows
from dpadmm.optim.problem import PublicSizes, Rows, make_rows
from dpadmm.site.site import Site
from dpadmm.study.study import Study
from dpadmm.training.loop import PlannedParticipation, train
from dpadmm.training.methods.base import Gathered, Method, Round
from dpadmm.training.oracles import ExactNoise
from dpadmm.trusted.discrete_gaussian import as_mean, quantise
from dpadmm.trusted.guard import Enrolled
from dpadmm.trusted.ledger import Ledger
from dpadmm.trusted.private_rows import CheckedRows, ProtectedRows


@dataclass(frozen=True)
class Replay:
    """The result of a repeated run: ``n_releases`` are in the ledgers, ``n_lost`` of them never arrived."""

    first_difference: int
    """The first round whose consensus differs from the journal; 0 if none does."""
    n_rounds: int
    n_releases: int
    n_late: int
    """Releases that entered a later mean than that of their round."""
    n_lost: int
    noise_scale: float
    """Root mean square of the noise, in units of its promised standard deviation: about 1."""
    n_numbers: int = 1
    """The number of values in ``noise_scale``."""

    @property
    def equal(self) -> bool:
        """Whether every consensus is identical, and the noise has its promised size."""
        spread = 8.0 / np.sqrt(2.0 * max(1, self.n_numbers))
        return self.first_difference == 0 and abs(self.noise_scale - 1.0) <= spread


def replay(journal: Journal, sites: Mapping[str, Site]) -> Replay:
    """Repeat a run; ``sites`` are all its members, whose agents must have ended."""
    study, names = journal.study, journal.members
    parts = [sites[name].rows.encoded(study) for name in names]
    answers = [_answers(sites[name], study) for name in names]
    noise = [_noise(study, part, said) for part, said in zip(parts, answers, strict=True)]
    entered = {(each.site, each.round): k for k, each in journal.uploads()}
    for name, round in entered:
        if round not in answers[names.index(name)]:
            text = f"an upload of {name} for round {round} that is not in its ledger"
            raise DataError(f"the journal has {text}")
    reached, done = list(journal.consensus()), journal.rounds_done
    run = _Run(study, _cohort(parts), noise, names)
    said = {(names[i], k) for i, each in enumerate(noise) for k in each if k <= done}
    plain = said == set(entered) and all(k == round for (_, round), k in entered.items())
    again = run.as_trained(done) if plain else run.with_delays(done, entered)
    wrong = [k for k, (a, b) in enumerate(zip(again, reached, strict=True), 1) if a.tobytes() != b.tobytes()]
    scaled = [
        numbers / asked.grid.noise_scale(asked.release.noise_multiplier)
        for each, part in zip(noise, parts, strict=True)
        for numbers, asked in ((n, Enrolled(study.terms, CheckedRows(part)).question(k)) for k, n in each.items())
    ]
    every = np.concatenate([each.ravel() for each in scaled]) if scaled else np.ones(1)
    return Replay(
        first_difference=wrong[0] if wrong else 0,
        n_rounds=done,
        n_releases=sum(map(len, noise)),
        n_late=sum(k > round for (_, round), k in entered.items()),
        n_lost=sum(map(len, noise)) - len(entered),
        noise_scale=float(np.sqrt(np.mean(np.square(every)))),
        n_numbers=every.size,
    )


Answers = dict[int, tuple[Integers, Floats]]
"""Round -> the answer of the guard, and the consensus that was requested."""


def _answers(site: Site, study: Study) -> Answers:
    count = study.shape[0] * study.shape[1]
    with Ledger.open(site.ledger, cap=site.policy.cap) as ledger:
        past = ledger.transcript(study.hash) if study.hash in ledger.status().accounts else []
    return {
        record.round: (
            np.frombuffer(stored, "<i8", count).astype(np.int64).reshape(study.shape),
            np.frombuffer(stored, "<f8", count, 8 * count).astype(np.float64).reshape(study.shape),
        )
        for record, stored in past
    }


def _noise(study: Study, rows: ProtectedRows, answers: Answers) -> dict[int, Integers]:
    """The noise in every answer of a site by round, from a repetition of the agent's computation."""
    problem, m = study.problem, len(rows.labels)
    enrolled = Enrolled(study.terms, CheckedRows(rows))
    method = study.method(m)
    state, out = method.init(problem, PublicSizes(np.array([m]), study.shape[0])), {}
    for round, (answer, heard) in answers.items():
        point = np.array(method.parameters(state, heard, round=round)[0])
        asked = enrolled.question(round)
        total = enrolled.rows.total(asked.statistic, point, asked.grid.row_bound)
        out[round] = answer - quantise(total, asked.grid)
        mean = as_mean(answer, asked.grid)[None]
        state, _ = method.advance(state, mean, heard, round=round, problem=problem)
    return out


def _cohort(parts: list[ProtectedRows]) -> Rows:
    features = [clip_rows(each.features) for each in parts]
    sparse = isinstance(features[0], csr_array)
    together = csr_array(vstack(features, format="csr")) if sparse else np.concatenate(features)
    labels = [each.labels for each in parts]
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in labels])])
    return make_rows(together, np.concatenate(labels), offsets=offsets)


class _Run:
    """A run in this process with the noise of the sites."""

    def __init__(self, study: Study, rows: Rows, noise: list[dict[int, Integers]], names: tuple[str, ...]) -> None:
        self._method = cast(Method[Any], study.method(*rows.n_rows.tolist()))
        self._study, self._rows, self._said, self._names = study, rows, noise, names
        self._noise = ExactNoise(lambda agent, round: lambda scale, count: noise[agent][round].ravel())

    def _active(self, round: int) -> Integers:
        return np.flatnonzero([round in each for each in self._said])

    def as_trained(self, rounds: int) -> list[Floats]:
        """Repeat with ``train``, the round loop of simulations."""
        mask = np.array([np.isin(np.arange(self._rows.n_agents), self._active(k + 1)) for k in range(rounds)])
        history: list[Floats] = []
        train(
            self._method,
            self._study.problem,
            self._rows,
            n_rounds=rounds,
            noise=self._noise,
            participation=None if mask.all() else PlannedParticipation(mask),
            observers=[lambda view: history.append(view.consensus.copy())],
        )
        return history

    def with_delays(self, rounds: int, entered: Mapping[tuple[str, int], int]) -> list[Floats]:
        """The same loop with uploads that were late or lost."""
        problem, method = self._study.problem, self._method
        state, consensus = method.init(problem, self._rows), np.zeros(self._study.shape)
        uploads = np.zeros((self._rows.n_agents, *self._study.shape))
        sent_in: dict[int, Floats] = {}
        history: list[Floats] = []
        for k in range(1, rounds + 1):
            active = self._active(k)
            now = Round(k, problem, self._rows, consensus, self._noise, active)
            if active.size:
                state, sent = method.step(state, now)
                sent_in[k] = np.array(sent)
            for (name, round), when in sorted(entered.items(), key=lambda each: each[0][1]):
                if when == k:
                    agent = self._names.index(name)
                    uploads[agent] = sent_in[round][agent]
            gathered = Gathered(uploads, consensus, k, problem, self._rows.n_rows, active)
            consensus = np.array(method.aggregate(gathered))
            history.append(consensus)
        return history
