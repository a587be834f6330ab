"""Synthetic data: norms, labels, and known optima."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from known_optima import known_optimum
from looping import case
from scipy.optimize import minimize
from scipy.sparse import csr_array

from dpadmm.data import synthetic
from dpadmm.data.datasets.synthetic import true_weights
from dpadmm.errors import StudyError
from dpadmm.losses import Huber, Logistic, SmoothedHinge, Softmax, Squared, slopes
from dpadmm.matrices.clipping import row_norms
from dpadmm.matrices.storage import shrink_rows

LABELS = {"binary": {-1.0, 1.0}, "multiclass": {0.0, 1.0, 2.0}}
SMOOTH = [
    Logistic(),
    SmoothedHinge(),
    SmoothedHinge(0.3),
    Squared(),
    Squared(0.5),
    Huber(),
    Huber(0.2),
    Softmax(4),
]

DEFAULTS = {"n_features": 20, "n_classes": 3, "density": 1.0, "signal": 3.0, "seed": 0}


def test_rows_have_norm_at_most_one_and_labels_fit_the_task() -> None:
    for task, density in product(["binary", "multiclass", "regression"], [1.0, 0.2]):
        with case(task, density):
            data = synthetic(task, n_rows=3000, n_features=30, density=density)
            norms = row_norms(data.features)
            assert 0.5 < norms.mean() <= norms.max() <= 1.0
            if task == "regression":
                assert -1.0 <= data.labels.min() < -0.5 < 0.5 < data.labels.max() <= 1.0
                assert data.classes is None
            else:
                assert set(data.labels.tolist()) == LABELS[task]
                assert np.bincount((data.labels > 0).astype(int)).min() > 500
            if density < 1.0:
                assert isinstance(data.features, csr_array)
                assert data.features.nnz / (3000 * 30) == pytest.approx(density, rel=0.05)
                assert data.features.has_canonical_format
            else:
                assert isinstance(data.features, np.ndarray)
                assert data.features.flags.c_contiguous


def test_the_seed_decides() -> None:
    first, same, other = (synthetic("binary", n_rows=50, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.features, same.features)
    assert np.array_equal(first.labels, same.labels)
    assert not np.array_equal(first.features, other.features)


def test_labels_follow_the_true_weights() -> None:
    data = synthetic("binary", n_rows=100_000, n_features=4)
    weights = true_weights("binary", **DEFAULTS | {"n_features": 4})

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        scores = data.features @ w[:, None]
        gradient = data.features.T @ slopes(Logistic(), data.labels, scores)[:, 0]
        return float(Logistic().value(data.labels, scores).mean()), gradient / data.n_rows

    fitted = minimize(objective, np.zeros(4), jac=True, method="L-BFGS-B").x
    assert np.linalg.norm(fitted - weights[:, 0]) < 0.05 * np.linalg.norm(weights)


def test_multiclass_labels_follow_the_true_weights() -> None:
    arguments = {"n_features": 5, "n_classes": 4}
    data = synthetic("multiclass", n_rows=20_000, **arguments)
    scores = data.features @ true_weights("multiclass", **DEFAULTS | arguments)
    assert np.mean(scores.argmax(axis=1) == data.labels) > 0.7
    assert np.abs(slopes(Softmax(4), data.labels, scores).mean(axis=0)).max() < 0.01  # calibrated


def test_labels_without_signal_are_random() -> None:
    data = synthetic("binary", n_rows=20_000, signal=0.0)
    assert abs(data.labels.mean()) < 0.03
    assert not true_weights("binary", **DEFAULTS | {"signal": 0.0}).any()
    assert np.abs(synthetic("regression", n_rows=20_000, signal=0.0).labels).mean() < 0.1


def test_impossible_settings_are_refused() -> None:
    for arguments, message in [
        ({"task": "ranking"}, "unknown task"),
        ({"n_rows": 0}, "n_rows"),
        ({"n_features": 0}, "n_features"),
        ({"task": "multiclass", "n_classes": 1}, "n_classes"),
        ({"density": 0.0}, "density"),
        ({"density": 1.5}, "density"),
        ({"signal": float("nan")}, "signal"),
        ({"seed": -1}, "seed"),
    ]:
        with case(arguments, message), pytest.raises(StudyError, match=message):
            synthetic(**{"task": "binary", **arguments})


def test_gradient_vanishes_at_the_known_optimum() -> None:
    for loss, l2 in product(SMOOTH, [0.0, 1e-6, 0.1, 10.0]):
        with case(loss, l2):
            data, weights = known_optimum(loss, n_features=12, rows_per_feature=9, l2=l2, seed=3)
            assert data.n_rows == 12 * 9
            assert weights.shape == (12, loss.n_outputs)
            assert row_norms(data.features).max() <= 1.0
            slope = slopes(loss, data.labels, data.features @ weights)
            assert np.linalg.norm(slope, axis=1).max() <= loss.lipschitz  # no row is clipped at the optimum
            gradient = data.features.T @ slope / data.n_rows + l2 * weights
            assert np.linalg.norm(gradient) < 1e-12
            assert l2 > 1.0 or np.abs(weights).max() > 0.01


def test_shrinking_changes_only_rows_above_norm_1() -> None:
    for sparse, dtype in product([False, True], [np.float32, np.float64]):
        with case(sparse, dtype):
            rng = np.random.default_rng(0)
            matrix = rng.standard_normal((500, 40)).astype(dtype)
            matrix[::2] *= 0.01
            before = matrix.copy()
            features = csr_array(matrix) if sparse else matrix
            shrink_rows(features)
            after = features.toarray() if isinstance(features, csr_array) else features
            assert after.dtype == dtype
            assert np.array_equal(after[::2], before[::2])
            for order in (slice(None), rng.permutation(40)):
                assert np.sqrt((after[:, order] ** 2).sum(axis=1, dtype=dtype)).max() <= 1.0
            assert np.linalg.norm(after[1::2], axis=1).min() > 1.0 - 1e-4
