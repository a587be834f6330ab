"""All readers of files that others may have written, as ``reader(bytes, folder)``, and their requirements.

A reader returns a value, or raises an error of dpadmm's own with a message of one line. Nothing else may happen for any
bytes, within limits of time and memory. The files in ``corpus/KIND/READER/`` are inputs of the reader of that name.
"""

from __future__ import annotations

import io
import json
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from dpadmm.accounting.verification import read_privacy_report
from dpadmm.cli.simulate_options import from_toml
from dpadmm.data.archive import read_archive
from dpadmm.data.database import read_database_table
from dpadmm.errors import DPADMMError, StudyError
from dpadmm.federation.health import read_status
from dpadmm.federation.identity.approvals import all_approvals
from dpadmm.federation.identity.joining import read_invitation, read_request
from dpadmm.federation.identity.settings import read_settings
from dpadmm.federation.offers import read_offer
from dpadmm.federation.protocol import (
    packed,
    packed_claim,
    packed_grant,
    unpacked,
    unpacked_claim,
    unpacked_grant,
)
from dpadmm.federation.server.journal import Journal
from dpadmm.federation.site.decisions import decisions
from dpadmm.files.toml import read_toml
from dpadmm.models.description import load_description
from dpadmm.models.file import load_model
from dpadmm.sites.backup import staged
from dpadmm.sites.site import read_site
from dpadmm.studies.drafts.dictionary import draft_from_dictionary
from dpadmm.studies.drafts.text import study_text
from dpadmm.studies.reading import confirmations, read_study, study_from, study_problems
from dpadmm.studies.settings import settings_from
from reproduction.grid import read_grid

CORPUS = Path(__file__).with_name("corpus")
STUDY, SHAPE, ROSTER = "ab" * 32, (3, 2), 10
MOST_SECONDS = 10
"""For one input: many times what any takes, and short enough to tell a loop without an end."""

MOST_TEXT = 2000
"""Characters of an error's text: a sentence does not repeat a whole file."""

Reader = Callable[[bytes, Path], object]


class ReaderFailure(AssertionError):
    """A reader did something other than returning or refusing in a sentence."""


def _message(from_site: bool, n_sites: int = 0) -> Reader:
    def read(data: bytes, _: Path) -> object:
        message = unpacked(data, study=STUDY, shape=lambda _: SHAPE, from_site=from_site, n_sites=n_sites)
        if packed(message) != data:
            raise ReaderFailure("a message that was accepted is packed to other bytes")
        return message

    return read


def _file(name: str, read: Callable[[Path], object]) -> Reader:
    def reader(data: bytes, folder: Path) -> object:
        (folder / name).write_bytes(data)
        return read(folder / name)

    return reader


def _checked(path: Path) -> object:
    """Run ``dpadmm study check``: errors and warnings."""
    table = read_toml(path)
    found = study_problems(table)
    for item in (*found, *(f"{confirmation.name}: {confirmation.values}" for confirmation in confirmations(table))):
        _check_text(item)
    if found:
        raise StudyError(found[0])
    return study_from(table)


def _simulated(path: Path) -> object:
    given = from_toml(path)
    beside = ("data", "label", "classes", "by", "repeats", "output")
    return settings_from({name: value for name, value in given.items() if name not in beside}, str(path))


def _grid(path: Path) -> object:
    grid = read_grid(path)
    return grid.digest, len(grid.cells()), grid.data


def _drafted(path: Path) -> object:
    """Run ``dpadmm study new --from-dictionary`` and return the draft as a study file."""
    return study_text(draft_from_dictionary(path), "a draft")


def _decided(data: bytes, folder: Path) -> object:
    """Read a decision. Its file name is the hash of its study, if it has one."""
    try:
        name = study_from(json.loads(data)["study"]).hash
    except Exception:
        name = "0" * 64
    (folder / "studies").mkdir(mode=0o700, exist_ok=True)
    path = folder / "studies" / f"{name}.json"
    path.write_bytes(data)
    path.chmod(0o600)
    try:
        return decisions(folder)
    finally:
        path.unlink()


def _approved(data: bytes, folder: Path) -> object:
    (folder / "sites").mkdir(mode=0o700, exist_ok=True)
    (folder / "sites" / "north.json").write_bytes(data)
    return all_approvals(folder)


@cache
def _empty_journal(folder: Path) -> Path:
    path = folder / "journal.sqlite"
    Journal.begin(path, study_from({**SMALL_STUDY}), ["a", "b"])
    return path


SMALL_STUDY = {
    "format": "dpadmm-study/2",
    "name": "small",
    "features": ["age"],
    "classes": ["no", "yes"],
    "method": {"name": "dp_admm"},
    "privacy": {"epsilon": 1.0, "delta": 1e-6},
    "training": {"n_rounds": 5},
}


def _journal(data: bytes, folder: Path) -> object:
    """Read a journal with this study. The rest of the database is valid."""
    path = _empty_journal(folder)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE about SET value = ? WHERE name = 'study'", (data.decode("utf-8", "replace"),))
    with Journal.open(path, read_only=True) as journal:
        return journal.study, journal.members, list(journal.consensus())


def _model_about(data: bytes, folder: Path) -> object:
    """Read a model with this JSON. Its arrays are valid."""
    whole = io.BytesIO()
    text = data.decode("utf-8", "replace").rstrip("\0")  # NumPy strips trailing zeros of texts
    np.savez(whole, allow_pickle=False, about=np.array(text), weights=np.ones((3, 1)))
    (folder / "model.dpadmm").write_bytes(whole.getvalue())
    return load_model(folder / "model.dpadmm")


def _table(path: Path) -> object:
    return read_archive(path, None, None)


def _lease(read: Callable[[bytes], Any], write: Callable[[Any], bytes]) -> Reader:
    def reader(data: bytes, _: Path) -> object:
        if write(read(data)) != data:
            raise ReaderFailure("a message that was accepted is packed to other bytes")
        return data

    return reader


def _copy(path: Path) -> object:
    """Run ``dpadmm site restore`` up to the check of the copy."""
    return staged(path, path.with_name("staged")).seq


READERS: dict[str, Reader] = {
    "messages/claim": _lease(unpacked_claim, packed_claim),
    "messages/grant": _lease(unpacked_grant, packed_grant),
    "sqlite/ledger-copy": _file("copy", _copy),
    "messages/from-site": _message(True),
    "messages/to-site": _message(False),
    "messages/masked-from-site": _message(True, ROSTER),
    "messages/masked-to-site": _message(False, ROSTER),
    "toml/site": _file("site.toml", read_site),
    "toml/table": _file("visits.toml", read_database_table),
    "toml/study": _file("study.toml", read_study),
    "toml/study-check": _file("study.toml", _checked),
    "toml/grid": _file("grid.toml", _grid),
    "toml/simulate": _file("simulate.toml", _simulated),
    "toml/server": _file("server.toml", lambda path: read_settings(path.parent)),
    "csv/dictionary": _file("dictionary.csv", _drafted),
    "json/decision": _decided,
    "json/privacy-report": _file("model.privacy.json", read_privacy_report),
    "json/description": _file("description.json", lambda path: load_description(path).to_dict()),
    "json/request": _file("request.json", read_request),
    "json/invitation": _file("invitation.json", read_invitation),
    "json/offer": _file("offer.json", read_offer),
    "json/approvals": _approved,
    "json/status": _file("status.json", read_status),
    "json/journal": _journal,
    "json/model": _model_about,
    "zip/model": _file("model.dpadmm", load_model),
    "zip/table": _file("table.npz", _table),
}


def outcome(name: str, data: bytes, folder: Path) -> DPADMMError | None:
    """Return None if the input was accepted, or the refusal. Raise ReaderFailure for anything else."""
    with _limited(name):
        try:
            READERS[name](data, folder)
        except DPADMMError as refusal:
            _check_text(str(refusal).replace(str(folder), ""))
            return refusal
        except (ReaderFailure, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise ReaderFailure(f"{type(error).__name__}: {error}") from error
    return None


def _check_text(text: str) -> None:
    if not text.strip() or not text.isprintable() or len(text) > MOST_TEXT:
        raise ReaderFailure(f"not a sentence of one line: {text[:200]!r} ({len(text):,} characters)")


@contextmanager
def _limited(name: str) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise ReaderFailure(f"{name} took more than {MOST_SECONDS} seconds")

    before: Callable[[int, FrameType | None], Any] | int | None = signal.signal(signal.SIGALRM, stop)
    signal.alarm(MOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
