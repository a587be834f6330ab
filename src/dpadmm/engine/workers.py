"""Run tasks in worker processes or on a cluster, and yield the results as they arrive.

Worker processes end with their parent, ignore Ctrl-C, and are killed on exit.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from queue import Empty, SimpleQueue
from signal import SIG_BLOCK, SIG_SETMASK, SIGINT, Signals, pthread_sigmask
from typing import Any, TypeAlias, TypeVar

from dpadmm.data.cluster import Cluster, DataLostError, Future
from dpadmm.errors import DPADMMError

LOOK_EVERY = 0.2
"""Seconds between two calls of ``stop``."""
ONE_THREAD = dict.fromkeys(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Environment of worker processes that share the machine: one core each."""

Line: TypeAlias = "Connection[Any, Any]"
Task = TypeVar("Task")
Answer = TypeVar("Answer")


class WorkerDiedError(DPADMMError):
    """A worker process ended before its task did."""


@dataclass(frozen=True)
class Failure:
    """An unexpected error: the worker's traceback."""

    text: str


def n_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def in_processes(
    make: Callable[[], Callable[[Task], Answer]],
    tasks: Sequence[Task],
    *,
    workers: int,
    stop: Callable[[], bool],
    all_cores: bool = False,
) -> Generator[tuple[Task, Answer]]:
    """Yield each task with its result, until all are done or ``stop`` returns true.

    ``make`` is called once in every worker and returns the function that runs its tasks. Workers have one core each,
    unless ``all_cores`` is set.
    """
    waiting = deque(tasks)
    if not waiting or stop():
        return
    busy: dict[Line, Task] = {}
    with _started(min(workers, len(tasks)), {} if all_cores else ONE_THREAD) as crew:
        for line, process in crew.items():
            _send(line, process, make)
            busy[line] = _send(line, process, waiting.popleft())
        stopped = False
        while busy and not stopped:
            stopped = stop()
            for ready in wait(list(busy), timeout=0.0 if stopped else LOOK_EVERY):
                line = next(each for each in busy if each is ready)
                task, answer = busy.pop(line), _receive(line, crew[line])
                if isinstance(answer, Failure):
                    raise RuntimeError(f"unexpected error in task {task}\n{answer.text}")
                if waiting and not stopped:
                    busy[line] = _send(line, crew[line], waiting.popleft())
                yield task, answer


def on_cluster(
    make: Callable[[], Callable[[Task], Answer]],
    tasks: Sequence[Task],
    *,
    cluster: Cluster,
    stop: Callable[[], bool],
    one_at_a_time: bool = False,
) -> Generator[tuple[Task, Answer]]:
    """Do the same with the workers of a cluster. ``make`` is sent to each of them once, with all of its data.

    If a worker dies, its task is run again. If ``stop`` returns true, running tasks are cancelled.
    """
    waiting, busy = deque(tasks), dict[Future, Task]()
    finished, shared = SimpleQueue[Future](), None
    try:
        while (waiting or busy) and not stop():
            shared = shared or cluster.send(_Cached(make))
            while waiting and not (one_at_a_time and busy):
                future = cluster.submit(_answered, shared, waiting[0])
                busy[future] = waiting.popleft()
                future.add_done_callback(finished.put)
            try:
                future = finished.get(timeout=LOOK_EVERY)
            except Empty:
                continue
            if future not in busy:
                continue
            task = busy.pop(future)
            try:
                (answer,) = cluster.gather([future])
            except DataLostError:  # all workers with the data died: send it again
                waiting.extend([task, *busy.values()])
                busy, shared = {}, None
                continue
            yield task, answer
    finally:
        for future in busy:
            future.cancel()


class _Cached:
    """A function that ``make`` returns, called once in every process."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Callable[[Any], Any]:
        answer: Callable[[Any], Any] = self._make()
        return answer

    def __reduce__(self) -> tuple[Any, ...]:
        return _Cached, (self._make,)

    def __call__(self, task: Any) -> Any:
        return self._made(task)


def _answered(shared: _Cached, task: Any) -> Any:
    return shared(task)


@contextmanager
def _started(size: int, environment: dict[str, str]) -> Iterator[dict[Line, SpawnProcess]]:
    """Start worker processes, and kill them on exit. The keys are the connections to them."""
    context = multiprocessing.get_context("spawn")
    crew: dict[Line, SpawnProcess] = {}
    try:
        with _child_environment(environment):
            for _ in range(size):
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(theirs,), daemon=True)
                process.start()
                theirs.close()
                crew[ours] = process
        yield crew
    finally:
        for line, process in crew.items():
            line.close()
            process.kill()
        for process in crew.values():
            process.join()


@contextmanager
def _child_environment(environment: dict[str, str]) -> Iterator[None]:
    """Start processes with this environment, without Ctrl-C, which a terminal sends to all processes."""
    before = {name: os.environ.get(name) for name in environment}
    resource_tracker.ensure_running()  # if started inside, it would undo the mask
    mask = pthread_sigmask(SIG_BLOCK, {SIGINT})
    os.environ.update(environment)
    try:
        yield
    finally:
        pthread_sigmask(SIG_SETMASK, mask)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _send(line: Line, process: SpawnProcess, what: Any) -> Any:
    try:
        line.send(what)
    except (BrokenPipeError, ConnectionResetError):
        raise _died(process) from None
    return what


def _receive(line: Line, process: SpawnProcess) -> Any:
    try:
        return line.recv()
    except (EOFError, ConnectionResetError):
        raise _died(process) from None


def _died(process: SpawnProcess) -> WorkerDiedError:
    process.join(timeout=5.0)
    code = process.exitcode
    how = f"was ended by {Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
    return WorkerDiedError(
        f"a worker process {how}, perhaps for lack of memory; finished runs of a grid are kept: run the same "
        "command again, with fewer --workers if it happens again"
    )


def _work(line: Line) -> None:
    """Run tasks until the connection closes or the parent process ends."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        answer = line.recv()()
        while True:
            task = line.recv()
            try:
                line.send(answer(task))
            except Exception:
                line.send(Failure(traceback.format_exc()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
