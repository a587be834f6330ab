"""Import numba with threads that sleep while they wait.

Threads that have no work sleep instead of spinning. On a busy machine a spinning thread keeps the one it
waits for from running: a parallel call that takes 12 µs was seen to take 12 ms. The setting is the OpenMP
run time's own (OMP_WAIT_POLICY), read when the first parallel function runs; a value set earlier is kept.

Options of compiled functions belong in the file of the function, not here: the compiler's cache depends on that
file only. A function without ``fastmath`` is compiled with its caller's, so every function sets it.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numba
from numba.core import event

from dpadmm.kernels import compilation_listeners

__all__ = ["numba"]


class _Announcement(event.Listener):
    """Calls the listeners at the start of every compilation."""

    def on_start(self, event: event.Event) -> None:
        for listener in compilation_listeners:
            listener()

    def on_end(self, event: event.Event) -> None:
        """Do nothing at the end of a compilation."""


event.register("numba:compile", _Announcement())
