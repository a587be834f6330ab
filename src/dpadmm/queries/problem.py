"""The optimisation problem and the rows of a cohort.

``F(w) = mean_i [ mean_j ω_ij ℓ(a_ij, b_ij, w) ] + alpha · R(w)``, the paper's objective divided by n, with
``alpha = λ/n``. All agents have the same weight, whatever their number of rows. ω is the weight of a row divided by
its public bound, in [0, 1]. Without weights it is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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
from dpadmm.matrices.memmap import is_unnamed, portions
from dpadmm.queries.preconditioner import PORTION, Preconditioner
from dpadmm.regularizers.base import Regularizer

MIN_NORM = 1e-150
"""Lower limit of row norms. Squares of smaller numbers underflow, which would disable clipping."""

COMPACT_BYTES = 2**27
"""Rows up to this size are copied into cohort order (twice as fast) and aligned to cache lines (dense rows: a third
faster). Larger ones are read in place."""


@dataclass(frozen=True)
class Problem:
    """A loss, a regularizer and its weight ``alpha`` (the paper's λ/n).

    ``weighted`` (rows have weights) and ``intercept`` (the last feature is constant) are public.
    """

    loss: Loss
    regularizer: Regularizer
    alpha: float
    weighted: bool = False
    intercept: bool = False

    def __post_init__(self) -> None:
        if not (0.0 <= self.alpha < np.inf):
            raise StudyError(f"alpha (λ/n) must be a number ≥ 0, not {self.alpha!r}")

    @property
    def smooth(self) -> bool:
        """Whether Theorem 3 (smooth) applies, not Theorem 2."""
        return self.loss.smoothness is not None and self.regularizer.smoothness is not None

    def losses(self, rows: Rows, points: Floats) -> Floats:
        """Return each agent's mean weighted loss at its own point: (n, d, p) -> (n,)."""
        values = rows.weighted(self.loss.value(rows.labels, kernels.scores(rows, points)))
        return np.asarray(np.add.reduceat(values, rows.offsets[:-1]) / rows.n_rows)

    def objectives(self, rows: Rows, points: Floats) -> Floats:
        """Return ``f_i(points_i)``, mean loss plus alpha · R per agent: (n, d, p) -> (n,)."""
        return self.losses(rows, points) + self.alpha * self.regularizer.value(points)

    def objective(self, rows: Rows, weights: Floats) -> float:
        """Return ``F(w)`` at one point for all agents: (d, p) -> number."""
        points = np.broadcast_to(weights, (rows.n_agents, *weights.shape))
        return float(self.losses(rows, points).mean() + self.alpha * self.regularizer.value(weights))

    def gradient(self, rows: Rows, weights: Floats) -> Floats:
        """Return ``F'(w)``, with gradients of rows clipped to c1: (d, p) -> (d, p)."""
        points = np.broadcast_to(weights, (rows.n_agents, *weights.shape))
        data_term = kernels.gradient(rows, points, self.loss).mean(axis=0)
        return np.asarray(data_term + self.alpha * self.regularizer.gradient(weights))


class Sizes(Protocol):
    """Public sizes of a cohort: numbers of agents, of rows per agent and of columns."""

    @property
    def n_agents(self) -> int: ...
    @property
    def n_features(self) -> int: ...
    @property
    def n_rows(self) -> Integers: ...


@dataclass(frozen=True)
class PublicSizes:
    """Sizes of a cohort without its rows: ``n_rows`` (n,) and the number of columns."""

    n_rows: Integers
    n_features: int

    @property
    def n_agents(self) -> int:
        return len(self.n_rows)


@dataclass(frozen=True)
class Rows:
    """Rows of a cohort of agents: ragged, without padding, and not copied if large.

    Agent i owns ``features[order[offsets[i]:offsets[i+1]]]``. ``labels``, ``norms`` and the optional ``row_weights``
    (in [0, 1]) are in cohort order. :func:`make_rows` builds and checks instances.
    """

    features: Features
    labels: NDArray[Any]  # float64; int8 for large coded rows: exact, an eighth of the size
    order: NDArray[Any]  # int64; int32 for large coded rows
    offsets: Integers
    known_norms: Floats | None = None
    row_weights: Floats | None = None
    _cache: dict[str, tuple[Preconditioner, Rows]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def norms(self) -> Floats:
        """Row norms. For large rows they are computed on first use, since some methods need none."""
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
        """Number of stored feature entries of all rows."""
        stored = row_entries(self.features)
        return (
            int(stored[self.order].sum()) if isinstance(self.features, csr_array) else len(self.order) * int(stored[0])
        )

    @cached_property
    def matrix(self) -> NDArray[np.float64] | csr_array:
        """Copy of the features in cohort order, dense or CSR in float64, for small cohorts."""
        features = self.features[self.order]
        if not isinstance(features, np.ndarray):
            features = features.tocsr()
        return features.astype(np.float64, copy=False)

    @cached_property
    def in_file(self) -> bool:
        """Whether features are in an unnamed file, and so are processed in portions."""
        return is_unnamed(self.features)

    @cached_property
    def blocks(self) -> kernels.Blocks:
        """Units of work for the kernels (:func:`dpadmm.kernels.cut_blocks`)."""
        stored = row_entries(self.features)
        if isinstance(self.features, csr_array):
            entries = np.diff(np.concatenate([[0], np.cumsum(stored[self.order], dtype=np.int64)])[self.offsets])
        else:
            entries = self.n_rows * int(stored[0])
        return kernels.cut_blocks(self.offsets, entries, self.n_features)

    @cached_property
    def even_blocks(self) -> kernels.Blocks:
        """Blocks for one point common to all agents: equal numbers of rows, all with agent index 0."""
        n, stored = len(self.labels), row_entries(self.features)
        entries = n * (self.features.nnz // len(stored) if isinstance(self.features, csr_array) else int(stored[0]))
        return kernels.cut_blocks(
            np.array([0, n]), np.array([entries]), self.n_features, kernels.ENTRIES_PER_BLOCK // 8
        )

    def cohort(self, agents: Integers | None) -> Rows:
        """Return the rows of these agents only."""
        if agents is None:
            return self
        sizes = self.n_rows[agents]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        index = np.arange(offsets[-1]) + np.repeat(self.offsets[agents] - offsets[:-1], sizes)
        return self.take(index, offsets)

    def take(self, index: Integers | slice, offsets: Integers) -> Rows:
        """Return the rows at these positions of the cohort order, with new offsets."""
        weights = None if self.row_weights is None else self.row_weights[index]
        return Rows(self.features, self.labels[index], self.order[index], offsets, self.norms[index], weights)

    def weighted(self, values: Floats) -> Floats:
        """Multiply values of all rows (rows,) by the row weights."""
        return values if self.row_weights is None else values * self.row_weights

    def transformed(self, preconditioner: Preconditioner) -> Rows:
        """Return the preconditioned rows ``B·a``. The last result is cached."""
        return self._cached("transformed", preconditioner, self._transform)

    def with_transformed_norms(self, preconditioner: Preconditioner) -> Rows:
        """Return the same rows with the norms of ``B·a`` in place of their own. The last result is cached."""
        return self._cached("norms", preconditioner, self._replace_norms)

    def _cached(self, name: str, preconditioner: Preconditioner, compute: Callable[[Preconditioner], Rows]) -> Rows:
        cached = self._cache.get(name)
        if cached is None or not cached[0].same(preconditioner):
            self._cache.pop(name, None)
            cached = None  # free the old copy first: at most two copies of the rows are in memory
            cached = self._cache[name] = preconditioner.copy(), compute(preconditioner)
        return cached[1]

    def _transform(self, preconditioner: Preconditioner) -> Rows:
        return replace(self, features=preconditioner.rows(self.features), known_norms=None)

    def _replace_norms(self, preconditioner: Preconditioner) -> Rows:
        n, step = len(self.order), max(1, PORTION // self.n_features)
        norms, starts = np.empty(n), np.arange(0, n, step)
        for portion in portions(self.features, np.full(len(starts), 8 * PORTION)):
            for start in starts[portion].tolist():
                index = self.order[start : start + step]
                norms[start : start + step] = row_norms(preconditioner.rows(self.features[index]))
        return replace(self, known_norms=np.maximum(norms, MIN_NORM, out=norms))

    def subsample(self, share: float, *, seed: int, round: int) -> Rows:
        """Return a Poisson sample: each row with probability ``share``, by a generator for (seed, agent, round).

        If an agent's sample is empty, its mean gradient is zero.
        """
        chosen = [
            np.flatnonzero(np.random.default_rng([seed, 3, round, i]).random(m) < share)  # 1, 2: see engine/loop.py
            for i, m in enumerate(self.n_rows)
        ]
        index = np.concatenate([first + part for first, part in zip(self.offsets, chosen, strict=False)])
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in chosen])])
        return self.take(index, offsets)

    def portions(
        self, active: Integers | None, max_entries: int, *, width: int | None = None
    ) -> Iterator[tuple[int, Features, Floats, Floats | float]]:
        """Yield (agent, features, labels, weights) for portions of each agent's rows; weights default to 1.

        A portion has about ``max_entries`` stored entries, or entries of rows of this ``width``. The portions of an
        agent depend on its own rows only.
        """
        for i in range(self.n_agents) if active is None else active.tolist():
            owned = self.order[self.offsets[i] : self.offsets[i + 1]]
            stored = width or int(row_entries(self.features)[owned].sum()) // max(1, len(owned))
            step = max(1, max_entries // max(1, stored))
            for start in range(0, len(owned), step):
                index, first = owned[start : start + step], int(self.offsets[i]) + start
                portion = slice(first, first + len(index))
                weights = 1.0 if self.row_weights is None else self.row_weights[portion]
                yield i, self.features[index], self.labels[portion], weights

    def agent(self, i: int) -> Rows:
        """Return the rows of agent i as a cohort of one."""
        index = slice(self.offsets[i], self.offsets[i + 1])
        return self.take(index, np.array([0, self.offsets[i + 1] - self.offsets[i]]))


def make_rows(
    features: Features,
    labels: Floats,
    *,
    order: Integers | None = None,
    offsets: Integers | None = None,
    names: Sequence[str] = (),
    row_weights: Floats | None = None,
) -> Rows:
    """Check rows and labels and arrange them for a cohort.

    Parameters
    ----------
    features : (rows, d) dense, CSR or coded, float64 or float32
        Every row must have an L2 norm ≤ 1; see :func:`dpadmm.matrices.clipping.clip_rows`.
    labels : (rows,)
        ±1, 0..p−1 or numbers, depending on the loss.
    order, offsets
        Agent i owns rows ``order[offsets[i]:offsets[i+1]]``. By default one agent owns all rows.
    names : sequence of str, optional
        Names of the agents, for error messages.
    row_weights : (rows,), optional
        Factor of each row's loss in [0, 1]: a weight divided by its public bound.

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
        del norms  # 8 bytes per row, up to a fifth of its size
        if isinstance(features, CodedRows):  # 16 bytes would add a quarter to each row
            labels, order = _small(labels), order.astype(np.int32 if n < 2**31 else np.int64)
        return Rows(features, labels[order], order, offsets, None, row_weights)
    identity = np.arange(len(order))
    return Rows(_in_order(features, order), labels[order], identity, offsets, norms[order], row_weights)


def _checked_weights(weights: Floats, n: int) -> Floats:
    """Return the weights; raise DataError unless all are in [0, 1], as the sensitivity assumes."""
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
    """Return labels as int8 if exact, as for a few classes. Coded counts are below 1 or far larger."""
    if labels.min() < -127.0 or not 1.0 <= labels.max() <= 127.0:
        return labels
    small = labels.astype(np.int8)
    return small if np.array_equal(small, labels) else labels


def _in_order(features: Features, order: Integers) -> Features:
    """Return a copy in this order; of dense rows, aligned to cache lines."""
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
        name = names[int(i)].removeprefix("agent ") if names else str(i + 1)  # default names are "agent 1", ...
        count = offsets[i + 1] - offsets[i]
        raise DataError(
            f"agent {name} has {'no rows' if count == 0 else 'one row'}; every agent needs at least 2 "
            "(use fewer agents, or leave this one out)"
        )
