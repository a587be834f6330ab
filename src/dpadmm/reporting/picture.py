"""A figure with what must be said about it."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.figure import Figure

from dpadmm.losses import LOSSES
from dpadmm.reporting.series import at_end, distinct, done, mean_std, where
from dpadmm.results import Results


@dataclass(frozen=True)
class Picture:
    """A finished figure: file name, heading, caption (which is also read out in place of the picture)."""

    name: str
    title: str
    caption: str
    figure: Figure


def with_optimum(results: Results, experiment: str) -> Results:
    """An experiment's lines, and the non-private optimum of the same problem wherever in the file it is."""
    lines = results.select(experiment)
    same = {name: distinct(lines, name) for name in ("regularizer", "loss", "reg_share")}
    optimum = results.select(None, method="centralized", **same)
    cells = [*results.grid["experiments"][experiment]["cells"], *optimum.cells]
    return results.select(cell=cells)


def about(results: Results) -> str:
    """``Adult, L2, 10 splits``: what the lines of a figure have in common."""
    shown = [("data", distinct(results, "data")), ("regularizer", distinct(results, "regularizer"))]
    words = [
        str(values[0]).replace("l1", "L1").replace("l2", "L2") for _, values in shown if len(values) == 1
    ]
    n_seeds = len(distinct(results, "seed"))
    return ", ".join([*words, f"{n_seeds} random split{'s' if n_seeds != 1 else ''}"])


def spread(results: Results) -> str:
    """The sentence that says what a band is; empty where nothing was repeated."""
    n_seeds = len(distinct(results, "seed"))
    return f"Bands: ± one standard deviation over {n_seeds} splits. " if n_seeds > 1 else ""


def is_regression(results: Results) -> bool:
    """Whether errors in these lines are RMS errors, not rates."""
    return any(LOSSES[loss].task == "regression" for loss in distinct(results, "loss"))


def optimum(results: Results, name: str) -> float:
    """The non-private optimum's measure, mean over the seeds; NaN where it was not run."""
    lines = where(done(results), method="centralized")
    return mean_std(at_end(lines, name))[0] if len(lines) else float("nan")


def number_list(values: list[float]) -> str:
    """``0.05, 0.1 and 0.2``.

    Examples
    --------
    >>> number_list([0.05, 0.1, 0.2])
    '0.05, 0.1 and 0.2'
    """
    words = [f"{value:g}" for value in values]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""
