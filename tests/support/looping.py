"""One test over many cases: a loop whose failure names the case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*values: object) -> Iterator[None]:
    """``with case(loss, storage):`` adds the values to whatever fails inside, as pytest's ids would."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {', '.join(map(repr, values))}")
        raise
