"""Read a grid of runs from a TOML file. Each cell is identified by a digest of its settings.

Settings under ``shared``, of the grid or of an experiment, apply to all its runs that do not set them. A list means one
run for each of its values. All lists of a block are crossed, and so are the seeds. A cell that appears in several
experiments is run once.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from dpadmm.errors import StudyError
from dpadmm.files.toml import read_toml
from dpadmm.parameters.fields import Count, Parameter, check_names
from dpadmm.studies.settings import Settings
from reproduction.results import SETTINGS, grid_digest, settings_columns, settings_from_columns

FORMAT = 1
DATA_KEYS = ("data", "label", "classes", "by")
MAX_RUNS = 20_000
"""Limit for all experiments together: more would fill the memory before the first run starts."""

_TOP = ("format", "title", *DATA_KEYS, "repeats", "first_seed", "shared", "experiments")
_SEED = Annotated[int, Meta(ge=0)]
_SETTINGS = tuple(name for name in SETTINGS if name != "seed")


@dataclass(frozen=True)
class Cell:
    """One run of one method with one seed. A ``timed`` cell runs alone on the machine, with all cores."""

    data: str
    settings: Settings
    timed: bool = False

    @cached_property
    def key(self) -> str:
        """16 hex digits of a digest of data, settings and ``timed``."""
        what = {"data": self.data, "settings": settings_columns(self.settings), "timed": self.timed}
        return sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Experiment:
    """Cells that belong to one figure or table."""

    name: str
    title: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class ExperimentGrid:
    """Experiments over one data set."""

    written: dict[str, Any]  # the checked contents of the grid file, with defaults
    experiments: tuple[Experiment, ...]

    @property
    def data(self) -> dict[str, Any]:
        """The data: ``data`` and, for files, ``label``, ``classes`` and ``by``."""
        return {name: self.written[name] for name in DATA_KEYS if name in self.written}

    def cells(self, names: Sequence[str] | None = None) -> tuple[Cell, ...]:
        """Return the cells of all or of some experiments, each once, in the order of the grid."""
        chosen = [
            experiment for experiment in self.experiments if names is None or experiment.name in self.validated(names)
        ]
        return tuple({cell.key: cell for experiment in chosen for cell in experiment.cells}.values())

    def validated(self, names: Sequence[str]) -> list[str]:
        """Return the names, or raise an error that lists the experiments."""
        have = [experiment.name for experiment in self.experiments]
        for name in names:
            if name not in have:
                raise StudyError(f"there is no experiment {name!r}; there are {', '.join(have)}")
        return list(names)

    @cached_property
    def as_json(self) -> dict[str, Any]:
        """The grid with the keys of every experiment's cells, as stored in a results file."""
        experiments = {
            experiment.name: {
                **self.written["experiments"][experiment.name],
                "cells": [cell.key for cell in experiment.cells],
            }
            for experiment in self.experiments
        }
        return {**self.written, "data": _data_name(self.written["data"]), "experiments": experiments}

    @property
    def digest(self) -> str:
        return grid_digest(self.as_json)


def read_grid(path: Path, *, repeats: int | None = None) -> ExperimentGrid:
    return grid_from(read_toml(path), str(path), repeats=repeats)


def grid_from(table: Mapping[str, Any], where: str = "grid", *, repeats: int | None = None) -> ExperimentGrid:
    """Return a grid from a parsed TOML table.

    ``repeats`` replaces the grid's own, and caps that of each block.

    Examples
    --------
    >>> runs = [{"method": "dp_admm", "epsilon": [0.5, 1.0], "n_agents": [5, 10]}]
    >>> grid = grid_from({"data": "synthetic", "repeats": 3, "experiments": {"a": {"runs": runs}}})
    >>> len(grid.cells())
    12
    """
    if "seed" in table:
        raise StudyError(f"{where}: seeds are counted from first_seed; write that in place of seed")
    check_names(table, _TOP, where)
    if table.get("format", FORMAT) != FORMAT:
        raise StudyError(f"{where}: format must be {FORMAT}, not {table['format']!r}")
    written: dict[str, Any] = {
        "format": FORMAT,
        "title": _checked(table.get("title", ""), "title", str, where),
        **{name: _plain_data(table[name], name, where) for name in DATA_KEYS if name in table},
        "data": _checked(table.get("data", "adult"), "data", str, where),
        "repeats": _checked(repeats or table.get("repeats", 1), "repeats", Count, where),
        "first_seed": _checked(table.get("first_seed", 1), "first_seed", _SEED, where),
        "shared": _shared(table.get("shared", {}), where),
        "experiments": {},
    }
    if "by" in written:
        written["shared"].setdefault("partition", "groups")
    experiments = _table(table.get("experiments", {}), "experiments", where)
    if not experiments:
        raise StudyError(f"{where}: a grid needs at least one experiment, [experiments.NAME] with runs")
    experiment_list, room = [], MAX_RUNS
    for name, about in experiments.items():
        place = f"{where}, experiment {name}"
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise StudyError(f"{place}: a name may have letters, digits, - and _ only")
        about = _table(about, name, where)
        check_names(about, ("title", "shared", "runs"), place)
        blocks = about.get("runs", [])
        if not isinstance(blocks, list) or not blocks or not all(isinstance(block, dict) for block in blocks):
            raise StudyError(f"{place}: it needs at least one block [[experiments.{name}.runs]]")
        title = _checked(about.get("title", name), "title", str, place)
        common = _shared(about.get("shared", {}), place)
        extra = {"shared": common} if common else {}
        written["experiments"][name] = {"title": title, **extra, "runs": blocks}
        cells: list[Cell] = []
        for k, block in enumerate(blocks, 1):
            chosen = {**common, **block}
            cells += _cells(chosen, written, f"{place}, block {k}", most=repeats, room=room - len(cells))
        room -= len(cells)
        experiment_list.append(Experiment(name, title, tuple({cell.key: cell for cell in cells}.values())))
    return ExperimentGrid(written, tuple(experiment_list))


def _cells(
    block: Mapping[str, Any], written: Mapping[str, Any], where: str, *, most: int | None, room: int
) -> Iterator[Cell]:
    """Yield the runs of one block: its lists crossed in the order of the file, seeds innermost."""
    check_names(block, (*_SETTINGS, "timed", "repeats"), where)
    chosen = dict(block)
    every = {**written["shared"], **chosen}
    if "by" in written and every["partition"] != "groups":
        raise StudyError(f"{where}: by names the column of the owners, so partition cannot be {every['partition']!r}")
    if "by" in written and "n_agents" in every:
        raise StudyError(f"{where}: by determines the agents; leave n_agents out")
    timed = _checked(chosen.pop("timed", False), "timed", bool, where)
    repeats = _checked(chosen.pop("repeats", written["repeats"]), "repeats", Count, where)
    repeats = min(repeats, most or repeats)
    seeds = range(written["first_seed"], written["first_seed"] + repeats)
    lists = {name: value if isinstance(value, list) else [value] for name, value in chosen.items()}
    for name, values in lists.items():
        if not values or any(isinstance(value, list | dict) for value in values):
            raise StudyError(f"{where}: {name} must be one value or a list of values, not {chosen[name]!r}")
    if repeats * math.prod(map(len, lists.values())) > room:
        raise StudyError(f"{where}: a grid has at most {MAX_RUNS:,} runs, and this makes it larger")
    data = _data_name(written["data"])
    for combination in itertools.product(*lists.values()):
        for seed in seeds:
            try:
                settings = settings_from_columns(
                    {**written["shared"], **dict(zip(lists, combination, strict=True)), "seed": seed}
                )
            except StudyError as error:
                raise StudyError(f"{where}: {error}") from None
            if settings.metrics_every == 0:
                raise StudyError(f"{where}: metrics_every must be at least 1: a grid keeps measures only")
            yield Cell(data, settings, timed)


def _shared(table: Any, where: str) -> dict[str, Any]:
    """Return the settings that apply to all runs of a grid or experiment that do not set them."""
    shared = _table(table, "shared", where)
    check_names(shared, _SETTINGS, f"{where}, shared")
    for name, value in shared.items():
        if isinstance(value, list | dict):
            raise StudyError(f"{where}, shared: {name} must be one value; lists belong into the runs")
    return shared


def _data_name(source: str) -> str:
    """Return a file's name without its folder, so that the grid can be run from anywhere."""
    return Path(source).name


def _plain_data(value: Any, name: str, where: str) -> Any:
    """Return a data key: text, or for ``classes`` also a list of texts and numbers."""
    listed = isinstance(value, list) and all(isinstance(item, str | int | float) for item in value)
    return value if name == "classes" and listed else _checked(value, name, str, where)


def _table(value: Any, name: str, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise StudyError(f"{where}: {name} must be a table, not {value!r}")
    return dict(value)


def _checked(value: Any, name: str, kind: Any, where: str) -> Any:
    return Parameter(name, kind, None, "").checked(value, f"{where}: ")
