"""Tables -> rows: by the public schema alone, so that no row changes how another one is encoded."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from looping import case

from dpadmm import Logistic, kernels, make_rows
from dpadmm.data.encoder import Encoder
from dpadmm.data.schema import ROW_NORMS, Boolean, Category, Label, Number, Ordinal, Plain, Schema
from dpadmm.data.survey import survey_table
from dpadmm.data.table import EncodedTable, encode_table
from dpadmm.errors import DataError, DPADMMError, StudyError
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.clipping import row_norms
from dpadmm.matrices.coded import CodedRows
from dpadmm.matrices.features import Features

COLUMNS = (
    Number("age", (0, 120), missing="indicator"),
    Number("dose", (1, 1000), transform="log"),
    Number("bmi", (10, 60), bins=(18.5, 25, 30)),
    Category("sex", ("f", "m")),
    Ordinal("stage", ("1", "2", "3")),
    Boolean("smoker"),
)
DENSE = Schema(COLUMNS)
SPARSE = Schema((*COLUMNS, Category("place", tuple(f"p{i}" for i in range(40)))))
CROSSED = Schema(
    (*COLUMNS[:2], replace(COLUMNS[2], bins=(), knots=(18.5, 25, 30)), *COLUMNS[3:]),
    interactions=(("age", "dose"), ("age", "sex"), ("sex", "bmi"), ("smoker", "stage"), ("bmi", "dose")),
)
LABEL = Label("y", classes=("no", "yes"))


def dense(features: Features) -> Floats:
    return np.asarray(features if isinstance(features, np.ndarray) else features.toarray())


def table(n: int = 200, seed: int = 0) -> pa.Table:
    """Mixed kinds with 5% missing cells, and cells that are out of bounds or unknown."""
    rng = np.random.default_rng(seed)

    def holes(values: Any) -> pa.Array:
        return pa.array(list(values), mask=rng.random(n) < 0.05)

    return pa.table(
        {
            "age": holes(rng.uniform(-10, 140, n).round(1).tolist()),
            "dose": holes(np.exp(rng.uniform(-1, 8, n)).round(3).tolist()),
            "bmi": holes(rng.uniform(5, 70, n).round(1).tolist()),
            "sex": holes(rng.choice(["f", "m", "d"], n).tolist()),
            "stage": holes(rng.choice(["1", "2", "3", "4"], n).tolist()),
            "smoker": holes(rng.choice(["true", "false", "perhaps"], n).tolist()),
            "place": holes(rng.choice([f"p{i}" for i in range(45)], n).tolist()),
            "unused": rng.choice(["x", "y"], n).tolist(),
            "who": rng.choice(["b", "a", "c"], n).tolist(),
            "y": rng.choice(["yes", "no"], n).tolist(),
        }
    )


def written(folder: Path, content: pa.Table, kind: str = "csv") -> Path:
    path = folder / f"table.{kind}"
    if kind == "csv":
        pa.csv.write_csv(content, path)
    else:
        pa.parquet.write_table(content, path)
    return path


def test_cells_become_what_the_schema_says() -> None:
    batch = pa.record_batch(
        {
            "age": [60.0, None, 500.0],
            "dose": [1.0, 1000.0, None],
            "bmi": [10.0, 25.0, None],
            "sex": ["f", "x", None],
            "stage": ["1", "3", "9"],
            "smoker": ["Yes", "0", "?"],
        }
    )
    encoder = Encoder(DENSE)
    found = dense(encoder.encode(batch)) * np.sqrt(6)
    wanted = [
        [0, 0, -1, 1, 0, 0, 0, 0, 1, 0, 0, -1, 1],
        [0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 1, -1],
        [1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0],
    ]
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    tallies = {name: (t.clamped, t.unknown, t.missing) for name, t in encoder.report.columns.items()}
    assert tallies == {
        "age": (1, 0, 1), "dose": (0, 0, 1), "bmi": (0, 0, 1), "sex": (0, 1, 1), "stage": (0, 1, 0),
        "smoker": (0, 1, 0),
    }  # fmt: skip


@pytest.mark.parametrize("schema", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_csv_and_parquet_in_memory_or_in_a_file_give_the_same_bytes(schema: Schema, tmp_path: Path) -> None:
    paths = [written(tmp_path, table(), kind) for kind in ("csv", "parquet")]
    assert isinstance(encode_table(paths[0], schema, LABEL).features, CodedRows)
    tables = [encode_table(path, schema, LABEL, by="who", memory_bytes=limit) for path in paths for limit in (0, 2**28)]
    for other in tables[1:]:
        assert dense(other.features).tobytes() == dense(tables[0].features).tobytes()
        assert other.labels.tobytes() == tables[0].labels.tobytes()
        assert (tuple(other.owners), other.report) == (("a", "b", "c"), tables[0].report)
        assert np.array_equal(other.groups, tables[0].groups)


def test_a_row_left_out_changes_no_byte_of_the_others(tmp_path_factory: pytest.TempPathFactory) -> None:
    for leave_out, schema in product(
        ["the only row of a class", "the largest value", "the first row", "the last row"], [DENSE, SPARSE]
    ):
        with case(leave_out, schema):
            tmp_path = tmp_path_factory.mktemp("case")
            content = table(50).to_pylist()
            content[7]["y"], content[9]["age"] = "yes", 1e300
            for i, row in enumerate(content):
                row["y"] = "yes" if i == 7 else "no"
            place = {
                "the only row of a class": 7,
                "the largest value": 9,
                "the first row": 0,
                "the last row": 49,
            }[leave_out]
            whole = encode_table(written(tmp_path, pa.Table.from_pylist(content)), schema, LABEL)
            del content[place]
            part = encode_table(written(tmp_path, pa.Table.from_pylist(content)), schema, LABEL)
            assert np.delete(dense(whole.features), place, axis=0).tobytes() == dense(part.features).tobytes()
            assert np.delete(whole.labels, place).tobytes() == part.labels.tobytes()


CELLS = st.one_of(st.none(), st.floats(), st.integers(-(10**6), 10**6).map(float))
TEXTS = st.one_of(st.none(), st.text(max_size=5), st.sampled_from(["f", "m", "1", "3", "true", "no", " f "]))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(CELLS, CELLS, CELLS, TEXTS, TEXTS, TEXTS, TEXTS), min_size=2, max_size=8),
    st.sampled_from([DENSE, SPARSE, CROSSED, Schema(COLUMNS, row_norm=0.7)]),
)
def test_every_row_is_encoded_as_if_it_were_alone_and_is_at_most_1_long(rows: list[Any], schema: Schema) -> None:
    names = ["age", "dose", "bmi", "sex", "stage", "smoker", "place"]
    kinds = [pa.float64()] * 3 + [pa.string()] * 4

    def batch(part: list[Any]) -> pa.RecordBatch:
        columns = [pa.array(list(cells), kind) for cells, kind in zip(zip(*part, strict=True), kinds, strict=True)]
        return pa.record_batch(columns, names)

    together = dense(Encoder(schema).encode(batch(rows)))
    alone = np.concatenate([dense(Encoder(schema).encode(batch([row]))) for row in rows])
    assert together.tobytes() == alone.tobytes()
    assert together.dtype == np.float32
    assert (row_norms(together) <= 1.0 + 1e-6).all()


NAMES = ["age", "dose", "bmi", "sex", "stage", "smoker", "place", "y"]
CSV_NUMBERS = st.one_of(
    st.none(),
    st.integers(-(10**6), 10**6).map(str),
    st.floats(allow_nan=False, width=64).map(repr),
    st.sampled_from(["NA", "nan", "inf", "-inf", " 7 ", "1e400", ".5", "+3"]),
)
CSV_TEXTS = st.one_of(
    st.none(),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=6),
    st.sampled_from(["f", "m", "1", "3.0", "TRUE", "no", " f ", 'say "x"', "a,b", "two\nlines"]),
)
CSV_ROWS = st.tuples(*[CSV_NUMBERS] * 3, *[CSV_TEXTS] * 4, st.sampled_from(["yes", "no", " yes", "no "]))


def as_files(folder: Path, rows: list[Any]) -> list[Path]:
    """The same cells as CSV and as Parquet with text."""
    with (folder / "t.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerows([NAMES, *rows])
    columns = [pa.array([row[j] for row in rows], pa.string()) for j in range(len(NAMES))]
    pa.parquet.write_table(pa.table(columns, NAMES), folder / "t.parquet", row_group_size=3)
    return [folder / "t.csv", folder / "t.parquet"]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(CSV_ROWS, min_size=2, max_size=7),
    st.sampled_from([DENSE, SPARSE, CROSSED, Schema(COLUMNS, row_norm=0.7)]),
    st.integers(170, 1000),
    st.data(),
)
def test_no_row_changes_a_byte_of_another_across_borders_of_blocks_and_files(
    rows: list[Any], schema: Schema, block: int, data: Any
) -> None:
    """CSV in tiny blocks, Parquet in batches of two rows: as every row alone, and without any one of them."""
    left_out = data.draw(st.integers(0, len(rows) - 1))
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        whole = [encode_table(path, schema, LABEL) for path in as_files(Path(name), rows)]
        patch.setattr("dpadmm.data.reader.BLOCK_BYTES", block)
        patch.setattr("dpadmm.data.reader.BATCH_ROWS", 2)
        whole += [encode_table(path, schema, LABEL) for path in as_files(Path(name), rows)]
        alone = [encode_table(as_files(Path(name), [row])[0], schema, LABEL) for row in rows]
        rest = rows[:left_out] + rows[left_out + 1 :]
        without = [encode_table(path, schema, LABEL) for path in as_files(Path(name), rest)]
    wanted = np.concatenate([dense(each.features) for each in alone])
    labels = np.concatenate([each.labels for each in alone])
    for found in whole:
        assert dense(found.features).tobytes() == wanted.tobytes()
        assert found.labels.tobytes() == labels.tobytes()
        assert found.report == whole[0].report
    for found in without:
        assert dense(found.features).tobytes() == np.delete(wanted, left_out, axis=0).tobytes()
    assert (row_norms(wanted) <= 1.0).all()


@pytest.mark.parametrize("intercept", [False, True])
def test_no_row_is_longer_than_1_by_rounding(intercept: bool) -> None:
    for n_columns in (1, 2, 3, 5, 6, 7, 11, 23, 47, 101):
        schema = Schema(tuple(Number(f"a{j}", (0, 1)) for j in range(n_columns)))
        assert schema.bounded
        batch = pa.record_batch({f"a{j}": [1.0, 0.0] for j in range(n_columns)})
        rows = np.asarray(Encoder(schema, intercept=intercept).encode(batch), dtype=np.float64)
        squares = (rows**2).sum(axis=1)
        assert (squares <= 1.0).all()
        assert (squares > 1.0 - 1e-6).all()


def test_products_are_those_of_the_features_and_no_row_is_longer_than_1_by_rounding() -> None:
    """Both for categories, whose products are coded, and for numbers, alone or within a category."""
    for columns in (COLUMNS, CROSSED.columns):
        pairs = tuple(combinations([each.name for each in columns], 2))
        schema, single = Schema(columns, interactions=pairs), Schema(columns)
        n = 300
        batch = table(n).select([each.name for each in columns]).combine_chunks().to_batches()[0]
        rows = dense(Encoder(schema).encode(batch)).astype(np.float64) * schema.scale
        alone = dense(Encoder(single).encode(batch)).astype(np.float64) * single.scale
        places = np.cumsum([0, *(len(each.features) for each in columns)])
        of = {each.name: alone[:, a:b] for each, a, b in zip(columns, places, places[1:], strict=False)}
        wanted = [alone, *(np.einsum("ni,nj->nij", of[one], of[other]).reshape(n, -1) for one, other in pairs)]
        np.testing.assert_allclose(rows, np.concatenate(wanted, axis=1), atol=1e-6)
        assert len(schema.features) == rows.shape[1]
        assert schema.bounded
        ends = {"age": [120.0, None], "dose": [1000.0, 1.0], "bmi": [60.0, 10.0], "sex": ["f", "m"]}
        far = pa.record_batch({**ends, "stage": ["3", "1"], "smoker": ["yes", "no"]})
        squares = np.square(dense(Encoder(schema).encode(far)), dtype=np.float64).sum(axis=1)
        assert (squares <= 1.0).all()
        assert squares.max() > 1.0 - 1e-5


def test_products_of_numbers_with_a_scale_are_shortened_where_they_are_long() -> None:
    ages = Number("age", (0, 100), center=50.0, scale=10.0), Number("bmi", (10, 60), center=25.0, scale=5.0)
    schema = Schema(ages, interactions=(("age", "bmi"),))
    assert not schema.bounded
    assert schema.terms[-1].max_norm == pytest.approx(5.0 * 7.0)
    encoder = Encoder(schema)
    rows = np.asarray(encoder.encode(pa.record_batch({"age": [100.0, 55.0], "bmi": [60.0, 25.0]})), np.float64)
    assert np.linalg.norm(rows, axis=1).max() <= 1.0
    assert encoder.report.clipped == 1
    assert Schema(ages, interactions=(("age", "bmi"),), row_norm=40.0).bounded
    assert not Schema(ages, interactions=(("age", "bmi"),), row_norm=35.0).bounded


def test_a_spline_is_straight_between_its_knots() -> None:
    straight = Number("x", (0, 10), knots=(2, 6))
    logs = Number("y", (1, 16), knots=(2,), transform="log")
    assert straight.features == ("x at 0", "x at 2", "x at 6", "x at 10", "x missing")
    cells = {"x": [0.0, 1.0, 2.0, 5.0, 99.0, None], "y": [1.0, 2.0**0.5, 2.0, 4.0, 16.0, None]}
    rows = dense(Encoder(Schema((straight, logs), row_norm=1.0)).encode(pa.record_batch(cells))) * 2.0**0.5
    found = rows / np.maximum(np.linalg.norm(rows, axis=1), 1.0)[:, None]
    shares = [[1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0.25, 0.75, 0, 0], [0, 0, 0, 1, 0]]
    in_logs = [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 1, 0, 0], [0, 2 / 3, 1 / 3, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    wanted = np.concatenate([[*shares, [0, 0, 0, 0, 1]], in_logs], axis=1)
    np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted, axis=1)[:, None], atol=1e-6)


def test_bounds_of_any_size(tmp_path: Path) -> None:
    far = math.nextafter(2e300, 0.0)
    for low, high, kind in (
        (-8e307, 8e307, "none"), (0.0, 1e-323, "none"), (1.0, 1.0 + 2**-52, "none"), (-1e-300, 1e300, "none"),
        (1e300, 1e300 * (1 + 1e-13), "log"), (5e-324, 1e300, "log"), (far, 3e300, "log"),
    ):  # fmt: skip
        schema = Schema((Number("age", (low, high), transform=kind),))
        batch = pa.record_batch({"age": [low, high, -math.inf, math.nan, 1e308, -1e308]})
        found = np.asarray(Encoder(schema).encode(batch))[:, 0]
        assert found[:2] == pytest.approx([-1.0, 1.0])
        assert (np.abs(found) <= 1.0).all()


def encoded(folder: Path, text: str, columns: Any = COLUMNS[:1], label: Label = LABEL) -> EncodedTable:
    path = folder / "table.csv"
    path.write_text(text, encoding="utf-8")
    return encode_table(path, Schema(columns), label)


def test_a_table_that_does_not_fit_is_refused_in_a_sentence(tmp_path_factory: pytest.TempPathFactory) -> None:
    for text, words in [
        ("", "is empty"),
        ("age,y\n", "has no rows"),
        (
            "age,y\n1,yes\nx,no\n",
            "column 'age': the cell in row 2 should be a number and is not; correct it",
        ),
        ('age,y\n"1,5",yes\n', "decimals are written with a point"),
        (
            "age,y\n1,maybe\n",
            "the label 'y' is none of the classes no, yes in row 1; correct the classes in the study, or the",
        ),
        ("age,y\n1,yes\n2,\n", "the label 'y' is missing in row 2; correct"),
        ("age,y\n1,yes\n2,No\n", "the label 'y' differs in capitals from the classes no, yes in row 2; correct"),
        ("Age,y\n1,yes\n", "has no column 'age': did you mean 'Age'"),
        ("age,age,y\n1,1,yes\n", "column 'age' occurs more than once"),
        ("age,y\n1,yes,3\n", "row 1 has 3 cells instead of 2: is a separator"),
    ]:
        with case(text, words):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(DPADMMError, match=words) as refused:
                encoded(tmp_path, text)
            assert "\n" not in str(refused.value)


def test_a_missing_column_is_not_replaced_by_one_that_the_study_uses(tmp_path: Path) -> None:
    schema = Schema((Number("bp_1", (0, 200)), Number("bp_2", (0, 200))))
    label = Label("event", classes=("no", "yes"), weight="w", weight_bound=4.0)
    path = tmp_path / "t.csv"
    for header, name, words in [
        ("bp_1,event,w", "bp_2", "has no column 'bp_2'; it has no unused column"),
        ("bp_1,event,w,bp2", "bp_2", "has no column 'bp_2': did you mean 'bp2'?"),
        ("bp_1,bp_2,w,ward,events_1y", "event", "label 'event' is no column of .*: did you mean 'events_1y'?"),
        (
            "event,events,bp_1,bp_2,ward,weight_kg",
            "w",
            "weights 'w' is no column of .*; unused columns: 'ward', 'weight_kg', 'events'",
        ),
        (
            "bp_1,bp_2,w,ward,end_of_stay",
            "event",
            "label 'event' is no column of .*; unused columns: 'end_of_stay', 'ward'",
        ),
    ]:
        with case(header, name):
            path.write_text(f"{header}\n")
            with pytest.raises(StudyError, match=words):
                encode_table(path, schema, label)
            problem, *_ = survey_table(path, schema, label).problems
            assert re.search(words, problem)


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "utf16.csv").write_bytes("age,y\n1,yes\n".encode("utf-16"))
    (tmp_path / "wrong.parquet").write_text("age,y\n1,yes\n")
    (tmp_path / "table.txt").write_text("age,y\n1,yes\n")
    for name in ("utf16.csv", "wrong.parquet", "table.txt", "missing.csv", "."):
        with pytest.raises(DPADMMError):
            encode_table(tmp_path / name, DENSE, LABEL)
    with pytest.raises(DataError, match="cannot be a feature too"):
        encode_table(tmp_path / "table.csv", DENSE, Label("age", bounds=(0, 1)))


def test_numbers_as_labels_are_clamped_and_scaled(tmp_path: Path) -> None:
    found = encoded(tmp_path, "age,y\n1,0\n1,50\n1,900\n", label=Label("y", bounds=(0, 100)))
    assert found.labels.tolist() == [-1.0, 0.0, 1.0]


@pytest.mark.parametrize("schema", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_rows_in_a_file_give_the_same_gradient_portion_by_portion(
    schema: Schema, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, table(3000))
    memory, mapped = (encode_table(path, schema, LABEL, memory_bytes=limit) for limit in (2**28, 0))
    monkeypatch.setattr(kernels, "MIN_COMPILED_ENTRIES", 0)
    monkeypatch.setattr(kernels, "ENTRIES_PER_BLOCK", 500)
    monkeypatch.setattr("dpadmm.matrices.memmap.PORTION_BYTES", 10_000)
    points = np.random.default_rng(0).normal(size=(1, len(schema.features), 1))
    found = [kernels.gradient(make_rows(t.features, t.labels), points, Logistic()) for t in (memory, mapped)]
    assert found[0].tobytes() == found[1].tobytes()
    scores = [kernels.scores(make_rows(t.features, t.labels), points) for t in (memory, mapped)]
    assert scores[0].tobytes() == scores[1].tobytes()


def _shared_words(n: int) -> tuple[Schema, list[str]]:
    """Columns that have words in common at other places, and all their words in other spellings too."""
    words = [f"w{i}" for i in range(n)]
    columns = (
        Category("a", tuple(words)),
        Category("b", (words[0], *words[:0:-1])),
        Ordinal("c", (words[0], words[2], words[1])),
        Ordinal("d", (words[0], "yes", "W1", words[1])),
        Boolean("e"),
    )
    return Schema(columns), [*words, *map(str.upper, words), "yes", "YES", " no", "elsewhere", ""]


def test_a_word_means_the_same_whatever_stands_in_other_columns_batches_and_rows() -> None:
    """What is remembered of words is of one list of values: else one person's cell would encode another's."""
    for coded, n in product([False, True], [3, 300]):
        with case(coded, n):
            schema, words = _shared_words(n)
            names = [column.name for column in schema.columns]
            rng, together = np.random.default_rng(n), Encoder(schema)
            for _ in range(3):  # as many different words in every batch, in another order
                cells = {name: pa.array(rng.permutation(words).tolist()) for name in names}
                batch = pa.record_batch({k: v.dictionary_encode() if coded else v for k, v in cells.items()})
                found = dense(together.encode(batch))
                if n > 3:
                    columns = []
                    for column in schema.columns:  # a column by itself, with a memory of its own
                        own = dense(Encoder(Schema((column,), row_norm=schema.scale)).encode(batch))
                        columns.append(own)
                    np.testing.assert_array_equal(found, np.hstack(columns))
                else:
                    for row in range(batch.num_rows):
                        alone = dense(Encoder(schema).encode(batch.slice(row, 1)))
                        np.testing.assert_array_equal(found[row : row + 1], alone)


def test_no_cell_makes_a_row_unusable_whatever_length_rows_are_divided_by(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A site's "no" would tell of that cell: so every row is finite, and at most 1 long."""
    for sparse, row_norm in product([False, True], [*ROW_NORMS, 1.0, None]):
        with case(sparse, row_norm):
            tmp_path = tmp_path_factory.mktemp("case")
            few = (
                Number("a", (0, 100)),
                Number("b", (1e-300, 1e300), transform="log"),
                Plain("c"),
                Boolean("d"),
            )
            schema = Schema((*few, Category("e", tuple(f"v{i}" for i in range(40)))) if sparse else few, row_norm)
            odd = ("", "0", "100", "50", "1e308", "-1e308", "1e-308", "inf", "nan", "x", "true", "v3")
            path = tmp_path / "table.csv"
            cells = "".join(f"{cell}," * len(schema.columns) + "yes\n" for cell in odd)
            path.write_text(",".join([*(each.name for each in schema.columns), "y"]) + "\n" + cells)
            found = encode_table(path, schema, LABEL, intercept=True, invalid_as_missing=True)
            lengths = row_norms(found.features)
            assert np.isfinite(dense(found.features)).all()
            assert (lengths <= 1.0 + 1e-6).all()


def test_a_length_that_some_cells_could_not_be_divided_by_is_refused() -> None:
    """With 1e-39 a study could be enrolled where no one is 100, and could not where someone is."""
    for row_norm in [1e-39, 1e-21, 0.99e-9, 1.01e9, 1e39, 1e300]:
        with (
            case(row_norm),
            pytest.raises(StudyError, match="row_norm must be a positive number from 1e-09 to 1e"),
        ):
            Schema((Number("age", (0, 100)),), row_norm)


@pytest.mark.parametrize("schema", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_a_row_without_a_known_label_is_zeros_with_its_constant_column(schema: Schema, tmp_path: Path) -> None:
    whole = table(60)
    labels = ["yes", "perhaps", "", "no", None] * 12
    path = tmp_path / "table.parquet"
    pa.parquet.write_table(whole.set_column(whole.column_names.index("y"), "y", pa.array(labels)), path)
    found = encode_table(path, schema, LABEL, intercept=True, invalid_as_missing=True)
    silent = ~dense(found.features).any(axis=1)
    assert silent.tolist() == [label not in ("yes", "no") for label in labels]
    assert found.report.label.unknown == 36


TINY = np.finfo(np.float32).tiny
EXTREME = (
    Plain("x"),
    Number("scaled", (-1.0, 1.0), center=0.0, scale=1.0),
    Number("narrow", (-1e-39, 1e-39)),
    Number("hats", (0.0, 1.0), knots=(0.5,)),
    Plain("long"),
)
EXTREME_SCHEMAS = {
    "dense": Schema(EXTREME),
    "coded": Schema((*EXTREME, Category("sex", ("f", "m")))),
    "crossed": Schema((*EXTREME, Category("sex", ("f", "m"))), interactions=(("scaled", "hats"), ("scaled", "narrow"))),
}


def subnormal(values: Any) -> int:
    size = np.abs(np.asarray(values))
    return int(np.count_nonzero((size > 0) & (size < np.finfo(size.dtype).tiny)))


@pytest.mark.parametrize("name", EXTREME_SCHEMAS)
@pytest.mark.parametrize("intercept", [False, True])
def test_no_encoded_number_is_subnormal(name: str, intercept: bool, tmp_path: Path) -> None:
    """Sums over them would be slower, and so tell how many there are."""
    schema = EXTREME_SCHEMAS[name]
    sizes = np.array([0.0, 1e-45, 1e-40, 0.9e-38, 1.2e-38, 1.3e-38, 1e-37, 1e-30, 1e-20, 1e-9, 0.5])
    numbers = np.array([sign * one for one in sizes for sign in (1, -1)])
    count = len(numbers)
    cells = {column.name: np.tile(numbers, 2) for column in EXTREME}
    cells["long"] = np.repeat([0.0, 1e18], count)  # rows that are shortened by a factor of 1e-18
    cells["sex"] = np.resize(["f", "m"], 2 * count)
    labels = np.tile([1e-310, -5e-324, *np.linspace(-0.9, 0.9, count - 2)], 2)
    weights = np.tile([1e-310, 5e-324, 3e-308, *np.linspace(0.0, 4.0, count - 3)], 2)
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pa.table({**cells, "y": labels, "w": weights}), path)
    label = Label("y", weight="w", weight_bound=4.0, plain=True)
    found = encode_table(path, schema, label, intercept=intercept)
    features = found.features
    assert isinstance(features, CodedRows) == (name != "dense")
    stored = features.values if isinstance(features, CodedRows) else features
    assert found.row_weights is not None
    assert [subnormal(each) for each in (stored, found.labels, found.row_weights)] == [0, 0, 0]
    assert np.count_nonzero(found.row_weights) < np.count_nonzero(weights)
    assert 0.0 < np.abs(stored[stored != 0.0]).min() < 2.0 * TINY, "normal numbers are kept"
    assert found.labels[2:count].tolist() == labels[2:count].tolist()
    assert row_norms(features).max() <= 1.0 + 1e-6
