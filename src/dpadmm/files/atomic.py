"""Write files atomically, and expand paths that begin with ``~``."""

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
    """Open a temporary file next to ``path`` for writing, and move it to ``path`` at the end. Creates folders.

    After an interruption, ``path`` is either unchanged or the complete new file.

    Parameters
    ----------
    replace : bool
        Whether an existing file is replaced. Otherwise it is an error.
    durable : bool
        Whether the file survives a crash of the machine.
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
    """Make new names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def expanded(path: StrPath, where: str = "") -> Path:
    """Return a path with ``~`` and ``~user`` expanded. Errors start with ``where``, the location of the path."""
    given = Path(path)
    try:
        return given.expanduser()
    except (RuntimeError, ValueError):
        raise StudyError(
            f"{where}{': ' if where else ''}the path {str(given)!r} begins with {given.parts[0]!r}, "
            "which is no home folder on this machine; write the path in full, from /"
        ) from None
