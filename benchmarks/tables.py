"""Encoding a table / reading it with the same reader alone: ``python benchmarks/tables.py [MEGABYTES]``.

22 or 65 columns of mixed kinds, 5% of the cells missing; 600 MB of the latter are about a million rows. Best of several
in turns, in seconds of the clock and of all cores: a busy machine spoils the former more.
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

from dpadmm.data.reader import open_batches
from dpadmm.data.schema import Boolean, Category, Column, Label, Number, Ordinal, Schema
from dpadmm.data.table import encode_table

WORDS = tuple(f"value {k}" for k in range(6))
LABEL = Label("y", classes=("no", "yes"))


def mixed(numbers: int, categories: int, ordinals: int, booleans: int) -> tuple[Column, ...]:
    """So many columns of each kind, and two numbers more that are transformed or binned."""
    return (
        *(Number(f"n{j}", (-2.0, 2.0)) for j in range(numbers)),
        Number("income", (100.0, 100_000.0), transform="log", missing="indicator"),
        Number("age", (18.0, 90.0), bins=(30.0, 50.0, 70.0)),
        *(Category(f"c{j}", WORDS[:5]) for j in range(categories)),
        *(Ordinal(f"o{j}", WORDS) for j in range(ordinals)),
        *(Boolean(f"b{j}") for j in range(booleans)),
    )


NARROW, WIDE = mixed(8, 4, 3, 3), mixed(36, 14, 6, 5)


def block(columns: tuple[Column, ...], rng: np.random.Generator, n: int) -> pa.Table:
    cells: dict[str, Any] = {}
    for column in columns:
        if isinstance(column, Number):
            low, high = column.bounds
            values: Any = rng.normal((low + high) / 2.0, (high - low) / 4.0, n).round(5)
        else:
            values = rng.choice(["true", "false"] if isinstance(column, Boolean) else WORDS, n)
        cells[column.name] = pa.array(values, mask=rng.random(n) < 0.05)
    return pa.table(cells | {"y": rng.choice(["no", "yes"], n), "site": rng.choice(["a", "b", "c"], n)})


def write(columns: tuple[Column, ...], folder: Path, megabytes: float) -> list[Path]:
    """A CSV of so many megabytes, and the same rows as Parquet."""
    part = block(columns, np.random.default_rng(0), 50_000)
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


def plain_parquet(path: Path, names: list[str]) -> None:
    with pa.parquet.ParquetFile(path) as file:
        drain(file.iter_batches(columns=names))


def ratios(columns: tuple[Column, ...], megabytes: float, repeats: int = 9) -> list[tuple[str, float, float]]:
    """What was compared, and the ratios of encoding to reading: by the clock, and in work of all cores."""
    found = []
    schema, names = Schema(columns), [*(column.name for column in columns), "y", "site"]
    numbers = frozenset(column.name for column in columns if isinstance(column, Number))
    with tempfile.TemporaryDirectory() as name:
        for path in write(columns, Path(name), megabytes):
            readers: dict[str, Callable[[], object]] = {
                "the same reader": lambda path=path: drain(open_batches(path, names, numbers=numbers))
            }
            if path.suffix == ".parquet":
                readers["pyarrow's plain one"] = lambda path=path: plain_parquet(path, names)
            encode, *reads = least(
                lambda path=path: encode_table(path, schema, LABEL, by="site", intercept=True),
                *readers.values(),
                repeats=repeats,
            )
            for reader, read in zip(readers, reads, strict=True):
                what = f"encoding {path.suffix[1:]}, {len(names)} columns / {reader} alone"
                found.append((what, *(encode / read).tolist()))
    return found


if __name__ == "__main__":
    for columns in (NARROW, WIDE):
        for what, clock, cores in ratios(columns, float(sys.argv[1]) if len(sys.argv) > 1 else 200.0):
            print(f"{what:<60} {clock:6.2f} by the clock {cores:6.2f} in work of all cores", flush=True)
