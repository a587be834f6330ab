"""Run the missing cells of a grid on all cores or on a cluster, and store finished cells in a results file.

Timed cells run first, alone, with all cores. Then one worker per core runs the others, with one thread each. Every cell
is a pure function of its settings, and lines are in the order of the grid. So the file does not depend on interruptions
or on the workers, except in the timing columns.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import pyarrow as pa

import dpadmm
from dpadmm.accounting.events import Release
from dpadmm.accounting.gaussian import exact_epsilon, paper_epsilon
from dpadmm.data import Dataset
from dpadmm.data.cluster import Cluster
from dpadmm.engine.workers import in_processes, n_cores, on_cluster
from dpadmm.errors import DataError, DPADMMError
from dpadmm.methods.dp_admm import DpAdmm
from dpadmm.methods.prior import Prior
from dpadmm.methods.theory import nonsmooth_bound, smooth_bound
from dpadmm.models.run import Result
from dpadmm.training.compare import PreparedRuns, finite
from reproduction import results
from reproduction.grid import Cell, ExperimentGrid
from reproduction.results import (
    DONE,
    MEASURES,
    REFUSED,
    SCHEMA,
    Results,
    read_results,
    read_table,
    settings_columns,
)

WRITE_EVERY = 2.0
"""Seconds between two writes; a kill loses at most what was finished in between."""


@dataclass(frozen=True)
class Progress:
    done: int
    total: int


def run_grid(
    grid: ExperimentGrid,
    dataset: Dataset,
    path: Path,
    *,
    names: Sequence[str] | None = None,
    prior: Prior | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    overwrite: bool = False,
    command: str = "",
    watch: Callable[[Progress], None] = lambda progress: None,
    stop: Callable[[], bool] = lambda: False,
) -> Results:
    """Run the missing cells of a grid (or of its experiments ``names``) and return all results in the file.

    When ``stop`` becomes true, the cells in progress are abandoned and are missing from the result. Every run starts
    with ``prior``, from public rows; the grid's title must distinguish it from others. ``scheduler`` is the address of
    a Dask scheduler whose workers run the cells.
    """
    wanted = grid.cells(names)
    with (
        Cluster(scheduler) if scheduler is not None else nullcontext() as cluster,
        Store(grid, dataset, path, overwrite=overwrite, command=command) as store,
    ):

        def look() -> None:
            watch(Progress(sum(cell.key in store for cell in wanted), len(wanted)))

        look()
        missing = [cell for cell in wanted if cell.key not in store]
        timed = [cell for cell in missing if cell.timed]
        # order cells by rows, so that a worker partitions them once
        others = sorted(
            (cell for cell in missing if not cell.timed),
            key=lambda cell: (cell.settings.seed or 0, cell.settings.n_agents),
        )
        for cells, alone in ((timed, True), (others, False)):
            make = partial(cell_runner, dataset, prior=prior)
            if cluster is not None:
                running = on_cluster(make, cells, cluster=cluster, stop=stop, one_at_a_time=alone)
            else:
                size = 1 if alone else workers or n_cores()
                running = in_processes(make, cells, workers=size, stop=stop, all_cores=alone)
            with closing(running) as finished:
                for cell, lines in finished:
                    store.add(cell, lines)
                    look()
        return store.results()


class Store:
    """The finished cells of a grid, in memory and in the results file, which is written on exit at the latest.

    Only one process can hold the store of a folder. A file of another grid, other data or another version is refused
    unless it may be overwritten. A file of the same grid with fewer repeats or experiments is extended.
    """

    def __init__(
        self, grid: ExperimentGrid, dataset: Dataset, path: Path, *, overwrite: bool = False, command: str = ""
    ) -> None:
        self._grid, self._path = grid, path
        self._commands = [command]
        self._order = [cell.key for cell in grid.cells()]
        self._data = results.data_stamp(dataset)
        self._overwrite = overwrite
        self._cells: dict[str, pa.Table] = {}
        self._written = monotonic()
        self._unwritten = self._extended = False

    def __enter__(self) -> Store:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _lock_folder(self._path.parent)
        try:
            results.remove_unfinished(self._path)
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
        """Store a finished cell. It is in the file within a few seconds."""
        self._cells[cell.key] = lines
        self._unwritten = True
        if monotonic() - self._written > WRITE_EVERY:
            self._write()

    def results(self) -> Results:
        """Return all finished cells, as in the file."""
        self._write()
        return read_results(self._path)

    def _write(self) -> None:
        if self._unwritten:
            self._unwritten = False  # a full disk is reported once
            tables = [self._cells[key] for key in self._order if key in self._cells]
            table = pa.concat_tables([SCHEMA.empty_table(), *tables]).combine_chunks()
            command = "\n".join(dict.fromkeys(self._commands))
            results.write_results(self._path, table, grid=self._grid.as_json, data=self._data, command=command)
            self._written = monotonic()

    def _finished(self) -> dict[str, pa.Table]:
        what_to_do = "choose another output folder, or give --overwrite to start again"
        try:
            table, grid, meta = read_table(self._path)
        except DataError as error:
            raise DataError(f"{str(error).rsplit(';', 1)[0]}; {what_to_do}") from None
        data = meta["data"]
        for kind, stored, ours in (
            ("another version of dpadmm", meta["version"], dpadmm.__version__),
            ("other data", *(f"{stamp['name']} {stamp['digest']}" for stamp in (data, self._data))),
        ):
            if stored != ours:
                raise DataError(f"{self._path} belongs to {kind} ({stored}, not {ours}); {what_to_do}")
        self._extended = is_extended(grid, self._grid.as_json)
        if meta["grid_digest"] != self._grid.digest and not self._extended:
            what = _difference_except_extension(grid, self._grid.as_json)
            what = what or first_difference(grid, self._grid.as_json) or "other cells"
            raise DataError(f"{self._path} belongs to another grid ({what}); {what_to_do}")
        self._commands[:0] = meta["command"].splitlines()
        table = table.cast(SCHEMA)
        starts: dict[str, list[int]] = {}
        for at, key in enumerate(table["cell"].to_pylist()):
            starts.setdefault(key, [at, 0])[1] += 1
        return {key: table.slice(first, length) for key, (first, length) in starts.items()}


def is_extended(old_grid: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Return whether ``ours`` is the grid ``theirs`` with more repeats or experiments, and includes all its cells."""
    if _difference_except_extension(old_grid, ours) or ours["repeats"] < old_grid["repeats"]:
        return False
    old, new = (
        {key for experiment in grid["experiments"].values() for key in experiment["cells"]} for grid in (old_grid, ours)
    )
    return old <= new and (new > old or set(ours["experiments"]) > set(old_grid["experiments"]))


def _difference_except_extension(old_grid: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Return the first difference apart from the repeats, in the experiments that ``theirs`` has."""
    shared = {name: about for name, about in ours["experiments"].items() if name in old_grid["experiments"]}
    return first_difference({**old_grid, "repeats": None}, {**ours, "repeats": None, "experiments": shared})


def first_difference(old_grid: Any, ours: Any) -> str:
    """Return the first difference between two grids in words, or an empty string.

    Examples
    --------
    >>> first_difference({"repeats": 2, "shared": {}}, {"repeats": 4, "shared": {}})
    'repeats = 2, not 4'
    >>> first_difference({"shared": {"rho": 1.0}}, {"shared": {}})
    'shared, rho = 1.0, which is not in this grid'
    """
    old, new = dict(_entries(old_grid)), dict(_entries(ours))
    for place in {**old, **new}:
        if place not in new:
            return f"{place} = {old[place]}, which is not in this grid"
        if place not in old:
            return f"no {place}, which is {new[place]} in this grid"
        if old[place] != new[place]:
            return f"{place} = {old[place]}, not {new[place]}"
    return ""


def _entries(value: Any, *place: str) -> Iterator[tuple[str, str]]:
    """Yield (place, value) of every entry of a grid except its cells."""
    if not isinstance(value, dict | list):
        yield ", ".join(place), json.dumps(value, ensure_ascii=False)[:60]
        return
    for name, item in value.items() if isinstance(value, dict) else enumerate(value, 1):
        if name != "cells":
            yield from _entries(item, *place, str(name))


def _lock_folder(folder: Path) -> int:
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


# --- one cell -> its lines of the results table ------------------------------------------------------------


class CellRuns:
    """Run cells on one data set."""

    def __init__(self, dataset: Dataset, prior: Prior | None = None) -> None:
        self._runs = PreparedRuns(dataset, prior)

    def run(self, cell: Cell) -> pa.Table:
        """Run a cell. A method that does not apply gives one line with the reason."""
        started = perf_counter()
        try:
            result, warning = self._runs.run(cell.settings)
        except DPADMMError as error:
            return _table([{**_about(cell), "status": REFUSED, "reason": str(error), "round": 0}])
        return _table(_lines(cell, result, reason=warning, wall_seconds=perf_counter() - started))

    def warm_up(self, cell: Cell) -> None:
        """Compile before measuring time: a full run for a timed cell, two rounds for others."""
        self._runs.warm_up(cell.settings, n_rounds=None if cell.timed else 2)


def _about(cell: Cell) -> dict[str, Any]:
    return {"cell": cell.key, "data": cell.data, "timed": cell.timed, **settings_columns(cell.settings)}


def _lines(cell: Cell, result: Result, *, reason: str | None, wall_seconds: float) -> list[dict[str, Any]]:
    privacy, delta = result.privacy, cell.settings.delta
    z = privacy.noise_multiplier
    same = {
        **_about(cell),
        "n_agents": result.rows.n_agents,  # with owners in the data this is not a setting
        "status": DONE,
        "reason": reason,
        "total_epsilon": finite(privacy.planned_epsilon),
        "total_paper_epsilon": finite(privacy.paper_epsilon),
        "accountant": privacy.accountant if privacy.private else None,
        "z": finite(float(z.mean())) or None,
        "iterations": result.iterations or None,
        "wall_seconds": wall_seconds,
    }
    plain = _plain_releases(result)
    columns = result.trace.columns
    lines = []
    for at, k in enumerate(columns["round"].astype(int).tolist()):
        measured = {name: finite(float(columns[name][at])) for name in MEASURES if name in columns}
        line = {**same, "round": k, **measured, "seconds": float(columns["seconds"][at])}
        line["bound"] = _bound(result, k)
        if plain:
            worst = max(math.sqrt(k * count) / multiplier for multiplier, count in plain)
            line["spent_epsilon"] = exact_epsilon(worst, delta)
            line["spent_paper_epsilon"] = max(
                paper_epsilon(multiplier, k * count, delta) for multiplier, count in plain
            )
        lines.append(line)
    return lines


def _plain_releases(result: Result) -> set[tuple[float, int]]:
    """Return (z, releases per round) of the agents, or an empty set if a round is not plain Gaussian noise."""
    tallies = {group.planned for group in result.privacy.groups}
    every = {release for tally in tallies for release, _ in tally}
    plain = {release for release in every if isinstance(release, Release) and release.noise_multiplier}
    if any(len(tally) != 1 or tally[0][0] not in plain for tally in tallies):
        return set()
    return {(float(release.noise_multiplier), release.count) for release in plain if release.count}


def _bound(result: Result, round: int) -> float | None:
    """Return the theorem's bound after ``round`` rounds, if the theorem applies to this run."""
    method = result.method
    if not isinstance(method, DpAdmm) or method.schedule != "theorem" or result.settings.participation < 1.0:
        return None
    bound = smooth_bound if result.problem.smooth else nonsmooth_bound
    return bound(method.constants, n_rounds=round, rho=method.rho, beta=method.rho)


def _table(lines: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(lines, schema=SCHEMA)


def cell_runner(dataset: Dataset, *, prior: Prior | None = None) -> Callable[[Cell], pa.Table]:
    """Return the function with which a worker process runs cells."""
    runs = CellRuns(dataset, prior)

    def run(cell: Cell) -> pa.Table:
        runs.warm_up(cell)
        return runs.run(cell)

    return run
