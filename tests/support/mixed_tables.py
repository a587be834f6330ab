"""Tables of 20 columns of mixed kinds with missing cells, and studies of them."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpadmm.data.schema import Boolean, Category, Column, Label, Number, Ordinal, Schema
from dpadmm.studies.checks import dotted
from dpadmm.studies.settings import CHOICES
from dpadmm.studies.study import TABLES, Study

GRADES = ("low", "middle", "high")
REGIONS = ("north", "east", "south", "west")
CLASSES = ("well", "ill")

COLUMNS: tuple[Column, ...] = (
    *(Number(f"n{j}", (-2.0, 2.0)) for j in range(6)),
    *(Number(f"i{j}", (-2.0, 2.0), missing="indicator") for j in range(2)),
    Number("income", (100.0, 100_000.0), transform="log"),
    Number("age", (18.0, 90.0), bins=(30.0, 50.0, 70.0)),
    *(Category(f"region{j}", REGIONS) for j in range(3)),
    *(Ordinal(f"grade{j}", GRADES) for j in range(2)),
    Ordinal("grade2", GRADES, missing="indicator"),
    *(Boolean(f"flag{j}") for j in range(3)),
    Boolean("flag3", missing="indicator"),
)
SCHEMA = Schema(COLUMNS)
assert len(COLUMNS) == 20

KNOTS = {"n0": (-1.0, 0.0, 0.5), "income": (1000.0, 5000.0)}
CROSSED = Schema(
    tuple(replace(item, knots=KNOTS[item.name]) if item.name in KNOTS else item for item in COLUMNS),
    interactions=(
        ("n1", "n2"), ("i0", "region0"), ("region0", "region1"), ("age", "flag3"), ("income", "grade2"), ("n0", "n1"),
        ("n1", "grade0"), ("region1", "age"),
    ),
)  # fmt: skip
"""The same columns, two of them as splines, and pairs of all kinds."""


def make_cells(n: int, *, seed: int = 0, missing: float = 0.05) -> dict[str, list[Any]]:
    """Return columns of plain values, None for missing cells, with a few out of bounds or unknown.

    In addition to the features: the label, one of three classes, a number, the owner, and a name for every row.
    """
    rng = np.random.default_rng(seed)
    cells: dict[str, list[Any]] = {}
    signal = np.zeros(n)
    for column in COLUMNS:
        if isinstance(column, Number):
            z = rng.normal(size=n)
            low, high = column.bounds
            values = np.exp(8.0 + z) if column.transform == "log" else 0.5 * (low + high) + z * (high - low) / 4.0
            signal += 0.5 * z
            cells[column.name] = values.round(6).tolist()
        elif isinstance(column, Boolean):
            truth = rng.random(n) < 0.5
            signal += truth - 0.5
            cells[column.name] = np.where(truth, "true", "false").tolist()
        else:
            allowed = column.values  # type: ignore[union-attr]
            codes = rng.integers(len(allowed) + (rng.random(n) < 0.01))
            signal += 0.5 * (codes - (len(allowed) - 1) / 2.0)
            cells[column.name] = [(*allowed, "elsewhere")[code] for code in codes]
    for values in cells.values():
        for row in np.flatnonzero(rng.random(n) < missing):
            values[row] = None
    noisy = signal + rng.logistic(size=n) * 0.5
    cells["outcome"] = [CLASSES[int(value > 0.0)] for value in noisy]
    cells["level"] = [GRADES[int(value > -1.0) + int(value > 1.0)] for value in noisy]
    cells["price"] = (50.0 + 10.0 * noisy).round(3).tolist()
    cells["site"] = [("a", "b", "c")[row % 3] for row in range(n)]
    cells["row name"] = [f"r{row:05d}" for row in range(n)]
    return cells


def write_csv(path: Path, cells: dict[str, list[Any]]) -> Path:
    """Write a CSV file. Missing cells are empty."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(cells)
        writer.writerows(zip(*cells.values(), strict=True))
    return path


LABELS = {
    "logistic": Label("outcome", classes=CLASSES),
    "hinge": Label("outcome", classes=CLASSES),
    "softmax": Label("level", classes=GRADES),
    "huber": Label("price", bounds=(0.0, 100.0)),
    "squared": Label("price", bounds=(0.0, 100.0)),
}


def make_study(loss: str = "logistic", *, schema: Schema = SCHEMA, **training: Any) -> Study:
    """Return a study of such a table."""
    settings = {"method": "dp_admm", "loss": loss, "epsilon": 2.0, "delta": 1e-5, "n_rounds": 15, "intercept": True}
    return Study(name=f"mixed, {loss}", schema=schema, label=LABELS[loss], training={**settings, **training})


def to_toml(study: Study) -> str:
    """Return the study's file."""
    about = study.as_json()
    lines = [f"{name} = {json.dumps(about[name])}" for name in ("format", "name", "adjacency", "allow_missed_rounds")]
    lines += ["[label]", *(f"{k} = {json.dumps(v)}" for k, v in about["label"].items() if v is not None)]
    for column in about["columns"]:
        lines.append(f"[columns.{json.dumps(column.pop('name'))}]")
        lines += [f"{k} = {json.dumps(v)}" for k, v in column.items() if v not in (None, [])]
    for table in (*CHOICES, *TABLES, "provenance"):
        lines += [f"[{table}]", *(f"{k} = {json.dumps(v)}" for k, v in dotted(about[table]).items())]
    return "\n".join(lines) + "\n"
