"""Copies of a ledger, and what it costs to go on from an old one: never less than what was spent.

A copy is a database without a mark, so no agent takes it for a ledger. To restore one is to say that releases may be
missing from it. Nobody can prove how many: answers can be lost on their way, and an aggregator is not to be trusted
with the sum. So all that could have been released is charged: every study that was open in the copy, in full, and of
studies that were enrolled since those that the owner names, or all that the limits leave.

Limits and rows per person count with the highest values in the copy and in ``site.toml``. A copy cannot have later
values, so the owner has to put values that were higher for a time after the copy into ``site.toml`` first.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from dpadmm.errors import DataError, RefusalError, StudyError
from dpadmm.files.atomic import atomic_file
from dpadmm.sites.site import Site
from dpadmm.studies.study import Study
from dpadmm.trusted.ledger import DATABASE, MARK, LedgerState, connected, read_ledger

ABOUT = "what may have been released since the copy of the ledger"
MAGIC = b"SQLite format 3\0"
MOST_SHARES = 2**20


class Restored(NamedTuple):
    """The ledger after a restore, what was charged (Σμ²) for studies that the copy lacks, and which it closed."""

    state: LedgerState
    lost: Fraction
    closed: tuple[str, ...]
    complete: bool
    """Whether the mark that was left proved that the copy lacks nothing; then nothing is charged."""
    kept: Path | None
    """Where the damaged ledger is now."""


def back_up(folder: Path, output: Path) -> LedgerState:
    """Copy a verified ledger to a new file, also while an agent runs; returns what the copy has."""
    if output.exists():
        raise DataError(f"{output} exists; choose another name: an older copy may be the better one")
    read_ledger(folder)
    with atomic_file(output) as out:
        os.fchmod(out.fileno(), 0o600)
        with (
            closing(connected(folder, read_only=True)) as source,
            closing(sqlite3.connect(":memory:")) as copy,
        ):
            source.backup(copy)
            out.write(copy.serialize())
    stage = output.with_name(f".{output.name}.checked")
    try:
        return staged(output, stage)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def restore(
    site: Site, copy: Path | None, since: Sequence[Study] | None, decided: Mapping[str, str] | None = None
) -> Restored:
    """Put a copy in the place of a ledger that is lost or damaged, or say that the ledger there is an old copy itself.

    ``since`` are the studies that were enrolled after the copy was made; None if nobody knows: then all that the limits
    leave is charged. Studies that the owner ``decided`` about (names by hash) must be among them, or in the copy.
    """
    decided = decided or {}
    if copy is None:
        return _charged(site, site.ledger, since, decided)
    stage = site.ledger.with_name(f"{site.ledger.name}.restoring")
    shutil.rmtree(stage, ignore_errors=True)
    try:
        left = _left(site.ledger)
        book = staged(copy, stage)
        kept, lines = None, (stage / MARK).read_bytes()
        if left == lines:  # to the last byte: a mark that lost lines proves nothing
            done = Restored(read_ledger(stage), Fraction(0), (), complete=True, kept=None)
        else:
            _check_mark(left, lines, book, since)
            done = _charged(site, stage, since, decided)
        if site.ledger.exists() and any(site.ledger.iterdir()):
            kept = site.ledger.with_name(f"{site.ledger.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
            site.ledger.rename(kept)
        elif site.ledger.exists():
            site.ledger.rmdir()
        stage.rename(site.ledger)
        return done._replace(kept=kept)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _left(folder: Path) -> bytes:
    """The mark of a ledger that is damaged, if there is one; refused if the ledger is intact or in use."""
    if (folder / MARK).exists():
        with (folder / MARK).open("rb") as mark:
            try:
                fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RefusalError("ledger-locked", f"the ledger in {folder} is in use: stop the agent first") from None
    try:
        records = read_ledger(folder).seq
    except RefusalError as refusal:
        if refusal.code not in ("ledger-missing", "ledger-damaged"):
            raise
        return (folder / MARK).read_bytes() if (folder / MARK).exists() else b""
    text = "is intact, and no copy is newer; leave the copy out if it is itself an old one that was put back"
    raise RefusalError("ledger-exists", f"the ledger in {folder}, with {records:,} records, {text}")


def _check_mark(left: bytes, lines: bytes, book: LedgerState, since: Sequence[Study] | None) -> None:
    """Refuse what a mark that was left contradicts: a copy of another ledger, or that nothing was enrolled since."""
    if not (left.startswith(lines) or lines.startswith(left.rstrip(b"\0"))):
        raise DataError("the copy is of another ledger, or of another time: its records are not those of the mark here")
    if since is not None and not since and len(left) > len(lines) and all(a.closed for a in book.accounts.values()):
        raise StudyError(
            "the mark that was left has records which the copy lacks, and no study was open in the copy: name those "
            "that were enrolled since, or say nothing of studies, and all that your limits leave is charged"
        )


def staged(copy: Path, stage: Path) -> LedgerState:
    """A folder with a copy as its ledger, verified record by record."""
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(mode=0o700)
    data = copy.read_bytes()
    if not data.startswith(MAGIC):
        raise DataError(f"{copy}: not a copy of a ledger, as dpadmm site backup makes it")
    for name in (DATABASE, MARK):
        (stage / name).touch(mode=0o600)
    (stage / DATABASE).write_bytes(data)
    try:
        with closing(sqlite3.connect(stage / DATABASE)) as database:
            chains = database.execute("SELECT seq, chain FROM records ORDER BY seq").fetchall()
            (stage / MARK).write_bytes("".join(f"{int(seq):012d} {chain}\n" for seq, chain in chains).encode())
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise DataError(f"{copy}: a copy of a ledger that cannot be read ({error})") from None
    try:
        book = read_ledger(stage)
    except RefusalError as refusal:
        raise DataError(f"{copy}: a copy of a ledger that cannot be trusted ({refusal.__cause__ or refusal})") from None
    if not book.seq:
        raise DataError(f"{copy}: a copy without any record; take another one")
    return book


def _charged(site: Site, folder: Path, since: Sequence[Study] | None, decided: Mapping[str, str]) -> Restored:
    policy = site.policy
    with site.open_ledger(folder) as ledger:
        before = ledger.status()
        still_open = tuple(hash for hash, account in before.accounts.items() if not account.closed)
        if since is None:
            lost = max(Fraction(0), Fraction(before.max_cap) - before.promised)
            alone = max(Fraction(0), Fraction(before.max_collusion_cap) - before.collusion_promised)
        else:
            if known := [study.name for study in since if study.hash in before.accounts]:
                raise StudyError(
                    f"{', '.join(map(repr, known))}: in the copy already, and charged in full: leave it out"
                )
            named = {study.hash for study in since}
            if others := [name for hash, name in decided.items() if hash not in named and hash not in before.accounts]:
                text = "accepted here, and not in the copy: name it with --enrolled-since, or say nothing of studies"
                raise StudyError(f"{', '.join(map(repr, others))}: {text}, and all that your limits leave is charged")
            more = Fraction(before.max_rows_per_person, policy.unit.rows) ** 2
            costs = [(Fraction(policy.cost(study.terms.plan)) * more, study.terms.shares) for study in since]
            lost, alone = sum((cost for cost, _ in costs), Fraction(0)), sum((c * n for c, n in costs), Fraction(0))
        lost = max(lost, alone / MOST_SHARES)  # a record has both sums as one and a factor
        rounded = math.nextafter(float(lost), math.inf) if lost else 0.0
        shares = max(1, math.ceil(alone / lost)) if lost else 1
        ledger.restored(rounded, about={"name": ABOUT}, shares=shares)
        return Restored(ledger.status(), Fraction(rounded), still_open, complete=False, kept=None)
