"""Simulated noise: reproducible per agent and round, independent between agents, and standard normal."""

from __future__ import annotations

import numba
import numpy as np
from scipy import stats

from dpadmm.arrays import Floats
from dpadmm.normals import standard_normals
from dpadmm.privacy.noise import SimulatedNoise, fresh_seed, release, spherical

SHAPE = (5, 2)


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


def test_agent_and_round_fix_the_numbers_whoever_else_takes_part() -> None:
    which = list(range(1, 151))  # further than one buffer of rounds
    few, many = rounds(9, 2, which), rounds(9, 40, which)
    np.testing.assert_array_equal(few, many[:, :2])


def test_gaps_are_allowed_and_change_nothing() -> None:
    every = rounds(4, 3, list(range(1, 301)))
    which = [1, 2, 7, 64, 65, 200, 300]
    np.testing.assert_array_equal(rounds(4, 3, which), every[[k - 1 for k in which]])


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


def test_fresh_seeds_differ() -> None:
    seeds = {fresh_seed() for _ in range(50)}
    assert len(seeds) == 50
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_streams_are_independent_and_the_first_is_as_ever() -> None:
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


def test_spherical_noise_in_one_dimension_is_laplace() -> None:
    drawn = spherical(SimulatedNoise(2, 20_000, (1, 1)), 1).ravel()
    assert stats.kstest(drawn, "laplace").pvalue > 1e-3
