"""What commands share: options, progress on stderr, tables on stdout."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import ArrayLike
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from dpadmm.cli import Interrupted as Interrupted

if TYPE_CHECKING:
    from dpadmm.training.loop import Observer, RoundView

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]
StudyFile = Annotated[Path, typer.Argument(help="The study's TOML file.", metavar="STUDY")]
TableFile = Annotated[
    Path, typer.Option("--data", "-d", help="Table: .csv, .tsv (also .gz), .parquet.", metavar="TABLE")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no summary.")]

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
"""Labels of measures, in the order they are shown."""


def echo_json(value: Any) -> None:
    """Print JSON to standard output."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


@contextmanager
def progress(total_rounds: int, what: str, *, quiet: bool) -> Iterator[Observer]:
    """A progress bar of rounds on a terminal, which disappears at the end.

    Ctrl-C takes effect at the end of a round; pressed twice, at once.
    """
    with progress_bar(quiet=quiet) as bar, CtrlC() as ctrl_c:
        task = bar.add_task(what, total=total_rounds)

        def advance(view: RoundView) -> None:
            bar.advance(task)
            if ctrl_c.pressed:
                raise KeyboardInterrupt

        yield advance


def progress_bar(*, quiet: bool) -> Progress:
    """A progress bar with counts and the remaining time, on stderr if that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)


class CtrlC:
    """Records the first Ctrl-C, which would get lost or do damage during a compilation."""

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
    """Print a sentence without interpreting markup, since names may contain any characters."""
    console.print(text, style=style, highlight=False, markup=False, emoji=False)


def say_path(console: Console, text: str) -> None:
    """Print a line with a path, without wrapping, so that it can be copied."""
    console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)


def table(*headings: str | Text, left: int = 1, fold: Container[int] = (), **layout: Any) -> Table:
    """An empty table: the first ``left`` columns are left-aligned; ``fold`` are wrapped within words."""
    out = Table(**{"box": box.SIMPLE_HEAD, "pad_edge": False, **layout})
    for i, heading in enumerate(headings):
        out.add_column(heading, justify="left" if i < left else "right", overflow="fold" if i in fold else "ellipsis")
    return out


def mean_and_spread(name: str, values: Sequence[float], *, is_rate: bool) -> str:
    """``0.4312 ± 0.0067``, or percent for error rates."""
    from dpadmm.training.metrics import spread

    percent = is_rate and "error" in name
    scale, unit, digits = (100.0, "%", 2) if percent else (1.0, "", 4)
    mean = f"{np.mean(values) * scale:.{digits}f}"
    around = f" ± {spread(values) * scale:.{digits}f}" if len(values) > 1 else ""
    return f"{mean}{around}{unit}"


def epsilon_text(value: float) -> str:
    """ε with four digits."""
    return f"{value:.4f}" if np.isfinite(value) else "∞ (no privacy)"


def number_range(values: ArrayLike, form: str = ".4f") -> str:
    """``smallest to largest``, or one number if they look the same."""
    low, high = f"{np.min(values):{form}}", f"{np.max(values):{form}}"
    return low if low == high else f"{low} to {high}"


def rounded_up(epsilon: float) -> str:
    """ε with four digits, rounded up: a guarantee must not be understated."""
    return f"{math.ceil(epsilon * 1e4 * (1.0 - 1e-9)) / 1e4:.4f}"


def rounded_down(epsilon: float) -> str:
    """A remaining ε with four digits, rounded down, up to a relative error of 1e-9."""
    return f"{math.floor(epsilon * 1e4 * (1.0 + 1e-9)) / 1e4:.4f}"


@contextmanager
def waiting(what: str, *, quiet: bool) -> Iterator[None]:
    """A spinner on stderr if that is a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with console.status(escape(what)):
        yield
