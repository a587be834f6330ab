"""A process that creates a ledger, records and replies, and prints each step. ``strace`` observes its file access.

``python tests/support/durable_runs.py RUN FOLDER``. A line that starts with @ is printed when a call has returned. By
then its data must be on disk.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import numpy as np
from guards import STUDY as SMALL
from guards import guarded
from ledgers import ABOUT, OTHER, STUDY, digest

from dpadmm.federation.protocol import Kind, Message, packed
from dpadmm.federation.site.responder import Responder
from dpadmm.trusted.ledger import MARK, Ledger

LARGE = 6 * 2**20
"""More than SQLite keeps in its -wal file: it is moved into the database."""


def report(what: str) -> None:
    os.write(1, f"@{what}\n".encode())


def spend(ledger: Ledger, round: int, size: int) -> None:
    ledger.spend(STUDY, round, digest=digest(round), mu_squared=0.01, upload=os.urandom(size))
    report(f"record: spend {round}")


def records(folder: Path) -> None:
    """Write every kind of record to a new ledger."""
    report("begin")
    ledger = Ledger.open(folder, cap=1.0, create=True)
    report("record: opened")
    for study in (STUDY, OTHER):
        ledger.reserve(study, 0.2, about=ABOUT)
        report("record: reserve")
    for round, size in enumerate((10, 5000, LARGE, 10, 300_000), 1):
        spend(ledger, round, size)
    ledger.close_study(OTHER)
    report("record: close")
    ledger.close()
    report("closed")
    with Ledger.open(folder, cap=2.0) as ledger:
        report("record: another cap")
        spend(ledger, 6, 10)
    os.truncate(folder / MARK, (folder / MARK).stat().st_size - 78)
    report("the last line of the mark is lost")
    with Ledger.open(folder, cap=2.0) as ledger:
        report("opened")
        spend(ledger, 7, 10)


def replies(folder: Path) -> None:
    """Answer two rounds of a study at a responder, one of them twice."""
    report("begin")
    responder = Responder(lambda: guarded(folder), 1, logging.getLogger("nobody listens"))
    responder.open()
    report("record: opened")
    responder.accept(SMALL)
    report("record: reserve")
    for round in (1, 2, 3):
        reply = responder.answer(SMALL.hash, packed(Message(Kind.REQUEST, SMALL.hash, round, np.zeros(SMALL.shape))))
        assert reply is not None
        report(f"record: reply {len(reply)}")
    responder.leave(SMALL)
    report("record: left")
    responder.close()
    report("closed")


if __name__ == "__main__":
    {"records": records, "replies": replies}[sys.argv[1]](Path(sys.argv[2]))
