"""The noise that a run added, recovered from public data, and tests of its independence."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from scipy import stats

from dpadmm.engine.loop import RoundView
from dpadmm.matrices.arrays import Floats
from dpadmm.methods import DpAdmm
from dpadmm.queries.problem import Problem

CHANCE = 1e-8
"""How often a single comparison may fail by chance; a test makes a few dozen."""


class RoundRecorder:
    """An observer that stores the view of every round."""

    def __init__(self) -> None:
        self.consensus: list[Floats] = []
        self.released: list[Floats] = []

    def __call__(self, view: RoundView) -> None:
        self.consensus.append(np.array(view.consensus))
        self.released.append(np.array(view.released))


def released_gradients(seen: RoundRecorder, method: DpAdmm, problem: Problem) -> Floats:
    """Return h_i^k of every round and agent, (t, n, d, p), computed from the models of all agents.

    For rows of zeros, whose gradients are zero, this is the noise itself.
    """
    assert problem.alpha == 0.0 or problem.regularizer.name == "none"
    released = [np.zeros_like(seen.released[0]), *seen.released]
    consensus = [np.zeros_like(seen.consensus[0]), *seen.consensus]
    dual, out = np.zeros_like(released[0]), []
    for k in range(1, len(released)):
        pull = 1.0 / method.step_sizes(k)[:, None, None]
        if k > 1:
            dual = dual - method.rho * (released[k - 1] - consensus[k - 1])
        before = dual + method.rho * consensus[k - 1] + released[k - 1] * pull
        out.append(before - released[k] * (method.rho + pull))
    return np.array(out)


def check_independent(noise: Floats) -> None:
    """Check standard noise, (t, n, d, p): rounds, agents, coordinates and outputs are independent."""
    t, n, d, p = noise.shape
    blocks = noise.reshape(t * n, d * p)
    _check_nothing_twice(blocks)
    _check_pairs(blocks)
    by_round = [(k * n + i, k * n + j) for k in range(t) for i, j in combinations(range(n), 2)]
    by_agent = [(k * n + i, j * n + i) for i in range(n) for k, j in combinations(range(t), 2)]
    in_turn = [(k * n + i, (k + 1) * n + i) for i in range(n) for k in range(t - 1)]
    for pairs in (by_round, by_agent, in_turn, list(combinations(range(t * n), 2))):
        _check_sum_of_products(blocks, pairs)
    outputs = noise.transpose(0, 1, 3, 2).reshape(t * n, p, d)
    for lag in (1, 2, 3, p, d // 2):  # within one upload
        _near_zero((blocks[:, lag:] * blocks[:, :-lag]).ravel(), f"coordinates at distance {lag}")
    for a, b in combinations(range(p), 2):
        _near_zero((outputs[:, a] * outputs[:, b]).ravel(), f"outputs {a} and {b}")


def check_scale(noise: Floats) -> None:
    """Check that standard noise, (t, n, d, p), has variance 1 for each agent, round, coordinate and output."""
    t, n = noise.shape[:2]
    for axis, name in enumerate(("round", "agent", "coordinate", "output")):
        for which, values in enumerate(np.moveaxis(noise, axis, 0)):
            _variance_one(values.ravel(), f"{name} {which}")
    for k in range(t):
        for i in range(n):
            _variance_one(noise[k, i].ravel(), f"round {k}, agent {i}")
    _variance_one(noise.mean(axis=1).ravel() * np.sqrt(n), "the sum of all agents")
    _variance_one(noise.mean(axis=0).ravel() * np.sqrt(t), "the sum of all rounds")
    _near_zero(noise.ravel(), "the mean")
    assert stats.kstest(noise.ravel(), "norm").pvalue > CHANCE


def check_nothing_shared(*runs: Floats) -> None:
    """Check that blocks of standard noise of several runs are independent."""
    size = min(run[0, 0].size for run in runs)
    of = [run.reshape(-1, run[0, 0].size)[:, :size] for run in runs]
    blocks = np.concatenate(of)
    _check_nothing_twice(blocks)
    _check_pairs(blocks)
    starts = np.cumsum([0, *map(len, of)])
    for a, b in combinations(range(len(runs)), 2):
        pairs = [(i, j) for i in range(starts[a], starts[a + 1]) for j in range(starts[b], starts[b + 1])]
        _check_sum_of_products(blocks, pairs)


def _check_nothing_twice(blocks: Floats) -> None:
    """Check that no value, up to its sign, occurs twice anywhere, except for a few by chance."""
    values = np.abs(np.round(blocks, 9)).ravel()
    twice = values.size - len(np.unique(values))
    assert twice <= 5 + 1e-3 * values.size, f"{twice} of {values.size} numbers are there twice"


def _check_pairs(blocks: Floats) -> None:
    """Check that no two blocks are equal at any shift or reversed, and none is a combination of others."""
    many, size = blocks.shape
    spectra = np.fft.rfft(blocks, axis=1)
    limit = stats.norm.isf(CHANCE / (many**2 * size)) * 1.1 * np.sqrt(size)  # products have wider tails
    for i in range(many - 1):
        for other in (spectra[i + 1 :].conj(), spectra[i + 1 :]):
            shifted = np.fft.irfft(spectra[i] * other, size, axis=1)
            worst = np.unravel_index(np.abs(shifted).argmax(), shifted.shape)
            assert np.abs(shifted[worst]) < limit, f"blocks {i} and {i + 1 + int(worst[0])} are alike"
    if many < size:
        values = np.linalg.eigvalsh(np.corrcoef(blocks))
        ratio = np.sqrt(many / size)  # Marchenko and Pastur: in (1 ± √(blocks/size))²
        assert values[0] > 0.6 * (1.0 - ratio) ** 2, "a block is a combination of others"
        assert values[-1] < 1.5 * (1.0 + ratio) ** 2, "blocks have something in common"


def _check_sum_of_products(blocks: Floats, pairs: list[tuple[int, int]]) -> None:
    if pairs:
        one, other = np.array(pairs).T
        products = (blocks[one] * blocks[other]).sum(axis=1)
        limit = stats.norm.isf(CHANCE) * np.sqrt(blocks.shape[1] / len(pairs))
        assert abs(products.mean()) < limit, "blocks have something in common"


def _near_zero(values: Any, what: str) -> None:
    limit = stats.norm.isf(CHANCE) * values.std() / np.sqrt(values.size)
    assert abs(values.mean()) < limit, what


def _variance_one(values: Any, what: str) -> None:
    total, size = float(np.square(values).sum()), values.size
    assert stats.chi2.ppf(CHANCE, size) < total < stats.chi2.isf(CHANCE, size), f"{what}: {total / size:.3f}"
