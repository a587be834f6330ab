"""numba, with threads that wait politely.

Threads that have no work sleep instead of spinning. On a busy machine a spinning thread keeps the one it
waits for from running: a parallel call that takes 12 µs was seen to take 12 ms. The setting is the OpenMP
run time's own (OMP_WAIT_POLICY), read when the first parallel function runs; whoever sets it before decides.

Options of compiled functions stand in the file of the function, not here: the compiler's cache is renewed
when that file changes and does not see others. A function that says nothing of ``fastmath`` is compiled with
its caller's, so all of them say something.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numba

__all__ = ["numba"]
