"""The audit is green for the code that ships, and red for each of the bugs that it is there for."""

from __future__ import annotations

import pytest

from audit.mutants import MUTANTS, SHORT, Mutant, red_gates
from dpadmm.audit import run_audit


def test_the_code_that_ships_is_green() -> None:
    audit = run_audit(SHORT)
    assert [gate for gate in audit.gates if gate.red] == []
    assert audit.passed
    assert audit.false_alarm < 1e-6
    assert len(audit.seen.worlds) == SHORT.trials


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_turns_its_gates_red(mutant: Mutant) -> None:
    assert set(mutant.red) <= red_gates(mutant.inject)


def test_all_twelve_bugs_are_there() -> None:
    assert len({mutant.name.split(":")[0] for mutant in MUTANTS}) >= 12
