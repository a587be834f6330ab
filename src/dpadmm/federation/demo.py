"""A deployment on one machine: broker, aggregator and one process per site, with real certificates.

Every site has its own part of UCI Adult, its own ledger and its own limits. At the end the demo verifies the
statement, the ledgers, and the run itself, which is repeated in this process. The public study has d = 104
features, as in the paper: the last value of every category is not listed and counts as "other".

The sites and the unreliable network serve tests too. Agents are processes of the installed program, and the
TCP proxy delays, stalls, cuts and throttles what passes through it.
"""

from __future__ import annotations

import asyncio
import csv
import os
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from logging import Logger
from pathlib import Path
from typing import Any

import numpy as np

from dpadmm._base.errors import DpadmmError, StudyError
from dpadmm._base.files import atomic_file
from dpadmm.data.datasets.adult import COLUMNS, Row, adult_rows
from dpadmm.data.schema import Category, Column, Label, Number, Schema
from dpadmm.federation.aggregator.coordinator import View
from dpadmm.federation.aggregator.journal import Journal, result_of
from dpadmm.federation.aggregator.server import Server, begin
from dpadmm.federation.nats.broker import Broker
from dpadmm.federation.pki.authority import Authority, url_of
from dpadmm.federation.pki.joining import join, make_request
from dpadmm.federation.replay import Replay, replay
from dpadmm.federation.site.decisions import accept
from dpadmm.model.evaluate import evaluate
from dpadmm.model.file import load_model
from dpadmm.model.model import model_of
from dpadmm.privacy.statement import cross_checks, read_statement
from dpadmm.site.site import Site, read_site
from dpadmm.study.settings import Training
from dpadmm.study.study import Study
from dpadmm.trusted.ledger import read_ledger

SITE_TOML = """\
format = "dpadmm-site/1"
ledger = "ledger"

[data]
table = "{table}"
label = "{label}"

[person]
rows = 1

[limits]
epsilon = {epsilon!r}
delta = {delta!r}
methods = ["dp_admm", "dp_sgd"]
losses = ["logistic"]
max_rounds = {max_rounds}
min_rows = 20
"""


def new_site(folder: Path, study: Study, *, table: str, epsilon: float) -> Site:
    """Create the ``site.toml`` and the ledger of a site in a folder with a table, with limits for a study."""
    assert study.label is not None
    label, delta, rounds = study.label.column, float(study.training.delta), study.training.planned_rounds
    text = SITE_TOML.format(table=table, label=label, epsilon=float(epsilon), delta=delta, max_rounds=rounds)
    (folder / "site.toml").write_text(text, encoding="utf-8")
    site = read_site(folder / "site.toml")
    site.begin()
    return site


def invite(authority: Authority, site: Site, name: str, *, url: str | None = None) -> None:
    """Request, approve and join; the site connects to ``url`` if given."""
    folder = site.path.parent
    invitation = authority.approve(make_request(folder, name))
    join(folder, invitation if url is None else replace(invitation, url=url))


def program() -> list[str]:
    """The installed command."""
    own = Path(sysconfig.get_path("scripts")) / "dpadmm"
    return [str(own)] if own.exists() else [sys.executable, "-c", "from dpadmm.cli import main; main()"]


def free_port() -> int:
    """A port of this machine that nobody uses."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


class AgentProcess:
    """A process that runs ``dpadmm agent run``; call ``end``."""

    def __init__(self, site: Site, *, environment: dict[str, str] | None = None) -> None:
        self._asked = False
        self._output = site.path.parent / "output.txt"
        with self._output.open("ab") as out:
            self.process = subprocess.Popen(
                [*program(), "agent", "run", "--quiet", "--site", str(site.path)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C reaches the parent only, which ends it
            )

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace")

    def running(self) -> bool:
        return self.process.poll() is None

    def peak_memory(self) -> float | None:
        """Its peak resident memory in MB; None if the system does not report it."""
        with suppress(OSError, ValueError, StopIteration):
            lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines()
            return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024
        return None

    def kill(self) -> None:
        """Kill it at once, like a power cut."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        """Ask it to end, once: a second signal would interrupt its clean-up."""
        if self.running() and not self._asked:
            self._asked = True
            self.process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        """Terminate it, kill it after 20 s, and return its exit code."""
        self.terminate()
        try:
            return self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.returncode


CHUNK = 16 * 1024
Pair = tuple[asyncio.StreamWriter, asyncio.StreamWriter]


@dataclass(frozen=True)
class Faults:
    """What happens to each chunk of a connection: times in seconds, and probabilities."""

    delay: float = 0.0
    jitter: float = 0.0
    """The maximum of an additional random delay."""
    stall: float = 0.0
    """Probability of a pause of ``stall_seconds``, as after lost packets."""
    stall_seconds: float = 0.5
    loss: float = 0.0
    """Probability that the connection is reset after such a pause."""
    cut: float = 0.0
    """Probability that the connection is reset at once."""
    rate: float | None = None
    """Bytes per second, for a slow reader."""


NO_FAULTS = Faults()

ROUGH = Faults(delay=0.002, jitter=0.008, stall=0.01, stall_seconds=0.4, loss=0.002, cut=0.003)
"""A network on which a run still finishes; something fails every few hundred messages."""

SLOW = Faults(delay=0.01, rate=20_000.0)
"""A site that reads 20 KB per second."""


class Proxy:
    """``async with Proxy("127.0.0.1", 4222) as proxy``: connect to ``proxy.port`` instead.

    ``faults`` may be changed at any time. Every ``slow_every``-th connection is ``SLOW``.
    """

    def __init__(self, host: str, port: int, faults: Faults = NO_FAULTS, *, seed: int = 0, slow_every: int = 0) -> None:
        self._target, self.faults, self._slow_every = (host, port), faults, slow_every
        self._random = random.Random(seed)
        self._pairs: set[Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._open.set()
        self.port = 0
        self.seen = bytearray()
        """The first megabyte that an eavesdropper sees."""
        self.connections = self.stalls = self.cuts = 0

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut_all(self) -> None:
        for pair in list(self._pairs):
            self._cut(pair)

    def hold(self) -> None:
        """Stop all traffic without closing connections, until ``release``."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def _cut(self, pair: Pair) -> None:
        self.cuts += 1
        for writer in pair:
            with suppress(OSError, AttributeError):
                plain: socket.socket = writer.get_extra_info("socket")
                # closes with a TCP reset
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        slow = bool(self._slow_every) and self.connections % self._slow_every == 0
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, far_writer)
        self._pairs.add(pair)
        both = (self._carry(reader, far_writer, pair, slow), self._carry(far_reader, writer, pair, slow))
        ways = [asyncio.create_task(way) for way in both]
        for task in ways:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ways:
                task.cancel()
            self._pairs.discard(pair)
            for each in pair:
                each.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: Pair, slow: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                faults = SLOW if slow else self.faults
                self.seen += data[: max(0, 2**20 - len(self.seen))]
                await self._open.wait()
                await asyncio.sleep(faults.delay + self._random.random() * faults.jitter)
                lost = self._random.random() < faults.loss
                if lost or self._random.random() < faults.stall:
                    self.stalls += 1
                    await asyncio.sleep(faults.stall_seconds)
                if lost or self._random.random() < faults.cut:
                    return self._cut(pair)
                writer.write(data)
                await writer.drain()
                if faults.rate is not None:
                    await asyncio.sleep(len(data) / faults.rate)
        return None


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


HOST = "localhost"
DEADLINE = 2.0
"""With faults: seconds after which a round continues without a site."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class DemoPlan:
    """The options of the demo."""

    n_sites: int
    n_rounds: int
    epsilon: float
    faults: bool


def split_rows(rows: Sequence[Row], n_sites: int) -> tuple[list[Row], list[list[Row]]]:
    """Held-out rows, and the others, split evenly and reproducibly between sites."""
    order = np.random.default_rng(SHUFFLED_BY).permutation(len(rows))
    shuffled = [rows[i] for i in order]
    share = (len(rows) - HELD_OUT) // n_sites
    if n_sites < 1 or share < LEAST_ROWS:
        raise StudyError(f"sites must be between 1 and {(len(rows) - HELD_OUT) // LEAST_ROWS}, not {n_sites}")
    ends = [HELD_OUT + share * i for i in range(n_sites + 1)]
    return shuffled[:HELD_OUT], [shuffled[a:b] for a, b in pairwise(ends)]


def adult_study(rows: Sequence[Row], plan: DemoPlan) -> Study:
    """The study of the demo; with faults, up to half of the sites may miss a round."""
    return Study(
        name="income (UCI Adult)",
        schema=Schema(tuple(_column(name, rows) for name in COLUMNS if name != LABEL)),
        label=Label(LABEL, classes=CLASSES),
        training=Training(method="dp_admm", epsilon=plan.epsilon, delta=DELTA, n_rounds=plan.n_rounds),
        allow_missed_rounds=plan.faults,
        quorum=max(1, (plan.n_sites + 1) // 2) if plan.faults else None,
        deadline=DEADLINE if plan.faults else None,
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


class DemoFailed(DpadmmError):
    """A check of the demo failed."""


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
    held_out, parts = split_rows(rows, plan.n_sites)
    study = adult_study(rows, plan)
    summary = Summary(study, plan.n_sites, len(parts[0]))
    write_table(folder / "held_out.csv", held_out)
    authority = Authority.create(folder / "aggregator", hosts=[HOST], port=free_port())
    async with AsyncExitStack() as resources:
        proxy = None
        if plan.faults:
            target = (authority.settings.own_host, authority.settings.port)
            proxy = await resources.enter_async_context(Proxy(*target, ROUGH, seed=1, slow_every=7))
        sites: dict[str, Site] = {}
        for i, part in enumerate(parts):
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

    tasks = [asyncio.create_task(run), asyncio.create_task(watch())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
    summary.accuracy = float(measured["accuracy"] or 0.0)
    summary.most_frequent = float(measured["most_frequent_class"] or 0.0)
    with atomic_file(folder / "model.statement.json") as out:
        out.write(result.statement.as_bytes())
    cross_checks(read_statement(folder / "model.statement.json"))
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
