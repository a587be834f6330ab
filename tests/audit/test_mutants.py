"""The audit passes the shipped code, and fails for each listed bug."""

from __future__ import annotations

from dataclasses import replace

import pytest
from looping import case

from audit.mutants import MUTANTS, SHORT, Mutant, red_gates
from dpadmm.audit import run_audit
from dpadmm.audit.game import GAMES
from dpadmm.queries import QUERIES


def test_the_shipped_code_passes() -> None:
    audit = run_audit(replace(SHORT, trials=len(GAMES) * SHORT.trials))
    played = {game: len(seen.worlds) for game, seen in audit.outcomes.items()}
    assert [gate for gate in audit.gates if gate.failed] == []
    assert audit.outcome != "failed"
    assert audit.false_alarm < 1e-6
    assert played.keys() == GAMES.keys()
    assert min(played.values()) > SHORT.trials // 3
    assert sum(played.values()) == len(GAMES) * SHORT.trials
    assert set(audit.statistics) == set(QUERIES)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_fails_its_gates(mutant: Mutant) -> None:
    for game in mutant.games:
        with case(game):
            assert set(mutant.red) <= red_gates(mutant, game)


def test_all_bugs_are_listed() -> None:
    assert len({mutant.name.split(":")[0] for mutant in MUTANTS}) >= 30
