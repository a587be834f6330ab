"""The aggregator's journal: one transaction per round, so that a kill -9 at any moment loses no closed round.

After a restart the open round is asked for again with the very same bytes, and sites repeat their answers.
All of it is public: what sites said, and what was made of it.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpadmm.arrays import Floats
from dpadmm.errors import DataError, DpadmmError
from dpadmm.study import Study, study_from

FORMAT = "dpadmm-journal/1"
SCHEMA = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE rounds (round INTEGER PRIMARY KEY, at TEXT NOT NULL, seconds REAL NOT NULL,
    consensus BLOB NOT NULL);
CREATE TABLE uploads (entered INTEGER NOT NULL, site TEXT NOT NULL, round INTEGER NOT NULL,
    n_rows INTEGER NOT NULL, rows_per_person INTEGER NOT NULL, upload BLOB NOT NULL,
    PRIMARY KEY (site, round));
CREATE TABLE sites (site TEXT PRIMARY KEY, n_rows INTEGER NOT NULL, rows_per_person INTEGER NOT NULL);
CREATE TABLE events (seq INTEGER PRIMARY KEY, at TEXT NOT NULL, level TEXT NOT NULL, text TEXT NOT NULL);
"""


class JournalError(DpadmmError):
    """The journal cannot be used, or not be written any more."""


class Received(NamedTuple):
    """An upload c_i^k that was taken: of which site, for which round, and how many rows the site has."""

    site: str
    round: int
    values: Floats
    n_rows: int
    rows_per_person: int


class Event(NamedTuple):
    """Something that happened, for people: ``level`` is info, warning or error."""

    seq: int
    at: str
    level: str
    text: str


class Journal(AbstractContextManager["Journal"]):
    """``with Journal.open(file) as journal``: its only writer, until it is closed."""

    def __init__(self, database: sqlite3.Connection, held: ExitStack, path: Path) -> None:
        self._database, self._held, self._path = database, held, path
        about = dict(database.execute("SELECT name, value FROM about"))
        if about.get("format") != FORMAT:
            raise DataError(f"{path} is no journal of this version of dpadmm")
        try:
            self.study: Study = study_from(json.loads(about["study"]), str(path))
            self.members: tuple[str, ...] = tuple(json.loads(about["members"]))
            self.begun_at: str = about["begun_at"]
        except DpadmmError:
            raise
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            raise JournalError(f"{path} is damaged: it does not say which study it is of") from None

    @classmethod
    def begin(cls, path: Path, study: Study, members: Sequence[str]) -> None:
        """Make the journal of a study that these sites take part in; refused where there is one."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.new")
        fresh.unlink(missing_ok=True)
        about = {
            "format": FORMAT,
            "study": json.dumps(study.as_json()),
            "members": json.dumps(list(members)),
            "begun_at": _now(),
        }
        with _trouble(path):
            os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with closing(sqlite3.connect(fresh, isolation_level=None)) as database:
                database.executescript(SCHEMA)
                database.executemany("INSERT INTO about VALUES (?, ?)", about.items())
            try:
                os.link(fresh, path)  # not over one that is there
            except FileExistsError:
                raise JournalError(f"there is a journal of this study in {path}; resume it") from None
            finally:
                fresh.unlink()

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Journal:
        """Hold the journal; a reader may look at it while its writer goes on."""
        if not path.exists():
            raise JournalError(f"there is no journal {path}; begin the study with dpadmm aggregator serve")
        with _trouble(path), ExitStack() as held:
            if not read_only:
                lock = os.open(path.with_name("lock"), os.O_CREAT | os.O_RDWR, 0o600)
                held.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            where = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
            database = held.enter_context(
                closing(sqlite3.connect(where, uri=True, isolation_level=None, check_same_thread=False))
            )
            if not read_only:
                for pragma in ("journal_mode = WAL", "synchronous = FULL"):
                    database.execute(f"PRAGMA {pragma}").fetchall()
            journal = cls(database, held, path)
            journal._held = held.pop_all()
        return journal

    def close(self) -> None:
        """Let go of it."""
        self._held.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_held(self) -> bool:
        """Whether an aggregator runs this study at the moment."""
        try:
            with self._path.with_name("lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    @property
    def rounds_done(self) -> int:
        return int(self._one("SELECT COALESCE(MAX(round), 0) FROM rounds"))

    def consensus(self) -> Iterator[Floats]:
        """w^1, w^2, ... of all rounds that were closed."""
        with _trouble(self._path):
            for (blob,) in self._database.execute("SELECT consensus FROM rounds ORDER BY round"):
                yield self._numbers(blob)

    def last_consensus(self) -> Floats:
        """w^k of the last round; zeros before the first."""
        with _trouble(self._path):
            row = self._database.execute(
                "SELECT consensus FROM rounds ORDER BY round DESC LIMIT 1"
            ).fetchone()
        return self._numbers(row[0]) if row else np.zeros(self.study.shape)

    def last_uploads(self) -> dict[str, Received]:
        """The newest upload of every site that sent one."""
        newest = "SELECT site, MAX(round), upload, n_rows, rows_per_person FROM uploads GROUP BY site"
        with _trouble(self._path):
            rows = self._database.execute(newest).fetchall()
        return {site: Received(site, round, self._numbers(blob), m, k) for site, round, blob, m, k in rows}

    def uploads(self) -> Iterator[tuple[int, Received]]:
        """All uploads, with the round in whose mean each was first: the transcript."""
        every = (
            "SELECT entered, site, round, upload, n_rows, rows_per_person FROM uploads ORDER BY entered, site"
        )
        with _trouble(self._path):
            for entered, site, round, blob, n_rows, k in self._database.execute(every):
                yield entered, Received(site, round, self._numbers(blob), n_rows, k)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Rows, and rows of one person, of every site that was ever here."""
        with _trouble(self._path):
            rows = self._database.execute("SELECT site, n_rows, rows_per_person FROM sites").fetchall()
        return {site: (n_rows, k) for site, n_rows, k in rows}

    def met(self, site: str, n_rows: int, rows_per_person: int) -> None:
        """Record a site that is here for the first time: from now on it may spend."""
        with _trouble(self._path):
            self._database.execute("INSERT INTO sites VALUES (?, ?, ?)", (site, n_rows, rows_per_person))

    def answered(self) -> dict[str, int]:
        """How many rounds each site answered."""
        with _trouble(self._path):
            return dict(self._database.execute("SELECT site, COUNT(*) FROM uploads GROUP BY site").fetchall())

    def changes(self) -> list[float]:
        """``‖w^k − w^{k−1}‖`` of all rounds."""
        before, out = np.zeros(self.study.shape), []
        for now in self.consensus():
            out.append(float(np.linalg.norm(now - before)))
            before = now
        return out

    def events(self, last: int = 200) -> list[Event]:
        """The newest events, oldest first."""
        with _trouble(self._path):
            rows = self._database.execute(
                "SELECT * FROM events ORDER BY seq DESC LIMIT ?", (last,)
            ).fetchall()
        return [Event(*row) for row in reversed(rows)]

    def note(self, level: str, text: str) -> Event:
        """Record an event."""
        at = _now()
        with _trouble(self._path):
            cursor = self._database.execute(
                "INSERT INTO events (at, level, text) VALUES (?, ?, ?)", (at, level, text)
            )
        return Event(int(cursor.lastrowid or 0), at, level, text)

    def close_round(self, round: int, consensus: Floats, uploads: Sequence[Received], seconds: float) -> None:
        """Record w^k and the uploads that are new in it: durable on return, all or nothing."""
        with _trouble(self._path):
            self._database.execute("BEGIN IMMEDIATE")
            try:
                self._database.executemany(
                    "INSERT INTO uploads VALUES (?, ?, ?, ?, ?, ?)",
                    [
                        (round, each.site, each.round, each.n_rows, each.rows_per_person, _blob(each.values))
                        for each in uploads
                    ],
                )
                row = (round, _now(), seconds, _blob(consensus))
                self._database.execute("INSERT INTO rounds VALUES (?, ?, ?, ?)", row)
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def seconds(self) -> list[float]:
        """How long every round took."""
        with _trouble(self._path):
            return [each for (each,) in self._database.execute("SELECT seconds FROM rounds ORDER BY round")]

    def _one(self, query: str) -> Any:
        with _trouble(self._path):
            return self._database.execute(query).fetchone()[0]

    def _numbers(self, blob: bytes) -> Floats:
        if len(blob) != 8 * self.study.shape[0] * self.study.shape[1]:
            raise JournalError(f"{self._path} is damaged: its numbers are not of shape {self.study.shape}")
        return np.frombuffer(blob, "<f8").astype(np.float64).reshape(self.study.shape)


def _blob(values: Floats) -> bytes:
    return values.astype("<f8").tobytes()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@contextmanager
def _trouble(path: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        raise JournalError(f"another aggregator has {path}; only one at a time may") from None
    except (sqlite3.Error, OSError) as error:
        text = f"the journal {path} cannot be used ({error}); closed rounds are safe: cure that, then resume"
        raise JournalError(text) from error
