"""A fit is charged before its rows are read, keeps its charge in all cases, and costs the charged amount."""

from __future__ import annotations

import gc
import math
import pickle
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

from dpadmm import BudgetAccountant, BudgetExceededError, Dataset, DPADMMClassifier, DPADMMRegressor
from dpadmm.accounting import exact_epsilon
from dpadmm.accounting.budget import Budget
from dpadmm.accounting.calibration import mu_from_epsilon
from dpadmm.engine import noise as noise
from dpadmm.queries import QUERIES
from dpadmm.queries.problem import Rows
from dpadmm.trusted import discrete_gaussian as exact_noise
from dpadmm.trusted.discrete_gaussian import Lattice

RNG = np.random.default_rng(2)
X = RNG.uniform(-1.0, 1.0, (90, 3))
Y = (X[:, 0] > X[:, 1]).astype(int)
OWNERS = np.repeat(["a", "b", "c"], [10, 20, 60])
ROUNDS, DELTA = 5, 1e-6
MAKERS: dict[str, Callable[..., Any]] = {
    "classifier": lambda epsilon, **more: DPADMMClassifier(epsilon, classes=[0, 1], **_known(more)),
    "dp_admm": lambda epsilon, **more: MAKERS["classifier"](epsilon, method="dp_admm", **more),
    "three classes": lambda epsilon, **more: DPADMMClassifier(epsilon, classes=[0, 1, 2], **_known(more)),
    "regressor": lambda epsilon, **more: DPADMMRegressor(epsilon, y_bounds=(0, 1), **_known(more)),
}


def _known(more: dict[str, Any]) -> dict[str, Any]:
    return {"bounds": (-1.0, 1.0), "max_iter": ROUNDS, "delta": DELTA, **more}


@dataclass
class Watch:
    """Every release of a fit: the charges of its accountants at that time, and its noise."""

    accountants: list[BudgetAccountant] = field(default_factory=list)
    spent: list[list[Budget]] = field(default_factory=list)
    used: list[tuple[Lattice, int]] = field(default_factory=list)
    fail_at: int = 0
    error: type[BaseException] = RuntimeError


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    seen = Watch()

    def release_sum(total: Any, grid: Lattice, z: float, **more: Any) -> Any:
        seen.spent.append([each.spent for each in seen.accountants])
        if len(seen.spent) == seen.fail_at:
            raise seen.error("in the middle")

        def draw(scale: int, count: int) -> Any:
            seen.used.append((grid, scale))
            return exact_noise.discrete_gaussian(scale, count)

        return exact_noise.release_sum(total, grid, z, draw=draw)

    monkeypatch.setattr(noise, "release_sum", release_sum)
    return seen


@pytest.mark.parametrize("kind", MAKERS)
def test_accountants_are_charged_before_rows_are_read(watch: Watch, kind: str) -> None:
    own, outer, inner = (BudgetAccountant(3.0, delta) for delta in (1e-5, DELTA, 1e-7))
    watch.accountants = [own, outer, inner]
    with outer, inner:
        MAKERS[kind](0.7, accountant=own).fit(X, Y, groups=OWNERS)
    mu = mu_from_epsilon(0.7, DELTA)
    for at_release in (watch.spent[0], watch.spent[-1], [each.spent for each in watch.accountants]):
        for accountant, spent in zip(watch.accountants, at_release, strict=True):
            assert spent.epsilon == pytest.approx(float(exact_epsilon(mu, accountant.delta)), rel=1e-9)
    assert len(watch.spent) == 3 * ROUNDS
    assert [len(each) for each in watch.accountants] == [1, 1, 1]


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, KeyboardInterrupt, OSError])
@pytest.mark.parametrize("fail_at", [1, 7])
def test_failed_or_interrupted_fit_keeps_its_charge(watch: Watch, error: type[BaseException], fail_at: int) -> None:
    accountant, block = BudgetAccountant(1.0, DELTA), BudgetAccountant(2.0, DELTA)
    watch.accountants, watch.fail_at, watch.error = [accountant, block], fail_at, error
    model = DPADMMClassifier(0.8, classes=[0, 1], accountant=accountant, **_known({}))
    with pytest.raises(error), block:
        model.fit(X, Y, groups=OWNERS)
    assert not hasattr(model, "coef_")
    for each in (accountant, block):
        assert len(each) == 1
        assert each.spent.epsilon == pytest.approx(0.8, rel=1e-9)
    watch.fail_at = 0
    with pytest.raises(BudgetExceededError):
        model.fit(X, Y, groups=OWNERS)
    model.set_params(epsilon=0.3).fit(X, Y, groups=OWNERS)  # the rest is still there
    assert len(accountant) == 2


def test_fit_that_fails_after_its_rounds_keeps_its_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("after the rounds")

    monkeypatch.setattr("dpadmm.estimators.encoding.Encoding.coefficients", broken)
    accountant = BudgetAccountant(1.0, DELTA)
    with pytest.raises(RuntimeError):
        DPADMMClassifier(0.6, classes=[0, 1], accountant=accountant, **_known({})).fit(X, Y)
    assert len(accountant) == 1


def test_refusal_of_one_accountant_charges_none_and_reads_no_row(watch: Watch) -> None:
    wide, narrow = BudgetAccountant(5.0, DELTA), BudgetAccountant(0.5, DELTA)
    for order in ([wide, narrow], [narrow, wide]):
        with ExitStack() as stack:
            for each in order:
                stack.enter_context(each)
            with pytest.raises(BudgetExceededError, match=r"allowed ε = 0\.5"):
                MAKERS["classifier"](0.7).fit(X, Y)
    with wide, pytest.raises(BudgetExceededError):
        MAKERS["classifier"](0.7, accountant=narrow).fit(X, Y)
    assert (len(wide), len(narrow), watch.spent) == (0, 0, [])


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 6.0])
@pytest.mark.parametrize("kind", MAKERS)
def test_charge_equals_the_cost_of_the_agent_with_the_least_noise(watch: Watch, kind: str, epsilon: float) -> None:
    """ε is computed from the noise of every agent in every round."""
    accountant = BudgetAccountant(10.0, DELTA)
    model = MAKERS[kind](epsilon, accountant=accountant).fit(X, Y, groups=OWNERS)
    costs: dict[int, float] = {}
    for grid, scale in watch.used:
        shift = 2.0 * grid.row_norm / grid.step  # how far one row moves a sum of clipped gradients
        costs[grid.n_rows] = costs.get(grid.n_rows, 0.0) + (shift / scale) ** 2
    assert set(costs) == {10, 20, 60}
    assert len(watch.used) == 3 * ROUNDS
    worst = float(exact_epsilon(math.sqrt(max(costs.values())), DELTA))
    charged = accountant.spent.epsilon
    assert worst <= charged * (1.0 + 1e-9)
    assert worst == pytest.approx(charged, rel=1e-4)
    assert charged == pytest.approx(epsilon, rel=1e-9)
    told = model.privacy_
    assert (told["epsilon"], told["delta"]) == (pytest.approx(epsilon, rel=1e-6), DELTA)
    assert max(agent["epsilon"] for agent in told["agents"]) <= charged * (1.0 + 1e-6)


def test_simulated_noise_is_also_charged() -> None:
    accountant = BudgetAccountant(1.0, DELTA)
    with pytest.warns(UserWarning, match="provides no privacy"):
        MAKERS["classifier"](0.7, accountant=accountant, random_state=3).fit(X, Y)
    assert accountant.spent.epsilon == pytest.approx(0.7, rel=1e-9)


@pytest.mark.parametrize("kind", ["dp_admm", "regressor"])
def test_rows_are_summed_after_the_charge(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """No gradient is computed before the charge."""
    accountant, at = BudgetAccountant(1.0, DELTA), []

    def watch(real: Any) -> Any:
        def sums(*asked: Any, **more: Any) -> Any:
            at.append(len(accountant))
            return real(*asked, **more)

        return sums

    for statistic in QUERIES.values():
        monkeypatch.setattr(statistic, "sums", watch(statistic.sums))
    MAKERS[kind](0.7, accountant=accountant).fit(X, Y)
    assert at == [1] * ROUNDS


@pytest.mark.parametrize("groups", [False, True], ids=["one agent", "groups"])
@pytest.mark.parametrize("kind", [DPADMMClassifier, DPADMMRegressor])
def test_fitted_estimator_stores_no_rows(kind: Any, groups: bool) -> None:
    """It is shared with its model, as a pickle or inside another object."""

    def fitted(n: int) -> Any:
        X, y = np.random.default_rng(n).uniform(-1.0, 1.0, (n, 3)), np.tile([-1.0, 1.0], n // 2)
        known = {"classes": [-1, 1]} if kind is DPADMMClassifier else {"y_bounds": (-1, 1)}
        model = kind(bounds=(-1, 1), max_iter=2, **known)
        return model.fit(X, y, groups=np.repeat([0, 1], n // 2) if groups else None)

    few, many = (len(pickle.dumps(fitted(n))) for n in (40, 4000))
    assert abs(many - few) < 200
    seen: set[int] = set()
    waiting: list[Any] = [vars(fitted(4000))]
    while waiting:  # all that its attributes lead to
        here = waiting.pop()
        if id(here) in seen or isinstance(here, type | ModuleType | FunctionType):
            continue
        seen.add(id(here))
        assert not isinstance(here, Rows | Dataset)
        assert not isinstance(here, np.ndarray) or here.size < 4000
        waiting += gc.get_referents(here)
