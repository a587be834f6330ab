"""A process that begins a ledger, records and replies, and says so: ``strace`` watches what it does to files.

``python tests/support/durable_runs.py RUN FOLDER``. Every line that starts with @ is written when something
has returned; by then all of it must be on the disk.
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


def say(what: str) -> None:
    os.write(1, f"@{what}\n".encode())


def spend(ledger: Ledger, round: int, size: int) -> None:
    ledger.spend(STUDY, round, digest=digest(round), mu_squared=0.01, upload=os.urandom(size))
    say(f"record: spend {round}")


def records(folder: Path) -> None:
    """Every kind of record, in a new ledger."""
    say("begin")
    ledger = Ledger.open(folder, cap=1.0, create=True)
    say("record: opened")
    for study in (STUDY, OTHER):
        ledger.reserve(study, 0.2, about=ABOUT)
        say("record: reserve")
    for round, size in enumerate((10, 5000, LARGE, 10, 300_000), 1):
        spend(ledger, round, size)
    ledger.close_study(OTHER)
    say("record: close")
    ledger.close()
    say("closed")
    with Ledger.open(folder, cap=2.0) as ledger:
        say("record: another cap")
        spend(ledger, 6, 10)
    os.truncate(folder / MARK, (folder / MARK).stat().st_size - 78)
    say("the last line of the mark is lost")
    with Ledger.open(folder, cap=2.0) as ledger:
        say("opened")
        spend(ledger, 7, 10)


def replies(folder: Path) -> None:
    """Two rounds of a study at a responder, one of them twice."""
    say("begin")
    responder = Responder(lambda: guarded(folder), 1, logging.getLogger("nobody listens"))
    responder.open()
    say("record: opened")
    responder.accept(SMALL)
    say("record: reserve")
    for round in (1, 2, 3):
        reply = responder.answer(SMALL.hash, packed(Message(Kind.REQUEST, SMALL.hash, round, np.zeros(SMALL.shape))))
        assert reply is not None
        say(f"record: reply {len(reply)}")
    responder.leave(SMALL)
    say("record: left")
    responder.close()
    say("closed")


if __name__ == "__main__":
    {"records": records, "replies": replies}[sys.argv[1]](Path(sys.argv[2]))
