"""The numbers of :mod:`dpadmm.kernels.normals`, compiled, with the same bits.

Floating-point contraction (FMA) is off, so every operation rounds as NumPy does.
"""

from __future__ import annotations

import numpy as np

from dpadmm.kernels.compiler import numba
from dpadmm.kernels.normals import BIG, BIG_BITS, GOLDEN, GROUP, LN2, MANTISSA, ONE_BITS
from dpadmm.matrices.arrays import Floats, Integers

_inline = numba.njit(error_model="numpy", fastmath=False)
_parallel = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=False, parallel=True)


@_inline
def _mix(word):  # type: ignore[no-untyped-def]
    """Return the SplitMix64 finaliser: every bit of the result depends on every bit of the word."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@_inline
def _uniform(word):  # type: ignore[no-untyped-def]
    """Return the upper 52 bits as a number in [1, 2)."""
    return np.uint64((word >> np.uint64(12)) | ONE_BITS).view(np.float64)


@_inline
def _log(x):  # type: ignore[no-untyped-def]
    """Return the logarithm of a positive normal number: ``k ln2 + 2 artanh((m − 1)/(m + 1))``, m in [√½, √2)."""
    bits = np.float64(x).view(np.uint64)
    exponent = np.uint64((bits >> np.uint64(52)) | BIG_BITS).view(np.float64) - (BIG + 1023.0)
    m = np.uint64((bits & MANTISSA) | ONE_BITS).view(np.float64)
    high = m > 1.4142135623730951
    m = 0.5 * m if high else m
    k = exponent + 1.0 if high else exponent
    f = (m - 1.0) / (m + 1.0)
    g = f * f
    series = 1.0 / 21.0
    series = series * g + 1.0 / 19.0
    series = series * g + 1.0 / 17.0
    series = series * g + 1.0 / 15.0
    series = series * g + 1.0 / 13.0
    series = series * g + 1.0 / 11.0
    series = series * g + 1.0 / 9.0
    series = series * g + 1.0 / 7.0
    series = series * g + 1.0 / 5.0
    series = series * g + 1.0 / 3.0
    return k * LN2 + 2.0 * f * (1.0 + g * series)


@_inline
def _sine(t):  # type: ignore[no-untyped-def]
    """Return ``sin(2πt)`` for |t| ≤ ½, by folding to |t| ≤ ¼ and a series to full precision."""
    t = 0.5 - t if t > 0.25 else t
    t = -0.5 - t if t < -0.25 else t
    x = 6.283185307179586 * t
    y = x * x
    series = -1.0 / 121645100408832000.0 + y / 51090942171709440000.0
    series = series * y + 1.0 / 355687428096000.0
    series = series * y - 1.0 / 1307674368000.0
    series = series * y + 1.0 / 6227020800.0
    series = series * y - 1.0 / 39916800.0
    series = series * y + 1.0 / 362880.0
    series = series * y - 1.0 / 5040.0
    series = series * y + 1.0 / 120.0
    series = series * y - 1.0 / 6.0
    return x + x * y * series


@_inline
def fill_one(key, round, agent, scratch, out):  # type: ignore[no-untyped-def]
    """Fill ``out`` (size,) with the numbers of one agent; ``scratch`` is (2, at least (size + 1)//2)."""
    size = out.shape[0]
    half = (size + 1) // 2
    start = _mix(key + GOLDEN * np.uint64(agent + 1))
    start = _mix(start ^ (GOLDEN * np.uint64(round)))
    radius, turn = scratch[0], scratch[1]
    for i in range(half):
        at = start + GOLDEN * np.uint64(2 * i)
        radius[i] = np.sqrt(-2.0 * _log(2.0 - _uniform(_mix(at))))
        turn[i] = _uniform(_mix(at + GOLDEN)) - 1.5
    for i in range(half):
        out[i] = radius[i] * _sine(turn[i])
    for i in range(size - half):
        t = turn[i] + 0.25
        out[half + i] = radius[i] * _sine(t - 1.0 if t > 0.5 else t)


@_parallel
def _fill(key, round, out):  # type: ignore[no-untyped-def]
    n, size = out.shape
    for g in numba.prange(64):
        scratch = np.empty((2, (size + 1) // 2))
        for agent in range(n * g // 64, n * (g + 1) // 64):
            fill_one(key, round, agent, scratch, out[agent])


@_parallel
def _add_up(key, round, agents, scales, sums):  # type: ignore[no-untyped-def]
    size = sums.shape[1]
    for part in numba.prange(len(sums)):
        scratch, one, total = np.empty((2, (size + 1) // 2)), np.empty(size), np.zeros(size)
        for i in range(part * GROUP, min((part + 1) * GROUP, len(agents))):
            fill_one(key, round, agents[i], scratch, one)
            for j in range(size):
                total[j] += scales[i] * one[j]
        sums[part] = total


def fill(key: np.uint64, round: int, out: Floats) -> None:
    """Fill ``out`` (n_agents, size) with the numbers of agents 0 to n_agents − 1."""
    _fill(key, np.int64(round), out)


def weighted_sums(key: np.uint64, round: int, agents: Integers, scales: Floats, size: int) -> Floats:
    """Return ``Σ_i scales_i·ξ_i`` over each group of ``GROUP`` agents: (groups, size)."""
    sums = np.empty((-(-len(agents) // GROUP), size))
    _add_up(key, np.int64(round), agents, scales, sums)
    return sums
