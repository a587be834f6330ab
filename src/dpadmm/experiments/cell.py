"""One cell of a grid -> its lines of the results table, in this process or in a worker process."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

import pyarrow as pa

from dpadmm._base.errors import DpadmmError
from dpadmm.data import Dataset
from dpadmm.experiments.grid import Cell
from dpadmm.experiments.results import DONE, MEASURES, REFUSED, SCHEMA, settings_columns
from dpadmm.optim.theory import nonsmooth_bound, smooth_bound
from dpadmm.privacy.accounting import exact_epsilon, paper_epsilon
from dpadmm.privacy.releases import Release
from dpadmm.runs.preparation import Prepared, prepare
from dpadmm.runs.run import Result
from dpadmm.runs.simulation import run_prepared
from dpadmm.study.settings import Settings

_PARTITION = ("seed", "n_agents", "partition", "partition_spread", "intercept", "clip_rows", "test_rows")


class Bench:
    """A data set and its latest partition, which consecutive cells with the same split share."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._partitioned_by: tuple[Any, ...] | None = None
        self._prepared: Prepared | None = None

    def prepared(self, settings: Settings) -> Prepared:
        """Rows for these settings, with their problem."""
        partitioned_by = tuple(getattr(settings, name) for name in _PARTITION)
        if self._prepared is None or partitioned_by != self._partitioned_by:
            self._prepared, self._partitioned_by = prepare(self._dataset, settings), partitioned_by
        n_classes = len(self._dataset.classes) if self._dataset.classes is not None else 0
        return replace(self._prepared, problem=settings.problem(n_classes))

    def run(self, cell: Cell) -> pa.Table:
        """Run a cell; a method that does not apply gives one line with the reason."""
        started = perf_counter()
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = run_prepared(self.prepared(cell.settings), cell.settings)
        except DpadmmError as error:
            return _table([{**_about(cell), "status": REFUSED, "reason": str(error), "round": 0}])
        said = "; ".join(dict.fromkeys(str(each.message) for each in caught)) or None
        return _table(_lines(cell, result, reason=said, wall_seconds=perf_counter() - started))


def _about(cell: Cell) -> dict[str, Any]:
    return {"cell": cell.key, "data": cell.data, "timed": cell.timed, **settings_columns(cell.settings)}


def _lines(cell: Cell, result: Result, *, reason: str | None, wall_seconds: float) -> list[dict[str, Any]]:
    privacy, delta = result.privacy, cell.settings.delta
    z = privacy.noise_multiplier
    same = {
        **_about(cell),
        "n_agents": result.rows.n_agents,  # where rows come with their owners, the settings do not say
        "status": DONE,
        "reason": reason,
        "total_epsilon": _finite(privacy.planned_epsilon),
        "total_paper_epsilon": _finite(privacy.paper_epsilon),
        "accountant": privacy.accountant if privacy.private else None,
        "z": _finite(float(z.mean())) or None,
        "iterations": result.iterations or None,
        "wall_seconds": wall_seconds,
    }
    plain = _plain_releases(result)
    columns = result.trace.columns
    lines = []
    for at, k in enumerate(columns["round"].astype(int).tolist()):
        measured = {name: _finite(float(columns[name][at])) for name in MEASURES if name in columns}
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
    """(z, releases per round) of the agents; empty where a round is not plain Gaussian noise."""
    tallies = set(result.privacy.planned)
    every = {each for tally in tallies for each, _ in tally}
    plain = {each for each in every if isinstance(each, Release) and each.noise_multiplier}
    if any(len(tally) != 1 or tally[0][0] not in plain for tally in tallies):
        return set()
    return {(float(release.noise_multiplier), release.count) for release in plain if release.count}


def _bound(result: Result, round: int) -> float | None:
    """The theorem's bound after so many rounds, where the theorem speaks of this run."""
    settings = result.settings
    if getattr(settings.method, "schedule", None) != "theorem" or settings.participation < 1.0:
        return None
    bound, rho = smooth_bound if result.problem.smooth else nonsmooth_bound, settings.flat()["rho"]
    return bound(result.constants, n_rounds=round, rho=rho, beta=rho)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _table(lines: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(lines, schema=SCHEMA)


def cell_runner(dataset: Dataset, *, timed: bool) -> Callable[[Cell], pa.Table]:
    """The function with which a worker process runs cells.

    A warm-up run before the first cell of each kind keeps compilation out of the times; it is a full run
    where times are the purpose (``timed``).
    """
    bench, warm = Bench(dataset), set[tuple[str, ...]]()

    def run(cell: Cell) -> pa.Table:
        chosen = cell.settings.flat()
        kind = tuple(str(chosen.get(name)) for name in ("method", "loss", "regularizer", "mechanism"))
        if kind not in warm:  # runs of one kind share compiled functions
            warm.add(kind)
            short = replace(cell, settings=replace(cell.settings, n_rounds=2, metrics_every=2))
            bench.run(cell if timed else short)
        return bench.run(cell)

    return run
