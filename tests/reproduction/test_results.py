"""The results file: round trip, and refusal of invalid files in one sentence."""

from __future__ import annotations

import json
import resource

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpadmm
from dpadmm.data import Dataset
from dpadmm.errors import DataError
from reproduction.results import (
    SCHEMA,
    Results,
    data_stamp,
    read_results,
    remove_unfinished,
    write_results,
)

LINES = [
    {"cell": "a", "round": 1, "method": "dp_admm", "n_agents": 5, "epsilon": 0.5, "test_error_global": 0.4},
    {"cell": "a", "round": 2, "method": "dp_admm", "n_agents": 5, "epsilon": 0.5, "test_error_global": 0.3},
    {"cell": "b", "round": 1, "method": "dp_admm", "n_agents": 9, "epsilon": 1.0, "test_error_global": 0.2},
    {"cell": "c", "round": 0, "method": "admm_pvp", "n_agents": 9, "status": "refused", "reason": "no"},
]
GRID = {
    "experiments": {
        "one": {"title": "One", "cells": ["a", "b"]},
        "two": {"title": "Two", "cells": ["b", "c"]},
        "none": {"title": "Not run", "cells": ["d"]},
    }
}
DATA = {"name": "made up", "digest": "0", "rows": 1, "features": 1}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "folder" / "results.parquet"
    table = pa.Table.from_pylist(LINES, schema=SCHEMA)
    write_results(path, table, grid=GRID, data=DATA, command="python -m reproduction run")
    return path


@pytest.fixture
def results(path) -> Results:
    return read_results(path)


def test_results_round_trip(results, path):
    assert results.to_table().equals(pa.Table.from_pylist(LINES, schema=SCHEMA))
    assert results.grid == GRID
    assert results.meta["version"] == dpadmm.__version__
    assert results.meta["data"] == DATA
    assert results.meta["command"] == "python -m reproduction run"
    assert read_results(path.parent).to_table().equals(results.to_table())  # a folder stands for its results.parquet


def test_lines_are_selected_by_experiment_and_values(results):
    assert results.experiments == ["one", "two"]
    assert results.select("two").cells == ["b", "c"]
    assert results.select(method="dp_admm", epsilon=[0.5, 1]).cells == ["a", "b"]
    assert results.select("one", epsilon=1.0).cells == ["b"]
    assert results.select(epsilon=None).cells == ["c"]
    assert len(results.select(n_agents=7)) == 0
    assert results.select("one").experiments == ["one", "two"]
    with pytest.raises(DataError, match="no experiment 'three'"):
        results.select("three")
    with pytest.raises(DataError, match="no column 'epsilons'"):
        results.select(epsilons=1)


def test_missing_values_are_nan(results):
    np.testing.assert_array_equal(results.frame["test_error_global"], [0.4, 0.3, 0.2, np.nan])
    assert results.frame["n_agents"].dtype.kind == "i"
    assert results.frame["reason"].dropna().tolist() == ["no"]


def test_last_is_the_last_round_of_every_cell(results):
    assert results.last().frame["round"].tolist() == [2, 1, 0]
    assert results.select("one").last().cells == ["a", "b"]
    assert len(results.select(n_agents=7).last()) == 0


def test_data_digest_depends_on_every_part():
    def stamp(**changes):
        parts = {"features": np.eye(3), "labels": np.ones(3), "classes": ("no", "yes"), "groups": None}
        return data_stamp(Dataset("d", **{**parts, **changes}))["digest"]

    digests = [
        stamp(),
        stamp(features=2.0 * np.eye(3)),
        stamp(labels=-np.ones(3)),
        stamp(classes=("a", "b")),
        stamp(groups=np.array([1, 2, 3])),
    ]
    assert len(set(digests)) == len(digests)
    assert stamp() == digests[0]


def _damage(path):
    path.write_bytes(path.read_bytes()[:-100])


def _foreign(path):
    pq.write_table(pa.table({"x": [1]}), path)


def _other_format(path):
    header = {b"dpadmm": json.dumps({"format": 99, "version": "7.0"}).encode()}
    pq.write_table(pq.read_table(path).replace_schema_metadata(header), path)


def _without_column(path):
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["bound"]), path)


def _no_header(path):
    pq.write_table(pq.read_table(path).replace_schema_metadata({b"dpadmm": b"{"}), path)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_damage, "damaged"),
        (lambda path: path.write_text("round,loss\n1,0.5\n"), "not a results file"),
        (lambda path: path.write_bytes(b""), "not a results file"),
        (_foreign, "not a results file of dpadmm"),
        (_no_header, "not a results file of dpadmm"),
        (_other_format, "format 99 of dpadmm 7.0"),
        (_without_column, "no column 'bound'"),
        (lambda path: path.unlink(), "there is no results file"),
    ],
)
def test_invalid_files_are_refused_in_one_sentence(path, spoil, says):
    spoil(path)
    with pytest.raises(DataError, match=says) as refused:
        read_results(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_full_disk_keeps_the_old_file(path):
    before = path.read_bytes()
    assert len(before) > 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # maximum file size
    try:
        with pytest.raises(DataError, match=r"cannot be written \(File too large\); make room") as refused:
            write_results(path, SCHEMA.empty_table(), grid=GRID, data=DATA, command="")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "still there" in str(refused.value)
    assert path.read_bytes() == before
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_leftovers_of_killed_writers_are_removed(path):
    leftover = path.with_name(f".{path.name}.12345.part")
    other = path.with_name(".other.parquet.12345.part")
    leftover.write_bytes(b"half")
    other.write_bytes(b"half")
    remove_unfinished(path)
    assert not leftover.exists()
    assert other.exists()
    assert path.exists()
