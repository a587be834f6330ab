"""Partitions of a table into agents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpadmm.errors import DataError, StudyError
from dpadmm.matrices.arrays import Floats, Integers

_MAX_CLASSES = 1000
_LABEL_BINS = 10


@dataclass(frozen=True, eq=False)
class Partition:
    """The rows of each agent: agent i owns ``order[offsets[i]:offsets[i + 1]]``, in ascending order.

    Each row has one owner, and each agent has at least one row.

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
        """Number of agents n."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Integers:
        """Number of rows m_i of each agent."""
        return np.diff(self.offsets)

    def rows(self, agent: int) -> Integers:
        """Return the rows of an agent (counted from 0), in ascending order."""
        return self.order[self.offsets[agent] : self.offsets[agent + 1]]


def equal(n_rows: int, n_agents: int, rng: np.random.Generator) -> Partition:
    """Assign rows at random to agents whose sizes differ by at most one."""
    return of_codes(equal_owners(n_rows, n_agents, rng), NumberedNames(n_agents))


def equal_owners(n_rows: int, n_agents: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Return the agent (counted from 0) of each row in :func:`equal`."""
    _check_counts(n_rows, n_agents)
    return _owners(n_rows // n_agents + (np.arange(n_agents) < n_rows % n_agents), rng)


def unequal(n_rows: int, n_agents: int, rng: np.random.Generator, spread: float = 1.0) -> Partition:
    """Assign rows at random to agents with log-normal sizes: shares ∝ ``exp(spread · N(0, 1))``.

    Each agent has at least one row. ``spread`` 0 gives equal sizes.
    """
    _check_counts(n_rows, n_agents)
    if not (0.0 <= spread < math.inf):
        raise StudyError(f"spread must be a number of at least 0, not {spread!r}")
    exponents = spread * rng.standard_normal(n_agents)
    shares = np.exp(exponents - exponents.max())
    sizes = 1 + _apportion(n_rows - n_agents, shares / shares.sum())
    return of_codes(_owners(sizes, rng), NumberedNames(n_agents))


def label_skewed(labels: ArrayLike, n_agents: int, rng: np.random.Generator, concentration: float = 0.5) -> Partition:
    """Assign rows to agents with different mixtures of labels: a Dirichlet draw divides each class among the agents.

    With a small ``concentration``, agents have few classes; with a large one, equal mixtures. Labels that are not
    integers (regression) are first put into 10 bins of equal counts. Each agent has at least two rows if there are
    enough.

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
    return of_codes(owners, NumberedNames(n_agents))


def by_group(groups: ArrayLike) -> Partition:
    """Assign rows to one agent per distinct value, in sorted order. The value is the name of the agent."""
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
    """Return random train and test rows, each in ascending order."""
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
    """Return integers that sum to ``total`` and differ from ``total · shares`` by less than 1 (largest remainders)."""
    quotas = total * shares
    counts = np.floor(quotas).astype(np.int64)
    left_over = total - int(counts.sum())
    if left_over > 0:
        counts[np.argsort(counts - quotas, kind="stable")[:left_over]] += 1
    elif left_over < 0:  # the shares sum to slightly more than 1
        counts[int(np.argmax(counts))] += left_over
    return counts


def _label_bins(values: Floats) -> Integers:
    distinct, bins = np.unique(values, return_inverse=True)
    if len(distinct) <= _MAX_CLASSES and bool((distinct == np.round(distinct)).all()):
        return bins.astype(np.int64)
    edges = np.quantile(values, np.arange(1, _LABEL_BINS) / _LABEL_BINS)
    return np.searchsorted(edges, values, side="right").astype(np.int64)


def _fill_small_agents(owners: Integers, n_agents: int, rng: np.random.Generator) -> None:
    """Move random rows to agents with fewer than the two rows that training needs, or than one if rows are scarce."""
    minimum = 2 if len(owners) >= 2 * n_agents else 1
    lacking = minimum - np.bincount(owners, minlength=n_agents)
    receivers = np.repeat(np.arange(n_agents), np.maximum(lacking, 0))
    if len(receivers):
        shuffled = rng.permutation(len(owners))
        by_owner = shuffled[np.argsort(owners[shuffled], kind="stable")]
        sizes = np.bincount(owners, minlength=n_agents)
        rank = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        spare = rng.permutation(by_owner[rank >= minimum])
        owners[spare[: len(receivers)]] = receivers


def _is_missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    missing = np.asarray(values != values, dtype=bool)  # NaN and NaT
    if values.dtype.kind in "OUS":
        missing |= [value is None or value in ("", b"") for value in values]
    return missing


def _owners(sizes: Integers, rng: np.random.Generator) -> NDArray[np.int32]:
    return rng.permutation(np.repeat(np.arange(len(sizes), dtype=np.int32), sizes))


def of_codes(owners: NDArray[np.integer[Any]], names: Sequence[str]) -> Partition:
    """Return the partition in which row j belongs to ``names[owners[j]]``."""
    sizes = np.bincount(owners, minlength=len(names))
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
    order = np.argsort(owners, kind="stable").astype(np.int64, copy=False)
    return Partition(order, offsets.astype(np.int64), names)


@dataclass(frozen=True)
class NumberedNames(Sequence[str]):
    """Default names of agents, created on access: 10⁶ names would take 60 MB.

    Examples
    --------
    >>> names = NumberedNames(3)
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
