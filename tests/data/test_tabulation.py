"""Rows of a statistics study: every cell is in one public bin, and row norms are at most 1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from looping import case

from dpadmm.data.encoder import Encoder
from dpadmm.data.schema import Boolean, Category, Number, Ordinal, Plain, Schema
from dpadmm.data.tabulation import Counts, tabulated
from dpadmm.errors import StudyError

SCHEMA = Schema(
    (
        Number("age", (0, 100), bins=(50, 75), missing="indicator"),
        Number("income", (1, 10_000), transform="log"),
        Category("region", ("north", "south")),
        Ordinal("grade", ("low", "middle", "high")),
        Boolean("smoker"),
    )
)
CELLS = {
    "age": ["0", "50", "-7", "1e9", "x", None, "74.9", "75"],
    "income": ["1", "101", "0", "1e99", "", "9.99", "11", "-inf"],
    "region": ["north", "south", "west", "other", None, "", "North", "north "],
    "grade": ["low", "high", "LOW", "other", None, "middle", "x", "low"],
    "smoker": ["yes", "0", "maybe", "other", None, "T", "f", "NO"],
}
BINS = {
    "age": [0, 1, 0, 2, 3, 3, 1, 2],
    "income": [0, 2, 0, 3, 4, 0, 1, 4],
    "region": [0, 1, 2, 2, 3, 3, 2, 0],
    "grade": [0, 2, 3, 3, 4, 1, 3, 0],
    "smoker": [1, 0, 2, 2, 3, 1, 0, 0],
}


def made() -> tuple[Schema, np.ndarray]:
    schema = tabulated(SCHEMA, [("region", "smoker")], 4)
    rows = Encoder(schema, invalid_as_missing=True).encode(pa.record_batch(CELLS)).toarray().astype(float)  # type: ignore[union-attr]
    return schema, rows * schema.scale


def test_every_cell_is_in_one_bin_including_missing_and_unknown_cells() -> None:
    schema, rows = made()
    first = 0
    for column in schema.columns[:5]:
        assert isinstance(column, Counts)
        with case(column.name):
            mine = rows[:, first : first + len(column.features)]
            np.testing.assert_allclose(mine.sum(axis=1), 1.0, rtol=1e-6)
            assert mine.argmax(axis=1).tolist() == BINS[column.name]
        first += len(column.features)


def test_knots_are_for_models_and_change_no_bin() -> None:
    curved = replace(SCHEMA, columns=(replace(SCHEMA.columns[0], bins=(), knots=(50, 75)), *SCHEMA.columns[1:]))
    plain = replace(SCHEMA, columns=(replace(SCHEMA.columns[0], bins=()), *SCHEMA.columns[1:]))
    found, wanted = (
        Encoder(tabulated(each, [], 4), invalid_as_missing=True).encode(pa.record_batch(CELLS)).toarray()  # type: ignore[union-attr]
        for each in (curved, plain)
    )
    assert found.tobytes() == wanted.tobytes()


def test_two_way_table_uses_pairs_of_bins() -> None:
    schema, rows = made()
    mine = rows[:, -len(schema.columns[-1].features) :]
    expected = [4 * a + b for a, b in zip(BINS["region"], BINS["smoker"], strict=True)]
    assert mine.argmax(axis=1).tolist() == expected
    np.testing.assert_allclose(mine.sum(axis=1), 1.0, rtol=1e-6)
    assert schema.features[-16:][5] == "region: south × smoker: true"


def test_moments_use_clamped_numbers_and_skip_missing_ones() -> None:
    schema, rows = made()
    first = schema.features.index("age: mean")
    x = np.array([-1.0, 0.0, -1.0, 1.0, 0.0, 0.0, 0.498, 0.5])
    there = np.array(BINS["age"]) < 3
    np.testing.assert_allclose(rows[:, first], np.where(there, x, 0.0), atol=1e-6)
    np.testing.assert_allclose(rows[:, first + 1], np.where(there, 2.0 * x**2 - 1.0, 0.0), atol=1e-6)
    logs = np.array(
        [
            -1.0,
            np.log(101.0) / np.log(100.0) - 1.0,
            -1.0,
            1.0,
            0.0,
            np.log(9.99) / np.log(100.0) - 1.0,
            np.log(11.0) / np.log(100.0) - 1.0,
            0.0,
        ]
    )
    np.testing.assert_allclose(rows[:, first + 2], logs, atol=1e-6)


def test_row_norms_are_at_most_1_and_attain_it() -> None:
    schema, rows = made()
    assert schema.bounded
    assert schema.scale == pytest.approx((5 + 2 * 2 + 1) ** 0.5)
    lengths = np.linalg.norm(rows / schema.scale, axis=1)
    assert 0.999 < lengths.max() <= 1.0


def test_encoding_of_a_row_does_not_depend_on_others() -> None:
    schema, rows = made()
    for j in range(8):
        alone = pa.record_batch({name: cells[j : j + 1] for name, cells in CELLS.items()})
        found = Encoder(schema, invalid_as_missing=True).encode(alone).toarray() * schema.scale  # type: ignore[union-attr]
        np.testing.assert_array_equal(found.astype(float)[0], rows[j].astype(np.float32).astype(float))


def test_cells_are_tallied_once() -> None:
    encoder = Encoder(tabulated(SCHEMA, [("region", "smoker")], 4), invalid_as_missing=True)
    encoder.encode(pa.record_batch(CELLS))
    assert encoder.report.columns["age"].missing == 2
    assert encoder.report.columns["age"].clamped == 2
    assert encoder.report.columns["region"].unknown == 2
    assert list(encoder.report.columns) == list(CELLS)


def test_impossible_tabulations_give_one_sentence() -> None:
    wide = Schema(tuple(Category(name, tuple(map(str, range(400)))) for name in "ab"))
    for schema, tables, bins, sentence in (
        (SCHEMA, [("region", "smokes")], 4, "tables: the study has no column 'smokes': did you mean 'smoker'?"),
        (SCHEMA, [("region", "region")], 4, "must be two different columns and be listed once"),
        (SCHEMA, [("region", "smoker"), ("smoker", "region")], 4, "must be two different columns and be listed once"),
        (Schema((Plain("x"),)), [], 4, "column 'x': statistics need public bounds or values"),
        (SCHEMA, [], 1, "column 'income': bins must be at least 2"),
        (replace(SCHEMA, interactions=(("age", "region"),)), [], 4, "interactions belong to models"),
        (wide, [("a", "b")], 4, "has 161,604 cells, and a study may release at most 100,000"),
    ):
        with case(sentence), pytest.raises(StudyError, match=sentence.replace("?", r"\?")):
            tabulated(schema, tables, bins)
    with pytest.raises(StudyError, match="use fewer bins, columns or tables"):
        tabulated(Schema(tuple(Category(f"c{j}", tuple(map(str, range(9_999)))) for j in range(11))), [], 4)
