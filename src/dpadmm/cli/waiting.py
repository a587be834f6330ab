"""Work whose end cannot be foreseen, such as reading a table: a sign that it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape


@contextmanager
def waiting(what: str, *, quiet: bool) -> Iterator[None]:
    """A turning sign on stderr; nothing where no person watches."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with console.status(escape(what)):
        yield
