"""A Dask cluster that is running already: the only module that knows Dask."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from dpadmm.errors import DataError, DPADMMError, StudyError
from dpadmm.version import VERSION

ANSWER_WITHIN = 30.0
"""Seconds in which a scheduler has to answer, and to have a worker."""

Future: TypeAlias = Any

_ONE_AT_A_TIME = threading.Lock()
"""Of tasks in a worker, which may have several threads: compiled functions have threads of their own."""


class DataLostError(DPADMMError):
    """All workers that held what was sent to them are gone."""


class Cluster(AbstractContextManager["Cluster"]):
    """The workers of a scheduler, each with this version of dpadmm; a task whose worker dies is run by another."""

    def __init__(self, scheduler: str) -> None:
        try:
            import distributed
        except ImportError:
            raise DataError("work on a cluster needs Dask: pip install 'dpadmm[dask]'") from None
        address = re.fullmatch(r"(?:tcp|tls)://[^\s/]+:([0-9]{1,5})/?", scheduler)
        if address is None or int(address[1]) > 65535:
            raise DataError(f"{scheduler!r:.200} is not the address of a Dask scheduler, such as tcp://HOST:8786")
        if scheduler.startswith("tls:"):
            _check_certificates(distributed.Security())
        try:
            self._client = distributed.Client(scheduler, timeout=ANSWER_WITHIN, set_as_default=False)
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
            self._client.wait_for_workers(1, timeout=ANSWER_WITHIN)
        except TimeoutError:
            raise DataError(f"{scheduler} has no workers; start some with dask worker {scheduler}") from None
        for worker, found in self._client.run(_version, on_error="return").items():
            if found != VERSION:
                raise _other_version(worker, "none, or another" if isinstance(found, BaseException) else found, VERSION)

    def close(self) -> None:
        self._client.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, what: object) -> Future:
        """Send something to all workers; tasks may take the future for it."""
        try:
            (future,) = self._client.scatter([what], broadcast=True, hash=False, timeout=ANSWER_WITHIN)
        except TimeoutError:
            raise DataError("the cluster has no workers any more; start some, then run this again") from None
        return future

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        """Have a worker call a function; futures among the arguments stand for their results."""
        return self._client.submit(_call, VERSION, function, *arguments, pure=False)

    def gather(self, futures: Sequence[Future], timeout: float | None = None) -> list[Any]:
        """The results of tasks; what a task raised is raised here."""
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
    """Refuse a configuration without certificates: a client that lacks them waits a minute for nothing."""
    try:
        why = "" if security.get_connection_args("client").get("ssl_context") else "there is none"
    except (OSError, ValueError) as error:
        why = str(error)
    if why:
        raise DataError(
            f"tls:// needs certificates ({why}): name ca-file, and cert and key of the client, under "
            "distributed.comm.tls in Dask's configuration here, or use tcp:// in a network of your own"
        )


def _version() -> str:
    return VERSION


def _call(version: str, function: Callable[..., Any], *arguments: Any) -> Any:
    if version != VERSION:  # of a worker that came later
        raise _other_version("a worker", VERSION, version)
    with _ONE_AT_A_TIME:
        return function(*arguments)


def _other_version(worker: str, found: object, ours: str) -> StudyError:
    return StudyError(
        f"the cluster's workers need dpadmm {ours}, and {worker} has {found}; install the same version everywhere"
    )
