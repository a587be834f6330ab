"""Standard normal numbers as a pure function of (seed, agent, round): fast noise for simulations.

Every (seed, agent, round) names its own stream of 64-bit words, the SplitMix64 sequence from a starting
point that is a hash of the three; two words make two normals by the Box–Muller transform. There is no state,
so numbers do not depend on who else draws, in which order, or on how many threads. It is for experiments,
never for protection: the seed would have to be a secret, and floating point leaks.

Logarithm, sine and cosine are written out in arithmetic that the compiler runs on four pairs at once.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dpadmm.kernels.compiler import numba
from dpadmm.matrices.arrays import Floats, Integers

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ONE_BITS = np.uint64(0x3FF0000000000000)  # of the number 1.0
_MANTISSA = np.uint64(0x000FFFFFFFFFFFFF)
_BIG_BITS = np.uint64(0x4330000000000000)  # of 2^52, whose last bit is worth 1
_BIG = 4503599627370496.0
_LN2 = 0.6931471805599453
_TOGETHER = 128  # agents whose numbers are added up one after the other

_inline = numba.njit(error_model="numpy", fastmath={"contract"})
_serial = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
_parallel = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"}, parallel=True)


@_inline
def _mix(word):  # type: ignore[no-untyped-def]
    """SplitMix64's finaliser: every bit of the result depends on every bit of the word."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@_inline
def _uniform(word):  # type: ignore[no-untyped-def]
    """The upper 52 bits as a number in [1, 2)."""
    return np.uint64((word >> np.uint64(12)) | _ONE_BITS).view(np.float64)


@_inline
def _log(x):  # type: ignore[no-untyped-def]
    """Natural logarithm of a positive normal number: ``k ln2 + 2 artanh((m − 1)/(m + 1))``, m in [√½, √2)."""
    bits = np.float64(x).view(np.uint64)
    exponent = np.uint64((bits >> np.uint64(52)) | _BIG_BITS).view(np.float64) - (_BIG + 1023.0)
    m = np.uint64((bits & _MANTISSA) | _ONE_BITS).view(np.float64)
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
    return k * _LN2 + 2.0 * f * (1.0 + g * series)


@_inline
def _sine(t):  # type: ignore[no-untyped-def]
    """``sin(2πt)`` for |t| ≤ ½, folded to |t| ≤ ¼ and expanded to the last bits."""
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
    """The numbers of one agent into ``out`` (size,); ``scratch`` is (2, at least (size + 1)//2)."""
    size = out.shape[0]
    half = (size + 1) // 2
    start = _mix(key + _GOLDEN * np.uint64(agent + 1))
    start = _mix(start ^ (_GOLDEN * np.uint64(round)))
    radius, turn = scratch[0], scratch[1]
    for i in range(half):
        at = start + _GOLDEN * np.uint64(2 * i)
        radius[i] = np.sqrt(-2.0 * _log(2.0 - _uniform(_mix(at))))
        turn[i] = _uniform(_mix(at + _GOLDEN)) - 1.5
    for i in range(half):
        out[i] = radius[i] * _sine(turn[i])
    for i in range(size - half):
        t = turn[i] + 0.25
        out[half + i] = radius[i] * _sine(t - 1.0 if t > 0.5 else t)


@_parallel
def _fill_together(key, round, out):  # type: ignore[no-untyped-def]
    n, size = out.shape
    for g in numba.prange(64):
        scratch = np.empty((2, (size + 1) // 2))
        for agent in range(n * g // 64, n * (g + 1) // 64):
            fill_one(key, round, agent, scratch, out[agent])


@_serial
def _fill_alone(key, round, out):  # type: ignore[no-untyped-def]
    scratch = np.empty((2, (out.shape[1] + 1) // 2))
    for agent in range(out.shape[0]):
        fill_one(key, round, agent, scratch, out[agent])


@_parallel
def _add_up(key, round, agents, scales, sums):  # type: ignore[no-untyped-def]
    size = sums.shape[1]
    for part in numba.prange(len(sums)):
        scratch, one, total = np.empty((2, (size + 1) // 2)), np.empty(size), np.zeros(size)
        for i in range(part * _TOGETHER, min((part + 1) * _TOGETHER, len(agents))):
            fill_one(key, round, agents[i], scratch, one)
            for j in range(size):
                total[j] += scales[i] * one[j]
        sums[part] = total


@lru_cache
def key_of(seed: int) -> np.uint64:
    return np.uint64(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])


def standard_normals(seed: int, round: int, n_agents: int, size: int) -> Floats:
    """``size`` independent N(0, 1) numbers for every agent, named by (seed, agent, round): (n_agents, size).

    Examples
    --------
    >>> few, many = standard_normals(7, 3, 2, 5), standard_normals(7, 3, 9, 5)
    >>> bool((few == many[:2]).all()), bool((few[0] == few[1]).any())
    (True, False)
    """
    out = np.empty((n_agents, size))
    # waking a second thread takes as long as about 20,000 numbers
    fill = _fill_together if out.size > 40_000 else _fill_alone
    fill(key_of(seed), np.int64(round), out)
    return out


def weighted_normals(seed: int, round: int, agents: Integers, scales: Floats, size: int) -> Floats:
    """``Σ_i scales_i·ξ_i``, the ξ_i being the agents' ``standard_normals``, without room for all of them: (size,)."""
    sums = np.empty((-(-len(agents) // _TOGETHER), size))
    _add_up(key_of(seed), np.int64(round), agents, scales, sums)
    return np.asarray(sums.sum(axis=0))
