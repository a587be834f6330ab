"""A budget that several fits on the same rows share: exact Gaussian composition, charged before a fit starts.

A fit of total (ε, δ) costs ``μ(ε, δ)²``; costs add up, and their sum may not exceed the whole budget's. This holds
also for fits that are chosen by earlier results: it is a filter of Gaussian releases (docs/explanation/ledgers.md).
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
"""One for all accountants, so that a fit is charged to several of them or to none."""

_OPEN: list[BudgetAccountant] = []
"""Accountants whose ``with`` block is open, outermost first: the process's, since fits run in any thread."""


class Budget(NamedTuple):
    """A pair (ε, δ)."""

    epsilon: float
    delta: float


class BudgetAccountant:
    """A total (``epsilon``, ``delta``) for all fits charged to it; the fit that would exceed it is refused.

    Give it to estimators as ``accountant=``, or open it as the default of every fit in a block, in whatever
    thread of this process; in nested blocks a fit is charged to all of them. Every fit is charged for its
    worst agent, before it starts, and keeps its charge if it fails. Copies (:func:`copy.deepcopy`,
    :func:`sklearn.base.clone`) are the same accountant. In another process it can count nothing, so it
    refuses every fit there: search with ``n_jobs=1`` or in threads.

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
    def here(self) -> bool:
        """Whether fits in this process can be counted: false for what came out of another one."""
        return self._process == os.getpid()

    @property
    def spent(self) -> Budget:
        """(ε, δ) of all fits so far, together."""
        with _LOCK:
            return self._as_budget(math.fsum(self._costs))

    @property
    def left(self) -> Budget:
        """(ε, δ) of the largest fit still allowed. Not ``epsilon − spent``: ε does not add up, μ² does."""
        return self.remaining()

    def remaining(self, n_fits: int = 1) -> Budget:
        """(ε, δ) that each of ``n_fits`` more fits may have.

        Examples
        --------
        Ten fits of a search and one at the end:

        >>> round(BudgetAccountant(epsilon=2.0, delta=1e-5).remaining(11).epsilon, 3)
        0.535
        """
        require_whole("n_fits", n_fits, least=1)
        with _LOCK:
            rest = max(0.0, self._cap - math.fsum(self._costs))
            # a little less, since ε is rounded up and n of them must fit
            return self._as_budget(rest / n_fits * (1.0 - 1e-9))

    def charge(self, epsilon: float, delta: float) -> None:
        """Charge a fit of total (ε, δ), or raise :class:`BudgetExceededError` and charge nothing."""
        charge_all([self], epsilon, delta)

    def _check(self, cost: float) -> None:
        if not self.here:
            raise StudyError(
                "a BudgetAccountant cannot be charged from another process than its own; fit with n_jobs=1, "
                "or in threads: with joblib.parallel_config('threading')"
            )
        if math.fsum([*self._costs, cost]) > self._cap:
            asked = self._as_budget(cost).epsilon
            raise BudgetExceededError(asked, self.epsilon, self.left.epsilon, self.delta)

    def _as_budget(self, cost: float) -> Budget:
        return Budget(float(exact_epsilon(math.sqrt(cost), self.delta)), self.delta)

    def __len__(self) -> int:
        """Fits charged so far."""
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
        with _LOCK:  # other threads may have opened theirs since, so not simply the last
            last = max(i for i, each in enumerate(_OPEN) if each is self)
            del _OPEN[last]

    def __copy__(self, _: Any = None) -> BudgetAccountant:
        return self

    __deepcopy__ = __copy__

    def __reduce__(self) -> tuple[Any, ...]:
        with _LOCK:
            return _from_elsewhere, (self.epsilon, self.delta, tuple(self._costs))


def _from_elsewhere(epsilon: float, delta: float, costs: Sequence[float]) -> BudgetAccountant:
    """An accountant out of a pickle: it shows what was spent when it was written, and can count no more."""
    accountant = BudgetAccountant(epsilon, delta)
    accountant._costs, accountant._process = list(costs), None
    return accountant


def open_accountants() -> tuple[BudgetAccountant, ...]:
    """The accountants whose ``with`` block is open, each once, outermost first."""
    with _LOCK:
        return tuple({id(each): each for each in _OPEN}.values())


def charge_all(accountants: Sequence[BudgetAccountant], epsilon: float, delta: float) -> None:
    """Charge a fit of total (ε, δ) to all of them or, if one refuses, to none."""
    if not accountants:
        return
    cost = mu_from_epsilon(float(epsilon), float(delta)) ** 2
    with _LOCK:
        for each in accountants:
            each._check(cost)
        for each in accountants:
            each._costs.append(cost)
