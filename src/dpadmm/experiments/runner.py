"""Cells -> one results file, over all cores; what is finished is kept whatever happens, and never run again.

Timed cells run first, alone, with all cores to themselves; then one worker per core, one thread each. Every
cell is a pure function of its settings, and lines stand in the order of the grid, so the file is the same
however often the work was interrupted and however many workers there were, but for the timing columns.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from signal import SIG_BLOCK, SIG_SETMASK, SIGINT, Signals, pthread_sigmask
from typing import Any

import pyarrow as pa

from dpadmm.data import Dataset
from dpadmm.errors import DpadmmError
from dpadmm.experiments.grid import Cell, Grid
from dpadmm.experiments.store import Store
from dpadmm.experiments.worker import ONE_THREAD, Failure, work
from dpadmm.results import Results

LOOK_EVERY = 0.2
"""Seconds between two looks at ``stop``."""


class WorkerDied(DpadmmError):
    """A worker process ended before its cell did."""


@dataclass(frozen=True)
class Progress:
    """How far a grid is."""

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
    """Run what is missing of a grid (or of its experiments ``names``) and return everything in the file.

    Where ``stop`` becomes true the runs under way are given up, and their cells are missing in the answer.
    """
    wanted = grid.cells(names)
    with Store(grid, dataset, path, overwrite=overwrite, command=command) as store:

        def look() -> None:
            watch(Progress(sum(cell.key in store for cell in wanted), len(wanted)))

        look()
        missing = [cell for cell in wanted if cell.key not in store]
        timed = [cell for cell in missing if cell.timed]
        others = sorted((cell for cell in missing if not cell.timed), key=_split)
        for cells, crew in ((timed, _Crew(1, alone=True)), (others, _Crew(workers or n_cores()))):
            with closing(crew.run(cells, dataset, stop)) as finished:
                for cell, lines in finished:
                    store.add(cell, lines)
                    look()
        return store.results()


def n_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _split(cell: Cell) -> tuple[int, int]:
    """Cells on the same rows stand together, so that a worker deals them once."""
    return (cell.settings.seed or 0, cell.settings.n_agents)


@dataclass(frozen=True)
class _Crew:
    """Some worker processes; ``alone``: a single one, with all cores, warmed up before it is measured."""

    size: int
    alone: bool = False

    def run(
        self, cells: Sequence[Cell], dataset: Dataset, stop: Callable[[], bool]
    ) -> Generator[tuple[Cell, pa.Table]]:
        """Every cell with its lines, as they are finished."""
        waiting = deque(cells)
        if not waiting or stop():
            return
        busy: dict[Connection[Any, Any], Cell] = {}
        with self._started(min(self.size, len(cells))) as crew:
            for connection, process in crew.items():
                _send(connection, process, dataset)
                busy[connection] = _send(connection, process, waiting.popleft())
            stopped = False
            while busy and not stopped:
                stopped = stop()
                for ready in wait(list(busy), timeout=0.0 if stopped else LOOK_EVERY):
                    connection = next(each for each in busy if each is ready)
                    cell = busy.pop(connection)
                    lines = _receive(connection, crew[connection], cell)
                    if waiting and not stopped:
                        busy[connection] = _send(connection, crew[connection], waiting.popleft())
                    yield cell, lines

    @contextmanager
    def _started(self, size: int) -> Iterator[dict[Connection[Any, Any], SpawnProcess]]:
        """Worker processes by our end of the line to each; at the end they are gone, whatever they did."""
        context = multiprocessing.get_context("spawn")
        crew: dict[Connection[Any, Any], SpawnProcess] = {}
        try:
            with _environment({} if self.alone else ONE_THREAD), _ctrl_c_is_ours():
                for _ in range(size):
                    ours, theirs = context.Pipe()
                    process = context.Process(target=work, args=(theirs, self.alone), daemon=True)
                    process.start()
                    theirs.close()
                    crew[ours] = process
            yield crew
        finally:
            for connection, process in crew.items():
                connection.close()
                process.kill()
            for process in crew.values():
                process.join()


def _send(connection: Connection[Any, Any], process: SpawnProcess, what: Any) -> Any:
    try:
        connection.send(what)
    except (BrokenPipeError, ConnectionResetError):
        raise _died(process) from None
    return what


def _receive(connection: Connection[Any, Any], process: SpawnProcess, cell: Cell) -> pa.Table:
    try:
        answer = connection.recv()
    except (EOFError, ConnectionResetError):
        raise _died(process, f" in a run of {cell.settings.method}") from None
    if isinstance(answer, Failure):
        raise RuntimeError(f"a run failed that should not: {cell.settings}\n{answer.text}")
    return answer


def _died(process: SpawnProcess, where: str = "") -> WorkerDied:
    process.join(timeout=5.0)
    code = process.exitcode
    how = f"was ended by {Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
    return WorkerDied(
        f"a worker process {how}{where}, perhaps for lack of memory; what is finished is kept: run the same "
        "command again to go on, with fewer --workers if it happens again"
    )


@contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    """Environment variables for processes started inside."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _ctrl_c_is_ours() -> Iterator[None]:
    """Processes started inside do not hear Ctrl-C, which a terminal sends to all: we end them."""
    resource_tracker.ensure_running()  # it would undo the mask if it had to be started inside
    before = pthread_sigmask(SIG_BLOCK, {SIGINT})
    try:
        yield
    finally:
        pthread_sigmask(SIG_SETMASK, before)
