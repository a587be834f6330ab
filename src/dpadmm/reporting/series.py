"""Lines of a results file -> groups, curves by round, values at the end: the only place that aggregates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpadmm.arrays import Floats
from dpadmm.metrics import spread
from dpadmm.results import Results
from dpadmm.settings import Settings

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
    """The lines of runs that took place."""
    return where(results, status="done")


def distinct(results: Results, column: str) -> list[Any]:
    """The values of a column, each once, in order; empty ones are left out."""
    values = pc.drop_null(pc.unique(results.table.column(column))).to_pylist()
    return sorted(values, key=lambda value: (isinstance(value, str), value))


def split(results: Results, *columns: str) -> dict[tuple[Any, ...], Results]:
    """The lines for every combination of values that is there, empty values last."""
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
    """The experiments that were run, if only in part: cells shared with another experiment do not tell."""
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
    """How many runs of the experiments that were begun are not in the results."""
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
    """The lines of every method, and of every way it was set where there are several: label -> lines."""
    out: dict[str, Results] = {}
    for method in sorted(distinct(results, "method"), key=_rank):
        lines = where(results, method=method)
        names = [name for name in _setting_names(lines) if _varies(lines, name)]
        for values, group in split(lines, *names).items():
            words = [_in_words(name, value) for name, value in zip(names, values, strict=True)]
            label = ", ".join([METHODS.get(method, method), *(word for word in words if word)])
            out[label if label not in out else f"{label} ({len(out)})"] = group
    return out


METHODS = {
    "dp_admm": "DP-ADMM",
    "admm": "ADMM",
    "admm_pvp": "PVP",
    "admm_dvp": "DVP",
    "dp_sgd": "DPSGD",
    "output_perturbation": "output perturbation",
    "objective_perturbation": "objective perturbation",
    "centralized": "optimum",
}
"""Methods as people call them, in the order they are shown."""


def _rank(method: str) -> int:
    return list(METHODS).index(method) if method in METHODS else len(METHODS)


def _setting_names(results: Results) -> list[str]:
    known = set(results.table.column_names)
    return [f.name for f in fields(Settings) if f.name in known and f.name not in _NOT_A_VARIANT]


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
"""Methods whose agents have no models of their own: what counts as local is their one model."""


def measure(results: Results, name: str) -> Floats:
    """A measure of every line."""
    return np.array(results.column(name), dtype=float)


def has_local(results: Results) -> bool:
    """Whether any of the lines is of a method whose agents have models of their own."""
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
