"""Rows in files: portions of unnamed files; other mappings are not released."""

from __future__ import annotations

import numpy as np
import pytest
from looping import case

from dpadmm import Logistic, kernels, make_rows
from dpadmm.matrices.clipping import row_norms
from dpadmm.matrices.memmap import is_unnamed, portions
from dpadmm.matrices.storage import GrowingArray


def test_mappings_of_other_files_are_not_released(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Pages that were changed in memory only (copy on write) would be lost by their release."""
    for mode in ["r", "r+", "c"]:
        with case(mode):
            tmp_path = tmp_path_factory.mktemp("case")
            np.full((64, 4), 60.0).tofile(tmp_path / "rows")
            features = np.memmap(tmp_path / "rows", np.float64, mode, shape=(64, 4))
            if mode != "r":
                features /= 600.0
            wanted = np.array(features)
            assert len(list(portions(features, np.full(64, 32)))) == 1
            assert np.array_equal(row_norms(features), np.linalg.norm(wanted, axis=1))
            if mode != "r":
                rows = make_rows(features, np.ones(64))
                gradient = kernels.gradient(rows, np.zeros((1, 4, 1)), Logistic())
                assert np.linalg.norm(gradient) < 0.2
            assert np.array_equal(features, wanted)


def test_unnamed_files_are_read_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpadmm.matrices.memmap.PORTION_BYTES", 100)
    growing = GrowingArray(np.float64, 4, memory_bytes=0)
    wanted = np.arange(40.0).reshape(10, 4)
    growing.append(wanted)
    features = growing.finish()
    assert is_unnamed(features)
    assert [len(features[part]) for part in portions(features, np.full(10, 32))] == [3, 3, 3, 1]
    assert np.array_equal(features, wanted)
