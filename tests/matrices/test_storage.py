"""Rows in files in another order: the same rows and the same model."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from looping import case
from mixed_tables import SCHEMA, make_cells, make_study, write_csv
from scipy.sparse import csr_array

from dpadmm.data.partition import of_codes
from dpadmm.data.schema import Category, Number, Schema
from dpadmm.data.table import encode_table
from dpadmm.errors import DataError
from dpadmm.matrices import memmap as paging
from dpadmm.matrices.clipping import as_matrix, row_norms
from dpadmm.matrices.coded import CodedRows
from dpadmm.matrices.storage import GrowingArray, group_order, reorder
from dpadmm.training.train import run_study

WIDE = Schema((*SCHEMA.columns[:2], Category("region0", tuple(f"v{k}" for k in range(60)))))


def mapped(rows: np.ndarray) -> np.ndarray:
    array = GrowingArray(rows.dtype, rows.shape[1], memory_bytes=0)
    array.append(rows)
    return array.finish()


@pytest.fixture(autouse=True)
def _small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "PORTION_BYTES", 2**12)


def test_arrays_grow_beyond_the_reserved_size() -> None:
    """For a number of rows that is unknown, too small, too large, or beyond the memory limit."""
    rows = np.random.default_rng(0).normal(size=(700, 5))
    for n_rows, memory_bytes in product((None, 0, 300, 700, 900), (0, 300 * 40, 700 * 40, 10**6)):
        with case(n_rows, memory_bytes):
            array = GrowingArray(rows.dtype, 5, memory_bytes=memory_bytes, n_rows=n_rows)
            assert array._memory.nbytes <= memory_bytes
            room = array._memory.ctypes.data
            for first in range(0, 700, 128):
                array.append(rows[first : first + 128])
            stayed = array._memory.ctypes.data == room
            assert stayed or not (n_rows == 700 and memory_bytes >= rows.nbytes)  # no room was added
            np.testing.assert_array_equal(array.finish(), rows)


def test_rows_are_reordered() -> None:
    rng = np.random.default_rng(0)
    rows, order = rng.normal(size=(700, 5)).astype(np.float32), rng.permutation(700)
    found = reorder(mapped(rows), np.argsort(order))
    assert paging.is_mapped(found)
    assert paging.is_unnamed(found)
    np.testing.assert_array_equal(found, rows[order])
    assert len(list(paging.row_portions(mapped(rows)))) > 2
    np.testing.assert_allclose(row_norms(mapped(rows)), np.linalg.norm(rows.astype(float), axis=1))


def test_blocks_stored_by_columns_are_appended_row_by_row() -> None:
    columns = np.random.default_rng(0).integers(0, 99, (19, 50)).astype(np.float32)
    for memory_bytes in (2**20, 0):
        with case(memory_bytes):
            array = GrowingArray(np.float32, 19, memory_bytes=memory_bytes)
            for block in (columns.T, columns.T[:0], np.ascontiguousarray(columns.T), columns.T[::2]):
                array.append(block)
            found = array.finish()
            assert found.flags.c_contiguous
            np.testing.assert_array_equal(found, np.concatenate([columns.T, columns.T, columns.T[::2]]))


def test_rows_are_grouped_as_a_stable_sort_would() -> None:
    rng = np.random.default_rng(1)
    owners = np.concatenate([rng.integers(0, 7, 2**20 + 5, dtype=np.int32), np.arange(7, dtype=np.int32)])
    rows = np.arange(len(owners), dtype=np.float64)[:, None]
    places, offsets = group_order(owners, 7)
    deal = of_codes(owners, tuple("abcdefg"))
    assert places.dtype == np.int32
    assert np.array_equal(offsets, deal.offsets)
    assert np.array_equal(reorder(mapped(rows), places), rows[deal.order])


def test_coded_rows_too() -> None:
    rng = np.random.default_rng(0)
    codes = mapped(rng.integers([1, 4], [4, 9], (700, 2), dtype=np.uint8))
    coded = CodedRows(mapped(rng.uniform(0.1, 1.0, (700, 2))), codes, np.array([0]), 9)
    order = rng.permutation(700)
    found = reorder(coded, np.argsort(order))
    assert paging.is_unnamed(found)
    np.testing.assert_array_equal(found.toarray(), coded.toarray()[order])
    np.testing.assert_allclose(row_norms(coded), np.linalg.norm(coded.toarray(), axis=1))
    assert len(list(paging.row_portions(coded))) > 2
    assert as_matrix(coded) is coded
    with pytest.raises(DataError, match="sparse rows cannot be written in another order"):
        reorder(csr_array(np.tri(4)), np.arange(4))


def test_a_table_in_a_file_gives_the_model_of_one_in_memory(tmp_path_factory: pytest.TempPathFactory) -> None:
    for by, schema in product(["site", None], [SCHEMA, WIDE]):
        with case(by, schema):
            tmp_path = tmp_path_factory.mktemp("case")
            cells = make_cells(300)
            cells["region0"] = [f"v{k % 70}" for k in range(300)] if schema is WIDE else cells["region0"]
            path, study = write_csv(tmp_path / "t.csv", cells), make_study(schema=schema, n_rounds=4)
            assert study.label is not None
            models = []
            for memory in (0, 2**28):
                table = encode_table(path, schema, study.label, by=by, intercept=True, memory_bytes=memory)
                assert paging.is_mapped(table.features) == (memory == 0)
                assert isinstance(table.features, CodedRows)
                result = run_study(study, table, n_agents=1 if by else 4, seed=5)
                models.append(result.weights)
            np.testing.assert_allclose(models[0], models[1], rtol=1e-9, atol=1e-12)


def test_one_agent_is_not_copied(tmp_path: Path) -> None:
    schema = Schema((Number("n0", (-2.0, 2.0)), Number("n1", (-2.0, 2.0))))
    study = make_study(schema=schema, n_rounds=2)
    path = write_csv(tmp_path / "t.csv", make_cells(100))
    table = encode_table(path, schema, study.label, intercept=True, memory_bytes=0)
    assert np.shares_memory(run_study(study, table, seed=1).rows.features, table.features)
