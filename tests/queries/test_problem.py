"""The objective, the layout of a cohort, and checks of rows."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from cases import BOUNDED_LOSS_CASES, LOSS_CASES, REGULARIZER_CASES, random_labels, random_rows
from looping import case
from scipy.sparse import csr_array

from dpadmm import simulate
from dpadmm.errors import DataError, StudyError
from dpadmm.losses import Logistic, Loss, Poisson
from dpadmm.matrices.arrays import Floats, aligned_empty
from dpadmm.queries import problem as module
from dpadmm.queries.problem import Problem, Rows, make_rows
from dpadmm.regularizers import L2

SIZES = np.array([2, 5, 30])
OFFSETS = np.array([0, 2, 7, 37])
D = 4


def cohort(loss: Loss, seed: int = 0) -> tuple[Rows, Floats, Floats, np.ndarray]:
    rng = np.random.default_rng(seed)
    a, b = random_rows(rng, 37, D), random_labels(loss, rng, 37)
    order = rng.permutation(37)
    return make_rows(a, b, order=order, offsets=OFFSETS), a, b, order


def test_objectives_equal_the_papers_definition() -> None:
    for loss, regularizer in product(LOSS_CASES, REGULARIZER_CASES):
        with case(loss, regularizer):
            rows, a, b, order = cohort(loss)
            problem = Problem(loss, regularizer, 0.3)
            points = np.random.default_rng(1).standard_normal((3, D, loss.n_outputs))
            groups = np.split(order, OFFSETS[1:-1])
            mean = [loss.value(b[own], a[own] @ w).mean() for own, w in zip(groups, points, strict=True)]
            penalty = [0.3 * float(regularizer.value(w)) for w in points]
            np.testing.assert_allclose(problem.losses(rows, points), mean, rtol=1e-12)
            np.testing.assert_allclose(problem.objectives(rows, points), np.add(mean, penalty), rtol=1e-12)
            everywhere = [loss.value(b[own], a[own] @ points[0]).mean() for own in groups]
            assert problem.objective(rows, points[0]) == pytest.approx(np.mean(everywhere) + penalty[0], rel=1e-12)


def test_gradient_is_the_derivative_of_the_objective() -> None:
    large = Poisson(gradient_bound=1e6), Poisson(gradient_bound=1e6, cuts=(0.5,))  # otherwise gradients are clipped
    for loss, regularizer in product([*BOUNDED_LOSS_CASES, *large], REGULARIZER_CASES):
        with case(loss, regularizer):
            rng = np.random.default_rng(2)
            labels = 0.2 * random_labels(loss, rng, 37) if loss.task == "regression" else random_labels(loss, rng, 37)
            rows = make_rows(random_rows(rng, 37, D), labels, offsets=OFFSETS)
            problem = Problem(loss, regularizer, 0.3)
            # small, so that no row of `squared` is clipped
            w, direction = 0.05 * rng.standard_normal((2, D, loss.n_outputs))
            step = 1e-5
            ahead, behind = (problem.objective(rows, w + sign * step * direction) for sign in (1.0, -1.0))
            slope = float(np.vdot(problem.gradient(rows, w), direction))
            assert (ahead - behind) / (2.0 * step) == pytest.approx(slope, abs=1e-6)


def test_problem_is_smooth_if_loss_and_regularizer_are() -> None:
    for loss, regularizer in product(LOSS_CASES, REGULARIZER_CASES):
        with case(loss, regularizer):
            both = loss.smoothness is not None and regularizer.smoothness is not None
            assert Problem(loss, regularizer, 0.1).smooth == both


def test_invalid_alpha_is_refused() -> None:
    for bad in [-1e-9, np.nan, np.inf]:
        with case(bad), pytest.raises(StudyError, match="alpha"):
            Problem(Logistic(), L2(), bad)


# --- layout ------------------------------------------------------------------------------------------------


def test_every_agent_gets_its_rows() -> None:
    for limit, sparse in product([0, 2**27], [False, True]):
        with case(limit, sparse), pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(module, "COMPACT_BYTES", limit)
            rng = np.random.default_rng(3)
            a, b, order = random_rows(rng, 37, D), rng.choice([-1.0, 1.0], 37), rng.permutation(37)
            rows = make_rows(csr_array(a) if sparse else a, b, order=order, offsets=OFFSETS)
            assert (rows.n_agents, rows.n_features, rows.n_rows.tolist()) == (3, D, SIZES.tolist())
            for i in range(3):
                own = order[OFFSETS[i] : OFFSETS[i + 1]]
                for place in (rows, rows.agent(i)):
                    mine = slice(rows.offsets[i], rows.offsets[i + 1]) if place is rows else slice(None)
                    found = place.features[place.order[mine]]
                    np.testing.assert_array_equal(found.toarray() if sparse else found, a[own])
                    np.testing.assert_array_equal(place.labels[mine], b[own])
                    np.testing.assert_allclose(place.norms[mine], np.linalg.norm(a[own], axis=1))
                assert rows.agent(i).n_agents == 1


def test_large_data_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    a, b, order = random_rows(rng, 37, D), rng.choice([-1.0, 1.0], 37), rng.permutation(37)
    monkeypatch.setattr(module, "COMPACT_BYTES", a.nbytes - 1)
    assert make_rows(a, b, order=order, offsets=OFFSETS).features is a
    sparse = csr_array(a)
    held = make_rows(sparse, b, order=order, offsets=OFFSETS).features
    assert np.shares_memory(held.data, sparse.data)
    assert np.shares_memory(held.indices, sparse.indices)
    monkeypatch.setattr(module, "COMPACT_BYTES", a.nbytes)
    assert not np.shares_memory(make_rows(a, b, order=order, offsets=OFFSETS).features, a)
    assert make_rows(a, b, offsets=OFFSETS).features is a  # already in order


def test_copied_dense_rows_are_aligned_to_cache_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    a, b, order = random_rows(rng, 37, D), rng.choice([-1.0, 1.0], 37), rng.permutation(37)
    for dtype in (np.float64, np.float32):
        with case(dtype):
            crooked = aligned_empty((37 * D + 2,), dtype)[2:].reshape(37, D)
            crooked[:] = a
            assert crooked.ctypes.data % 64 != 0
            rows = make_rows(crooked, b, order=order, offsets=OFFSETS)
            assert rows.features.ctypes.data % 64 == 0
            assert rows.features.dtype == dtype
            np.testing.assert_array_equal(rows.features[rows.order], crooked[order])
            np.testing.assert_array_equal(rows.labels, b[order])
    monkeypatch.setattr(module, "COMPACT_BYTES", crooked.nbytes - 1)
    assert make_rows(crooked, b, order=order, offsets=OFFSETS).features is crooked


def test_norms_of_large_data_are_computed_on_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    a, b, order = random_rows(rng, 37, D), rng.choice([-1.0, 1.0], 37), rng.permutation(37)
    a[3] = 0.0
    eager = make_rows(a, b, order=order, offsets=OFFSETS).norms
    monkeypatch.setattr(module, "COMPACT_BYTES", 0)
    rows = make_rows(a, b, order=order, offsets=OFFSETS)
    assert rows.known_norms is None
    assert rows.norms.tobytes() == eager.tobytes()
    assert rows.norms is rows.norms
    with pytest.raises(DataError, match="row 2 has L2 norm"):  # still checked
        make_rows(a + 2.0 * (np.arange(37) == 1)[:, None], b, order=order, offsets=OFFSETS)
    ran = simulate((a, b), n_agents=3, method="auto", epsilon=1.0, n_rounds=2, test_rows=0, metrics_every=0, seed=1)
    assert "norms" not in vars(ran.rows)


def test_rows_may_be_excluded() -> None:
    a = np.eye(6)
    rows = make_rows(a, np.ones(6), order=np.array([5, 0, 3, 2]), offsets=np.array([0, 2, 4]))
    np.testing.assert_array_equal(rows.features[rows.order], a[[5, 0, 3, 2]])


# --- what is refused ---------------------------------------------------------------------------------------

GOOD = {"features": np.eye(6), "labels": np.ones(6), "order": np.arange(6), "offsets": np.array([0, 3, 6])}


def _with(array: Floats, place: object, value: float) -> Floats:
    out = array.copy()
    out[place] = value  # type: ignore[index]
    return out


def test_invalid_rows_are_refused() -> None:
    for changes, message in [
        ({"features": _with(np.eye(6), (2, 2), np.nan)}, "row 3 has a NaN"),
        ({"features": _with(np.eye(6), (5, 0), np.inf)}, "row 6 has a NaN, infinite"),
        ({"features": csr_array(_with(np.eye(6), (1, 4), -np.inf))}, "row 2 has a NaN, infinite"),
        ({"features": _with(np.eye(6), (1, 4), 0.5)}, r"row 2 has L2 norm 1\.118.*> 1"),
        ({"features": 2.0 * np.eye(6)}, r"row 1 has L2 norm 2 > 1 \(6 such rows\)"),
        ({"features": np.ones(6)}, "two dimensions"),
        ({"labels": _with(np.ones(6), 4, np.nan)}, "label of row 5 is nan"),
        ({"labels": _with(np.ones(6), 0, np.inf)}, "label of row 1 is inf"),
        ({"labels": np.ones(5)}, "6 rows but labels have shape"),
        ({"labels": np.ones((6, 1))}, r"labels have shape \(6, 1\)"),
        ({"order": np.array([0, 1, 2, 3, 4, 6])}, "names row 7, but there are 6 rows"),
        ({"order": np.array([0, 1, 2, 3, 4, -1])}, "names row 0, but there are 6 rows"),
        ({"order": np.array([0, 1, 2, 3, 4, 4])}, "gives a row to two agents"),
        ({"offsets": np.array([0, 0, 6])}, "agent 1 has no rows"),
        ({"offsets": np.array([0, 5, 6])}, "agent 2 has one row"),
        ({"offsets": np.array([0, 5, 6]), "names": ("north", "south")}, "agent south has one row"),
        ({"offsets": np.array([0, 5, 6]), "names": ("agent 1", "agent 2")}, "^agent 2 has one row"),
        ({"offsets": np.array([0, 4, 2, 6])}, "offsets must rise"),
        ({"offsets": np.array([0, 3])}, "offsets must rise"),
        ({"offsets": np.array([1, 3, 6])}, "offsets must rise"),
        ({"offsets": np.array([0])}, "offsets must rise"),
    ]:
        with case(changes, message):
            arguments = GOOD | changes
            with pytest.raises(DataError, match=message):
                make_rows(arguments.pop("features"), arguments.pop("labels"), **arguments)  # type: ignore[arg-type]


def test_subnormal_numbers_become_zero() -> None:
    """This matters for rows that no encoder produced, as in estimators and simulations."""
    features, labels, weights = np.full((4, 2), 0.5), np.array([1.0, 1e-310, -1e-320, 0.0]), np.array([1, 1e-310, 0, 1])
    features[1] = 1e-310, -5e-324
    given = features.copy(), labels.copy(), weights.copy()
    rows = make_rows(features, labels, row_weights=weights)
    assert rows.features.tolist() == [[0.5, 0.5], [0.0, 0.0], [0.5, 0.5], [0.5, 0.5]]
    assert rows.labels.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert rows.row_weights is not None
    assert rows.row_weights.tolist() == [1.0, 0.0, 0.0, 1.0]
    for array, before in zip((features, labels, weights), given, strict=True):
        assert np.array_equal(array, before)
    single = make_rows(np.full((2, 2), 1e-40, dtype=np.float32), np.ones(2))
    assert not np.asarray(single.features).any()
