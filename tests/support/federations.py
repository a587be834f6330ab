"""A small federation of real processes on loopback, for fault tests, with the invariants of every fault."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import numpy as np
from brokers import free_port
from forked import ForkedProgram
from replays import replay

from dpadmm.data.schema import Label, Number, Schema
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.local import SiteSubprocess, invite, new_site, with_keys
from dpadmm.federation.replay import Replay
from dpadmm.federation.server.journal import Journal
from dpadmm.federation.server.process import begin
from dpadmm.federation.server.status import journal_of
from dpadmm.federation.site.decisions import accept
from dpadmm.federation.transport.broker import Broker
from dpadmm.sites.site import Site
from dpadmm.studies.study import Study
from dpadmm.trusted.ledger import read_ledger

NAMES = ("a", "b", "c")
EPSILON = 3.0


def small_study(rounds: int = 60, *, name: str = "small", method: str = "dp_admm", **more: object) -> Study:
    """Return a study with two features. Sites may miss rounds by default."""
    choices: dict[str, object] = {"allow_missed_rounds": True, "quorum": 2, "deadline": 1.0, **more}
    training = {"method": method, "epsilon": EPSILON, "delta": 1e-5, "n_rounds": rounds, "loss": "logistic"}
    if "max_rows_per_site" in choices:  # secure aggregation; the sites form the roster
        training |= {"method": "auto", "aggregation": "secure", "min_honest_sites": 2}
    return Study(
        name=name,
        schema=Schema((Number("age", (0, 100)), Number("bmi", (10, 60)))),
        label=Label("sick", classes=("no", "yes")),
        training=training,
        **choices,  # type: ignore[arg-type]
    )


def write_rows(path: Path, seed: int, n_rows: int = 60) -> None:
    rng = np.random.default_rng(seed)
    lines = ["age,bmi,sick"]
    for _ in range(n_rows):
        age, bmi = rng.uniform(20, 80), rng.uniform(15, 40)
        sick = "yes" if rng.random() < 1 / (1 + np.exp((50 - age) / 10)) else "no"
        lines.append(f"{age:.1f},{bmi:.1f},{sick}")
    path.write_text("\n".join(lines) + "\n")


def wait_for(done: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until a condition holds, or fail."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def agent_process(site: Site, **environment: str) -> SiteSubprocess:
    """Start a forked site process, which is faster than a new one."""
    agent = SiteSubprocess.__new__(SiteSubprocess)
    agent._is_terminating, agent._output = False, site.path.parent / "output.txt"
    agent.process = ForkedProgram(  # type: ignore[assignment]
        ["site", "run", "--quiet", "--site", site.path], agent._output, environment
    )
    return agent


class Federation:
    """``with Federation(folder, study) as all``: sites are set up, nothing runs. Processes are ended on exit."""

    start_wait = 60.0
    """Seconds in which the aggregator waits for all sites at its start."""

    def __init__(
        self,
        folder: Path,
        study: Study,
        names: Sequence[str] = NAMES,
        *,
        authority: Authority | None = None,
        url: str | None = None,
        limit: float = EPSILON,
    ) -> None:
        self.folder, self.names = folder, names
        self.authority = authority or Authority.create(folder / "aggregator", hosts=["localhost"], port=free_port())
        self.broker = Broker(self.authority)
        self.sites: dict[str, Site] = {}
        for i, name in enumerate(names):
            (folder / name).mkdir()
            write_rows(folder / name / "table.csv", i)
            self.sites[name] = new_site(folder / name, study, table="table.csv", epsilon=limit)
            invite(self.authority, self.sites[name], name, url=url)
        self.study = study = with_keys(study, self.sites)
        self.journal = journal_of(self.authority.folder, study.hash)
        self.agents: dict[str, SiteSubprocess] = {}
        self.aggregator: ForkedProgram | None = None
        self._all: list[SiteSubprocess] = []
        self._keeper: ForkedProgram | None = None

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self._all:
            agent.terminate()
        if self.aggregator is not None:
            self.aggregator.kill()
            self.aggregator.wait()
        for agent in self._all:
            agent.end()
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.wait()
        self.broker.stop()

    # What runs

    def accept(self, *names: str) -> None:
        for name in names or self.names:
            accept(self.sites[name], self.study)

    def begin(self) -> None:
        """Start the broker first, so that nothing waits for it; then create the journal."""
        self.broker.start()
        begin(self.authority, self.study, list(self.names))

    def keep_broker(self) -> ForkedProgram:
        """``dpadmm server start``: the server stays when a study has ended."""
        self._keeper = ForkedProgram(["server", "start", "--folder", self.authority.folder], self.folder / "broker.txt")
        return self._keeper

    def start(self, *names: str, **environment: str) -> None:
        for name in names or self.names:
            self.agents[name] = agent_process(self.sites[name], **environment)
            self._all.append(self.agents[name])

    def all_connected(self, *names: str) -> None:
        """Return whether the logs of all sites report a connection."""
        for name in names or self.names:
            wait_for(lambda name=name: "connected to" in self.log(name) or not self.agents[name].running())  # type: ignore[misc]

    def serve(self, *words: str) -> ForkedProgram:
        """``dpadmm server run``, from the journal or from the beginning."""
        log = self.folder / "aggregator.txt"
        self.aggregator = ForkedProgram(
            [
                "server",
                "run",
                "--folder",
                self.authority.folder,
                "--no-page",
                "--start-wait",
                self.start_wait,
                *words,
            ],
            log,
        )
        return self.aggregator

    def kill_aggregator(self) -> None:
        assert self.aggregator is not None
        self.aggregator.kill()
        self.aggregator.wait()

    def kill_broker(self) -> None:
        with suppress(OSError, ValueError):
            os.kill(int((self.authority.folder / "broker.pid").read_text()), signal.SIGKILL)

    def finished(self, seconds: float = 90.0) -> int:
        """Return the server's exit code when it has ended."""
        assert self.aggregator is not None
        return self.aggregator.wait(timeout=seconds)

    # Observations

    @property
    def output(self) -> str:
        """Return the server's output."""
        return (self.folder / "aggregator.txt").read_text()

    def log(self, name: str) -> str:
        path = self.folder / name / "site.log"
        return path.read_text() if path.exists() else ""

    @property
    def rounds_done(self) -> int:
        with Journal.open(self.journal, read_only=True) as journal:
            return journal.rounds_done

    def events(self) -> str:
        with Journal.open(self.journal, read_only=True) as journal:
            return "\n".join(event.text for event in journal.events(10_000))

    def after_round(self, k: int) -> None:
        wait_for(lambda: self.rounds_done >= k)

    # Invariants

    def check(self, *, rounds: int | None = None, equal: bool = True) -> Replay | None:
        """Check that all sites ended, that ledgers are intact without overspending or loss, and the result."""
        for agent in self._all:
            agent.terminate()
        for agent in self._all:
            agent.end()
        with Journal.open(self.journal, read_only=True) as journal:
            assert journal.rounds_done == (self.study.training.n_rounds if rounds is None else rounds)
            assert len(list(journal.consensus())) == journal.rounds_done
            for name, site in self.sites.items():
                state = read_ledger(site.ledger)
                assert float(state.spent) <= state.cap
                account = state.accounts.get(self.study.hash)
                taken = set(journal.answered().get(name, ()))
                if account is None:
                    assert not taken
                    continue
                spent = self.study.terms.plan.tally(account.rounds)
                assert account.spent == sum(n * Fraction(site.policy.release_cost(release)) for release, n in spent)
                assert float(state.collusion_spent) <= state.collusion_cap
                assert taken <= set(account.rounds)
            if not equal:
                return None
            found = replay(journal, self.sites)
        assert found.equal, found
        return found
