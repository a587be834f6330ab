"""What the commands show: progress on stderr, tables on stdout."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dpadmm.cli.interrupted import Interrupted

if TYPE_CHECKING:
    from dpadmm.training import Observer, RoundView

__all__ = [
    "NAMES",
    "CtrlC",
    "Interrupted",
    "epsilon_text",
    "mean_and_spread",
    "number_range",
    "progress",
    "progress_bar",
    "say",
    "say_path",
    "table",
]

NAMES = {
    "train_loss_global": "training loss, global model",
    "train_loss_local": "training loss, local models",
    "train_error_global": "training error, global model",
    "test_loss_global": "test loss, global model",
    "test_error_global": "test error, global model",
    "test_error_local": "test error, local models",
    "augmented_objective": "augmented objective (sum over agents)",
    "seconds": "seconds in rounds",
}
"""Measures in words, in the order they are shown."""


@contextmanager
def progress(total_rounds: int, what: str, *, quiet: bool) -> Iterator[Observer]:
    """A bar that moves with every round and vanishes at the end; nothing where no person watches.

    Ctrl-C takes effect at the end of the round, where nothing is half done; pressed again, at once.
    """
    with progress_bar(quiet=quiet) as bar, CtrlC() as ctrl_c:
        task = bar.add_task(what, total=total_rounds)

        def advance(view: RoundView) -> None:
            bar.advance(task)
            if ctrl_c.pressed:
                raise KeyboardInterrupt

        yield advance


def progress_bar(*, quiet: bool) -> Progress:
    """A bar with counts and the time left, on stderr; nothing where no person watches."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)


class CtrlC:
    """Remembers the first Ctrl-C, which in the middle of a compilation would get lost or break it."""

    def __init__(self) -> None:
        self.pressed = False
        self._before = signal.getsignal(signal.SIGINT)

    def __enter__(self) -> CtrlC:
        if self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._before)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a sentence; names of files may hold any characters."""
    console.print(text, style=style, highlight=False, markup=False, emoji=False)


def say_path(console: Console, text: str) -> None:
    """Print a line that ends in a path, in one piece so that it can be copied."""
    console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)


def table(*headings: str) -> Table:
    """An empty table in the house style: first column left, the others right."""
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, heading in enumerate(headings):
        out.add_column(heading, justify="left" if i == 0 else "right")
    return out


def mean_and_spread(name: str, values: Sequence[float], *, is_rate: bool) -> str:
    """``0.4312 ± 0.0067``, or percent for error rates."""
    from dpadmm.metrics import spread

    percent = is_rate and "error" in name
    scale, unit, digits = (100.0, "%", 2) if percent else (1.0, "", 4)
    mean = f"{np.mean(values) * scale:.{digits}f}"
    around = f" ± {spread(values) * scale:.{digits}f}" if len(values) > 1 else ""
    return f"{mean}{around}{unit}"


def epsilon_text(value: float) -> str:
    """An ε for people: four digits."""
    return f"{value:.4f}" if np.isfinite(value) else "∞ (no privacy)"


def number_range(values: ArrayLike, form: str = ".4f") -> str:
    """One number when all look the same, else ``smallest to largest``."""
    low, high = f"{np.min(values):{form}}", f"{np.max(values):{form}}"
    return low if low == high else f"{low} to {high}"
