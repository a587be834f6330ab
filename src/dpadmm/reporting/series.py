"""Lines of a results file -> groups, curves by round, values at the end. All aggregation is here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpadmm._base.arrays import Floats
from dpadmm.experiments.results import Results
from dpadmm.optim.losses import LOSSES
from dpadmm.study.settings import Settings, flat_parameters
from dpadmm.training.methods import METHODS as REGISTERED
from dpadmm.training.metrics import spread

BUDGETS = {"round_epsilon": "ε per round", "epsilon": "total ε", "noise_multiplier": "noise multiplier z"}
"""Columns that say how much noise there is, in words; a run has one of them."""

_NOT_A_VARIANT = {"method", "seed", "n_agents", "delta", "test_rows", "metrics_every", *BUDGETS}


@dataclass(frozen=True)
class Curve:
    """Mean and standard deviation over the seeds, by ``x``."""

    x: Floats
    mean: Floats
    std: Floats
    n_seeds: int

    def __len__(self) -> int:
        return len(self.x)


def where(results: Results, **equals: Any) -> Results:
    """The lines in which every named column has the given value; None means empty."""
    mask = pa.chunked_array([np.ones(len(results), dtype=bool)])
    for name, value in equals.items():
        column = results.table.column(name)
        same = pc.is_null(column) if value is None else pc.equal(column, pa.scalar(value, column.type))
        mask = pc.and_(mask, pc.fill_null(same, False))
    return keep(results, mask)


def keep(results: Results, mask: Any) -> Results:
    """The lines where ``mask`` is true."""
    return replace(results, table=results.table.filter(mask))


def done(results: Results) -> Results:
    """The lines of runs that were not refused."""
    return where(results, status="done")


def distinct(results: Results, column: str) -> list[Any]:
    """The values of a column, each once, in order; empty ones are left out."""
    values = pc.drop_null(pc.unique(results.table.column(column))).to_pylist()
    return sorted(values, key=lambda value: (isinstance(value, str), value))


def split(results: Results, *columns: str) -> dict[tuple[Any, ...], Results]:
    """The lines for each combination of values that occurs, empty values last."""
    if not columns:
        return {(): results} if len(results) else {}
    first, *others = columns
    values: list[Any] = [*distinct(results, first)]
    if results.table.column(first).null_count:
        values.append(None)
    return {
        (value, *rest): lines
        for value in values
        for rest, lines in split(where(results, **{first: value}), *others).items()
    }


def begun(results: Results) -> list[str]:
    """The experiments that were run at least in part; cells shared with another experiment do not count."""
    present = set(pc.unique(results.table.column("cell")).to_pylist())
    cells = {name: set(about["cells"]) for name, about in results.grid["experiments"].items()}
    in_how_many = Counter(cell for each in cells.values() for cell in each)
    found = []
    for name, mine in cells.items():
        own = {cell for cell in mine if in_how_many[cell] == 1}
        if own & present or (not own and mine <= present):
            found.append(name)
    return found


def missing(results: Results) -> int:
    """How many runs of the experiments that were begun are missing."""
    present = set(pc.unique(results.table.column("cell")).to_pylist())
    wanted = {cell for name in begun(results) for cell in results.grid["experiments"][name]["cells"]}
    return len(wanted - present)


def budget_column(results: Results) -> str:
    """Which column says how much noise these runs have."""
    for name in BUDGETS:
        if results.table.column(name).null_count < len(results):
            return name
    return "round_epsilon"


def variants(results: Results) -> dict[str, Results]:
    """Label -> lines, for each method and each of its settings if there are several."""
    out: dict[str, Results] = {}
    for method in sorted(distinct(results, "method"), key=_rank):
        lines = where(results, method=method)
        names = [name for name in _setting_names(lines) if _varies(lines, name)]
        for values, group in split(lines, *names).items():
            words = [_in_words(name, value) for name, value in zip(names, values, strict=True)]
            label = ", ".join([METHODS.get(method, method), *(word for word in words if word)])
            out[label if label not in out else f"{label} ({len(out)})"] = group
    return out


METHODS = {name: method.title for name, method in REGISTERED.items()}
"""Display names of the methods, in display order."""


def _rank(method: str) -> int:
    return list(METHODS).index(method) if method in METHODS else len(METHODS)


def _setting_names(results: Results) -> list[str]:
    known = set(results.table.column_names)
    return [name for name in flat_parameters(Settings) if name in known and name not in _NOT_A_VARIANT]


def _varies(results: Results, name: str) -> bool:
    return len(pc.unique(results.table.column(name))) > 1


def _in_words(name: str, value: Any) -> str:
    if isinstance(value, float):
        value = f"{value:g}"
    match name:
        case "learning_rate":
            return "default rate" if value is None else f"rate {value}"
        case "average":
            return {"last": "", "all": "averaged", "tail": "tail average"}.get(value, str(value))
        case "sampling":
            return "" if value == "1" else f"{value} of the rows a round"
        case "split_regularizer":
            return "split" if value else ""
        case "mechanism":
            return str(value)
        case "regularizer":
            return {"l1": "L1", "l2": "L2"}.get(value, str(value))
        case "reg_share":
            return f"λ/n = {value}"
        case "weight_radius":
            return f"c_w = {value}"
    return f"{name.replace('_', ' ')} {value}"


ONE_MODEL = ("dp_sgd", "centralized")
"""Methods without local models; their single model is reported as the local one."""


def measure(results: Results, name: str) -> Floats:
    """A measure of every line."""
    return np.array(results.column(name), dtype=float)


def has_local(results: Results) -> bool:
    """Whether any of the lines is of a method with local models."""
    return bool(set(distinct(results, "method")) - set(ONE_MODEL)) and has(results, "train_loss_local")


def has(results: Results, name: str) -> bool:
    """Whether a measure was taken in any of the lines."""
    return bool(len(results)) and bool(np.isfinite(measure(results, name)).any())


def by_round(results: Results, name: str) -> Curve:
    """A measure by round: mean and spread over the seeds, at rounds that every run measured."""
    return _curve(measure(results, name), np.array(results.column("round"), dtype=float))


def by_end(results: Results, name: str, x: str) -> Curve:
    """A measure at the end of the runs, by the values of column ``x``."""
    last = results.last()
    return _curve(measure(last, name), np.array(last.column(x), dtype=float), everywhere=False)


def flat(results: Results, name: str, points: Iterable[float]) -> Curve:
    """A measure at the end of runs without noise, the same at all ``points``."""
    at, (mean, std) = np.array(sorted(points)), mean_std(at_end(results, name))
    return Curve(at, np.full(len(at), mean), np.full(len(at), std), len(distinct(results, "seed")))


def _curve(values: Floats, x: Floats, *, everywhere: bool = True) -> Curve:
    points, counts = np.unique(x[~np.isnan(x)], return_counts=True)
    most = int(counts.max(initial=0))
    if everywhere:
        points = points[counts == most]
    groups = [values[x == point] for point in points]
    return Curve(points, np.array([np.mean(g) for g in groups]), np.array([spread(g) for g in groups]), most)


def at_end(results: Results, name: str) -> dict[int, float]:
    """A measure at the end of the runs: seed -> value."""
    last = results.last()
    pairs = zip(last.column("seed"), measure(last, name), strict=True)
    return {int(seed): float(value) for seed, value in pairs if np.isfinite(value)}


def mean_std(values: Iterable[float] | Mapping[int, float]) -> tuple[float, float]:
    """Mean and standard deviation; NaN where there is nothing."""
    numbers = np.array(list(values.values() if isinstance(values, Mapping) else values), dtype=float)
    return (float(numbers.mean()), float(spread(numbers))) if numbers.size else (np.nan, np.nan)


def with_optimum(results: Results, experiment: str) -> Results:
    """An experiment's lines and the non-private optimum of the same problem, from anywhere in the file."""
    lines = results.select(experiment)
    same = {name: distinct(lines, name) for name in ("regularizer", "loss", "reg_share")}
    optimum = results.select(None, method="centralized", **same)
    cells = [*results.grid["experiments"][experiment]["cells"], *optimum.cells]
    return results.select(cell=cells)


def about(results: Results) -> str:
    """``adult, L2, 10 random splits``: what the lines of a figure have in common."""
    shown = [("data", distinct(results, "data")), ("regularizer", distinct(results, "regularizer"))]
    words = [
        str(values[0]).replace("l1", "L1").replace("l2", "L2") for _, values in shown if len(values) == 1
    ]
    n_seeds = len(distinct(results, "seed"))
    return ", ".join([*words, f"{n_seeds} random split{'s' if n_seeds != 1 else ''}"])


def spread_note(results: Results) -> str:
    """The sentence that explains bands; empty without repeats."""
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
