"""The results file: one Parquet file with one line per cell of a grid and measured round.

Experiments write it and reports read it. No other data passes between the two. The file describes itself: format,
versions, the data, and the whole grid.
"""

from __future__ import annotations

import io
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import dpadmm
from dpadmm.data import Dataset
from dpadmm.errors import DataError
from dpadmm.files.atomic import atomic_file
from dpadmm.matrices.features import layout
from dpadmm.parameters.fields import parameters
from dpadmm.studies.settings import CHOICES, Settings, nested_parameters
from dpadmm.training.compare import DONE as DONE
from dpadmm.training.compare import MEASURES as MEASURES
from dpadmm.training.compare import REFUSED as REFUSED

FORMAT = 1
TIMING = ("seconds", "wall_seconds")
"""The only columns that differ between two runs of the same grid."""
PRIVACY = ("total_epsilon", "total_paper_epsilon", "spent_epsilon", "spent_paper_epsilon")

_HEADER = b"dpadmm"
_ARROW_TYPES = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
_PREFIXES = {"method": "", "loss": "loss_", "regularizer": "regularizer_"}


def _column_of(name: str) -> str:
    """Return the column of a setting: ``rho`` for ``method.rho``, ``loss_delta`` for ``loss.delta``."""
    what, _, parameter = name.rpartition(".")
    return f"{_PREFIXES[what]}{parameter}" if what else name


SETTINGS = {
    _column_of(name): pa.string() if name in CHOICES else _ARROW_TYPES[parameter.base]
    for name, parameter in nested_parameters(Settings).items()
}
"""Columns of the settings, with their types."""
SCHEMA = pa.schema(
    {
        "cell": pa.string(),
        "data": pa.string(),
        "timed": pa.bool_(),
        "status": pa.string(),
        "reason": pa.string(),
        **SETTINGS,
        "round": pa.int64(),
        **dict.fromkeys(MEASURES, pa.float64()),
        "bound": pa.float64(),
        **dict.fromkeys(PRIVACY, pa.float64()),
        "accountant": pa.string(),
        "z": pa.float64(),
        "iterations": pa.float64(),
        **dict.fromkeys(TIMING, pa.float64()),
    }
)


@dataclass(frozen=True)
class Results:
    """The rows of a results file as a data frame, with the file's metadata."""

    frame: pd.DataFrame
    """The columns of ``SCHEMA``; cells in the order of the grid, rounds ascending; missing values are NaN."""
    grid: dict[str, Any]
    """The grid as written, with the title and the cell keys of every experiment."""
    meta: dict[str, Any]
    """See ``write_results``."""

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def experiments(self) -> list[str]:
        """Experiments with at least one cell in these rows."""
        present = set(self.cells)
        return [name for name, about in self.grid["experiments"].items() if not present.isdisjoint(about["cells"])]

    @property
    def cells(self) -> list[str]:
        """Keys of the cells in these rows, in order."""
        return list(self.frame["cell"].unique())

    def select(self, experiment: str | None = None, /, **equals: Any) -> Results:
        """Select the rows of an experiment in which columns have a given value, or one of a list; None is missing.

        ``results.select("fig1", method="dp_admm", round_epsilon=[0.05, 0.1], learning_rate=None)``
        """
        if experiment is not None:
            if experiment not in self.grid["experiments"]:
                raise DataError(f"the grid of these results has no experiment {experiment!r}")
            equals = {"cell": self.grid["experiments"][experiment]["cells"], **equals}
        frame = self.frame
        for name, wanted in equals.items():
            if name not in frame:
                raise DataError(f"results have no column {name!r}")
            values = wanted if isinstance(wanted, list) else [wanted]
            matches = frame[name].isin([value for value in values if value is not None])
            frame = frame[matches | frame[name].isna() if None in values else matches]
        return replace(self, frame=frame)

    def keep(self, mask: Any) -> Results:
        """Select the rows where ``mask`` is true."""
        return replace(self, frame=self.frame[mask])

    def last(self) -> Results:
        """Select the last round of every cell, and the one row of a refused cell."""
        return replace(self, frame=self.frame.groupby("cell", sort=False).tail(1))

    def to_table(self) -> pa.Table:
        """Convert the rows to the types of ``SCHEMA``."""
        return pa.Table.from_pandas(self.frame, schema=SCHEMA, preserve_index=False).replace_schema_metadata(None)


def settings_columns(settings: Settings) -> dict[str, Any]:
    """Settings as the values of their columns; None for a parameter of what was not chosen."""
    values: dict[str, Any] = dict.fromkeys(SETTINGS)
    for name, value in settings.to_dict().items():
        if name in CHOICES:
            values |= {_column_of(f"{name}.{key}"): item for key, item in value.items() if key != "name"}
            value = value["name"]
        values[name] = value
    return values


def settings_from_columns(given: Mapping[str, Any]) -> Settings:
    """Return the settings in these columns, without parameters of a method, loss or regularizer that is not chosen."""
    nested = dict(given)
    defaults = {parameter.name: parameter.default for parameter in parameters(Settings)}
    for what, classes in CHOICES.items():
        name = given.get(what, defaults[what].name)
        declared = parameters(classes[name]) if name in classes else ()
        own = {item.name: given[column] for item in declared if (column := _column_of(f"{what}.{item.name}")) in given}
        nested[what] = {"name": name, **own}
    others = {_column_of(name) for name in nested_parameters(Settings) if "." in name}
    return Settings(**{name: value for name, value in nested.items() if name not in others})


def data_stamp(dataset: Dataset) -> dict[str, Any]:
    """Identify a data set: name, digest of all values, rows and features."""
    digest = sha256(repr((dataset.classes, dataset.features.shape)).encode())
    weights = () if dataset.row_weights is None else (dataset.row_weights,)
    for part in (*layout(dataset.features)[1], dataset.labels, *weights):
        digest.update(str(part.dtype).encode())
        digest.update(np.ascontiguousarray(part).data)
    if dataset.groups is not None:
        digest.update(json.dumps(dataset.groups.tolist(), default=str).encode())
    return {
        "name": dataset.name,
        "digest": digest.hexdigest()[:16],
        "rows": dataset.n_rows,
        "features": dataset.n_features,
    }


def grid_digest(grid: Mapping[str, Any]) -> str:
    return sha256(json.dumps(grid, sort_keys=True).encode()).hexdigest()[:16]


def write_results(
    path: Path, table: pa.Table, *, grid: Mapping[str, Any], data: Mapping[str, Any], command: str
) -> None:
    """Write the file atomically. After a failure, ``path`` is unchanged."""
    meta = {
        "format": FORMAT,
        "version": dpadmm.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "data": dict(data),
        "grid": dict(grid),
        "grid_digest": grid_digest(grid),
        "command": command,
    }
    whole = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({_HEADER: json.dumps(meta).encode()}), whole, compression="zstd")
    try:
        with atomic_file(path) as out:
            out.write(whole.getbuffer())
    except OSError as error:
        raise DataError(
            f"{path} cannot be written ({error.strerror or error}); make room or choose another folder, "
            "then run again: what was written before is still there"
        ) from None


def remove_unfinished(path: Path) -> None:
    """Remove the partial files of writers that were killed."""
    for part in path.parent.glob(f".{path.name}.*.part"):
        part.unlink(missing_ok=True)


def read_results(path: Path | str) -> Results:
    """Read a results file or its folder; raise a DataError with the reason if it is not one."""
    table, grid, meta = read_table(Path(path))
    return Results(to_frame(table), grid, meta)


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Convert rows of ``SCHEMA`` to a data frame; integers stay integers where some are missing."""
    return table.to_pandas(integer_object_nulls=True)


def read_table(path: Path) -> tuple[pa.Table, dict[str, Any], dict[str, Any]]:
    """Read the rows, grid and metadata of a results file or its folder."""
    if path.is_dir():
        path = path / "results.parquet"
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise DataError(f"there is no results file {path}; python -m reproduction run writes one") from None
    except (pa.ArrowException, OSError, ValueError):
        raise DataError(f"{path} is damaged or not a results file; make it again") from None
    meta = _meta(table, path)
    missing = [name for name in SCHEMA.names if name not in table.column_names]
    if missing:
        raise DataError(
            f"{path} has no column {missing[0]!r}: it was written by another dpadmm ({meta.get('version')}); "
            "make it again"
        )
    grid = meta.pop("grid")
    return table.select(SCHEMA.names).replace_schema_metadata(None), grid, meta


def _meta(table: pa.Table, path: Path) -> dict[str, Any]:
    header = (table.schema.metadata or {}).get(_HEADER)
    try:
        meta = json.loads(header) if header else None
    except (ValueError, RecursionError):
        meta = None
    if not isinstance(meta, dict):
        raise DataError(f"{path} is not a results file of dpadmm; give the file that python -m reproduction run wrote")
    if meta.get("format") != FORMAT:
        raise DataError(
            f"{path} has format {meta.get('format')} of dpadmm {meta.get('version')}, but this is dpadmm "
            f"{dpadmm.__version__}, which reads format {FORMAT}; use that version or make the file again"
        )
    if not isinstance(meta.get("grid"), dict):
        raise DataError(f"{path} is damaged or not a results file; make it again")
    return meta
