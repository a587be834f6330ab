"""Agents that are killed at random moments, at every step of an answer, and at every write to the ledger.

``python tests/support/guard_runs.py kill_run FOLDER KILLS SEED`` and similar commands fork in their own process. After
every kill, ``check`` compares the answers with those of an agent that was never killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import masked_sites
import numpy as np
from guards import POLICY, D, TinyRows, consensus, guarded, refusal, study
from ledgers import Fault, failing

from dpadmm.errors import RefusalError
from dpadmm.sites import agent as agent_module
from dpadmm.sites.agent import Agent
from dpadmm.trusted import discrete_gaussian as exact_noise
from dpadmm.trusted import guard as guard_module
from dpadmm.trusted import ledger, masking
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import LINE, MARK, LedgerState, read_ledger

STUDY = study(n_rounds=16, noise_multiplier=25.0)
ROUNDS = STUDY.training.n_rounds
Sent = dict[int, bytes]
send = os.write  # some steps replace it


class Recorded:
    """Replacement of a guard that repeats recorded answers, each for its own request."""

    def __init__(self, guard: Guard) -> None:
        self.guard, self.enrolled = guard, guard.enrol(STUDY)
        self.digests = {record.round: record.digest for record, _ in guard._ledger.transcript(STUDY.hash)}
        self.past = {round: (answer, memo) for round, answer, memo in guard.transcript(STUDY.hash)}

    def enrol(self, study: Any) -> Any:
        return self.enrolled

    def transcript(self, study: str) -> list[Any]:
        return []

    def answer(self, study: str, round: int, point: Any, memo: bytes) -> Any:
        statistic = self.enrolled.query_at(round).statistic
        _, digest = guard_module._request(STUDY.hash, round, statistic, point, memo)
        assert digest == self.digests[round], f"round {round} was asked at another point"
        assert memo == self.past[round][1]
        return self.past[round][0]


def check(folder: Path, sent: Sent) -> int:
    """Check in a new process that nothing was lost, altered or overspent. Return the number of rounds."""
    with guarded(folder) as guard:
        agent, recorded = Agent(guard, STUDY), Recorded(guard)
        state = guard._ledger.status()
        account = state.accounts[STUDY.hash]
        last = len(account.rounds)
        assert list(account.rounds) == list(range(1, last + 1))
        assert account.rounds.keys() >= sent.keys()
        assert agent.last_round == last <= ROUNDS
        assert account.spent == last * Fraction(POLICY.release_cost(STUDY.terms.plan.at(1)))
        assert float(state.promised) <= state.cap == POLICY.cap
        assert (folder / MARK).stat().st_size == LINE * state.seq
        assert read_ledger(folder).fingerprint == state.fingerprint

        never_killed = Agent(recorded, STUDY)
        for round in range(1, last + 1):
            upload = never_killed.step(round, consensus(round)).tobytes()
            assert sent.get(round, upload) == upload, f"what round {round} said is not what the ledger has"
        if last:
            for one, other in zip(vars(agent._state).values(), vars(never_killed._state).values(), strict=True):
                assert np.array_equal(one, other), "the state was not found again"
            for round in {last, random.randint(1, last)}:
                assert refusal(agent.step, round, -consensus(round)).code == "round-forked"
            assert agent.step(last, consensus(last)).tobytes() == upload
        assert refusal(agent.step, ROUNDS + 1, consensus(1)).code == "round-over"
        if last < ROUNDS - 1:
            assert refusal(agent.step, last + 2, consensus(1)).code == "round-missed"
        assert guard._ledger.status().seq == state.seq == len(state.records), "a refused request was charged"
        return last


def _forked(work: Callable[[int], None]) -> tuple[int, int]:
    """Run a function in a child, with a pipe for its messages. Return its process and the other end of the pipe."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work(writer)
        except BaseException as error:
            send(writer, f"{json.dumps(['failed', repr(error)])}\n".encode())
        finally:
            os._exit(0)
    os.close(writer)
    return pid, reader


def _received(reader: int, sent: Sent, before: bytes = b"") -> int:
    """Read the messages of a child that has died. Return the number of its replies."""
    with os.fdopen(reader, "rb") as pipe:
        lines = (before + pipe.read()).split(b"\n")[:-1]  # the last line is incomplete
    for round, upload in map(json.loads, lines):
        assert round != "failed", upload
        earlier = sent.setdefault(round, bytes.fromhex(upload))
        assert earlier == bytes.fromhex(upload), f"round {round} had two replies"
    return len(lines)


def _send(pipe: int, agent: Agent, round: int) -> None:
    upload = agent.step(round, consensus(round))
    send(pipe, f"{json.dumps([round, upload.tobytes().hex()])}\n".encode())


def _continue(folder: Path, pipe: int, until: int = ROUNDS) -> None:
    with guarded(folder) as guard:
        agent = Agent(guard, STUDY)
        for round in range(max(1, agent.last_round), until + 1):  # the last request is repeated
            _send(pipe, agent, round)


def kill_run(root: Path, n_kills: int, seed: int) -> dict[str, int]:
    """Kill an agent at random moments, and check after every kill."""
    rng, sent, last, replies, ledgers = random.Random(seed), {}, ROUNDS, 0, 0
    for _ in range(n_kills):
        if last == ROUNDS:
            folder, sent, ledgers = root / str(ledgers), {}, ledgers + 1
        pid, reader = _forked(lambda pipe: _continue(folder, pipe))  # noqa: B023
        replies_first, received = rng.choice((0, 1, 2, 4)), b""
        while received.count(b"\n") < replies_first and (more := os.read(reader, 2**16)):
            received += more
        time.sleep(rng.uniform(0.0, 0.005 if replies_first else 0.04))  # opening takes longer
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        replies += _received(reader, sent, received)
        last = check(folder, sent)
    return {"kills": n_kills, "replies": replies, "ledgers": ledgers}


STEPS: list[tuple[str, Any, str, bool, bool]] = [
    ("the agent's check", agent_module.Agent, "_checked", False, False),
    ("the whole answer", Guard, "answer", False, True),
    ("validation", guard_module, "_request", False, False),
    ("looking for a stored answer", ledger.Ledger, "replay", False, False),
    ("the gradient", TinyRows, "total", False, False),
    ("the noise", exact_noise, "discrete_gaussian", False, False),
    ("the sum of both", guard_module, "with_noise", False, False),
    ("the ledger's rules", LedgerState, "check", False, False),
    ("the spend", ledger.Ledger, "spend", False, True),
    ("taking in what was committed", LedgerState, "apply", True, True),
    ("the mark", ledger.Ledger, "_extend_mark", True, True),
    ("the mark's write", os, "write", True, True),
    ("the mark's sync", os, "fsync", True, True),
    ("reading the answer", guard_module.EnrolledQuery, "upload", True, True),
    ("the agent's own step", agent_module.Agent, "_advanced", True, True),
]
"""A step of an answer, where it is, and whether the spend is on record before and after it."""


def kill_steps(root: Path, n_starts: int) -> dict[str, int]:
    """Kill before and after every step of an answer, with zero, one and more earlier answers."""
    kills = 0
    for start in (0, 1, 7)[:n_starts]:
        for _, owner, name, *on_record in STEPS:
            for after in (False, True):
                folder, sent = root / f"{start} {name} {after}", {}
                _play_to(folder, start, sent)
                pid, reader = _forked(lambda pipe: _die_at(folder, pipe, owner, name, after))  # noqa: B023
                _, status = os.waitpid(pid, 0)
                before = dict(sent)
                assert _received(reader, sent) == 0, "it sent before it died"
                assert os.WIFSIGNALED(status), f"no kill at {name}"
                assert check(folder, sent) == start + on_record[after], f"{name}, {after}"
                _play_to(folder, start + 1, sent)
                assert check(folder, before | sent) == start + 1
                kills += 1
    return {"kills": kills}


def _play_to(folder: Path, until: int, sent: Sent) -> None:
    with guarded(folder) as guard:
        agent = Agent(guard, STUDY)
        for round in range(max(1, agent.last_round), until + 1):
            sent[round] = agent.step(round, consensus(round)).tobytes()


def _die_at(folder: Path, pipe: int, owner: Any, name: str, after: bool) -> None:
    with guarded(folder) as guard:
        agent = Agent(guard, STUDY)
        _last_step(owner, name, after)
        _send(pipe, agent, agent.last_round + 1)


def _last_step(owner: Any, name: str, after: bool) -> None:
    """End the process at the next call."""
    real = getattr(owner, name)

    def last_words(*words: Any, **more: Any) -> None:
        if after:
            real(*words, **more)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, last_words)


MASKED_STEPS: list[tuple[str, Any, str, bool, bool]] = [
    ("the request", guard_module, "_request", False, False),
    ("the gradient", TinyRows, "total", False, False),
    ("the noise", exact_noise, "discrete_gaussian", False, False),
    ("the answer without a mask", Guard, "prepare", False, False),
    ("who takes part", masking, "members_of", False, False),
    ("looking for a stored answer", ledger.Ledger, "replay", False, False),
    ("the mask", masking.Mask, "numbers", False, False),
    ("the ledger's rules", LedgerState, "check", False, False),
    ("the spend", ledger.Ledger, "spend", False, True),
    ("taking in what was committed", LedgerState, "apply", True, True),
    ("the mark", ledger.Ledger, "_extend_mark", True, True),
    ("the mark's sync", os, "fsync", True, True),
    ("reading the answer", guard_module.EnrolledQuery, "upload", True, True),
    ("the masked answer", Guard, "mask", False, True),
]
"""The same of an answer under secure aggregation."""


def kill_masked(root: Path) -> dict[str, int]:
    """Kill before and after every step of a masked answer: it is recorded unchanged, or may be computed anew."""
    study, few = masked_sites.MASKED.hash, masking.bitmap_of(range(4), masked_sites.N)
    for _, owner, name, *on_record in MASKED_STEPS:
        for after in (False, True):
            folder, sent = root / f"{name} {after}", {}
            pid, reader = _forked(lambda pipe: _die_masked(folder, pipe, owner, name, after))  # noqa: B023
            _, status = os.waitpid(pid, 0)
            assert os.WIFSIGNALED(status), f"no kill at {name}"
            assert _received(reader, sent) == 1  # the first round is answered before
            with masked_sites.site(folder) as guard:
                recorded = 2 in guard._ledger.status().accounts[study].rounds
                assert recorded == on_record[after], f"{name}, {after}"
                request = guard.prepare(study, 2, consensus(2))
                if recorded:
                    assert refusal(guard.mask, study, 2, request, few).code == "round-forked"
                    stored = guard._ledger.transcript(study)[1][1]
                    assert guard.mask(study, 2, request, masked_sites.ALL).tobytes() == stored[: 8 * D]
                else:
                    guard.mask(study, 2, request, few)
                first = guard.mask(study, 1, guard.prepare(study, 1, consensus(1)), masked_sites.ALL)
                assert first.tobytes() == sent[1]
                spent = guard._ledger.status().spent
                assert spent == 2 * Fraction(POLICY.release_cost(masked_sites.MASKED.terms.plan.at(1)))
    return {"kills": 2 * len(MASKED_STEPS)}


def _die_masked(folder: Path, pipe: int, owner: Any, name: str, after: bool) -> None:
    study = masked_sites.MASKED.hash
    with masked_sites.site(folder) as guard:
        for round in (1, 2):
            if round == 2:
                _last_step(owner, name, after)
            request = guard.prepare(study, round, consensus(round))
            upload = guard.mask(study, round, request, masked_sites.ALL)
            send(pipe, f"{json.dumps([round, upload.tobytes().hex()])}\n".encode())


def kill_writes(root: Path, step: int) -> dict[str, int]:
    """Kill before, during and after every write, from a new ledger to its third round."""
    kills = 0
    for start, kind in enumerate(("kill before", "kill half", "kill after"), 1):
        at, killed = start, True
        while killed:
            folder, sent = root / f"{kind} {at}", {}
            pid, reader = _forked(lambda pipe: _die_at_write(folder, pipe, kind, at))  # noqa: B023
            _, status = os.waitpid(pid, 0)
            _received(reader, sent)
            killed = os.WIFSIGNALED(status)
            check(folder, sent)
            _play_to(folder, 4, sent)
            check(folder, sent)
            kills, at = kills + killed, at + step
    return {"kills": kills}


def _die_at_write(folder: Path, pipe: int, kind: str, at: int) -> None:
    with failing(Fault(kind, at)):
        for until in (2, 3):
            _continue(folder, pipe, until)


def crash(folder: Path) -> None:
    """Leave an agent that was killed after five rounds. SQLite's -wal file contains the newest records."""
    sent: Sent = {}
    _play_to(folder, 3, sent)
    with guarded(folder) as guard:
        agent = Agent(guard, STUDY)
        for round in (4, 5):
            sent[round] = agent.step(round, consensus(round)).tobytes()
        sys.stdout.write(json.dumps({round: upload.hex() for round, upload in sent.items()}))
        sys.stdout.flush()
        os._exit(0)


def fork_run(folder: Path) -> dict[str, Any]:
    """Check that a forked process cannot answer for its parent, and that noise drawn in both differs."""
    with guarded(folder) as guard:
        agent = Agent(guard, STUDY)
        agent.step(1, consensus(1))
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            codes: list[str] = []
            acts = (
                lambda: agent.step(2, consensus(2)),
                lambda: agent.step(1, consensus(1)),
                lambda: guard.transcript(STUDY.hash),
                lambda: guard.enrol(STUDY),
                lambda: guard.leave(STUDY.hash),
                lambda: guarded(folder).__enter__(),
            )
            for act in acts:
                try:
                    act()
                    codes.append("done")
                except RefusalError as refused:
                    codes.append(refused.code)
            os.write(writer, json.dumps([codes, _noise()]).encode())
            os._exit(0)
        os.close(writer)
        own_noise = _noise()
        os.waitpid(pid, 0)
        with os.fdopen(reader) as answers:
            codes, child_noise = json.loads(answers.read())
        agent.step(2, consensus(2))
    return {"codes": codes, "same_noise": own_noise == child_noise, "rounds": check(folder, {})}


def _noise() -> list[int]:
    return exact_noise.discrete_gaussian(10**6, 3).tolist()


def hold(folder: Path) -> None:
    """Answer two rounds, report it, and keep the ledger open."""
    with guarded(folder) as guard:
        agent = Agent(guard, STUDY)
        for round in (1, 2):
            agent.step(round, consensus(round))
        sys.stdout.write("two rounds\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    runs = {run.__name__: run for run in (kill_run, kill_steps, kill_masked, kill_writes, crash, fork_run, hold)}
    sys.stdout.write(json.dumps(runs[sys.argv[1]](Path(sys.argv[2]), *map(int, sys.argv[3:]))))
