"""Deliver proposed studies to sites, and collect the decisions of their owners and the keys of a roster.

No network code: ``due`` returns the messages to send, ``take`` processes a reply. A site receives the hash of each open
study again and again, so a site that was not connected at first is reached later, and a lost message costs only time.

The draft of a study with secure aggregation has no journal. Its folder has ``draft.json`` and an offer of each site.
When all its sites have replied, the study is the draft with a roster of the offers, and is proposed like any other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING, Logger
from pathlib import Path
from typing import Any

from dpadmm.errors import DPADMMError, StudyError
from dpadmm.federation.health import now_text
from dpadmm.federation.identity.private_files import make_private_folder, write_private
from dpadmm.federation.logs import RepeatLog
from dpadmm.federation.offers import Offer, read_offer
from dpadmm.federation.protocol import (
    ProposalReply,
    ReplyCode,
    packed_document,
    packed_proposal,
    proposals_of,
)
from dpadmm.federation.server.journal import Journal
from dpadmm.federation.server.status import SHORT_HASH, journal_of, journals
from dpadmm.studies.reading import study_from
from dpadmm.studies.roster import RosterEntry
from dpadmm.studies.study import Study

DRAFT = "draft.json"
DRAFT_FORMAT = "dpadmm-draft/1"
REFRESH_SECONDS = 2.0
"""Seconds between readings of the folder."""

PROPOSE_AGAIN = {ReplyCode.RECEIVED: 10.0, ReplyCode.ACCEPTED: 30.0, ReplyCode.DECLINED: 10.0, ReplyCode.OFFERED: 30.0}
"""Seconds between proposals of a study to a site, by its last reply. Sites report a new decision themselves."""

FIRST_AGAIN, DOCUMENT_AGAIN = 2.0, 2.0
"""Seconds between proposals to a site that has not replied, and between documents that it asks for."""

Messages = list[tuple[str, bytes]]
"""Subjects and messages."""


@dataclass
class OpenProposal:
    """A study without decisions of all its sites, or a draft without all their offers."""

    study: Study
    members: tuple[str, ...]
    draft: Path | None = None
    """Folder of a draft."""
    replies: dict[str, ReplyCode] = field(default_factory=dict)
    next_at: dict[str, float] = field(default_factory=dict)
    """Monotonic time of the next proposal to each site."""
    document_at: dict[str, float] = field(default_factory=dict)
    """Monotonic time at which each site may have the document again."""

    @property
    def document(self) -> bytes:
        return packed_document(self.study.hash, json.dumps(self.study.as_json()).encode())


class Deliveries:
    """The open proposals of a server's folder, or of one study (``only``)."""

    def __init__(self, folder: Path, log: Logger, *, only: Path | None = None) -> None:
        self._folder, self._only, self._log, self._repeats = folder, only, log, RepeatLog(log)
        self._open: dict[str, OpenProposal] = {}
        self._over: set[Path] = set()
        """Journals of studies that are over, which is final."""
        self.on_roster: Callable[[Study, tuple[str, ...]], object] | None = None
        """Called with a study whose roster is complete, and its sites."""

    def refresh(self) -> None:
        """Read the folder: new proposals, studies that are over, and drafts whose offers are complete."""
        current: dict[str, OpenProposal] = {}
        for proposal in [*self._studies(), *([] if self._only is not None else self._drafts())]:
            before = self._open.get(proposal.study.hash)
            if before is not None:
                proposal.replies, proposal.next_at = before.replies, before.next_at
                proposal.document_at = before.document_at
            current[proposal.study.hash] = proposal
        self._open = current
        for proposal in list(current.values()):
            if proposal.draft is not None:
                self._complete(proposal)

    def _studies(self) -> Iterator[OpenProposal]:
        for path in journals(self._folder) if self._only is None else [self._only]:
            if path in self._over:
                continue
            with suppress(DPADMMError), Journal.open(path, read_only=True) as journal:
                if journal.is_over:
                    self._over.add(path)
                    continue
                yield OpenProposal(journal.study, journal.members)

    def _drafts(self) -> Iterator[OpenProposal]:
        for path in drafts(self._folder):
            with suppress(DPADMMError):
                draft = read_draft(path)
                if draft.final is None:
                    yield OpenProposal(draft.study, draft.members, draft=path.parent)

    def decisions(self, study: str) -> dict[str, str]:
        """Return the last reply of each site about a study."""
        found = self._open.get(study)
        return {} if found is None else {site: code.name.lower() for site, code in found.replies.items()}

    def all_decisions(self) -> dict[str, dict[str, str]]:
        return {study: self.decisions(study) for study in list(self._open)}

    def declined(self, study: str) -> set[str]:
        return {site for site, decision in self.decisions(study).items() if decision == "declined"}

    def due(self, connected: Collection[str], now: float | None = None) -> Messages:
        """Return the proposals to send now to connected sites."""
        now = time.monotonic() if now is None else now
        messages = []
        for hash, proposal in list(self._open.items()):
            for site in proposal.members:
                if site in connected and now >= proposal.next_at.get(site, 0.0):
                    code = proposal.replies.get(site)
                    proposal.next_at[site] = now + (FIRST_AGAIN if code is None else PROPOSE_AGAIN.get(code, 2.0))
                    messages.append((proposals_of(site), packed_proposal(hash)))
        return messages

    def take(self, site: str, reply: ProposalReply, now: float | None = None) -> Messages:
        """Process a site's reply; return the messages to send."""
        now = time.monotonic() if now is None else now
        proposal = self._open.get(reply.study)
        if proposal is None or site not in proposal.members:
            return []
        if reply.code is ReplyCode.WANTED:
            if now < proposal.document_at.get(site, 0.0):
                return []
            proposal.document_at[site] = now + DOCUMENT_AGAIN
            return [(proposals_of(site), proposal.document)]
        if reply.code is ReplyCode.OFFERED and not self._keep_offer(proposal, site, reply.key):
            return []
        if reply.code is ReplyCode.DECLINED and proposal.draft is not None:
            (proposal.draft / "offers" / f"{site}.json").unlink(missing_ok=True)
        if proposal.replies.get(site) is not reply.code:
            proposal.replies[site] = reply.code
            self._repeats.write(INFO, f"{reply.code.name.lower()} {proposal.study.name!r}", site)
        return []

    # Drafts of studies with secure aggregation

    def _keep_offer(self, proposal: OpenProposal, site: str, key: str) -> bool:
        """Store a site's offer; return whether it counts. The first one stays until the site declines."""
        if proposal.draft is None:
            return False
        path = proposal.draft / "offers" / f"{site}.json"
        if path.exists():
            if read_offer(path).key == key:
                return True
            self._repeats.write(WARNING, "a second, different key for the same draft was ignored", site)
            return False
        make_private_folder(path.parent)
        write_private(path, Offer(site, key, proposal.study.hash).as_bytes())
        return True

    def _complete(self, proposal: OpenProposal) -> None:
        """Propose the study of a draft when all its sites have offered a key or declined."""
        assert proposal.draft is not None
        keys = offered_keys(proposal.draft)
        for site in keys:
            proposal.replies.setdefault(site, ReplyCode.OFFERED)
        waiting = [site for site in proposal.members if site not in keys and site not in self._declined(proposal)]
        if waiting or self.on_roster is None:
            return
        try:
            study = with_offers(proposal.study, keys)
            self.on_roster(study, tuple(sorted(keys)))
            write_draft(proposal.draft / DRAFT, ProposedDraft(proposal.study, proposal.members, final=study.hash))
        except (DPADMMError, OSError) as problem:
            self._repeats.write(WARNING, f"the roster of {proposal.study.name!r} is not complete: {problem}")
            return
        del self._open[proposal.study.hash]
        self._log.info("roster of %r complete: %s; final study %s", study.name, ", ".join(sorted(keys)), study.hash)

    def _declined(self, proposal: OpenProposal) -> set[str]:
        return {site for site, code in proposal.replies.items() if code is ReplyCode.DECLINED}


@dataclass(frozen=True)
class ProposedDraft:
    """A proposed draft of a study with secure aggregation, and its sites."""

    study: Study
    members: tuple[str, ...]
    final: str | None = None
    """Hash of the study with the roster, once all sites have replied."""


def drafts(folder: Path) -> list[Path]:
    return sorted((folder / "studies").glob(f"*/{DRAFT}"))


def open_drafts(folder: Path) -> list[dict[str, Any]]:
    """Return the drafts that wait for offers: name, hash, members, and the sites that offered a key."""
    found = []
    for path in drafts(folder):
        draft = read_draft(path)
        if draft.final is None:
            about = {"name": draft.study.name, "hash": draft.study.hash, "members": list(draft.members)}
            found.append(about | {"offers": sorted(offered_keys(path.parent))})
    return found


def read_draft(path: Path) -> ProposedDraft:
    try:
        table: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if table["format"] != DRAFT_FORMAT:
            raise ValueError("unknown format")
        members, final = tuple(map(str, table["members"])), table["final"]
        return ProposedDraft(study_from(table["study"], str(path)), members, None if final is None else str(final))
    except DPADMMError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as problem:
        raise StudyError(f"{path}: not the draft of a study ({problem}); propose it again") from None


def write_draft(path: Path, draft: ProposedDraft) -> None:
    make_private_folder(path.parent)
    table = {
        "format": DRAFT_FORMAT, "at": now_text(), "members": list(draft.members), "final": draft.final,
        "study": draft.study.as_json(),
    }  # fmt: skip
    write_private(path, json.dumps(table, indent=2).encode() + b"\n")


def propose_draft(folder: Path, study: Study, members: tuple[str, ...]) -> Path:
    """Propose a draft to these sites. A repeated call changes its sites; offers that were made stay valid."""
    path = (folder / "studies" / study.hash[:SHORT_HASH]) / DRAFT
    final = read_draft(path).final if path.exists() else None
    if final is not None and journal_of(folder, final).exists():
        text = f"the roster of this draft is complete: its study is {final[:SHORT_HASH]}"
        raise StudyError(f"{text}; for other sites, change the name of the draft")
    write_draft(path, ProposedDraft(study, members))
    return path


def offered_keys(folder: Path) -> dict[str, str]:
    """Return the offered keys of a draft's folder, by site, for members of the draft."""
    members = read_draft(folder / DRAFT).members
    offers = [read_offer(path) for path in sorted((folder / "offers").glob("*.json"))]
    return {offer.name: offer.key for offer in offers if offer.name in members}


def with_offers(draft: Study, keys: Mapping[str, str]) -> Study:
    """Return the study of a draft: with a roster of these keys, sorted by site."""
    return replace(draft, roster=tuple(RosterEntry(name, key) for name, key in sorted(keys.items())))
