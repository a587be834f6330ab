"""The non-private optimum compared with known optima and scikit-learn."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from cases import LOSS_CASES, REGULARIZER_CASES, SMOOTH_LOSS_CASES
from cohorts import cohort
from known_optima import known_optimum
from looping import case
from scipy.sparse import csr_array
from sklearn.linear_model import Lasso, LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from dpadmm.baselines import Centralized
from dpadmm.engine.minimizer import minimizer
from dpadmm.engine.noise import SimulatedNoise
from dpadmm.errors import ConvergenceWarning
from dpadmm.losses import Hinge, Logistic, SmoothedHinge, Softmax, Squared
from dpadmm.matrices.arrays import Floats
from dpadmm.methods import Round
from dpadmm.queries.problem import Problem, Rows, make_rows
from dpadmm.regularizers import L1, L2, ElasticNet, NoRegularizer

EQUAL = (40, 40, 40, 40)  # scikit-learn counts every row the same, dpadmm every agent


def data_of(rows: Rows) -> tuple[Floats, Floats]:
    return np.asarray(rows.features[rows.order]), rows.labels


def gap(problem: Problem, rows: Rows, other: Floats) -> float:
    """Return the relative excess of our objective over that of ``other``."""
    best = problem.objective(rows, other)
    return (problem.objective(rows, minimizer(problem, rows)) - best) / best


def test_known_optimum() -> None:
    for loss, l2 in product(SMOOTH_LOSS_CASES, [0.0, 0.02]):
        with case(loss, l2):
            dataset, best = known_optimum(loss, n_features=6, rows_per_feature=40, l2=l2, seed=3)
            problem = Problem(loss, L2(), l2)
            rows = make_rows(dataset.features, dataset.labels, offsets=np.arange(0, 241, 60))
            found = minimizer(problem, rows)
            assert abs(problem.objective(rows, found) - problem.objective(rows, best)) < 1e-8
            if l2 > 0.0:
                np.testing.assert_allclose(found, best, atol=2e-4)


def test_no_nearby_point_is_better() -> None:
    """By convexity: lower than many points at several distances, and than zero."""
    for loss, regularizer in product(LOSS_CASES, REGULARIZER_CASES):
        with case(loss, regularizer):
            rows, problem = cohort(loss), Problem(loss, regularizer, 0.005)
            found = minimizer(problem, rows)
            best = problem.objective(rows, found)
            slack = 0.005 if isinstance(loss, Hinge) else 1e-9
            rng = np.random.default_rng(0)
            for distance in (1e-4, 1e-2, 0.3, 3.0):
                for _ in range(15):
                    step = rng.standard_normal(found.shape)
                    other = found + distance * step / np.linalg.norm(step)
                    assert best <= problem.objective(rows, other) + slack
            assert best < problem.objective(rows, np.zeros_like(found))


def test_zero_curvature_at_the_start_is_handled() -> None:
    """At zero every row is beyond the smoothed corner: the Hessian vanishes, the slope does not."""
    for width, regularizer in [
        (1e-3, NoRegularizer()),
        (0.01, NoRegularizer()),
        (0.1, NoRegularizer()),
        (0.01, L2()),
        (0.1, L1()),
    ]:
        with case(width, regularizer):
            rows = cohort(SmoothedHinge(width))
            rounded, hinge = (Problem(loss, regularizer, 0.01) for loss in (SmoothedHinge(width), Hinge()))
            found = rounded.objective(rows, minimizer(rounded, rows))
            floor = hinge.objective(rows, minimizer(hinge, rows))
            assert floor - width / 2.0 - 1e-3 <= found <= floor + 1e-9


def test_logistic_optimum_matches_scikit_learn() -> None:
    for regularizer, share in product([L2(), L1(), ElasticNet(0.4)], [1e-3, 0.03]):
        with case(regularizer, share):
            rows = cohort(Logistic(), sizes=EQUAL)
            a, b = data_of(rows)
            ratio = {"l2": 0.0, "l1": 1.0, "elastic_net": 0.4}[regularizer.name]
            oracle = LogisticRegression(
                C=1.0 / (len(b) * share),
                l1_ratio=ratio,
                solver="saga",
                fit_intercept=False,
                tol=1e-10,
                max_iter=100_000,
            ).fit(a, b)
            assert abs(gap(Problem(Logistic(), regularizer, share), rows, oracle.coef_.T)) < 1e-8


def test_softmax_optimum_matches_scikit_learn() -> None:
    rows = cohort(Softmax(n_outputs=3), sizes=EQUAL)
    a, b = data_of(rows)
    oracle = LogisticRegression(C=1.0 / (len(b) * 0.01), fit_intercept=False, tol=1e-10, max_iter=10_000)
    weights = oracle.fit(a, b).coef_.T
    assert abs(gap(Problem(Softmax(n_outputs=3), L2(), 0.01), rows, weights)) < 1e-8


@pytest.mark.parametrize("share", [1e-4, 0.05])
def test_ridge_and_lasso(share: float) -> None:
    rows = cohort(Squared(), sizes=EQUAL)
    a, b = data_of(rows)
    ridge = Ridge(alpha=len(b) * share, fit_intercept=False).fit(a, b).coef_
    lasso = Lasso(alpha=share, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(a, b).coef_
    problem = Problem(Squared(), L2(), share)
    np.testing.assert_allclose(minimizer(problem, rows)[:, 0], ridge, atol=1e-5)
    assert abs(gap(problem, rows, ridge[:, None])) < 1e-8
    assert abs(gap(Problem(Squared(), L1(), share), rows, lasso[:, None])) < 1e-8


def test_hinge_is_close_to_linear_svc() -> None:
    """Our hinge is smoothed by 0.01, so its objective is within half of that, absolutely."""
    rows = cohort(Hinge(), sizes=EQUAL)
    a, b = data_of(rows)
    svc = LinearSVC(
        C=1.0 / (len(b) * 0.01),
        loss="hinge",
        fit_intercept=False,
        tol=1e-8,
        max_iter=1_000_000,
        random_state=0,
    ).fit(a, b)
    problem = Problem(Hinge(), L2(), 0.01)
    assert -1e-6 < gap(problem, rows, svc.coef_.T) < 2e-3


def test_sparse_rows_give_the_same() -> None:
    for loss in [Logistic(), Softmax(n_outputs=3), Squared()]:
        with case(loss):
            rows = cohort(loss)
            sparse = Rows(csr_array(rows.features), rows.labels, rows.order, rows.offsets, rows.norms)
            problem = Problem(loss, L2(), 0.01)
            np.testing.assert_allclose(minimizer(problem, sparse), minimizer(problem, rows), atol=1e-7)


def test_solver_for_many_weights_finds_the_same_optimum() -> None:
    for regularizer in [L2(), L1(), ElasticNet(0.5), NoRegularizer()]:
        with case(regularizer), pytest.MonkeyPatch.context() as monkeypatch:
            rows, problem = cohort(Logistic()), Problem(Logistic(), regularizer, 0.005)
            newton = problem.objective(rows, minimizer(problem, rows))
            monkeypatch.setattr("dpadmm.engine.minimizer._MAX_NEWTON_WEIGHTS", 0)
            assert problem.objective(rows, minimizer(problem, rows)) == pytest.approx(newton, rel=1e-7)


def test_separable_rows_without_regularizer_terminate(recwarn: pytest.WarningsRecorder) -> None:
    """There is no optimum, only an infimum of 0. The solver stops close to it, with at most a warning."""
    rows = make_rows(np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([1.0, -1.0]))
    found = minimizer(Problem(Logistic(), NoRegularizer(), 0.0), rows)
    assert np.isfinite(found).all()
    assert Problem(Logistic(), NoRegularizer(), 0.0).objective(rows, found) < 1e-6
    assert all(issubclass(w.category, ConvergenceWarning) for w in recwarn)


def test_method_is_one_round_at_the_optimum() -> None:
    loss = Logistic()
    rows, problem, method = cohort(loss), Problem(loss, L2(), 0.01), Centralized()
    state, uploads = method.step(
        method.init(problem, rows),
        Round(
            number=1,
            problem=problem,
            rows=rows,
            consensus=np.zeros((5, 1)),
            noise=SimulatedNoise(0, 4, (5, 1)),
        ),
    )
    best = minimizer(problem, rows)
    for item in (*state.released, *uploads):
        np.testing.assert_array_equal(item, best)
    assert method.plan(0, 1).at(1).noise_multiplier == 0.0
