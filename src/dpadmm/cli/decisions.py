"""What an owner decides about a study, with or without an agent that runs: it holds the ledger, and heeds."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable
from contextlib import suppress

from dpadmm.errors import Refusal, StudyError
from dpadmm.federation.site_studies import STATUS, decide, decisions
from dpadmm.privacy.book import Book
from dpadmm.privacy.ledger import MARK, Ledger, read_ledger
from dpadmm.site import Site
from dpadmm.study import Study

PATIENCE = 15.0
"""Seconds that a running agent is waited for."""


def accept(site: Site, study: Study) -> Book:
    """Enrol a study, by the agent that runs if one does; the ledger as it is then."""
    try:
        with site.guard() as guard:
            guard.enrol(study)
    except Refusal as refusal:
        if refusal.code != "ledger-locked":
            raise
        site.rehearse(study, read_ledger(site.ledger))  # in words, what the agent would refuse
        decide(site.path.parent, study, "accepted")
        return _heeded(site, lambda book: study.hash in book.accounts)
    decide(site.path.parent, study, "accepted")
    return read_ledger(site.ledger)


def decline(site: Site, study: Study) -> tuple[Book, bool]:
    """Say no to a study, whatever was said before: nobody answers it, and nothing stays reserved for it.

    The ledger as it is then, and whether anything was changed. A study that is in the ledger is left.
    """
    made = {each.study.hash: each.decision for each in decisions(site.path.parent)}
    before, book = made.get(study.hash), read_ledger(site.ledger)
    if study.hash not in book.accounts:
        if before == "declined":
            return book, False
        decide(site.path.parent, study, "declined")
        if before == "accepted":  # an agent that runs may be about to enrol it
            book = _heeded(site, lambda _: _noted(site, study.hash))
        if study.hash not in book.accounts:
            return book, True
    elif book.accounts[study.hash].closed:
        return book, False
    return leave(site, study.hash, study), True


def leave(site: Site, hash: str, study: Study | None = None) -> Book:
    """End a study here, by the agent that runs if one does; the ledger as it is then."""
    known = [made.study for made in decisions(site.path.parent) if made.study.hash == hash]
    accepted = [study] if study is not None else known
    try:
        with Ledger.open(site.ledger, cap=site.policy.cap) as ledger:
            ledger.close_study(hash)
    except Refusal as refusal:
        if refusal.code != "ledger-locked" or not accepted:
            raise
        decide(site.path.parent, accepted[0], "left")
        return _heeded(site, lambda book: book.accounts[hash].closed)
    for study in accepted:
        decide(site.path.parent, study, "left")
    return read_ledger(site.ledger)


def _noted(site: Site, hash: str) -> bool:
    """Whether everyone who could answer for the site knows that a study is declined."""
    with (site.ledger / MARK).open("rb") as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True  # nobody holds the ledger, and who opens it next reads the decision
        except BlockingIOError:
            pass
    with suppress(OSError, ValueError):
        seen = json.loads((site.path.parent / STATUS).read_text(encoding="utf-8"))
        return any(each["hash"] == hash and each["decision"] == "declined" for each in seen["studies"])
    return False


def _heeded(site: Site, done: Callable[[Book], bool]) -> Book:
    end = time.monotonic() + PATIENCE
    while True:
        book = read_ledger(site.ledger)
        if done(book):
            return read_ledger(site.ledger)
        if time.monotonic() > end:
            raise StudyError(
                "the decision is written down, but the process that holds the ledger has not heeded it; "
                f"{site.path.parent / 'agent.log'} says why. An agent has the limits of its start: if you "
                "changed site.toml since, start it again"
            )
        time.sleep(0.2)
