"""Sites on this machine and an unreliable network, for demonstrations and tests.

Sites are set up by the functions behind ``dpadmm agent`` and ``dpadmm aggregator``, and agents are processes
of the installed program. The TCP proxy delays, stalls, cuts and throttles what passes through it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dpadmm.federation.pki.authority import Authority
from dpadmm.federation.pki.joining import join, make_request
from dpadmm.federation.site.decisions import decide
from dpadmm.site.site import Site, read_site
from dpadmm.study.study import Study

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
    settings = study.settings
    text = SITE_TOML.format(
        table=table,
        label=study.label.column,
        epsilon=float(epsilon),
        delta=float(settings.delta),
        max_rounds=settings.n_rounds,
    )
    (folder / "site.toml").write_text(text, encoding="utf-8")
    site = read_site(folder / "site.toml")
    site.begin()
    return site


def invite(authority: Authority, site: Site, name: str, *, url: str | None = None) -> None:
    """Request, approve and join; the site connects to ``url`` if given."""
    folder = site.path.parent
    invitation = authority.approve(make_request(folder, name))
    join(folder, invitation if url is None else replace(invitation, url=url))


def accept(site: Site, study: Study) -> None:
    """Enrol a study, as the owner of a site."""
    with site.guard() as guard:
        guard.enrol(study)
    decide(site.path.parent, study, "accepted")


def program() -> list[str]:
    """The installed command."""
    own = Path(sysconfig.get_path("scripts")) / "dpadmm"
    return [str(own)] if own.exists() else [sys.executable, "-c", "from dpadmm.cli import main; main()"]


def free_port() -> int:
    """A free port."""
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
        """What the process printed."""
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


@dataclass(frozen=True)
class Faults:
    """What happens to each chunk of a connection (up to 16 KB).

    Attributes
    ----------
    delay, jitter : float
        Delay in seconds, and the maximum of an additional random delay.
    stall, stall_seconds : float
        Probability and duration of a pause of the connection, as after lost packets.
    loss : float
        Probability that the connection is reset after such a pause.
    cut : float
        Probability that the connection is reset at once.
    rate : float, optional
        Bytes per second, for a slow reader.
    """

    delay: float = 0.0
    jitter: float = 0.0
    stall: float = 0.0
    stall_seconds: float = 0.5
    loss: float = 0.0
    cut: float = 0.0
    rate: float | None = None


NO_FAULTS = Faults()
ROUGH = Faults(delay=0.002, jitter=0.008, stall=0.01, stall_seconds=0.4, loss=0.002, cut=0.003)
"""A network on which a run still finishes; something fails every few hundred messages."""

SLOW = Faults(delay=0.01, rate=20_000.0)
"""A site that reads 20 KB per second."""


class Proxy:
    """``async with Proxy("127.0.0.1", 4222) as proxy``: connect to ``proxy.port`` instead.

    ``faults`` may be changed at any time. Every ``slow_every``-th connection is ``SLOW``.
    """

    def __init__(
        self, host: str, port: int, faults: Faults = NO_FAULTS, *, seed: int = 0, slow_every: int = 0
    ) -> None:
        self._target, self.faults, self._slow_every = (host, port), faults, slow_every
        self._random = random.Random(seed)
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
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
        """Reset every connection."""
        for pair in list(self._pairs):
            self._cut(pair)

    def hold(self) -> None:
        """Stop all traffic without closing connections, until ``release``."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def _cut(self, pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
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
        ways = [
            asyncio.create_task(self._carry(reader, far_writer, pair, slow)),
            asyncio.create_task(self._carry(far_reader, writer, pair, slow)),
        ]
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

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        slow: bool,
    ) -> None:
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
