"""Worker processes of a grid that are forked from a server with everything loaded, not started anew.

Starting a process and importing the package takes a second; tests that are about what a grid says, and not
about its processes, need not pay it for every worker.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

PRELOADED = [
    "dpadmm.experiments.runner",
    "dpadmm.optim.kernels.formulas",
    "dpadmm.optim.kernels.passes",
    "numba.core.caching",
    "scipy.linalg",
    "pandas",
    "cffi",
]
"""What a worker would load by itself; the server passes over a name that is gone."""


@contextmanager
def quick_workers() -> Iterator[None]:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(PRELOADED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "get_context", lambda method=None: server)
        yield
