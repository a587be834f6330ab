"""Tables in memory: the same rows in any form have the same encoding, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from looping import case

from dpadmm.data.reader import BATCH_ROWS, column_names, open_table
from dpadmm.data.schema import Boolean, Category, Label, Number, Ordinal, Schema
from dpadmm.data.survey import survey_table
from dpadmm.data.table import encode_table
from dpadmm.errors import DPADMMError

SCHEMA = Schema(
    (Number("age", (0.0, 90.0), missing="indicator"), Category("sex", ("f", "m")), Ordinal("stage", ("1", "2", "3")),
     Boolean("old")),
)  # fmt: skip
LABEL = Label("y", classes=("no", "yes"), weight="w", weight_bound=2.0)
N = BATCH_ROWS + 100
RNG = np.random.default_rng(0)
COLUMNS: dict[str, Any] = {
    "age": [None if x > 95 else x for x in RNG.uniform(-5, 100, N).tolist()],
    "sex": RNG.choice(["f", "m", "x"], N).tolist(),
    "stage": RNG.integers(1, 5, N).tolist(),
    "old": RNG.choice([True, False], N).tolist(),
    "y": RNG.choice(["no", "yes"], N).tolist(),
    "w": RNG.uniform(0, 3, N).tolist(),
    "site": RNG.choice(["a", "b", "c"], N).tolist(),
    "unused": [{"a": 1}] * N,
}


class Capsule:
    """A table that only has the Arrow PyCapsule interface."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def forms(folder: Path) -> dict[str, Any]:
    table = pa.table(COLUMNS)
    pa.csv.write_csv(table.drop_columns(["unused"]), folder / "t.csv")
    pq.write_table(table, folder / "t.parquet")
    return {
        "csv": folder / "t.csv",
        "parquet": str(folder / "t.parquet"),
        "arrow": table,
        "record batch": table.combine_chunks().to_batches()[0],
        "capsule": Capsule(table),
        "pandas": pd.DataFrame(COLUMNS),
        "categorical": pd.DataFrame(COLUMNS).astype({"sex": "category", "y": "category"}),
        "polars": pl.DataFrame(COLUMNS),
        "mapping": COLUMNS,
    }


def test_the_same_rows_have_the_same_encoding_in_every_form(tmp_path: Path) -> None:
    tables = forms(tmp_path)
    first = encode_table(tables["csv"], SCHEMA, LABEL, by="site", intercept=True)
    for name, table in tables.items():
        with case(name):
            encoded = encode_table(table, SCHEMA, LABEL, by="site", intercept=True)
            for one, other in [
                (first.features.values, encoded.features.values),  # type: ignore[union-attr]
                (first.features.codes, encoded.features.codes),  # type: ignore[union-attr]
                (first.labels, encoded.labels),
                (first.row_weights, encoded.row_weights),
                (first.groups, encoded.groups),
            ]:
                np.testing.assert_array_equal(one, other)
            assert list(encoded.owners) == ["a", "b", "c"]
            assert encoded.report == first.report


def test_a_survey_reads_tables_in_memory(tmp_path: Path) -> None:
    tables = forms(tmp_path)
    assert survey_table(tables["pandas"], SCHEMA, LABEL) == survey_table(tables["csv"], SCHEMA, LABEL)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            [1, 2],
            "a table must be the path of a file, a data frame, an Arrow table or a mapping of .* not a list",
        ),
        (pd.DataFrame({"age": [1]}), "the table has no column 'sex'"),
        (
            pd.DataFrame([[1, 2]], columns=["age", "age"]),
            "the table has 2 problems:\n  column 'age' occurs more than once",
        ),
        ({"age": [1, "a"], "sex": ["f", "m"]}, "the table: column 'age': the cell in row 2 should be a number"),
        ({"age": [1, {}], "sex": ["f", "m"]}, "column 'age' has values that are neither numbers nor text"),
        ({"age": [1, 2], "sex": ["f"]}, "the table: its columns have different numbers of rows"),
        ({"age": [], "sex": []}, "the table has no rows"),
        ({"age": ["1", "x"], "sex": ["f", "f"]}, "the table: column 'age': the cell in row 2 should be a number"),
    ],
)
def test_an_invalid_table_has_one_message(table: Any, words: str) -> None:
    with pytest.raises(DPADMMError, match=words):
        encode_table(table, Schema(SCHEMA.columns[:2]), None)


def test_a_column_is_not_copied() -> None:
    ages = np.arange(5.0)
    source = open_table({"age": ages})
    assert column_names(source) == ["age"]
    (batch,) = source.batches({"age": pa.float64()})
    assert np.shares_memory(ages, np.from_dlpack(batch.column(0)))
    assert source.row_count() == 5


def test_large_whole_numbers_stored_as_floats_are_no_text() -> None:
    # One missing or fractional cell would turn the integers of a data frame into floats, and so change other rows
    schema = Schema((Category("code", ("10000000000000000", "12345678901234567")),))
    exact = encode_table({"code": [10**16, 12345678901234567]}, schema, None)
    assert np.allclose(exact.features @ np.array([1.0, 2.0, 3.0]), [1.0, 2.0])
    with pytest.raises(DPADMMError, match="'code' has numbers from 10\\^15 that are stored as floating point"):
        encode_table(pd.DataFrame({"code": [10**16, 12345678901234567, None]}), schema, None)


def test_a_frame_is_copied_at_most_once() -> None:
    """Numbers are used in place. Text of pandas objects becomes Arrow text, once, for the columns of the study only."""
    ages = RNG.uniform(0, 90, N)
    for frame in (pd.DataFrame({"age": ages, "other": ages}), pl.DataFrame({"age": ages, "other": ages})):
        own, source = frame["age"].to_numpy(), open_table(frame)
        before = pa.total_allocated_bytes()
        batches = list(source.batches({"age": pa.float64()}))
        assert len(batches) == 2
        assert all(np.shares_memory(own, np.from_dlpack(batch.column(0))) for batch in batches)
        assert pa.total_allocated_bytes() - before < ages.nbytes // 10
    words = pd.DataFrame({"sex": np.array(["f", "m"] * (N // 2), dtype=object), "other": ["long text"] * N})
    before = pa.total_allocated_bytes()
    batches = list(open_table(words).batches({"sex": pa.string()}))
    assert pa.total_allocated_bytes() - before < 8 * N  # one letter and an offset of four bytes per cell
