"""All of scikit-learn's estimator checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_blobs, make_regression
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpadmm import DPADMMClassifier, DPADMMRegressor, PrivateSearch, PublicScaler

pytestmark = pytest.mark.filterwarnings("ignore")  # what the checks provoke is theirs


def exceptions(estimator: object) -> dict[str, str]:
    """Return checks that no private fit can pass. ``__sklearn_tags__`` has the reason for the poor_score tag.

    Repeated rows are different rows with more noise. Without noise the two agree: ``test_weights.py``.
    """
    weighted = hasattr(estimator, "weight_max")
    checks = ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data")
    return dict.fromkeys(checks, "noise is for the number of rows, which weights leave as it is") if weighted else {}


@parametrize_with_checks(
    [
        DPADMMClassifier(max_iter=5),
        DPADMMRegressor(max_iter=5),
        DPADMMClassifier(method="dp_admm", max_iter=5),
        PrivateSearch(DPADMMClassifier(max_iter=5), [{}, {"C": 0.1}], epsilon=1.0, delta=1e-5, runs=1),
        PrivateSearch(DPADMMRegressor(max_iter=5), [{}, {"alpha": 9.0}], epsilon=1.0, delta=1e-5, runs=1),
        DPADMMClassifier(max_iter=5, n_agents=2, aggregation="secure", min_honest_sites=2),
        PublicScaler(1.0, 2.0),
        PublicScaler(scale=2.0),
    ],
    expected_failed_checks=exceptions,
)
def test_check(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_scores_meet_the_checks_with_a_larger_epsilon() -> None:
    X, y = make_blobs(n_samples=300, random_state=0)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    assert DPADMMClassifier(epsilon=5.0, random_state=0).fit(X, y).score(X, y) > 0.83
    X, y = make_regression(n_samples=200, n_features=10, n_informative=1, bias=5.0, noise=20, random_state=42)
    scaled = (y - y.mean()) / np.std(y)
    assert DPADMMRegressor(epsilon=30.0, random_state=0).fit(X, scaled).score(X, scaled) > 0.5
