"""A privacy budget shared by several fits on the same rows: exact Gaussian composition, charged before each fit.

A fit with total (ε, δ) costs ``μ(ε, δ)²``. The sum of all costs is limited by that of the whole budget. Later fits may
depend on earlier results, because the limit is a filter of Gaussian releases (docs/explanation/ledgers.md).
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from threading import RLock
from typing import Any, NamedTuple

from dpadmm.accounting.calibration import mu_from_epsilon
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.errors import BudgetExceededError, StudyError
from dpadmm.parameters.checks import require_whole

_LOCK = RLock()
"""Shared by all accountants, so that a fit is charged to all of several accountants or to none."""

_OPEN: list[BudgetAccountant] = []
"""Accountants with an open ``with`` block, outermost first. Shared by all threads of the process."""


class Budget(NamedTuple):
    """A pair (ε, δ)."""

    epsilon: float
    delta: float


class BudgetAccountant:
    """A total (``epsilon``, ``delta``) for several fits. A fit that would exceed it is refused.

    Pass it to estimators as ``accountant=``, or use it as a context manager: then it is the default for every fit in
    the block, in all threads of this process. In nested blocks a fit is charged to all accountants. A fit is charged
    for its worst agent before it starts, also if it fails. Copies (:func:`copy.deepcopy`, :func:`sklearn.base.clone`)
    are the same accountant. Other processes cannot charge it, so they refuse every fit: search with ``n_jobs=1`` or in
    threads.

    Examples
    --------
    >>> accountant = BudgetAccountant(epsilon=2.0, delta=1e-5)
    >>> accountant.charge(1.0, 1e-5)
    >>> accountant
    BudgetAccountant(epsilon=2, delta=1e-05: 1 fit spent epsilon 1, left 1.658)
    >>> accountant.charge(1.8, 1e-5)
    Traceback (most recent call last):
        ...
    dpadmm.errors.BudgetExceededError: ... requested ε = 1.8, allowed ε = 2, left ε = 1.658; ...
    >>> with accountant:
    ...     [each is accountant for each in open_accountants()]
    [True]
    """

    def __init__(self, epsilon: float, delta: float) -> None:
        self.epsilon, self.delta = float(epsilon), float(delta)
        self._cap = mu_from_epsilon(self.epsilon, self.delta) ** 2
        self._costs: list[float] = []
        self._process: int | None = os.getpid()

    @property
    def is_chargeable(self) -> bool:
        """Whether this process created the accountant. Only that process can charge it."""
        return self._process == os.getpid()

    @property
    def spent(self) -> Budget:
        """Total (ε, δ) of all fits so far."""
        with _LOCK:
            return self._as_budget(math.fsum(self._costs))

    @property
    def left(self) -> Budget:
        """(ε, δ) of the largest fit still allowed. It is not ``epsilon − spent``: μ² adds up, ε does not."""
        return self.remaining()

    def remaining(self, n_fits: int = 1) -> Budget:
        """Return the (ε, δ) available to each of ``n_fits`` further fits.

        Examples
        --------
        Ten fits of a search, and a final one:

        >>> round(BudgetAccountant(epsilon=2.0, delta=1e-5).remaining(11).epsilon, 3)
        0.535
        """
        require_whole("n_fits", n_fits, least=1)
        with _LOCK:
            rest = max(0.0, self._cap - math.fsum(self._costs))
            # slightly less, because ε is rounded up and n fits must be allowed
            return self._as_budget(rest / n_fits * (1.0 - 1e-9))

    def charge(self, epsilon: float, delta: float) -> None:
        """Charge a fit with total (ε, δ), or raise :class:`BudgetExceededError` without charging it."""
        charge_all([self], epsilon, delta)

    def _check(self, cost: float) -> None:
        if not self.is_chargeable:
            raise StudyError(
                "another process created this BudgetAccountant, so it cannot be charged here; use n_jobs=1, or "
                "threads: with joblib.parallel_config('threading')"
            )
        if math.fsum([*self._costs, cost]) > self._cap:
            requested = self._as_budget(cost).epsilon
            raise BudgetExceededError(requested, self.epsilon, self.left.epsilon, self.delta)

    def _as_budget(self, cost: float) -> Budget:
        return Budget(float(exact_epsilon(math.sqrt(cost), self.delta)), self.delta)

    def __len__(self) -> int:
        """Number of fits charged so far."""
        return len(self._costs)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        fits = "1 fit" if len(self) == 1 else f"{len(self)} fits"
        spent, left = self.spent.epsilon, self.left.epsilon
        total = f"epsilon={self.epsilon:g}, delta={self.delta:g}"
        return f"BudgetAccountant({total}: {fits} spent epsilon {spent:.4g}, left {left:.4g})"

    def __enter__(self) -> BudgetAccountant:
        with _LOCK:
            _OPEN.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        with _LOCK:  # other threads may have opened accountants since
            last = max(i for i, accountant in enumerate(_OPEN) if accountant is self)
            del _OPEN[last]

    def __copy__(self, _: Any = None) -> BudgetAccountant:
        return self

    __deepcopy__ = __copy__

    def __reduce__(self) -> tuple[Any, ...]:
        with _LOCK:
            return _unpickled, (self.epsilon, self.delta, tuple(self._costs))


def _unpickled(epsilon: float, delta: float, costs: Sequence[float]) -> BudgetAccountant:
    """Return an accountant that shows the budget spent when it was pickled, and cannot be charged."""
    accountant = BudgetAccountant(epsilon, delta)
    accountant._costs, accountant._process = list(costs), None
    return accountant


def open_accountants() -> tuple[BudgetAccountant, ...]:
    """Return the accountants with an open ``with`` block, outermost first, without duplicates."""
    with _LOCK:
        return tuple({id(accountant): accountant for accountant in _OPEN}.values())


def charge_all(accountants: Sequence[BudgetAccountant], epsilon: float, delta: float) -> None:
    """Charge a fit with total (ε, δ) to all accountants or, if one refuses, to none."""
    if not accountants:
        return
    cost = mu_from_epsilon(float(epsilon), float(delta)) ** 2
    with _LOCK:
        for accountant in accountants:
            accountant._check(cost)
        for accountant in accountants:
            accountant._costs.append(cost)
