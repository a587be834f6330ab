"""Compiled passes over what agents remember: a round of Algorithm 1 after the gradient, and the mean of uploads.

Every number is rounded as in the equations of ``training/methods/dp_admm.py``, one operation after the other, so both
give the same bits; the tests compare them.
"""

from __future__ import annotations

import numpy as np

from dpadmm._base.arrays import Floats, Integers
from dpadmm.optim.kernels.compiler import n_groups, numba
from dpadmm.optim.kernels.normals import fill_one, key_of

_parallel = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=False, parallel=True)


@_parallel
def _admm(key, round, sums, n_rows, noise_std, noisy, reg, reg_share, before, dual, consensus, pull, rho, parts, new):  # type: ignore[no-untyped-def]
    n, size = sums.shape
    released, next_dual, upload = new
    back = -1.0 / rho
    for g in numba.prange(parts):
        scratch, h = np.empty((2, (size + 1) // 2)), np.empty(size)
        for i in range(n * g // parts, n * (g + 1) // parts):
            # short loops over few arrays: with more the compiler cannot tell that they are apart
            w, gamma, pulled, shrink = released[i], next_dual[i], pull[i], 1.0 / (rho + pull[i])
            if noisy:
                fill_one(key, round, i, scratch, h)
                for j in range(size):
                    h[j] = h[j] * noise_std[i] + sums[i, j] / n_rows[i]
            else:
                h[:] = sums[i] / n_rows[i]
            for j in range(size):
                gamma[j] = (consensus[j] - before[i, j]) * rho + dual[i, j]
            for j in range(size):
                w[j] = before[i, j] * pulled + rho * consensus[j]
            for j in range(size):
                w[j] = (w[j] + gamma[j]) - h[j]
            for j in range(size):
                w[j] = (w[j] - reg_share * reg[i, j]) * shrink
            for j in range(size):
                upload[i, j] = gamma[j] * back + w[j]


@_parallel
def _column_sums(rows, parts, sums):  # type: ignore[no-untyped-def]
    n, size = rows.shape
    for part in numba.prange(parts):
        first, last = size * part // parts, size * (part + 1) // parts
        for i in range(n):
            for j in range(first, last):
                sums[j] += rows[i, j]


def admm_round(
    *,
    seed: int,
    round: int,
    sums: Floats,
    n_rows: Integers,
    noise_std: Floats,
    reg_gradient: Floats,
    reg_share: float,
    released: Floats,
    dual: Floats,
    consensus: Floats,
    step_size: Floats,
    rho: float,
) -> tuple[Floats, Floats, Floats]:
    """Noise, dual, primal and upload of all agents: new w̃, new γ and c, all (n, d, p).

    ``sums`` are those of clipped gradients; ``n_rows``, ``noise_std`` and ``step_size`` are (n,). No
    noise is drawn where all standard deviations are 0.
    """
    shape, flat = released.shape, (released.shape[0], -1)
    new = np.empty((3, *released.reshape(flat).shape))
    _admm(
        key_of(seed), np.int64(round), _writable(sums, flat), n_rows, noise_std, bool(noise_std.any()),
        _writable(reg_gradient, flat), reg_share, _writable(released, flat), _writable(dual, flat),
        _writable(consensus, -1), 1.0 / step_size, rho, n_groups(), (new[0], new[1], new[2]),
    )  # fmt: skip
    return new[0].reshape(shape), new[1].reshape(shape), new[2].reshape(shape)


def column_means(uploads: Floats) -> Floats:
    """``uploads.mean(axis=0)``, by all threads and with the same bits: every column is added up in order."""
    flat = _writable(uploads, (len(uploads), -1))
    sums = np.zeros(flat.shape[1])
    _column_sums(flat, numba.get_num_threads(), sums)
    return np.asarray((sums / len(uploads)).reshape(uploads.shape[1:]))


def _writable(array: Floats, shape: int | tuple[int, ...]) -> Floats:
    """Contiguous and of this shape: for arrays that cannot be written to, all would be compiled again."""
    return np.require(array, requirements=["C", "W"]).reshape(shape)
