"""Simulated noise: reproducible per agent and round, independent, standard normal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numba
import numpy as np
import pytest
from cases import random_labels
from cohorts import cohort
from looping import case
from noise_queries import gradient_query
from scipy import stats
from scipy.sparse import csr_array

from dpadmm.accounting.events import Release, UnpricedRelease
from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.engine.noise import (
    CohortQuery,
    ExactNoise,
    LazyAnswers,
    Noise,
    SecureSumNoise,
    SimulatedNoise,
    fresh_seed,
    priced,
    release,
    spherical,
)
from dpadmm.errors import StudyError
from dpadmm.kernels.normals import standard_normals
from dpadmm.losses import Logistic, Loss, Softmax, Squared
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.coded import CodedRows
from dpadmm.queries import moments
from dpadmm.queries.gradient import Gradient
from dpadmm.queries.preconditioned_gradient import PreconditionedGradient
from dpadmm.queries.problem import make_rows
from dpadmm.trusted.discrete_gaussian import Draw

SHAPE = (5, 2)
SEVEN = [  # seed 7, round 3, in streams 0, 1 and 2
    [2.5965280661356283, -0.4126029635478872],
    [1.6580108423900688, 0.3439029585444993],
    [0.47452134106905397, 0.13383440919564332],
]


def clean(asked: CohortQuery) -> Floats:
    """The means without noise."""
    return asked.statistic.means(asked.rows, asked.parameters, asked.active)


def sums(asked: CohortQuery) -> Floats:
    return asked.statistic.sums(asked.rows, asked.parameters, asked.active, bound=1.0)


def wanted(active: Integers | None = None) -> CohortQuery:
    """Of agents with two, three and four rows, in round 4; all of them unless ``active`` says otherwise."""
    features = np.linspace(-0.5, 0.4, 18).reshape(9, 2)
    rows = make_rows(features, np.resize([1.0, -1.0], 9), offsets=np.array([0, 2, 5, 9]))
    asked = gradient_query(rows, Logistic(), np.ones((3, 2, 1)), np.ones(3), 4)
    return asked if active is None else replace(asked, active=active)


def rounds(seed: int, n_agents: int, which: list[int], shape: tuple[int, ...] = SHAPE) -> Floats:
    noise = SimulatedNoise(seed, n_agents, shape)
    return np.array([noise.draw(k).copy() for k in which])


def stream(seed: int, agent: int, count: int) -> Floats:
    """``count`` numbers of one agent, over rounds of 1000."""
    noise = SimulatedNoise(seed, agent + 1, (1000, 1))
    return np.concatenate([noise.draw(k)[agent, :, 0].copy() for k in range(1, count // 1000 + 1)])


def test_shape_and_type() -> None:
    drawn = SimulatedNoise(1, 3, SHAPE).draw(1)
    assert (drawn.shape, drawn.dtype) == ((3, *SHAPE), np.float64)


def test_agent_and_round_determine_the_numbers() -> None:
    which = list(range(1, 151))  # further than one buffer of rounds
    few, many = rounds(9, 2, which), rounds(9, 40, which)
    np.testing.assert_array_equal(few, many[:, :2])


def test_gaps_are_allowed_and_change_nothing() -> None:
    every = rounds(4, 3, list(range(1, 301)))
    which = [1, 2, 7, 64, 65, 200, 300]
    np.testing.assert_array_equal(rounds(4, 3, which), every[[k - 1 for k in which]])


@pytest.mark.usefixtures("all_threads")
def test_a_round_has_its_numbers_in_any_order_and_for_any_number_of_threads() -> None:
    every = rounds(4, 30, list(range(1, 21)))
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        np.testing.assert_array_equal(rounds(4, 30, list(range(20, 0, -1)))[::-1], every)
    finally:
        numba.set_num_threads(before)


def test_seeds_agents_and_rounds_all_differ() -> None:
    drawn = np.array([rounds(seed, 4, [1, 2, 3]) for seed in (0, 1, 2**40)])
    assert len(np.unique(drawn)) == drawn.size


def test_two_agents_streams_are_uncorrelated() -> None:
    count = 10**6
    limit = 5.0 / np.sqrt(count)
    one, two, far, other_seed = (
        stream(3, 0, count),
        stream(3, 1, count),
        stream(3, 99, count),
        stream(4, 0, count),
    )
    for a, b in ((one, two), (one, far), (two, far), (one, other_seed)):
        assert abs(np.corrcoef(a, b)[0, 1]) < limit
        assert abs(np.corrcoef(a[:-1], b[1:])[0, 1]) < limit
        assert abs(np.corrcoef(a**2, b**2)[0, 1]) < limit


def test_one_agents_numbers_are_uncorrelated_over_time() -> None:
    count = 10**6
    numbers = stream(3, 5, count)
    for lag in (1, 2, 1000):
        assert abs(np.corrcoef(numbers[:-lag], numbers[lag:])[0, 1]) < 5.0 / np.sqrt(count)


def test_numbers_are_standard_normal() -> None:
    numbers = stream(8, 1, 10**6)
    assert stats.kstest(numbers, "norm").pvalue > 1e-3
    assert abs(numbers.mean()) < 5e-3
    assert abs(numbers.std() - 1.0) < 5e-3
    across = rounds(8, 20_000, [1], (1, 1)).ravel()  # the first number of every agent
    assert stats.kstest(across, "norm").pvalue > 1e-3


def test_release_adds_scaled_noise_once() -> None:
    g, numbers = np.ones((2, 3, 1)), np.arange(6.0).reshape(2, 3, 1)
    std = np.array([0.5, 0.0])[:, None, None]
    out = release(g, noise_std=std, noise=numbers)
    np.testing.assert_array_equal(out[0], 1.0 + 0.5 * numbers[0])
    np.testing.assert_array_equal(out[1], g[1])
    assert (g == 1.0).all()
    assert numbers.ravel().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_seed_means_the_same_numbers_in_every_version() -> None:
    """Otherwise a published study could not be repeated. Streams are 2⁴⁰ rounds apart."""
    noise = SimulatedNoise(7, 1, (2, 1))
    for stream, numbers in enumerate(SEVEN):
        np.testing.assert_allclose(noise.draw(3, stream).ravel(), numbers, rtol=1e-12)


@pytest.mark.parametrize("compute", [clean, sums])
def test_nothing_is_computed_for_absent_agents(
    compute: Callable[[CohortQuery], Floats],
) -> None:
    everyone, some = compute(wanted()), compute(wanted(np.array([0, 2])))
    np.testing.assert_array_equal(some[[0, 2]], everyone[[0, 2]])
    assert np.any(everyone[1])
    assert not np.any(some[1])


def test_simulated_mean_gradients_have_noise_of_z_times_their_sensitivity() -> None:
    noise, asked = SimulatedNoise(1, 3, (2, 1)), replace(wanted(), noise_multiplier=np.array([0.5, 0.0, 3.0]))
    std = np.array([0.5 * 2.0 / 2.0, 0.0, 3.0 * 2.0 / 4.0])[:, None, None]  # c1 is 1
    said = noise.answer(asked)
    np.testing.assert_allclose(said, clean(asked) + std * noise.draw(4), rtol=1e-12)
    calm = replace(asked, noise_multiplier=np.zeros(3))
    np.testing.assert_array_equal(noise.answer(calm), clean(calm))


def test_exact_noise_is_drawn_for_participants_from_the_operating_system() -> None:
    asked: list[tuple[int, int]] = []

    def source(agent: int, round: int) -> Draw:
        asked.append((agent, round))
        return lambda scale, count: np.zeros(count, np.int64)

    everyone, some = wanted(), wanted(np.array([2, 0]))
    calm = ExactNoise(source).answer(everyone)
    np.testing.assert_allclose(calm, clean(everyone), atol=1e-5)
    np.testing.assert_array_equal(ExactNoise(source).answer(some)[[0, 2]], calm[[0, 2]])
    assert asked == [(0, 4), (1, 4), (2, 4), (2, 4), (0, 4)]
    drawn = [ExactNoise().answer(everyone) for _ in range(2)]
    assert not np.any(drawn[0] == drawn[1])
    with pytest.raises(StudyError, match="sums over all rows"):
        ExactNoise().draw(1)


def test_fresh_seeds_differ() -> None:
    seeds = {fresh_seed() for _ in range(50)}
    assert len(seeds) == 50
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_streams_are_independent_and_the_first_is_the_default() -> None:
    noise = SimulatedNoise(5, 2, (100_000, 1))
    np.testing.assert_array_equal(noise.draw(3), noise.draw(3, stream=0))
    np.testing.assert_array_equal(noise.draw(3)[:, :, 0], standard_normals(5, 3, 2, 100_000))
    drawn = np.array([noise.draw(k, stream)[i, :, 0] for k in (1, 2) for stream in range(4) for i in (0, 1)])
    assert len(np.unique(drawn)) == drawn.size
    for numbers in (drawn, drawn**2):
        apart = np.corrcoef(numbers) - np.eye(len(numbers))
        assert np.abs(apart).max() < 5.0 / np.sqrt(100_000)
    # across streams, the first number of each
    first = np.array([SimulatedNoise(5, 1, (1, 1)).draw(1, stream)[0, 0, 0] for stream in range(5000)])
    assert stats.kstest(first, "norm").pvalue > 1e-3


def test_spherical_noise_has_a_gamma_length_and_a_uniform_direction() -> None:
    n, shape = 20_000, (3, 2)
    noise = SimulatedNoise(11, n, shape)
    drawn = spherical(noise, 4)
    assert drawn.shape == (n, *shape)
    flat = drawn.reshape(n, -1)
    length = np.linalg.norm(flat, axis=1)
    assert stats.kstest(length, stats.gamma(6).cdf).pvalue > 1e-3
    direction = flat / length[:, None]
    for j in range(6):  # a coordinate of a uniform direction in 6 dimensions: (1 + u)/2 ~ Beta(5/2, 5/2)
        assert stats.kstest((1.0 + direction[:, j]) / 2.0, stats.beta(2.5, 2.5).cdf).pvalue > 1e-3
    moments = direction.T @ direction / n
    np.testing.assert_allclose(moments, np.eye(6) / 6.0, atol=5.0 * 0.2 / np.sqrt(n))
    assert abs(np.corrcoef(length, direction[:, 0])[0, 1]) < 5.0 / np.sqrt(n)
    np.testing.assert_array_equal(drawn, spherical(noise, 4))


def test_spherical_noise_of_other_rounds_and_streams_differs() -> None:
    noise = SimulatedNoise(11, 2, (3, 1))
    drawn = [spherical(noise, 1), spherical(noise, 2), spherical(noise, 1, first_stream=4)]
    assert len(np.unique(drawn)) == 18


def test_spherical_noise_uses_its_own_streams() -> None:
    """Stream 0 is the mean gradients'; a second spherical draw of a round starts at 4."""
    asked: list[int] = []

    class Heard(SimulatedNoise):
        def draw(self, round: int, stream: int = 0) -> Floats:
            asked.append(stream)
            return super().draw(round, stream)

    spherical(Heard(1, 2, (3, 1)), 1)
    spherical(Heard(1, 2, (3, 1)), 1, first_stream=4)
    assert asked == [1, 2, 3, 4, 5, 6]


def test_spherical_noise_in_one_dimension_is_laplace() -> None:
    drawn = spherical(SimulatedNoise(2, 20_000, (1, 1)), 1).ravel()
    assert stats.kstest(drawn, "laplace").pvalue > 1e-3


class Moments:
    """A statistic with another shape than the gradient. It records the agents it was computed for."""

    name, row_norm, n_features, parameter_shape, shape = "moments", 2.0, 2, (), (3,)

    def __init__(self) -> None:
        self.active: list[Integers | None] = []

    def accepts(self, parameters: Floats) -> bool:
        return True

    def means(self, rows: Any, parameters: Floats, active: Integers | None = None) -> Floats:
        self.active.append(active)
        return np.arange(9.0).reshape(3, 3) / 10.0

    def sums(self, rows: Any, parameters: Floats, active: Integers | None = None, *, bound: float) -> Floats:
        return self.means(rows, parameters, active) * rows.n_rows[:, None]


def test_answers_have_the_shape_of_their_statistic_and_noise_of_its_own_bound() -> None:
    moments, noise = Moments(), SimulatedNoise(1, 3, (2, 1))
    asked = CohortQuery(wanted().rows, moments, np.zeros((3, 0)), np.array([0.5, 1.0, 3.0]), 4)
    assert asked.active is None
    std = (asked.noise_multiplier * 2.0 * 2.0 / np.array([2, 3, 4]))[:, None]
    expected = np.arange(9.0).reshape(3, 3) / 10.0 + std * noise.draw(4, shape=(3,))
    np.testing.assert_allclose(noise.answer(asked), expected, rtol=1e-12)
    assert noise.draw(4, shape=(3,)).shape == (3, 3)


@pytest.mark.parametrize("noise", [SimulatedNoise(1, 3, (2, 1)), ExactNoise()])
def test_answers_are_computed_for_participants_only(noise: Any) -> None:
    moments, some = Moments(), np.array([0, 2])
    noise.answer(CohortQuery(wanted().rows, moments, np.zeros((3, 0)), np.ones(3), 4, some))
    assert moments.active == [some]


def test_a_plan_has_the_events_of_the_noise_source() -> None:
    plan = ReleasePlan.of([Release(5.0), None, Release(2.0)])

    class Halved(SimulatedNoise):
        def price(self, release: Release) -> Release | None:
            return Release(release.noise_multiplier / 2.0) if release.noise_multiplier > 3.0 else None

    for noise in (SimulatedNoise(1, 3, (2, 1)), ExactNoise()):
        assert priced(plan, noise) == plan
    unpriced = UnpricedRelease("Halved")
    assert priced(plan, Halved(1, 3, (2, 1))) == ReleasePlan.of([Release(2.5), None, unpriced])

    class Silent(SimulatedNoise):
        price = Noise.price

    silent = UnpricedRelease("Silent")
    assert priced(plan, Silent(1, 3, (2, 1))) == ReleasePlan.of([silent, None, silent])


def test_exact_noise_refuses_the_parameters_that_agents_refuse_before_rows_are_read() -> None:
    """As a guard, and only for participating agents."""
    loss = Logistic()
    rows, statistic = cohort(loss, sizes=(20, 30)), PreconditionedGradient(loss, 5)
    asked = np.tile(np.concatenate([np.ones(5), np.zeros(10)]), (2, 1))
    asked[1, -1] = 1.1e9
    unread = replace(rows, features=None)
    for active in (None, np.array([1])):
        with pytest.raises(
            StudyError, match="round 3: agents refuse the parameters of the query preconditioned_gradient"
        ):
            ExactNoise().answer(CohortQuery(unread, statistic, asked, np.ones(2), 3, active))
    told = ExactNoise().answer(CohortQuery(rows, statistic, asked, np.ones(2), 3, np.array([0])))
    assert told[0].any()
    assert not told[1].any()


def test_the_weighted_mean_of_lazy_answers_is_that_of_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to rounding, for any participation and storage. No single answer is stored."""
    rng = np.random.default_rng(4)
    z = np.resize([0.0, 2.0, 5.0], 150)
    sizes = rng.integers(2, 6, 150)  # more agents than are added up in one go
    coded = CodedRows(rng.random((sizes.sum(), 3)) / 3, rng.integers(2, 5, (sizes.sum(), 1), np.uint8), np.arange(2), 5)
    dense, offsets = coded.toarray(), np.concatenate([[0], np.cumsum(sizes)])
    shape = [rng.uniform(0.5, 2.0, 5), rng.standard_normal(5)]
    monkeypatch.setattr(moments, "PORTION", 5 * 40)  # rows are looked at in several portions
    single = dense.astype(np.float32)
    for loss, features in (
        (Logistic(), csr_array(dense)),
        (Softmax(3), coded),
        (Squared(), single),
        (Logistic(), dense),
    ):
        p, labels = loss.n_outputs, random_labels(loss, rng, sizes.sum())
        rows = make_rows(features, labels, offsets=offsets, order=rng.permutation(sizes.sum()))
        noise, point = SimulatedNoise(3, len(sizes), (5, p)), rng.standard_normal((5, p))
        questions = (
            (Gradient(loss, 5), point),
            (PreconditionedGradient(loss, 5), np.concatenate([*shape, point.ravel()])),
            (moments.Moments(loss, 5), np.zeros(0)),
            (Unstreamed(loss, 5), np.zeros(0)),
        )
        for (statistic, parameters), active in product(questions, (None, np.array([1, 70, 149]))):
            with case(loss, type(features), statistic, active):
                asked = np.broadcast_to(parameters, (len(sizes), *parameters.shape))
                question = CohortQuery(rows, statistic, asked, z, 4, active)
                assert question.at_one_point
                agents = np.arange(len(sizes)) if active is None else active
                for weights in (np.full(len(agents), 0.5), sizes[agents] / 9.0):
                    expected = np.tensordot(weights, noise.answer(question)[agents], 1)
                    found = LazyAnswers(question, noise).mean(weights)
                    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)
                np.testing.assert_array_equal(LazyAnswers(question, noise).each(), noise.answer(question))


class Unstreamed:
    """A statistic without a weighted mean of its own."""

    def __init__(self, loss: Loss, n_features: int) -> None:
        self._moments = moments.Moments(loss, n_features)
        self.shape, self.row_norm, self.means = self._moments.shape, self._moments.row_norm, self._moments.means


def test_the_sum_of_shares_is_lazy_only_at_one_common_point(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, noise = wanted(), SimulatedNoise(3, 3, (2, 1))
    pooled = SecureSumNoise(noise, 2, asked.rows.n_rows, 4)
    apart = replace(asked, parameters=np.arange(6.0).reshape(3, 2, 1))
    alike = replace(asked, parameters=np.broadcast_to(asked.parameters[0], asked.parameters.shape))
    assert [each.at_one_point for each in (asked, apart, alike)] == [False, False, True]
    shares = replace(apart, noise_multiplier=np.full(3, np.sqrt(0.5)))
    expected = np.tensordot(np.array([2, 3, 4]) / 9, noise.answer(shares), 1)
    np.testing.assert_allclose(pooled.answer(apart), expected[None], rtol=1e-12)
    kept = pooled.answer(asked)
    np.testing.assert_array_equal(SecureSumNoise(Unweighted(3, 3, (2, 1)), 2, asked.rows.n_rows, 4).answer(alike), kept)
    calm = np.tensordot(np.ones(3), clean(alike), 1)
    monkeypatch.delattr(SimulatedNoise, "answer")  # nobody's answer is made
    monkeypatch.delattr(Gradient, "means")
    quiet = replace(alike, noise_multiplier=np.zeros(3))
    np.testing.assert_allclose(noise.weighted_mean(quiet, np.ones(3)), calm, rtol=1e-12)
    np.testing.assert_allclose(pooled.answer(alike), kept, rtol=1e-12)


class Unweighted(SimulatedNoise):
    """A custom noise source with single answers only."""

    def weighted_mean(self, asked: CohortQuery, weights: Floats) -> Floats:
        raise NotImplementedError
