"""A deployed agent is a cohort of one: alone it does, to the last bit, what it does among the others."""

from __future__ import annotations

import numpy as np
import pytest

from cases import LOSS_CASES
from cohorts import SIZES, cohort
from dpadmm import kernels, problem
from dpadmm.arrays import Floats
from dpadmm.constants import constants_of
from dpadmm.losses import Loss
from dpadmm.methods import DpAdmm
from dpadmm.privacy.noise import SimulatedNoise
from dpadmm.problem import Problem
from dpadmm.regularizers import L1, L2, Regularizer
from dpadmm.schedules import theorem_schedule
from dpadmm.training import PlannedParticipation, RoundView, train
from dpadmm.updates import consensus_step

N, D, RHO, ROUNDS = len(SIZES), 5, 0.3, 12
Z = np.array([0.5, 3.0, 1.0, 10.0])


class OneAgentsNoise:
    """The stream of agent i out of the cohort's: what that agent would draw itself."""

    kind = "simulated"

    def __init__(self, seed: int, agent: int, shape: tuple[int, int]) -> None:
        self._all, self._agent = SimulatedNoise(seed, agent + 1, shape), agent

    def draw(self, round: int) -> Floats:
        return self._all.draw(round)[self._agent : self._agent + 1]


def method_for(task: Problem, n_rows: np.ndarray, z: Floats) -> DpAdmm:
    constants = constants_of(task, n_features=D, n_rows=n_rows, noise_multiplier=z, weight_radius=3.0)
    return DpAdmm(RHO, theorem_schedule(constants), constants.noise_multiplier)


@pytest.mark.parametrize("plan", [None, "some"])
@pytest.mark.parametrize("regularizer", [L2(), L1()], ids=lambda r: r.name)
@pytest.mark.parametrize("loss", LOSS_CASES)
def test_agents_alone_are_the_cohort(
    loss: Loss, regularizer: Regularizer, plan: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problem, "COMPACT_BYTES", 0)
    monkeypatch.setattr(kernels, "ENTRIES_PER_BLOCK", 100)  # so that agents are cut into blocks
    rows, task, shape = cohort(loss), Problem(loss, regularizer, 0.01), (D, loss.n_outputs)
    mask = np.ones((ROUNDS, N), dtype=bool)
    if plan:
        mask &= np.random.default_rng(1).random(mask.shape) < 0.6
        mask[:, 0] = True
    together: list[RoundView] = []
    train(
        method_for(task, rows.n_rows, Z),
        task,
        rows,
        n_rounds=ROUNDS,
        noise=SimulatedNoise(7, N, shape),
        participation=PlannedParticipation(mask) if plan else None,
        observers=[together.append],
    )
    own = [rows.agent(i) for i in range(N)]
    methods = [method_for(task, own[i].n_rows, Z[i : i + 1]) for i in range(N)]
    noises = [OneAgentsNoise(7, i, shape) for i in range(N)]
    states = [methods[i].init(task, own[i]) for i in range(N)]
    uploads, consensus = np.zeros((N, *shape)), np.zeros(shape)
    for k in range(1, ROUNDS + 1):
        for i in np.flatnonzero(mask[k - 1]):
            states[i], sent = methods[i].step(
                states[i],
                problem=task,
                rows=own[i],
                round=k,
                consensus=consensus,
                noise=noises[i],
                active=None,
            )
            uploads[i] = sent[0]
        consensus = consensus_step(uploads)
        np.testing.assert_array_equal(together[k - 1].consensus, consensus)
        for i in range(N):
            np.testing.assert_array_equal(together[k - 1].released[i], states[i].released[0])
