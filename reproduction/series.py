"""Groups of rows, curves by round and values at the end of runs. All aggregation is in this module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from dpadmm.baselines import METHOD_TITLES, ONE_MODEL
from dpadmm.engine.metrics import spread
from dpadmm.figures.comparison import BUDGETS
from dpadmm.figures.style import Curve
from dpadmm.losses import LOSSES
from reproduction.results import SETTINGS, Results

_NOT_A_VARIANT = {"method", "seed", "n_agents", "delta", "test_rows", "metrics_every", *BUDGETS}


class NoRunsError(Exception):
    """The results have no runs for a figure or a claim."""


def need(*runs: object) -> None:
    """Raise ``NoRunsError`` unless all arguments are true or not empty."""
    if not all(runs):
        raise NoRunsError


def done(results: Results) -> Results:
    """Return the rows of runs that were not refused."""
    return results.select(status="done")


def distinct(results: Results, column: str) -> list[Any]:
    """Return the distinct values of a column in order, without missing ones."""
    return sorted(results.frame[column].dropna().unique().tolist())


def split(results: Results, *columns: str) -> dict[tuple[Any, ...], Results]:
    """Return the rows of each combination of values, in order. Missing values are None and come last."""
    groups = results.frame.groupby(list(columns), dropna=False)
    return {
        tuple(None if pd.isna(value) else value for value in values): replace(results, frame=frame)
        for values, frame in groups
    }


def started(results: Results) -> list[str]:
    """Return the experiments with at least one own run. Cells shared with other experiments do not count."""
    present = set(results.cells)
    cells = {name: set(about["cells"]) for name, about in results.grid["experiments"].items()}
    in_how_many = Counter(cell for own in cells.values() for cell in own)

    def was_started(own_cells: set[str]) -> bool:
        own = {cell for cell in own_cells if in_how_many[cell] == 1}
        return bool(own & present) if own else own_cells <= present

    return [name for name, own_cells in cells.items() if was_started(own_cells)]


def missing(results: Results) -> int:
    """Return the number of missing runs of the experiments that were started."""
    wanted = {cell for name in started(results) for cell in results.grid["experiments"][name]["cells"]}
    return len(wanted.difference(results.cells))


def budget_column(results: Results) -> str:
    """Return the column with the privacy budget of these runs."""
    return next((name for name in BUDGETS if results.frame[name].notna().any()), "round_epsilon")


_SETTING_LABELS: dict[str, Callable[[Any], str]] = {
    "learning_rate": lambda value: "default rate" if value is None else f"rate {value}",
    "average": lambda value: {"last": "", "all": "averaged", "tail": "tail average"}.get(value, str(value)),
    "sampling": lambda value: "" if value == "1" else f"{value} of the rows a round",
    "split_regularizer": lambda value: "split" if value else "",
    "mechanism": str,
    "aggregation": lambda value: "secure aggregation" if value == "secure" else "",
    "min_honest_sites": lambda value: "" if value is None else f"h = {value}",
    "aborted_rounds": lambda value: "" if value == "0" else f"{value} of the rounds aborted",
    "regularizer": lambda value: {"l1": "L1", "l2": "L2"}.get(value, str(value)),
    "alpha": lambda value: f"λ/n = {value}",
    "weight_radius": lambda value: f"c_w = {value}",
}
"""Label of a setting by its value; any other setting is labelled by name and value."""


def variants(results: Results) -> dict[str, Results]:
    """Return rows by label: one label for each method, and for each of its settings if there are several."""
    order = {method: i for i, method in enumerate(METHOD_TITLES)}
    settings = [name for name in SETTINGS if name not in _NOT_A_VARIANT]
    out: dict[str, Results] = {}
    for method in sorted(distinct(results, "method"), key=lambda method: order.get(method, len(order))):
        lines = results.select(method=method)
        names = [name for name in settings if lines.frame[name].nunique(dropna=False) > 1]
        for values, group in split(lines, "method", *names).items():
            words = [_setting_label(name, value) for name, value in zip(names, values[1:], strict=True)]
            label = ", ".join([METHOD_TITLES.get(method, method), *filter(None, words)])
            out[label if label not in out else f"{label} ({len(out)})"] = group
    return out


def _setting_label(name: str, value: Any) -> str:
    value = f"{value:g}" if isinstance(value, float) else value
    return _SETTING_LABELS[name](value) if name in _SETTING_LABELS else f"{name.replace('_', ' ')} {value}"


def has_local(results: Results) -> bool:
    """Return whether any of the rows is of a method with local models."""
    return bool(set(distinct(results, "method")) - set(ONE_MODEL)) and has(results, "train_loss_local")


def has(results: Results, name: str) -> bool:
    """Return whether a measure exists in any of the rows."""
    return bool(results.frame[name].notna().any())


def error_column(results: Results) -> str:
    """Return the column of the global model's error: on test rows if there are any, else on training rows."""
    return "test_error_global" if has(results, "test_error_global") else "train_error_global"


def by_round(results: Results, name: str) -> Curve:
    """Return a measure by round: mean and spread over the seeds, at rounds that every run measured."""
    stats = _statistics(results, name, "round")
    return _curve(stats[stats["size"] == stats["size"].max()])


def by_end(results: Results, name: str, x: str) -> Curve:
    """Return a measure at the end of the runs, by the values of column ``x``."""
    return _curve(_statistics(results.last(), name, x))


def flat(results: Results, name: str, points: Iterable[float]) -> Curve:
    """Return a measure at the end of runs without noise, the same at all ``points``."""
    at, (mean, std) = np.array(sorted(points)), mean_std(at_end(results, name))
    return Curve(at, np.full(len(at), mean), np.full(len(at), std), results.frame["seed"].nunique())


def _statistics(results: Results, name: str, x: str) -> pd.DataFrame:
    return results.frame.groupby(x)[name].agg(["mean", "std", "size"])


def _curve(stats: pd.DataFrame) -> Curve:
    x = stats.index.to_numpy(dtype=float)
    most = 0 if stats.empty else int(stats["size"].max())
    return Curve(x, stats["mean"].to_numpy(), stats["std"].fillna(0.0).to_numpy(), most)


def at_end(results: Results, name: str) -> pd.Series:
    """Return a measure at the end of the runs, by seed."""
    return results.last().frame.groupby("seed")[name].last().dropna()


def mean_std(values: pd.Series) -> tuple[float, float]:
    """Return mean and standard deviation, or NaN without values."""
    return (float(values.mean()), float(spread(values))) if len(values) else (np.nan, np.nan)


def mean_and_spread(values: pd.Series, *, percent: bool, digits: int) -> str:
    """Format ``19.7 ± 0.4%``, without ± for a single split, or a dash without values."""
    mean, std = mean_std(values)
    scale, unit = (100.0, "%") if percent else (1.0, "")
    around = f" ± {scale * std:.{digits}f}" if len(values) > 1 else ""
    return f"{scale * mean:.{digits}f}{around}{unit}" if np.isfinite(mean) else "–"


def with_optimum(results: Results, experiment: str) -> Results:
    """Return an experiment's lines and the non-private optimum of the same problem from the whole file."""
    lines = results.select(experiment)
    same = {name: distinct(lines, name) for name in ("regularizer", "loss", "alpha")}
    optimum = results.select(None, method="centralized", **same)
    cells = [*results.grid["experiments"][experiment]["cells"], *optimum.cells]
    return results.select(cell=cells)


def about(results: Results) -> str:
    """Describe what the lines of a figure have in common: ``adult, L2, 10 random splits``."""
    shared = [values[0] for name in ("data", "regularizer") if len(values := distinct(results, name)) == 1]
    words = [str(value).replace("l1", "L1").replace("l2", "L2") for value in shared]
    return ", ".join([*words, random_splits(results)])


def random_splits(results: Results) -> str:
    n_seeds = len(distinct(results, "seed"))
    return f"{n_seeds} random split{'s' if n_seeds != 1 else ''}"


def spread_note(results: Results) -> str:
    """Return the sentence that explains bands, or an empty string without repeats."""
    n_seeds = len(distinct(results, "seed"))
    return f"Bands: ± one standard deviation over {n_seeds} splits. " if n_seeds > 1 else ""


def is_regression(results: Results) -> bool:
    """Return whether errors in these lines are RMS errors, not rates."""
    return any(LOSSES[loss].task == "regression" for loss in distinct(results, "loss"))


def optimum(results: Results, name: str) -> float:
    """Return the non-private optimum's measure, mean over the seeds, or NaN if it was not run."""
    lines = done(results).select(method="centralized")
    return mean_std(at_end(lines, name))[0] if len(lines) else float("nan")


def number_list(values: list[float]) -> str:
    """Join numbers as words.

    Examples
    --------
    >>> number_list([0.05, 0.1, 0.2])
    '0.05, 0.1 and 0.2'
    """
    words = [f"{value:g}" for value in values]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""
