"""Single attempts of the noise sampler, with scripted bytes, compared with exact arithmetic in fractions.

This covers what no sample reaches: the far tails, the edges of stairs, points next to the curve where floats cannot
decide, and ties in 64 bits.
"""

from __future__ import annotations

import math
import os
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from guards import STUDY, consensus, guarded, rows, tiny
from looping import case
from noise_queries import gradient_query

from dpadmm.engine import noise as oracles
from dpadmm.engine.noise import ExactNoise
from dpadmm.losses import Logistic
from dpadmm.matrices.arrays import Integers
from dpadmm.queries.problem import make_rows
from dpadmm.sites.agent import Agent
from dpadmm.trusted import discrete_gaussian as exact_noise
from dpadmm.trusted.discrete_gaussian import CLOSE, MAX_SIGMAS, STAIRS, TOP, Lattice, quantise, release_sum

SCALES = [1, 2, 5, 1000, 637_535_235, 2**55 + 1, 2**56 - 1]
Attempt = tuple[int, int]
"""The point under the stairs, and the word that is a number of 63 bits and a sign."""


@cache
def curve(size: int, scale: int, bits: int = 0) -> int:
    """Return the integer part of ``TOP·2^bits·exp(−y²/(2σ²))``, by the series of ``exp(y²/(2σ²)/4096)`` in integers."""
    precision = bits + 192  # about twenty of which are lost to rounding
    x = (size**2 << precision) // (2 * scale**2) >> 12
    term, total, j = 1 << precision, 0, 0
    while term:
        total, j = total + term, j + 1
        term = term * x // j >> precision
    for _ in range(12):
        total = total * total >> precision
    return (TOP << bits << precision) // total


def attempt(k: int, u: int, height: int, *, negative: bool = False, quotient: int = 0, scale: int) -> Attempt:
    return int(STAIRS[k]) + height, 2 * (quotient * scale + u) + negative


class ScriptedEntropy:
    """Replacement for ``os.urandom`` that returns scripted bytes in order, and no more."""

    def __init__(self, attempts: list[Attempt], later: list[int] | None = None) -> None:
        self.first = np.array(attempts, np.uint64).reshape(-1, 2).T.tobytes()
        self.later = later or []
        self.asked: list[int] = []

    def __call__(self, count: int) -> bytes:
        self.asked.append(count)
        if len(self.asked) == 1:
            assert count == len(self.first)
            return self.first
        assert count == 8
        return self.later.pop(0).to_bytes(8)


def accepted(scale: int, attempts: list[Attempt], later: list[int] | None = None, *, close: float = CLOSE) -> list[int]:
    """Return the values that the sampler accepts. All scripted bytes must be used."""
    source = ScriptedEntropy(attempts, later)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", source)
        patch.setattr(exact_noise, "CLOSE", close)
        out: list[int] = exact_noise._attempts(scale, len(attempts)).tolist()
    assert not source.later
    return out


def expected(scale: int, attempts: list[Attempt]) -> list[int]:
    """Compute the accepted values in fractions, for points that are not exactly on the curve."""
    out = []
    for point, word in attempts:
        k = sum(point >= int(stair) for stair in STAIRS) - 1
        quotient, u = divmod(word // 2, scale)
        size, height = k * scale + u, point - int(STAIRS[k])
        assert height != curve(size, scale)
        if height < curve(size, scale) and (quotient + 1) * scale <= 2**63 and (size or word % 2 == 0):
            out.append(-size if word % 2 else size)
    return out


# --- the stairs and the curve ------------------------------------------------------------------------------


def test_reference_curve_is_the_exponential() -> None:
    for size in range(0, 60, 7):
        assert curve(size, 10, 200) / (TOP << 200) == pytest.approx(math.exp(-(size**2) / 200), rel=1e-13)
    (tenth,) = {curve(17, 10, bits) >> bits for bits in (0, 64, 500)}
    assert tenth == curve(17, 10)


def test_stairs_are_just_above_the_curve_and_fit_64_bits() -> None:
    """Every ``y = kσ + u`` is then proposed with a constant area, and the part below the curve is accepted."""
    ends = [*(int(stair) for stair in STAIRS[1:]), 2**64]
    assert (len(STAIRS), STAIRS[0], STAIRS.dtype) == (MAX_SIGMAS, 0, np.uint64)
    for k, (start, end) in enumerate(zip(STAIRS, ends, strict=True)):
        needed = Fraction(curve(k, 1, 128) + 1, 2**128)
        assert end - int(start) >= max(1, needed * (1 + Fraction(3, 2**42)))
        if k < MAX_SIGMAS - 1:
            assert end - int(start) <= needed * (1 + Fraction(1, 2**39)) + 1
    assert 1.0 - 1e-3 < int(STAIRS[-1]) / 2**64 < 1.0  # so that a proposal is usually found


# --- what is kept, for given bytes -------------------------------------------------------------------------


def places(scale: int) -> list[int]:
    return sorted({0, 1 % scale, scale // 3, scale // 2, scale - 1})


def test_float_and_exact_decisions_agree() -> None:
    """Random bytes. With a huge CLOSE, every decision is made in exact arithmetic, with the same result."""
    rng = np.random.default_rng(3)
    for scale in SCALES:
        with case(scale):
            words = [(int(point), int(word)) for point, word in rng.integers(0, 2**64, (200, 2), np.uint64)]
            found = accepted(scale, words)
            assert found == expected(scale, words) == accepted(scale, words, close=2.0**70)
            assert 110 < len(found) < 175 or scale == 1


def near(scale: int, distances: list[int]) -> list[Attempt]:
    """Return attempts at many positions, at a distance above the curve, where this is below their stair."""
    out = []
    for k, distance in product([*range(12), 20, 40, MAX_SIGMAS - 1], distances):
        height = 2**64 - int(STAIRS[k]) if k == MAX_SIGMAS - 1 else int(STAIRS[k + 1]) - int(STAIRS[k])
        there = [(u, curve(k * scale + u, scale) + distance) for u in places(scale)]
        out += [attempt(k, u, here, scale=scale, negative=bool(k)) for u, here in there if 0 <= here < height]
    return out


def test_decision_next_to_the_curve_is_exact() -> None:
    for scale in SCALES:
        with case(scale):
            attempts = near(scale, [s * d for s in (1, -1) for d in (3, 2**10, 2**20, CLOSE - 2**20, CLOSE + 2**20)])
            assert accepted(scale, attempts) == expected(scale, attempts)


def test_float_error_is_below_the_proved_bound() -> None:
    """Beyond 2²⁵ float decisions are correct, so CLOSE leaves room for a less accurate exponential."""
    assert CLOSE == 2**32
    for scale in SCALES:
        with case(scale), pytest.MonkeyPatch.context() as patch:
            attempts = near(scale, [s * d for s in (1, -1) for d in (2**25 + 2**14, 2**26, 2**40)])
            patch.setattr(exact_noise, "_is_below", lambda *_: pytest.fail("not decided by floats"))
            assert accepted(scale, attempts, close=2**25) == expected(scale, attempts)
            assert {-1, 1} <= {np.sign(point) for point in expected(scale, attempts)} or scale == 1


def test_numpy_exponential_is_more_accurate_than_the_proof_requires() -> None:
    """The proof requires a relative error below 2⁻⁴⁰, for every array length."""
    halves = np.concatenate([np.arange(0, 8 * 512), np.random.default_rng(5).integers(0, 64 * 512, 600)]) / 512
    exact = np.array([curve(int(1024 * half), 1024, 128) / (TOP << 128) for half in halves])
    for item in (np.exp(-0.5 * halves**2), np.array([np.exp(-0.5 * half**2) for half in halves])):
        assert np.abs(item - exact).max() < 2.0**-50


def test_nan_from_the_exponential_is_decided_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = near(1000, [2**50, -(2**50)])
    monkeypatch.setattr(np, "exp", lambda x: np.full(x.shape, np.nan))
    assert accepted(1000, attempts) == expected(1000, attempts)


# --- with more than 64 bits --------------------------------------------------------------------------------


def words_of(number: int, count: int) -> list[int]:
    """Return the last ``count`` 64-bit words of a number, in order."""
    return [number >> 64 * i & (2**64 - 1) for i in reversed(range(count))]


def test_ties_with_the_curve_draw_more_bits_until_decided() -> None:
    """The next 64 bits of the curve itself lead to another tie."""
    for scale, k in product((5, 637_535_235, 2**56 - 1), (0, 1, 3, 9)):
        u = scale // 3
        size = k * scale + u
        for extra, above in product((1, 30) if (scale, k) == (5, 1) else (1, 2, 3), (-3, 3)):
            with case(scale, k, extra, above):
                exact = curve(size, scale, 64 * extra) + above
                found = accepted(scale, [attempt(k, u, exact >> 64 * extra, scale=scale)], words_of(exact, extra))
                assert found == ([size] if above < 0 else [])


def test_more_bits_are_drawn_only_within_two_units_of_the_curve() -> None:
    here, size = curve(1234, 1000), 1234
    for distance in range(-3, 4):
        later = [] if abs(distance) > 2 else [0]
        found = accepted(1000, [attempt(1, 234, here + distance, scale=1000)], later)
        assert found == ([size] if distance <= 0 else [])


def test_every_stair_can_be_accepted_and_nothing_beyond() -> None:
    """For stair k, bits are zero for as long as those of the curve. All ones are the end of the last stair."""
    for scale, k in [*product((5, 2**56 - 1), (7, 11, 12, 20)), (5, MAX_SIGMAS - 1)]:
        with case(scale, k):
            size, zeros = k * scale + scale - 1, 0
            while curve(size, scale, 64 * zeros) <= 2:
                zeros += 1
            assert k < 11 or zeros
            far = attempt(k, scale - 1, 0, negative=True, scale=scale)
            assert accepted(scale, [far], [0] * zeros) == [-size]
            if zeros:
                assert accepted(scale, [far], words_of(curve(size, scale, 64 * zeros) + 3, zeros)) == []
    assert accepted(5, [(2**64 - 1, 0)]) == []


# --- signs, remainders, lots -------------------------------------------------------------------------------


def test_zero_is_counted_once_and_other_values_have_both_signs() -> None:
    for scale in SCALES:
        for k, u in product((0, 1), places(scale)):
            both = [attempt(k, u, 0, negative=negative, scale=scale) for negative in (False, True)]
            size = k * scale + u
            assert accepted(scale, both) == ([size, -size] if size else [0])


def test_remainders_are_uniform() -> None:
    """They come from numbers below the largest multiple of the scale that fits 63 bits."""
    for scale in SCALES:
        with case(scale):
            last = 2**63 // scale - 1
            for u in places(scale):
                assert accepted(scale, [attempt(0, u, 0, quotient=last, scale=scale)]) == [u]
                if (last + 1) * scale + u < 2**63:
                    assert accepted(scale, [attempt(0, u, 0, quotient=last + 1, scale=scale)]) == []


def test_draw_returns_accepted_values_and_retries_the_rest() -> None:
    for count, first in [(1, 0), (3, 2), (104, 100), (104, 104), (104, 110)]:
        asked: list[int] = []

        def lots(scale: int, n: int, first: int = first, asked: list[int] = asked) -> Integers:
            asked.append(n)
            return np.arange(first) + scale if len(asked) == 1 else np.arange(1000, 1000 + n)

        with case(count, first), pytest.MonkeyPatch.context() as patch:
            patch.setattr(exact_noise, "_attempts", lots)
            drawn = exact_noise.discrete_gaussian(5, count).tolist()
            assert drawn == [*range(5, 5 + first), *range(1000, 1000 + count)][:count]
            assert asked == [n + n // 2 + 8 for n in (count, count - first) if n > 0]


def test_each_draw_uses_about_25_bytes_of_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, asked = np.random.default_rng(1), []
    monkeypatch.setattr(os, "urandom", lambda count: asked.append(count) or rng.bytes(count))
    for scale, count in product((1000, 2**56 - 1), (104, 10_000)):
        asked.clear()
        exact_noise.discrete_gaussian(scale, count)
        assert sum(asked) < 26 * count


# --- from an attempt to an upload --------------------------------------------------------------------------


FAR = (6.5, -7.0, 11.0, -63.9, 0.5)


def far(scale: int, count: int) -> Integers:
    return np.resize([int(point * scale) for point in FAR], count).astype(np.int64)


def test_large_noise_reaches_the_upload_unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for module in (exact_noise, oracles):
        monkeypatch.setattr(module, "discrete_gaussian", far)
    grid = Lattice(1.0, 5, 9)
    total = np.linspace(-2.0, 2.0, 5)
    noise = far(grid.noise_scale(1e5), 5)
    assert (release_sum(total, grid, 1e5) - quantise(total, grid)).tolist() == noise.tolist()

    data = make_rows(np.zeros((9, 5)), np.ones(9), order=np.arange(9), offsets=np.array([0, 9]))
    wanted = gradient_query(data, Logistic(), np.zeros((1, 5, 1)), np.array([1e5]), 1)
    said = ExactNoise().answer(wanted)[0, :, 0] * grid.n_rows / grid.step
    np.testing.assert_allclose(said, noise, rtol=1e-12)

    features, labels = rows()
    with guarded(tmp_path / "zero", tiny(np.zeros_like(features), labels)) as guard:
        own = guard.enrol(STUDY).query_at(1).grid
        answer = guard.answer(STUDY.hash, 1, consensus(1))
        assert answer[:, 0].tolist() == far(own.noise_scale(STUDY.noise_multiplier), 3).tolist()
    with guarded(tmp_path / "agent", tiny(np.zeros_like(features), labels)) as guard:
        agent, calm = Agent(guard, STUDY), STUDY.method(own.n_rows)
        start = calm.init(STUDY.problem, data)
        sizes = np.zeros((1, *STUDY.shape))
        state = type(start)(sizes, sizes)
        gradient = exact_noise.as_mean(far(own.noise_scale(STUDY.noise_multiplier), 3)[:, None], own)[None]
        _, upload = calm.advance(state, gradient, consensus(1), round=1, problem=STUDY.problem)
        np.testing.assert_array_equal(agent.step(1, consensus(1)), upload[0])
