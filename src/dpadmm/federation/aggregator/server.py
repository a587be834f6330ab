"""Runs a study at the aggregator: the broker, the connection, the round loop, and revocations."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from logging import Logger
from pathlib import Path

from dpadmm._base.errors import DpadmmError, StudyError
from dpadmm.federation.aggregator.coordinator import Coordinator, run_rounds
from dpadmm.federation.aggregator.journal import Journal
from dpadmm.federation.aggregator.sums import coordinator_of
from dpadmm.federation.nats.broker import Broker
from dpadmm.federation.nats.link import NatsTransport, until_one_ends
from dpadmm.federation.pki.authority import Authority
from dpadmm.runs.training import prior_from
from dpadmm.study.study import Study

CHECK_EVERY = 1.0
"""Seconds between checks of the approved sites and of the broker."""


def journal_of(folder: Path, study: str) -> Path:
    return folder / "studies" / study[:16] / "journal.sqlite"


def journals(folder: Path) -> list[Path]:
    return sorted((folder / "studies").glob("*/journal.sqlite"))


def _usable_sites(authority: Authority) -> set[str]:
    return {each.name for each in authority.sites() if each.usable(datetime.now(UTC))}


def _members(authority: Authority, study: Study, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The members of a study, sorted: the requested sites, or all approved ones; those of its roster, if it has one."""
    usable, roster = _usable_sites(authority), [each.name for each in study.roster]
    if study.training.trust == "secure_aggregation":
        if not roster:
            text = "the study has no roster yet: dpadmm agent offer DRAFT at each site, then dpadmm aggregator roster"
            raise StudyError(text)
        if wanted is not None and set(wanted) != set(roster):
            raise StudyError(f"the sites of this study are those of its roster: {', '.join(roster)}; leave --sites out")
    if wanted is None:
        wanted = roster or sorted(usable)
    if len(set(wanted)) != len(wanted):
        raise StudyError("a site is listed twice")
    if unknown := sorted(set(wanted) - usable):
        raise StudyError(
            f"these sites are not approved (any more): {', '.join(unknown)}; approved sites: "
            f"{', '.join(sorted(usable)) or 'none yet (dpadmm aggregator approve REQUEST)'}"
        )
    if not wanted:
        raise StudyError("no site is approved yet: dpadmm aggregator approve REQUEST")
    return tuple(roster or sorted(wanted))


def begin(authority: Authority, study: Study, wanted: Sequence[str] | None) -> Path:
    """Create the journal of a study unless it exists; its members do not change afterwards."""
    path = journal_of(authority.folder, study.hash)
    if not path.exists():
        members = _members(authority, study, wanted)
        study.quorum_of(len(members))
        prior = None if study.public_rows is None else prior_from(study, study.public_rows.verified())
        Journal.begin(path, study, members, prior)
    return path


@dataclass
class Server:
    """Runs a study to its end: ``await server.run()``.

    ``broker_url`` is an existing broker, configured by others; without it the built-in broker is started.
    """

    authority: Authority
    journal: Path
    log: Logger
    broker_url: str | None = None
    port: int | None = None

    async def run(self, on_start: Callable[[Coordinator], None] = lambda run: None) -> Coordinator:
        """Run to the end and return the coordinator, which ``on_start`` receives at the start."""
        async with AsyncExitStack() as resources:
            journal = resources.enter_context(Journal.open(self.journal))
            coordinator = coordinator_of(journal, self.log)
            broker = self._broker(resources)
            url, context = self.broker_url or self.authority.own_url(self.port), self.authority.client_context
            transport = NatsTransport(coordinator.study.hash, url, context, self.log)
            await resources.enter_async_context(transport)
            on_start(coordinator)
            work = (run_rounds(coordinator, transport), self._check_sites(coordinator, broker))
            try:
                await until_one_ends(*work)
            except DpadmmError as problem:
                coordinator.stopped = str(problem)
                raise
            return coordinator

    def _broker(self, resources: AsyncExitStack) -> Broker | None:
        if self.broker_url is not None:
            return None
        broker = Broker(self.authority, port=self.port)
        lock = os.open(self.authority.folder / "serving", os.O_CREAT | os.O_RDWR, 0o600)
        resources.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_SH)
        broker.start()
        resources.callback(_stop_if_last, broker, lock)
        return broker

    async def _check_sites(self, coordinator: Coordinator, broker: Broker | None) -> None:
        """Exclude revoked sites at once, and keep the broker running."""
        while True:
            usable = _usable_sites(self.authority)
            for name in coordinator.members:
                (coordinator.readmit if name in usable else coordinator.revoke)(name)
            if broker is not None:
                try:
                    if not broker.alive():
                        coordinator.note("warning", "", "the broker stopped; restarting it")
                        await asyncio.to_thread(broker.start)
                    else:
                        await asyncio.to_thread(broker.refresh)
                except DpadmmError as problem:  # nothing is lost by trying again
                    coordinator.note("error", "", f"{problem}; trying again")
            await asyncio.sleep(CHECK_EVERY)


def _stop_if_last(broker: Broker, lock: int) -> None:
    """Stop the broker, unless another study of this folder needs it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    broker.stop()
