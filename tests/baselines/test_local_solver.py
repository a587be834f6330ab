"""Exact local solves compared with SciPy and the stationarity condition, alone and in a cohort."""

from __future__ import annotations

import sys
from itertools import product

import numpy as np
import pytest
from cases import REGULARIZER_CASES, SMOOTH_LOSS_CASES
from cohorts import cohort
from looping import case
from scipy.optimize import minimize

from dpadmm.baselines import ALL_METHODS, local_solver
from dpadmm.baselines.local_solver import LocalProblems, NotSolvedError, solve, tolerances
from dpadmm.errors import StudyError
from dpadmm.losses import Logistic, Loss, SmoothedHinge, Squared
from dpadmm.matrices.arrays import Floats
from dpadmm.methods import DpAdmm, DpSgd
from dpadmm.queries.problem import Problem, Rows, make_rows
from dpadmm.regularizers import L1, L2, NoRegularizer, Regularizer
from dpadmm.studies.checks import DEPLOYABLE
from dpadmm.studies.study import Study
from dpadmm.training.simulate import simulate


def problems_of(
    problem: Problem, rows: Rows, *, pull: float | Floats, tolerance: float = 1e-10, noise: float = 0.0
) -> LocalProblems:
    rng = np.random.default_rng(5)
    shape = (rows.n_agents, rows.n_features, problem.loss.n_outputs)
    return LocalProblems(
        problem,
        rows,
        np.broadcast_to(np.asarray(pull, float), (rows.n_agents,)).copy(),
        rng.standard_normal(shape),
        np.full(rows.n_agents, tolerance),
        linear=noise * rng.standard_normal(shape) if noise else None,
        bound=np.inf,
    )


def value(problems: LocalProblems, i: int, weights: Floats) -> float:
    """Return the local objective."""
    alone = problems.agent(i)
    data = float(problems.problem.objectives(alone.rows, weights[None])[0])
    linear = 0.0 if alone.linear is None else float(np.vdot(alone.linear[0], weights))
    return data + float(alone.pull[0]) / 2.0 * float(np.sum((weights - alone.centers[0]) ** 2)) + linear


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("loss", SMOOTH_LOSS_CASES, ids=repr)
def test_smooth_problems_reach_their_tolerance_and_scipys_minimum(loss: Loss, noise: float) -> None:
    rows = cohort(loss)
    problems = problems_of(Problem(loss, L2(), 0.01), rows, pull=np.array([0.05, 0.1, 1.0, 0.3]), noise=noise)
    solved = solve(problems, np.zeros_like(problems.centers))
    sizes = np.linalg.norm(problems.gradient(solved.weights, np.arange(4)), axis=(1, 2))
    assert (sizes <= problems.tolerance).all()
    for i in range(4):
        best = minimize(
            lambda flat, i=i: value(problems, i, flat.reshape(solved.weights.shape[1:])),
            solved.weights[i].ravel(),
            options={"gtol": 1e-9},
        )
        assert value(problems, i, solved.weights[i]) <= best.fun + 1e-10


def test_solution_is_stationary_for_any_regularizer() -> None:
    """``w = prox(w − s·f'(w))`` holds at the minimum only, for every s."""
    for loss, regularizer in product([Logistic(), SmoothedHinge(1.0), Squared(2.0)], REGULARIZER_CASES):
        with case(loss, regularizer):
            problem = Problem(loss, regularizer, 0.1)
            problems = problems_of(problem, cohort(loss), pull=0.2)
            solved = solve(problems, problems.centers)
            slope = problems.data_gradient(solved.weights, np.arange(4))
            for step in (0.1, 2.0):
                moved = regularizer.prox(solved.weights - step * slope, step * problem.alpha)
                np.testing.assert_allclose(moved, solved.weights, atol=1e-8)


def test_l1_gives_exact_zeros() -> None:
    problems = problems_of(Problem(Logistic(), L1(), 0.3), cohort(Logistic()), pull=0.2)
    weights = solve(problems, problems.centers).weights
    assert 0 < np.count_nonzero(weights == 0.0) < weights.size


def test_result_does_not_depend_on_the_start() -> None:
    for start in [0.0, 1.0, 1e4]:
        with case(start):
            problems = problems_of(Problem(Logistic(), L2(), 0.01), cohort(Logistic()), pull=0.1)
            here = solve(problems, problems.centers).weights
            there = solve(problems, problems.centers + start).weights
            np.testing.assert_allclose(here, there, atol=2e-10 / 0.1)


def test_warm_start_needs_fewer_iterations() -> None:
    problems = problems_of(Problem(Logistic(), L2(), 0.01), cohort(Logistic()), pull=0.1)
    cold = solve(problems, np.zeros_like(problems.centers))
    warm = solve(problems, cold.weights)
    assert warm.passes.tolist() == [1, 1, 1, 1]
    assert (cold.passes > 3).all()


@pytest.mark.parametrize("pull", [1e-3, 1e-6])
def test_ill_conditioned_problems_use_newtons_method(pull: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_solver, "_MAX_BFGS_PASSES", 3)
    problems = problems_of(Problem(Logistic(), NoRegularizer(), 0.0), cohort(Logistic()), pull=pull)
    solved = solve(problems, np.zeros_like(problems.centers))
    sizes = np.linalg.norm(problems.gradient(solved.weights, np.arange(4)), axis=(1, 2))
    assert (sizes <= problems.tolerance).all()
    assert (solved.passes < 100).all()


@pytest.mark.parametrize("regularizer", [L2(), L1()], ids=lambda r: r.name)
def test_message_about_an_unsolved_problem_does_not_depend_on_the_agent(
    regularizer: Regularizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_solver, "_MAX_BFGS_PASSES", 1)
    monkeypatch.setattr(local_solver, "_MAX_PASSES", 1)
    said = set()
    for bad, size in ((0, 1.0), (2, 1.0), (3, 0.7)):
        rng = np.random.default_rng(bad)
        features = size * rng.uniform(-0.4, 0.4, (40, 5))
        rows = make_rows(features, np.sign(features[:, 0]), offsets=np.array([0, 10, 20, 30, 40]))
        problems = problems_of(Problem(Logistic(), regularizer, 0.1), rows, pull=0.1)
        problems.tolerance[:] = 1e6  # solved where they start, all but one
        problems.tolerance[bad] = 1e-10
        with pytest.raises(NotSolvedError, match="was not solved to its tolerance in 1 passes; use a") as caught:
            solve(problems, problems.centers)
        said.add(str(caught.value))
    assert len(said) == 1
    assert "depends on rows and no epsilon covers it" in said.pop()


def test_failed_factorisation_gives_the_same_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SciPy's message would contain a position in the matrix, which depends on rows."""
    monkeypatch.setattr(local_solver, "_MAX_BFGS_PASSES", 0)
    monkeypatch.setattr(local_solver, "data_hessian", lambda problem, rows, weights: -np.eye(weights.size))
    problems = problems_of(Problem(Logistic(), L2(), 0.1), cohort(Logistic()), pull=0.1, tolerance=1e-4)
    solved = solve(problems, problems.centers)
    sizes = np.linalg.norm(problems.gradient(solved.weights, np.arange(4)), axis=(1, 2))
    assert (sizes <= problems.tolerance).all()


def test_methods_with_local_solvers_cannot_be_deployed() -> None:
    """The success of a solve depends on rows, and a deployed agent must not reveal it."""
    solving = [name for name in ALL_METHODS if name not in DEPLOYABLE]
    assert {"admm", "admm_pvp", "admm_dvp", "output_perturbation", "objective_perturbation"} < set(solving)
    for method in (DpAdmm, DpSgd):
        assert method.name in DEPLOYABLE
        assert not {"solve", "LocalProblems", "minimizer"} & vars(sys.modules[method.__module__]).keys()
    for name in solving:
        budget = {} if not ALL_METHODS[name].private else {"epsilon": 1.0}
        with pytest.raises(StudyError, match=f"{name} runs in simulations only; use auto, pgd, newton, dp_admm or"):
            Study(name="s", features=("x",), training={"method": name, "delta": 1e-6, **budget})
    for name in (name for name in solving if ALL_METHODS[name].private):
        with pytest.raises(StudyError, match="exact noise applies to sums over all rows only"):
            simulate("synthetic", method=name, epsilon=1.0, alpha=0.1, n_rounds=2, exact_noise=True)


@pytest.mark.parametrize("regularizer", [L2(), L1()], ids=lambda r: r.name)
def test_only_active_agents_are_solved_and_counted(regularizer: Regularizer) -> None:
    problems = problems_of(Problem(Logistic(), regularizer, 0.05), cohort(Logistic()), pull=0.1)
    everyone = solve(problems, problems.centers)
    some = solve(problems, problems.centers, np.array([1, 3]))
    np.testing.assert_array_equal(some.weights[[1, 3]], everyone.weights[[1, 3]])
    np.testing.assert_array_equal(some.weights[[0, 2]], problems.centers[[0, 2]])
    assert some.passes[[0, 2]].tolist() == [0, 0]
    assert some.passes[[1, 3]].tolist() == everyone.passes[[1, 3]].tolist()


def test_tolerance_is_a_fraction_of_the_sensitivity() -> None:
    rows = cohort(Logistic())
    np.testing.assert_allclose(tolerances(Problem(Logistic(), L2(), 0.1), rows, 1e-3), 2e-3 / rows.n_rows)


def test_centres_too_far_out_are_refused_for_any_rows() -> None:
    """Otherwise an answer could depend on one row, because rounding hides the tolerance there."""
    for regularizer, far in product([L2(), L1()], [1e13, 1e300, np.inf, np.nan]):
        with case(regularizer, far):
            usual = cohort(Logistic())
            others = make_rows(np.zeros((8, 5)), np.ones(8), offsets=np.array([0, 2, 4, 6, 8]))
            for rows in (usual, others):
                problems = problems_of(Problem(Logistic(), regularizer, 0.05), rows, pull=0.1)
                problems.centers[2, 0] = far
                with pytest.raises(StudyError, match="consensus or a dual is too large, or not a number"):
                    solve(problems, np.zeros_like(problems.centers))
