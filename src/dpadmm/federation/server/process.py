"""The server process: broker, connection, round loop, revocations, status and alarms.

The built-in broker stops with the last study, unless ``keep_broker`` holds it open so that sites stay connected.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from logging import WARNING, Logger, getLevelNamesMapping
from pathlib import Path

from dpadmm.errors import DPADMMError, StudyError
from dpadmm.federation.health import (
    STATUS,
    Alarm,
    Clock,
    Sample,
    ServerStatus,
    Status,
    contact_status,
    is_live,
    now_text,
    read_status,
    server_samples,
    study_samples,
    write_status,
)
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.logs import RepeatLog
from dpadmm.federation.notify import Notifier, StudyNotice, alarm_key
from dpadmm.federation.protocol import SILENT_AFTER, ProposalReply
from dpadmm.federation.server.coordinator import Coordinator, run_rounds
from dpadmm.federation.server.delivery import REFRESH_SECONDS, Deliveries
from dpadmm.federation.server.endings import announce
from dpadmm.federation.server.journal import Journal
from dpadmm.federation.server.leases import Leases
from dpadmm.federation.server.status import alarms_of, journal_of, journals
from dpadmm.federation.server.sums import coordinator_of
from dpadmm.federation.transport.broker import Broker
from dpadmm.federation.transport.link import NatsTransport, ServerLink, cancel, until_one_ends
from dpadmm.sites.addresses import check_urls
from dpadmm.studies.study import Study
from dpadmm.training.train import prior_from

CHECK_EVERY = 1.0
"""Seconds between checks of the approved sites and of the broker."""

DELIVER_EVERY = 0.5
"""Seconds between looks for proposals that are due."""

WATCH_EVERY = 0.5
"""Seconds between checks of the open round. Each check writes the status file."""

START_WAIT = 60.0
"""Seconds to wait for sites at the start. A site that found no broker retries after up to 45 seconds."""


def _usable_sites(authority: Authority) -> set[str]:
    return {site.name for site in authority.sites() if site.usable(datetime.now(UTC))}


def _members(authority: Authority, study: Study, requested: Sequence[str] | None) -> tuple[str, ...]:
    """Return the sorted members of a study: its roster, the requested sites, or all approved sites."""
    usable, roster = _usable_sites(authority), [site.name for site in study.roster]
    if study.is_draft:
        text = (
            f"the study has no roster yet: propose it (dpadmm server propose STUDY --folder {authority.folder}), and "
        )
        raise StudyError(f"{text}when all owners have offered a key, run it by its name")
    if roster and requested is not None and set(requested) != set(roster):
        raise StudyError(f"the roster of this study lists its sites: {', '.join(roster)}; omit --sites")
    if requested is None:
        requested = roster or sorted(usable)
    checked = _checked(authority, requested)
    return tuple(roster) or checked


def _checked(authority: Authority, requested: Sequence[str]) -> tuple[str, ...]:
    """Return the sorted names of approved sites, or raise ``StudyError``."""
    usable = _usable_sites(authority)
    if len(set(requested)) != len(requested):
        raise StudyError("a site is listed twice")
    invite = f"dpadmm server invite NAME --folder {authority.folder}"
    if unknown := sorted(set(requested) - usable):
        joined = ", ".join(sorted(usable)) or f"none yet ({invite})"
        raise StudyError(f"sites without a valid certificate: {', '.join(unknown)}; sites that joined: {joined}")
    if not requested:
        raise StudyError(f"no site has joined yet: {invite}")
    return tuple(sorted(requested))


def members_of_draft(authority: Authority, draft: Study, requested: Sequence[str] | None) -> tuple[str, ...]:
    """Return the sites to which a draft is proposed: the requested sites, or all approved ones."""
    return _checked(authority, sorted(_usable_sites(authority)) if requested is None else requested)


def begin(authority: Authority, study: Study, requested: Sequence[str] | None) -> Path:
    """Create the journal of a study unless it exists. Its members are fixed from then on."""
    path = journal_of(authority.folder, study.hash)
    if not path.exists():
        members = _members(authority, study, requested)
        study.quorum_of(len(members))
        prior = None if study.public_rows is None else prior_from(study, study.public_rows.verified())
        Journal.begin(path, study, members, prior)
    elif requested is not None:
        with Journal.open(path, read_only=True) as journal:
            members = journal.members
        if set(requested) != set(members):
            raise StudyError(f"this study was proposed to {', '.join(members)}; its sites are fixed: omit --sites")
    return path


@dataclass
class Server:
    """Runs a study to its end: ``await server.run()``."""

    authority: Authority
    journal: Path
    log: Logger
    broker_url: str | None = None
    """Addresses of existing brokers, separated by commas. If neither this nor the settings name any, the built-in
    broker is used, and started unless it is held open."""
    port: int | None = None
    start_wait: float = START_WAIT
    """Seconds to wait for all sites at the start. Afterwards the quorum is enough."""
    gives_up: bool = False
    """Whether to raise ``ServiceUnavailableError`` if the quorum has not accepted by then, instead of waiting."""
    page_port: int | None = None
    """Port of the status page on this machine; 0 for any, None for no page. ``server start`` has a page already."""
    metrics: str | None = None
    """Port, or address and port, of the metrics page."""
    pages: list[str] = field(default_factory=list)
    """Addresses of the status page, once ``on_start`` was called."""
    status: Callable[[], Status] = dict
    """Returns the status of the study; available once ``on_start`` was called."""

    async def run(self, on_start: Callable[[Coordinator], None] = lambda run: None) -> Coordinator:
        """Run to the end and return the coordinator; ``on_start`` receives it at the start."""
        async with AsyncExitStack() as resources:
            notifier = self._notifier(resources)  # first, because closing it may take seconds
            journal = resources.enter_context(Journal.open(self.journal))
            coordinator = coordinator_of(journal, self.log)
            coordinator.start_wait, coordinator.gives_up = self.start_wait, self.gives_up
            broker = self._broker(resources)
            url = broker.url if broker is not None else self._existing
            leases = resources.enter_context(Leases(self.authority.folder, coordinator.note_counted))
            coordinator.doubts = lambda: leases.doubts(time.monotonic())
            context = self.authority.client_context
            transport = NatsTransport(coordinator.study.hash, url, context, self.log, leases)
            await resources.enter_async_context(transport)
            coordinator.seen = transport.seen
            live = self._live_status(coordinator, transport)
            resources.callback(lambda: write_status(self.journal.parent, live() | {"running": False}))
            self.status = lambda: coordinator.snapshot() | {"live": _connection(transport) | {"at": now_text()}}
            resources.enter_context(self._page(transport, live))
            if self.metrics is not None:
                from dpadmm.federation.web.metrics import served_metrics  # a run without it loads no web framework

                resources.enter_context(served_metrics(self.metrics, self._samples))
            write_status(self.journal.parent, live())
            on_start(coordinator)
            work = run_rounds(coordinator, transport), self._check_sites(coordinator, broker, transport)
            deliveries = Deliveries(self.authority.folder, self.log, only=self.journal)
            coordinator.decisions = lambda: deliveries.decisions(coordinator.study.hash)
            report = partial(notifier.update, self._alarms, lambda: _notices(coordinator))
            announcing = announce(lambda: journals(self.authority.folder), transport.publish)
            inform = announcing, deliver(deliveries, transport, self.log)
            try:
                await until_one_ends(*work, self._watch(coordinator, live, report), *inform, _until_ended(coordinator))
                report(final=True)
                if coordinator.ended:
                    await transport.send(coordinator.request)
            except DPADMMError as problem:
                coordinator.stopped = str(problem)
                raise
            return coordinator

    @contextmanager
    def _page(self, transport: NatsTransport, live: Callable[[], Status]) -> Iterator[None]:
        """Serve the status page on this machine until open pages have shown the end of the study.

        If ``server start`` is running, it has the page. No site can join a study that is already proposed, so nothing
        else of the web application is needed here.
        """
        keeper = read_status(self.authority.folder / STATUS, ServerStatus)
        if keeper is not None and is_live(keeper):
            self.pages = keeper.get("pages", [])
            yield
        elif self.page_port is None:
            yield
        else:
            from dpadmm.federation.web.hosting import Listener, hosted
            from dpadmm.federation.web.server_app import StatusPage

            page = StatusPage.of(self.authority, lambda: transport.connected)
            with hosted(page.routes(), Listener("127.0.0.1", self.page_port, setting="--page-port")) as (listener,):
                self.pages = [f"{listener.url}/"]
                try:
                    yield
                finally:
                    write_status(self.journal.parent, live())
                    page.wait_for_last_look()

    def _live_status(self, coordinator: Coordinator, transport: NatsTransport) -> Callable[[], Status]:
        def live() -> Status:
            snapshot = {key: value for key, value in coordinator.snapshot().items() if key not in IN_JOURNAL}
            return {**_connection(transport), "snapshot": snapshot, "pages": self.pages}

        return live

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
        if held := broker.is_held():
            running = broker.running_port()
            if self.port not in (None, running):
                raise StudyError(f"the running broker listens on port {running}: omit --port")
            broker = Broker(self.authority, port=running)
            self.log.info("using the broker of dpadmm server start: %s", broker.url)
        else:
            self.log.info("starting a broker until the last study ends; to keep one running: dpadmm server start")
        _use(broker, resources, start=not held)
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
        """Return the alarms to report, without those that the broker's own process already reports."""
        alarms = alarms_of(self.authority, [self.status()])
        if not is_live(read_status(self.authority.folder / STATUS, ServerStatus)):
            return alarms
        reported = {alarm_key(alarm) for alarm in alarms_of(self.authority, [])}
        return [alarm for alarm in alarms if alarm_key(alarm) not in reported]

    async def _check_sites(self, coordinator: Coordinator, broker: Broker | None, transport: NatsTransport) -> None:
        """Exclude revoked sites, and restart the broker if it stops."""
        clock = Clock()
        while True:
            revoked = {site.name for site in self.authority.sites() if site.revoked}
            for name in coordinator.members:
                (coordinator.revoke if name in revoked else coordinator.readmit)(name)
            coordinator.expire(coordinator.members.keys() - _usable_sites(self.authority) - revoked)
            if (jump := clock.jump()) is not None:
                coordinator.note("warning", "", jump)
            if broker is not None and not broker.is_held():
                await _keep_alive(broker, coordinator.note, coordinator.note_counted)
            await asyncio.sleep(CHECK_EVERY)


async def _until_ended(coordinator: Coordinator) -> None:
    """Wait until another process has ended the study for good."""
    while not coordinator.check_ended():
        await asyncio.sleep(CHECK_EVERY)


async def keep_broker(
    authority: Authority,
    log: Logger,
    *,
    port: int | None = None,
    page_port: int | None = None,
    metrics: str | None = None,
    on_start: Callable[[list[str]], None] = lambda pages: None,
) -> None:
    """Run the broker and the web application until this is cancelled, so that sites stay connected between studies.

    If server.toml names existing brokers, only the web application runs here. ``page_port`` is the port of the status
    page on this machine; ``on_start`` receives the addresses of the page.
    """
    from dpadmm.federation.identity.join_service import join_routes
    from dpadmm.federation.web.hosting import hosted
    from dpadmm.federation.web.metrics import served_metrics
    from dpadmm.federation.web.server_app import StatusPage, page_addresses, server_listeners

    repeats = RepeatLog(log)

    def note(level: str, site: str, text: str) -> None:
        log.log(getLevelNamesMapping()[level.upper()], "%s", f"{site}: {text}" if site else text)

    def note_counted(level: str, site: str, text: str) -> None:
        repeats.write(getLevelNamesMapping()[level.upper()], text, site)

    existing = ",".join(authority.settings.brokers)
    if existing and port is not None:
        raise StudyError("--port is the port of the built-in broker, but server.toml names existing brokers")
    broker, clock = Broker(authority, port=port), Clock()
    link: ServerLink | None = None
    async with AsyncExitStack() as resources:
        notifier = resources.enter_context(Notifier(authority.settings.notify, authority.folder, log, role="server"))
        resources.enter_context(broker.held_open())
        authority.renew_certificates()
        page = StatusPage.of(authority, lambda: link is not None and link.connected)
        routes = [*page.routes(), *join_routes(authority, log)]
        listeners = resources.enter_context(hosted(routes, *server_listeners(authority, page_port)))
        pages = page_addresses(authority, listeners)
        if not existing:
            _use(broker, resources, start=True)
        url = existing or broker.url
        leases = resources.enter_context(Leases(authority.folder, note_counted))
        connection = ServerLink(url, authority.client_context, lambda *_: None, log, leases)
        link = await resources.enter_async_context(connection)

        deliveries = Deliveries(authority.folder, log)

        def live() -> Status:
            sites = {}
            for name in sorted(_usable_sites(authority)):
                contact = connection.seen.get(name)
                sites[name] = contact_status(contact, math.inf if contact is None else time.monotonic() - contact.at)
            state = {"running": True, "connected": connection.connected, "broker": url, "pages": pages}
            return {**state, "sites": sites, "decisions": deliveries.all_decisions()}

        resources.callback(lambda: write_status(authority.folder, live() | {"running": False}))
        if metrics is not None:
            resources.enter_context(served_metrics(metrics, lambda: server_samples(live(), authority.folder)))
        write_status(authority.folder, live())
        on_start(pages)
        announcements = asyncio.create_task(announce(lambda: journals(authority.folder), connection.publish))
        resources.push_async_callback(cancel, announcements)
        deliveries.on_roster = partial(begin, authority)
        delivering = asyncio.create_task(deliver(deliveries, connection, log))
        resources.push_async_callback(cancel, delivering)
        while True:
            if (jump := clock.jump()) is not None:
                note("warning", "", jump)
            if existing:
                await asyncio.to_thread(authority.renew_certificates)
            else:
                await _keep_alive(broker, note, note_counted)
            write_status(authority.folder, live())
            notifier.update(lambda: alarms_of(authority, []))
            await asyncio.sleep(CHECK_EVERY)


async def deliver(deliveries: Deliveries, link: ServerLink, log: Logger) -> None:
    """Deliver proposals to connected sites, and take their replies, until cancelled."""
    repeats = RepeatLog(log)

    async def take(site: str, reply: ProposalReply) -> None:
        for subject, message in deliveries.take(site, reply):
            await link.publish(subject, message)

    link.on_reply, refresh_at = take, 0.0
    while True:
        now = time.monotonic()
        if now >= refresh_at:
            try:
                await asyncio.to_thread(deliveries.refresh)
            except (DPADMMError, OSError) as problem:
                repeats.write(WARNING, f"cannot read the proposed studies: {problem}; retrying")
            refresh_at = now + REFRESH_SECONDS
        connected = {name for name, contact in link.seen.items() if now - contact.at < SILENT_AFTER}
        for subject, message in deliveries.due(connected):
            await link.publish(subject, message)
        await asyncio.sleep(DELIVER_EVERY)


IN_JOURNAL = ("changes", "events", "stalls")
"""Parts of a snapshot that the status file omits."""


def _notices(coordinator: Coordinator) -> Iterator[StudyNotice]:
    """Yield the state of the study, at each site and as a whole, for notifications."""
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


Note = Callable[[str, str, str], None]
"""Records an event with its level, site and text."""


async def _keep_alive(broker: Broker, note: Note, note_counted: Note) -> None:
    try:
        if not broker.alive():
            note("warning", "", "broker stopped; restarting it")
            await asyncio.to_thread(broker.start)
        else:
            await asyncio.to_thread(broker.refresh)
    except DPADMMError as problem:
        note_counted("error", "", f"{problem}; retrying")


def _use(broker: Broker, resources: AsyncExitStack, *, start: bool) -> None:
    """Register this process as a user of the broker. The last user stops it."""
    lock = os.open(broker.folder / "serving", os.O_CREAT | os.O_RDWR, 0o600)
    resources.callback(os.close, lock)
    fcntl.flock(lock, fcntl.LOCK_SH)
    if start:
        broker.start()
    resources.callback(_stop_if_last, broker, lock)


def _stop_if_last(broker: Broker, lock: int) -> None:
    """Stop the broker unless another process of this folder uses it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    broker.stop()
