"""The closed list of queries: the contribution of a row is bounded for every row and all parameters, including
rounding.

An adversary searches for the two rows whose contributions differ most, and for the row that contributes most. It comes
close to the sensitivity, and exceeds it as soon as contributions are not clipped.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from cases import LOSS_CASES, coded, prove, random_labels, random_rows
from cohorts import cohort
from hypothesis import given
from hypothesis import strategies as st
from looping import case
from scipy.sparse import csr_array
from scipy.spatial.distance import pdist, squareform
from statistic_cases import all_statistics, grid_of, parameters_for, preconditioners_and_points

from dpadmm import kernels
from dpadmm.errors import DataError, StudyError
from dpadmm.losses import Huber, Logistic, Loss, Poisson, Softmax, Squared
from dpadmm.losses.poisson import coded as counted
from dpadmm.matrices import memmap
from dpadmm.queries import (
    QUERIES,
    Query,
    column_sums,
    make_query,
    moments,
    newton,
    problem,
    score_histogram,
)
from dpadmm.queries import preconditioner as shape_module
from dpadmm.queries.calibration import Calibration
from dpadmm.queries.column_sums import ColumnSums
from dpadmm.queries.gradient import Gradient
from dpadmm.queries.moments import Moments
from dpadmm.queries.newton import CURVATURE, SHARES, NewtonQuery
from dpadmm.queries.preconditioned_gradient import MAX_PARAMETER, PreconditionedGradient
from dpadmm.queries.preconditioner import MAX_DIRECTION_FEATURES, Preconditioner
from dpadmm.queries.problem import Problem, Rows, make_rows
from dpadmm.queries.score_histogram import EDGES, N_BINS, ScoreHistogram
from dpadmm.regularizers import L2
from dpadmm.trusted.discrete_gaussian import Lattice

ATTACKED: list[Loss] = [
    *(Logistic(), Softmax(n_outputs=3), Squared(gradient_bound=0.5), Huber()),
    *(Poisson(gradient_bound=0.5, unit=0.125), Poisson(gradient_bound=0.5, cuts=(0.25, 0.6))),
]


def contributions(
    statistic: Query, features: Any, labels: Any, parameters: Any, bound: float, weights: Any = None
) -> Any:
    """Return the contribution of every row, (rows, size). Each row belongs to an agent whose other row is zero."""
    n, d = features.shape
    both = np.zeros((2 * n, d))
    both[::2] = features
    order, offsets = np.arange(2 * n), np.arange(0, 2 * n + 1, 2)
    row_weights = None if weights is None else np.repeat(weights, 2)
    rows = make_rows(both, np.repeat(labels, 2), order=order, offsets=offsets, row_weights=row_weights)
    asked = np.broadcast_to(parameters, (n, *np.shape(parameters)))
    return statistic.sums(rows, asked, bound=bound).reshape(n, -1)


def attack(
    statistic: Query, loss: Loss, parameters: Any, bound: float, *, turns: int = 6, weighted: bool = False
) -> tuple[float, float]:
    """Search for the largest distance between the contributions of two rows, and the largest norm of one.

    If rows are ``weighted``, the adversary also chooses the weights.
    """
    d, rng = statistic.n_features, np.random.default_rng(1)
    even = np.full((1, d), d**-0.5)
    axes = np.eye(d)
    tilted = np.repeat(
        [a * axes[0] + 0.01 * b * axes[-1] for a, b in product((-0.9999, 0.9999), (-1.0, 1.0))], 4, axis=0
    )
    ends = np.concatenate([even, -even, axes[:2], -axes[:2], tilted, random_rows(rng, 30, d)])
    features = np.concatenate([ends, ends, 1e-3 * ends])
    labels = random_labels(loss, rng, len(features))
    if loss.task == "regression":
        labels = np.sign(labels) * rng.choice([1e-3, 1.0, 1e6], size=len(labels))
    weights = rng.choice([0.0, 1e-300, 0.5, 1.0 - 2.0**-53, 1.0], len(features)) if weighted else None
    apart = alone = 0.0
    for turn in range(turns):
        added = contributions(statistic, features, labels, parameters, bound, weights)
        between, lengths = squareform(pdist(added)), np.linalg.norm(added, axis=1)
        apart, alone = max(apart, float(between.max())), max(alone, float(lengths.max()))
        best = np.unravel_index(np.argsort(between, axis=None)[-8:], between.shape)
        parents = np.concatenate([*best, np.argsort(lengths)[-8:]])
        near = np.repeat(parents, 4)
        moved = features[near] + rng.normal(scale=0.3 / 4**turn, size=(len(near), d)) / d**0.5
        features = np.concatenate([features[parents], moved / np.maximum(1.0, np.linalg.norm(moved, axis=1))[:, None]])
        labels = np.concatenate([labels[parents], labels[near]])
        if weights is not None:
            nearby = np.clip(weights[near] + rng.normal(scale=0.3 / 4**turn, size=len(near)), 0.0, 1.0)
            weights = np.concatenate([weights[parents], nearby])
    return apart, alone


def test_adversary_approaches_but_never_exceeds_the_sensitivity() -> None:
    for loss in ATTACKED:
        for statistic in all_statistics(loss, 40):
            grid = grid_of(statistic, 100)
            reached = np.zeros(2)
            for parameters in parameters_for(statistic):
                with case(loss, statistic.name, parameters):
                    apart, alone = attack(statistic, loss, parameters, grid.row_bound)
                    assert apart <= 2.0 * statistic.row_norm < grid.sensitivity
                    assert alone <= statistic.row_norm
                    reached = np.maximum(reached, [apart / grid.sensitivity, alone / statistic.row_norm])
            with case(loss, statistic.name):
                # squared loss: rows of opposite gradients have the same Hessian and residual; counts: rows
                # that reach the bound have Hessians and labels of the same sign
                factors = {("newton", "regression"): 0.6**0.5, ("newton", "count"): 0.5**0.5}
                most = {**factors, ("moments", "count"): 0.875}.get((statistic.name, loss.task), 1.0)
                # two cells of a histogram; S is for two rows of one cell that are silenced together
                most = 0.5**0.5 if statistic.name == ScoreHistogram.name else most
                # opposite derivatives have changes of the same sign
                most = 0.8**0.5 if statistic.name == Calibration.name else most
                assert (reached > 0.96 * np.array([most, 1.0])).all(), reached


def test_adversary_with_weights_never_exceeds_the_sensitivity() -> None:
    for loss in ATTACKED:
        for statistic in all_statistics(loss, 12):
            grid, reached = grid_of(statistic, 100), 0.0
            for parameters in parameters_for(statistic):
                with case(loss, statistic.name, parameters):
                    apart, alone = attack(statistic, loss, parameters, grid.row_bound, turns=4, weighted=True)
                    assert apart <= 2.0 * statistic.row_norm < grid.sensitivity
                    assert alone <= statistic.row_norm
                    reached = max(reached, alone / statistic.row_norm)
            with case(loss, statistic.name):
                assert reached > 0.85


@pytest.mark.parametrize("weight", [1.0 + 2.0**-52, -(2.0**-60), np.nan, np.inf])
def test_weights_outside_0_to_1_are_refused(weight: float) -> None:
    with pytest.raises(
        DataError, match=r"the weight of row 2 is .*; divided by its public bound it must lie in \[0, 1\]"
    ):
        make_rows(np.eye(2), np.ones(2), row_weights=np.array([1.0, weight]))
    with pytest.raises(DataError, match="one weight per row"):
        make_rows(np.eye(2), np.ones(2), row_weights=np.ones(3))


def test_weighted_sums_equal_scaled_and_repeated_rows() -> None:
    """For all storage formats and code paths: compiled, NumPy, per agent and over all agents."""
    rng = np.random.default_rng(3)
    for loss in ATTACKED:
        features, copies = random_rows(rng, 60, 5), rng.integers(0, 5, 60)
        labels = random_labels(loss, rng, 60)
        repeated = np.repeat(np.arange(60), copies)
        for statistic in all_statistics(loss, 5):
            if statistic.name in (ColumnSums.name, ScoreHistogram.name):  # these count rows
                continue
            for storage, parameters in product((np.asarray, csr_array, coded), parameters_for(statistic)[:2]):
                with case(loss, statistic.name, storage, parameters):
                    rows = make_rows(storage(features), labels, row_weights=copies / 4.0)
                    repeated_rows = make_rows(storage(features[repeated]), labels[repeated])
                    expected = statistic.sums(repeated_rows, parameters[None], bound=statistic.row_norm)[0]
                    within = {"rtol": 1e-8, "atol": 1e-8 * np.abs(expected).max() + 1e-300}
                    found = statistic.sums(rows, parameters[None], bound=statistic.row_norm)[0]
                    np.testing.assert_allclose(4.0 * found, expected, **within)
                    means = statistic.means(rows, parameters[None])[0]
                    np.testing.assert_allclose(240.0 * means, expected, **within)
                    offsets = np.array([0, 20, 25, 60])
                    dealt = make_rows(storage(features), labels, offsets=offsets, row_weights=copies / 4.0)
                    if hasattr(statistic, "weighted_mean"):
                        for shares in (np.diff(offsets) / 60.0, np.array([0.5, 0.25, 0.25])):
                            some = statistic.weighted_mean(dealt, parameters, shares)
                            asked = np.broadcast_to(parameters, (3, *parameters.shape))
                            weighted = np.tensordot(shares, statistic.means(dealt, asked), 1)
                            np.testing.assert_allclose(some, weighted, **within)


def test_adversary_exceeds_the_sensitivity_without_clipping() -> None:
    """This shows that clipping enforces the bound. Some queries are bounded without it."""
    for loss in ATTACKED:
        for statistic in all_statistics(loss, 6):
            short = (NewtonQuery.name, ColumnSums.name, ScoreHistogram.name)
            declared = isinstance(loss, Squared | Poisson)
            if statistic.name in short or (statistic.name == Gradient.name and not declared):
                continue
            with case(loss, statistic.name):
                with np.errstate(over="ignore"):
                    found = [attack(statistic, loss, asked, 1e300, turns=2) for asked in parameters_for(statistic)]
                assert max(alone for _, alone in found) > 1.1 * statistic.row_norm
                if statistic.name != Moments.name:  # replaced rows differ by at most 4, for another reason
                    assert max(apart for apart, _ in found) > 2.2 * statistic.row_norm


SIZES = [0.0, 5e-324, 1e-170, 1e-155, 1e-9, 1 / 3, 0.57, 1.0]


@st.composite
def single_rows(draw: Any) -> tuple[Loss, Any, float]:
    loss = draw(st.sampled_from(LOSS_CASES))
    cell = st.builds(np.multiply, st.sampled_from(SIZES), st.sampled_from([-1.0, 1.0]))
    row = np.array(draw(st.lists(cell, min_size=4, max_size=4)))
    if loss.task == "count":
        label = draw(st.sampled_from([0.0, 0.999, 2.0**26, 2.0**26 + 0.5, -1.5, 1.7e308]))
    elif loss.task == "regression":
        label = draw(st.sampled_from([0.0, 0.3, -1.0, 1e153, -1e300, 1.7e308]))
    else:
        label = draw(st.sampled_from([-1.0, 1.0] if loss.task == "binary" else list(range(loss.n_outputs))))
    return loss, row / max(1.0, float(np.linalg.norm(row))), float(label)


@prove
@given(single_rows())
def test_computed_contribution_is_within_the_bound_in_exact_arithmetic(world: tuple[Loss, Any, float]) -> None:
    """The squared norm is computed in fractions, without rounding."""
    loss, row, label = world
    for statistic in all_statistics(loss, 4):
        for parameters in parameters_for(statistic):
            with case(statistic.name, parameters):
                grid = grid_of(statistic, 2)
                added = contributions(statistic, row[None], np.array([label]), parameters, grid.row_bound)
                assert np.isfinite(added).all()
                assert sum(Fraction(x) ** 2 for x in added[0].tolist()) <= Fraction(statistic.row_norm) ** 2


def allowance(parameters: Any, d: int, n_rows: int) -> Fraction:
    """Return ``(1 + k)(1 + 2m(k + rmu))`` of docs/explanation/proofs.md, in fractions except for r."""
    spread = Fraction(float(np.sqrt(1.0 + np.sum(np.square(parameters[d : 2 * d])))))
    of_shape = spread * (3 * d + 16) / 2**53
    return (1 + of_shape) * (1 + 2 * n_rows * (of_shape + spread * n_rows / 2**53))


def test_tighter_clipping_covers_rounding_that_the_preconditioner_amplifies() -> None:
    """Many equal rows point along the direction of the preconditioner, which amplifies their rounding error.

    One label is opposite. With the ordinary clipping bound, the two sums would differ by more than the sensitivity.
    """
    d, n_rows, loss, unpaid = 30, 500, Huber(), 0.0
    statistic, grid = PreconditionedGradient(loss, d), Lattice(1.0, d, n_rows)
    labels = np.full(n_rows, -1e6)
    for seed in range(10):
        along = np.random.default_rng(seed).uniform(0.3, 1.0, d)
        along /= np.linalg.norm(along) * (1.0 + 1e-9)
        parameters = np.concatenate([np.full(d, MAX_PARAMETER), MAX_PARAMETER * along, np.zeros(d)])
        assert statistic.accepts(parameters)
        rows = [make_rows(np.tile(along, (n_rows, 1)), np.append(end, labels[1:])) for end in (1e6, -1e6)]
        paid = float(allowance(parameters, d, n_rows))
        for factor in (1.0, paid):
            one, other = (statistic.sums(row, parameters[None], bound=factor * grid.row_bound)[0] for row in rows)
            apart = float(np.linalg.norm(one - other))
            if factor == 1.0:
                assert 0.99 * 2.0 / paid <= apart <= 2.0
            else:
                unpaid = max(unpaid, apart)
    assert unpaid > grid.sensitivity * (1.0 + 1e-6)


def test_reduced_clipping_bound_follows_the_proof_for_each_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    plain = kernels.guarded_sums
    monkeypatch.setattr(kernels, "guarded_sums", lambda *a, bound: seen.append(bound) or plain(*a, bound=bound))
    rows = cohort(Logistic(), sizes=(20, 41, 2))
    for parameters in preconditioners_and_points(5, 1):
        seen.clear()
        PreconditionedGradient(Logistic(), 5).sums(rows, np.stack([parameters] * 3), bound=0.9)
        for found, m in zip(seen[0], (20, 41, 2), strict=True):
            assert abs(Fraction(found) * allowance(parameters, 5, m) / Fraction(0.9) - 1) < Fraction(1, 2**48)


def test_preconditioned_rows_are_not_stored() -> None:
    for storage in (np.asarray, csr_array, coded):
        rows = stored(cohort(Logistic(), sizes=(30, 20)), storage)
        for parameters in preconditioners_and_points(5, 1)[:3]:
            asked = np.stack([parameters] * 2)
            PreconditionedGradient(Logistic(), 5).sums(rows, asked, bound=1.0)
            if storage is not np.asarray:
                PreconditionedGradient(Logistic(), 5).means(rows, asked)
            ((_, cached),) = rows._cache.values()
            assert cached.features is rows.features


def test_row_of_zeros_adds_nothing_for_any_label() -> None:
    """Silent rows of persons are such rows, and keep their labels."""
    for loss in LOSS_CASES:
        labels = random_labels(loss, np.random.default_rng(0), 20)
        labels = np.concatenate([labels, 1e300 * labels]) if loss.task == "regression" else labels
        rows = make_rows(np.zeros((len(labels), 5)), labels)
        for statistic, storage in product(all_statistics(loss, 5), (np.asarray, csr_array, coded)):
            for parameters in parameters_for(statistic):
                with case(loss, statistic.name, parameters):
                    silent = make_rows(storage(rows.features), labels)
                    assert not statistic.sums(silent, parameters[None], bound=statistic.row_norm).any()
                    assert not statistic.means(silent, parameters[None]).any()


# The same sums for every storage format and cohort


def stored(rows: Rows, storage: Any) -> Rows:
    """Return the cohort with its features in another storage format. CSR arrays store explicit zeros."""
    labels = rows.labels[np.argsort(rows.order)]
    return make_rows(storage(rows.features), labels, order=rows.order, offsets=rows.offsets)


def in_a_file(features: Any) -> Any:
    out = memmap.empty(features.shape)
    assert memmap.is_unnamed(out)
    out[:] = features
    return out


@pytest.mark.parametrize("small", [0, 2**23])
@pytest.mark.parametrize("storage", [np.asarray, csr_array, coded, np.float32, in_a_file])
def test_sum_of_an_agent_is_identical_alone_and_in_a_cohort(
    monkeypatch: pytest.MonkeyPatch, storage: Any, small: int
) -> None:
    monkeypatch.setattr(problem, "COMPACT_BYTES", 0)
    monkeypatch.setattr(kernels, "MAX_NUMPY_ENTRIES", small)
    monkeypatch.setattr(kernels, "MIN_COMPILED_ENTRIES", small)
    monkeypatch.setattr(memmap, "MEMORY_BYTES", 0)
    for module, name in (
        (kernels, "ENTRIES_PER_BLOCK"),
        *((item, "PORTION") for item in (shape_module, moments, newton, column_sums, score_histogram)),
    ):
        monkeypatch.setattr(module, name, 130)
    for loss in (Logistic(), Softmax(n_outputs=3), Squared(gradient_bound=0.5)):
        rows = stored(cohort(loss, sizes=(20, 41, 60), d=19), storage)
        for statistic in all_statistics(loss, 19):
            bound = grid_of(statistic, 20).row_bound
            for parameters in parameters_for(statistic):
                asked = np.broadcast_to(parameters, (3, *parameters.shape))
                together = statistic.sums(rows, asked, bound=bound)
                some = statistic.sums(rows, asked, np.array([2]), bound=bound)
                assert np.array_equal(some[2], together[2])
                assert not some[:2].any()
                assert not statistic.means(rows, asked, np.array([2]))[:2].any()
                for i in range(3):
                    with case(loss, statistic.name, parameters, i):
                        mine = rows.agent(i)
                        own = make_rows(mine.features[mine.order], mine.labels)
                        for alone in (mine, own):
                            assert np.array_equal(statistic.sums(alone, asked[:1], bound=bound)[0], together[i])


def rounding(statistic: Query, parameters: Any, n_rows: int) -> float:
    """Bound the float error of a sum over this number of rows. For preconditioned rows it grows with the direction."""
    if statistic.name != PreconditionedGradient.name:
        return 0.0
    d = statistic.shape[0]
    spread = float(np.hypot(1.0, np.linalg.norm(parameters[d : 2 * d])))
    return spread * n_rows**2 * (n_rows + 3 * d + 16) * 2.0**-51


def test_sums_agree_for_sparse_coded_and_dense_rows_and_simulated_means() -> None:
    for loss in (Logistic(), Softmax(n_outputs=3), Huber()):
        rows = cohort(loss)
        others = [stored(rows, csr_array), stored(rows, coded)]
        for statistic in all_statistics(loss, 5):
            for parameters in parameters_for(statistic):
                if (
                    np.abs(parameters).max(initial=0.0) > 1e100
                ):  # scores overflow for one order of terms and another not
                    continue
                asked = np.broadcast_to(parameters, (rows.n_agents, *parameters.shape))
                with case(loss, statistic.name, parameters):
                    sums = statistic.sums(rows, asked, bound=statistic.row_norm)
                    assert sums.shape == (rows.n_agents, *statistic.shape)
                    tolerance = {"rtol": 1e-9, "atol": 1e-9 + rounding(statistic, parameters, 60)}
                    for other in others:
                        found = statistic.sums(other, asked, bound=statistic.row_norm)
                        np.testing.assert_allclose(found, sums, **tolerance)
                    means = statistic.means(rows, asked)
                    for other in others if np.abs(parameters).max(initial=0.0) < 1e6 else []:
                        np.testing.assert_allclose(statistic.means(other, asked), means, **tolerance)
                    many = rows.n_rows.reshape(-1, *[1] * (means.ndim - 1))
                    np.testing.assert_allclose(means * many, sums, **tolerance)


def test_means_of_one_row_and_of_no_rows() -> None:
    """Subsampling may leave so few rows."""
    some = cohort(Logistic(), sizes=(4,))
    rows = Rows(some.features, some.labels, some.order, np.array([0, 1, 4]), some.norms)
    nobody = Rows(some.features, some.labels[:0], some.order[:0], np.array([0, 0, 0]), some.norms[:0])
    for statistic in all_statistics(Logistic(), 5):
        for parameters in parameters_for(statistic):
            asked = np.broadcast_to(parameters, (2, *parameters.shape))
            with case(statistic.name, parameters):
                sums = statistic.sums(rows, asked, bound=statistic.row_norm)
                slack = rounding(statistic, parameters, 4)
                np.testing.assert_allclose(statistic.means(rows, asked)[0], sums[0], rtol=1e-12, atol=slack)
                assert not statistic.means(nobody, asked).any()


# The summed functions


def test_names_bounds_and_shapes_are_stable() -> None:
    """They are part of studies, ledgers and privacy reports, and noise is scaled to them."""
    agreed = {
        "gradient": (0.5, (4, 3), (4, 3)),
        "preconditioned_gradient": (1.0, (20,), (4, 3)),
        "moments": (2.0, (0,), (20,)),
        "calibration": (1.0, (38,), (2,)),
    }
    problem = Problem(Softmax(n_outputs=3), L2(), 0.0)
    assert QUERIES.keys() == {*agreed, "newton", "column_sums", "score_histogram"}
    for name, (row_norm, asked, name_of_shape) in agreed.items():
        query = make_query(name, problem, 4)
        assert (query.name, query.n_features, query.parameter_shape, query.shape) == (name, 4, asked, name_of_shape)
        assert query.row_norm == (problem.loss.lipschitz if name == "gradient" else row_norm)
    assert Moments(Squared(), 4).shape == (13,)
    cut = Poisson(cuts=(0.25, 0.6))
    for loss, asked, name_of_shape in [
        *((Logistic(), (4,), (14,)), (Squared(), (5,), (15,)), (Poisson(), (5,), (14,)), (cut, (7,), (27,)))
    ]:
        pair = make_query("newton", Problem(loss, L2(), 0.0), 4)
        assert (pair.name, pair.n_features, pair.parameter_shape, pair.shape) == ("newton", 4, asked, name_of_shape)
        assert pair.row_norm == 1.0
    with pytest.raises(StudyError, match="intervals need the loss logistic, squared or poisson, not softmax"):
        make_query("newton", problem, 4)


def test_hessian_weight_up_to_the_golden_ratio_costs_nothing() -> None:
    """κ² = φ⁵ is the minimum of (1 + r)/(r²(1 − r)) on a fine grid. A Hessian weight 0.1% larger exceeds the bound."""
    r = np.linspace(1e-6, 1.0 - 1e-6, 10**6)
    bound = (1.0 + r) / (r * r * (1.0 - r))
    assert pytest.approx(bound.min(), rel=1e-9) == CURVATURE**2
    assert r[bound.argmin()] == pytest.approx(2.0 / (1.0 + 5.0**0.5), abs=1e-5)
    lengths = r * r * (1.0 + np.square(CURVATURE * (1.0 - r)))
    assert lengths.max() <= 1.0 + 1e-12
    assert (r * r * (1.0 + np.square(1.001 * CURVATURE * (1.0 - r)))).max() > 1.0005
    assert sum(share**2 for share in SHARES) == pytest.approx(1.0, rel=1e-15)


def test_newton_query_contains_gradient_and_hessian_of_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with a formula over all rows, also for rows of norm slightly above 1, whose contribution is clipped."""
    rng = np.random.default_rng(3)
    monkeypatch.setattr(newton, "PORTION", 16)
    for loss, clip in ((Logistic(), 1.0), (Squared(), 0.7), (Squared(), 50.0)):
        rows = cohort(loss, sizes=(30, 20), d=4)
        rows = replace(rows, labels=3.0 * rows.labels) if loss.task == "regression" else rows
        pair, point = NewtonQuery(loss, 4), rng.normal(size=4)
        asked = np.stack([np.append(point, clip)[: pair.parameter_shape[0]]] * 2)
        sums = pair.sums(rows, asked, bound=1.0)
        for i in range(2):
            own = slice(rows.offsets[i], rows.offsets[i + 1])
            a, b = rows.features[rows.order[own]], rows.labels[own]
            s = a @ point
            if loss.task == "binary":
                p = 1.0 / (1.0 + np.exp(-s))
                r, h = p - (b > 0), p * (1.0 - p)
            else:
                r, h = np.clip(s - np.clip(b, -1.0, 1.0), -clip, clip), np.ones(len(s))
            gradient, hessian, squares = pair.split(sums[i], clip)
            np.testing.assert_allclose(gradient, r @ a, atol=1e-12)
            np.testing.assert_allclose(hessian, np.einsum("i,ij,ik->jk", h, a, a), atol=1e-12)
            assert squares == pytest.approx(0.0 if loss.task == "binary" else r @ r)
        long = np.full((1, 4), 0.5 * (1.0 + 9e-7))
        for where in [1e6 * np.ones(4), *([np.zeros(4)] if clip < 1.0 else [])]:
            added = contributions(pair, long, np.array([-1.0]), np.append(where, clip)[: asked.shape[1]], 1.0)
            assert np.linalg.norm(added) == pytest.approx(1.0, rel=1e-12)


def test_newton_query_accepts_points_and_clipping_bounds_in_range() -> None:
    for loss in (Logistic(), Squared()):
        pair = NewtonQuery(loss, 2)
        numbers = loss.task == "regression"
        assert pair.accepts(np.append([MAX_PARAMETER, -MAX_PARAMETER], 1.0)[: 2 + numbers])
        beyond = float(np.nextafter(MAX_PARAMETER, np.inf))
        wrong = [(0, beyond), (1, -beyond)]
        wrong += (
            [(2, 0.0), (2, -1.0), (2, float(np.nextafter(1.0 / MAX_PARAMETER, 0.0))), (2, beyond)] if numbers else []
        )
        for place, value in wrong:
            with case(loss, place, value):
                asked = np.append(np.zeros(2), 1.0)[: 2 + numbers]
                asked[place] = value
                assert not pair.accepts(asked)
        assert numbers == (pair.accepts(np.array([0.0, 0.0, 1.0 / MAX_PARAMETER])) and numbers)


@pytest.mark.parametrize("portion", [8, 2**20])
@pytest.mark.parametrize("loss", [Logistic(), Softmax(n_outputs=3), Squared()])
def test_moments_contain_rows_squares_and_rows_times_labels(
    loss: Loss, portion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "PORTION", portion)
    rows = cohort(loss, sizes=(30,), d=4)
    statistic, features = Moments(loss, 4), 0.8 * rows.features[rows.order]  # none is clipped
    short = make_rows(features, rows.labels)
    labels = rows.labels
    by_label = np.eye(3)[labels.astype(int)] if loss.task == "multiclass" else np.clip(labels, -1.0, 1.0)[:, None]
    for held in (short, make_rows(csr_array(features), labels)):
        first, second, third, squares = statistic.split(statistic.sums(held, np.zeros((1, 0)), bound=2.0)[0])
        np.testing.assert_allclose(first, features.sum(axis=0))
        np.testing.assert_allclose(second, np.square(features).sum(axis=0))
        np.testing.assert_allclose(third, features.T @ by_label)
        expected = np.square(np.clip(labels, -1.0, 1.0)).sum() if loss.task == "regression" else 0.0
        assert squares == pytest.approx(expected)


def test_moments_of_a_row_are_clipped_jointly() -> None:
    added = contributions(Moments(Logistic(), 2), np.array([[1.0, 0.0]]), np.array([-1.0]), np.zeros(0), 2.0)
    whole = np.array([1.0, 0.0, 1.0, 0.0, -(3.0**0.5), 0.0])
    np.testing.assert_allclose(added[0], whole * 2.0 / np.linalg.norm(whole))
    for label in (-3.0, 3.0):
        added = contributions(Moments(Squared(), 2), np.array([[0.0, 1.0]]), np.array([label]), np.zeros(0), 2.0)
        whole = np.array([0.0, 1.0, 0.0, 1.0, 0.0, np.sign(label) * 3.0**0.5, 0.5])
        np.testing.assert_allclose(added[0], whole * 2.0 / np.linalg.norm(whole))


def test_column_sums_do_not_depend_on_labels() -> None:
    rows = cohort(Logistic(), sizes=(30, 20), d=4)
    statistic = ColumnSums(4)
    assert (statistic.shape, statistic.parameter_shape, statistic.row_norm) == ((4,), (0,), 1.0)
    total = statistic.sums(rows, np.zeros((2, 0)), bound=1.0)
    for i in range(2):
        own = rows.agent(i)
        np.testing.assert_allclose(total[i], own.features[own.order].sum(axis=0), rtol=1e-12, atol=1e-12)
    flipped = replace(rows, labels=-rows.labels)
    np.testing.assert_array_equal(total, statistic.sums(flipped, np.zeros((2, 0)), bound=1.0))
    long = np.full((1, 4), 0.5 * (1.0 + 9e-7))
    assert np.linalg.norm(contributions(statistic, long, np.ones(1), np.zeros(0), 1.0)) == pytest.approx(1.0, abs=1e-12)


def test_score_histogram_counts_rows_by_class_and_bin() -> None:
    """A score at an edge belongs to the bin below it, so a score of 0 is the negative class, as in predictions."""
    statistic = ScoreHistogram(2)
    assert (statistic.shape, statistic.parameter_shape, statistic.row_norm) == ((2, 20), (2,), 1.0)
    assert tuple(np.arange(-4.5, 4.6, 0.5).tolist()) == EDGES
    point = np.array([10.0, 0.0])
    scores = [-50.0, -4.5, -4.4, 0.0, 1e-9, 0.5, 4.5, 4.51, 9.0]
    places = [0, 0, 1, 9, 10, 10, 18, 19, 19]
    for score, place in zip(scores, places, strict=True):
        for label in (-1.0, 1.0):
            with case(score, label):
                row = np.array([[score / 100.0, 0.1]])
                added = contributions(statistic, row, np.array([label]), 10.0 * point, 1.0).reshape(2, N_BINS)
                assert added[int(label > 0), place] == added.sum() == 1.0
    assert not contributions(statistic, np.zeros((1, 2)), np.ones(1), point, 1.0).any()
    rows = cohort(Logistic(), sizes=(30, 20), d=2)
    added = statistic.sums(rows, np.stack([point, -point]), bound=1.0 - 2.0**-40)
    assert added.sum(axis=(1, 2)).tolist() == [30.0 * (1.0 - 2.0**-40), 20.0 * (1.0 - 2.0**-40)]
    assert statistic.sums(rows, np.stack([point, -point]), bound=5.0).sum() == 50.0  # a row adds no more than 1
    with pytest.raises(StudyError, match="needs a loss for two classes, not squared"):
        make_query("score_histogram", Problem(Squared(), L2(), 0.0), 2)
    assert statistic.accepts(np.array([MAX_PARAMETER, -MAX_PARAMETER]))
    assert not statistic.accepts(np.array([0.0, float(np.nextafter(MAX_PARAMETER, np.inf))]))
    assert not statistic.accepts(np.array([float(np.nextafter(-MAX_PARAMETER, -np.inf)), 0.0]))


@pytest.mark.parametrize("loss", LOSS_CASES)
def test_preconditioned_gradient_is_the_gradient_of_preconditioned_rows_over_the_clipping_bound(loss: Loss) -> None:
    """``clip(ℓ'(u, θ), C)/C = clip(ℓ'(u/C, Cθ), 1)``, by a loop over rows with B as a matrix."""
    rng, clip = np.random.default_rng(2), 0.4
    rows = cohort(loss, sizes=(30,), d=4)
    features, labels = rows.features[rows.order], rows.labels
    shape = Preconditioner(rng.uniform(0.5, 3.0, 4), rng.normal(size=4))
    point = rng.normal(size=(4, loss.n_outputs))
    parameters = np.concatenate([shape.scale / clip, shape.direction, (clip * point).ravel()])
    expected = np.zeros(point.shape)
    for a, b in zip(features, labels, strict=True):
        u = (shape.times(np.eye(4)) @ a)[None]
        gradient = kernels.reference_gradient(
            make_rows(np.concatenate([u, u]) / 1e3, np.repeat(b, 2)), 1e3 * point[None], loss, bound=1e300
        )[0]
        gradient = 1e3 * gradient
        expected += gradient * min(1.0, clip / max(float(np.linalg.norm(gradient)), 1e-300))
    sums = PreconditionedGradient(loss, 4).sums(rows, parameters[None], bound=1.0)[0]
    np.testing.assert_allclose(clip * sums, expected, atol=1e-9)


def test_agents_of_a_cohort_share_a_preconditioner_but_not_points() -> None:
    loss = Logistic()
    rows, statistic = cohort(loss, sizes=(20, 30)), PreconditionedGradient(loss, 5)
    asked = np.stack([preconditioners_and_points(5, 1)[1]] * 2)
    asked[1, -1] += 1.0
    sums = statistic.sums(rows, asked, bound=1.0)
    assert np.array_equal(sums[1], statistic.sums(rows.agent(1), asked[1:], bound=1.0)[0])
    asked[1, 0] += 1.0
    with pytest.raises(ValueError, match="share a preconditioner"):
        statistic.sums(rows, asked, bound=1.0)


# Parameters that agents refuse


def test_preconditioned_gradient_accepts_parameters_in_range() -> None:
    statistic = PreconditionedGradient(Softmax(n_outputs=3), 4)
    good = np.concatenate([np.ones(4), np.zeros(4), np.zeros(12)])
    assert all(statistic.accepts(item) for item in [good, *preconditioners_and_points(4, 3)])
    assert MAX_PARAMETER == 1e9
    beyond, below = np.nextafter(MAX_PARAMETER, np.inf), np.nextafter(1.0 / MAX_PARAMETER, 0.0)
    scales = (beyond, below, 0.0, -0.0, 5e-324, -1.0, 1.7e308)
    far = (beyond, -beyond, 1.7e308, -1e10)
    for place, values in ((0, scales), (3, scales), (4, far), (7, far), (8, far), (19, far)):
        for value in values:
            with case(place, value):
                asked = good.copy()
                asked[place] = value
                assert not statistic.accepts(asked)
    for name in QUERIES:  # logistic loss has all of them
        other = make_query(name, Problem(Logistic(), L2(), 0.0), 3)
        assert all(other.accepts(item) for item in parameters_for(other))


def test_wide_rows_allow_diagonal_preconditioners_only() -> None:
    """A direction would make sparse rows dense and use rows times features of an agent's disk."""
    assert MAX_DIRECTION_FEATURES == 2000
    for d in (MAX_DIRECTION_FEATURES, MAX_DIRECTION_FEATURES + 1):
        statistic = PreconditionedGradient(Logistic(), d)
        asked = np.concatenate([np.full(d, 3.0), np.zeros(d), np.ones(d)])
        assert statistic.accepts(asked)
        asked[d + 5] = 1e-300
        assert statistic.accepts(asked) == (d == MAX_DIRECTION_FEATURES)


def test_unknown_statistic_error_lists_the_known_ones() -> None:
    with pytest.raises(
        StudyError, match="unknown statistic 'median'; choose one of gradient, preconditioned_gradient, "
    ):
        make_query("median", Problem(Logistic(), L2(), 0.0), 3)


def written_out(loss: Poisson, row: Any, count: float, exposure: float, weights: Any, cap: float) -> tuple[Any, Any]:
    """Return gradient and Hessian of a person from one row per interval, by the textbook formulas."""
    edges, d = [0.0, *loss.cuts, 1.0], len(row) - 1
    gradient, hessian, planned, parts = np.zeros(len(weights)), np.zeros((len(weights),) * 2), 0.0, []
    for h, (low, high) in enumerate(pairwise(edges)):
        wide = np.concatenate([row[:d], row[d] * np.eye(len(edges) - 1)[h]])
        rate, spent = np.exp(wide @ weights), min(max(exposure - low, 0.0), high - low)
        planned += (high - low if loss.cuts else spent) * rate
        parts.append((wide, spent * rate, count if low < exposure <= high else 0.0))
    weight = min(1.0, cap / planned)
    residuals = [weight * (mean - happened) for _, mean, happened in parts]
    most = max(cap, min(1.0, loss.unit + 3.0 * (loss.unit * cap) ** 0.5))
    short = min(1.0, most / max(abs(sum(residuals)), sum(item**2 for item in residuals) ** 0.5))
    for (wide, mean, _), residual in zip(parts, residuals, strict=True):
        gradient += 0.5**0.5 * short * residual / most * wide
        hessian += 0.5**0.5 * weight * mean / cap * np.outer(wide, wide)
    return gradient, hessian


def test_newton_query_of_counts_is_the_sum_over_intervals() -> None:
    rng = np.random.default_rng(3)
    for loss in (Poisson(unit=0.125), Poisson(unit=0.02), Poisson(cuts=(0.25, 0.6))):
        pair = NewtonQuery(loss, 4)
        d = pair.n_weights
        for cap in (0.01, 0.3, 5.0):
            with case(loss, cap):
                rows = random_rows(rng, 200, 4) * np.where(rng.random((200, 1)) < 0.1, 0.0, 1.0)
                counts, exposures = rng.integers(9, size=200) / 8.0, rng.uniform(0.05, 1.0, 200)
                weights = rng.normal(size=d)
                (total,) = pair.sums(
                    make_rows(rows, counted(counts, exposures)), np.append(weights, cap)[None], bound=1.0
                )
                parts = [written_out(loss, *item, weights, cap) for item in zip(rows, counts, exposures, strict=True)]
                labels, asked = counted(counts, exposures), np.append(weights, cap)[None]
                single = (
                    make_rows(np.stack([a, 0.0 * a]), np.array([b, b])) for a, b in zip(rows, labels, strict=True)
                )
                alone = np.stack(
                    [pair.sums(rows_of_one, asked, bound=1.0)[0] for rows_of_one in single]
                )  # beside a silent row
                shorter = np.minimum(1.0, 0.3 / np.maximum(np.linalg.norm(alone, axis=1), 1e-300))
                assert (shorter < 1.0).any()
                short = pair.sums(make_rows(rows, labels), asked, bound=0.3)[0]
                np.testing.assert_allclose(short, shorter @ alone, atol=1e-6)
                off = np.where(np.eye(d) > 0.0, 1.0, 2.0**0.5)[np.triu_indices(d)]
                np.testing.assert_allclose(total[:d], sum(part[0] for part in parts), atol=1e-6)
                np.testing.assert_allclose(
                    total[d:], sum(part[1] for part in parts)[np.triu_indices(d)] * off, atol=1e-6
                )
                gradient, hessian, squares = pair.split(total, cap)
                most = max(cap, min(1.0, loss.unit + 3.0 * (loss.unit * cap) ** 0.5))
                np.testing.assert_allclose(gradient * 0.5**0.5 / most, total[:d])
                np.testing.assert_allclose(hessian * 0.5**0.5 / cap, sum(part[1] for part in parts), atol=1e-6)
                assert squares == 0.0


def test_sums_do_not_depend_on_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    rows, labels, weights = random_rows(rng, 40, 3), rng.choice([-1.0, 1.0], 40), rng.normal(size=3) * 4.0
    for module in (column_sums, score_histogram):
        monkeypatch.setattr(module, "PORTION", 12)
    cohort = make_rows(rows, labels)
    np.testing.assert_allclose(ColumnSums(3).sums(cohort, np.zeros((1, 0)), bound=1.0)[0], rows.sum(axis=0))
    found = ScoreHistogram(3).sums(cohort, weights[None], bound=1.0)[0]
    bins = [sum(score > edge for edge in score_histogram.EDGES) for score in rows @ weights]
    wanted = np.zeros((2, score_histogram.N_BINS))
    for label, place in zip(labels, bins, strict=True):
        wanted[int(label > 0.0), place] += 1.0
    np.testing.assert_array_equal(found, wanted)


def test_moments_of_counts_are_weighted_by_exposures() -> None:
    rng = np.random.default_rng(4)
    rows, counts, exposures = random_rows(rng, 50, 3) / 2.0, rng.integers(9, size=50) / 8.0, rng.uniform(0.1, 1.0, 50)
    for loss in (Poisson(), Poisson(cuts=(0.5,))):
        with case(loss):
            moments = Moments(loss, 3)
            total = moments.sums(make_rows(rows, counted(counts, exposures)), np.zeros((1, 0)), bound=2.0)[0]
            means, squares, by_label, label_squares = moments.split(total)
            np.testing.assert_allclose(means, exposures @ rows, rtol=1e-6)
            np.testing.assert_allclose(squares, exposures @ rows**2, rtol=1e-6)
            later = (exposures > 0.5).astype(int) if loss.cuts else np.zeros(50, int)
            np.testing.assert_allclose(
                by_label, rows.T @ (counts[:, None] * np.eye(loss.n_outputs)[later]), rtol=1e-6, atol=1e-12
            )
            assert label_squares == pytest.approx(counts @ counts)
            ends = counts[:, None] * np.eye(loss.n_outputs)[later]
            weighted = exposures[:, None] * np.hstack([rows, rows**2])
            of_labels = np.sqrt(3.0) * np.einsum("ni,nh->nih", rows, ends).reshape(50, -1)
            whole = np.hstack([weighted, of_labels, 0.5 * counts[:, None] ** 2])
            shorter = np.minimum(1.0, 0.4 / np.linalg.norm(whole, axis=1))
            assert 0 < np.count_nonzero(shorter < 1.0) < 50
            total = moments.sums(make_rows(rows, counted(counts, exposures)), np.zeros((1, 0)), bound=0.4)[0]
            np.testing.assert_allclose(total, shorter @ whole, rtol=1e-6, atol=1e-9)
