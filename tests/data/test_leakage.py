"""Columns that alone tell the label: by value, threshold, line or missing cell; and none by chance."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from looping import case

from dpadmm.data import leakage
from dpadmm.data.leakage import LeakyColumn, leakage_warnings, leaky_columns, sample_cells

N = 600
RNG = np.random.default_rng(3)
ILL = RNG.random(N) < 0.3
AGE = RNG.uniform(20, 90, N)


def leaky(path: Path, names: list[str], *, numbers: list[str], n_rows: int) -> list[LeakyColumn]:
    cells = sample_cells(path, [*names, "y"], numbers=numbers, n_rows=n_rows)
    return leaky_columns(cells, names, "y", numbers=numbers)


def found(tmp_path, cells: Any, label: Any = ILL, *, numbers=("x",), kind="csv"):
    path = tmp_path / f"t.{kind}"
    table = pa.table({"x": cells, "age": AGE[: len(label)], "y": pa.array(label).cast(pa.string())})
    if kind == "csv":
        pa.csv.write_csv(table, path)
    else:
        pa.parquet.write_table(table, path)
    columns = leaky(path, ["x", "age"], numbers=[*numbers, "age"], n_rows=len(label))
    assert all(column.name == "x" for column in columns)  # never the age, which is independent of the label
    return [(column.n_correct, column.n_rows) for column in columns]


TELLING = {
    "boolean": (np.where(ILL, "Yes", "no"), ()),
    "category": (np.where(ILL, "dead", RNG.choice(["a", "b", "c"], N)), ()),
    "code": (np.where(ILL, 2, RNG.choice([1, 3], N)), ("x",)),
    "threshold": (AGE / 100.0 + ILL, ("x",)),
    "threshold below": (AGE / 100.0 - ILL, ("x",)),
    "filled in afterwards": (pa.array(AGE, mask=~ILL), ("x",)),
    "filled in beforehand": (pa.array(np.where(ILL, "", "b")), ()),
}


def test_a_column_that_tells_is_found(tmp_path_factory: pytest.TempPathFactory):
    for name, kind in product(TELLING, ["csv", "parquet"]):
        with case(name, kind):
            tmp_path = tmp_path_factory.mktemp("case")
            cells, numbers = TELLING[name]
            assert found(tmp_path, cells, numbers=numbers, kind=kind) == [(N, N)]


def test_a_few_rows_may_be_told_wrongly(tmp_path):
    flipped = ILL.copy()
    flipped[:3] ^= True
    assert found(tmp_path, flipped.astype(int)) == [(N - 3, N)]
    flipped[3] ^= True
    assert found(tmp_path, flipped.astype(int)) == []


def test_of_a_rare_label_few_of_the_rare_rows_may_be_told_wrongly(tmp_path):
    rare = np.arange(N) < 10
    assert found(tmp_path, rare.astype(int), rare) == [(N, N)]
    assert found(tmp_path, (np.arange(N) < 8).astype(int), rare) == []  # 598 of 600, but 8 of 10
    assert found(tmp_path, (np.arange(N) < 4).astype(int), np.arange(N) < 4) == []  # may be chance


@pytest.mark.parametrize(
    "cells", [[f"p{i}" for i in range(N)], [f"p{i % 300}" for i in range(N)]], ids=["different", "in pairs"]
)
def test_rare_values_tell_nothing(tmp_path, cells):
    assert found(tmp_path, cells, numbers=()) == []
    assert found(tmp_path, [float(text[1:]) for text in cells]) == []


def test_few_rows_tell_nothing(tmp_path):
    assert found(tmp_path, ILL[:49].astype(int), ILL[:49]) == []
    assert found(tmp_path, ILL[:50].astype(int), ILL[:50]) == [(50, 50)]


def test_rows_without_a_label_do_not_count(tmp_path):
    label = pa.array(ILL, mask=np.arange(N) < 100)
    assert found(tmp_path, ILL.astype(int), label) == [(500, 500)]


def test_numbers_are_told_by_a_line(tmp_path):
    cost = AGE[::-1] * 3.0
    told = {"numbers": ("x", "y")}
    assert found(tmp_path, 7.0 - cost / 2.0, cost, **told) == [(N, N)]
    assert found(tmp_path, cost + RNG.normal(0, 20, N), cost, **told) == []
    assert found(tmp_path, np.full(N, 4.0), cost, **told) == []
    assert found(tmp_path, pa.array(cost, mask=ILL), cost, **told) == []


def test_of_a_large_table_rows_are_left_out_evenly(tmp_path, monkeypatch):
    monkeypatch.setattr(leakage, "MAX_ROWS", 100)
    in_order = np.sort(ILL)  # the first hundred have one label
    assert found(tmp_path, in_order.astype(int), in_order) == [(100, 100)]


def test_the_warning_says_what_to_do(tmp_path):
    path = tmp_path / "t.csv"
    pa.csv.write_csv(pa.table({"x": ILL.astype(int), "y": ILL.astype(int)}), path)
    (warning,) = leakage_warnings(leaky(path, ["x"], numbers=[], n_rows=N))
    assert warning.startswith(
        "column 'x' alone determines the label in 600 of 600 rows: is it known before the outcome? If not, leave"
    )
