"""Files as streams of batches: what a file may look like, and one sentence for those that are no table."""

from __future__ import annotations

import csv
import gzip
import math
import threading
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from looping import case

from dpadmm.data import reader
from dpadmm.data.cells import as_numbers, as_words
from dpadmm.data.dataset_file import read_table
from dpadmm.data.reader import ahead, column_names, count_lines, line_warnings, open_batches, open_table
from dpadmm.data.schema import Boolean, Category, Label, Number, Schema
from dpadmm.data.survey import survey_table
from dpadmm.data.table import encode_table
from dpadmm.errors import DataError, DPADMMError

SCHEMA = Schema((Number("age", (0, 100)), Category("sex", ("f", "m"))), row_norm=2.0)
LABEL = Label("y", classes=("no", "yes"))
WANTED = [[0.25, 1, 0, 0], [0.75, 0, 1, 0]]


def features(path: Path, schema: Schema = SCHEMA, label: Label | None = LABEL) -> Any:
    found = encode_table(path, schema, label)
    return np.asarray(found.features) * schema.scale


def csv_file(folder: Path, content: str | bytes) -> Path:
    path = folder / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


ROWS = "age,sex,y\n62.5,f,yes\n87.5,m,no\n"


def test_files_that_say_the_same_in_another_way(tmp_path_factory: pytest.TempPathFactory) -> None:
    for content in [
        ROWS,
        "\ufeff" + ROWS,
        ROWS.replace("\n", "\r\n"),
        ROWS.replace("\n", "\r"),
        ROWS.rstrip("\n"),
        ROWS + "\n\n",
        '"age","sex","y"\n"62.5","f","yes"\n"87.5","m","no"\n',
        "note,y,sex,age\nx,yes, f ,62.5\ny,no,m, 87.5 \n",
        'y,sex,age,note\nyes,f,62.5,"two\nlines, ""quoted"""\nno,m,87.5,\n',
        "age,sex,y,age2,age2\n6.25e1,f,yes,1,2\n+87.50,m,no,3,4\n",
        ROWS.replace(",", ";"),
        ROWS.replace(",", ";").replace(".", ","),
        ROWS.replace(",", ";").replace("87.5", "87,5"),
        ROWS.replace(",", "\t"),
        ROWS.replace(",", "|"),
        ROWS.encode("utf-16"),
        ROWS.replace("\n", "\r\n").replace(",", "\t").encode("utf-16"),
        ",age,sex,y\n0,62.5,f,yes\n1,87.5,m,no\n",
    ]:
        with case(content):
            tmp_path = tmp_path_factory.mktemp("case")
            np.testing.assert_allclose(features(csv_file(tmp_path, content)), WANTED, atol=1e-6)


@pytest.mark.parametrize("name", ["t.tsv", "t.csv.gz", "t.TSV.GZ"])
def test_tabs_and_gzip(tmp_path: Path, name: str) -> None:
    path, text = tmp_path / name, (ROWS.replace(",", "\t") if "tsv" in name.lower() else ROWS).encode()
    content = gzip.compress(text) if name.lower().endswith(".gz") else text
    path.write_bytes(content)
    np.testing.assert_allclose(features(path), WANTED, atol=1e-6)
    assert count_lines(path) == 3
    whole = read_table(path, task="binary", label="y", classes=("no", "yes"), by="sex")
    assert np.asarray(whole.features).tolist() == [[62.5], [87.5]]
    if content is not text:
        for broken in (content[:-12], content[:20], b"nothing" + content):
            path.write_bytes(broken)
            with pytest.raises(DPADMMError, match=r"cannot be read as [CT]SV") as refused:
                features(path)
            assert "\n" not in str(refused.value)


def test_a_file_that_is_no_table_gets_one_sentence(tmp_path_factory: pytest.TempPathFactory) -> None:
    for content, words in [
        (ROWS.encode("utf-16-le"), "seems to be written in UTF-16; read it with --encoding utf-16-le"),
        (ROWS.encode("utf-16-be"), "seems to be written in UTF-16"),
        ("ägé,sex,y\n".encode("latin-1"), "the first line is not UTF-8"),
        ("age,sex,y\n1,ä,yes\n".encode("latin-1"), "column 'sex'.* is not UTF-8 text"),
        (
            'age,sex,y\n"62,5",f,yes\n',
            "column 'age': the cell in row 1 should be a number and is not; decimals",
        ),
        (
            "age,sex,y\n6 ft,f,yes\n",
            "column 'age': the cell in row 1 should be a number and is not; correct it",
        ),
        ("age,sex,age,y\n1,f,1,yes\n", "column 'age' occurs more than once"),
        ("age,sex\n1,f\n", "the study's label 'y' is no column of .*; it has no unused column"),
        ("age,sex,y\n1,f\n", "row 1 has 2 cells instead of 3: is a separator or a quotation mark missing"),
        ('age,sex,"y\n1,f,yes\n', "is a quotation mark open"),
        (b"", "is empty"),
        ("age,sex,y\n", "has no rows"),
        (b"\0\0\0\0", "UTF-16"),
        (",".join(f"c{i}" for i in range(1_000_000)) + "\n", "has 1,000,000 columns; at most 100,000"),
        ("x" * 2**24, "more than 16 million bytes"),
    ]:
        with case(content, words):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(DPADMMError, match=words) as refused:
                features(csv_file(tmp_path, content))
            assert "\n" not in str(refused.value)
            assert len(str(refused.value)) < 400


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_cell_that_is_no_number_is_found_by_its_row_and_not_quoted(kind: str, tmp_path: Path) -> None:
    n = 300_000  # more than a block
    table = pa.table({"age": pa.array(["1"] * n + ["obese", "fat"]), "y": pa.array(["yes"] * (n + 2))})
    path = tmp_path / f"table.{kind}"
    if kind == "csv":
        pa.csv.write_csv(table, path)
    else:
        pa.parquet.write_table(table, path)
    with pytest.raises(
        DPADMMError, match=r"column 'age': the cells in 2 rows \(300,001, 300,002\) should be numbers"
    ) as refused:
        encode_table(path, Schema((Number("age", (0, 1)),)), None)
    assert "obese" not in str(refused.value)
    (problem,) = survey_table(path, Schema((Number("age", (0, 1)),))).problems
    assert "the cells in 2 rows (300,001, 300,002)" in problem
    assert "obese" not in problem


def test_a_row_of_another_length_is_not_quoted(tmp_path: Path) -> None:
    with pytest.raises(DPADMMError, match="row 1 has 2 cells instead of 3") as refused:
        features(csv_file(tmp_path, "age,sex,y\n1,secret\n"))
    assert "secret" not in str(refused.value)


def test_a_wide_table_is_read_where_rows_are_longer_than_a_block(tmp_path: Path) -> None:
    names = [f"column number {i}" for i in range(30_000)]
    cells = ["1234567890" * 6] * len(names)
    path = csv_file(tmp_path, f"{','.join(names)}\n{','.join(cells)}\n")
    assert path.stat().st_size > 2 * reader.BLOCK_BYTES
    assert [batch.num_rows for batch in open_batches(path, names[-1:])] == [1]
    assert column_names(path) == names


KINDS: dict[str, tuple[list[Any], Any]] = {
    "int8": ([1, None, 0], pa.int8()),
    "uint64": ([1, None, 0], pa.uint64()),
    "float": ([1.0, float("nan"), 0.0], pa.float32()),
    "half": (np.array([1.0, np.nan, 0.0], np.float16).tolist(), pa.float16()),
    "decimal": ([Decimal("1.00"), None, Decimal("0.00")], pa.decimal128(9, 2)),
    "bool": ([True, None, False], pa.bool_()),
    "text": (["1", "", "0"], pa.string()),
    "large": (["1.0", " ", "0.0"], pa.large_string()),
    "view": (["1", None, "0"], pa.string_view()),
    "coded text": (["1", None, "0"], pa.dictionary(pa.int8(), pa.string())),
    "coded numbers": ([1, None, 0], pa.dictionary(pa.int16(), pa.int64())),
}


def test_types_of_parquet_columns(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever holds a 1 or a 0, it is a number, a category or a boolean, and missing is missing."""
    for kind in KINDS:
        with case(kind):
            tmp_path = tmp_path_factory.mktemp("case")
            values, arrow = KINDS[kind]
            cells = pa.array(values, arrow)
            path = tmp_path / "table.parquet"
            stored = pa.table({"n": cells, "c": cells, "b": cells})
            pa.parquet.write_table(stored, path)
            columns = (Number("n", (0, 1), missing="indicator"), Category("c", ("0", "1")), Boolean("b"))
            found = encode_table(path, Schema(columns, row_norm=9.0), None)
            true = 0.0 if kind == "bool" else 1.0  # as text it is "true", which is another value
            wanted = [[1, 0, 0, true, 1 - true, 1], [0, 1, 0, 0, 1, 0], [-1, 0, true, 0, 1 - true, -1]]
            np.testing.assert_allclose(np.asarray(found.features) * 9.0, wanted, atol=1e-6)
            assert (found.report.columns["n"].missing, found.report.columns["b"].missing) == (1, 1)


def test_parquet_columns_that_hold_something_else(tmp_path_factory: pytest.TempPathFactory) -> None:
    for cells, words in [
        (pa.array([0], pa.timestamp("us")), "column 'n' holds timestamp.us. values"),
        (pa.array([0], pa.duration("s")), "column 'n' holds duration"),
        (pa.array([b"1"], pa.large_binary()), "column 'n' holds large_binary values"),
        (pa.array([[1]], pa.list_(pa.int8())), "column 'n' holds list"),
        (pa.array([{"a": 1}]), "column 'n' holds struct"),
    ]:
        with case(cells, words):
            tmp_path = tmp_path_factory.mktemp("case")
            path = tmp_path / "table.parquet"
            pa.parquet.write_table(pa.table({"n": cells}), path)
            for column in (Number("n", (0, 1)), Category("n", ("0",)), Boolean("n")):
                if column.kind == "number" or not pa.types.is_timestamp(cells.type):  # dates may be categories
                    with pytest.raises(DPADMMError, match=words):
                        encode_table(path, Schema((column,)), None)


def test_a_broken_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pa.parquet.write_table(pa.table({"age": [1.0] * 5000, "sex": ["f"] * 5000, "y": ["no"] * 5000}), path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:4], b"PAR1" + b"\0" * 40 + b"PAR1"):
        path.write_bytes(content)
        with pytest.raises(DPADMMError, match="cannot be read as PARQUET") as refused:
            features(path)
        assert "\n" not in str(refused.value)


def test_columns_of_missing_cells_are_missing(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "age,sex,y\n,,yes\nNA,,no\n")
    found = encode_table(path, SCHEMA, LABEL)
    assert [(each.missing, each.unknown) for each in found.report.columns.values()] == [(2, 0), (2, 0)]
    path = tmp_path / "table.parquet"
    pa.parquet.write_table(pa.table({"age": pa.nulls(2), "sex": pa.nulls(2), "y": ["yes", "no"]}), path)
    again = encode_table(path, SCHEMA, LABEL)
    assert np.asarray(again.features).tobytes() == np.asarray(found.features).tobytes()
    assert again.report.columns == found.report.columns


def test_words_of_a_whole_file_in_every_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of a Parquet file hold the words of their row group, many more than there are cells."""
    monkeypatch.setattr(reader, "BATCH_ROWS", 7)
    texts = [f"v{k}" if k % 5 else None for k in np.random.default_rng(0).integers(0, 1200, 3000)]
    path = tmp_path / "table.parquet"
    pa.parquet.write_table(pa.table({"c": texts}), path, row_group_size=1500)
    values = tuple(f"v{k}" for k in range(0, 1200, 2))
    found = encode_table(path, Schema((Category("c", values),)), None)
    places = [values.index(text) if text in values else len(values) for text in texts]
    assert found.features.codes[:, 0].tolist() == places  # type: ignore[union-attr]
    tally = found.report.columns["c"]
    assert tally.missing == texts.count(None)
    assert tally.unknown == places.count(len(values)) - tally.missing


def test_words_with_unsigned_places() -> None:
    """As polars keeps its categories."""
    cells = pa.DictionaryArray.from_arrays(pa.array([0, None, 1], pa.uint32()), ["a", "b"])
    words, places = as_words(cells, "c")
    assert (words.to_pylist(), places.tolist()) == (["a", "b"], [0, -1, 1])


# Cells that should be numbers

TRICKY = (
    *(
        "",
        " ",
        "0",
        "-0",
        "+1",
        " 1",
        "1\t",
        "\u00a01",
        "1\n",
        "1_0",
        "0x10",
        "١",
        "１",
        "−1",
        "1,5",
        "1.",
        ".5",
        "- 1",
        "--1",
    ),
    *(
        "1e5",
        "1E+05",
        "1e",
        "1d5",
        "1e400",
        "-1e400",
        "1e-400",
        "0.1",
        "1" * 400,
        "0." + "3" * 400,
        "00012",
        "1\0",
        "\0",
    ),
    *("inf", "-inf", "+inf", "Infinity", "INF", "nan", "NaN", "-nan", "nan(1)", "1.#QNAN", "-1.#IND", " nan ", "true"),
    *(
        "NA",
        "N/A",
        "#N/A",
        "na",
        "NULL",
        "null",
        " NULL",
        "None",
        "?",
        "-",
        '"',
        '""',
        "'1'",
        '"1"',
        "1 2",
        "1;2",
        "2024-01-01",
    ),
)
A_CELL = st.one_of(
    st.sampled_from(TRICKY),
    st.floats().map(repr),
    st.floats(-1e6, 1e6).map(lambda x: f"{x:.5f}"),
    st.text(st.characters(codec="utf-8"), max_size=6),
    st.text("0123456789+-.eE_ x", max_size=6),
)


def cells_read(path: Path, cells: list[str], *, invalid_as_missing: bool) -> list[float]:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(
            file, quoting=csv.QUOTE_ALL if invalid_as_missing and len(cells) % 2 else csv.QUOTE_MINIMAL
        ).writerows([("n", "k"), *((cell, "x") for cell in cells)])
    (batch,) = open_batches(path, ["n"], numbers=frozenset({"n"}), invalid_as_missing=invalid_as_missing)
    return as_numbers(batch.column("n"), "n", invalid_as_missing=invalid_as_missing).tolist()


@settings(max_examples=80, deadline=None)
@given(st.lists(A_CELL, min_size=1, max_size=5))
@example(list(TRICKY))
def test_a_cell_is_one_number_by_either_parser_and_whatever_stands_beside_it(cells: list[str]) -> None:
    """A site takes cells as text, all at once where it can; training reads numbers, and refuses what is none.

    If a bad cell changed how good cells of its column are read, one person's cell would change another's row.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        for cell, found in zip(cells, cells_read(path, cells, invalid_as_missing=True), strict=True):
            wanted = math.nan
            for text in (cell.strip(), cell):  # training knows fewer kinds of blanks, and refuses the others
                with suppress(DataError):
                    (wanted,) = cells_read(path, [text], invalid_as_missing=False)
            assert repr(found) == repr(wanted), cell


# Items made beforehand


def numbers(stop: int, made: list[int], closed: list[bool], error: Exception | None = None) -> Iterator[int]:
    try:
        for k in range(stop):
            made.append(k)
            yield k
        if error is not None:
            raise error
    finally:
        closed.append(True)


def left_over() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("ahead")]


def test_the_same_items_and_no_more_than_asked_for_beforehand() -> None:
    made: list[int] = []
    closed: list[bool] = []
    for k, item in enumerate(ahead(numbers(50, made, closed), count=3)):
        assert item == k
        assert len(made) <= k + 4
    assert made == list(range(50))
    assert closed == [True]
    assert not left_over()


def test_an_error_comes_after_the_items_before_it() -> None:
    made: list[int] = []
    seen: list[int] = []
    with pytest.raises(ValueError, match="here"):
        seen.extend(ahead(numbers(5, made, [], ValueError("here"))))
    items = ahead(numbers(5, made, [], ValueError("here")))
    assert [next(items) for _ in range(5)] == list(range(5))
    with pytest.raises(ValueError, match="here"):
        next(items)
    assert not left_over()


def test_whoever_stops_looking_leaves_nothing_open() -> None:
    closed: list[bool] = []
    items = ahead(numbers(10**6, [], closed))
    assert next(items) == 0
    items.close()
    assert closed == [True]
    assert not left_over()


# Lines that became no rows


def rows_of(path: Path) -> int:
    return sum(batch.num_rows for batch in open_batches(path, ["ill"]))


def written(path: Path, cells: list[str], end: str = "\n") -> Path:
    path.write_bytes(f"age,ill{end}{end.join(f'{20 + k},{cell}' for k, cell in enumerate(cells))}{end}".encode())
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("closed_at", [None, 30])
def test_an_open_quotation_mark_in_the_last_column_is_seen(tmp_path, end, closed_at):
    cells = ["no"] * 50
    cells[10] = '"no'
    if closed_at:
        cells[closed_at] = 'no"'
    path = written(tmp_path / "t.csv", cells, end)
    rows = rows_of(path)
    assert rows == (11 if closed_at is None else 30)
    (sentence,) = line_warnings(path, rows)
    assert sentence.startswith(f"51 lines of the file make {rows} rows: is a quotation mark open")


def test_a_few_line_breaks_and_blank_lines_are_fine(tmp_path):
    path = written(tmp_path / "t.csv", ["no", '"on\ntwo lines"', *["yes"] * 20])
    path.write_text(path.read_text() + "\n" * 30)
    assert rows_of(path) == 22
    assert line_warnings(path, 22) == []


def test_other_files_have_no_lines(tmp_path):
    pq.write_table(pa.table({"age": [1]}), tmp_path / "t.parquet")
    assert line_warnings(tmp_path / "t.parquet", 1) == []


@pytest.mark.parametrize("chunk", [1, 2, 3, 1000])
@pytest.mark.parametrize(
    ("text", "count"),
    [("", 0), ("a", 1), ("a\n", 1), ("\n\na\r\n\r\nb", 2), ("a\rb\r", 2), ("\r\n\n", 0), ("a\n\n\n\nb\n", 2)],
)
def test_lines_are_counted_in_pieces_of_any_size(tmp_path, monkeypatch, text, count, chunk):
    monkeypatch.setattr(reader, "CHUNK", chunk)
    (tmp_path / "t").write_bytes(text.encode())
    assert count_lines(tmp_path / "t") == count


def test_parquet_says_how_many_rows_it_has(tmp_path: Path) -> None:
    table, folder = pa.table({"age": [1.0, 2.0, 3.0]}), tmp_path / "parts"
    folder.mkdir()
    for name in ("a", "b"):
        pq.write_table(table, folder / f"{name}.parquet")
    pa.csv.write_csv(table, tmp_path / "table.csv")
    assert open_table(folder / "a.parquet").row_count() == 3
    assert open_table(folder).row_count() == 6
    assert open_table(tmp_path / "table.csv").row_count() is None
    (tmp_path / "no.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"no\.parquet"):
        open_table(tmp_path / "no.parquet").row_count()
