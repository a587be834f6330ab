"""An aggregator at work: its broker, its connection, the round loop, and who may still take part."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from logging import Logger
from pathlib import Path

from dpadmm.errors import DpadmmError, StudyError
from dpadmm.federation.broker import Broker
from dpadmm.federation.certificates import Authority
from dpadmm.federation.conduct import conduct
from dpadmm.federation.coordinator import Coordinator
from dpadmm.federation.journal import Event, Journal
from dpadmm.federation.nats_link import Link, NatsTransport
from dpadmm.federation.tasks import ended
from dpadmm.federation.view import View
from dpadmm.study import Study

LOOK_EVERY = 1.0
"""Seconds between two looks at who is approved, and at the broker."""


def journal_of(folder: Path, study: str) -> Path:
    """Where the journal of a study is."""
    return folder / "studies" / study[:16] / "journal.sqlite"


def journals(folder: Path) -> list[Path]:
    """All journals of an aggregator."""
    return sorted((folder / "studies").glob("*/journal.sqlite"))


def chosen_members(authority: Authority, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Who takes part: the sites named, or all that are approved; their order is that of their names."""
    usable = {each.name for each in authority.sites() if each.usable(datetime.now(UTC))}
    if wanted is None:
        wanted = sorted(usable)
    if len(set(wanted)) != len(wanted):
        raise StudyError("a site is named twice")
    if unknown := sorted(set(wanted) - usable):
        raise StudyError(
            f"not approved, or not any more: {', '.join(unknown)}; approved are: "
            f"{', '.join(sorted(usable)) or 'none yet (dpadmm aggregator approve REQUEST)'}"
        )
    if not wanted:
        raise StudyError("no site is approved yet: dpadmm aggregator approve REQUEST")
    return tuple(sorted(wanted))


def begin(authority: Authority, study: Study, wanted: Sequence[str] | None) -> Path:
    """Begin the journal of a study, unless there is one; who takes part stays as it was begun."""
    path = journal_of(authority.folder, study.hash)
    if not path.exists():
        members = chosen_members(authority, wanted)
        study.quorum_of(len(members))
        Journal.begin(path, study, members)
    return path


@dataclass
class Host:
    """Runs a study to its end: ``await host.run(watch=...)``.

    ``broker_url``: an existing broker, which others configure; else the aggregator's own is started.
    """

    authority: Authority
    journal: Path
    log: Logger
    broker_url: str | None = None
    port: int | None = None

    async def run(self, watch: Callable[[View], None] = lambda view: None) -> View:
        """The view of the finished run; the journal has everything. ``watch`` gets the view at the start."""
        async with AsyncExitStack() as held:
            journal = held.enter_context(Journal.open(self.journal))
            coordinator = Coordinator(journal)
            view = View(coordinator, journal.events(), time.monotonic)
            coordinator.watchers.extend((view.events.append, self._tell))
            broker = self._broker(held)
            transport = NatsTransport(coordinator.study.hash)
            transport.link = link = Link(
                self.broker_url or self.authority.own_url(self.port),
                self.authority.client_context,
                transport.received,
                self.log,
                name="aggregator",
            )
            await link.hear(transport.hears)
            await held.enter_async_context(link)
            watch(view)
            looking = asyncio.create_task(self._look(coordinator, broker))
            playing = asyncio.create_task(conduct(coordinator, transport))
            try:
                await asyncio.wait([looking, playing], return_when=asyncio.FIRST_COMPLETED)
                for task in (playing, looking):
                    if task.done():
                        task.result()
            except DpadmmError as problem:
                view.ended = str(problem)
                raise
            finally:
                await ended(playing, looking)
            return view

    def _broker(self, held: AsyncExitStack) -> Broker | None:
        if self.broker_url is not None:
            return None
        broker = Broker(self.authority, port=self.port)
        others = os.open(self.authority.folder / "serving", os.O_CREAT | os.O_RDWR, 0o600)
        held.callback(os.close, others)
        fcntl.flock(others, fcntl.LOCK_SH)
        broker.start()
        held.callback(_stop_if_last, broker, others)
        return broker

    async def _look(self, coordinator: Coordinator, broker: Broker | None) -> None:
        """See to it that who is revoked is out at once, and that the broker runs."""
        while True:
            now = datetime.now(UTC)
            usable = {each.name for each in self.authority.sites() if each.usable(now)}
            for name in coordinator.members:
                (coordinator.readmit if name in usable else coordinator.revoke)(name)
            if broker is not None:
                try:
                    if not broker.alive():
                        coordinator.note("warning", "", "the broker had stopped; it is started again")
                        await asyncio.to_thread(broker.start)
                    else:
                        await asyncio.to_thread(broker.refresh)
                except DpadmmError as problem:  # ended while it started, say: nothing is lost by trying on
                    coordinator.note("error", "", f"{problem}; it is tried again")
            await asyncio.sleep(LOOK_EVERY)

    def _tell(self, event: Event) -> None:
        """To the log of this process."""
        level = {"info": 20, "warning": 30, "error": 40}[event.level]
        self.log.log(level, "%s", event.text)


def _stop_if_last(broker: Broker, others: int) -> None:
    """End the broker, unless another study of this folder needs it."""
    try:
        fcntl.flock(others, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    broker.stop()
