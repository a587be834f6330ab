"""One test over many cases: a loop whose failure message names the case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

LONGEST = 200
"""Letters of a value that are shown."""


@contextmanager
def case(*values: object) -> Iterator[None]:
    """``with case(loss, storage):`` adds the values to any failure inside, as pytest's ids would."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {', '.join(map(_shown, values))}")
        raise


def _shown(value: object) -> str:
    text = repr(value[:LONGEST] if isinstance(value, str | bytes) else value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
