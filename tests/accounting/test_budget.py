"""A budget shared by fits: exact, never exceeded, and the same in every copy and thread."""

from __future__ import annotations

import copy
import math
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from looping import case

from dpadmm.accounting.budget import BudgetAccountant, charge_all, open_accountants
from dpadmm.accounting.calibration import mu_from_epsilon
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.errors import BudgetExceededError, DPADMMError, StudyError

DELTA = 1e-5


def test_charges_compose_exactly() -> None:
    accountant = BudgetAccountant(3.0, DELTA)
    assert accountant.spent == (0.0, DELTA)
    accountant.charge(1.0, DELTA)
    accountant.charge(0.5, 1e-7)
    mu = math.hypot(mu_from_epsilon(1.0, DELTA), mu_from_epsilon(0.5, 1e-7))
    assert accountant.spent.epsilon == pytest.approx(exact_epsilon(mu, DELTA), rel=1e-12)
    assert 1.0 < accountant.spent.epsilon < 1.5
    assert len(accountant) == 2


def test_the_whole_budget_can_be_spent_in_one_fit() -> None:
    accountant = BudgetAccountant(1.0, DELTA)
    accountant.charge(1.0, DELTA)
    assert accountant.left == (0.0, DELTA)
    with pytest.raises(BudgetExceededError):
        accountant.charge(1e-6, DELTA)


@settings(max_examples=10, deadline=None)
@given(
    epsilon=st.floats(0.1, 20.0),
    n_fits=st.integers(1, 8),
    spent=st.floats(0.001, 0.999),
    delta=st.floats(1e-12, 1e-5),
)
def test_what_remains_for_n_fits_is_enough_for_n_and_not_for_one_more(
    epsilon: float, n_fits: int, spent: float, delta: float
) -> None:
    accountant = BudgetAccountant(epsilon, delta)
    accountant.charge(epsilon * spent, delta)
    each = accountant.remaining(n_fits)
    for _ in range(n_fits):
        accountant.charge(*each)
    assert accountant.spent.epsilon <= epsilon
    assert accountant.spent.epsilon == pytest.approx(epsilon, rel=1e-5)
    with pytest.raises(BudgetExceededError):
        accountant.charge(*each)


@pytest.mark.parametrize("n_fits", [1, 11])
def test_what_remains_wastes_less_than_two_billionths_of_the_budget(n_fits: int) -> None:
    each = BudgetAccountant(2.0, DELTA).remaining(n_fits)
    share = n_fits * mu_from_epsilon(*each) ** 2 / mu_from_epsilon(2.0, DELTA) ** 2
    assert 1.0 - 1.5e-9 < share < 1.0


def test_fits_to_come_are_a_whole_number() -> None:
    for n_fits in [0, -1, 1.5]:
        with (
            case(n_fits),
            pytest.raises(StudyError, match=r"^n_fits must be a whole number of at least 1, not"),
        ):
            BudgetAccountant(2.0, DELTA).remaining(n_fits)  # type: ignore[arg-type]


def test_a_refused_fit_is_not_charged_and_the_refusal_says_what_is_left() -> None:
    accountant = BudgetAccountant(2.0, DELTA)
    accountant.charge(1.0, DELTA)
    before = accountant.spent
    with pytest.raises(BudgetExceededError, match=r"requested ε = 1.9, allowed ε = 2, left ε = 1.658") as refusal:
        accountant.charge(1.9, DELTA)
    error = refusal.value
    assert isinstance(error, DPADMMError)
    assert (round(error.asked, 6), error.allowed, error.left) == (1.9, 2.0, accountant.left.epsilon)
    assert accountant.spent == before
    again = pickle.loads(pickle.dumps(error))  # as a worker process sends it
    assert (str(again), again.left) == (str(error), error.left)


def test_several_accountants_are_charged_all_or_none() -> None:
    wide, narrow = BudgetAccountant(5.0, DELTA), BudgetAccountant(0.5, DELTA)
    with pytest.raises(BudgetExceededError):
        charge_all([wide, narrow], 1.0, DELTA)
    assert (len(wide), len(narrow)) == (0, 0)
    charge_all([wide, narrow], 0.25, DELTA)
    assert (len(wide), len(narrow)) == (1, 1)


def test_blocks_nest_and_close_in_any_order() -> None:
    outer, inner = BudgetAccountant(2.0, DELTA), BudgetAccountant(1.0, DELTA)
    assert open_accountants() == ()
    with outer as opened:
        assert opened is outer
        with inner, outer:
            assert open_accountants() == (outer, inner)
        assert open_accountants() == (outer,)
        inner.__enter__()
    assert open_accountants() == (inner,)
    inner.__exit__(None, None, None)
    assert open_accountants() == ()


def test_a_block_closes_after_an_error_too() -> None:
    with pytest.raises(KeyError), BudgetAccountant(2.0, DELTA):
        raise KeyError
    assert open_accountants() == ()


def test_threads_never_spend_more_than_there_is() -> None:
    accountant = BudgetAccountant(1.0, DELTA)
    each = accountant.remaining(8)

    def try_it(_: int) -> bool:
        try:
            accountant.charge(*each)
        except BudgetExceededError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(try_it, range(24))) == 8
    assert len(accountant) == 8


def test_copies_are_the_accountant_itself() -> None:
    accountant = BudgetAccountant(2.0, DELTA)
    assert copy.copy(accountant) is accountant
    assert copy.deepcopy({"a": [accountant]})["a"][0] is accountant


def test_an_unpickled_accountant_shows_its_budget_and_cannot_be_charged() -> None:
    accountant = BudgetAccountant(2.0, DELTA)
    accountant.charge(1.0, DELTA)
    sent = pickle.loads(pickle.dumps(accountant))
    assert (sent.spent, sent.left, len(sent), repr(sent)) == (
        accountant.spent, accountant.left, 1, repr(accountant),
    )  # fmt: skip
    assert (sent.is_chargeable, accountant.is_chargeable) == (False, True)
    with pytest.raises(StudyError, match="another process created this BudgetAccountant"):
        sent.charge(0.1, DELTA)
    assert pickle.loads(pickle.dumps(sent)).is_chargeable is False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)  # as the first process of a container has it
        assert sent.is_chargeable is False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_refused() -> None:
    accountant = BudgetAccountant(2.0, DELTA)
    child = os.fork()
    if child == 0:
        try:
            accountant.charge(0.1, DELTA)
        except StudyError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_an_invalid_budget_is_refused() -> None:
    for epsilon, delta in [(0.0, 1e-5), (-1.0, 1e-5), (math.nan, 1e-5), (1.0, 0.0), (1.0, 1.0)]:
        with case(epsilon, delta):
            with pytest.raises(StudyError):
                BudgetAccountant(epsilon, delta)
            with pytest.raises(StudyError):
                BudgetAccountant(1.0, 1e-5).charge(epsilon, delta)


def test_it_has_a_readable_repr_and_is_true() -> None:
    accountant = BudgetAccountant(2.0, DELTA)
    assert bool(accountant)  # though it has no fits
    assert repr(accountant) == "BudgetAccountant(epsilon=2, delta=1e-05: 0 fits spent epsilon 0, left 2)"
