"""Worker processes of a grid that are forked from a server with everything loaded, not started anew.

Starting a process and importing the package takes a second. Tests that do not depend on the processes of a grid avoid
this.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from forked import server


@contextmanager
def quick_workers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "get_context", lambda method=None: server)
        yield
