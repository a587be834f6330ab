"""Sensitivity of the real kernels: replacing a row changes a sum by at most 2·R, silencing a row by at most R."""

import numpy as np
import pytest
from cases import LOSS_CASES, coded, prove
from hypothesis import given
from hypothesis import strategies as st
from neighbours import allowed_steps, steps_between
from scipy.sparse import csr_array
from statistic_cases import grid_of, parameters_for

from dpadmm import kernels
from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.data import Dataset
from dpadmm.losses import Logistic, Squared
from dpadmm.queries import QUERIES, make_query
from dpadmm.queries.problem import Problem, make_rows
from dpadmm.regularizers import L2
from dpadmm.training.simulate import simulate
from dpadmm.trusted.discrete_gaussian import quantise

SIZES = [0.0, 1e-320, 1e-200, 1e-170, 1e-155, 1e-12, 0.3, 0.5]
REACH = [0.0, 1.0, 30.0, 1e100, 1e154, 1e300, 1.7e308, np.inf, np.nan]
signed = st.sampled_from([-1.0, 1.0])


@st.composite
def worlds(draw):
    """Draw three features, four rows and a replacement of the first, labels and a point, all extreme."""
    loss = draw(st.sampled_from(LOSS_CASES))
    cell = st.builds(np.multiply, st.sampled_from(SIZES), signed)
    if loss.task == "binary":
        label = signed
    elif loss.task == "multiclass":
        label = st.integers(0, loss.n_outputs - 1).map(float)
    elif loss.task == "count":
        label = st.sampled_from([0.0, 0.999, 2.0**26, 2.0**26 + 0.5, 2.0**20 + 0.75, -1.5, 1.7e308, -1e300])
    else:
        label = st.builds(np.multiply, st.sampled_from([0.0, 1.0, 1e153, 1e300, 1.7e308]), signed)
    row = st.lists(cell, min_size=3, max_size=3)
    rows = np.array(draw(st.lists(row, min_size=5, max_size=5)))
    labels = np.array(draw(st.lists(label, min_size=5, max_size=5)), dtype=float)
    coordinate = st.builds(np.multiply, st.sampled_from(REACH), signed)
    size = 3 * loss.n_outputs
    point = np.array(draw(st.lists(coordinate, min_size=size, max_size=size))).reshape(1, 3, loss.n_outputs)
    weight = st.sampled_from([0.0, 5e-324, 1e-9, 1 / 3, 1.0 - 2.0**-53, 1.0])
    weights = draw(st.none() | st.lists(weight, min_size=5, max_size=5).map(np.array))
    return loss, rows, labels, point, weights


def _some(weights, index):
    return None if weights is None else weights[index]


def _gradient(loss, features, labels, point, weights, how):
    storage = {"sparse": csr_array, "coded": coded}.get(how.split()[-1], np.asarray)
    rows = make_rows(storage(features), labels, row_weights=weights)
    compute = kernels.reference_gradient if how.startswith("reference") else kernels.gradient
    with np.errstate(all="ignore"):
        return compute(rows, point, loss)[0]


@pytest.mark.parametrize("how", ["dense", "sparse", "coded", "reference", "reference sparse", "reference coded"])
@prove
@given(world=worlds())
def test_replacing_a_row_changes_the_mean_gradient_by_at_most_the_sensitivity(how, world):
    loss, features, labels, point, weights = world
    after = [4, 1, 2, 3]
    one = _gradient(loss, features[:4], labels[:4], point, _some(weights, slice(4)), how)
    other = _gradient(loss, features[after], labels[after], point, _some(weights, after), how)
    assert np.isfinite(one).all()
    assert np.isfinite(other).all()
    limit = mean_sensitivity(loss.lipschitz, 4)
    assert np.linalg.norm(one - other) <= limit * (1.0 + 1e-9)


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("storage", [np.asarray, csr_array, coded, np.float32])
@prove
@given(world=worlds(), place=st.integers(0, 7))
def test_replacing_or_silencing_a_row_changes_each_statistic_within_its_sensitivity(name, storage, world, place):
    """Silencing, which another person's id can do to a row, may cost at most half."""
    loss, features, labels, point, weights = world
    if name == "newton":
        loss = loss if loss.task == "count" else Logistic() if loss.task == "binary" else Squared()
    if name == "score_histogram":
        loss = Logistic()
    statistic = make_query(name, Problem(loss, L2(), 0.0), 3)
    asked = parameters_for(statistic)
    asked = point[0] if name == "gradient" and place else asked[place % len(asked)]
    grid = grid_of(statistic, 4)

    def total(x, index):
        rows = make_rows(storage(x), labels[index], row_weights=_some(weights, index))
        with np.errstate(all="ignore"):
            return statistic.sums(rows, asked[None], bound=grid.row_bound)[0]

    silent, before, after = features[:4].copy(), [0, 1, 2, 3], [4, 1, 2, 3]
    silent[0] = 0.0
    one, gone, other = total(features[before], before), total(silent, before), total(features[after], after)
    assert steps_between(quantise(one, grid), quantise(other, grid)) <= allowed_steps(grid)
    assert np.linalg.norm(one - gone) <= statistic.row_norm * (1.0 + 1e-12)


def test_rows_whose_square_underflows_are_clipped():
    rows = make_rows(np.array([[1e-170, 0.0], [0.0, 0.0]]), np.array([1e300, 0.0]))
    gradient = kernels.gradient(rows, np.zeros((1, 2, 1)), Squared(2.0))
    assert np.linalg.norm(2 * gradient) <= 2.0


def test_huge_labels_are_clipped_and_still_contribute():
    rows = make_rows(np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([1e308, 0.0]))
    gradient = kernels.gradient(rows, np.zeros((1, 2, 1)), Squared(2.0))
    np.testing.assert_allclose(2 * gradient[0, 0, 0], -2.0)


def test_extreme_rows_do_not_produce_nan():
    rng = np.random.default_rng(0)
    features = rng.uniform(-0.3, 0.3, (40, 4))
    labels = rng.uniform(-1, 1, 40)
    labels[7] = 1.7e308
    data = Dataset("huge", features, labels, None)
    result = simulate(data, loss="squared", epsilon=1.0, n_agents=2, n_rounds=5, test_rows=0, metrics_every=0, seed=1)
    assert np.isfinite(result.model.weights).all()
