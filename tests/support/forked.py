"""``dpadmm`` as a process that is forked from a server with everything loaded, not started anew.

Starting a process and importing the package takes a second. Tests of process interactions (kills, full disks, lost
connections) start dozens. That the installed program starts is covered by tests that run it (``process`` in
``conftest.py``, ``tests/federation/test_commands.py``).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PRELOADED = [
    "forked",
    "dpadmm.cli.site",
    "dpadmm.cli.server",
    "dpadmm.federation.server.process",
    "dpadmm.federation.web.server_app",
    "dpadmm.federation.site.process",
    "dpadmm.sites.table",
    "reproduction.runner",
    "dpadmm.kernels.formulas",
    "dpadmm.kernels.passes",
    "numba.core.caching",
    "scipy.linalg",
    "pandas",
    "cffi",
]
"""What processes would load by themselves; the server passes over a name that is gone."""

server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(PRELOADED)


class ForkedProgram:
    """``dpadmm`` with arguments, and the part of the ``subprocess.Popen`` interface that federation tests use."""

    def __init__(self, words: Sequence[object], out: Path, environment: Mapping[str, str] | None = None) -> None:
        settings = {**os.environ, **(environment or {})}
        self._process = server.Process(target=_main, args=([str(word) for word in words], str(out), settings))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("dpadmm", timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _main(words: list[str], out: str, environment: dict[str, str]) -> None:
    from dpadmm.cli import main

    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    sys.argv = ["dpadmm", *words]
    main()
