"""Private files: written atomically with mode 0600, and checked before they are used."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpadmm.errors import StudyError
from dpadmm.files.atomic import atomic_file

MAX_BYTES = 2**16
"""The maximum size of files of keys, certificates and approvals."""


def make_private_folder(folder: Path) -> None:
    """Create a folder of mode 0700 unless it exists."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StudyError(f"{folder}: the folder cannot be created ({error.strerror})") from None


def write_private(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Write a file of mode 0600 durably; without ``replace``, never over an existing one."""
    try:
        with atomic_file(path, mode=0o600, replace=replace) as out:
            out.write(data)
    except FileExistsError:
        raise StudyError(f"{path}: exists and is never overwritten") from None
    except OSError as error:
        raise StudyError(f"{path}: cannot be written ({error.strerror})") from None


def check_private(path: Path) -> None:
    """Refuse a secret that others can read or change, or that belongs to another user."""
    status = _status(path)
    if status.st_uid != os.geteuid():
        raise StudyError(
            f"{path}: belongs to user {status.st_uid}, but this is user {os.geteuid()}: "
            "run the command as the owner of the file"
        )
    if status.st_mode & 0o077:
        raise StudyError(f"{path}: others can read or change this secret: run chmod 600 {path}")


def check_unchanged_by_others(path: Path) -> None:
    """Refuse a file or folder that decides whom to trust if others own it or can change it."""
    status = _status(path, folder=path.is_dir())
    if status.st_uid not in (os.geteuid(), 0):
        raise StudyError(f"{path}: belongs to another user, but decides whom this machine trusts: change its owner")
    if status.st_mode & 0o022:
        raise StudyError(f"{path}: others can change it, and thus whom this machine trusts: run chmod go-w {path}")


def _status(path: Path, *, folder: bool = False) -> os.stat_result:
    try:
        status = path.stat()
    except FileNotFoundError:
        raise StudyError(f"{path}: there is no such file") from None
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror})") from None
    if not folder and not stat.S_ISREG(status.st_mode):
        raise StudyError(f"{path}: not a regular file")
    return status


def read_short(path: Path) -> bytes:
    """Read a regular file of at most 64 kB, which others may have sent."""
    _status(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror})") from None
    if len(data) > MAX_BYTES:
        raise StudyError(f"{path}: larger than {MAX_BYTES:,} bytes")
    return data


def read_fields(path: Path, *, format: str, what: str, fields: tuple[str, ...]) -> dict[str, object]:
    """Read a JSON object with exactly these fields and its ``format``; errors name ``what`` it should be."""
    return fields_of(read_short(path), str(path), format=format, what=what, fields=fields)


def fields_of(data: bytes | str, where: str, *, format: str, what: str, fields: tuple[str, ...]) -> dict[str, object]:
    """Return a JSON object with exactly these fields and its ``format``."""
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        table = json.loads(text, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError):
        raise StudyError(f"{where}: not {what}: it is not valid JSON") from None
    if not isinstance(table, dict) or "format" not in table:
        raise StudyError(f'{where}: not {what}: it has no "format"')
    if table["format"] != format:
        raise StudyError(
            f"{where}: not {what} of this version of dpadmm: its format must be {format!r}, "
            f"not {str(table['format'])[:60]!r}"
        )
    if table.keys() != {"format", *fields}:
        raise StudyError(f"{where}: not {what}: it must have the fields {', '.join(fields)}, and no others")
    return table


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("duplicate key")
    return dict(pairs)


@contextmanager
def exclusive_lock(lock: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes; the system releases it when a process ends."""
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StudyError(f"{lock}: cannot be written ({error.strerror})") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
