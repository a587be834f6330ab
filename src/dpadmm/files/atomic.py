"""Files that appear whole or not at all, and paths that begin with ``~``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeAlias

from dpadmm.errors import StudyError

StrPath: TypeAlias = str | os.PathLike[str]
"""A path argument of a public function."""


@contextmanager
def atomic_file(path: Path, *, mode: int = 0o666, replace: bool = True, durable: bool = True) -> Iterator[IO[bytes]]:
    """Open a temporary neighbour of ``path`` for writing and move it there at the end; folders are made.

    Whatever stops the writing, ``path`` is either what it was before or the whole new file. Without ``replace``
    a file that is there already is an error. What is not ``durable`` may be lost if the machine stops.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.unlink(missing_ok=True)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as out:
            yield out
            out.flush()
            if durable:
                os.fsync(out.fileno())
        (os.replace if replace else os.link)(part, path)
        if durable:
            sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names of new files durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def expanded(path: StrPath, where: str = "") -> Path:
    """A path that a user wrote, with ``~`` and ``~user`` as the home folder; ``where`` is where it stands."""
    written = Path(path)
    try:
        return written.expanduser()
    except (RuntimeError, ValueError):
        raise StudyError(
            f"{where}{': ' if where else ''}the path {str(written)!r} begins with {written.parts[0]!r}, "
            "which is no home folder on this machine; write the path in full, from /"
        ) from None
