"""Run tasks on an existing Dask cluster. Only this module imports Dask."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from dpadmm.errors import DataError, DPADMMError, StudyError
from dpadmm.version import VERSION

TIMEOUT_SECONDS = 30.0
"""Time limit for the scheduler to answer and to have a worker."""

Future: TypeAlias = Any

_TASK_LOCK = threading.Lock()
"""One task at a time in a worker with several threads: compiled functions use their own threads."""


class DataLostError(DPADMMError):
    """All workers with the data are gone."""


class Cluster(AbstractContextManager["Cluster"]):
    """The workers of a scheduler, each with this version of dpadmm. If a worker dies, another runs its task."""

    def __init__(self, scheduler: str) -> None:
        try:
            import distributed
        except ImportError:
            raise DataError("a cluster needs Dask; install it with: pip install 'dpadmm[dask]'") from None
        address = re.fullmatch(r"(?:tcp|tls)://[^\s/]+:([0-9]{1,5})/?", scheduler)
        if address is None or int(address[1]) > 65535:
            raise DataError(f"{scheduler!r:.200} is not the address of a Dask scheduler, such as tcp://HOST:8786")
        if scheduler.startswith("tls:"):
            _check_certificates(distributed.Security())
        try:
            self._client = distributed.Client(scheduler, timeout=TIMEOUT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise DataError(
                f"no Dask scheduler answers at {scheduler!r:.200} ({error}); start one with dask scheduler, or correct "
                "the address"
            ) from None
        self._killed, self._wait = distributed.KilledWorker, distributed.wait
        try:
            self._check_workers(scheduler)
        except BaseException:
            self.close()
            raise

    def _check_workers(self, scheduler: str) -> None:
        try:
            self._client.wait_for_workers(1, timeout=TIMEOUT_SECONDS)
        except TimeoutError:
            raise DataError(f"{scheduler} has no workers; start some with dask worker {scheduler}") from None
        for worker, version in self._client.run(_version, on_error="return").items():
            if version != VERSION:
                actual = "none, or another" if isinstance(version, BaseException) else version
                raise _version_error(worker, actual, VERSION)

    def close(self) -> None:
        self._client.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: object) -> Future:
        """Send an object to all workers, and return a future that tasks accept as an argument."""
        try:
            (future,) = self._client.scatter([data], broadcast=True, hash=False, timeout=TIMEOUT_SECONDS)
        except TimeoutError:
            raise DataError("the cluster has no workers any more; start some, then run this again") from None
        return future

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        """Call a function in a worker. Futures among the arguments are replaced by their results."""
        return self._client.submit(_call, VERSION, function, *arguments, pure=False)

    def gather(self, futures: Sequence[Future], timeout: float | None = None) -> list[Any]:
        """Return the results of tasks, and raise their errors."""
        try:
            with self._client.as_current():
                self._wait(futures, timeout=timeout)
            return list(self._client.gather(futures))
        except TimeoutError:
            raise DataError(f"the cluster did not answer within {timeout:g} s; are its workers running?") from None
        except CancelledError:
            raise DataLostError("all workers that held the data are gone; start workers, then run this again") from None
        except self._killed as error:
            raise DataError(
                f"a task ended the worker that ran it, several times over, perhaps for lack of memory ({error}); see "
                "the workers' logs"
            ) from None


def _check_certificates(security: Any) -> None:
    """Raise DataError for a configuration without certificates, with which a client would wait for a minute."""
    try:
        problem = "" if security.get_connection_args("client").get("ssl_context") else "there is none"
    except (OSError, ValueError) as error:
        problem = str(error)
    if problem:
        raise DataError(
            f"tls:// needs certificates ({problem}): set ca-file, and cert and key of the client, under "
            "distributed.comm.tls in Dask's configuration here, or use tcp:// in a network of your own"
        )


def _version() -> str:
    return VERSION


def _call(version: str, function: Callable[..., Any], *arguments: Any) -> Any:
    if version != VERSION:  # the worker joined later
        raise _version_error("a worker", VERSION, version)
    with _TASK_LOCK:
        return function(*arguments)


def _version_error(worker: str, actual: object, required: str) -> StudyError:
    return StudyError(
        f"the cluster's workers need dpadmm {required}, and {worker} has {actual}; install the same version everywhere"
    )
