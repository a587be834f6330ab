"""The owner's durable record of what was given away: a spend is on disk before its upload can leave.

One ledger per data set, across all studies; budgets are ``Σμ²``. An owner sets a cap; a study
reserves a part of it, spends it round by round, and gives the rest back when it is closed. With secure aggregation a
site adds one of ``shares`` shares of the noise: its releases cost ``Σμ²`` if enough others are honest, and ``shares``
times that if all work together against it. The second sum, ``alone``, has a cap of its own; without secure
aggregation there is one share, and both sums are the same.

Studies are chosen by what earlier ones released, so the cap is a privacy filter. For Gaussian releases, a filter on
``Σμ²`` gives the guarantee of one release with ``μ = √cap`` (Smith and Thakurta 2022, "Fully adaptive composition for
Gaussian differential privacy"; Koskela, Tobaben and Honkela 2023). Its conditions: every release is Gaussian, its μ²
is fixed by public values before it, and it is charged before it leaves or not made. docs/explanation/ledgers.md has
the proof, the lines and tests for every condition, and what holds after the cap was raised.

In the ledger's folder, ``ledger.sqlite`` has records of nine kinds (cap, cap-alone, rows, reserve, spend, restore, and
those of ``Ending``), each with a hash of all before it, and ``mark`` has a line per record, appended and fsynced after
the record's COMMIT: records that SQLite loses, to a flipped bit or an old copy put back, are missed by the mark, and
nothing more is answered. The writer has a lock on it.

Records obey the rules of ``LedgerState`` when they are written and again when they are read. A crash can cost
budget, never privacy: a record without its mark counts. Not detectable from the files: database and mark deleted, or
put back from an old copy, together; who noted the fingerprint of ``dpadmm ledger show`` sees that, and an aggregator
that remembers a later mark. Then the owner says so: a restore charges all that may have been released since the copy.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dpadmm.accounting.release_plan import fits
from dpadmm.errors import RefusalError

START = "0" * 64
Ending = Literal["close", "finish", "end"]
"""Kinds of records that close a study: its owner left it, all of its rounds are over, or the server ended it early."""


class Record(NamedTuple):
    """One line of the ledger; ``content`` is the SHA-256 of its payload (an upload, or a JSON description)."""

    kind: str
    study: str
    mu_squared: float
    round: int = 0
    digest: str = ""
    seq: int = 0
    at: str = ""
    content: str = ""

    def chain(self, before: str) -> str:
        """SHA-256 of the chain before, a line break, and this record as a JSON array."""
        return sha256(f"{before}\n{json.dumps(self)}".encode()).hexdigest()


@dataclass
class Account:
    """A study: what it reserved, and what it released in which round. Sums are exact."""

    reservation: Record
    about: Mapping[str, Any]
    may_miss_rounds: bool
    shares: int = 1
    spent: Fraction = Fraction(0)
    rounds: dict[int, Record] = field(default_factory=dict)
    ending: str = ""
    """The kind of the record that closed the study, an ``Ending`` or a restore; empty while it is open."""

    @property
    def closed(self) -> bool:
        return self.ending != ""

    @property
    def promised(self) -> Fraction:
        """Σμ² of what was released and what may still be released."""
        return self.spent if self.closed else Fraction(self.reservation.mu_squared)

    def check_round(self, round: int) -> None:
        """Rounds count up from 1; some may be missed only if the study says so."""
        last = next(reversed(self.rounds), 0)
        if self.closed:
            raise RefusalError("study-closed", "this study is closed in the ledger and releases nothing more")
        if round <= last:
            raise RefusalError("round-old", f"round {round} is not above the last one, {last}")
        if round > last + 1 and not self.may_miss_rounds:
            text = f"round {last + 1} is next, not {round}: this study allows no missed rounds"
            raise RefusalError("round-gap", text)


class LedgerState:
    """What the records add up to, and the rules for the next one."""

    def __init__(self) -> None:
        self.seq, self.fingerprint, self.cap, self.cap_alone, self.restores = 0, START, 0.0, 0.0, 0
        self.rows_per_person = 1
        # The highest values that were ever in force: a restore charges for them
        self.max_cap, self.max_cap_alone, self.max_rows_per_person = 0.0, 0.0, 1
        self.records: list[Record] = []
        self.accounts: dict[str, Account] = {}
        # Σμ² of all releases, and the same if all other sites work together: summing accounts for every record is slow
        self.spent = self.spent_alone = Fraction(0)

    @property
    def promised(self) -> Fraction:
        """Σμ² of all that was released and that open studies may still release."""
        return sum((each.promised for each in self.accounts.values()), Fraction(0))

    @property
    def promised_alone(self) -> Fraction:
        """The same if all other sites work together."""
        return sum((each.shares * each.promised for each in self.accounts.values()), Fraction(0))

    def account(self, study: str) -> Account:
        if study not in self.accounts:
            raise RefusalError("study-unknown", "this study has reserved nothing in the ledger; enrol it first")
        return self.accounts[study]

    def check(self, record: Record, payload: bytes) -> None:
        """Refuse a record that may not come next."""
        mu_squared = Fraction(record.mu_squared)
        if record.kind == "reserve":
            if known := self.accounts.get(record.study):
                closed = "closed here before, which is for good; under another name it is another study"
                other = "already enrolled, with other numbers: was the limit of rows per person changed?"
                raise RefusalError("study-changed", f"this study was {closed if known.closed else other}")
            shares = json.loads(payload).get("shares", 1)
            _afford("budget-cap", mu_squared, self.cap, self.promised)
            _afford("policy-alone", shares * mu_squared, self.cap_alone, self.promised_alone)
        elif record.kind == "spend":
            account = self.account(record.study)
            account.check_round(record.round)
            _afford("budget-reservation", mu_squared, account.reservation.mu_squared, account.spent)
            _afford("budget-cap", mu_squared, self.cap, self.spent)
            _afford("policy-alone", account.shares * mu_squared, self.cap_alone, self.spent_alone)

    def apply(self, record: Record, payload: bytes) -> None:
        """Take in a record that was checked."""
        self.seq, self.fingerprint = record.seq, record.chain(self.fingerprint)
        self.records.append(record)
        if record.kind == "cap":
            self.cap = self.cap_alone = record.mu_squared
        elif record.kind == "cap-alone":
            self.cap_alone = record.mu_squared
        elif record.kind == "rows":
            self.rows_per_person = json.loads(payload)["rows_per_person"]
            self.max_rows_per_person = max(self.max_rows_per_person, self.rows_per_person)
        elif record.kind in ("reserve", "restore"):
            self.accounts[record.study] = Account(record, **json.loads(payload))
        elif record.kind == "spend":
            self.accounts[record.study].rounds[record.round] = record
            self._charge(self.accounts[record.study], Fraction(record.mu_squared))
        else:
            self.accounts[record.study].ending = record.kind
        self.max_cap, self.max_cap_alone = max(self.max_cap, self.cap), max(self.max_cap_alone, self.cap_alone)
        if record.kind == "restore":  # whatever was reserved may have been released
            self.restores += 1
            for account in self.accounts.values():
                self._charge(account, account.promised - account.spent)
                account.ending = account.ending or record.kind

    def _charge(self, account: Account, mu_squared: Fraction) -> None:
        account.spent += mu_squared
        self.spent += mu_squared
        self.spent_alone += account.shares * mu_squared

    def line(self) -> bytes:
        """What the mark says of the last record."""
        return f"{self.seq:012d} {self.fingerprint}\n".encode()


LIMITS = {
    "budget-cap": "the owner's cap",
    "policy-alone": "the owner's cap for all other sites working together",
    "budget-reservation": "the study's reservation",
}


def _afford(code: str, asked: Fraction, allowed: float, used: Fraction) -> None:
    if not fits(asked, used, allowed):
        numbers = f"asked {float(asked):.9g}, allowed {allowed:.9g}, left {max(0.0, allowed - float(used)):.9g}"
        raise RefusalError(code, f"this would exceed {LIMITS[code]} (Σμ²: {numbers})")


DATABASE, MARK, LINE = "ledger.sqlite", "mark", 78
SCHEMA = (
    "CREATE TABLE records (kind TEXT, study TEXT, mu_squared REAL, round INTEGER, digest TEXT, "
    "seq INTEGER PRIMARY KEY, at TEXT, content TEXT, payload BLOB, chain TEXT)"
)
HEX = re.compile("[0-9a-f]{16,128}")
MAX_UPLOAD, VERSION = 2**28, 1
"""Bytes of an upload, and the version of the format: 0 had no restores, and is stamped when it is next opened."""


def read_ledger(folder: Path) -> LedgerState:
    """All records, each verified, against the mark; works beside a running agent and changes nothing."""
    if not (folder / DATABASE).exists() and not (folder / MARK).exists():
        text = f"there is no ledger in {folder}: check the name, or begin one with dpadmm agent begin SITE"
        raise RefusalError("ledger-missing", text)
    book, expected = LedgerState(), bytearray()
    try:
        before = _marked(folder)
        os.stat(folder / DATABASE)  # what is missing is named
        with closing(connected(folder, read_only=True)) as database:
            if (version := database.execute("PRAGMA user_version").fetchone()[0]) > VERSION:
                raise sqlite3.OperationalError(f"format {version} is of a newer dpadmm: install that")
            if database.execute("SELECT sql FROM sqlite_master").fetchall() != [(SCHEMA,)]:
                raise ValueError("it was not begun to the end, or by another version")
            if database.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                raise ValueError("SQLite finds damage")
            for *fields, payload, chain in database.execute("SELECT * FROM records ORDER BY seq"):
                record = Record(*fields)
                found = (record.seq, record.content, chain)
                if found != (book.seq + 1, sha256(payload).hexdigest(), record.chain(book.fingerprint)):
                    raise ValueError(f"record {book.seq + 1} is not what was written")
                book.check(record, payload)
                book.apply(record, payload)
                expected += book.line()
        if not expected.startswith(before) or not _marked(folder).startswith(expected[:-LINE]):
            raise ValueError(f"the mark does not belong to its {book.seq} records: some were lost or changed")
    except (sqlite3.OperationalError, PermissionError) as error:
        raise _failed(folder, error) from error
    except Exception as error:  # whatever it is that cannot be read: no
        raise _damaged(folder, error) from error
    return book


def _damaged(folder: Path, why: object) -> RefusalError:
    todo = f"nothing is answered; put back a copy of {DATABASE} with all records, but never an older {MARK}"
    return RefusalError("ledger-damaged", f"the ledger in {folder} cannot be trusted ({why}): {todo}")


def _failed(folder: Path, why: object) -> RefusalError:
    text = f"the ledger in {folder} cannot be used ({why}); nothing was released; cure that and open it again"
    return RefusalError("ledger-failed", text)


def _marked(folder: Path) -> bytes:
    return (folder / MARK).read_bytes().rstrip(b"\0")  # zeros: a power cut, where a line was to come


def connected(folder: Path, *, read_only: bool = False) -> sqlite3.Connection:
    path = (folder / DATABASE).absolute()
    # Without a -wal file nobody is writing, and reading needs no files beside
    live = path.with_name(f"{DATABASE}-wal").exists()
    where = f"{path.as_uri()}?mode={'rwc' if not read_only else 'ro' if live else 'ro&immutable=1'}"
    return sqlite3.connect(where, uri=True, isolation_level=None, check_same_thread=False)


@contextmanager
def _trouble(folder: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError as error:
        text = f"the ledger in {folder} is in use by another process; one agent at a time may hold it"
        raise RefusalError("ledger-locked", text) from error
    except (sqlite3.Error, OSError) as error:
        raise _failed(folder, error) from error


def _require(*hashes: str, round: int = 1, mu_squared: float = 1.0, shares: int = 1, upload: bytes = b"") -> None:
    good = all(isinstance(text, str) and HEX.fullmatch(text) for text in hashes)
    good = good and type(round) is int and 1 <= round < 2**62 and type(shares) is int and 1 <= shares < 2**31
    good = good and isinstance(mu_squared, int | float) and 0.0 < mu_squared < 1e12
    if not (good and isinstance(upload, bytes) and len(upload) <= MAX_UPLOAD):
        raise RefusalError(
            "request-malformed", "hash, round, μ², shares or upload is not of the kind that a ledger keeps"
        )


class Ledger(AbstractContextManager["Ledger"]):
    """``with Ledger.open(folder, cap=...) as ledger``: its only writer, until it is closed.

    After a write that failed it answers nothing more until it is opened again: the files know what happened.
    """

    _held: ExitStack

    def __init__(self, folder: Path, mark: int, database: sqlite3.Connection, book: LedgerState) -> None:
        self._folder, self._mark, self._database, self._book = folder, mark, database, book
        self._pid, self._in_doubt, self._one_at_a_time = os.getpid(), False, threading.RLock()

    @classmethod
    def open(
        cls, folder: Path, *, cap: float, cap_alone: float | None = None, rows_per_person: int = 1, create: bool = False
    ) -> Ledger:
        """Hold and verify the ledger; ``cap`` is the owner's limit of Σμ² over all studies.

        ``cap_alone`` is that for all other sites working together, the same if not given. ``rows_per_person`` is the
        number that new studies are charged for. Changes of these values are recorded. A missing ledger is begun
        only on ``create``: a disk that is not mounted is no new budget.
        """
        cap_alone = cap if cap_alone is None else cap_alone
        for each in (cap, cap_alone):
            _require(mu_squared=each, round=rows_per_person)
        with _trouble(folder), ExitStack() as held:
            made = [each.parent for each in (folder, *folder.parents) if not each.exists()]
            if create:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                (folder / MARK).touch(mode=0o600)
            elif not (folder / MARK).exists():
                read_ledger(folder)  # says what is missing
            mark = os.open(folder / MARK, os.O_RDWR | os.O_APPEND)
            held.callback(os.close, mark)
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if create and not _marked(folder):
                (folder / DATABASE).touch(mode=0o600)
                with closing(connected(folder)) as database:
                    database.execute(SCHEMA.replace("TABLE", "TABLE IF NOT EXISTS"))
            book = read_ledger(folder)  # before anything can write: what is damaged stays as it is
            database = held.enter_context(closing(connected(folder)))
            modes = ("journal_mode = WAL", "synchronous = FULL", f"user_version = {VERSION}")
            for pragma in (*modes, "wal_checkpoint(TRUNCATE)"):
                database.execute(f"PRAGMA {pragma}").fetchall()
            ledger = cls(folder, mark, database, book)
            marked = len(_marked(folder))
            os.ftruncate(mark, marked)
            ledger._extend_mark(book.line()[LINE - (book.seq * LINE - marked) :])
            if book.cap != cap:
                ledger._append(Record("cap", "", float(cap)), os.urandom(16))
            if book.cap_alone != cap_alone:
                ledger._append(Record("cap-alone", "", float(cap_alone)))
            if book.rows_per_person != rows_per_person:
                ledger._append(Record("rows", "", 0.0), json.dumps({"rows_per_person": rows_per_person}).encode())
            for place in (folder, *made):  # a power cut may lose names of new files and folders until then
                names = os.open(place, os.O_RDONLY)
                held.callback(os.close, names)
                os.fsync(names)
            ledger._held = held.pop_all()
        return ledger

    def close(self) -> None:
        """Let go of the ledger; in a forked process nothing happens, since it is its parent's."""
        if self._pid == os.getpid():
            with self._one_at_a_time:
                self._pid = 0
                self._held.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def reserve(
        self, study: str, mu_squared: float, *, about: Mapping[str, Any], may_miss_rounds: bool = False, shares: int = 1
    ) -> None:
        """Set Σμ² aside for a study, which may miss rounds or not.

        Asking for the same again is harmless. It is refused once the study is closed, unless it is finished: a finished
        study may repeat its answers.
        """
        _require(study, mu_squared=mu_squared, shares=shares)
        description = {"about": dict(about), "may_miss_rounds": bool(may_miss_rounds)}
        description |= {"shares": shares} if shares > 1 else {}
        payload = json.dumps(description, sort_keys=True, allow_nan=False).encode()
        record = Record("reserve", study, float(mu_squared), content=sha256(payload).hexdigest())
        with self._working():
            known = self._book.accounts.get(study)
            if not known or known.ending not in ("", "finish") or known.reservation._replace(seq=0, at="") != record:
                self._append(record, payload)

    def replay(self, study: str, round: int, *, digest: str) -> bytes | None:
        """The stored upload if this very request was answered before; None if it may be answered now."""
        _require(study, digest, round=round)
        with self._working():
            account = self._book.account(study)
            if round not in account.rounds:
                account.check_round(round)
                return None
            if account.rounds[round].digest != digest:
                raise RefusalError("round-forked", f"round {round} was answered for another request")
            return self._payload(account.rounds[round])

    def spend(self, study: str, round: int, *, digest: str, mu_squared: float, upload: bytes) -> None:
        """Record a release; once this has returned it is durable, and the upload may leave."""
        _require(study, digest, round=round, mu_squared=mu_squared, upload=upload)
        self._append(Record("spend", study, float(mu_squared), round, digest), upload)

    def close_study(self, study: str, ending: Ending = "close") -> None:
        """Give back what the study reserved and did not spend; it releases nothing more, and keeps its first ending."""
        with self._working():
            if not self._book.account(study).closed:
                self._append(Record(ending, study, 0.0))

    def restored(self, mu_squared: float, *, about: Mapping[str, Any], shares: int) -> None:
        """This was an old copy: charge and close what is open, and charge so much for what it may lack."""
        payload = json.dumps({"about": dict(about), "may_miss_rounds": False, "shares": shares}).encode()
        self._append(Record("restore", os.urandom(32).hex(), float(mu_squared)), payload)

    def transcript(self, study: str) -> list[tuple[Record, bytes]]:
        """All releases of a study in order, each with its upload."""
        with self._working():
            return [(record, self._payload(record)) for record in self._book.account(study).rounds.values()]

    def status(self) -> LedgerState:
        """What is spent, reserved and left, and every study's account: to look at, not to change."""
        with self._working():
            return self._book

    def verify(self) -> None:
        """Read everything from disk again and refuse if it is not what this process wrote."""
        with self._working():
            if read_ledger(self._folder).fingerprint != self._book.fingerprint:
                raise _damaged(self._folder, "it was changed by another")

    @contextmanager
    def _working(self) -> Iterator[None]:
        if self._pid != os.getpid():
            raise RefusalError("ledger-closed", "the ledger was closed, or is another process's: open it here")
        with self._one_at_a_time, _trouble(self._folder):
            if self._in_doubt:
                raise OSError("an earlier write failed")
            yield

    def _append(self, record: Record, payload: bytes = b"") -> None:
        with self._working():
            at, content = datetime.now(UTC).isoformat(timespec="seconds"), sha256(payload).hexdigest()
            record = record._replace(seq=self._book.seq + 1, at=at, content=content)
            self._book.check(record, payload)
            ours, named = os.fstat(self._mark), os.stat(self._folder / MARK)
            if not os.path.samestat(ours, named) or ours.st_size != self._book.seq * LINE:
                raise _damaged(self._folder, "the mark was changed by another")
            self._in_doubt = True
            row = (*record, payload, record.chain(self._book.fingerprint))
            # Outside of BEGIN a statement is a transaction: committed and synced when execute returns
            self._database.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._book.apply(record, payload)
            self._extend_mark(self._book.line())
            self._in_doubt = False

    def _extend_mark(self, text: bytes) -> None:
        if os.write(self._mark, text) != len(text):
            raise OSError("the mark was written in part")
        os.fsync(self._mark)

    def _payload(self, record: Record) -> bytes:
        found = self._database.execute("SELECT payload FROM records WHERE seq = ?", (record.seq,)).fetchone()
        if sha256(found[0]).hexdigest() != record.content:
            raise _damaged(self._folder, f"record {record.seq} is not what was written")
        return bytes(found[0])
