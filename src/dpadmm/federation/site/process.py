"""The long-running process of a site: connects to the broker and answers the studies that its owner accepted.

It opens no port except, on request, one for metrics and one on this machine for its owner's page. A message can only
make it answer or refuse a round, or store a proposed study for its owner. The only program that it runs is the owner's
notification command, which receives public values and no rows.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from dpadmm.errors import DPADMMError, StudyError
from dpadmm.federation.health import Status, now_text, site_alarms, site_samples, write_status
from dpadmm.federation.identity.joining import Identity, site_identity
from dpadmm.federation.identity.private_files import check_unchanged_by_others
from dpadmm.federation.logs import RepeatLog
from dpadmm.federation.notify import Notifier, StudyNotice
from dpadmm.federation.protocol import SERVER, SILENT_AFTER, ProposalReply, ReplyCode
from dpadmm.federation.site.decisions import Decision, decisions
from dpadmm.federation.site.lease import Lease
from dpadmm.federation.site.lifecycle import Participation, participation
from dpadmm.federation.site.proposals import MAX_PROPOSALS, clear_decided, proposals, replies, store_proposal
from dpadmm.federation.site.responder import Responder, refusal_of
from dpadmm.federation.transport.link import SiteLink, until_one_ends
from dpadmm.sites.site import Site

CHECK_EVERY = 1.0
"""Seconds between checks for new decisions of the owner."""

RENEW_EVERY = 10.0
"""Seconds between attempts to use a renewed certificate, which the broker may not have loaded yet."""

LOG = "site.log"


class SiteProcess:
    """One site: its responder, its connection, and the decisions of its owner."""

    def __init__(self, site: Site, log: logging.Logger) -> None:
        self._site, self._log = site, log
        self._folder = site.path.parent
        self._identity = self._read_identity()
        self._responder = Responder(site.guard, site.policy.unit.rows, log)
        self._lease = Lease(site.ledger, lambda: self._responder.restores, log)
        self._decided: dict[str, Decision] = {}
        self._problems: list[str] = []
        """Problems of decision files that cannot be used."""
        self._undecided: dict[str, str] = {}
        """Names of studies that are open in the ledger but have no usable decision, by hash."""
        self._logged: set[str] = set()
        self._studies_fingerprint: tuple[tuple[str, int, int], ...] = ()
        self._network_fingerprint: tuple[tuple[str, int, int], ...] = ()
        self._connection = False, now_text()
        """Whether the site is connected, and the time of the last change."""
        self._pages: list[str] = []
        """Addresses of the owner's page."""
        self._used_certificate = ""
        """The certificate of the current connection."""
        self._renew_at = 0.0
        self._replies: dict[str, ProposalReply] | None = None
        """The reply for each study of this site; None before the decisions are read."""
        self._wanted: dict[str, None] = {}
        """Proposed studies whose document was requested, the latest ones."""
        self._repeats = RepeatLog(log)
        self._proposed: dict[str, str] = {}
        """Names of the proposed studies without a decision, by hash."""
        self._notifier = Notifier(site.notify, self._folder, log, role="site", site=self._identity.name)
        self._last_message: dict[str, datetime] = {}
        """Time of the last message of each study."""

    async def run(
        self,
        stop: asyncio.Event,
        *,
        metrics: str | None = None,
        page_port: int | None = None,
        on_start: Callable[[list[str]], None] = lambda pages: None,
    ) -> None:
        """Serve until ``stop`` is set.

        Raises ``RefusalError`` if another process holds the ledger. ``metrics`` is a port for Prometheus, and
        ``page_port`` the port of the owner's page on this machine, 0 for any. ``on_start`` receives its address.
        """
        for path in (self._folder, self._site.path) if self._site.notify is not None else ():
            check_unchanged_by_others(path)  # site.toml names a program to run
        with self._notifier:
            await self._run(stop, metrics, page_port, on_start)

    async def _run(
        self, stop: asyncio.Event, metrics: str | None, page_port: int | None, on_start: Callable[[list[str]], None]
    ) -> None:
        self._responder.open()
        identity, pool = self._identity, ThreadPoolExecutor(1, thread_name_prefix="responder")
        link = SiteLink(identity.name, identity.url, self._context, self._log, self._lease, identity.server_names)
        link.on_proposal = partial(self._take_proposal, link)
        try:
            async with link:
                tasks = self._follow_decisions(link, pool), link.answer(self._answer, pool), self._report_status(link)
                self._latest = self._status(link) | {"at": now_text()}
                with ExitStack() as resources:
                    self._serve(resources, metrics, page_port)
                    write_status(self._folder, self._latest)
                    on_start(self._pages)
                    await until_one_ends(stop.wait(), *tasks)  # the tasks end only with an error
        finally:
            pool.shutdown(wait=True)
            self._responder.close()
            write_status(self._folder, self._status(None))

    def _serve(self, resources: ExitStack, metrics: str | None, page_port: int | None) -> None:
        """Serve metrics and page on request. A site without them does not load the web framework."""
        if metrics is not None:
            from dpadmm.federation.web.metrics import served_metrics

            resources.enter_context(served_metrics(metrics, lambda: site_samples(self._latest, self._folder)))
        if page_port is not None:
            from dpadmm.federation.web.hosting import Listener, hosted
            from dpadmm.federation.web.site_app import SitePage

            page = SitePage(self._site, lambda: self._latest)
            here = Listener("127.0.0.1", page_port, setting="--page-port")
            (listener,) = resources.enter_context(hosted(page.routes(), here))
            self._pages = [f"{listener.url}/"]
            self._latest |= {"pages": self._pages}

    def _read_identity(self) -> Identity:
        return site_identity(self._folder, self._site.addresses)

    def _context(self) -> ssl.SSLContext:
        """Return a TLS context with the current certificate, which may have been renewed."""
        self._identity = identity = self._read_identity()
        try:
            identity.check_dates()
        except StudyError as problem:
            raise DPADMMError(
                f"{problem}. To renew it, ask the study coordinators for a join token: dpadmm site join TOKEN"
            ) from None
        context = identity.client_context()
        self._used_certificate = identity.invitation.certificate_pem
        return context

    async def _follow_decisions(self, link: SiteLink, pool: ThreadPoolExecutor) -> None:
        loop, first = asyncio.get_running_loop(), True
        while True:
            await loop.run_in_executor(pool, self._apply_decisions)
            if first and not any(decision.kind == "accepted" for decision in self._decided.values()):
                self._log.info("no accepted study yet; proposed studies: dpadmm site studies")
            first = False
            await self._report_replies(link)
            for hash, decision in self._decided.items():
                if decision.kind != "declined":  # requests of a study that was left are refused
                    await link.follow(hash)
            for hash in self._undecided:
                await link.follow(hash)
            await asyncio.sleep(CHECK_EVERY)

    async def _report_status(self, link: SiteLink) -> None:
        """Write the status every second. A separate task, because decisions wait while a round is answered."""
        while True:
            self._latest = self._status(link) | {"at": now_text()}
            write_status(self._folder, self._latest)
            self._notifier.update(lambda: site_alarms(self._latest, self._folder), self._notices)
            await self._use_renewed(link)
            await asyncio.sleep(CHECK_EVERY)

    async def _report_replies(self, link: SiteLink) -> None:
        """Send the owner's new decisions and offers to the server."""
        replies, before = await asyncio.to_thread(self._read_replies), self._replies
        for hash, reply in replies.items() if before is not None else ():
            if before is not None and before.get(hash) != reply:
                await link.reply(reply)
        self._replies = replies

    def _read_replies(self) -> dict[str, ProposalReply]:
        clear_decided(self._folder)
        replies_now = replies(self._folder, self._decided)
        pending = {hash for hash, reply in replies_now.items() if reply.code is ReplyCode.RECEIVED}
        if pending != self._proposed.keys():
            with suppress(DPADMMError):
                names = {proposal.study.hash: proposal.study.name for proposal in proposals(self._folder)}
                self._proposed = {hash: name for hash, name in names.items() if hash in pending}
        return replies_now

    async def _take_proposal(self, link: SiteLink, study: str, text: bytes | None) -> None:
        """Reply to a proposed study. Its document is stored if it was requested."""
        if self._replies is None:
            return
        if (reply := self._replies.get(study)) is not None:
            await link.reply(reply)
        elif text is None:
            self._wanted[study] = None
            if len(self._wanted) > MAX_PROPOSALS:
                del self._wanted[next(iter(self._wanted))]
            await link.reply(ProposalReply(study, ReplyCode.WANTED))
        elif study in self._wanted:
            del self._wanted[study]
            try:
                stored = await asyncio.to_thread(store_proposal, self._folder, study, text)
            except (DPADMMError, OSError) as problem:  # such as another version of dpadmm, or a full disk
                self._repeats.write(logging.WARNING, f"proposal refused: {problem}", study[:12])
                return
            self._replies[study] = ProposalReply(study, ReplyCode.RECEIVED)
            self._proposed[study] = stored.name
            self._log.info("%s: study %r proposed; next: dpadmm site review %s", study[:12], stored.name, study[:12])
            await link.reply(self._replies[study])

    async def _use_renewed(self, link: SiteLink) -> None:
        """Switch to a renewed certificate while the old one is still valid, without an interruption."""
        used, now = self._used_certificate, time.monotonic()
        if link.connected and used != self._identity.invitation.certificate_pem and now >= self._renew_at:
            self._renew_at = now + RENEW_EVERY
            if not await link.renew(self._identity.url, self._identity.server_names):
                self._used_certificate = used

    def _apply_decisions(self) -> None:
        self._responder.reopen()
        self._responder.try_again()
        self._read_decisions()
        self._undecided = self._responder.reserved()

    def _read_decisions(self) -> None:
        fingerprint = _fingerprint(self._folder / "studies")
        if fingerprint == self._studies_fingerprint:
            return
        self._studies_fingerprint, self._problems = fingerprint, []
        for decision in decisions(self._folder, self._report_problem):
            earlier = self._decided.get(decision.study.hash)
            if earlier is not None and earlier[:2] == decision[:2]:
                continue
            if decision.kind == "accepted":
                self._responder.accept(decision.study)
            elif not self._leave(decision):
                continue
            self._decided[decision.study.hash] = decision

    def _leave(self, decision: Decision) -> bool:
        """Stop answering a study that the owner left or declined; return whether the ledger recorded it."""
        short = decision.study.hash[:12]
        try:
            self._responder.leave(decision.study, declined=decision.kind == "declined")
        except DPADMMError as problem:  # such as a full disk; the study gets no more answers in any case
            self._log_once(f"{short}: {decision.kind}, but still open in the ledger; retrying: {problem}")
            return False
        self._log.info("%s: %s by the owner", short, decision.kind)
        return True

    def _report_problem(self, problem: DPADMMError) -> None:
        self._problems = [*self._problems, str(problem)]
        self._log_once(problem)

    def _log_once(self, problem: object) -> None:
        """Log a problem once, and read the decisions again until it is resolved."""
        self._studies_fingerprint = ()
        if str(problem) not in self._logged:
            self._logged.add(str(problem))
            self._log.error("%s", problem)

    def _status(self, link: SiteLink | None) -> Status:
        rounds = {} if link is None else self._responder.rounds()
        fingerprint = _fingerprint(self._folder / "network")
        if fingerprint != self._network_fingerprint:
            self._network_fingerprint = fingerprint
            with suppress(DPADMMError):  # the files are being renewed
                self._identity = self._read_identity()
        connected = link is not None and link.connected
        if connected != self._connection[0]:
            self._connection = connected, now_text()
        contact = None if link is None else link.seen.get(SERVER)
        return {
            "running": link is not None,
            "pid": None if link is None else os.getpid(),
            "connected": connected,
            "connection_since": self._connection[1],
            "server_silent": contact is None or time.monotonic() - contact.at > SILENT_AFTER,
            "clock_difference": None if contact is None else round(contact.clock_difference, 1),
            "ledger_works": self._responder.ledger_works,
            "lease": self._lease.state,
            "contested": self._lease.contested,
            "site": self._identity.name,
            "broker": self._identity.url if link is None else link.url,
            "pages": self._pages if link is not None else [],
            "certificate_expires": self._identity.expires.isoformat(timespec="seconds"),
            "problems": sorted(set(self._problems)),
            "studies": [
                *(self._study_status(item, rounds.get(hash), connected) for hash, item in self._decided.items()),
                *(_undecided_status(hash, name, self._problems) for hash, name in self._undecided.items()),
            ],
        }

    def _study_status(self, decision: Decision, last_round: int | None, connected: bool) -> Status:
        study, received = decision.study, self._last_message.get(decision.study.hash)
        deadline = None if received is None or study.deadline is None else received + timedelta(seconds=study.deadline)
        obstacle = self._obstacle(connected) or self._responder.obstacles().get(study.hash)
        state = participation(decision.kind, self._responder.endings().get(study.hash, ""), obstacle)
        return {
            "name": study.name,
            "hash": study.hash,
            "state": state.value,
            "reason": obstacle if state is Participation.BLOCKED else None,
            "last_round": last_round,
            "n_rounds": study.training.planned_rounds,
            "asked_at": None if received is None else received.isoformat(timespec="seconds"),
            "deadline_at": None if deadline is None else deadline.isoformat(timespec="seconds"),
        }

    def _notices(self) -> Iterator[StudyNotice]:
        """Yield the state of each study, for notifications."""
        for hash, name in list(self._proposed.items()):
            yield StudyNotice("study-proposed", hash, name)
        for study in self._latest["studies"]:
            about = study["hash"], study["name"]
            match Participation(study["state"]):
                case Participation.ACTIVE:
                    yield StudyNotice("study-accepted", *about)
                case Participation.BLOCKED if study["reason"] == "not-connected":
                    yield StudyNotice("study-accepted", *about)  # an alarm of the whole site covers it
                case Participation.BLOCKED:
                    yield StudyNotice("study-refused", *about, code=study["reason"])
                case Participation.FINISHED:
                    yield StudyNotice("study-finished", *about)
                case closed:
                    yield StudyNotice("study-closed", *about, code=closed.value)

    def _obstacle(self, connected: bool) -> str | None:
        """Return the reason why the whole site answers no study now, or None."""
        lease = {"behind": "ledger-behind", "cloned": "cloned"}.get(self._lease.state)
        return lease if lease is not None else None if connected else "not-connected"

    def _answer(self, study: str, data: bytes) -> bytes | None:
        self._last_message[study] = datetime.now(UTC)
        if not self._lease.held:
            return refusal_of(study, data, "ledger-behind") if self._lease.state == "behind" else None
        return self._responder.answer(study, data)


def _undecided_status(hash: str, name: str, problems: list[str]) -> Status:
    """Return the status of a study with reserved budget but without a usable decision file."""
    unknown = dict.fromkeys(("last_round", "n_rounds", "asked_at", "deadline_at"))
    reason = "decision-unusable" if problems else "decision-missing"
    return {"name": name, "hash": hash, "state": Participation.BLOCKED.value, "reason": reason, **unknown}


def _fingerprint(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return names, times and sizes of the files in a folder, to detect changes."""
    with suppress(OSError), os.scandir(folder) as entries:
        files = ((entry.name, entry.stat()) for entry in entries)
        return tuple(sorted((name, stat.st_ctime_ns, stat.st_size) for name, stat in files))
    return ()
