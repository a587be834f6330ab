"""Durable record of all releases from one data set. A spend is on disk before its upload can be sent.

There is one ledger per data set, for all studies. Budgets are in ``Σμ²``. The owner sets a cap. A study reserves a part
of the cap, spends it round by round, and frees the rest when it is closed.

With secure aggregation a site adds one of ``shares`` shares of the noise. Its releases cost ``Σμ²`` if enough other
sites are honest, and ``shares`` times as much if all of them collude. The second sum has its own cap.
Without secure aggregation there is one share, and both sums are equal.

Later studies may depend on the releases of earlier ones, so the cap is a privacy filter. For Gaussian releases, a
filter on ``Σμ²`` gives the guarantee of one release with ``μ = √cap`` (Smith and Thakurta 2022, "Fully adaptive
composition for Gaussian differential privacy"; Koskela, Tobaben and Honkela 2023). Its conditions:

- every release is Gaussian;
- its μ² is fixed by public values before the release;
- it is charged before it is sent, or it is not made.

docs/explanation/ledgers.md has the proof, the lines and tests for each condition, and the guarantee after the cap was
raised.

The ledger's folder has two files. ``ledger.sqlite`` has records of nine kinds (cap, collusion-cap, rows, reserve,
spend, restore, and those of ``Ending``). Each record contains a hash of all earlier ones. ``mark`` has a line per
record, appended and fsynced after the record's COMMIT. If SQLite loses records, to a flipped bit or an old copy of the
database, the mark does not match and nothing more is answered. The writer holds a lock on ``mark``.

Records are checked by the rules of ``LedgerState`` when they are written and again when they are read. A crash can cost
budget, never privacy: a record without its mark counts.

One change cannot be detected from the files: database and mark are deleted, or replaced by old copies, together. An
owner who noted the fingerprint from ``dpadmm site budget`` can detect it, and so can a server that stored a later mark.
The owner then runs a restore, which charges all that may have been released since the copy.
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
    """One line of the ledger. ``content`` is the SHA-256 of its payload: an upload, or a JSON description."""

    kind: str
    study: str
    mu_squared: float
    round: int = 0
    digest: str = ""
    seq: int = 0
    at: str = ""
    content: str = ""

    def chain(self, before: str) -> str:
        """Return the SHA-256 of the previous chain value, a line break, and this record as a JSON array."""
        return sha256(f"{before}\n{json.dumps(self)}".encode()).hexdigest()


@dataclass
class Account:
    """Reservation and releases of one study. Sums are exact."""

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
        """Σμ² that was released or may still be released."""
        return self.spent if self.closed else Fraction(self.reservation.mu_squared)

    def check_round(self, round: int) -> None:
        """Raise ``RefusalError`` unless this round may come next.

        Rounds increase from 1. Rounds may be missed only if the study allows it.
        """
        last = next(reversed(self.rounds), 0)
        if self.closed:
            raise RefusalError("study-closed", "this study is closed in the ledger; it releases nothing more")
        if round <= last:
            raise RefusalError("round-old", f"round {round} is not later than the last answered round, {last}")
        if round > last + 1 and not self.may_miss_rounds:
            text = f"round {round} was requested; round {last + 1} is next, and this study allows no missed rounds"
            raise RefusalError("round-missed", text)


class LedgerState:
    """State after all records, and the rules for the next record."""

    def __init__(self) -> None:
        self.seq, self.fingerprint, self.cap, self.collusion_cap, self.restores = 0, START, 0.0, 0.0, 0
        self.rows_per_person = 1
        # Maxima over all records: a restore charges for them
        self.max_cap, self.max_collusion_cap, self.max_rows_per_person = 0.0, 0.0, 1
        self.records: list[Record] = []
        self.accounts: dict[str, Account] = {}
        # Σμ² of all releases, and the same if all other sites collude. Kept, since summing accounts per record is slow
        self.spent = self.collusion_spent = Fraction(0)

    @property
    def promised(self) -> Fraction:
        """Σμ² of all releases, including those that open studies may still make."""
        return sum((account.promised for account in self.accounts.values()), Fraction(0))

    @property
    def collusion_promised(self) -> Fraction:
        """``promised`` if all other sites collude."""
        return sum((account.shares * account.promised for account in self.accounts.values()), Fraction(0))

    def account(self, study: str) -> Account:
        if study not in self.accounts:
            raise RefusalError("study-unknown", "this study has no reservation in the ledger; enrol it first")
        return self.accounts[study]

    def check(self, record: Record, payload: bytes) -> None:
        """Raise ``RefusalError`` if this record may not come next."""
        mu_squared = Fraction(record.mu_squared)
        if record.kind == "reserve":
            if account := self.accounts.get(record.study):
                closed = "closed and cannot be reopened; give it another name to make it a new study"
                changed = "enrolled with other terms; check whether the limit of rows per person was changed"
                raise RefusalError("study-changed", f"this study was {closed if account.closed else changed}")
            shares = json.loads(payload).get("shares", 1)
            _require_fit("budget-cap", mu_squared, self.cap, self.promised)
            _require_fit("policy-collusion", shares * mu_squared, self.collusion_cap, self.collusion_promised)
        elif record.kind == "spend":
            account = self.account(record.study)
            account.check_round(record.round)
            _require_fit("budget-reservation", mu_squared, account.reservation.mu_squared, account.spent)
            _require_fit("budget-cap", mu_squared, self.cap, self.spent)
            _require_fit("policy-collusion", account.shares * mu_squared, self.collusion_cap, self.collusion_spent)

    def apply(self, record: Record, payload: bytes) -> None:
        """Update the state by a record that was checked."""
        self.seq, self.fingerprint = record.seq, record.chain(self.fingerprint)
        self.records.append(record)
        if record.kind == "cap":
            self.cap = self.collusion_cap = record.mu_squared
        elif record.kind == "collusion-cap":
            self.collusion_cap = record.mu_squared
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
        self.max_cap = max(self.max_cap, self.cap)
        self.max_collusion_cap = max(self.max_collusion_cap, self.collusion_cap)
        if record.kind == "restore":  # all reserved releases may have been made
            self.restores += 1
            for account in self.accounts.values():
                self._charge(account, account.promised - account.spent)
                account.ending = account.ending or record.kind

    def _charge(self, account: Account, mu_squared: Fraction) -> None:
        account.spent += mu_squared
        self.spent += mu_squared
        self.collusion_spent += account.shares * mu_squared

    def line(self) -> bytes:
        """Return the line of the mark for the last record."""
        return f"{self.seq:012d} {self.fingerprint}\n".encode()


LIMITS = {
    "budget-cap": "the owner's cap",
    "policy-collusion": "the owner's cap if all other sites collude",
    "budget-reservation": "the study's reservation",
}


def _require_fit(code: str, cost: Fraction, allowed: float, used: Fraction) -> None:
    if not fits(cost, used, allowed):
        numbers = f"requested {float(cost):.9g}, allowed {allowed:.9g}, left {max(0.0, allowed - float(used)):.9g}"
        raise RefusalError(code, f"this would exceed {LIMITS[code]} (Σμ²: {numbers})")


DATABASE, MARK, LINE = "ledger.sqlite", "mark", 78
SCHEMA = (
    "CREATE TABLE records (kind TEXT, study TEXT, mu_squared REAL, round INTEGER, digest TEXT, "
    "seq INTEGER PRIMARY KEY, at TEXT, content TEXT, payload BLOB, chain TEXT)"
)
HEX = re.compile("[0-9a-f]{16,128}")
MAX_UPLOAD, VERSION = 2**28, 1
"""Maximum bytes of an upload, and the format version. Version 0 had no restores; opening a ledger upgrades it."""


def read_ledger(folder: Path) -> LedgerState:
    """Read and verify all records, and compare them with the mark. Read-only; safe while an agent is running."""
    if not (folder / DATABASE).exists() and not (folder / MARK).exists():
        text = f"no ledger in {folder}: check the path, or restore a backup with dpadmm site restore"
        raise RefusalError("ledger-missing", text)
    state, expected = LedgerState(), bytearray()
    try:
        before = _read_mark(folder)
        os.stat(folder / DATABASE)  # the error names the missing file
        with closing(connect(folder, read_only=True)) as database:
            if (version := database.execute("PRAGMA user_version").fetchone()[0]) > VERSION:
                raise sqlite3.OperationalError(f"format {version} is from a newer dpadmm; upgrade dpadmm")
            if database.execute("SELECT sql FROM sqlite_master").fetchall() != [(SCHEMA,)]:
                raise ValueError("its creation was interrupted, or another version created it")
            if database.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                raise ValueError("SQLite reports damage")
            for *fields, payload, chain in database.execute("SELECT * FROM records ORDER BY seq"):
                record = Record(*fields)
                stored = (record.seq, record.content, chain)
                if stored != (state.seq + 1, sha256(payload).hexdigest(), record.chain(state.fingerprint)):
                    raise ValueError(f"record {state.seq + 1} was changed")
                state.check(record, payload)
                state.apply(record, payload)
                expected += state.line()
        if not expected.startswith(before) or not _read_mark(folder).startswith(expected[:-LINE]):
            raise ValueError(f"the mark does not match the {state.seq} records: some were lost or changed")
    except (sqlite3.OperationalError, PermissionError) as error:
        raise _failure(folder, error) from error
    except Exception as error:  # any other failure means that the ledger is damaged
        raise _damage(folder, error) from error
    return state


def _damage(folder: Path, reason: object) -> RefusalError:
    step = f"nothing is answered; restore a copy of {DATABASE} with all records, but never an older {MARK}"
    return RefusalError("ledger-damaged", f"the ledger in {folder} cannot be trusted ({reason}): {step}")


def _failure(folder: Path, reason: object) -> RefusalError:
    text = f"the ledger in {folder} cannot be used ({reason}); nothing was released; fix this and open it again"
    return RefusalError("ledger-failed", text)


def _read_mark(folder: Path) -> bytes:
    return (folder / MARK).read_bytes().rstrip(b"\0")  # a power cut can leave zeros in place of a line


def connect(folder: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open the database of a ledger."""
    path = (folder / DATABASE).absolute()
    # Without a -wal file there is no writer, and the database is read without creating other files
    live = path.with_name(f"{DATABASE}-wal").exists()
    where = f"{path.as_uri()}?mode={'rwc' if not read_only else 'ro' if live else 'ro&immutable=1'}"
    return sqlite3.connect(where, uri=True, isolation_level=None, check_same_thread=False)


@contextmanager
def _as_refusals(folder: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError as error:
        text = f"the ledger in {folder} is in use by another process; stop that process first"
        raise RefusalError("ledger-locked", text) from error
    except (sqlite3.Error, OSError) as error:
        raise _failure(folder, error) from error


def _require(*hashes: str, round: int = 1, mu_squared: float = 1.0, shares: int = 1, upload: bytes = b"") -> None:
    good = all(isinstance(text, str) and HEX.fullmatch(text) for text in hashes)
    good = good and type(round) is int and 1 <= round < 2**62 and type(shares) is int and 1 <= shares < 2**31
    good = good and isinstance(mu_squared, int | float) and 0.0 < mu_squared < 1e12
    if not (good and isinstance(upload, bytes) and len(upload) <= MAX_UPLOAD):
        raise RefusalError(
            "request-malformed", "hash, round, μ², shares or upload has the wrong type or is out of range"
        )


class Ledger(AbstractContextManager["Ledger"]):
    """The only writer of a ledger, until it is closed: ``with Ledger.open(folder, cap=...) as ledger``.

    After a failed write every call is refused until the ledger is opened again. Opening reads the state from disk.
    """

    _resources: ExitStack

    def __init__(self, folder: Path, mark: int, database: sqlite3.Connection, state: LedgerState) -> None:
        self._folder, self._mark, self._database, self._state = folder, mark, database, state
        self._pid, self._in_doubt, self._lock = os.getpid(), False, threading.RLock()

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        cap: float,
        collusion_cap: float | None = None,
        rows_per_person: int = 1,
        create: bool = False,
    ) -> Ledger:
        """Lock and verify the ledger in a folder. Changes of the three limits are recorded.

        Parameters
        ----------
        folder : Path
            Folder of the ledger.
        cap : float
            The owner's limit of Σμ² over all studies.
        collusion_cap : float, optional
            The limit if all other sites collude; ``cap`` by default.
        rows_per_person : int
            Rows of a person that new studies are charged for.
        create : bool
            Create a missing ledger. If False, a missing ledger is an error, so that a disk that is not mounted does
            not provide a new budget.
        """
        collusion_cap = cap if collusion_cap is None else collusion_cap
        for limit in (cap, collusion_cap):
            _require(mu_squared=limit, round=rows_per_person)
        with _as_refusals(folder), ExitStack() as held:
            parents = [path.parent for path in (folder, *folder.parents) if not path.exists()]
            if create:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                (folder / MARK).touch(mode=0o600)
            elif not (folder / MARK).exists():
                read_ledger(folder)  # raises, naming the missing file
            mark = os.open(folder / MARK, os.O_RDWR | os.O_APPEND)
            held.callback(os.close, mark)
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if create and not _read_mark(folder):
                (folder / DATABASE).touch(mode=0o600)
                with closing(connect(folder)) as database:
                    database.execute(SCHEMA.replace("TABLE", "TABLE IF NOT EXISTS"))
            state = read_ledger(folder)  # before any write: a damaged ledger stays unchanged
            database = held.enter_context(closing(connect(folder)))
            modes = ("journal_mode = WAL", "synchronous = FULL", f"user_version = {VERSION}")
            for pragma in (*modes, "wal_checkpoint(TRUNCATE)"):
                database.execute(f"PRAGMA {pragma}").fetchall()
            ledger = cls(folder, mark, database, state)
            marked = len(_read_mark(folder))
            os.ftruncate(mark, marked)
            ledger._extend_mark(state.line()[LINE - (state.seq * LINE - marked) :])
            if state.cap != cap:
                ledger._append(Record("cap", "", float(cap)), os.urandom(16))
            if state.collusion_cap != collusion_cap:
                ledger._append(Record("collusion-cap", "", float(collusion_cap)))
            if state.rows_per_person != rows_per_person:
                ledger._append(Record("rows", "", 0.0), json.dumps({"rows_per_person": rows_per_person}).encode())
            for place in (folder, *parents):  # until this fsync a power cut may lose the names of new files and folders
                names = os.open(place, os.O_RDONLY)
                held.callback(os.close, names)
                os.fsync(names)
            ledger._resources = held.pop_all()
        return ledger

    def close(self) -> None:
        """Close files and release the lock. Does nothing in a forked process: the parent owns the ledger."""
        if self._pid == os.getpid():
            with self._lock:
                self._pid = 0
                self._resources.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def reserve(
        self, study: str, mu_squared: float, *, about: Mapping[str, Any], may_miss_rounds: bool = False, shares: int = 1
    ) -> None:
        """Reserve Σμ² for a study.

        Repeating the same reservation has no effect. It is refused if the study is closed, unless it is finished: a
        finished study may repeat its answers.
        """
        _require(study, mu_squared=mu_squared, shares=shares)
        description = {"about": dict(about), "may_miss_rounds": bool(may_miss_rounds)}
        description |= {"shares": shares} if shares > 1 else {}
        payload = json.dumps(description, sort_keys=True, allow_nan=False).encode()
        record = Record("reserve", study, float(mu_squared), content=sha256(payload).hexdigest())
        with self._available():
            old = self._state.accounts.get(study)
            if not old or old.ending not in ("", "finish") or old.reservation._replace(seq=0, at="") != record:
                self._append(record, payload)

    def replay(self, study: str, round: int, *, digest: str) -> bytes | None:
        """Return the stored upload if this request was answered before; None if it may be answered now."""
        _require(study, digest, round=round)
        with self._available():
            account = self._state.account(study)
            if round not in account.rounds:
                account.check_round(round)
                return None
            if account.rounds[round].digest != digest:
                raise RefusalError("round-forked", f"round {round} was already answered for another request")
            return self._payload(account.rounds[round])

    def spend(self, study: str, round: int, *, digest: str, mu_squared: float, upload: bytes) -> None:
        """Record a release. When this returns, the record is durable and the upload may be sent."""
        _require(study, digest, round=round, mu_squared=mu_squared, upload=upload)
        self._append(Record("spend", study, float(mu_squared), round, digest), upload)

    def close_study(self, study: str, ending: Ending = "close") -> None:
        """Close a study and free the unspent part of its reservation. A closed study keeps its first ending."""
        with self._available():
            if not self._state.account(study).closed:
                self._append(Record(ending, study, 0.0))

    def record_restore(self, mu_squared: float, *, about: Mapping[str, Any], shares: int) -> None:
        """Record that this ledger is a restored old copy.

        All open studies are charged in full and closed. ``mu_squared`` is charged for records that the copy may lack.
        """
        payload = json.dumps({"about": dict(about), "may_miss_rounds": False, "shares": shares}).encode()
        self._append(Record("restore", os.urandom(32).hex(), float(mu_squared)), payload)

    def transcript(self, study: str) -> list[tuple[Record, bytes]]:
        """Return all releases of a study in order, each with its upload."""
        with self._available():
            return [(record, self._payload(record)) for record in self._state.account(study).rounds.values()]

    def status(self) -> LedgerState:
        """Return the current state, read-only."""
        with self._available():
            return self._state

    def verify(self) -> None:
        """Read all records from disk again. Raise ``RefusalError`` if they differ from those of this process."""
        with self._available():
            if read_ledger(self._folder).fingerprint != self._state.fingerprint:
                raise _damage(self._folder, "another process changed it")

    @contextmanager
    def _available(self) -> Iterator[None]:
        if self._pid != os.getpid():
            raise RefusalError("ledger-closed", "the ledger is not open in this process; open it first")
        with self._lock, _as_refusals(self._folder):
            if self._in_doubt:
                raise OSError("an earlier write failed")
            yield

    def _append(self, record: Record, payload: bytes = b"") -> None:
        with self._available():
            at, content = datetime.now(UTC).isoformat(timespec="seconds"), sha256(payload).hexdigest()
            record = record._replace(seq=self._state.seq + 1, at=at, content=content)
            self._state.check(record, payload)
            ours, named = os.fstat(self._mark), os.stat(self._folder / MARK)
            if not os.path.samestat(ours, named) or ours.st_size != self._state.seq * LINE:
                raise _damage(self._folder, "another process changed the mark")
            self._in_doubt = True
            row = (*record, payload, record.chain(self._state.fingerprint))
            # Outside of BEGIN each command is a transaction: committed and synced when execute returns
            self._database.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._state.apply(record, payload)
            self._extend_mark(self._state.line())
            self._in_doubt = False

    def _extend_mark(self, text: bytes) -> None:
        if os.write(self._mark, text) != len(text):
            raise OSError("the mark was written only in part")
        os.fsync(self._mark)

    def _payload(self, record: Record) -> bytes:
        row = self._database.execute("SELECT payload FROM records WHERE seq = ?", (record.seq,)).fetchone()
        if sha256(row[0]).hexdigest() != record.content:
            raise _damage(self._folder, f"record {record.seq} was changed")
        return bytes(row[0])
