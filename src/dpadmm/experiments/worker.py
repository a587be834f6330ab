"""A worker process: gets the data set once, then cells one by one, and answers each with its lines.

It ends when there is nothing more to do, and when the process that started it is gone, however that ended.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any

import pyarrow as pa

from dpadmm.experiments.cell import Bench
from dpadmm.experiments.grid import Cell

ONE_THREAD = dict.fromkeys(
    ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)
"""Environment of workers that share the machine: one core each."""


@dataclass(frozen=True)
class Failure:
    """A mistake in the program: the worker's traceback."""

    text: str


def work(connection: Connection[Any, Any], timed: bool) -> None:
    """Answer cells until the other end closes.

    Every kind of run is first made once for nothing, so that no time has a compilation in it: in short, or
    in full where times are what the cells are for (``timed``).
    """
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        bench = Bench(connection.recv())
        warm: set[tuple[str, ...]] = set()
        while True:
            cell: Cell = connection.recv()
            if (kind := _kind(cell)) not in warm:
                _answer(bench, cell if timed else _short(cell))
                warm.add(kind)
            connection.send(_answer(bench, cell))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _short(cell: Cell) -> Cell:
    return replace(cell, settings=replace(cell.settings, n_rounds=2, metrics_every=2))


def _answer(bench: Bench, cell: Cell) -> pa.Table | Failure:
    try:
        return bench.run(cell)
    except Exception:
        return Failure(traceback.format_exc())


def _kind(cell: Cell) -> tuple[str, ...]:
    """Runs of the same kind use the same compiled functions."""
    settings = cell.settings
    return (settings.method, settings.loss, settings.regularizer, settings.mechanism)


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
