"""A deployment on one machine: broker, aggregator and one process per site, with real certificates.

Every site has its own part of UCI Adult, its own ledger and its own limits. At the end the demo verifies the
statement, the ledgers, and the run itself, which is repeated in this process. The public study has d = 104
features, as in the paper: the last value of every category is not listed and counts as "other".
"""

from __future__ import annotations

import asyncio
import csv
import statistics
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from logging import Logger
from pathlib import Path
from typing import Any

import numpy as np

from dpadmm._base.errors import DpadmmError, StudyError
from dpadmm._base.files import atomic_file
from dpadmm.data.adult import adult_rows
from dpadmm.data.adult_sources import COLUMNS, Row
from dpadmm.data.schema import Category, Column, Label, Number, Schema
from dpadmm.federation.aggregator.coordinator import View
from dpadmm.federation.aggregator.journal import Journal, result_of
from dpadmm.federation.aggregator.server import Server, begin
from dpadmm.federation.local import ROUGH, AgentProcess, Proxy, accept, free_port, invite, new_site
from dpadmm.federation.nats.broker import Broker
from dpadmm.federation.pki.authority import Authority, url_of
from dpadmm.federation.replay import Replay, replay
from dpadmm.model.evaluate import evaluate
from dpadmm.model.loading import load_model
from dpadmm.model.model import model_of
from dpadmm.privacy.statement import cross_checks, read_statement
from dpadmm.site.site import Site
from dpadmm.study.study import Study
from dpadmm.trusted.ledger import read_ledger

LABEL, CLASSES = "class", ("<=50K", ">50K")
BOUNDS = {
    "age": (17.0, 90.0),
    "fnlwgt": (0.0, 1_500_000.0),
    "education-num": (1.0, 16.0),
    "capital-gain": (0.0, 100_000.0),
    "capital-loss": (0.0, 4_400.0),
    "hours-per-week": (1.0, 99.0),
}
HELD_OUT, LEAST_ROWS, SHUFFLED_BY = 5_222, 50, 1
DELTA = 1e-5


@dataclass(frozen=True)
class Parts:
    """The rows of every site, and the held-out rows."""

    sites: list[list[Row]]
    held_out: list[Row]


def split_rows(rows: Sequence[Row], n_sites: int) -> Parts:
    """Split rows evenly and reproducibly between sites."""
    order = np.random.default_rng(SHUFFLED_BY).permutation(len(rows))
    shuffled = [rows[i] for i in order]
    share = (len(rows) - HELD_OUT) // n_sites
    if n_sites < 1 or share < LEAST_ROWS:
        raise StudyError(f"sites must be between 1 and {(len(rows) - HELD_OUT) // LEAST_ROWS}, not {n_sites}")
    ends = [HELD_OUT + share * i for i in range(n_sites + 1)]
    return Parts([shuffled[a:b] for a, b in pairwise(ends)], shuffled[:HELD_OUT])


def adult_study(
    rows: Sequence[Row],
    *,
    n_rounds: int,
    epsilon: float,
    quorum: int | None = None,
    deadline: float | None = None,
) -> Study:
    """The study of the demo; with a ``quorum``, sites may miss rounds."""
    return Study(
        name="income (UCI Adult)",
        schema=Schema(tuple(_column(name, rows) for name in COLUMNS if name != LABEL)),
        label=Label(LABEL, classes=CLASSES),
        training={
            "method": "dp_admm", "loss": "logistic", "intercept": False, "epsilon": epsilon, "delta": DELTA,
            "n_rounds": n_rounds,
        },
        absences=quorum is not None,
        quorum=quorum,
        deadline=deadline,
    )  # fmt: skip


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as a CSV file with a header."""
    with path.open("w", newline="", encoding="ascii") as out:
        csv.writer(out).writerows([list(COLUMNS), *rows])


def _column(name: str, rows: Sequence[Row]) -> Column:
    if name in BOUNDS:
        return Number(name, BOUNDS[name])
    place = COLUMNS.index(name)
    return Category(name, tuple(sorted({row[place] for row in rows}))[:-1])


HOST = "localhost"
DEADLINE = 2.0
"""With faults: seconds after which a round continues without a site."""

Report = Callable[[str], None]


class DemoFailed(DpadmmError):
    """A check of the demo failed."""


@dataclass(frozen=True)
class DemoPlan:
    """The options of the demo."""

    n_sites: int
    n_rounds: int
    epsilon: float
    faults: bool
    port: int | None = None


@dataclass
class Summary:
    """The results of the demo; times in seconds, memory in MB."""

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
    plan: DemoPlan, folder: Path, log: Logger, *, report: Report, on_start: Callable[[View], None]
) -> Summary:
    """Set up a deployment in an empty folder, run it and check it; all processes end in any case."""
    began = time.monotonic()
    rows = adult_rows()
    parts = split_rows(rows, plan.n_sites)
    few = max(1, (plan.n_sites + 1) // 2)
    study = adult_study(
        rows,
        n_rounds=plan.n_rounds,
        epsilon=plan.epsilon,
        quorum=few if plan.faults else None,
        deadline=DEADLINE if plan.faults else None,
    )
    summary = Summary(study, plan.n_sites, len(parts.sites[0]))
    write_table(folder / "held_out.csv", parts.held_out)
    authority = Authority.create(folder / "aggregator", hosts=[HOST], port=plan.port or free_port())
    async with AsyncExitStack() as resources:
        proxy = None
        if plan.faults:
            target = (authority.settings.own_host, authority.settings.port)
            proxy = await resources.enter_async_context(Proxy(*target, ROUGH, seed=1, slow_every=7))
        sites: dict[str, Site] = {}
        for i, part in enumerate(parts.sites):
            name = f"site-{i + 1:0{len(str(plan.n_sites))}d}"
            (folder / name).mkdir(mode=0o700)
            write_table(folder / name / "table.csv", part)
            site = new_site(folder / name, study, table="table.csv", epsilon=plan.epsilon)
            invite(authority, site, name, url=None if proxy is None else url_of(HOST, proxy.port))
            accept(site, study)
            sites[name] = site
            await asyncio.sleep(0)
        journal = begin(authority, study, None)
        broker = Broker(authority)
        broker.start()
        resources.callback(broker.stop)
        summary.set_up = time.monotonic() - began
        report(f"created certificates, {plan.n_sites} sites and the broker in {summary.set_up:.1f} s")
        agents = {name: AgentProcess(site) for name, site in sites.items()}
        resources.callback(_end, list(agents.values()))
        starting = time.monotonic()
        await _while_all_live(Server(authority, journal, log).run(on_start), agents)
        summary.started = time.monotonic() - starting
        summary.memory = [mb for agent in agents.values() if (mb := agent.peak_memory()) is not None]
        for agent in agents.values():
            agent.terminate()
        for name, agent in agents.items():
            if agent.end() != 0:
                raise DemoFailed(f"{name}: its process did not end normally: {agent.output.strip()[-300:]}")
        if proxy is not None:
            summary.connections, summary.cuts, summary.stalls = proxy.connections, proxy.cuts, proxy.stalls
    report("all processes have ended; checking the results")
    checking = time.monotonic()
    _check(summary, journal, sites, folder)
    summary.checks = time.monotonic() - checking
    return summary


async def _while_all_live(run: Coroutine[Any, Any, View], agents: dict[str, AgentProcess]) -> None:
    """Run, and fail at once if the process of a site ends."""

    async def watch() -> None:
        while True:
            for name, agent in agents.items():
                if not agent.running():
                    raise DemoFailed(f"{name}: its process ended: {agent.output.strip()[-300:]}")
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
        agent.terminate()
    for agent in agents:
        agent.end()


def _check(summary: Summary, path: Path, sites: dict[str, Site], folder: Path) -> None:
    """Check the model, the statement, the ledgers and the repeated run, or raise ``DemoFailed``."""
    with Journal.open(path, read_only=True) as journal:
        result, answered, seconds = result_of(journal), journal.answered(), journal.seconds()
        summary.replay = replay(journal, sites)
    summary.median_round, summary.rounds = statistics.median(seconds), sum(seconds)
    summary.started -= summary.rounds
    model = folder / "model.dpadmm"
    model_of(result).save(model)
    measured = evaluate(load_model(model), folder / "held_out.csv").figures
    summary.accuracy, summary.most_frequent = (
        float(measured[name] or 0.0) for name in ("accuracy", "most_frequent_class")
    )
    with atomic_file(folder / "model.statement.json") as out:
        out.write(result.statement.as_bytes())
    verified = read_statement(folder / "model.statement.json")
    cross_checks(verified)
    summary.epsilon = result.privacy.epsilon
    for name, site in sites.items():
        ledger = read_ledger(site.ledger)  # verifies every record
        account = ledger.accounts[summary.study.hash]
        spent = summary.study.terms.plan.tally(account.rounds)
        price = sum(n * Fraction(site.policy.price(release)) for release, n in spent)
        if account.spent != price or float(account.spent) > ledger.cap:
            raise DemoFailed(f"{name}: the sum in its ledger is not the cost of its answers")
        if len(account.rounds) < len(answered.get(name, ())):
            raise DemoFailed(f"{name}: the journal has answers that are not in its ledger")
        summary.releases += len(account.rounds)
        summary.records += ledger.seq
    if not summary.replay.equal:
        raise DemoFailed(
            f"the run differs from that in this process, first in round {summary.replay.first_difference}, "
            f"with a noise scale of {summary.replay.noise_scale:.4f} instead of 1"
        )
