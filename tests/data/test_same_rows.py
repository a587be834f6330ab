"""The same rows in any form have equal digests and train bit-identical models."""

from __future__ import annotations

import csv
import zipfile
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import duckdb
import numpy as np
import openpyxl
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from looping import case

import dpadmm
from dpadmm import DataError, DPADMMClassifier, Study
from dpadmm.data import spreadsheet
from dpadmm.data.dialect import Dialect
from dpadmm.data.reader import column_names, open_table
from dpadmm.data.schema import Boolean, Category, Label, Number, Ordinal, Schema
from dpadmm.data.survey import survey_table
from dpadmm.data.table import encode_table
from dpadmm.methods import StatisticsRelease
from dpadmm.trusted.private_rows import CheckedRows, protect
from dpadmm.trusted.unit import ONE_ROW

N = 400
NAMESPACES = ("office", "table", "text")
RNG = np.random.default_rng(5)
COLUMNS: dict[str, list[Any]] = {
    "age": [None if x > 90 else round(x, 3) for x in RNG.uniform(0, 100, N).tolist()],
    "income": [float(x) for x in np.exp(RNG.normal(9, 1, N))],
    "ward": [None if x == "-" else x for x in RNG.choice(["north", "süd", "a,b", "-"], N).tolist()],
    "stage": RNG.integers(1, 5, N).tolist(),
    "smoker": RNG.choice([True, False], N).tolist(),
    "unused": ['say "hi"'] * N,
    "ill": RNG.choice(["no", "yes"], N).tolist(),
}
SCHEMA = Schema(
    (Number("age", (0, 80), missing="indicator"), Number("income", (100, 1e6), transform="log"),
     Category("ward", ("north", "süd", "a,b")), Ordinal("stage", ("1", "2", "3", "4")), Boolean("smoker")),
)  # fmt: skip
STUDY = Study(
    name="same rows", schema=SCHEMA, label=Label("ill", classes=("no", "yes")),
    training={"epsilon": 1.0, "delta": 1e-5},
)  # fmt: skip


def text(value: Any, decimal: str = ".") -> str:
    if value is None:
        return ""
    return str(value).replace(".", decimal) if isinstance(value, float) else str(value)


def write_csv(
    path: Path, *, separator: str = ",", decimal: str = ".", encoding: str = "utf-8", index: bool = False
) -> Path:
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow([*([""] if index else []), *COLUMNS])
        for number, row in enumerate(zip(*COLUMNS.values(), strict=True)):
            writer.writerow([*([number] if index else []), *(text(cell, decimal) for cell in row)])
    return path


def write_sheet(path: Path) -> Path:
    book = openpyxl.Workbook()
    book.active.append([*COLUMNS])
    for row in zip(*COLUMNS.values(), strict=True):
        book.active.append(row)
    book.save(path)
    return path


def write_ods(path: Path) -> Path:
    def cell(value: Any) -> str:
        kinds = {bool: "boolean", float: "float", int: "float"}
        if value is None:
            return "<table:table-cell/>"
        if (kind := kinds.get(type(value))) is None:
            shown = escape(str(value))
            return f'<table:table-cell office:value-type="string"><text:p>{shown}</text:p></table:table-cell>'
        shown = str(value).lower()
        name = "boolean-value" if kind == "boolean" else "value"
        return f'<table:table-cell office:value-type="{kind}" office:{name}="{shown}"/>'

    rows = [COLUMNS, *zip(*COLUMNS.values(), strict=True)]
    cells = "".join(f"<table:table-row>{''.join(map(cell, row))}</table:table-row>" for row in rows)
    spaces = " ".join(f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in NAMESPACES)
    content = (
        f'<?xml version="1.0" encoding="UTF-8"?><office:document-content {spaces}><office:body><office:spreadsheet>'
        f'<table:table table:name="rows">{cells}</table:table></office:spreadsheet></office:body>'
        "</office:document-content>"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        archive.writestr("content.xml", content)
        manifest = "urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"
        archive.writestr("META-INF/manifest.xml", f'<manifest:manifest xmlns:manifest="{manifest}"/>')
    return path


def forms(folder: Path) -> dict[str, Any]:
    table, frame = pa.table(COLUMNS), pd.DataFrame(COLUMNS)
    pq.write_table(table, folder / "t.parquet")
    frame.set_index(pd.Index(range(5, N + 5))).to_csv(folder / "pandas.csv")
    write_ods(folder / "t.ods")
    with duckdb.connect(str(folder / "t.duckdb")) as connection:
        connection.register("numbered", table.append_column("k", pa.array(range(N))))
        connection.sql("CREATE TABLE t AS SELECT * FROM numbered")
    (folder / "t.toml").write_text('database = "t.duckdb"\ntable = "t"\norder_by = "k"\n')
    return {
        "csv": write_csv(folder / "t.csv"),
        "csv; semicolons": write_csv(folder / "s.csv", separator=";", decimal=","),
        "csv, tabs": write_csv(folder / "tab.csv", separator="\t"),
        "csv, bars": write_csv(folder / "b.csv", separator="|"),
        "csv, UTF-16": write_csv(folder / "u.csv", separator="\t", encoding="utf-16"),
        "csv, cp1252": open_table(write_csv(folder / "l.csv", encoding="cp1252"), Dialect(encoding="cp1252")),
        "csv, index": write_csv(folder / "i.csv", index=True),
        "csv of pandas": folder / "pandas.csv",
        "excel": write_sheet(folder / "t.xlsx"),
        "ods": folder / "t.ods",
        "parquet": folder / "t.parquet",
        "database": folder / "t.toml",
        "arrow": table,
        "pandas": frame,
        "pandas, index": frame.set_index(pd.Index([f"row {k}" for k in range(N)])),
        "pandas, categories": frame.astype({"ward": "category", "ill": "category"}),
        "pandas, pyarrow": frame.convert_dtypes(dtype_backend="pyarrow"),
        "polars": pl.DataFrame(COLUMNS),
        "duckdb": duckdb.sql("SELECT * FROM frame"),
        "stream": pa.RecordBatchReader.from_batches(table.schema, table.to_batches()),
    }


def test_digests_and_models_are_equal(tmp_path: Path) -> None:
    first: tuple[str, bytes] | None = None
    for name, table in forms(tmp_path).items():
        with case(name):
            source = open_table(table)
            encoded = encode_table(source, SCHEMA, STUDY.label, intercept=True, invalid_as_missing=True)
            digest = CheckedRows(protect(encoded.features, encoded.labels, ONE_ROW)).digest()
            model = dpadmm.train(STUDY, source, seed=3).model
            found = digest, model.weights.tobytes()
            first = first or found
            assert found == first
            assert survey_table(source, SCHEMA, STUDY.label).problems == []


def test_every_command_of_python_accepts_a_frame(tmp_path: Path) -> None:
    path, frame = write_csv(tmp_path / "t.csv"), pd.DataFrame(COLUMNS)
    model = dpadmm.train(STUDY, frame, seed=1).model
    for call in [
        lambda data: dpadmm.evaluate(model, data).metrics,
        lambda data: model.predict_table(data).tolist(),
        lambda data: dpadmm.plan(STUDY, 500, public=data, repeats=2, rounds=[], epsilons=[]).forecasts,
        lambda data: dpadmm.draft_study(data, "ill").label,
        lambda data: [each.about for each in dpadmm.draft_study(data, "ill").columns],
        lambda data: dpadmm.train(STUDY, data, public=pd.DataFrame(COLUMNS)[:100], seed=1).weights.tolist(),
    ]:
        with case(call):
            assert repr(call(frame)) == repr(call(path))
    statistics = Study(
        name="statistics",
        schema=Schema(SCHEMA.columns[2:]),
        training={"epsilon": 1.0, "delta": 1e-5, "method": StatisticsRelease()},
    )
    described = [dpadmm.describe(statistics, data, seed=1).to_dict() for data in (frame, path)]
    assert described[0] == described[1]


def test_private_rows_may_not_be_the_public_ones(tmp_path: Path) -> None:
    frame = pd.DataFrame(COLUMNS)
    for private in (frame, pl.DataFrame(COLUMNS), write_csv(tmp_path / "t.csv")):
        with case(type(private)), pytest.raises(DataError, match="has the same rows as the public table"):
            dpadmm.train(STUDY, private, public=frame)


def test_an_estimator_with_the_study_fits_every_form(tmp_path: Path) -> None:
    given = forms(tmp_path)
    y = np.array(COLUMNS["ill"])
    first = None
    for name in ("pandas", "polars", "arrow", "pandas, categories"):
        with case(name):
            model = DPADMMClassifier(study=STUDY, random_state=0)
            with pytest.warns(dpadmm.PrivacyLeakWarning, match="random_state"):
                model.fit(given[name], y)
            first = model.coef_ if first is None else first
            np.testing.assert_array_equal(model.coef_, first)


# Dialects


def test_a_cell_is_read_the_same_whatever_other_cells_are(tmp_path: Path) -> None:
    """The dialect depends on the first line only: one person's cell must not change how others' cells are read."""
    path, schema = tmp_path / "t.csv", Schema((Number("x", (0, 10)), Category("c", ("1.5", "b"))))
    found = []
    for last in ("1,5;1,5", "1.5;b", "7;9", "word;1.234,5"):
        path.write_text(f"x;c\n2,5;1,5\n2.5;1.5\n{last}\n")
        encoded = encode_table(path, schema, None, invalid_as_missing=True)
        found.append(encoded.features.toarray()[:2].tolist())  # type: ignore[union-attr]
        assert found[-1][0] == found[-1][1]
    assert found == [found[0]] * 4


@pytest.mark.parametrize(
    ("line", "options", "separator", "decimal"),
    [
        ("a,b", {}, ",", "."),
        ("a;b", {}, ";", ","),
        ("a;b,c", {}, ",", "."),
        ('"a;b",c', {}, ",", "."),
        ('"a,b";c', {}, ";", ","),
        ("a\tb", {}, "\t", "."),
        ("a|b", {}, "|", "."),
        ("a", {}, ",", "."),
        ("a;b", {"decimal": "."}, ";", "."),
        ("a b", {"separator": "tab"}, "\t", "."),
        ("a:b", {"separator": ":"}, ":", "."),
    ],
)
def test_a_dialect_follows_from_the_first_line(line: str, options: Any, separator: str, decimal: str) -> None:
    found = Dialect.of(**options).with_encoding(line.encode()).with_separator(line, ",")
    assert (found.separator, found.decimal) == (separator, decimal)


def test_what_was_detected_is_shown(tmp_path: Path) -> None:
    for name, table in forms(tmp_path).items():
        with case(name):
            notes = open_table(table).notes()
            assert any("separated by semicolons; 1,5 and 1.5 are the same" in each for each in notes) == (
                name == "csv; semicolons"
            )
            has_index = name in ("csv, index", "csv of pandas")
            assert any("first column, without a name, is ignored" in each for each in notes) == has_index
    assert open_table(tmp_path / "u.csv").notes() == [
        "Detected: columns are separated by tabs; the encoding is utf-16."
    ]


def test_a_sheet_is_the_first_with_cells_and_its_first_row_has_the_names(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.create_sheet("rows")
    for row in (["", "a", "b", None], [0, 1, "x", None], [None] * 4, [1, 2.5, None, None]):
        sheet.append(row)
    book.create_sheet("more").append(["z"])
    book.save(tmp_path / "t.xlsx")
    source = open_table(tmp_path / "t.xlsx")
    assert source.column_names() == ["a", "b"]
    assert source.row_count() == 2
    assert source.notes() == [
        "The sheet 'rows' is read; other sheets are ignored.",
        "The first column, without a name, is ignored: it is the index of a data frame.",
    ]
    sheet.insert_rows(1)
    sheet["A1"] = "Report of May"
    book.save(tmp_path / "t.xlsx")
    with pytest.raises(DataError, match="sheet 'rows': column 2 has no name; the first row must have the names"):
        column_names(tmp_path / "t.xlsx")


def test_a_sheet_that_cannot_be_read_is_one_clear_sentence(tmp_path: Path) -> None:
    openpyxl.Workbook().save(tmp_path / "whole.xlsx")
    whole = (tmp_path / "whole.xlsx").read_bytes()
    old = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
    foreign = "it is no Excel or ODS file; if it is text, rename it to .csv"
    damaged = "it is damaged, or has the wrong suffix; save it again as .xlsx"
    for name, content, reason in [
        ("text.xlsx", b"a,b\n1,2\n", foreign),
        ("text.xls", b"a,b\n1,2\n", foreign),
        ("text.ods", b"a,b\n1,2\n", foreign),
        ("short.xlsx", whole[:-200], damaged),
        ("new.xls", whole, damaged),
        ("short.xls", old, damaged),
    ]:
        with case(name):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(DataError) as refused:
                column_names(tmp_path / name)
            suffix = name.rpartition(".")[2].upper()
            assert str(refused.value) == f"{tmp_path / name} cannot be read as {suffix}: {reason}"


def test_a_reader_of_sheets_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    (tmp_path / "t.xlsx").write_bytes(b"x")
    monkeypatch.setattr(spreadsheet, "import_module", missing)
    with pytest.raises(DataError, match=r"to read this file: pip install 'dpadmm\[excel\]'"):
        column_names(tmp_path / "t.xlsx")
