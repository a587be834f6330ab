"""The objective and the rows of a cohort.

``F(w) = mean_i [ mean_j ω_ij ℓ(a_ij, b_ij, w) ] + reg_share · R(w)``, the paper's objective divided by n, with
``reg_share = λ/n``. Every agent has the same weight, for any number of rows. ω is a row's weight over its public
bound, from 0 to 1; without weights it is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dpadmm import kernels
from dpadmm.errors import DataError, StudyError
from dpadmm.losses.base import Loss
from dpadmm.matrices.arrays import Floats, Integers, aligned_empty, flushed
from dpadmm.matrices.clipping import as_matrix, check_norms, row_norms, without_subnormals
from dpadmm.matrices.coded import CodedRows
from dpadmm.matrices.features import Features, layout, row_entries
from dpadmm.matrices.memmap import is_nameless, portions
from dpadmm.queries.preconditioner import PORTION, Preconditioner
from dpadmm.regularizers.base import Regularizer

MIN_NORM = 1e-150
"""Lower bound on stored norms. Squares of smaller numbers underflow, which would disable clipping."""

COMPACT_BYTES = 2**27
"""Rows are copied up to this size, into the cohort's order (twice as fast) and to where a cache line begins (dense rows
by a third); larger ones are read in place."""


@dataclass(frozen=True)
class Problem:
    """A loss, a regularizer and its weight ``reg_share`` (the paper's λ/n).

    It is public whether rows are ``weighted``, and whether their last feature is the constant, ``intercept``.
    """

    loss: Loss
    regularizer: Regularizer
    reg_share: float
    weighted: bool = False
    intercept: bool = False

    def __post_init__(self) -> None:
        if not (0.0 <= self.reg_share < np.inf):
            raise StudyError(f"reg_share (λ/n) must be a number ≥ 0, not {self.reg_share!r}")

    @property
    def smooth(self) -> bool:
        """Whether Theorem 3 (smooth) applies; otherwise Theorem 2 does."""
        return self.loss.smoothness is not None and self.regularizer.smoothness is not None

    def losses(self, rows: Rows, points: Floats) -> Floats:
        """Mean loss of every agent's rows, times their weights, at its own point: (n, d, p) -> (n,)."""
        values = rows.weighted(self.loss.value(rows.labels, kernels.scores(rows, points)))
        return np.asarray(np.add.reduceat(values, rows.offsets[:-1]) / rows.n_rows)

    def objectives(self, rows: Rows, points: Floats) -> Floats:
        """``f_i(points_i)``: mean loss plus reg_share · R, per agent: (n, d, p) -> (n,)."""
        return self.losses(rows, points) + self.reg_share * self.regularizer.value(points)

    def objective(self, rows: Rows, weights: Floats) -> float:
        """``F(w)`` at one point for all agents: (d, p) -> number."""
        points = np.broadcast_to(weights, (rows.n_agents, *weights.shape))
        return float(self.losses(rows, points).mean() + self.reg_share * self.regularizer.value(weights))

    def gradient(self, rows: Rows, weights: Floats) -> Floats:
        """``F'(w)``: (d, p) -> (d, p). Gradients of rows are clipped to c1."""
        points = np.broadcast_to(weights, (rows.n_agents, *weights.shape))
        data_term = kernels.gradient(rows, points, self.loss).mean(axis=0)
        return np.asarray(data_term + self.reg_share * self.regularizer.gradient(weights))


class Sizes(Protocol):
    """Public sizes of a cohort: number of agents, rows of each agent, and columns."""

    @property
    def n_agents(self) -> int: ...
    @property
    def n_features(self) -> int: ...
    @property
    def n_rows(self) -> Integers: ...


@dataclass(frozen=True)
class PublicSizes:
    """The sizes of a cohort without its rows: ``n_rows`` (n,) and the number of columns."""

    n_rows: Integers
    n_features: int

    @property
    def n_agents(self) -> int:
        return len(self.n_rows)


@dataclass(frozen=True)
class Rows:
    """The rows of a cohort of agents: ragged, without padding and, when large, without a copy.

    Agent i owns ``features[order[offsets[i]:offsets[i+1]]]``; ``labels``, ``norms`` and ``row_weights``, from 0 to 1
    if there are any, are in cohort order.
    Build it with :func:`make_rows`, which checks everything.
    """

    features: Features
    labels: NDArray[Any]  # float64, or int8 where coded rows are large: exact, and an eighth of the size
    order: NDArray[Any]  # int64, or int32 likewise
    offsets: Integers
    known_norms: Floats | None = None
    row_weights: Floats | None = None

    @cached_property
    def norms(self) -> Floats:
        """Row norms. For large rows they are computed on first use, since some methods do not need them."""
        if self.known_norms is not None:
            return self.known_norms
        norms: Floats = row_norms(self.features)[self.order]
        return np.maximum(norms, MIN_NORM, out=norms)

    @cached_property
    def n_agents(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def n_features(self) -> int:
        return int(self.features.shape[1])

    @cached_property
    def n_rows(self) -> Integers:
        """m_i of every agent."""
        return np.diff(self.offsets)

    @cached_property
    def n_entries(self) -> int:
        """Stored feature entries of all rows."""
        stored = row_entries(self.features)
        return (
            int(stored[self.order].sum()) if isinstance(self.features, csr_array) else len(self.order) * int(stored[0])
        )

    @cached_property
    def matrix(self) -> NDArray[np.float64] | csr_array:
        """The features in the cohort's order, dense or CSR in float64: a copy, for small cohorts."""
        features = self.features[self.order]
        if not isinstance(features, np.ndarray):
            features = features.tocsr()
        return features.astype(np.float64, copy=False)

    @cached_property
    def in_file(self) -> bool:
        """Whether features are in a nameless file, and so are worked on portion by portion."""
        return is_nameless(self.features)

    @cached_property
    def blocks(self) -> kernels.Blocks:
        """The kernel's units of work; see :func:`dpadmm.kernels.cut_blocks`."""
        stored = row_entries(self.features)
        if isinstance(self.features, csr_array):
            entries = np.diff(np.concatenate([[0], np.cumsum(stored[self.order], dtype=np.int64)])[self.offsets])
        else:
            entries = self.n_rows * int(stored[0])
        return kernels.cut_blocks(self.offsets, entries, self.n_features)

    @cached_property
    def even_blocks(self) -> kernels.Blocks:
        """Units of work for one point of all agents: blocks of equal numbers of rows, all assigned to agent 0."""
        n, stored = len(self.labels), row_entries(self.features)
        entries = n * (self.features.nnz // len(stored) if isinstance(self.features, csr_array) else int(stored[0]))
        return kernels.cut_blocks(
            np.array([0, n]), np.array([entries]), self.n_features, kernels.ENTRIES_PER_BLOCK // 8
        )

    def cohort(self, agents: Integers | None) -> Rows:
        """Return the rows of these agents."""
        if agents is None:
            return self
        sizes = self.n_rows[agents]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        index = np.arange(offsets[-1]) + np.repeat(self.offsets[agents] - offsets[:-1], sizes)
        return self.take(index, offsets)

    def take(self, index: Integers | slice, offsets: Integers) -> Rows:
        """Return the rows at these positions of the cohort's order, with new offsets of agents."""
        weights = None if self.row_weights is None else self.row_weights[index]
        return Rows(self.features, self.labels[index], self.order[index], offsets, self.norms[index], weights)

    def weighted(self, values: Floats) -> Floats:
        """Return values of all rows (rows,) times their weights."""
        return values if self.row_weights is None else values * self.row_weights

    def transformed(self, preconditioner: Preconditioner) -> Rows:
        """Return the rows ``B·a``. The result is cached until another preconditioner is used."""
        return self._cached("_transformed", preconditioner, self._transform)

    def with_transformed_norms(self, preconditioner: Preconditioner) -> Rows:
        """Return the rows with the norms of ``B·a`` in place of their own, cached in the same way."""
        return self._cached("_transformed_norms", preconditioner, self._replace_norms)

    def _cached(self, name: str, preconditioner: Preconditioner, make: Callable[[Preconditioner], Rows]) -> Rows:
        cached: tuple[Preconditioner, Rows] | None = self.__dict__.get(name)
        if cached is None or not cached[0].same(preconditioner):
            self.__dict__.pop(name, None)
            cached = None  # free the old copy of the rows before the new one is computed
            cached = self.__dict__[name] = preconditioner.copy(), make(preconditioner)
        return cached[1]

    def _transform(self, preconditioner: Preconditioner) -> Rows:
        features = preconditioner.rows(self.features)
        return replace(self, features=features, known_norms=None)

    def _replace_norms(self, preconditioner: Preconditioner) -> Rows:
        n, step = len(self.order), max(1, PORTION // self.n_features)
        norms, starts = np.empty(n), np.arange(0, n, step)
        for few in portions(self.features, np.full(len(starts), 8 * PORTION)):
            for start in starts[few].tolist():
                some = self.order[start : start + step]
                norms[start : start + step] = row_norms(preconditioner.rows(self.features[some]))
        return replace(self, known_norms=np.maximum(norms, MIN_NORM, out=norms))

    def subsample(self, share: float, *, seed: int, round: int) -> Rows:
        """Return a random subsample, each row with probability ``share``: a function of (seed, agent, round).

        An agent may have no rows in it. Its mean gradient is then zero.
        """
        chosen = [
            np.flatnonzero(np.random.default_rng([seed, 3, round, i]).random(m) < share)  # 1, 2: see training
            for i, m in enumerate(self.n_rows)
        ]
        index = np.concatenate([first + part for first, part in zip(self.offsets, chosen, strict=False)])
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in chosen])])
        return self.take(index, offsets)

    def portions(
        self, active: Integers | None, most: int, *, width: int | None = None
    ) -> Iterator[tuple[int, Features, Floats, Floats | float]]:
        """Yield an agent, a portion of its rows, their labels and weights (1 if there are none).

        A portion has about ``most`` stored entries, or entries of rows of ``width``. The portions of an agent depend on
        its own rows only.
        """
        for i in range(self.n_agents) if active is None else active.tolist():
            mine = self.order[self.offsets[i] : self.offsets[i + 1]]
            stored = width or int(row_entries(self.features)[mine].sum()) // max(1, len(mine))
            step = max(1, most // max(1, stored))
            for start in range(0, len(mine), step):
                some, first = mine[start : start + step], int(self.offsets[i]) + start
                these = slice(first, first + len(some))
                weights = 1.0 if self.row_weights is None else self.row_weights[these]
                yield i, self.features[some], self.labels[these], weights

    def agent(self, i: int) -> Rows:
        """Return the rows of agent i as a cohort of one."""
        mine = slice(self.offsets[i], self.offsets[i + 1])
        return self.take(mine, np.array([0, self.offsets[i + 1] - self.offsets[i]]))


def make_rows(
    features: Features,
    labels: Floats,
    *,
    order: Integers | None = None,
    offsets: Integers | None = None,
    names: Sequence[str] = (),
    row_weights: Floats | None = None,
) -> Rows:
    """Check rows and labels and lay them out for a cohort.

    Parameters
    ----------
    features : (rows, d) dense, CSR or coded, float64 or float32
        Every row must have an L2 norm ≤ 1; see :func:`dpadmm.matrices.clipping.clip_rows`.
    labels : (rows,)
        ±1, 0..p−1 or numbers, as the loss requires.
    order, offsets
        Agent i owns rows ``order[offsets[i]:offsets[i+1]]``. By default one agent owns all rows.
    names : sequence of str, optional
        Names of the agents, for messages.
    row_weights : (rows,), optional
        Factors of the rows' losses, from 0 to 1: weights divided by their public bound.

    Examples
    --------
    >>> rows = make_rows(np.eye(4), np.array([1.0, -1.0, 1.0, -1.0]), offsets=np.array([0, 2, 4]))
    >>> rows.n_agents, rows.n_rows.tolist()
    (2, [2, 2])
    """
    features = without_subnormals(as_matrix(features))
    labels = flushed(np.ascontiguousarray(labels, dtype=np.float64))
    n = features.shape[0]
    if labels.shape != (n,):
        raise DataError(f"features have {n} rows but labels have shape {labels.shape}; give one label per row")
    in_place = order is None
    order = np.arange(n) if order is None else np.ascontiguousarray(order, dtype=np.int64)
    offsets = np.array([0, len(order)]) if offsets is None else np.ascontiguousarray(offsets, dtype=np.int64)
    if not in_place:
        _check_owners(order, n)
    _check_agents(order, offsets, names)
    bad = np.flatnonzero(~np.isfinite(labels))
    if len(bad):
        raise DataError(f"label of row {bad[0] + 1} is {labels[bad[0]]}; remove the row or give it a label")
    if row_weights is not None:
        row_weights = _checked_weights(row_weights, n)
    norms = row_norms(features)
    check_norms(norms)
    np.maximum(norms, MIN_NORM, out=norms)
    in_place = in_place or (len(order) == n and order[0] == 0 and bool(np.all(order[1:] > order[:-1])))
    if in_place:
        return Rows(features, labels, order, offsets, norms, row_weights)
    row_weights = None if row_weights is None else row_weights[order]
    if _nbytes(features) > COMPACT_BYTES:
        del norms  # 8 bytes a row, which may be a fifth of its size
        if isinstance(features, CodedRows):  # 16 bytes would be a quarter of a row
            labels, order = _small(labels), order.astype(np.int32 if n < 2**31 else np.int64)
        return Rows(features, labels[order], order, offsets, None, row_weights)
    here = np.arange(len(order))
    return Rows(_in_order(features, order), labels[order], here, offsets, norms[order], row_weights)


def _checked_weights(weights: Floats, n: int) -> Floats:
    """Check that weights are in [0, 1]: a larger weight would exceed the sensitivity."""
    weights = flushed(np.ascontiguousarray(weights, dtype=np.float64))
    if weights.shape != (n,):
        raise DataError(f"features have {n} rows but weights have shape {weights.shape}; give one weight per row")
    bad = np.flatnonzero(~((weights >= 0.0) & (weights <= 1.0)))
    if len(bad):
        raise DataError(
            f"the weight of row {bad[0] + 1} is {weights[bad[0]]}; divided by its public bound it must lie in [0, 1]"
        )
    return weights


def _small(labels: Floats) -> NDArray[Any]:
    """Return labels as int8 if this is exact, as for few classes. Coded counts are below 1 or far larger."""
    if labels.min() < -127.0 or not 1.0 <= labels.max() <= 127.0:
        return labels
    small = labels.astype(np.int8)
    return small if np.array_equal(small, labels) else labels


def _in_order(features: Features, order: Integers) -> Features:
    """Return a copy in this order. Dense rows are aligned to cache lines."""
    if not isinstance(features, np.ndarray):
        return features[order]
    out = aligned_empty((len(order), features.shape[1]), features.dtype)
    return np.take(features, order, axis=0, out=out, mode="clip")


def _nbytes(features: Features) -> int:
    return sum(each.nbytes for each in layout(features)[1])


def _check_owners(order: Integers, n: int) -> None:
    if len(order) and (order.min() < 0 or order.max() >= n):
        wrong = order.min() if order.min() < 0 else order.max()
        raise DataError(f"the partition names row {wrong + 1}, but there are {n} rows")
    owned = np.zeros(n, dtype=bool)
    owned[order] = True
    if np.count_nonzero(owned) != len(order):
        raise DataError("the partition gives a row to two agents; every row may have one owner only")


def _check_agents(order: Integers, offsets: Integers, names: Sequence[str]) -> None:
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(order) or np.any(np.diff(offsets) < 0):
        raise DataError("offsets must rise from 0 to the number of rows, one interval per agent")
    for i in np.flatnonzero(np.diff(offsets) < 2):
        name = names[int(i)].removeprefix("agent ") if names else str(i + 1)  # as agents without a name are called
        count = offsets[i + 1] - offsets[i]
        raise DataError(
            f"agent {name} has {'no rows' if count == 0 else 'one row'}; every agent needs at least 2 "
            "(fewer agents, or leave this one out)"
        )
