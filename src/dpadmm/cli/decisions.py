"""What an owner decides about a study, with or without an agent that runs: it holds the ledger, and heeds."""

from __future__ import annotations

import time
from collections.abc import Callable

from dpadmm.errors import Refusal, StudyError
from dpadmm.federation.site_studies import decide, decisions
from dpadmm.privacy.book import Book
from dpadmm.privacy.ledger import Ledger, read_ledger
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


def decline(site: Site, study: Study) -> None:
    """Say no to a study that was not accepted before."""
    made = {each.study.hash: each.decision for each in decisions(site.path.parent)}
    if made.get(study.hash) == "accepted":
        raise StudyError("this study was accepted here; to end it: dpadmm agent leave STUDY")
    decide(site.path.parent, study, "declined")


def leave(site: Site, hash: str) -> Book:
    """End a study here, by the agent that runs if one does; the ledger as it is then."""
    accepted = [made.study for made in decisions(site.path.parent) if made.study.hash == hash]
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


def _heeded(site: Site, done: Callable[[Book], bool]) -> Book:
    end = time.monotonic() + PATIENCE
    while True:
        book = read_ledger(site.ledger)
        if done(book):
            return book
        if time.monotonic() > end:
            raise StudyError(
                "the decision is written down, but the process that holds the ledger has not heeded it; "
                f"{site.path.parent / 'agent.log'} says why. An agent has the limits of its start: if you "
                "changed site.toml since, start it again"
            )
        time.sleep(0.2)
