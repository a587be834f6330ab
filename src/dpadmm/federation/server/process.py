"""Runs a study at the aggregator: the broker, the connection, the round loop, and revocations.

The broker runs as long as a study does, or longer if ``keep_broker`` keeps it, so that sites stay connected.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from logging import Logger, getLevelNamesMapping
from pathlib import Path
from typing import TypeVar

from dpadmm.errors import DPADMMError, StudyError
from dpadmm.federation.health import (
    STATUS,
    AggregatorStatus,
    Alarm,
    Clock,
    Sample,
    Status,
    days_left,
    hub_alarms,
    hub_samples,
    is_live,
    metrics_server,
    now_text,
    read_status,
    sign_of_life,
    study_alarms,
    study_samples,
    write_status,
)
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.logs import Repeats
from dpadmm.federation.notify import Notifier, StudyNotice, alarm_key
from dpadmm.federation.server.coordinator import Coordinator, run_rounds
from dpadmm.federation.server.endings import announce
from dpadmm.federation.server.journal import Journal
from dpadmm.federation.server.leases import Leases
from dpadmm.federation.server.sums import coordinator_of, snapshot_of_journal
from dpadmm.federation.states import FAILURES, StudyState, headline, study_state
from dpadmm.federation.transport.broker import Broker
from dpadmm.federation.transport.link import HubLink, NatsTransport, cancelled, until_one_ends
from dpadmm.sites.addresses import check_urls
from dpadmm.studies.study import Study
from dpadmm.training.train import prior_from

T = TypeVar("T")

CHECK_EVERY = 1.0
"""Seconds between checks of the approved sites and of the broker."""

WATCH_EVERY = 0.5
"""Seconds between looks at the open round, each of which is a sign of life."""

START_WAIT = 60.0
"""Seconds to wait for sites at the start: an agent that found no broker for long tries again after up to 45."""


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
    approve = f"dpadmm aggregator approve REQUEST --folder {authority.folder}"
    if unknown := sorted(set(wanted) - usable):
        approved = ", ".join(sorted(usable)) or f"none yet ({approve})"
        raise StudyError(f"these sites are not approved (any more): {', '.join(unknown)}; approved sites: {approved}")
    if not wanted:
        raise StudyError(f"no site is approved yet: {approve}")
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

    ``broker_url`` are addresses of existing brokers, configured by others, separated by commas; without them, and
    without brokers in the settings, the built-in broker is started, unless it is kept running. ``start_wait`` is how
    long sites are waited for at the start.
    """

    authority: Authority
    journal: Path
    log: Logger
    broker_url: str | None = None
    port: int | None = None
    start_wait: float = START_WAIT
    metrics: str | None = None
    """Where to serve metrics: a port, or an address and a port."""
    status: Callable[[], Status] = dict
    """The status of the study, from ``on_start`` on."""

    async def run(self, on_start: Callable[[Coordinator], None] = lambda run: None) -> Coordinator:
        """Run to the end and return the coordinator, which ``on_start`` receives at the start."""
        async with AsyncExitStack() as resources:
            notifier = self._notifier(resources)  # first, because it may take seconds to close
            journal = resources.enter_context(Journal.open(self.journal))
            coordinator = coordinator_of(journal, self.log)
            coordinator.start_wait = self.start_wait
            broker = self._broker(resources)
            url = broker.url if broker is not None else self._existing
            leases = resources.enter_context(Leases(self.authority.folder, coordinator.note_counted))
            coordinator.doubts = lambda: leases.doubts(time.monotonic())
            context = self.authority.client_context
            transport = NatsTransport(coordinator.study.hash, url, context, self.log, leases)
            await resources.enter_async_context(transport)
            coordinator.seen = transport.seen
            live = _live_status(coordinator, transport)
            resources.callback(lambda: write_status(self.journal.parent, live() | {"running": False}))
            self.status = lambda: coordinator.snapshot() | {"live": _connection(transport) | {"at": now_text()}}
            resources.enter_context(metrics_server(self.metrics, self._samples))
            on_start(coordinator)
            work = run_rounds(coordinator, transport), self._check_sites(coordinator, broker, transport)
            inform = announce(lambda: journals(self.authority.folder), transport.publish)
            report = partial(notifier.update, self._alarms, lambda: _notices(coordinator))
            try:
                await until_one_ends(*work, self._watch(coordinator, live, report), inform, _until_ended(coordinator))
                report(final=True)
                if coordinator.ended:
                    await transport.send(coordinator.request)
            except DPADMMError as problem:
                coordinator.stopped = str(problem)
                raise
            return coordinator

    @property
    def _existing(self) -> str:
        """Addresses of existing brokers."""
        if self.broker_url is not None:
            return check_urls(self.broker_url)
        return ",".join(self.authority.settings.brokers)

    def _broker(self, resources: AsyncExitStack) -> Broker | None:
        if self._existing:
            return None
        broker = Broker(self.authority, port=self.port)
        if kept := broker.kept():
            running = broker.running_port()
            if self.port not in (None, running):
                raise StudyError(f"the running broker listens on port {running}: leave --port out")
            broker = Broker(self.authority, port=running)
            self.log.info("using the broker that dpadmm aggregator broker keeps running: %s", broker.url)
        else:
            self.log.info("starting the broker, which stops with the last study; dpadmm aggregator broker keeps it")
        _use(broker, resources, start=not kept)
        return broker

    async def _watch(self, coordinator: Coordinator, live: Callable[[], Status], report: Callable[[], None]) -> None:
        while True:
            coordinator.watch()
            write_status(self.journal.parent, live())
            report()
            await asyncio.sleep(WATCH_EVERY)

    def _samples(self) -> Iterator[Sample]:
        return study_samples(self.status(), self.authority.folder)

    def _notifier(self, resources: AsyncExitStack) -> Notifier:
        settings, folder = self.authority.settings.notify, self.authority.folder
        return resources.enter_context(Notifier(settings, folder, self.log, role="server"))

    def _alarms(self) -> list[Alarm]:
        """Alarms to report: without those of the folder if a process keeps the broker, which reports them."""
        found = alarms_of(self.authority, [self.status()])
        if not is_live(read_status(self.authority.folder / STATUS, AggregatorStatus)):
            return found
        reported = {alarm_key(alarm) for alarm in alarms_of(self.authority, [])}
        return [alarm for alarm in found if alarm_key(alarm) not in reported]

    async def _check_sites(self, coordinator: Coordinator, broker: Broker | None, transport: NatsTransport) -> None:
        """Exclude revoked sites at once, and keep the broker running."""
        clock = Clock()
        while True:
            revoked = {each.name for each in self.authority.sites() if each.revoked}
            for name in coordinator.members:
                (coordinator.revoke if name in revoked else coordinator.readmit)(name)
            coordinator.expire(coordinator.members.keys() - _usable_sites(self.authority) - revoked)
            members = coordinator.members.items()
            await transport.propose(name for name, each in members if each.sizes is None and name not in revoked)
            if (jump := clock.jump()) is not None:
                coordinator.note("warning", "", jump)
            if broker is not None and not broker.kept():
                await _keep_alive(broker, coordinator.note, coordinator.note_counted)
            await asyncio.sleep(CHECK_EVERY)


async def _until_ended(coordinator: Coordinator) -> None:
    """Wait until another process ends the study for good."""
    while not coordinator.check_ended():
        await asyncio.sleep(CHECK_EVERY)


async def keep_broker(
    authority: Authority, log: Logger, *, port: int | None = None, metrics: str | None = None
) -> None:
    """Keep the broker running until this is cancelled, so that sites stay connected between studies."""

    repeats = Repeats()

    def note(level: str, site: str, text: str) -> None:
        log.log(getLevelNamesMapping()[level.upper()], "%s", f"{site}: {text}" if site else text)

    def note_counted(level: str, site: str, text: str) -> None:
        if (line := repeats.said(site, text, now=time.monotonic())) is not None:
            note(level, site, line)

    if authority.settings.brokers:
        raise StudyError("aggregator.toml names existing brokers: there is no built-in broker to keep running")
    broker, clock = Broker(authority, port=port), Clock()
    async with AsyncExitStack() as resources:
        notifier = resources.enter_context(Notifier(authority.settings.notify, authority.folder, log, role="server"))
        resources.enter_context(broker.keeping())
        _use(broker, resources, start=True)
        leases = resources.enter_context(Leases(authority.folder, note_counted))
        link = HubLink(broker.url, authority.client_context, lambda *_: None, log, leases)
        await resources.enter_async_context(link)

        def live() -> Status:
            known = {}
            for name in sorted(_usable_sites(authority)):
                seen = link.seen.get(name)
                known[name] = sign_of_life(seen, math.inf if seen is None else time.monotonic() - seen.at)
            return {"running": True, "connected": link.connected, "broker": broker.url, "sites": known}

        resources.callback(lambda: write_status(authority.folder, live() | {"running": False}))
        resources.enter_context(metrics_server(metrics, lambda: hub_samples(live(), authority.folder)))
        informing = asyncio.create_task(announce(lambda: journals(authority.folder), link.publish))
        resources.push_async_callback(cancelled, informing)
        while True:
            if (jump := clock.jump()) is not None:
                note("warning", "", jump)
            await _keep_alive(broker, note, note_counted)
            write_status(authority.folder, live())
            notifier.update(lambda: alarms_of(authority, []))
            await asyncio.sleep(CHECK_EVERY)


IN_JOURNAL = ("changes", "events", "stalls")
"""Parts of a snapshot that the status file leaves out."""


def _live_status(coordinator: Coordinator, transport: NatsTransport) -> Callable[[], Status]:
    def live() -> Status:
        snapshot = {key: each for key, each in coordinator.snapshot().items() if key not in IN_JOURNAL}
        return _connection(transport) | {"snapshot": snapshot}

    return live


def _notices(coordinator: Coordinator) -> Iterator[StudyNotice]:
    """The state of the study at each site and as a whole, for notifications."""
    about = coordinator.study.hash, coordinator.study.name
    for member in coordinator.members.values():
        if member.code:
            yield StudyNotice("study-refused", *about, member.name, member.code)
        elif member.sizes is not None:
            yield StudyNotice("study-accepted", *about, member.name)
        else:
            yield StudyNotice("study-proposed", *about, member.name)
    if coordinator.ended:
        yield StudyNotice("study-closed", *about, code="ended")
    else:
        yield StudyNotice("study-finished" if coordinator.done else "study-accepted", *about)


def _connection(transport: NatsTransport) -> Status:
    return {"running": True, "connected": transport.connected, "broker": transport.url}


def status_of(authority: Authority, journal: Path) -> Status:
    """The status of a study: of the process that serves it, if one does, else of its journal."""
    with Journal.open(journal, read_only=True) as opened:
        seen = snapshot_of_journal(opened)
    live = read_status(journal.with_name(STATUS), AggregatorStatus)
    served, expires = is_live(live), {each.name: each.expires for each in authority.sites()}
    if live is not None:
        last = live.pop("snapshot")
        last_seen = {site["name"]: site["last_seen"] for site in last["sites"]}
        for site in seen["sites"]:
            site["last_seen"] = last_seen.get(site["name"])
        seen |= last if served else _unserved(seen, live["at"], last["error"])
    for site in seen["sites"]:
        site["certificate_days_left"] = days_left(expires[site["name"]]) if site["name"] in expires else None
    return seen | {"served": served, "live": live}


def _unserved(seen: Status, at: str, error: str | None) -> Status:
    """State of a study whose server ended at a time, with an error or without."""
    if seen["state"] in (StudyState.FINISHED, StudyState.ENDED):
        return {}
    state = study_state(finished=False, ended=False, error=error or "", served=False, stalled=False, started=False)
    new = {"state": str(state), "failing": state in FAILURES, "error": error, "since": at}
    return new | {"headline": headline(seen | new)}


def overview(folder: Path) -> list[Status]:
    """A line for each study of an aggregator's folder, the latest first."""
    return sorted(map(_summary, journals(folder)), key=lambda each: str(each["begun_at"]), reverse=True)


def _summary(journal: Path) -> Status:
    live = read_status(journal.with_name(STATUS), AggregatorStatus)
    last = {} if live is None else live["snapshot"]
    seen = last if is_live(live) else {}
    with Journal.open(journal, read_only=True) as opened:
        study, done, (begun_at, last_round_at) = opened.study, opened.rounds_done, opened.dates()
        n_sites, ended = len(opened.members), opened.ended_at is not None
    n_rounds = study.training.planned_rounds
    finished, error = done == n_rounds, last.get("error") or ""
    state = study_state(finished=finished, ended=ended, error=error, served=False, stalled=False, started=done > 0)
    return {
        "name": study.name,
        "hash": study.hash,
        "state": seen.get("state", str(state)),
        "rounds_done": done,
        "n_rounds": n_rounds,
        "sites_present": sum(site["state"] == "present" for site in seen["sites"]) if seen else None,
        "n_sites": n_sites,
        "begun_at": begun_at,
        "last_round_at": last_round_at,
        "seconds_left": seen.get("seconds_left"),
    }


def every(seconds: float, read: Callable[[], list[T]]) -> Callable[[], list[T]]:
    """``read`` for a page that asks a few times a second; after an error, the last list."""
    taken, due = list[T](), 0.0

    def latest() -> list[T]:
        nonlocal taken, due
        if time.monotonic() >= due:
            with suppress(DPADMMError, OSError):
                taken = read()
            due = time.monotonic() + seconds
        return taken

    return latest


def page_snapshot(server: Server) -> Callable[[], Status]:
    """Return a function that takes the snapshot of the live page: the study, all studies of the folder, and alarms."""
    authority = server.authority
    studies = every(5.0, lambda: overview(authority.folder))
    hub = every(5.0, lambda: list(hub_alarms(authority.folder, certificates_of(authority))))

    def snapshot() -> Status:
        status = server.status()
        alarms = [*study_alarms(status, authority.folder), *hub()]
        return status | {"studies": studies(), "alarms": [alarm._asdict() for alarm in alarms]}

    return snapshot


def certificates_of(authority: Authority) -> dict[str, datetime]:
    """The certificates in use, with their ends."""
    sites = {each.name: each.expires for each in authority.sites() if not each.revoked}
    return sites | {"the authority": authority.certificate.not_valid_after_utc, **authority.own_certificates()}


def alarms_of(authority: Authority, studies: Sequence[Status]) -> list[Alarm]:
    """All alarms of an aggregator's folder and of these studies, with the name of the study."""
    found = [(seen["study"]["name"], alarm) for seen in studies for alarm in study_alarms(seen, authority.folder)]
    named = [alarm._replace(text=f"{name}: {alarm.text}") for name, alarm in found]
    return [*named, *hub_alarms(authority.folder, certificates_of(authority), studies=bool(studies))]


Note = Callable[[str, str, str], None]
"""Records an event: its level, its site and its text."""


async def _keep_alive(broker: Broker, note: Note, note_counted: Note) -> None:
    try:
        if not broker.alive():
            note("warning", "", "the broker stopped; restarting it")
            await asyncio.to_thread(broker.start)
        else:
            await asyncio.to_thread(broker.refresh)
    except DPADMMError as problem:  # nothing is lost by trying again
        note_counted("error", "", f"{problem}; trying again")


def _use(broker: Broker, resources: AsyncExitStack, *, start: bool) -> None:
    """Need the broker: the last process of this folder that does stops it."""
    lock = os.open(broker.folder / "serving", os.O_CREAT | os.O_RDWR, 0o600)
    resources.callback(os.close, lock)
    fcntl.flock(lock, fcntl.LOCK_SH)
    if start:
        broker.start()
    resources.callback(_stop_if_last, broker, lock)


def _stop_if_last(broker: Broker, lock: int) -> None:
    """Stop the broker, unless another study of this folder needs it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    broker.stop()
