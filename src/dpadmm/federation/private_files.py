"""Files that nobody but their owner reads: written whole or not at all, and checked before they are used."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpadmm.errors import StudyError

LONGEST = 2**16
"""No file of keys, certificates or approvals is longer than this many bytes."""


def make_private_folder(folder: Path) -> None:
    """Make a folder of mode 0700; one that is there stays as it is."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StudyError(f"{folder}: the folder cannot be made ({error.strerror})") from None


def write_private(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Write a file of mode 0600, on the disk when this returns; without ``replace`` never over another."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.unlink(missing_ok=True)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        if replace:
            os.replace(part, path)
        else:
            os.link(part, path)
        _sync(path.parent)
    except FileExistsError:
        raise StudyError(f"{path}: there is such a file, and it is never overwritten") from None
    except OSError as error:
        raise StudyError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        part.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_private(path: Path) -> None:
    """Refuse a secret that others could read or change, or that is another user's."""
    found = _status(path)
    if found.st_uid != os.geteuid():
        raise StudyError(
            f"{path}: it belongs to user {found.st_uid}, and this is user {os.geteuid()}: "
            "run the command as the user whose file it is"
        )
    if found.st_mode & 0o077:
        raise StudyError(f"{path}: others may read or change this secret: chmod 600 {path}")


def check_unchanged_by_others(path: Path) -> None:
    """Refuse a file or folder that decides whom to trust, and that others made or could change."""
    found = _status(path, folder=path.is_dir())
    if found.st_uid not in (os.geteuid(), 0):
        raise StudyError(f"{path}: is another user's, and decides whom this machine trusts: make it your own")
    if found.st_mode & 0o022:
        raise StudyError(f"{path}: others may change it, and so whom this machine trusts: chmod go-w {path}")


def _status(path: Path, *, folder: bool = False) -> os.stat_result:
    try:
        found = path.stat()
    except FileNotFoundError:
        raise StudyError(f"{path}: there is no such file") from None
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror})") from None
    if not folder and not stat.S_ISREG(found.st_mode):
        raise StudyError(f"{path}: is not a file")
    return found


def read_short(path: Path) -> bytes:
    """The bytes of a file that others may have sent: a plain file of at most 64 kB."""
    _status(path)
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST + 1)
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror})") from None
    if len(data) > LONGEST:
        raise StudyError(f"{path}: is longer than {LONGEST:,} bytes, which none of these files is")
    return data


def read_fields(path: Path, *, format: str, what: str, fields: tuple[str, ...]) -> dict[str, object]:
    """A JSON object with just these fields beside its ``format``, or a sentence why it is not ``what``."""
    data = read_short(path)
    try:
        table = json.loads(data.decode("utf-8"), object_pairs_hook=_no_twins)
    except (ValueError, RecursionError):
        raise StudyError(f"{path}: is not {what}: it is not readable as JSON") from None
    if not isinstance(table, dict) or "format" not in table:
        raise StudyError(f'{path}: is not {what}: it has no "format"')
    if table["format"] != format:
        raise StudyError(
            f"{path}: is not {what} of this version of dpadmm: its format should be {format}, "
            f"and is {str(table['format'])[:60]!r}"
        )
    if table.keys() != {"format", *fields}:
        raise StudyError(
            f"{path}: is not {what}: it should have the fields {', '.join(fields)}, and no others"
        )
    return table


def _no_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name stands there twice")
    return dict(pairs)


@contextmanager
def one_at_a_time(lock: Path) -> Iterator[None]:
    """Let one process after the other do what is inside; the system lets go when a process ends."""
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StudyError(f"{lock}: cannot be written ({error.strerror})") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
