"""Who owns which rows: partitions of a table into agents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpadmm.errors import DataError, StudyError
from dpadmm.matrices.arrays import Floats, Integers

_MOST_CLASSES = 1000
_LABEL_BINS = 10


@dataclass(frozen=True, eq=False)
class Partition:
    """Agent i owns the rows ``order[offsets[i]:offsets[i + 1]]``, in ascending order.

    Every row has one owner and no agent is empty.

    Examples
    --------
    >>> partition = Partition(np.array([1, 0, 2]), np.array([0, 1, 3]), ("a", "b"))
    >>> partition.n_agents, partition.sizes.tolist(), partition.rows(1).tolist()
    (2, [1, 2], [0, 2])
    """

    order: Integers
    offsets: Integers
    names: Sequence[str]

    def __post_init__(self) -> None:
        n_rows = len(self.order)
        if len(self.offsets) < 2 or self.offsets[0] != 0 or self.offsets[-1] != n_rows:
            raise StudyError(f"offsets must run from 0 to the number of rows, {n_rows}")
        empty = np.flatnonzero(self.sizes < 1)
        if len(empty):
            raise StudyError(f"agent {int(empty[0]) + 1} has no rows: every agent needs at least one")
        if len(self.names) != self.n_agents:
            raise StudyError(f"{self.n_agents} agents but {len(self.names)} names")
        owned = np.zeros(n_rows, dtype=bool)
        if self.order.min() >= 0 and self.order.max() < n_rows:
            owned[self.order] = True
        if not owned.all():
            raise StudyError(f"order must hold every row from 0 to {n_rows - 1} exactly once")

    @property
    def n_agents(self) -> int:
        """n, the number of agents."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Integers:
        """m_i, the number of rows of every agent."""
        return np.diff(self.offsets)

    def rows(self, agent: int) -> Integers:
        """The rows of one agent (counted from 0), ascending."""
        return self.order[self.offsets[agent] : self.offsets[agent + 1]]


def equal(n_rows: int, n_agents: int, rng: np.random.Generator) -> Partition:
    """Random groups whose sizes differ by at most one."""
    return of_codes(equal_owners(n_rows, n_agents, rng), numbered(n_agents))


def equal_owners(n_rows: int, n_agents: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """The agent (counted from 0) of every row in :func:`equal`."""
    _check_counts(n_rows, n_agents)
    return _owners(n_rows // n_agents + (np.arange(n_agents) < n_rows % n_agents), rng)


def unequal(n_rows: int, n_agents: int, rng: np.random.Generator, spread: float = 1.0) -> Partition:
    """Random groups whose sizes follow a log-normal law: shares ∝ ``exp(spread · N(0, 1))``.

    Every agent has at least one row; ``spread`` 0 gives equal sizes.
    """
    _check_counts(n_rows, n_agents)
    if not (0.0 <= spread < math.inf):
        raise StudyError(f"spread must be a number of at least 0, not {spread!r}")
    exponents = spread * rng.standard_normal(n_agents)
    shares = np.exp(exponents - exponents.max())
    sizes = 1 + _apportion(n_rows - n_agents, shares / shares.sum())
    return of_codes(_owners(sizes, rng), numbered(n_agents))


def label_skewed(labels: ArrayLike, n_agents: int, rng: np.random.Generator, concentration: float = 0.5) -> Partition:
    """Agents with different mixtures of labels: every class is divided by its own Dirichlet draw.

    A small ``concentration`` gives agents that hold few classes, a large one gives equal mixtures. Labels
    that are not whole numbers (regression) are first put into 10 bins of equal counts. Every agent has at
    least two rows, where there are enough.

    Examples
    --------
    >>> labels = np.repeat([-1.0, 1.0], 500)
    >>> partition = label_skewed(labels, 3, np.random.default_rng(0), concentration=0.1)
    >>> positive = [float(np.mean(labels[partition.rows(i)] > 0)) for i in range(3)]
    >>> max(positive) - min(positive) > 0.5
    True
    """
    values = np.asarray(labels, dtype=np.float64)
    if values.ndim != 1:
        raise DataError(f"labels must be one number per row, not an array of shape {values.shape}")
    if not np.isfinite(values).all():
        raise DataError(f"row {int(np.argmin(np.isfinite(values))) + 1}: the label is missing or not finite")
    _check_counts(len(values), n_agents)
    if not (1e-6 <= concentration <= 1e6):
        raise StudyError(f"concentration must lie between 1e-6 and 1e6, not {concentration!r}")
    owners = np.empty(len(values), dtype=np.int64)
    label_bins = _label_bins(values)
    for label in range(int(label_bins.max()) + 1):
        members = rng.permutation(np.flatnonzero(label_bins == label))
        shares = rng.dirichlet(np.full(n_agents, float(concentration)))
        owners[members] = np.repeat(np.arange(n_agents), _apportion(len(members), shares))
    _fill_small_agents(owners, n_agents, rng)
    return of_codes(owners, numbered(n_agents))


def by_group(groups: ArrayLike) -> Partition:
    """One agent per distinct value, in sorted order; the value is the agent's name."""
    values = np.asarray(groups)
    if values.ndim != 1 or len(values) == 0:
        raise DataError(f"groups must be one value per row, not an array of shape {values.shape}")
    missing = _is_missing(values)
    if missing.any():
        raise DataError(
            f"row {int(np.argmax(missing)) + 1}: the group is missing, so the row has no owner: "
            "fill it in or remove the row"
        )
    try:
        distinct, owners = np.unique(values, return_inverse=True)
    except TypeError:  # values of different types cannot be compared
        distinct, owners = np.unique(values.astype(str), return_inverse=True)
    return of_codes(owners.astype(np.int64), tuple(str(value) for value in distinct))


def holdout(n_rows: int, n_test: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
    """Random train and test rows, each ascending."""
    if n_rows < 1:
        raise StudyError("there are no rows to split")
    if not (0 <= n_test < n_rows):
        raise StudyError(
            f"cannot hold out {n_test} of {n_rows} rows: choose a number from 0 to {n_rows - 1}, "
            "so that rows remain to train on"
        )
    shuffled = rng.permutation(n_rows)
    return np.sort(shuffled[n_test:]), np.sort(shuffled[:n_test])


def _check_counts(n_rows: int, n_agents: int) -> None:
    if n_agents < 1:
        raise StudyError(f"the number of agents must be at least 1, not {n_agents}")
    if n_agents > n_rows:
        raise StudyError(
            f"{n_agents} agents cannot share {n_rows} rows, since each needs at least one: ask for fewer agents"
        )


def _apportion(total: int, shares: Floats) -> Integers:
    """Whole numbers that sum to ``total`` and lie within one of ``total · shares`` (largest remainders)."""
    quotas = total * shares
    counts = np.floor(quotas).astype(np.int64)
    left_over = total - int(counts.sum())
    if left_over > 0:
        counts[np.argsort(counts - quotas, kind="stable")[:left_over]] += 1
    elif left_over < 0:  # shares summed to a rounding error more than 1
        counts[int(np.argmax(counts))] += left_over
    return counts


def _label_bins(values: Floats) -> Integers:
    distinct, bins = np.unique(values, return_inverse=True)
    if len(distinct) <= _MOST_CLASSES and bool((distinct == np.round(distinct)).all()):
        return bins.astype(np.int64)
    edges = np.quantile(values, np.arange(1, _LABEL_BINS) / _LABEL_BINS)
    return np.searchsorted(edges, values, side="right").astype(np.int64)


def _fill_small_agents(owners: Integers, n_agents: int, rng: np.random.Generator) -> None:
    """Give agents without two rows, which training needs, random rows of those that have more; one at least."""
    least = 2 if len(owners) >= 2 * n_agents else 1
    lacking = least - np.bincount(owners, minlength=n_agents)
    takers = np.repeat(np.arange(n_agents), np.maximum(lacking, 0))
    if len(takers):
        shuffled = rng.permutation(len(owners))
        by_owner = shuffled[np.argsort(owners[shuffled], kind="stable")]
        sizes = np.bincount(owners, minlength=n_agents)
        place = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        spare = rng.permutation(by_owner[place >= least])
        owners[spare[: len(takers)]] = takers


def _is_missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    missing = np.asarray(values != values, dtype=bool)  # NaN and NaT
    if values.dtype.kind in "OUS":
        missing |= [value is None or value in ("", b"") for value in values]
    return missing


def _owners(sizes: Integers, rng: np.random.Generator) -> NDArray[np.int32]:
    return rng.permutation(np.repeat(np.arange(len(sizes), dtype=np.int32), sizes))


def of_codes(owners: NDArray[np.integer[Any]], names: Sequence[str]) -> Partition:
    """Row j belongs to ``names[owners[j]]``."""
    sizes = np.bincount(owners, minlength=len(names))
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
    order = np.argsort(owners, kind="stable").astype(np.int64, copy=False)
    return Partition(order, offsets.astype(np.int64), names)


@dataclass(frozen=True)
class numbered(Sequence[str]):
    """Names of agents that have none, made when they are asked for: of 10⁶ they would take 60 MB.

    Examples
    --------
    >>> names = numbered(3)
    >>> names[0], names[-1], names[1:], len(names)
    ('agent 1', 'agent 3', ('agent 2', 'agent 3'), 3)
    """

    n_agents: int

    def __len__(self) -> int:
        return self.n_agents

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[str, ...]: ...
    def __getitem__(self, place: int | slice) -> str | tuple[str, ...]:
        if isinstance(place, slice):
            return tuple(f"agent {i + 1}" for i in range(self.n_agents)[place])
        return f"agent {range(self.n_agents)[place] + 1}"
