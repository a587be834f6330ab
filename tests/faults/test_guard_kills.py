"""Agents that are killed or out of disk at any step of an answer: budget may be lost, privacy never.

``make torture`` runs the long version: 10,000 kills, every step, every write.
"""

from __future__ import annotations

import os
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from guard_runs import STUDY, check
from guards import consensus, guarded, memory_folder, play, process, refusal
from ledgers import Fault, failing

from dpadmm.errors import RefusalError
from dpadmm.sites.agent import Agent
from dpadmm.trusted.ledger import Ledger
from support import guard_runs, ledgers

LONG = os.environ.get("DPADMM_TORTURE") == "1"


@pytest.fixture
def folder():
    with memory_folder() as place:
        yield place


@pytest.mark.parametrize("part", range(8 if LONG else 1))
def test_agent_killed_at_random_moments_gives_the_same_answers(folder, part):
    kills, seed = (10_000 // 8 if LONG else 50), random.randrange(2**32)
    done = process("kill_run", folder, kills, seed)
    assert done["kills"] == kills
    assert done["replies"] > kills  # most kills occur during an answer


def test_agent_killed_at_every_step_of_an_answer(folder):
    n_starts = 3 if LONG else 1
    assert process("kill_steps", folder, n_starts)["kills"] == 2 * n_starts * len(guard_runs.STEPS)


def test_agent_killed_at_every_step_of_a_masked_answer(folder):
    assert process("kill_masked", folder)["kills"] == 2 * len(guard_runs.MASKED_STEPS)


needs_hooks = pytest.mark.skipif(
    ledgers.sqlite_vfs() is None,
    reason="this Python hides its SQLite library, so its writes cannot be made fail",
)


@needs_hooks
def test_agent_killed_at_every_write(folder):
    assert process("kill_writes", folder, 1 if LONG else 7)["kills"] > (180 if LONG else 24)


def scenario(folder: Path, sent: dict[int, bytes]) -> None:
    """Perform all operations that write: enrol in a new ledger, answer, restart, repeat, answer."""
    for until in (2, 3):
        with guarded(folder) as guard:
            agent = Agent(guard, STUDY)
            for round in range(max(1, agent.last_round), until + 1):
                upload = agent.step(round, consensus(round)).tobytes()
                assert sent.setdefault(round, upload) == upload


@needs_hooks
@pytest.mark.parametrize("kind", ["EIO", "ENOSPC", "full half", "part"])
def test_failed_write_is_a_refusal_and_a_restart_continues(folder, kind):
    at, failed = 1 if LONG else random.randint(1, 4), 0
    while True:
        here, sent, fault, code = folder / str(at), {}, Fault(kind, at), None
        try:
            with failing(fault):
                scenario(here, sent)
        except RefusalError as refused:
            code = refused.code
        assert code in (None, "ledger-failed")
        failed += code is not None
        if fault.calls < at:
            break
        last = check(here, sent)
        with guarded(here) as guard:
            sent |= play(Agent(guard, STUDY), last + 1)
        assert check(here, sent) == last + 1
        shutil.rmtree(here)
        at += 1 if LONG else 4
    assert at > 60
    assert failed > (3 if kind == "part" else 40) // (1 if LONG else 4)


@needs_hooks
@pytest.mark.parametrize("kind", ["EIO", "ENOSPC", "full half"])
def test_agent_answers_nothing_between_a_failed_write_and_a_restart(folder, kind):
    with guarded(folder) as guard:
        agent = Agent(guard, STUDY)
        sent = play(agent, 2)
        with failing(Fault(kind, 1)):
            assert refusal(agent.step, 3, consensus(3)).code == "ledger-failed"
        for act in (
            lambda: agent.step(3, consensus(3)),
            lambda: agent.step(2, consensus(2)),
            lambda: guard.enrol(STUDY),
            lambda: guard.transcript(STUDY.hash),
            lambda: guard.leave(STUDY.hash),
        ):
            assert refusal(act).code == "ledger-failed"
        assert agent.last_round == 2
    assert check(folder, sent) >= 2


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, MemoryError, SystemExit])
@pytest.mark.parametrize("step", ["spend", "_extend_mark"])
def test_interruption_around_the_record_never_leads_to_two_answers(folder, monkeypatch, step, interrupt):
    """The process continues. A release that was recorded but not sent is sent after a restart, and nothing else is."""
    with guarded(folder) as guard:
        agent = Agent(guard, STUDY)
        sent = play(agent, 1)
        real = getattr(Ledger, step)

        def stop(*words: object, **more: object) -> None:
            if step == "spend":
                real(*words, **more)
            raise interrupt

        monkeypatch.setattr(Ledger, step, stop)
        with pytest.raises(interrupt):
            agent.step(2, consensus(2))
        monkeypatch.undo()
        with suppress(RefusalError):  # unsure about the mark, it waits for a restart
            sent[2] = agent.step(2, consensus(2)).tobytes()
        assert (2 in sent) == (step == "spend")
    assert check(folder, sent) == 2
