"""Totals of subsampled and pure releases compared with independent calculations."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import common, privacy_loss_distribution
from looping import case
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import norm

from dpadmm.accounting import exact_epsilon
from dpadmm.accounting.composition import pure_composition, sampled_epsilon, total_epsilon
from dpadmm.accounting.events import PureRelease, SampledRelease

SAMPLED = [(5.0, 0.1, 100, 1e-5), (1.0, 0.01, 300, 1e-5), (0.6, 0.3, 3, 1e-4), (40.0, 0.5, 100, 1e-3)]


def pair(x, z, q):
    """Return the densities of the worst pair: a sampled row adds +½ or −½ of the sensitivity."""
    rest = (1.0 - q) * norm.pdf(x, 0.0, z)
    return rest + q * norm.pdf(x, 0.5, z), rest + q * norm.pdf(x, -0.5, z)


def fft_epsilon(z, q, count, delta):
    """Return ε of ``count`` rounds: the privacy loss on a fine grid, convolved by one FFT."""
    x = np.linspace(-12.0 * z - 0.5, 12.0 * z + 0.5, 400_001)
    edges = (x[1:] + x[:-1]) / 2.0
    cdf = (1.0 - q) * ndtr(edges / z) + q * ndtr((edges - 0.5) / z)
    mass = np.diff(cdf, prepend=0.0, append=1.0)
    upper, lower = pair(x, z, q)
    loss = np.log(upper / lower)
    size = 2**18
    spread = math.sqrt(count * np.sum(mass * loss**2))
    step = max(20.0 * spread, 4.0 * np.abs(loss).max()) / size
    bins = np.bincount(np.rint(loss / step).astype(int) % size, weights=mass, minlength=size)
    total = np.fft.irfft(np.fft.rfft(bins) ** count, size)
    values = np.fft.fftfreq(size, 1.0 / size) * step

    def log_excess(epsilon):
        return float(np.sum(total * np.maximum(0.0, -np.expm1(np.minimum(epsilon - values, 0.0)))))

    low, high = 0.0, float(values.max())
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if log_excess(middle) > delta else (low, middle)
    return high


def test_sampled_rounds_by_another_fft():
    for z, q, count, delta in SAMPLED:
        with case(z, q, count, delta):
            assert total_epsilon(SampledRelease(z, q), count, delta) == pytest.approx(
                fft_epsilon(z, q, count, delta), rel=1e-3
            )


@pytest.mark.parametrize(("z", "q"), [(5.0, 0.1), (1.0, 0.01), (0.5, 0.3), (20.0, 0.9)])
def test_one_sampled_round_by_integrating_the_densities(z, q):
    """The reported ε has this δ by the definition, ``∫ max(0, P − e^ε Q)``."""
    delta = 1e-4
    epsilon = sampled_epsilon(SampledRelease(z, q), 1, delta)

    def gap(x):
        upper, lower = pair(x, z, q)
        return max(0.0, float(upper - math.exp(epsilon) * lower))

    found = sum(quad(gap, a, a + z / 2.0, epsabs=1e-15)[0] for a in np.arange(-10.0, 11.0, 0.5) * z)
    assert delta * 0.98 < found <= delta * (1 + 1e-6)


def test_sampling_rate_1_is_the_plain_gaussian():
    """In dp_accounting, a replaced row changes the sum by twice its sensitivity, which is therefore ½ here."""
    for z, count, delta in [(46.0, 100, 1e-3), (1.0, 5, 1e-5), (1000.0, 100, 1e-6)]:
        with case(z, count, delta):
            exact = exact_epsilon(math.sqrt(count) / z, delta)
            assert sampled_epsilon(SampledRelease(z, 1.0), count, delta) == pytest.approx(exact, rel=1e-3)


def test_replacing_a_row_costs_at_most_removing_and_adding_one():
    """(ε, δ) for adding or removing a row is (2ε, (1 + e^ε)δ) for replacing one."""
    for z, q, count, delta in SAMPLED:
        with case(z, q, count, delta):
            one = privacy_loss_distribution.from_gaussian_mechanism(
                z,
                sensitivity=0.5,
                sampling_prob=q,
                value_discretization_interval=1e-2 * q / z,
                neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            )
            together = one.self_compose(count)
            grid = np.geomspace(1e-4, 30.0, 800)
            leaks = (1.0 + np.exp(grid)) * np.array(together.get_delta_for_epsilon(grid))
            epsilon = grid[leaks <= delta][0]
            total = total_epsilon(SampledRelease(z, q), count, delta)
            assert total <= 2.0 * epsilon
            assert total > together.get_epsilon_for_delta(delta)  # replacing is worse than removing


def test_opposite_rows_are_the_worst_pair():
    """In the plane, for any two gradients of norm ≤ ½ and any ε of either sign."""
    rng = np.random.default_rng(3)
    axis = np.linspace(-9.0, 9.0, 301)
    x = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
    cell = (axis[1] - axis[0]) ** 2

    def mixture(center, q, z):
        def bump(at):
            return np.exp(-((x - at) ** 2).sum(-1) / (2.0 * z * z)) / (2.0 * math.pi * z * z)

        return (1.0 - q) * bump(np.zeros(2)) + q * bump(center)

    for _ in range(40):
        q, z, epsilon = rng.uniform(0.05, 0.95), rng.uniform(0.3, 1.2), rng.normal()
        g, h = rng.normal(size=(2, 2))
        g, h = (v / np.linalg.norm(v) * 0.5 * rng.uniform(0.3, 1.0) for v in (g, h))
        worst = np.array([0.5, 0.0])

        def leak(one, two, q=q, z=z, epsilon=epsilon):
            gap = mixture(one, q, z) - math.exp(epsilon) * mixture(two, q, z)
            return float(np.maximum(gap, 0.0).sum() * cell)

        assert leak(g, h) <= leak(worst, -worst) + 1e-5


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
@pytest.mark.parametrize(("epsilon", "count"), [(0.05, 100), (1.0, 7), (2.0, 40), (1e-3, 1000), (0.3, 2)])
def test_pure_rounds_in_50_digits(epsilon, count, delta):
    """δ(ε') by its sum: an upper bound, and tight."""
    total = total_epsilon(PureRelease(epsilon), count, delta)

    def leak(at):
        with mpmath.workdps(50):
            e, odds = mpmath.mpf(epsilon), mpmath.exp(mpmath.mpf(epsilon))
            terms = (
                mpmath.binomial(count, k) * max(0, odds**k - mpmath.exp(mpmath.mpf(at)) * odds ** (count - k))
                for k in range(count + 1)
                if (2 * k - count) * e > 0
            )
            return sum(terms) / (1 + odds) ** count

    assert leak(total) <= delta
    assert total == 0.0 or leak(total * (1 - 1e-6)) > delta


def test_pure_rounds_by_dp_accounting():
    for epsilon, count in [(0.05, 100), (0.5, 10), (0.01, 500)]:
        with case(epsilon, count):
            one = privacy_loss_distribution.from_privacy_parameters(
                common.DifferentialPrivacyParameters(epsilon, 0.0), value_discretization_interval=epsilon
            )
            expected = one.self_compose(count).get_epsilon_for_delta(1e-5)
            assert pure_composition(epsilon, count, 1e-5) == pytest.approx(expected, rel=1e-6)
