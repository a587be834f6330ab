"""A deployed agent is a cohort of one: it computes exactly what it computes within a larger cohort."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from cases import LOSS_CASES, coded
from cohorts import SIZES, cohort
from looping import case
from scipy.sparse import csr_array

from dpadmm import kernels
from dpadmm.engine.loop import PlannedParticipation, RoundView, train
from dpadmm.engine.noise import Noise, SimulatedNoise
from dpadmm.losses import Logistic
from dpadmm.matrices.arrays import Floats
from dpadmm.methods import DpAdmm, Method, Round, RoundResult
from dpadmm.methods.theory import constants_of, theorem_schedule
from dpadmm.queries import moments, problem
from dpadmm.queries import preconditioner as shape_module
from dpadmm.queries.problem import Problem, Rows, make_rows
from dpadmm.regularizers import L1, L2
from dpadmm.studies.settings import Settings

N, D, RHO, ROUNDS = len(SIZES), 5, 0.3, 12
Z = np.array([0.5, 3.0, 1.0, 10.0])


class OneAgentsNoise(Noise):
    """The stream of agent i from the cohort's noise, as this agent would draw it."""

    answer, price = SimulatedNoise.answer, SimulatedNoise.price

    def __init__(self, seed: int, agent: int, shape: tuple[int, int]) -> None:
        self._all, self._agent = SimulatedNoise(seed, agent + 1, shape), agent

    def draw(self, round: int, stream: int = 0, shape: tuple[int, ...] | None = None) -> Floats:
        return self._all.draw(round, stream, shape)[self._agent : self._agent + 1]


class EagerNoise(SimulatedNoise):
    """The cohort's noise with all answers in memory. Lazy answers differ in the last digits (test_noise.py)."""


def method_for(task: Problem, n_rows: np.ndarray, z: Floats) -> DpAdmm:
    constants = constants_of(task, n_features=D, n_rows=n_rows, noise_multiplier=z, weight_radius=3.0)
    return DpAdmm(RHO, step_sizes=theorem_schedule(constants), noise_multiplier=constants.noise_multiplier)


def test_single_agents_equal_the_cohort() -> None:
    for loss, regularizer, plan in product(LOSS_CASES, [L2(), L1()], [None, "some"]):
        with case(loss, regularizer, plan), pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(problem, "COMPACT_BYTES", 0)
            monkeypatch.setattr(kernels, "ENTRIES_PER_BLOCK", 100)  # large enough that agents are divided into blocks
            rows, task, shape = cohort(loss), Problem(loss, regularizer, 0.01), (D, loss.n_outputs)
            mask = np.ones((ROUNDS, N), dtype=bool)
            if plan:
                mask &= np.random.default_rng(1).random(mask.shape) < 0.6
                mask[:, 0] = True
            together: list[RoundView] = []
            whole = method_for(task, rows.n_rows, Z)
            train(
                whole,
                task,
                rows,
                n_rounds=ROUNDS,
                noise=SimulatedNoise(7, N, shape),
                participation=PlannedParticipation(mask) if plan else None,
                observers=[together.append],
            )
            methods = [method_for(task, rows.agent(i).n_rows, Z[i : i + 1]) for i in range(N)]
            check_alone(methods, whole, task, rows, mask, together)


def check_alone(
    methods: Sequence[Method[Any]],
    whole: Method[Any],
    task: Problem,
    rows: Rows,
    mask: Any,
    together: Sequence[RoundView],
) -> None:
    """Run the agents one by one, each with its own method, and compare every round with the cohort."""
    own, shape = [rows.agent(i) for i in range(N)], (D, task.loss.n_outputs)
    noises = [OneAgentsNoise(7, i, shape) for i in range(N)]
    states = [methods[i].init(task, own[i]) for i in range(N)]
    uploads, broadcast, answered = [np.zeros(shape) for _ in range(N)], whole.start(shape), np.zeros(N, np.int64)
    for k in range(1, len(mask) + 1):
        for i in np.flatnonzero(mask[k - 1]):
            states[i], sent = methods[i].step(
                states[i], Round(number=k, problem=task, rows=own[i], consensus=broadcast, noise=noises[i])
            )
            uploads[i] = sent[0]
        for i in np.flatnonzero(~mask[k - 1]) if whole.server_side else ():
            uploads[i] = np.full(sent.shape[1:], np.nan)  # must not be used
        active = np.flatnonzero(mask[k - 1])
        answered[active] = k
        broadcast = whole.aggregate(RoundResult(np.stack(uploads), broadcast, k, task, rows.n_rows, active, answered))
        np.testing.assert_array_equal(together[k - 1].consensus, whole.model(broadcast))
        for i in range(N) if methods[0].local_models else ():
            np.testing.assert_array_equal(together[k - 1].released[i], states[i].released[0])


def test_single_agents_equal_the_cohort_for_every_method() -> None:
    for chosen in [
        {"method": "admm"},
        {"method": "admm", "regularizer": "l1"},
        {"method": {"name": "admm", "split_regularizer": True}, "regularizer": "l1"},
        {"method": "admm_pvp", "round_epsilon": 0.5},
        {"method": "admm_dvp", "round_epsilon": 0.5},
        {"method": {"name": "admm_dvp", "mechanism": "pure"}, "epsilon": 0.5},
        {"method": "dp_sgd", "round_epsilon": 0.5},
        {"method": "auto", "epsilon": 0.5},
        {"method": "auto", "epsilon": 2e4},
        {"method": "output_perturbation", "epsilon": 0.5},
        {"method": "objective_perturbation", "epsilon": 0.5},
        {"method": {"name": "objective_perturbation", "mechanism": "pure"}, "epsilon": 0.5},
    ]:
        with case(chosen):
            settings = Settings(**chosen, n_rounds=6, alpha=0.01, delta=1e-3)
            if hasattr(settings.method, "rho"):
                settings = settings.with_changes(method={"rho": RHO})
            task, rows = settings.problem(2), cohort(Logistic())
            together: list[RoundView] = []
            planned = settings.planned_rounds
            whole = settings.build(task, rows, np.full(N, planned))
            train(
                whole,
                task,
                rows,
                n_rounds=planned,
                noise=SimulatedNoise(7, N, (D, 1)) if whole.local_models else EagerNoise(7, N, (D, 1)),
                observers=[together.append],
            )
            methods = [settings.build(task, rows.agent(i), np.array([planned])) for i in range(N)]
            check_alone(methods, whole, task, rows, np.ones((planned, N), dtype=bool), together)


def test_single_agents_of_pgd_equal_the_cohort_for_all_losses_and_dropouts() -> None:
    """With a large ε, where the preconditioner has a direction, and a small one, where there is none."""
    whole = [loss for loss in LOSS_CASES if not getattr(loss, "cuts", ())]  # hazards per interval require inference
    for loss, epsilon, storage in product(whole, [2e4, 0.5], [np.asarray, csr_array, coded, np.float32]):
        with case(loss, epsilon, storage), pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(problem, "COMPACT_BYTES", 0)
            for module, name in ((kernels, "ENTRIES_PER_BLOCK"), (shape_module, "PORTION"), (moments, "PORTION")):
                monkeypatch.setattr(module, name, 100)
            dense = cohort(loss)
            rows = make_rows(storage(dense.features), dense.labels[np.argsort(dense.order)], order=dense.order,
                             offsets=dense.offsets)  # fmt: skip
            settings = Settings(method="auto", loss=loss, epsilon=epsilon, n_rounds=6, delta=1e-3)
            task = Problem(loss, L2(), settings.alpha or 0.0)
            mask = np.ones((6, N), dtype=bool)
            mask[0, 1] = mask[3, :2] = mask[2:, 3] = False
            together: list[RoundView] = []
            whole = settings.build(task, rows, mask.sum(axis=0))
            noise = EagerNoise(7, N, (D, loss.n_outputs))
            plan = PlannedParticipation(mask)
            train(whole, task, rows, n_rounds=6, noise=noise, participation=plan, observers=[together.append])
            methods = [settings.build(task, rows.agent(i), mask.sum(axis=0)[i : i + 1]) for i in range(N)]
            check_alone(methods, whole, task, rows, mask, together)
