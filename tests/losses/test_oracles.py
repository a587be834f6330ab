"""Loss values compared with other implementations."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from cases import LOSS_CASES, random_labels, random_scores
from looping import case
from scipy.special import expit, huber, softmax
from sklearn.metrics import hinge_loss, log_loss, mean_poisson_deviance, mean_squared_error

from dpadmm.losses import Hinge
from dpadmm.losses.poisson import decoded

ORACLES = {
    "logistic": lambda loss, b, s: log_loss(b, expit(s[:, 0])),
    "softmax": lambda loss, b, s: log_loss(b, softmax(s, axis=1), labels=range(loss.n_outputs)),
    "hinge": lambda loss, b, s: hinge_loss(b, s[:, 0]),
    "squared": lambda loss, b, s: mean_squared_error(b, s[:, 0]) / 2.0,
    "poisson": lambda loss, b, s: _deviance(loss, b, s) / 2.0,
    "huber": lambda loss, b, s: huber(loss.delta, s[:, 0] - b).mean(),
}


def _deviance(loss, labels, scores):
    """Return the deviance of a row, or of its intervals as separate rows."""
    (exposures, ends), (counts, _) = loss.spent(labels), decoded(labels)
    seen = exposures > 0.0
    happened, means = (counts[:, None] * ends)[seen], (exposures * np.exp(scores))[seen]
    return mean_poisson_deviance(happened, means) * seen.sum() / len(labels)


def test_mean_value_matches_the_reference():
    for scale, loss in product([0.1, 1.0, 3.0], [loss for loss in LOSS_CASES if loss.name in ORACLES]):
        with case(scale, loss):
            rng = np.random.default_rng(3)
            labels, scores = random_labels(loss, rng, 500), random_scores(loss, rng, 500, scale)
            value = loss.value(labels, scores)
            assert value.shape == (500,)
            np.testing.assert_allclose(value.mean(), ORACLES[loss.name](loss, labels, scores), rtol=1e-10)


def test_smoothed_hinge_is_below_the_hinge_by_at_most_half_its_width():
    for loss in [loss for loss in LOSS_CASES if loss.name == "smoothed_hinge"]:
        with case(loss):
            scores = np.linspace(-5.0, 5.0, 1001)[:, None]
            gap = Hinge().value(np.ones(1001), scores) - loss.value(np.ones(1001), scores)
            assert gap.min() >= 0.0
            assert gap.max() == pytest.approx(loss.width / 2.0)


def test_softmax_of_two_classes_is_logistic_of_the_difference():
    by_name = {loss.name: loss for loss in reversed(LOSS_CASES)}  # reversed, so that softmax with p = 2 is kept
    scores = random_scores(by_name["softmax"], np.random.default_rng(4), 300, 20.0)
    labels = random_labels(by_name["softmax"], np.random.default_rng(5), 300)
    binary = by_name["logistic"].value(2.0 * labels - 1.0, scores[:, 1:] - scores[:, :1])
    np.testing.assert_allclose(by_name["softmax"].value(labels, scores), binary, rtol=1e-12, atol=1e-13)
