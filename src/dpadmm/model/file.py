"""The file of a model: a NumPy archive of arrays and one JSON text, without pickle, whole or not at all.

A file may come from anywhere: nothing in it is run, and what it claims about its own size is checked before
it is believed.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from warnings import catch_warnings
from zipfile import ZipInfo

import numpy as np

from dpadmm._base.archives import BROKEN_ARCHIVE, check_claim
from dpadmm._base.arrays import Floats
from dpadmm._base.errors import DataError
from dpadmm._base.files import atomic_file

FORMAT = "dpadmm-model/2"
FORMATS = ("dpadmm-model/1", FORMAT)
"""What can be read; the first has no columns, study, statement and history."""

MOST_BYTES = 2**30

BROKEN = (*BROKEN_ARCHIVE, KeyError, AttributeError)
"""What NumPy, zipfile and JSON raise for files that are none of ours."""


_INSTEAD = "; train again or restore a copy"


def write_model(path: str | os.PathLike[str], about: Mapping[str, Any], arrays: Mapping[str, Floats]) -> Path:
    """Write one file; it appears whole or not at all, and never with numbers that are not finite."""
    target = Path(path)
    require_finite(arrays, f"{target} was not written")
    text = json.dumps({"format": FORMAT, **about}, default=_plain)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, about=np.array(text), **arrays)
    with atomic_file(target) as out:
        out.write(buffer.getvalue())
    return target


def require_finite(arrays: Mapping[str, Floats], what: str) -> None:
    """Refuse a model that training did not keep in bounds: it would answer any row with nonsense."""
    for name, values in arrays.items():
        if not np.isfinite(values).all():
            raise DataError(
                f"{what}: not all numbers of the model's {name} are finite; train again with smaller steps"
            )


def read_model(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Floats]]:
    """The JSON and the arrays of a file of any known format; one sentence for any other."""
    try:
        raw = _bytes(Path(path))
        with catch_warnings(action="ignore"), np.load(io.BytesIO(raw), allow_pickle=False) as archive:
            members = archive.zip.infolist()
            if sum(each.file_size for each in members) > MOST_BYTES:
                raise ValueError("too large")
            _check_once(path, members)
            check_claim(archive.zip, "about.npy")
            about = json.loads(str(archive["about"]))
            found = about["format"]
            if found not in FORMATS:
                raise DataError(
                    f"{path}: model format {found!r:.60} is not {FORMAT!r}; use the version that wrote it"
                )
            names = ("weights",) if found == FORMATS[0] else ("weights", "history")
            _check_known(path, members, ("about", *names))
            for name in names:
                check_claim(archive.zip, f"{name}.npy")
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
    return DataError(f"{path}: not a model file of dpadmm, or damaged{_INSTEAD}")


def _check_once(path: str | os.PathLike[str], members: Sequence[ZipInfo]) -> None:
    """No part twice, of which readers may take the first or the last; nothing under a password."""
    seen: set[str] = set()
    for each in members:
        if each.flag_bits & 1:
            raise DataError(f"{path}: {each.filename!r:.60} is encrypted, as no model file is{_INSTEAD}")
        if each.filename in seen:
            raise DataError(f"{path}: {each.filename!r:.60} is in the file more than once{_INSTEAD}")
        seen.add(each.filename)


def _check_known(path: str | os.PathLike[str], members: Sequence[ZipInfo], names: Sequence[str]) -> None:
    """Nothing rides along that no reader looks at."""
    known = {f"{name}.npy" for name in names}
    for each in members:
        if each.filename not in known:
            raise DataError(
                f"{path}: {each.filename!r:.60} is in the file, which is no part of a model{_INSTEAD}"
            )


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
