"""Where downloaded data is kept, and how files are written there so that no reader sees half of one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def cache_directory() -> Path:
    """The cache directory: DPADMM_CACHE, else ``dpadmm`` in the user's cache directory of this system.

    It need not exist yet.
    """
    chosen = os.environ.get("DPADMM_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return (Path(base) if base else Path.home() / ".cache") / "dpadmm"


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of ``path`` when the block ends without an error.

    Directories are made as needed. After an error, or if the process dies, ``path`` is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
