"""How this package uses numba: the options of compiled functions, and threads that wait politely.

Threads that have no work sleep instead of spinning. On a busy machine a spinning thread keeps the one it
waits for from running: a parallel call that takes 12 µs was seen to take 12 ms. The setting is the OpenMP
run time's own (OMP_WAIT_POLICY), read when the first parallel function runs; whoever sets it before decides.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numba

_SUMS = {"reassoc", "contract", "nsz"}  # lets sums be vectorised; NaN and inf keep their meaning

inline = numba.njit(error_model="numpy", fastmath={"contract"})
"""For small functions that are used inside others only."""

serial = numba.njit(nogil=True, cache=True, fastmath=_SUMS, error_model="numpy")
"""For functions that sum."""

parallel = numba.njit(nogil=True, cache=True, parallel=True, fastmath=_SUMS, error_model="numpy")
"""For functions with a ``prange`` whose turns are independent, so that threads change no bit."""
