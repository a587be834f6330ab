"""Deployed = in process? The noise of every release is taken off again, and the run is done anew with it.

``noise_i^k = answer_i^k − round(Σ_j g_j(w̃_i^{k−1}) / g)`` is what a site's guard added: from its table and
ledger, so all sites must be on this machine. With the same whole numbers the round loop of simulations must
reach the consensus of every round in the journal, to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array, vstack

from dpadmm.arrays import Floats, Integers
from dpadmm.assembly import make_method
from dpadmm.errors import DataError
from dpadmm.features import clip_rows
from dpadmm.federation.journal import Journal
from dpadmm.methods.base import Round
from dpadmm.own_rows import OwnRows, ProtectedRows
from dpadmm.privacy.exact_noise import Grid, as_mean, quantise
from dpadmm.privacy.ledger import Ledger
from dpadmm.privacy.noise import ExactNoise
from dpadmm.problem import PublicSizes, Rows, make_rows
from dpadmm.site import Site
from dpadmm.study import Study
from dpadmm.training import PlannedParticipation, train


@dataclass(frozen=True)
class Replay:
    """What a second run in one process found.

    Attributes
    ----------
    first_difference : int
        The first round whose consensus is another than the journal's; 0 if none is.
    n_rounds, n_releases : int
        Rounds compared, and releases in the ledgers.
    n_late, n_lost : int
        Releases that were in a later mean than their round's, and in none, since they never arrived.
    noise_scale : float
        Root mean square of the noise that was taken off, in units of what was promised: about 1.
    """

    first_difference: int
    n_rounds: int
    n_releases: int
    n_late: int
    n_lost: int
    noise_scale: float

    @property
    def equal(self) -> bool:
        """Every consensus is the same to the last bit, and the noise is as large as it should be."""
        spread = 8.0 / np.sqrt(2.0 * max(1, self.n_numbers))
        return self.first_difference == 0 and abs(self.noise_scale - 1.0) <= spread

    n_numbers: int = 1
    """How many whole numbers ``noise_scale`` is of."""


def replay(journal: Journal, sites: Mapping[str, Site]) -> Replay:
    """Do a run again; ``sites`` are all its members. Their agents have ended: the ledgers are held here."""
    study, names = journal.study, journal.members
    parts = [sites[name].rows.encoded(study) for name in names]
    answers = [_answers(sites[name], study) for name in names]
    noise = [_noise(study, part, said) for part, said in zip(parts, answers, strict=True)]
    entered = {(each.site, each.round): k for k, each in journal.uploads()}
    for name, round in entered:
        if round not in answers[names.index(name)]:
            raise DataError(f"the journal has an upload of {name} for round {round}, and its ledger has not")
    reached, done = list(journal.consensus()), journal.rounds_done
    run = _Run(study, _cohort(parts), noise, names)
    said = {(names[i], k) for i, each in enumerate(noise) for k in each if k <= done}
    plain = said == set(entered) and all(k == round for (_, round), k in entered.items())
    again = run.as_trained(done) if plain else run.with_delays(done, entered)
    wrong = [k for k, (a, b) in enumerate(zip(again, reached, strict=True), 1) if a.tobytes() != b.tobytes()]
    scaled = [
        numbers
        / Grid(float(study.problem.loss.lipschitz), numbers.size, len(part.labels)).noise_scale(
            study.noise_multiplier
        )
        for each, part in zip(noise, parts, strict=True)
        for numbers in each.values()
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
"""Round -> what the guard answered, and the consensus that was heard before."""


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
    """The noise in every answer of a site, by its round: the agent's way is gone again, alone."""
    problem, m = study.problem, len(rows.labels)
    own = OwnRows(rows, problem.loss)
    grid = Grid(float(problem.loss.lipschitz), study.shape[0] * study.shape[1], m)
    method = study.method(m)
    state, out = method.init(problem, PublicSizes(np.array([m]), study.shape[0])), {}
    for round, (answer, heard) in answers.items():
        point = np.array(method.points(state, heard)[0])
        out[round] = answer - quantise(own.gradient_sum(point, grid.row_bound), grid)
        state, _ = method.advance(state, as_mean(answer, grid)[None], heard, round=round, problem=problem)
    return out


def _cohort(parts: list[ProtectedRows]) -> Rows:
    features = [clip_rows(each.features) for each in parts]
    together = (
        csr_array(vstack(features, format="csr"))
        if isinstance(features[0], csr_array)
        else np.concatenate(features)
    )
    labels = [each.labels for each in parts]
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in labels])])
    return make_rows(together, np.concatenate(labels), offsets=offsets)


class _Run:
    """The run in this process, with the sites' own noise put in."""

    def __init__(
        self, study: Study, rows: Rows, noise: list[dict[int, Integers]], names: tuple[str, ...]
    ) -> None:
        planned = np.full(rows.n_agents, study.settings.n_rounds)
        self._method, _ = make_method(study.settings, study.problem, rows, planned, seed=0)
        self._study, self._rows, self._said, self._names = study, rows, noise, names
        self._noise = ExactNoise(lambda agent, round: lambda scale, count: noise[agent][round].ravel())

    def _active(self, round: int) -> Integers:
        return np.flatnonzero([round in each for each in self._said])

    def as_trained(self, rounds: int) -> list[Floats]:
        """By ``train``, the round loop of simulations."""
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
        """The same loop where uploads were late, and in a later mean, or lost, and in none."""
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
            consensus = np.array(method.aggregate(uploads, consensus=consensus, problem=problem))
            history.append(consensus)
        return history
