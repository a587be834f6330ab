"""Run the missing cells of a grid on all cores and keep every finished cell in one results file.

Timed cells run first, alone, with all cores to themselves; then one worker per core, one thread each. Every
cell is a pure function of its settings, and lines are in the order of the grid. So the file does not depend
on interruptions or on the number of workers, except in the timing columns.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa

import dpadmm
from dpadmm._base.errors import DataError
from dpadmm.data import Dataset
from dpadmm.experiments.cell import cell_runner
from dpadmm.experiments.grid import Cell, Grid
from dpadmm.experiments.results import SCHEMA, Results, data_stamp, read_results, remove_unfinished, write_results
from dpadmm.experiments.workers import in_processes, n_cores

WRITE_EVERY = 2.0
"""Seconds between two writes; a kill loses at most what was finished in between."""


@dataclass(frozen=True)
class Progress:
    done: int
    total: int


def run_grid(
    grid: Grid,
    dataset: Dataset,
    path: Path,
    *,
    names: Sequence[str] | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    command: str = "",
    watch: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Results:
    """Run the missing cells of a grid (or of its experiments ``names``) and return everything in the file.

    When ``stop`` becomes true, the cells in progress are abandoned and are missing from the result.
    """
    wanted = grid.cells(names)
    with Store(grid, dataset, path, overwrite=overwrite, command=command) as store:

        def look() -> None:
            watch(Progress(sum(cell.key in store for cell in wanted), len(wanted)))

        look()
        missing = [cell for cell in wanted if cell.key not in store]
        timed = [cell for cell in missing if cell.timed]
        # cells on the same rows follow each other, so that a worker partitions them once
        others = sorted(
            (cell for cell in missing if not cell.timed),
            key=lambda cell: (cell.settings.seed or 0, cell.settings.n_agents),
        )
        for cells, alone in ((timed, True), (others, False)):
            make = partial(cell_runner, dataset, timed=alone)
            size = 1 if alone else workers or n_cores()
            with closing(in_processes(make, cells, workers=size, stop=stop, all_cores=alone)) as finished:
                for cell, lines in finished:
                    store.add(cell, lines)
                    look()
        return store.results()


class Store:
    """The finished cells of a grid, in memory and in the results file; written on exit at the latest.

    Only one process can hold the store of a folder. A file of another grid, other data or another version is
    refused unless it may be overwritten. A file of the same grid with fewer repeats is extended.
    """

    def __init__(self, grid: Grid, dataset: Dataset, path: Path, *, overwrite: bool = False, command: str = "") -> None:
        self._grid, self._path = grid, path
        self._commands = [command]
        self._order = [cell.key for cell in grid.cells()]
        self._data = data_stamp(dataset)
        self._overwrite = overwrite
        self._cells: dict[str, pa.Table] = {}
        self._written = monotonic()
        self._unwritten = self._extended = False

    def __enter__(self) -> Store:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _hold(self._path.parent)
        try:
            remove_unfinished(self._path)
            if self._path.exists() and not self._overwrite:
                self._cells = self._finished()
        except BaseException:
            os.close(self._lock)
            raise
        self._unwritten = not self._cells or self._extended
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._write()
        finally:
            os.close(self._lock)

    def __contains__(self, key: str) -> bool:
        return key in self._cells

    def add(self, cell: Cell, lines: pa.Table) -> None:
        """Keep a finished cell; it is in the file within a few seconds."""
        self._cells[cell.key] = lines
        self._unwritten = True
        if monotonic() - self._written > WRITE_EVERY:
            self._write()

    def results(self) -> Results:
        """Everything that is finished, as the file has it."""
        self._write()
        return read_results(self._path)

    def _write(self) -> None:
        if self._unwritten:
            self._unwritten = False  # a full disk is reported once
            tables = [self._cells[key] for key in self._order if key in self._cells]
            table = pa.concat_tables([SCHEMA.empty_table(), *tables]).combine_chunks()
            command = "\n".join(dict.fromkeys(self._commands))
            write_results(self._path, table, grid=self._grid.as_json, data=self._data, command=command)
            self._written = monotonic()

    def _finished(self) -> dict[str, pa.Table]:
        what_to_do = "choose another output folder, or give --overwrite to start again"
        try:
            found = read_results(self._path)
        except DataError as error:
            raise DataError(f"{str(error).rsplit(';', 1)[0]}; {what_to_do}") from None
        data = found.meta["data"]
        for kind, theirs, ours in (
            ("another version of dpadmm", found.meta["version"], dpadmm.__version__),
            ("other data", *(f"{each['name']} {each['digest']}" for each in (data, self._data))),
        ):
            if theirs != ours:
                raise DataError(f"{self._path} belongs to {kind} ({theirs}, not {ours}); {what_to_do}")
        self._extended = is_extended(found.grid, self._grid.as_json)
        if found.meta["grid_digest"] != self._grid.digest and not self._extended:
            what = _difference_but_repeats(found.grid, self._grid.as_json)
            what = what or first_difference(found.grid, self._grid.as_json) or "other cells"
            raise DataError(f"{self._path} belongs to another grid ({what}); {what_to_do}")
        self._commands[:0] = found.meta["command"].splitlines()
        table = found.table.select(SCHEMA.names).cast(SCHEMA)
        starts: dict[str, list[int]] = {}
        for at, key in enumerate(table["cell"].to_pylist()):
            starts.setdefault(key, [at, 0])[1] += 1
        return {key: table.slice(first, length) for key, (first, length) in starts.items()}


def is_extended(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Whether ``ours`` is the grid ``theirs`` with more repeats, and so has all of its cells."""
    if _difference_but_repeats(theirs, ours):
        return False
    old, new = ({key for each in grid["experiments"].values() for key in each["cells"]} for grid in (theirs, ours))
    return bool(ours["repeats"] > theirs["repeats"]) and old <= new


def _difference_but_repeats(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    return first_difference({**theirs, "repeats": None}, {**ours, "repeats": None})


def first_difference(theirs: Any, ours: Any) -> str:
    """The first difference between two grids, in words; empty if there is none.

    Examples
    --------
    >>> first_difference({"repeats": 2, "shared": {}}, {"repeats": 4, "shared": {}})
    'repeats = 2, not 4'
    >>> first_difference({"shared": {"rho": 1.0}}, {"shared": {}})
    'shared, rho = 1.0, which is not in this grid'
    """
    old, new = dict(_entries(theirs)), dict(_entries(ours))
    for place in {**old, **new}:
        if place not in new:
            return f"{place} = {old[place]}, which is not in this grid"
        if place not in old:
            return f"no {place}, which is {new[place]} in this grid"
        if old[place] != new[place]:
            return f"{place} = {old[place]}, not {new[place]}"
    return ""


def _entries(value: Any, *place: str) -> Iterator[tuple[str, str]]:
    """(place, value) of all that a grid says, but for its cells."""
    if not isinstance(value, dict | list):
        yield ", ".join(place), json.dumps(value, ensure_ascii=False)[:60]
        return
    for name, each in value.items() if isinstance(value, dict) else enumerate(value, 1):
        if name != "cells":
            yield from _entries(each, *place, str(name))


def _hold(folder: Path) -> int:
    """Lock a folder until the returned descriptor is closed, at the latest when this process ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DataError(
            f"another dpadmm is working in {folder}; wait for it, or choose another output folder"
        ) from None
    return descriptor
