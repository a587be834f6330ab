"""What the commands show: progress on stderr, tables on stdout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dpadmm.training import Observer, RoundView

NAMES = {
    "train_loss_global": "training loss, global model",
    "train_loss_local": "training loss, local models",
    "test_error_global": "test error, global model",
    "test_error_local": "test error, local models",
    "train_error_global": "training error, global model",
    "test_loss_global": "test loss, global model",
    "augmented_objective": "augmented objective (sum over agents)",
    "seconds": "seconds in rounds",
}


@contextmanager
def progress(total_rounds: int, what: str, *, quiet: bool) -> Iterator[Observer]:
    """A bar that moves with every round and vanishes at the end; nothing where no person watches."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    disabled = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disabled) as bar:
        task = bar.add_task(what, total=total_rounds)

        def advance(view: RoundView) -> None:
            bar.advance(task)

        yield advance


def table(*headings: str, title: str | None = None) -> Table:
    """An empty table in the house style: first column left, the others right."""
    out = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left", title_style="bold")
    for i, heading in enumerate(headings):
        out.add_column(heading, justify="left" if i == 0 else "right")
    return out


def mean_and_spread(name: str, values: Sequence[float], *, is_rate: bool) -> str:
    """``0.4312 ± 0.0067``, or percent for error rates."""
    percent = is_rate and "error" in name
    scale, unit, digits = (100.0, "%", 2) if percent else (1.0, "", 4)
    mean = f"{np.mean(values) * scale:.{digits}f}"
    spread = f" ± {np.std(values) * scale:.{digits}f}" if len(values) > 1 else ""
    return f"{mean}{spread}{unit}"


def epsilon_text(value: float) -> str:
    """An ε for people: four digits."""
    return f"{value:.4f}" if np.isfinite(value) else "∞ (no privacy)"
