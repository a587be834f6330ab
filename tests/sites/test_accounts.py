"""The budget after each record of a ledger, compared with the state of the ledger itself."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dpadmm.sites.accounts import BudgetPoint, budget_history
from dpadmm.trusted.ledger import Ledger, read_ledger

FIRST, SECOND, THIRD = "ab" * 32, "cd" * 32, "ef" * 32


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path, cap=1.0, create=True) as ledger:
        yield ledger


def spend(ledger, study, *rounds):
    for round in rounds:
        ledger.spend(study, round, digest=f"{round:064x}", mu_squared=0.0625, upload=b"x")


def check_last(ledger):
    state = ledger.status()
    last = budget_history(state)[-1]
    assert (last.spent, last.promised, last.cap) == (state.spent, state.promised, state.cap)
    return last


def test_each_record_has_its_point(ledger, tmp_path):
    assert check_last(ledger) == BudgetPoint(ledger.status().records[-1].at, Fraction(0), Fraction(0), 1.0)
    ledger.reserve(FIRST, 0.25, about={})
    assert check_last(ledger)[1:3] == (0, Fraction(1, 4))
    spend(ledger, FIRST, 1, 2)
    assert check_last(ledger)[1:3] == (Fraction(1, 8), Fraction(1, 4))
    ledger.reserve(SECOND, 0.5, about={})
    ledger.close_study(FIRST)
    assert check_last(ledger)[1:3] == (Fraction(1, 8), Fraction(5, 8))
    points = budget_history(read_ledger(tmp_path))
    assert len(points) == ledger.status().seq


def test_a_restore_charges_what_was_reserved(ledger):
    for study in (FIRST, SECOND):
        ledger.reserve(study, 0.25, about={})
    spend(ledger, FIRST, 1)
    ledger.close_study(FIRST, "finish")
    ledger.record_restore(0.125, about={}, shares=1)
    assert check_last(ledger)[1:3] == (Fraction(1, 16) + Fraction(1, 4) + Fraction(1, 8),) * 2
    ledger.reserve(THIRD, 0.25, about={})
    spend(ledger, THIRD, 1)
    check_last(ledger)


def test_a_changed_cap_counts_from_its_record_on(tmp_path):
    with Ledger.open(tmp_path, cap=1.0, create=True) as ledger:
        ledger.reserve(FIRST, 0.25, about={})
    with Ledger.open(tmp_path, cap=2.0) as ledger:
        assert sorted({point.cap for point in budget_history(ledger.status())}) == [1.0, 2.0]
        check_last(ledger)
