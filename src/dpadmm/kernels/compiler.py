"""Import numba with threads that sleep while they wait.

On a busy machine, a spinning thread can block the thread that it waits for: a parallel call of 12 µs then took 12 ms.
The setting is OMP_WAIT_POLICY of the OpenMP runtime, which is read when the first parallel function runs. A value that
is already set is kept.

Set the options of a compiled function in its own file, because the compiler's cache depends on that file only. Set
``fastmath`` for every function: without it, a function is compiled with the setting of its caller.
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
