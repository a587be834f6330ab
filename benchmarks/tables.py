"""Encoding a table / reading it with the same reader alone: ``python benchmarks/tables.py [MEGABYTES]``.

20 columns of mixed kinds, 5% of the cells missing. Best of several in turns, in seconds of the clock and of
all cores: a busy machine spoils the former more.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from dpadmm.data.encoded import encode_table
from dpadmm.data.reader import open_batches
from dpadmm.data.schema import Boolean, Category, Column, Label, Number, Ordinal, Schema

WORDS = tuple(f"value {k}" for k in range(6))
COLUMNS: tuple[Column, ...] = (
    *(Number(f"n{j}", (-2.0, 2.0)) for j in range(8)),
    Number("income", (100.0, 100_000.0), transform="log", missing="indicator"),
    Number("age", (18.0, 90.0), bins=(30.0, 50.0, 70.0)),
    *(Category(f"c{j}", WORDS[:5]) for j in range(4)),
    *(Ordinal(f"o{j}", WORDS) for j in range(3)),
    *(Boolean(f"b{j}") for j in range(3)),
)
SCHEMA, LABEL = Schema(COLUMNS), Label("y", classes=("no", "yes"))
NAMES = [*(column.name for column in COLUMNS), "y", "site"]
NUMBERS = frozenset(column.name for column in COLUMNS if isinstance(column, Number))


def block(rng: np.random.Generator, n: int) -> pa.Table:
    cells: dict[str, Any] = {}
    for column in COLUMNS:
        if isinstance(column, Number):
            low, high = column.bounds
            values: Any = rng.normal((low + high) / 2.0, (high - low) / 4.0, n).round(5)
        else:
            values = rng.choice(["true", "false"] if isinstance(column, Boolean) else WORDS, n)
        cells[column.name] = pa.array(values, mask=rng.random(n) < 0.05)
    return pa.table(cells | {"y": rng.choice(["no", "yes"], n), "site": rng.choice(["a", "b", "c"], n)})


def write(folder: Path, megabytes: float) -> list[Path]:
    """A CSV of so many megabytes, and the same rows as Parquet."""
    part = block(np.random.default_rng(0), 50_000)
    paths = [folder / "table.csv", folder / "table.parquet"]
    with (
        pa.csv.CSVWriter(paths[0], part.schema) as as_csv,
        pa.parquet.ParquetWriter(paths[1], part.schema) as as_parquet,
    ):
        while not paths[0].exists() or paths[0].stat().st_size < megabytes * 1e6:
            as_csv.write(part)
            as_parquet.write(part)
    return paths


def least(*tasks: Callable[[], object], repeats: int) -> np.ndarray:
    """Least seconds of the clock, and of all cores, of every task: (tasks, 2)."""
    times = np.empty((repeats, len(tasks), 2))
    for k in range(repeats):
        for i, task in enumerate(tasks):
            started, before = time.perf_counter(), os.times()
            task()
            after = os.times()
            cores = after.user - before.user + after.system - before.system
            times[k, i] = time.perf_counter() - started, cores
    return times.min(axis=0)


def drain(batches: Any) -> None:
    for _ in batches:
        pass


def plain_parquet(path: Path) -> None:
    with pa.parquet.ParquetFile(path) as file:
        drain(file.iter_batches(columns=NAMES))


def ratios(megabytes: float, repeats: int = 5) -> list[tuple[str, float, float]]:
    """What was compared, and the ratios of encoding to reading: by the clock, and in work of all cores."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        for path in write(Path(name), megabytes):
            readers: dict[str, Callable[[], object]] = {
                "the same reader": lambda path=path: drain(open_batches(path, NAMES, numbers=NUMBERS))
            }
            if path.suffix == ".parquet":
                readers["pyarrow's plain one"] = lambda path=path: plain_parquet(path)
            encode, *reads = least(
                lambda path=path: encode_table(path, SCHEMA, LABEL, by="site", intercept=True),
                *readers.values(),
                repeats=repeats,
            )
            for reader, read in zip(readers, reads, strict=True):
                found.append((f"encoding {path.suffix[1:]} / {reader} alone", *(encode / read).tolist()))
    return found


if __name__ == "__main__":
    for what, clock, cores in ratios(float(sys.argv[1]) if len(sys.argv) > 1 else 200.0):
        print(f"{what:<52} {clock:6.2f} by the clock {cores:6.2f} in work of all cores", flush=True)
