"""The compiled part of a round of Algorithm 1 after the gradient.

Every operation rounds as in the equations of ``methods/dp_admm.py``, so both give the same bits.
"""

from __future__ import annotations

import numpy as np

from dpadmm.kernels.compiled_normals import fill_one
from dpadmm.kernels.compiler import numba
from dpadmm.kernels.normals import key_of
from dpadmm.matrices.arrays import Floats, Integers

MAX_SERIAL_NUMBERS = 20_000
"""Size up to which one thread is used. Waking a second thread takes about as long."""

_serial = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=False)
_parallel = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=False, parallel=True)


@_serial
def _admm(first, last, arguments):  # type: ignore[no-untyped-def]
    key, round, sums, n_rows, noise_std, reg, alpha, before, dual, consensus, step_size, rho, new = arguments
    size = sums.shape[1]
    scratch, h, back, noisy = np.empty((2, (size + 1) // 2)), np.empty(size), -1.0 / rho, noise_std.any()
    for i in range(first, last):
        # short loops over few arrays, for which the compiler can prove that they do not overlap
        released, gamma, upload, pulled = new[0, i], new[1, i], new[2, i], 1.0 / step_size[i]
        shrink = 1.0 / (rho + pulled)
        if noisy:
            fill_one(key, round, i, scratch, h)
            for j in range(size):
                h[j] = h[j] * noise_std[i] + sums[i, j] / n_rows[i]
        else:
            h[:] = sums[i] / n_rows[i]
        for j in range(size):
            gamma[j] = (consensus[j] - before[i, j]) * rho + dual[i, j]
        for j in range(size):
            released[j] = before[i, j] * pulled + rho * consensus[j]
        for j in range(size):
            released[j] = (released[j] + gamma[j]) - h[j]
        for j in range(size):
            released[j] = (released[j] - alpha * reg[i, j]) * shrink
        for j in range(size):
            upload[j] = gamma[j] * back + released[j]


@_parallel
def _admm_parallel(n, parts, arguments):  # type: ignore[no-untyped-def]
    for g in numba.prange(parts):
        _admm(n * g // parts, n * (g + 1) // parts, arguments)


def admm_round(
    *,
    seed: int,
    round: int,
    sums: Floats,
    n_rows: Integers,
    noise_std: Floats,
    reg_gradient: Floats,
    alpha: float,
    released: Floats,
    dual: Floats,
    consensus: Floats,
    step_size: Floats,
    rho: float,
) -> tuple[Floats, Floats, Floats]:
    """Return the new w̃, the new γ and the upload c of all agents, each (n, d, p).

    ``sums`` are the sums of clipped gradients; ``n_rows``, ``noise_std`` and ``step_size`` are (n,). No noise is drawn
    if all standard deviations are 0.
    """
    shape, flat = released.shape, (len(released), -1)
    new = np.empty((3, len(released), released[0].size))
    arguments = (
        key_of(seed), np.int64(round), _writable(sums, flat), n_rows, noise_std,
        _writable(reg_gradient, flat), alpha, _writable(released, flat), _writable(dual, flat),
        _writable(consensus, -1), step_size, rho, new,
    )  # fmt: skip
    if sums.size <= MAX_SERIAL_NUMBERS:
        _admm(0, len(released), arguments)
    else:
        _admm_parallel(len(released), 4 * numba.get_num_threads(), arguments)
    return new[0].reshape(shape), new[1].reshape(shape), new[2].reshape(shape)


def _writable(array: Floats, shape: int | tuple[int, ...]) -> Floats:
    """Return a contiguous, writable array of this shape; each other layout would be compiled separately."""
    if not (array.flags.c_contiguous and array.flags.writeable):
        array = np.require(array, requirements=["C", "W"])
    return array.reshape(shape)
