"""Options that are made from a list added to a command's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any


def add_options(command: Callable[..., Any], options: Iterable[inspect.Parameter]) -> None:
    """Put ``options`` in the place of the command's ``**options``, where typer finds them."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    signature = inspect.Signature([*(each for each in own if each.name != "options"), *options])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
