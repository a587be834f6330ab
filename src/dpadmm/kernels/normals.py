"""Standard normal numbers as a pure function of (seed, agent, round): fast noise for simulations.

Each (seed, agent, round) has its own stream of 64-bit words: the SplitMix64 sequence, started at a hash of the
three. The Box–Muller transform turns two words into two normals. There is no state, so a number does not depend on
the other agents, on the order of the draws, or on the number of threads. Use it for experiments only: it gives no
protection, because the seed is not a secret and floating point leaks information.

Logarithm, sine and cosine are polynomials, so NumPy and the compiled version (:mod:`.compiled_normals`) return the
same bits. NumPy draws few numbers without loading the compiler.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpadmm.matrices.arrays import Floats, Integers

Words = NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
ONE_BITS = np.uint64(0x3FF0000000000000)  # bits of 1.0
MANTISSA = np.uint64(0x000FFFFFFFFFFFFF)
BIG_BITS = np.uint64(0x4330000000000000)  # bits of 2^52, whose last bit is worth 1
BIG = 4503599627370496.0
LN2 = 0.6931471805599453
GROUP = 128
"""Agents whose weighted numbers are added in sequence."""

MAX_NUMPY_NUMBERS = 2**15
"""Numbers up to which NumPy is used. It takes at most about 3 ms."""


@lru_cache
def key_of(seed: int) -> np.uint64:
    """Return the 64-bit key of a seed."""
    return np.uint64(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])


def standard_normals(seed: int, round: int, n_agents: int, size: int) -> Floats:
    """Return ``size`` independent N(0, 1) numbers for every agent: (n_agents, size).

    Examples
    --------
    >>> few, many = standard_normals(7, 3, 2, 5), standard_normals(7, 3, 9, 5)
    >>> bool((few == many[:2]).all()), bool((few[0] == few[1]).any())
    (True, False)
    """
    if n_agents * size <= MAX_NUMPY_NUMBERS:
        return _numbers(key_of(seed), round, np.arange(n_agents), size)
    from dpadmm.kernels.compiled_normals import fill

    out = np.empty((n_agents, size))
    fill(key_of(seed), round, out)
    return out


def weighted_normals(seed: int, round: int, agents: Integers, scales: Floats, size: int) -> Floats:
    """Return ``Σ_i scales_i·ξ_i`` over agents, where ξ_i are their ``standard_normals``: (size,).

    The numbers of different agents are never in memory together, unless there are few of them.
    """
    if len(agents) * size <= MAX_NUMPY_NUMBERS:
        scaled = scales[:, None] * _numbers(key_of(seed), round, agents, size)
        sums = np.stack([scaled[first : first + GROUP].sum(axis=0) for first in range(0, len(agents), GROUP)])
    else:
        from dpadmm.kernels.compiled_normals import weighted_sums

        sums = weighted_sums(key_of(seed), round, agents, scales, size)
    return np.asarray(sums.sum(axis=0))


def _numbers(key: np.uint64, round: int, agents: Integers, size: int) -> Floats:
    """Return the numbers of these agents: (agents, size)."""
    half = (size + 1) // 2
    start = _mix(key + GOLDEN * (agents + 1).astype(np.uint64))
    start = _mix(start ^ (GOLDEN * np.array([round], np.uint64)))
    words = start[:, None] + GOLDEN * (2 * np.arange(half)).astype(np.uint64)
    radius = np.sqrt(-2.0 * _log(2.0 - _uniform(_mix(words))))
    turn = _uniform(_mix(words + GOLDEN)) - 1.5
    shifted = turn[:, : size - half] + 0.25
    cosine = _sine(np.where(shifted > 0.5, shifted - 1.0, shifted))
    return np.concatenate([radius * _sine(turn), radius[:, : size - half] * cosine], axis=1)


def _mix(word: Words) -> Words:
    """Return the SplitMix64 finaliser: every bit of the result depends on every bit of the word."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def _uniform(word: Words) -> Floats:
    """Return the upper 52 bits as a number in [1, 2)."""
    return ((word >> np.uint64(12)) | ONE_BITS).view(np.float64)


def _log(x: Floats) -> Floats:
    """Return the logarithm of positive normal numbers: ``k ln2 + 2 artanh((m − 1)/(m + 1))``, m in [√½, √2)."""
    bits = x.view(np.uint64)
    exponent = ((bits >> np.uint64(52)) | BIG_BITS).view(np.float64) - (BIG + 1023.0)
    m = ((bits & MANTISSA) | ONE_BITS).view(np.float64)
    high = m > 1.4142135623730951
    m, k = np.where(high, 0.5 * m, m), np.where(high, exponent + 1.0, exponent)
    f = (m - 1.0) / (m + 1.0)
    g = f * f
    series: Floats = np.full_like(g, 1.0 / 21.0)
    for n in range(19, 1, -2):
        series = series * g + 1.0 / n
    return np.asarray(k * LN2 + 2.0 * f * (1.0 + g * series))


_SINE = (
    1.0 / 355687428096000.0, -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0,
    1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0,
)  # fmt: skip


def _sine(t: Floats) -> Floats:
    """Return ``sin(2πt)`` for |t| ≤ ½, by folding to |t| ≤ ¼ and a series to full precision."""
    t = np.where(t > 0.25, 0.5 - t, t)
    t = np.where(t < -0.25, -0.5 - t, t)
    x = 6.283185307179586 * t
    y = x * x
    series = -1.0 / 121645100408832000.0 + y / 51090942171709440000.0
    for coefficient in _SINE:
        series = series * y + coefficient
    return np.asarray(x + x * y * series)
