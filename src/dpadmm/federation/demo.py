"""A deployment on one machine: broker, aggregator and a process for every site, with real certificates.

Sites have their own part of UCI Adult, their own ledger and their own limits. At the end everything is
checked that can be: statement, ledgers, and the run itself by a second one in this process.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from logging import Logger
from pathlib import Path
from typing import Any

from dpadmm.errors import DpadmmError
from dpadmm.evaluation import evaluate
from dpadmm.federation.aggregator_folder import url_of
from dpadmm.federation.broker import Broker
from dpadmm.federation.certificates import Authority
from dpadmm.federation.demo_data import adult_study, deal, load_rows, write_table
from dpadmm.federation.hosting import Host, begin
from dpadmm.federation.journal import Journal
from dpadmm.federation.local_sites import AgentProcess, accepted, free_port, invited, new_site
from dpadmm.federation.outcome import result_of
from dpadmm.federation.proxy import ROUGH, Proxy
from dpadmm.federation.replay import Replay, replay
from dpadmm.federation.view import View
from dpadmm.files import atomic_file
from dpadmm.model import model_of
from dpadmm.model_loading import load_model
from dpadmm.privacy.ledger import read_ledger
from dpadmm.privacy.statement_file import cross_checks, read_statement
from dpadmm.site import Site
from dpadmm.study import Study

HOST = "localhost"
DEADLINE = 2.0
"""With faults: seconds after which a round goes on without a site."""

Tell = Callable[[str], None]


class DemoFailed(DpadmmError):
    """Something that must hold did not."""


@dataclass(frozen=True)
class Plan:
    """What to show."""

    n_sites: int
    n_rounds: int
    epsilon: float
    faults: bool
    port: int | None = None


@dataclass
class Shown:
    """What was seen; times in seconds, memory in MB."""

    study: Study
    n_sites: int
    rows_per_site: int
    accuracy: float = 0.0
    most_frequent: float = 0.0
    epsilon: float = 0.0
    releases: int = 0
    records: int = 0
    replay: Replay | None = None
    set_up: float = 0.0
    started: float = 0.0
    rounds: float = 0.0
    median_round: float = 0.0
    checks: float = 0.0
    memory: list[float] = field(default_factory=list)
    connections: int = 0
    cuts: int = 0
    stalls: int = 0


async def demonstrate(
    plan: Plan, folder: Path, log: Logger, *, tell: Tell, watch: Callable[[View], None]
) -> Shown:
    """Set everything up in an empty folder, run it, and check it; whatever happens, all processes end."""
    began = time.monotonic()
    rows = load_rows()
    parts = deal(rows, plan.n_sites)
    few = max(1, (plan.n_sites + 1) // 2)
    study = adult_study(
        rows,
        n_rounds=plan.n_rounds,
        epsilon=plan.epsilon,
        quorum=few if plan.faults else None,
        deadline=DEADLINE if plan.faults else None,
    )
    shown = Shown(study, plan.n_sites, len(parts.sites[0]))
    write_table(folder / "held_out.csv", parts.held_out)
    authority = Authority.create(folder / "aggregator", hosts=[HOST], port=plan.port or free_port())
    async with AsyncExitStack() as held:
        proxy = None
        if plan.faults:
            target = (authority.settings.own_host, authority.settings.port)
            proxy = await held.enter_async_context(Proxy(*target, ROUGH, seed=1, slow_every=7))
        sites: dict[str, Site] = {}
        for i, part in enumerate(parts.sites):
            name = f"site-{i + 1:0{len(str(plan.n_sites))}d}"
            (folder / name).mkdir(mode=0o700)
            write_table(folder / name / "table.csv", part)
            site = new_site(folder / name, study, table="table.csv", epsilon=plan.epsilon)
            invited(authority, site, name, url=None if proxy is None else url_of(HOST, proxy.port))
            accepted(site, study)
            sites[name] = site
            await asyncio.sleep(0)
        journal = begin(authority, study, None)
        broker = Broker(authority)
        broker.start()
        held.callback(broker.stop)
        shown.set_up = time.monotonic() - began
        tell(f"set up in {shown.set_up:.1f} s: certificates, {plan.n_sites} tables, ledgers, broker")
        agents = {name: AgentProcess(site) for name, site in sites.items()}
        held.callback(_end, list(agents.values()))
        starting = time.monotonic()
        await _while_all_live(Host(authority, journal, log).run(watch), agents)
        shown.started = time.monotonic() - starting
        shown.memory = [mb for agent in agents.values() if (mb := agent.peak_memory()) is not None]
        for agent in agents.values():
            agent.ask_to_end()
        for name, agent in agents.items():
            if agent.end() != 0:
                raise DemoFailed(f"{name}: its process did not end in order: {agent.said.strip()[-300:]}")
        if proxy is not None:
            shown.connections, shown.cuts, shown.stalls = proxy.connections, proxy.cuts, proxy.stalls
    tell("all processes have ended; now everything is checked")
    checking = time.monotonic()
    _check(shown, journal, sites, folder)
    shown.checks = time.monotonic() - checking
    return shown


async def _while_all_live(run: Coroutine[Any, Any, View], agents: dict[str, AgentProcess]) -> None:
    """Run, and fail at once where a site's process ends: it would be waited for in vain."""

    async def watch() -> None:
        while True:
            for name, agent in agents.items():
                if not agent.running():
                    raise DemoFailed(f"{name}: its process has ended: {agent.said.strip()[-300:]}")
            await asyncio.sleep(0.5)

    running, watching = asyncio.ensure_future(run), asyncio.ensure_future(watch())
    try:
        done, _ = await asyncio.wait([running, watching], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for each in (running, watching):
            each.cancel()
        await asyncio.gather(running, watching, return_exceptions=True)


def _end(agents: list[AgentProcess]) -> None:
    for agent in agents:
        agent.ask_to_end()
    for agent in agents:
        agent.end()


def _check(shown: Shown, path: Path, sites: dict[str, Site], folder: Path) -> None:
    """Model, statement, ledgers, and the second run; ``DemoFailed`` where something does not hold."""
    with Journal.open(path, read_only=True) as journal:
        result, answered, seconds = result_of(journal), journal.answered(), journal.seconds()
        shown.replay = replay(journal, sites)
    shown.median_round, shown.rounds = statistics.median(seconds), sum(seconds)
    shown.started -= shown.rounds
    model = folder / "model.dpadmm"
    model_of(result).save(model)
    measured = evaluate(load_model(model), folder / "held_out.csv").figures
    shown.accuracy, shown.most_frequent = (
        float(measured[name] or 0.0) for name in ("accuracy", "most_frequent_class")
    )
    with atomic_file(folder / "model.statement.json") as out:
        out.write(result.statement.as_bytes())
    verified = read_statement(folder / "model.statement.json")
    cross_checks(verified)
    shown.epsilon = result.privacy.epsilon
    for name, site in sites.items():
        book = read_ledger(site.ledger)  # every record, hash, rule and the mark
        account = book.accounts[shown.study.hash]
        price = site.policy.price(shown.study.terms)
        if account.spent != len(account.rounds) * Fraction(price) or float(account.spent) > book.cap:
            raise DemoFailed(f"{name}: its ledger has another sum than its answers cost")
        if len(account.rounds) < answered.get(name, 0):
            raise DemoFailed(f"{name}: the journal has answers that its ledger does not have")
        shown.releases += len(account.rounds)
        shown.records += book.seq
    if not shown.replay.equal:
        raise DemoFailed(
            f"the run is not that in one process: round {shown.replay.first_difference} differs, "
            f"noise {shown.replay.noise_scale:.4f} of what was promised"
        )
