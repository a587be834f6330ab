"""Backups of a ledger. A restore charges at least as much as was spent.

A backup is a database without a mark, so no process opens it as a ledger. A restored ledger may lack releases. Their
number cannot be proved: answers can be lost in transit, and the server is not trusted. A restore therefore charges
everything that could have been released:

- every study that was open in the backup, in full,
- studies enrolled since: those that the owner names, or else all that the limits leave.

Limits and rows per person count with the highest values in the backup and in ``site.toml``. If the values were higher
for a time after the backup, the owner must first set these values in ``site.toml``.
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
from dpadmm.trusted.ledger import DATABASE, MARK, LedgerState, connect, read_ledger

ABOUT = "possible releases since the backup of the ledger"
MAGIC = b"SQLite format 3\0"
MAX_SHARES = 2**20


class Restored(NamedTuple):
    """The ledger after a restore, the charge (Σμ²) for studies that are not in the backup, and the closed studies."""

    state: LedgerState
    lost: Fraction
    closed: tuple[str, ...]
    complete: bool
    """Whether the remaining mark proved that the backup is complete; then nothing is charged."""
    kept: Path | None
    """The folder to which the damaged ledger was moved."""


def back_up(folder: Path, output: Path) -> LedgerState:
    """Copy a verified ledger to a new file, also while the site's process runs; return the state of the copy."""
    if output.exists():
        raise DataError(f"{output} exists; choose another name: an older copy may be the better one")
    read_ledger(folder)
    with atomic_file(output) as out:
        os.fchmod(out.fileno(), 0o600)
        with (
            closing(connect(folder, read_only=True)) as source,
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
    """Replace a lost or damaged ledger by a backup; without ``copy``, charge for the existing ledger as an old backup.

    ``since`` are the studies that were enrolled after the backup. If it is None, they are unknown and all that the
    limits leave is charged. Studies that the owner ``decided`` about (names by hash) must be in either.
    """
    decided = decided or {}
    if copy is None:
        return _charged(site, site.ledger, since, decided)
    stage = site.ledger.with_name(f"{site.ledger.name}.restoring")
    shutil.rmtree(stage, ignore_errors=True)
    try:
        mark = _remaining_mark(site.ledger)
        state = staged(copy, stage)
        kept, lines = None, (stage / MARK).read_bytes()
        if mark == lines:  # to the last byte: a mark that lost lines proves nothing
            restored = Restored(read_ledger(stage), Fraction(0), (), complete=True, kept=None)
        else:
            _check_mark(mark, lines, state, since)
            restored = _charged(site, stage, since, decided)
        if site.ledger.exists() and any(site.ledger.iterdir()):
            kept = site.ledger.with_name(f"{site.ledger.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
            site.ledger.rename(kept)
        elif site.ledger.exists():
            site.ledger.rmdir()
        stage.rename(site.ledger)
        return restored._replace(kept=kept)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _remaining_mark(folder: Path) -> bytes:
    """Return the mark of a lost or damaged ledger; raise ``RefusalError`` if the ledger is intact or in use."""
    if (folder / MARK).exists():
        with (folder / MARK).open("rb") as mark:
            try:
                fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RefusalError("ledger-locked", f"the ledger in {folder} is in use: stop the site first") from None
    try:
        records = read_ledger(folder).seq
    except RefusalError as refusal:
        if refusal.code not in ("ledger-missing", "ledger-damaged"):
            raise
        return (folder / MARK).read_bytes() if (folder / MARK).exists() else b""
    text = "is intact, and no backup is newer; omit the backup if this ledger is itself a restored old copy"
    raise RefusalError("ledger-exists", f"the ledger in {folder}, with {records:,} records, {text}")


def _check_mark(mark: bytes, lines: bytes, state: LedgerState, since: Sequence[Study] | None) -> None:
    """Raise an error if the remaining mark shows another ledger's backup, or that studies were enrolled since."""
    if not (mark.startswith(lines) or lines.startswith(mark.rstrip(b"\0"))):
        raise DataError("the backup is of another ledger, or of another time: its records differ from the mark here")
    all_closed = all(account.closed for account in state.accounts.values())
    if since is not None and not since and len(mark) > len(lines) and all_closed:
        raise StudyError(
            "the mark has records that are not in the backup, and no study was open in the backup: name the studies "
            "accepted since, or name none, and all that your limits leave is charged"
        )


def staged(copy: Path, stage: Path) -> LedgerState:
    """Create a folder with a backup as its ledger, verified record by record; return its state."""
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(mode=0o700)
    data = copy.read_bytes()
    if not data.startswith(MAGIC):
        raise DataError(f"{copy}: not a ledger backup from dpadmm site backup")
    for name in (DATABASE, MARK):
        (stage / name).touch(mode=0o600)
    (stage / DATABASE).write_bytes(data)
    try:
        with closing(sqlite3.connect(stage / DATABASE)) as database:
            chains = database.execute("SELECT seq, chain FROM records ORDER BY seq").fetchall()
            (stage / MARK).write_bytes("".join(f"{int(seq):012d} {chain}\n" for seq, chain in chains).encode())
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise DataError(f"{copy}: a ledger backup that cannot be read ({error})") from None
    try:
        state = read_ledger(stage)
    except RefusalError as refusal:
        raise DataError(f"{copy}: a ledger backup that cannot be trusted ({refusal.__cause__ or refusal})") from None
    if not state.seq:
        raise DataError(f"{copy}: a ledger backup without any record; use another one")
    return state


def _charged(site: Site, folder: Path, since: Sequence[Study] | None, decided: Mapping[str, str]) -> Restored:
    policy = site.policy
    with site.open_ledger(folder) as ledger:
        before = ledger.status()
        unfinished = tuple(hash for hash, account in before.accounts.items() if not account.closed)
        if since is None:
            lost = max(Fraction(0), Fraction(before.max_cap) - before.promised)
            collusion = max(Fraction(0), Fraction(before.max_collusion_cap) - before.collusion_promised)
        else:
            if charged := [study.name for study in since if study.hash in before.accounts]:
                names = ", ".join(map(repr, charged))
                raise StudyError(f"{names}: already in the backup and charged in full; omit it")
            named = {study.hash for study in since}
            if others := [name for hash, name in decided.items() if hash not in named and hash not in before.accounts]:
                text = "accepted here, but not in the backup: name it with --accepted-since, or name no study"
                raise StudyError(f"{', '.join(map(repr, others))}: {text}, and all that your limits leave is charged")
            more = Fraction(before.max_rows_per_person, policy.unit.rows) ** 2
            costs = [(Fraction(policy.cost(study.terms.plan)) * more, study.terms.shares) for study in since]
            lost, collusion = sum((cost for cost, _ in costs), Fraction(0)), sum((c * n for c, n in costs), Fraction(0))
        lost = max(lost, collusion / MAX_SHARES)  # a record stores the second sum as a multiple of the first
        rounded = math.nextafter(float(lost), math.inf) if lost else 0.0
        shares = max(1, math.ceil(collusion / lost)) if lost else 1
        ledger.record_restore(rounded, about={"name": ABOUT}, shares=shares)
        return Restored(ledger.status(), Fraction(rounded), unfinished, complete=False, kept=None)
