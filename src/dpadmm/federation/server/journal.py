"""The server's journal of a study, and the results computed from it.

Each round is one transaction, so ``kill -9`` at any moment loses no closed round. After a restart, the server sends
the request of the open round again with the same bytes, and sites repeat their answers. The journal contains only
public values.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpadmm.accounting.report import PrivacyReport, share_equal
from dpadmm.engine.loop import Averages, RoundView
from dpadmm.errors import DataError, DPADMMError, StudyError
from dpadmm.federation.health import command_line
from dpadmm.files.atomic import atomic_file
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.methods import DeployableMethod
from dpadmm.methods.prior import Prior
from dpadmm.studies.reading import study_from
from dpadmm.studies.study import Study

FAMILY, VERSION_HERE = "dpadmm-journal/", 1
FORMAT = f"{FAMILY}{VERSION_HERE}"
MIGRATIONS: dict[int, str] = {}
"""SQL that upgrades a journal from a version to the next one, run in one transaction."""
SCHEMA = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE rounds (round INTEGER PRIMARY KEY, at TEXT NOT NULL, seconds REAL NOT NULL,
    consensus BLOB NOT NULL);
CREATE TABLE uploads (entered INTEGER NOT NULL, site TEXT NOT NULL, round INTEGER NOT NULL,
    n_rows INTEGER NOT NULL, rows_per_person INTEGER NOT NULL, upload BLOB NOT NULL,
    PRIMARY KEY (site, round));
CREATE TABLE sites (site TEXT PRIMARY KEY, n_rows INTEGER NOT NULL, rows_per_person INTEGER NOT NULL);
CREATE TABLE events (seq INTEGER PRIMARY KEY, at TEXT NOT NULL, level TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE stalls (id INTEGER PRIMARY KEY, site TEXT NOT NULL, round INTEGER NOT NULL, reason TEXT NOT NULL,
    started TEXT NOT NULL, ended TEXT);
"""

MASKED_SCHEMA = """
CREATE TABLE openings (round INTEGER PRIMARY KEY, at TEXT NOT NULL, request TEXT NOT NULL, members BLOB NOT NULL);
CREATE TABLE sums (round INTEGER PRIMARY KEY, sum BLOB NOT NULL);
CREATE TABLE answers (round INTEGER NOT NULL, site TEXT NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (site, round));
CREATE TABLE aborted_rounds (round INTEGER PRIMARY KEY, reason TEXT NOT NULL, sites TEXT NOT NULL);
"""
"""Secure aggregation: the members of each round, the sum, the SHA-256 of each masked answer, and aborted rounds.

Masked answers are never stored.
"""


class JournalError(DPADMMError):
    """The journal cannot be read or written."""


class Received(NamedTuple):
    """An accepted upload c_i^k, with its site, its round and the site's numbers of rows."""

    site: str
    round: int
    values: Floats
    n_rows: int
    rows_per_person: int


class Opening(NamedTuple):
    """A round with fixed members, which may mask their answers."""

    round: int
    request: str
    """Digest of the request."""
    members: bytes
    """Bitmap of the members."""


class AbortedRound(NamedTuple):
    """An aborted round: ``missing`` answers from these sites, or a ``garbled`` sum."""

    round: int
    reason: str
    sites: tuple[str, ...]


class Event(NamedTuple):
    """An event of a run; ``level`` is info, warning or error."""

    seq: int
    at: str
    level: str
    text: str


class Stall(NamedTuple):
    """A round without a site's answer; ``end`` is None until the answer arrives."""

    id: int
    site: str
    round: int
    reason: str
    start: str
    end: str | None


class Journal(AbstractContextManager["Journal"]):
    """``with Journal.open(file) as journal``: the only writer until it is closed."""

    def __init__(self, database: sqlite3.Connection, resources: ExitStack, path: Path) -> None:
        self._database, self._resources, self._path = database, resources, path
        about = dict(database.execute("SELECT name, value FROM about"))
        if (version := _version(path, about.get("format"))) != VERSION_HERE:
            newer = version > VERSION_HERE
            resume = command_line("server", "run", path.parent.name, "--folder", path.absolute().parents[2])
            action = "install that version" if newer else f"to update it: {resume}"
            raise JournalError(f"{path}: written by {'a newer' if newer else 'an older'} version of dpadmm: {action}")
        try:
            self.study: Study = study_from(json.loads(about["study"]), str(path))
            self.members: tuple[str, ...] = tuple(json.loads(about["members"]))
            self.prior: Prior | None = None
            if self.study.public_rows is not None:
                self.prior = Prior.from_json(json.loads(about["prior"]), self.study.shape)
        except DPADMMError:
            raise
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            raise JournalError(f"{path}: damaged; cannot read its study") from None

    @classmethod
    def begin(cls, path: Path, study: Study, members: Sequence[str], prior: Prior | None = None) -> None:
        """Create the journal of a study with these members; raise ``JournalError`` if it exists.

        ``prior`` is computed from the study's public rows. It is stored so that a restart does not need their file.
        """
        study.check_concrete()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        new.unlink(missing_ok=True)
        about = {
            "format": FORMAT,
            "study": json.dumps(study.as_json()),
            "members": json.dumps(list(members)),
            "begun_at": _now(),
        }
        if prior is not None:
            about["prior"] = json.dumps(prior.as_json())
        with _as_journal_errors(path):
            os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with closing(sqlite3.connect(new, isolation_level=None)) as database:
                database.executescript(SCHEMA if study.terms.masking is None else SCHEMA + MASKED_SCHEMA)
                database.executemany("INSERT INTO about VALUES (?, ?)", about.items())
            try:
                os.link(new, path)  # never replaces a journal
            except FileExistsError:
                raise JournalError(f"{path}: this study already has a journal; resume it") from None
            finally:
                new.unlink()

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Journal:
        """Open the journal. Readers do not block its writer."""
        if not path.exists():
            raise JournalError(f"{path}: no such journal; serve the study first")
        with _as_journal_errors(path), ExitStack() as resources:
            if not read_only:
                lock = os.open(path.with_name("lock"), os.O_CREAT | os.O_RDWR, 0o600)
                resources.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
            database = resources.enter_context(
                closing(sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False))
            )
            if not read_only:
                for pragma in ("journal_mode = WAL", "synchronous = FULL"):
                    database.execute(f"PRAGMA {pragma}").fetchall()
                _migrate(database, path)
            journal = cls(database, resources, path)
            journal._resources = resources.pop_all()
        return journal

    def close(self) -> None:
        self._resources.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def method(self, *n_rows: int) -> DeployableMethod[Any]:
        """Return the study's method for sites with these numbers of rows, with the prior from the public rows."""
        method = self.study.method(*n_rows)
        return method if self.prior is None else method.with_prior(self.prior)

    @property
    def rounds_done(self) -> int:
        return int(self._rows("SELECT COALESCE(MAX(round), 0) FROM rounds")[0][0])

    @property
    def ended_at(self) -> str | None:
        """Time at which the study was ended for good before its last round, or None."""
        rows = self._rows("SELECT value FROM about WHERE name = 'ended_at'")
        return rows[0][0] if rows else None

    @property
    def is_over(self) -> bool:
        """Whether the study is finished or ended."""
        return self.rounds_done == self.study.training.planned_rounds or self.ended_at is not None

    def consensus(self, after: int = 0) -> Iterator[Floats]:
        """Yield the broadcast of every closed round after one: w^1, w^2, ..., or the public state of a method."""
        query = "SELECT consensus FROM rounds WHERE round > ? ORDER BY round"
        with _as_journal_errors(self._path):
            for (blob,) in self._database.execute(query, (after,)):
                yield self._numbers(blob)

    def last_uploads(self) -> dict[str, Received]:
        """Return the latest upload of each site."""
        query = "SELECT site, MAX(round), upload, n_rows, rows_per_person FROM uploads GROUP BY site"
        return {site: Received(site, k, self._numbers(blob, k), *sizes) for site, k, blob, *sizes in self._rows(query)}

    def uploads(self) -> Iterator[tuple[int, Received]]:
        """Yield all uploads, each with the first round whose mean includes it."""
        query = "SELECT entered, site, round, upload, n_rows, rows_per_person FROM uploads"
        with _as_journal_errors(self._path):
            for entered, site, k, blob, *sizes in self._database.execute(f"{query} ORDER BY entered, site"):
                yield entered, Received(site, k, self._numbers(blob, k), *sizes)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return rows and rows per person of every site that ever participated."""
        rows = self._rows("SELECT site, n_rows, rows_per_person FROM sites")
        return {site: (n_rows, k) for site, n_rows, k in rows}

    def add_site(self, site: str, n_rows: int, rows_per_person: int) -> None:
        """Record that a site participates. From now on it may spend budget."""
        self._rows("INSERT INTO sites VALUES (?, ?, ?)", (site, n_rows, rows_per_person))

    def answered(self) -> dict[str, list[int]]:
        """Return the rounds whose answers arrived and entered a sum, by site."""
        rounds: dict[str, list[int]] = {}
        table = "uploads" if self.study.terms.masking is None else "answers"
        for site, round in self._rows(f"SELECT site, round FROM {table} ORDER BY round"):
            rounds.setdefault(site, []).append(round)
        return rounds

    def events(self, last: int = 200) -> list[Event]:
        """Return the latest events, oldest first."""
        rows = self._rows("SELECT * FROM events ORDER BY seq DESC LIMIT ?", (last,))
        return [Event(*row) for row in reversed(rows)]

    def note(self, level: str, text: str) -> Event:
        row, query = (_now(), level, text), "INSERT INTO events (at, level, text) VALUES (?, ?, ?)"
        with _as_journal_errors(self._path):
            return Event(int(self._database.execute(query, row).lastrowid or 0), *row)

    def stalls(self) -> list[Stall]:
        """Return all stalls, oldest first."""
        return [Stall(*row) for row in self._rows("SELECT * FROM stalls ORDER BY id")]

    def begin_stall(self, site: str, round: int, reason: str) -> Stall:
        row, query = (site, round, reason, _now()), "INSERT INTO stalls VALUES (NULL, ?, ?, ?, ?, NULL)"
        with _as_journal_errors(self._path):
            return Stall(int(self._database.execute(query, row).lastrowid or 0), *row, None)

    def end_stall(self, stall: Stall) -> Stall:
        ended = stall._replace(end=_now())
        self._rows("UPDATE stalls SET ended = ? WHERE id = ?", (ended.end, stall.id))
        return ended

    def close_round(self, round: int, consensus: Floats, uploads: Sequence[Received], seconds: float) -> None:
        """Store w^k and its new uploads in one durable transaction."""
        with self._closing(round, consensus, seconds) as database:
            database.executemany(
                "INSERT INTO uploads VALUES (?, ?, ?, ?, ?, ?)",
                ((round, upload.site, upload.round, *upload[3:], _blob(upload.values)) for upload in uploads),
            )

    @contextmanager
    def _closing(self, round: int, consensus: Floats, seconds: float) -> Iterator[sqlite3.Connection]:
        with _as_journal_errors(self._path), self._database as database:  # commits, or rolls back
            database.execute("BEGIN IMMEDIATE")
            row = (round, _now(), seconds, _blob(consensus))
            database.execute("INSERT INTO rounds VALUES (?, ?, ?, ?)", row)
            yield database

    # Secure aggregation

    def open_round(self, opening: Opening) -> None:
        """Store the members of a round, before they are requested to mask."""
        values = (opening.round, _now(), opening.request, opening.members)
        self._rows("INSERT INTO openings VALUES (?, ?, ?, ?)", values)

    def openings(self) -> list[Opening]:
        return [Opening(*row) for row in self._rows("SELECT round, request, members FROM openings ORDER BY round")]

    def close_sum(
        self, round: int, consensus: Floats, total: Integers, answers: Mapping[str, str], seconds: float
    ) -> None:
        """Store a sum, the SHA-256 of every masked answer in it, and w^k."""
        with self._closing(round, consensus, seconds) as database:
            database.execute("INSERT INTO sums VALUES (?, ?)", (round, total.astype("<i8").tobytes()))
            rows = ((round, site, digest) for site, digest in answers.items())
            database.executemany("INSERT INTO answers VALUES (?, ?, ?)", rows)

    def sums(self) -> dict[int, Integers]:
        """Return the sum of every closed round, in steps of its grid."""
        sums = {}
        for round, blob in self._rows("SELECT round, sum FROM sums ORDER BY round"):
            shape = self.study.upload_shape(round)
            if len(blob) != 8 * prod(shape):
                raise JournalError(f"{self._path} is damaged: expected a sum of shape {shape}")
            sums[round] = np.frombuffer(blob, "<i8").astype(np.int64).reshape(shape)
        return sums

    def close_aborted(self, aborted: AbortedRound, consensus: Floats, seconds: float) -> None:
        """Store an aborted round, which is final, and the next broadcast."""
        with self._closing(aborted.round, consensus, seconds) as database:
            row = (aborted.round, aborted.reason, json.dumps(aborted.sites))
            database.execute("INSERT INTO aborted_rounds VALUES (?, ?, ?)", row)

    def aborted_rounds(self) -> list[AbortedRound]:
        rows = self._rows("SELECT round, reason, sites FROM aborted_rounds ORDER BY round")
        return [AbortedRound(round, reason, tuple(json.loads(sites))) for round, reason, sites in rows]

    def dates(self) -> tuple[str, str | None]:
        """Return the time at which the journal was created, and that of the last closed round."""
        begun = self._rows("SELECT value FROM about WHERE name = 'begun_at'")[0][0]
        return begun, self._rows("SELECT MAX(at) FROM rounds")[0][0]

    def seconds(self) -> list[float]:
        """Return the duration of each closed round."""
        return [seconds for (seconds,) in self._rows("SELECT seconds FROM rounds ORDER BY round")]

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with _as_journal_errors(self._path):
            return self._database.execute(query, values).fetchall()

    def _numbers(self, blob: bytes, round: int | None = None) -> Floats:
        """Decode a broadcast, or an upload of a round."""
        shape = self.study.broadcast_shape if round is None else self.study.upload_shape(round)
        if len(blob) != 8 * prod(shape):
            raise JournalError(f"{self._path} is damaged: expected numbers of shape {shape}")
        return np.frombuffer(blob, "<f8").astype(np.float64).reshape(shape)


def end_study(path: Path) -> None:
    """End a study for good. A running server detects it. A second call changes nothing."""
    with _as_journal_errors(path), closing(sqlite3.connect(path, isolation_level=None, timeout=30.0)) as database:
        at = _now()
        with database:
            database.execute("BEGIN IMMEDIATE")
            new = database.execute("INSERT OR IGNORE INTO about VALUES ('ended_at', ?)", (at,)).rowcount
            if new:
                event = (at, "warning", "ended for good; no more rounds")
                database.execute("INSERT INTO events (at, level, text) VALUES (?, ?, ?)", event)


def _version(path: Path, format: object) -> int:
    match = re.fullmatch(f"{FAMILY}([1-9][0-9]{{0,5}})", str(format))
    if match is None:
        raise DataError(f"{path}: not a dpadmm journal")
    return int(match[1])


def _migrate(database: sqlite3.Connection, path: Path) -> None:
    """Upgrade a journal of an older version, each step in one transaction."""
    format = database.execute("SELECT value FROM about WHERE name = 'format'").fetchone()
    version = _version(path, format and format[0])
    while version < VERSION_HERE:
        stamp = f"UPDATE about SET value = '{FAMILY}{version + 1}' WHERE name = 'format'"
        try:
            database.executescript(f"BEGIN IMMEDIATE; {MIGRATIONS[version]}; {stamp}; COMMIT;")
        except BaseException:
            if database.in_transaction:
                database.rollback()
            raise
        version += 1


def _blob(values: Floats) -> bytes:
    return values.astype("<f8").tobytes()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@contextmanager
def _as_journal_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        raise JournalError(f"{path} is in use by another server process") from None
    except (sqlite3.Error, OSError) as error:
        text = "closed rounds are stored: fix the cause, then resume"
        raise JournalError(f"cannot use the journal {path} ({error}); {text}") from error


@dataclass(frozen=True)
class FederatedResult:
    """The public result of a federated run; ``model_of`` builds a model from it."""

    study: Study
    weights: Floats
    privacy: PrivacyReport
    rounds_done: int

    method: DeployableMethod[Any]
    broadcast: Floats


def result_of(journal: Journal) -> FederatedResult:
    """Return the result of all closed rounds.

    Every site that ever participated is charged for all planned rounds, because a site may have sent an answer
    that did not arrive. ``released`` counts the answers that arrived. The site's own ledger has the exact cost.
    """
    study, sites, answered = journal.study, journal.sizes(), journal.answered()
    if not journal.rounds_done or (study.terms.masking is not None and not answered):
        raise StudyError("nothing to export: no round is complete yet")
    rounds = study.training.planned_rounds
    averages, done, method = Averages(), 0, journal.method(1)
    for done, sent in enumerate(journal.consensus(), 1):
        consensus = method.model(sent)
        averages(RoundView(done, rounds, consensus, consensus, 0.0))
    names = [name for name in journal.members if name in sites]
    plan = study.terms.plan
    agents = share_equal(
        [plan.tally()] * len(names),
        [plan.tally(answered.get(name, ())) for name in names],
        charge_planned=True,
        rows_per_person=[sites[name][1] for name in names],
    )
    privacy = PrivacyReport(
        agents,
        [sites[name][0] for name in names],
        float(study.training.delta),
        method.name,
        exact_noise=True,
        names=names,
        study=study.name,
        study_hash=study.hash,
        min_honest_sites=study.training.min_honest_sites,
    )
    return FederatedResult(
        study=study,
        weights=averages.model(study.training.average, consensus),
        privacy=privacy,
        rounds_done=done,
        method=method,
        broadcast=sent,
    )


def write_transcript(journal: Journal, path: Path) -> None:
    """Write the public transcript as NumPy arrays: consensus (t + 1, d, p), and every upload or sum."""
    study, method = journal.study, journal.method(1)
    sent = [method.start(study.shape), *journal.consensus()]
    arrays = {
        "study": np.array(study.hash),
        "consensus": np.array([method.model(broadcast) for broadcast in sent]),
        **(_uploads(journal) if study.terms.masking is None else _sums(journal)),
    }
    with atomic_file(path) as out:
        np.savez_compressed(out, allow_pickle=False, **arrays)


def _uploads(journal: Journal) -> dict[str, Any]:
    uploads = list(journal.uploads())
    received = [upload for _, upload in uploads]
    return {
        "upload": np.concatenate([upload.values.ravel() for upload in received]) if received else np.zeros(0),
        "upload_size": np.array([upload.values.size for upload in received], dtype=np.int64),
        "site": np.array([upload.site for upload in received]),
        "round": np.array([upload.round for upload in received], dtype=np.int64),
        "entered": np.array([entered for entered, _ in uploads], dtype=np.int64),
    }


def _sums(journal: Journal) -> dict[str, Any]:
    """Return the sums in steps of their grids, their rounds and members, and the aborted rounds."""
    sums, answered = journal.sums(), journal.answered()
    members = [[round in answered.get(name, ()) for name in journal.members] for round in sums]
    return {
        "sum": np.concatenate([np.zeros(0, np.int64), *(total.ravel() for total in sums.values())]),
        "sum_size": np.array([total.size for total in sums.values()], dtype=np.int64),
        "round": np.array(list(sums), dtype=np.int64),
        "site": np.array(journal.members),
        "members": np.array(members, dtype=bool).reshape(len(sums), len(journal.members)),
        "aborted": np.array([aborted.round for aborted in journal.aborted_rounds()], dtype=np.int64),
    }
