"""The file of a model: a NumPy archive of arrays and one JSON text, without pickle, whole or not at all.

A file may come from anywhere: nothing in it is run, and what it claims about its own size is checked before
it is believed.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import numpy as np

from dpadmm.archives import BROKEN_ARCHIVE, check_claim
from dpadmm.arrays import Floats
from dpadmm.errors import DataError
from dpadmm.files import atomic_file

FORMAT = "dpadmm-model/2"
FORMATS = ("dpadmm-model/1", FORMAT)
"""What can be read; the first has no columns, study, statement and history."""

MOST_BYTES = 2**30

BROKEN = (*BROKEN_ARCHIVE, KeyError, AttributeError)
"""What NumPy, zipfile and JSON raise for files that are none of ours."""


def write_model(path: str | os.PathLike[str], about: Mapping[str, Any], arrays: Mapping[str, Floats]) -> Path:
    """Write one file; it appears whole or not at all."""
    target = Path(path)
    text = json.dumps({"format": FORMAT, **about}, default=_plain)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, about=np.array(text), **arrays)
    with atomic_file(target) as out:
        out.write(buffer.getvalue())
    return target


def read_model(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Floats]]:
    """The JSON and the arrays of a file of any known format; one sentence for any other."""
    try:
        raw = _bytes(Path(path))
        with catch_warnings(action="ignore"), np.load(io.BytesIO(raw), allow_pickle=False) as archive:
            if sum(each.file_size for each in archive.zip.infolist()) > MOST_BYTES:
                raise ValueError("too large")
            for member in archive.zip.namelist():
                check_claim(archive.zip, member)
            about = json.loads(str(archive["about"]))
            found = about["format"]
            if found not in FORMATS:
                raise DataError(
                    f"{path}: model format {found!r:.60} is not {FORMAT!r}; use the version that wrote it"
                )
            names = ("weights",) if found == FORMATS[0] else ("weights", "history")
            arrays = {name: archive[name] for name in names}
        if any(each.dtype.kind not in "fiu" for each in arrays.values()):
            raise ValueError("not numbers")
        arrays = {name: np.asarray(each, dtype=float) for name, each in arrays.items()}
        return about, arrays
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except BROKEN:
        raise damaged(path) from None


def damaged(path: str | os.PathLike[str]) -> DataError:
    """The sentence for a file that makes no model."""
    return DataError(f"{path}: not a model file of dpadmm, or damaged; train again or restore a copy")


def _bytes(path: Path) -> bytes:
    if path.exists() and (not path.is_file() or path.stat().st_size > MOST_BYTES):
        raise ValueError("no plain file of a fair size")
    return path.read_bytes()


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"cannot store {type(value).__name__} in a model file")
