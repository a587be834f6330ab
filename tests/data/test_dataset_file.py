"""Files of every format, valid and invalid."""

from __future__ import annotations

import io
import zipfile
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from looping import case
from scipy import sparse

from dpadmm.data import by_group, read_table
from dpadmm.errors import DataError, DPADMMError, StudyError

COLUMNS = {"x": [0.5, -0.25, 0.0], "flag": [True, False, True], "count": [1, 2, 3]}
OWNERS = ["north", "south", "north"]
MATRIX = [[0.5, 1.0, 1.0], [-0.25, 0.0, 2.0], [0.0, 1.0, 3.0]]


def _csv(folder: Path, text: str) -> Path:
    path = folder / "table.csv"
    path.write_text(text)
    return path


def _parquet(folder: Path, columns: dict) -> Path:
    path = folder / "table.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def test_home_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(StudyError, match=r"^the path '~nosuchuser/a\.csv' begins with '~nosuchuser'"):
        read_table("~nosuchuser/a.csv", task="regression", label="y")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_become_a_matrix(tmp_path: Path, kind: str) -> None:
    if kind == "csv":
        text = "x,flag,owner,count,y\n0.5,true,north,1,1\n-0.25,false,south,2,0\n0,true,north,3,1\n"
        path = _csv(tmp_path, text)
    else:
        path = _parquet(tmp_path, {**COLUMNS, "owner": OWNERS, "y": [1, 0, 1]})
    data = read_table(path, task="binary", label="y", classes=("0", "1"), by="owner")
    assert isinstance(data.features, np.ndarray)
    assert data.features.tolist() == MATRIX
    assert data.features.dtype == np.float64
    assert data.features.flags.c_contiguous
    assert data.labels.tolist() == [1.0, -1.0, 1.0]
    assert data.feature_names == ("x", "flag", "count")
    assert (data.name, data.classes) == (path.name, ("0", "1"))
    assert data.groups is not None
    assert by_group(data.groups).names == ("north", "south")


def test_numeric_parquet_types(tmp_path: Path) -> None:
    columns = {
        "small": pa.array([1, 2], pa.int8()),
        "single": pa.array([0.5, 1.5], pa.float32()),
        "money": pa.array([1, 2], pa.decimal128(5, 2)),
        "y": ["cat", "dog"],
    }
    data = read_table(_parquet(tmp_path, columns), task="multiclass", label="y", classes=["dog", "cat"])
    assert data.features.tolist() == [[1.0, 0.5, 1.0], [2.0, 1.5, 2.0]]
    assert data.labels.tolist() == [1.0, 0.0]


def test_fractions_after_many_integers(tmp_path: Path) -> None:
    lines = [
        "x,z,y",
        *["7,true,1"] * 200_000,
        "0.5,false,2.5",
    ]  # beyond the first block, from which types are guessed
    data = read_table(_csv(tmp_path, "\n".join(lines)), task="regression", label="y")
    assert data.n_rows == 200_001
    assert data.features[[0, -1]].tolist() == [[7.0, 1.0], [0.5, 0.0]]
    assert data.labels[-1] == 2.5


def test_late_text_cell_is_named(tmp_path: Path) -> None:
    lines = ["x,y", *["7,1"] * 400_000, "many,1"]
    with pytest.raises(DataError, match="column 'x', row 400001: 'many' is text"):
        read_table(_csv(tmp_path, "\n".join(lines)), task="binary", label="y")


def test_bad_csv_is_one_clear_sentence(tmp_path_factory: pytest.TempPathFactory) -> None:
    for text, message in [
        ("x,y\n1,1\nabc,1\n", "column 'x', row 2: 'abc' is text"),
        ("x,y\n1,1\n,1\n", "column 'x', row 2: the cell is missing"),
        ("x,y\n1,1\nNA,1\n", "column 'x', row 2: the cell is missing"),
        ("x,y\n1.5,1\ninf,1\n", "column 'x', row 2: the cell is not a finite number"),
        ("x,y\n2020-01-01,1\n", "column 'x', row 1: '2020-01-01' is text"),
        ("x,y\n1,1\n1,2\n", "row 2: label 2 is not one of the declared classes -1, 1"),
        ("x,y\n1,1\n1,\n", "row 2: the label is missing"),
        ("x,y\n1,1\n1,1,1\n", "cannot be read as CSV"),
        ("x,x,y\n1,1,1\n", "column 'x' occurs more than once"),
        ("x,y\n", "has no rows"),
        ("y\n1\n", "has no feature columns"),
        ("", "is empty"),
    ]:
        with case(text, message):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(DataError, match=message) as caught:
                read_table(_csv(tmp_path, text), task="binary", label="y")
            assert "\n" not in str(caught.value)


def test_bad_parquet_is_one_clear_sentence(tmp_path_factory: pytest.TempPathFactory) -> None:
    for columns, message in [
        ({"x": [1.0, None], "y": [1, 1]}, "column 'x', row 2: the cell is missing"),
        ({"x": [1.0, float("nan")], "y": [1, 1]}, "column 'x', row 2: the cell is not a finite number"),
        ({"x": ["1", "b"], "y": [1, 1]}, "column 'x', row 2: 'b' is text"),
        ({"x": [[1], [2]], "y": [1, 1]}, "column 'x' holds list.* values"),
        ({"x": [1, 2], "y": [1, None]}, "row 2: the label is missing"),
        ({"x": pa.nulls(2), "y": [1, 1]}, "column 'x', row 1: the cell is missing"),
    ]:
        with case(columns, message):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(DataError, match=message):
                read_table(_parquet(tmp_path, columns), task="binary", label="y")


def test_settings_must_name_columns_that_exist(tmp_path: Path) -> None:
    path = _csv(tmp_path, "income,owner,repaid\n1,a,1\n2,,1\n")
    with pytest.raises(StudyError, match="label= or --label; the columns are 'income', 'owner', 'repaid'"):
        read_table(path, task="binary")
    with pytest.raises(StudyError, match="no column 'repayed': did you mean 'repaid'"):
        read_table(path, task="binary", label="repayed")
    with pytest.raises(StudyError, match="no column 'zzz'; unused columns: 'income', 'owner'"):
        read_table(path, task="binary", label="repaid", by="zzz")
    with pytest.raises(StudyError, match="no column 'repayed'; unused columns: 'owner', 'income'"):
        read_table(path, task="binary", label="repaid", by="repayed")
    with pytest.raises(StudyError, match="cannot be both"):
        read_table(path, task="binary", label="repaid", by="repaid")
    with pytest.raises(DataError, match="column 'owner', row 2: the cell is missing"):
        read_table(
            _parquet(tmp_path, {"x": [1, 2], "y": [1, 1], "owner": ["a", None]}),
            task="binary",
            label="y",
            by="owner",
        )
    with pytest.raises(DataError, match="column 'owner', row 2: the cell is missing"):
        read_table(path, task="binary", label="repaid", by="owner")
    with pytest.raises(StudyError, match="needs its classes"):
        read_table(path, task="multiclass", label="repaid")


def test_npz_keeps_single_precision(tmp_path_factory: pytest.TempPathFactory) -> None:
    for dtype in [np.float32, np.float64, np.int32, bool]:
        with case(dtype):
            tmp_path = tmp_path_factory.mktemp("case")
            matrix = np.asfortranarray(np.array([[1, 0], [0, 1], [1, 1]], dtype=dtype))
            np.savez(
                tmp_path / "t.npz",
                features=matrix,
                labels=np.array(["n", "y", "y"]),
                groups=np.array([2, 1, 2]),
            )
            data = read_table(tmp_path / "t.npz", task="binary", classes=("n", "y"))
            assert isinstance(data.features, np.ndarray)
            assert data.features.dtype == (np.float32 if dtype is np.float32 else np.float64)
            assert data.features.flags.c_contiguous
            assert data.features.tolist() == matrix.astype(float).tolist()
            assert data.labels.tolist() == [-1.0, 1.0, 1.0]
            assert data.groups is not None
            assert data.groups.tolist() == [2, 1, 2]


def test_npz_arrays_may_have_other_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", features=np.eye(2), target=np.array([0.5, 1.5]), site=np.array(["a", "b"]))
    data = read_table(tmp_path / "t.npz", task="regression", label="target", by="site")
    assert data.labels.tolist() == [0.5, 1.5]
    assert data.groups is not None
    assert data.groups.tolist() == ["a", "b"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_npz_sparse_of_scipy(tmp_path: Path, dtype: type) -> None:
    matrix = sparse.random_array((6, 5), density=0.4, format="csr", dtype=dtype)
    sparse.save_npz(tmp_path / "s.npz", matrix)
    with np.load(tmp_path / "s.npz") as parts:
        np.savez(tmp_path / "t.npz", labels=np.ones(6), **parts)
    data = read_table(tmp_path / "t.npz", task="binary")
    assert isinstance(data.features, sparse.csr_array)
    assert data.features.dtype == dtype
    assert np.array_equal(data.features.toarray(), matrix.toarray())


def test_bad_npz_is_one_clear_sentence(tmp_path_factory: pytest.TempPathFactory) -> None:
    for arrays, message in [
        ({"features": np.eye(2)}, "no array 'labels'"),
        ({"labels": np.ones(2)}, "no array 'features'"),
        ({"features": np.eye(2), "labels": np.ones(3)}, "2 rows need 2 labels"),
        ({"features": np.eye(2), "labels": np.ones(2), "groups": np.ones(3)}, "2 rows need 2 groups"),
        ({"features": np.ones(2), "labels": np.ones(2)}, "must be a matrix"),
        ({"features": np.array([["a"]]), "labels": np.ones(1)}, "holds <U1 values"),
        (
            {"features": np.array([[1.0, np.inf]]), "labels": np.ones(1)},
            "column 2, row 1: .*not a finite number",
        ),
        (
            {"features": np.eye(2), "labels": np.array([1, None])},
            "array 'labels' cannot be read: Object arrays",
        ),
        ({"features": np.ones((0, 2)), "labels": np.ones(0)}, "has no rows"),
        (
            {"data": np.ones(1), "indices": [7], "indptr": [0, 1], "shape": [1, 2], "labels": np.ones(1)},
            "do not make a CSR matrix",
        ),
        (
            {"data": np.ones(1), "indices": [0.5], "indptr": [0, 1], "shape": [1, 2], "labels": np.ones(1)},
            "indptr and shape must be integers",
        ),
        (
            {
                "data": np.array([np.nan]),
                "indices": [1],
                "indptr": [0, 0, 1],
                "shape": [2, 2],
                "labels": np.ones(2),
            },
            "column 2, row 2: .*not a finite",
        ),
    ]:
        with case(arrays, message):
            tmp_path = tmp_path_factory.mktemp("case")
            np.savez(tmp_path / "t.npz", **arrays)
            with pytest.raises(DPADMMError, match=message):
                read_table(tmp_path / "t.npz", task="binary")


def test_npz_under_a_password_or_larger_than_memory_is_one_clear_sentence(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, features=np.eye(2), labels=np.ones(2))
    raw = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.find(mark) + place] |= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"array 'features' cannot be read: .*encrypted"):
        read_table(path, task="regression")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**15, 1)})
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("features.npy", "labels.npy"):
            archive.writestr(name, header.getvalue())
    with pytest.raises(DataError, match="array 'features' cannot be read: its header has shape"):
        read_table(path, task="regression")


def test_damaged_and_disguised_npz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    with path.open("wb") as file:
        np.save(file, np.eye(2))
    with pytest.raises(DataError, match="single array"):
        read_table(path, task="binary")
    np.savez(path, features=np.ones((100, 100)), labels=np.ones(100))
    content = bytearray(path.read_bytes())
    content[40_000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="array 'features' cannot be read: Bad CRC"):
        read_table(path, task="binary")
    path.write_bytes(content[:5000])
    with pytest.raises(DataError, match="cannot be read as NPZ"):
        read_table(path, task="binary")


def test_binary_garbage_is_one_clear_sentence(tmp_path_factory: pytest.TempPathFactory) -> None:
    for seed, ending in product(range(5), ["csv", "parquet", "npz"]):
        with case(seed, ending):
            tmp_path = tmp_path_factory.mktemp("case")
            path = tmp_path / f"t.{ending}"
            path.write_bytes(np.random.default_rng(seed).bytes(5000))
            with pytest.raises(DPADMMError) as caught:
                read_table(path, task="binary", label="y")
            assert "t." in str(caught.value)
            assert "\n" not in str(caught.value)


def test_missing_file_empty_file_and_directory_are_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    for ending in ["csv", "parquet", "npz"]:
        with case(ending):
            tmp_path = tmp_path_factory.mktemp("case")
            path = tmp_path / f"t.{ending}"
            with pytest.raises(DataError, match="does not exist"):
                read_table(path, task="binary", label="y")
            path.touch()
            with pytest.raises(DataError, match="is empty"):
                read_table(path, task="binary", label="y")
            path.unlink()
            path.mkdir()
            with pytest.raises(DataError, match="is a directory"):
                read_table(path, task="binary", label="y")


def test_unknown_extension_lists_the_known_ones(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ["t.json", "t", "t.parquet.gz"]:
        with case(name):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(DataError, match=r"unknown ending .*\.csv, \.tsv, \.parquet, \.npz"):
                read_table(tmp_path / name, task="binary")
