"""Distribution, sensitivity and input checks of exact noise."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from cases import prove
from hypothesis import given
from hypothesis import strategies as st
from looping import case
from scipy import stats

from dpadmm import kernels
from dpadmm.accounting import exact_delta
from dpadmm.errors import DataError, StudyError
from dpadmm.losses import Logistic
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.queries.problem import make_rows
from dpadmm.studies.roster import MAX_SITES
from dpadmm.trusted.discrete_gaussian import (
    MARGIN,
    MAX_SIGMAS,
    SHARE_MARGIN,
    Lattice,
    as_mean,
    discrete_gaussian,
    quantise,
    release_sum,
    with_noise,
)

ADULT = Lattice(1.0, 104, 400)
SCALES = [1, 7, 1000, 637_535_235, 2**56 - 1]
MILLIONS = 10 if os.environ.get("DPADMM_TORTURE") else 1
"""Draws of every scale; more in ``make torture``."""


@pytest.fixture
def fixed_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return the same bytes in every run, so that a statistical test never fails by chance."""
    monkeypatch.setattr(os, "urandom", np.random.default_rng(5).bytes)


def pmf(scale: int) -> tuple[Integers, Floats]:
    """Return all values of non-negligible probability, with their exact probabilities."""
    values = np.arange(-12 * scale, 12 * scale + 1)
    weights = np.exp(-(values.astype(float) ** 2) / (2.0 * scale**2))
    return values, weights / weights.sum()


def chi_square(drawn: Integers, scale: int) -> float:
    """Return the p-value of a chi-square test with about 60 bins of at least a hundred draws each."""
    edges = np.unique(np.rint(np.linspace(-3.2, 3.2, 60) * scale)) - 0.5
    if scale <= 1000:
        values, probabilities = pmf(scale)
        bins = np.searchsorted(edges, values)
        expected = np.bincount(bins, weights=probabilities, minlength=len(edges) + 1)
    else:  # the sum over a bin is the integral to 1e-12
        expected = np.diff(stats.norm.cdf(edges / scale), prepend=0.0, append=1.0)
    observed = np.bincount(np.searchsorted(edges, drawn), minlength=len(edges) + 1)
    assert (expected * drawn.size > 100).all()
    return float(stats.chisquare(observed, expected * drawn.size).pvalue)


# --- the sampler -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fixed_entropy")
def test_draws_follow_the_exact_probabilities() -> None:
    for scale in SCALES:
        with case(scale):
            drawn = np.concatenate([discrete_gaussian(scale, 10**6) for _ in range(MILLIONS)])
            assert chi_square(drawn, scale) > 1e-3
            assert abs(drawn.mean() / scale) < 4.0 / math.sqrt(drawn.size)
            if scale > 1000:  # and no pattern in the last bits
                assert stats.chisquare(np.bincount(drawn % 64, minlength=64)).pvalue > 1e-3


def test_chi_square_test_rejects_a_wrong_scale() -> None:
    wrong = np.rint(np.random.default_rng(1).normal(0.0, 7 * 1.01, 10**6)).astype(np.int64)
    assert chi_square(wrong, 7) < 1e-4


@pytest.mark.parametrize("scale", [2, 7])
def test_draws_have_the_same_distribution_as_opendp(scale: int) -> None:
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    space = vector_domain(atom_domain(T="i64")), l2_distance(T="f64")
    count = 50_000
    samples = np.array([make_gaussian(*space, scale=float(scale))([0] * count), discrete_gaussian(scale, count)])
    limit = 3 * scale
    clamped = np.clip(samples, -limit, limit) + limit
    table = np.array([np.bincount(sample, minlength=2 * limit + 1) for sample in clamped])
    assert stats.chi2_contingency(table).pvalue > 1e-6


@pytest.mark.usefixtures("fixed_entropy")
def test_mean_variance_and_independence_of_coordinates() -> None:
    scale, rounds, weights = 10**6, 10_000, 60
    drawn = discrete_gaussian(scale, rounds * weights).reshape(rounds, weights) / scale
    assert abs(drawn.mean()) < 4.0 / math.sqrt(drawn.size)
    assert abs(drawn.var() - 1.0) < 4.0 * math.sqrt(2.0 / drawn.size)
    for numbers in (drawn, np.abs(drawn)):  # sizes too: accepted attempts must not be sorted
        correlations = np.corrcoef(numbers.T)[np.triu_indices(weights, 1)]
        assert np.abs(correlations).max() < 5.0 / math.sqrt(rounds)
        flat = numbers.ravel()
        assert abs(np.corrcoef(flat[:-1], flat[1:])[0, 1]) < 4.0 / math.sqrt(flat.size)


@pytest.mark.usefixtures("fixed_entropy")
def test_position_in_a_draw_does_not_change_the_distribution() -> None:
    drawn = np.array([discrete_gaussian(1000, 5) for _ in range(800)]) / 1000
    assert np.abs(drawn.var(axis=0) - 1.0).max() < 5.0 * math.sqrt(2.0 / len(drawn))


def test_draw_returns_the_requested_number() -> None:
    for count, scale in product([0, 1, 104], [1, 3, 2**56 - 1]):
        with case(count, scale):
            drawn = discrete_gaussian(scale, count)
            assert (drawn.shape, drawn.dtype) == ((count,), np.int64)


def test_scales_out_of_range_are_refused() -> None:
    for scale in [0, -1, 2**56]:
        with case(scale), pytest.raises(StudyError, match="scale"):
            discrete_gaussian(scale, 1)


def test_max_sigmas_has_negligible_probability_and_fits_62_bits_at_the_largest_scale() -> None:
    assert -(MAX_SIGMAS**2) / 2 / math.log(10) < -880
    assert MAX_SIGMAS * (2**56 - 1) < 2**62


# --- where its randomness comes from -----------------------------------------------------------------------


def in_child(work: Callable[[], Integers]) -> Integers:
    """Run a function in a forked child and return its result."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, work().tobytes())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    return np.frombuffer(answer, np.int64)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_processes_draw_different_noise() -> None:
    def release() -> Integers:
        return release_sum(np.zeros(104), ADULT, 1e5)  # wide enough that no two numbers are equal by chance

    release()  # any state between releases exists before the fork
    everyone = [in_child(release) for _ in range(4)] + [release() for _ in range(2)]
    assert all(len(upload) == 104 for upload in everyone)
    assert all(not np.intersect1d(a, b).size for i, a in enumerate(everyone) for b in everyone[:i])


def test_noise_depends_on_fresh_entropy_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same bytes from the operating system, a release is the same: no state is kept."""

    def release(seed: int) -> Integers:
        monkeypatch.setattr(os, "urandom", np.random.default_rng(seed).bytes)
        return release_sum(np.zeros(104), ADULT, 1.0)

    first = release(1)
    assert not np.array_equal(release(2), first)
    np.testing.assert_array_equal(release(1), first)


def test_no_release_without_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    def dry(_: int) -> bytes:
        raise OSError("no entropy")

    monkeypatch.setattr(os, "urandom", dry)
    with pytest.raises(OSError, match="no entropy"):
        release_sum(np.zeros(104), ADULT, 1.0)


# --- the grid ----------------------------------------------------------------------------------------------

grids = st.builds(
    Lattice,
    st.floats(1e-30, 1e30),
    st.integers(1, 10**8),
    st.integers(1, 10**8),
)


@prove
@given(grids, st.floats(0.1, 1e4))
def test_step_and_scale_follow_the_formulas(grid: Lattice, z: float) -> None:
    c1, step = Fraction(grid.row_norm), Fraction(grid.step)
    rounding_squared = grid.size * step**2
    assert math.frexp(grid.step)[0] == 0.5
    wanted = (2 * c1 / 10**6) ** 2
    tiny = 1 + Fraction(1, 10**12)
    assert rounding_squared <= wanted * tiny
    assert 4 * rounding_squared * tiny >= wanted
    summed = 2 * c1 * (1 + Fraction(grid.n_rows * (grid.n_rows + 8), 2**53))
    try:
        scale = grid.noise_scale(z)
    except StudyError:
        assert grid.n_rows * c1 / step + MAX_SIGMAS * z * 3 * summed / step >= 2**61
        return
    needed = Fraction(z) * (summed / step + Fraction(math.sqrt(grid.size)))
    assert Fraction(scale) >= needed * (1 + Fraction(MARGIN) / 2)
    assert Fraction(scale) <= needed * (1 + 2 * Fraction(MARGIN)) + 1
    assert scale >= 10**5
    assert grid.max_sum + MAX_SIGMAS * scale < 2**62


def test_grid_matches_exact_arithmetic() -> None:
    """If √(dp) is an integer, all bounds of docs/explanation/proofs.md can be computed in fractions."""
    for c1, (root, n_rows) in product([1.0, 0.25], [(1, 1), (3, 400), (10, 2**12), (1000, 10**6), (10**4, 10**8)]):
        with case(c1, root, n_rows):
            grid, rows, unit = Lattice(c1, root**2, n_rows), 2 * Fraction(c1), Fraction(1, 2**53)
            millionth = Fraction(1, 10**6)
            step = max(g for g in (Fraction(1, 2**i) for i in range(60)) if root * g <= millionth * rows)
            sensitivity = rows * (1 + n_rows * (n_rows + 8) * unit) + root * step
            assert Fraction(grid.row_bound) == Fraction(c1) * (1 - Fraction(1, 2**40) - 8 * root**2 * unit)
            assert Fraction(grid.step) == step
            assert abs(Fraction(grid.sensitivity) - sensitivity) <= 4 * unit * sensitivity
            if n_rows <= 10**6:  # below 2⁵³, so also exact in floats
                assert grid.max_sum == math.ceil(n_rows * Fraction(c1) / step * (1 + millionth)) + 1
            for z in (0.5, 3.0):
                assert grid.noise_scale(z) == math.ceil(Fraction(z) * sensitivity / step * (1 + millionth))
                for several in (2, 30):  # shares have twice the margin
                    share = Fraction(z) * sensitivity / step * (1 + 2 * millionth) / several
                    assert grid.noise_scale(z, several**2) == math.ceil(share)


def test_minimum_scale_of_a_share_is_1000_steps() -> None:
    grid = Lattice(1.0, 1, 1)
    most = (0.1 * grid.sensitivity / grid.step * (1.0 + 2e-6) / 999.0) ** 2
    assert grid.noise_scale(0.1, math.floor(most)) == 1000
    with pytest.raises(StudyError, match=f"^{math.ceil(most)} shares of the noise are too small; use fewer"):
        grid.noise_scale(0.1, math.ceil(most))


def test_number_of_shares_must_be_an_integer() -> None:
    for shares in (0, -1, 1.5):
        with case(shares), pytest.raises(StudyError, match=r"^shares must be a whole number of at least 1, not "):
            Lattice(1.0, 1, 1).noise_scale(1.0, shares)  # type: ignore[arg-type]


def test_grids_at_the_limits_are_accepted() -> None:
    for (n_weights, n_rows), lipschitz in product([(1, 10**8), (10**8, 1)], [1e-30, 1e30]):
        with case(n_weights, n_rows, lipschitz):
            assert Lattice(lipschitz, n_weights, n_rows).noise_scale(0.1) >= 10**5


def test_error_names_the_grid_parameter_and_its_value() -> None:
    for lipschitz, n_weights, n_rows, refusal in [
        (math.nextafter(1e-30, 0.0), 1, 1, "row_norm must be between 1e-30 and 1e30, not 9.99"),
        (math.nextafter(1e30, math.inf), 1, 1, "row_norm must be between 1e-30 and 1e30, not 1.0"),
        (1.0, 0, 1, "size must be a whole number of at least 1, not 0"),
        (1.0, 1, 0, "n_rows must be a whole number of at least 1, not 0"),
        (1.0, 1.5, 1, "size must be a whole number of at least 1, not 1.5"),
        (1.0, 10**8 + 1, 1, "size must be at most 100 million, not 100000001"),
        (1.0, 1, 10**8 + 1, "n_rows must be at most 100 million, not 100000001"),
    ]:
        with (
            case(lipschitz, n_weights, n_rows, refusal),
            pytest.raises(StudyError, match=f"^{re.escape(refusal)}"),
        ):
            Lattice(lipschitz, n_weights, n_rows)
    for n_parts, refusal in [(0, "a whole number of at least 1, not 0"), (10**8 + 1, "at most 100 million, not 1000")]:
        with case(n_parts), pytest.raises(StudyError, match=f"^n_parts must be {refusal}"):
            Lattice(1.0, 1, 1, n_parts)


def test_invalid_grids_are_refused() -> None:
    for lipschitz, n_weights, n_rows in [
        (0.0, 1, 1),
        (math.nan, 1, 1),
        (math.inf, 1, 1),
        (1e-31, 1, 1),
        (1.0, 0, 1),
        (1.0, 1, 0),
        (1.0, 2, 2 * 10**8),
    ]:
        with case(lipschitz, n_weights, n_rows), pytest.raises(StudyError):
            Lattice(lipschitz, n_weights, n_rows)


def test_noise_multipliers_out_of_range_are_refused() -> None:
    for z in [
        0.0,
        0.05,
        math.nextafter(0.1, 0.0),
        -1.0,
        math.nan,
        math.inf,
        math.nextafter(1e9, math.inf),
        1e10,
    ]:
        with (
            case(z),
            pytest.raises(StudyError, match=r"^noise_multiplier must be between 0\.1 and 1e9, not "),
        ):
            Lattice(1.0, 1, 1).noise_scale(z)


def test_noise_multipliers_at_the_limits_are_accepted() -> None:
    grid = Lattice(1.0, 1, 1)
    for z in (0.1, 1e9):
        assert z <= grid.noise_scale(z) * grid.step / grid.sensitivity <= z * (1.0 + 1e-5)


def test_overflow_check_uses_public_numbers_only() -> None:
    with pytest.raises(StudyError, match="63 bits"):
        Lattice(1.0, 10**8, 400).noise_scale(1e7)


def test_sum_plus_noise_must_fit_62_bits() -> None:
    """The sum alone may use a sixth of the range."""
    grid = Lattice(1.0, 10**8, 10**8)
    assert grid.max_sum > 2**62 // 6
    fits = (2**62 - grid.max_sum) / MAX_SIGMAS / (1.0 + 1e-6) * grid.step / grid.sensitivity
    assert grid.max_sum + MAX_SIGMAS * grid.noise_scale(fits * (1.0 - 1e-9)) < 2**62
    with pytest.raises(StudyError, match="63 bits"):
        grid.noise_scale(fits * (1.0 + 1e-9))


def test_entries_above_max_sum_are_refused() -> None:
    for sign in (1, -1):
        total = np.zeros(104)
        total[50] = sign * ADULT.max_sum * ADULT.step
        assert quantise(total, ADULT)[50] == sign * ADULT.max_sum
        total[50] += sign * ADULT.step
        with pytest.raises(DataError, match="nothing is released"):
            quantise(total, ADULT)


def test_largest_sum_plus_largest_noise_fits() -> None:
    grid = Lattice(1.0, 4, 10**8)
    z = 1e9 / 2
    while True:
        try:
            scale = grid.noise_scale(z)
            break
        except StudyError:
            z /= 2
    most = np.full(4, float(grid.n_rows))
    upload = release_sum(most, grid, z, draw=lambda scale, count: np.full(count, MAX_SIGMAS * scale))
    assert upload.tolist() == [round(grid.n_rows / grid.step) + MAX_SIGMAS * scale] * 4
    assert upload.max() < 2**62


BAD = {
    "nan": np.full(104, np.nan),
    "one nan": np.where(np.arange(104) == 50, np.nan, 0.0),
    "inf": np.full(104, np.inf),
    "huge": np.full(104, 1.7e308),
    "beyond the rows": np.full(104, 401.0),
    "short": np.zeros(103),
    "long": np.zeros(105),
    "scalar": np.array(0.0),
    "float32": np.zeros(104, np.float32),
    "integers": np.zeros(104, np.int64),
    "complex": np.zeros(104, complex),
    "text": np.full(104, "0"),
    "a list": [0.0] * 104,
    "nothing": None,
}


def test_every_invalid_sum_raises_the_same_error() -> None:
    """The check is part of rounding, because sums of parts are added before noise is added."""
    for what, act in product(BAD, (quantise, lambda total, grid: release_sum(total, grid, 1.0))):
        with case(what):
            with pytest.raises(DataError) as refusal:
                act(BAD[what], ADULT)  # type: ignore[operator]
            assert str(refusal.value) == ("the sum over rows does not match its grid; nothing is released")


@prove
@given(grids, st.integers(0, 2**32))
def test_decoding_is_within_half_a_step(grid: Lattice, seed: int) -> None:
    rng = np.random.default_rng(seed)
    grid = Lattice(grid.row_norm, 6, grid.n_rows)
    total = rng.uniform(-1.0, 1.0, (3, 2)) * grid.row_norm * grid.n_rows / math.sqrt(6)
    upload = quantise(total, grid)
    assert (upload.shape, upload.dtype) == ((3, 2), np.int64)
    error = np.linalg.norm(as_mean(upload, grid) * grid.n_rows - total)
    assert error <= 1e-6 * grid.row_norm + 4e-16 * np.linalg.norm(total)


def test_release_is_the_rounded_sum_plus_noise() -> None:
    total = np.linspace(-400.0, 400.0, 104).reshape(52, 2)
    seen: list[tuple[int, int]] = []

    def draw(scale: int, count: int) -> Integers:
        seen.append((scale, count))
        return np.arange(count)

    upload = release_sum(total, ADULT, 2.0, draw=draw)
    np.testing.assert_array_equal(upload, quantise(total, ADULT) + np.arange(104).reshape(52, 2))
    assert seen == [(ADULT.noise_scale(2.0), 104)]
    assert ADULT.noise_scale(2.0) >= 2.0 * ADULT.sensitivity / ADULT.step


# --- sensitivity -------------------------------------------------------------------------------------------


def distance(one: Floats, other: Floats, grid: Lattice) -> float:
    return float(np.linalg.norm((quantise(one, grid) - quantise(other, grid)).astype(float)) * grid.step)


def unit_rows(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    rows = rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 1, shape)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


@prove
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 60), st.floats(1e-3, 1e3))
def test_replacing_a_row_changes_the_rounded_sum_by_at_most_the_sensitivity(
    seed: int, n_weights: int, n_rows: int, c1: float
) -> None:
    rng, grid = np.random.default_rng(seed), Lattice(c1, n_weights, n_rows)
    gradients = unit_rows(rng, (n_rows, n_weights)) * grid.row_bound
    other = gradients.copy()
    changed = rng.integers(n_rows)
    other[changed] = -other[changed] if seed % 2 else unit_rows(rng, (1, n_weights))[0] * grid.row_bound
    moved = distance(gradients.sum(axis=0), other.sum(axis=0), grid)
    assert moved <= grid.sensitivity
    if seed % 2:
        assert moved >= (1.0 - 3e-6) * 2.0 * c1


@pytest.mark.parametrize("n_weights", [2, 104])
def test_kernel_attains_but_does_not_exceed_the_sensitivity(n_weights: int) -> None:
    """Rows (±cos θ, sin θ) at a point far below:

    both are misclassified by far, and their gradients are nearly opposite.
    """
    loss, angle = Logistic(), 1e-3
    grid = Lattice(loss.lipschitz, n_weights, 50)
    features = unit_rows(np.random.default_rng(3), (50, n_weights))
    point = np.zeros((1, n_weights, 1))
    point[0, 1] = -1e6
    sums = []
    for sign in (1.0, -1.0):
        features[0] = 0.0
        features[0, :2] = sign * math.cos(angle), math.sin(angle)
        mean = kernels.gradient(make_rows(features, np.ones(50)), point, loss, bound=grid.row_bound)[0]
        sums.append(mean * grid.n_rows)
    moved = distance(sums[0], sums[1], grid)
    assert (1.0 - 3e-6) * 2.0 * loss.lipschitz <= moved <= grid.sensitivity


def test_float_summation_error_can_exceed_the_change_of_the_rows() -> None:
    """Half of the rows bring one sum to 2ᵏ and the neighbouring sum to just below.

    Each other row is a little more than half a unit in the last place of the first sum, so it is rounded up there, but
    it is nearly exact in the neighbouring sum.
    """
    half = 2**13
    grid = Lattice(1.0, 1, 2 * half)
    small = half * 2.0**-53 * (1.0 + 2.0**-10)
    one = np.concatenate([np.ones(half), np.full(half, small)])
    other = one.copy()
    other[0] = -1.0
    apart = Fraction(np.add.accumulate(one)[-1]) - Fraction(np.add.accumulate(other)[-1])
    first_order = 2 * (1 + Fraction(4 * grid.n_rows, 2**53))
    assert apart > first_order  # m·2⁻⁵³ would be too small
    assert apart <= 2 * (1 + Fraction(grid.n_rows * (grid.n_rows + 8), 2**53))


# --- what the discrete Gaussian costs, against the continuous one ------------------------------------------


@lru_cache(maxsize=1)
def densities(scale: int, shift: int) -> tuple[Floats, Floats, float]:
    """Return the densities of integers ``y`` and ``y + shift`` over all likely values, with their sums."""
    values = np.arange(-12 * scale, 12 * scale + shift + 1).astype(float)
    one, other = (np.exp(-((values - s) ** 2) / (2.0 * scale**2)) for s in (0, shift))
    return one, other, math.fsum(one)


def discrete_delta(scale: int, shift: int, epsilon: float) -> float:
    """Return δ(ε) of ``y`` and ``y + shift``."""
    one, other, whole = densities(scale, shift)
    more = one - np.exp(epsilon) * other
    return math.fsum(more[more > 0.0]) / whole


def test_margin_covers_the_discrete_gaussian() -> None:
    for mu, epsilon in product([0.0265, 0.3, 1.0, 5.0], [0.0, 0.2, 1.0, 4.0]):
        with case(mu, epsilon):
            scale = 10**5
            shift = math.floor(scale / (1.0 + MARGIN) * mu)
            exact = discrete_delta(scale, shift, epsilon)
            assert exact <= exact_delta(mu, epsilon)
            # without it, the difference is at most the second-order term μ/(12σ²)·φ, 100,000 times less than the margin
            excess = exact - exact_delta(shift / scale, epsilon)
            density = stats.norm.pdf(shift / scale / 2.0 - epsilon / (shift / scale))
            assert abs(excess) <= mu / (12.0 * scale**2) * density + 1e-14


def test_without_margin_a_coarse_grid_costs_more() -> None:
    assert discrete_delta(1, 1, 1.0) > exact_delta(1.0, 1.0) * 1.01


def test_smoothing_lemma() -> None:
    """Rounding continuous noise with a discrete Gaussian gives a discrete Gaussian.

    For noise of variance σ² − r², rounded with width r, densities equal those of σ up to factors 1 ± η, ``η =
    2.1·exp(−2π²r²)``.
    """
    for r in [0.5, 0.7, 1.0]:
        with case(r):
            sigma, y = 4.0, np.arange(-20, 21)
            x = np.linspace(-40.0, 40.0, 200_001)
            rounded = np.exp(-((y[:, None] - x) ** 2) / (2.0 * r**2))
            rounded /= np.exp(-((np.arange(-60, 61)[:, None] - x) ** 2) / (2.0 * r**2)).sum(axis=0)
            mixture = (rounded * stats.norm.pdf(x, scale=math.sqrt(sigma**2 - r**2))).sum(axis=1) * (x[1] - x[0])
            wanted = np.exp(-(y**2) / (2.0 * sigma**2)) / np.exp(-(np.arange(-99, 100) ** 2) / (2.0 * sigma**2)).sum()
            eta = 2.1 * math.exp(-2.0 * math.pi**2 * r**2)
            assert np.abs(mixture / wanted - 1.0).max() <= eta / (1.0 - eta) + 1e-10


# --- shares of the noise ------------------------------------------------------------------------------------

DIGITS = 10**130


def exact_pmf(variance: int, reach: int) -> Any:
    """Return the probabilities of the discrete Gaussian on −reach … reach, in integer multiples of 10⁻¹³⁰."""
    with localcontext(prec=150):
        half = [int((-Decimal(y * y) / (2 * variance)).exp() * DIGITS) for y in range(reach + 1)]
    weights = np.array([*half[:0:-1], *half], dtype=object)
    return weights * DIGITS // weights.sum()


def test_sum_of_shares_is_discrete_gaussian_within_the_proved_bound() -> None:
    """By exact convolution: |log density ratio| ≤ 4.01·Σ_{k<h} exp(−2π²σ²k/(k + 1)).

    The bound is within a factor of 2 for two shares. For more shares, the ripples are ``2h·exp(−2π²σ²(h − 1)/h)``, and
    the bound is loose.
    """
    for sigma in (1, 2, 3):
        share = total = exact_pmf(sigma**2, 24 * sigma)
        for h in range(2, 7):
            with case(sigma, h):
                total = np.convolve(total, share) // DIGITS
                near = 5 * sigma
                one = exact_pmf(h * sigma**2, 24 * math.ceil(sigma * math.sqrt(h)))
                sides = [item[len(item) // 2 - near : len(item) // 2 + near + 1] for item in (total, one)]
                with localcontext(prec=150):
                    ratios = [Decimal(a) / Decimal(b) - 1 for a, b in zip(*sides, strict=True)]
                    worst = float(max(map(abs, ratios)))
                assert worst <= 4.01 * sum(math.exp(-2.0 * math.pi**2 * sigma**2 * k / (k + 1)) for k in range(1, h))
                ripple = (2 if h == 2 else 2 * h) * math.exp(-2.0 * math.pi**2 * sigma**2 * (h - 1) / h)
                assert worst == pytest.approx(ripple, rel=0.05)


def test_share_margin_covers_discreteness_at_the_minimum_scale() -> None:
    """This includes a single share, which protects a site if all others collude: smoothing with r = 6 costs 1.8e-6."""
    most = math.sqrt(MAX_SITES)
    for z, h, size in product([0.1, 0.3, 1.0, 40.0], [2, 3, 10, MAX_SITES], [1, 3, 104]):
        with case(z, h, size):
            grid = Lattice(1.0, size, 1000)
            whole, share = z * grid.sensitivity / grid.step, grid.noise_scale(z, h)
            assert share >= 10**5 / most
            assert math.sqrt(share**2 - 6**2) >= whole / math.sqrt(h) * (1.0 + 1e-7)
            assert math.sqrt(h * share**2 - 10**2) >= whole * (1.0 + 1e-6)
    scale = math.ceil(10**5 / most)
    for mu, epsilon in product([0.3, 1.0, 5.0], [0.0, 0.2, 1.0, 4.0]):
        with case(mu, epsilon):
            shift = math.floor(scale / (1.0 + SHARE_MARGIN) * mu)
            assert discrete_delta(scale, shift, epsilon) <= exact_delta(mu, epsilon)


def test_shares_for_one_rounding_suffice_for_a_site_with_several_parts() -> None:
    """The other sites scale their shares for a sum that is rounded once.

    The S of a site with parts includes two roundings.
    """
    for size, m, norm, z, min_honest_sites in (
        (1, 2, 1.0, 0.1, 2),
        (104, 400, 1.0, 5.0, 1000),
        (50_000, 10**6, 2.0, 80.0, 7),
    ):
        once, twice = (Lattice(norm, size, m, n_parts=k) for k in (1, 5))
        assert twice.sensitivity > once.sensitivity
        together = math.sqrt(min_honest_sites) * once.noise_scale(z, min_honest_sites)
        assert together >= z * twice.sensitivity / twice.step * (1.0 + 5e-9)


def test_noise_is_added_to_valid_integers_only() -> None:
    grid = Lattice(1.0, 3, 10)
    edge = np.array([grid.max_sum, -grid.max_sum, 0])
    assert with_noise(edge, grid, 1.0, shares=1, draw=lambda scale, n: np.zeros(n, np.int64)).tolist() == edge.tolist()
    for wrong in (
        edge + np.array([1, 0, 0]),
        edge - np.array([0, 1, 0]),
        edge[:2],
        edge.astype(float),
        edge.tolist(),
        np.append(edge, 0),
    ):
        with pytest.raises(DataError, match="does not match its grid"):
            with_noise(wrong, grid, 1.0, shares=1)
