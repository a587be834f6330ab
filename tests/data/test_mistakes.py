"""Twenty-five typical mistakes with their exact messages. None needs a second run to find the next problem."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dpadmm
from dpadmm import DPADMMError, Study
from dpadmm.data.schema import Boolean, Category, Label, Number, Schema

SCHEMA = Schema((Number("age", (0, 100)), Category("sex", ("f", "m")), Boolean("smoker")))
STUDY = Study(
    name="mistakes", schema=SCHEMA, label=Label("ill", classes=("no", "yes")), training={"epsilon": 1.0, "delta": 1e-5}
)
LEAVE_OUT = "correct the cells or leave the rows out (or set drop_missing_labels = true under [label])"
CLASSES = "correct the classes in the study, or the cells of the table"
N = 60


def frame(**changed: Any) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    cells = {
        "age": rng.uniform(0, 100, N), "sex": rng.choice(["f", "m"], N), "smoker": rng.choice([True, False], N),
        "ill": rng.choice(["no", "yes"], N),
    }  # fmt: skip
    return pd.DataFrame(cells | changed)


def cells(usual: str, **at: str) -> list[str]:
    """Return N cells, with others in rows such as ``r3`` (from 1)."""
    found = [usual] * N
    for row, cell in at.items():
        found[int(row[1:]) - 1] = cell
    return found


HEADER = "age,sex,smoker,ill\n"
LINES = "50,f,yes,no\n20,m,no,yes\n"
FRAMES: list[tuple[str, Any, str]] = [
    (
        "text in a number",
        frame(age=cells("5", r3="unknown", r9="?")),
        "the table: column 'age': the cells in 2 rows (3, 9) should be numbers and are not; correct them, or leave "
        "them empty if numbers are missing",
    ),
    (
        "decimal commas",
        frame(age=cells("5", r2="1,5")),
        "the table: column 'age': the cell in row 2 should be a number and is not; decimals are written with a point; "
        "correct it, or leave it empty if the number is missing",
    ),
    ("a missing column", frame().drop(columns="sex"), "the table has no column 'sex'; it has no unused column"),
    (
        "a column in capitals",
        frame().rename(columns={"age": "Age"}),
        "the table has no column 'age': did you mean 'Age'?",
    ),
    (
        "no label",
        frame().drop(columns="ill").assign(sick="no"),
        "the study's label 'ill' is no column of the table; unused columns: 'sick'",
    ),
    (
        "missing labels",
        frame(ill=cells("no", r1="", r5="", r8="", r60="")),
        f"the table: the label 'ill' is missing in 4 rows (1, 5, 8, …); {LEAVE_OUT}",
    ),
    (
        "another class",
        frame(ill=cells("no", r7="maybe")),
        f"the table: the label 'ill' is none of the classes no, yes in row 7; {CLASSES}",
    ),
    (
        "classes in capitals",
        frame(ill=cells("no", r7="No", r8="YES")),
        "the table: the label 'ill' is none of the classes no, yes in 2 rows (7, 8); 2 of them in capitals only; "
        f"{CLASSES}",
    ),
    (
        "0 and 1 instead of the classes",
        frame(ill=[0, 1] * (N // 2)),
        f"the table: the label 'ill' is none of the classes no, yes in 60 rows (1, 2, 3, …); {CLASSES}",
    ),
    (
        "a column twice",
        pd.concat([frame(), frame()[["age"]]], axis=1),
        "the table: column 'age' occurs more than once",
    ),
    ("an empty frame", frame().iloc[:0], "the table has no rows"),
    (
        "dates",
        frame(age=pd.date_range("2020-01-01", periods=N)),
        "the table, rows 1 to 60: column 'age' holds timestamp[us] values, but the study needs numbers",
    ),
    (
        "lists in cells",
        pa.table({**{name: frame()[name] for name in ("age", "smoker", "ill")}, "sex": [["f"]] * N}),
        "the table, rows 1 to 60: column 'sex' holds list<item: string> values, but the study needs text, whole "
        "numbers or true/false",
    ),
    (
        "mixed types",
        frame(age=pd.Series([5.0, "5", None, "old"] * (N // 4), dtype=object)),
        "the table: column 'age': the cells in 15 rows (4, 8, 12, …) should be numbers and are not; correct them, or "
        "leave them empty if numbers are missing",
    ),
    (
        "an array instead of a frame",
        frame()[["age"]].to_numpy(),
        "a table must be the path of a file, a data frame, an Arrow table or a mapping of columns, not a ndarray",
    ),
    (
        "several at once",
        frame(age=cells("5", r4="x"), ill=cells("no", r2="", r6="maybe")).drop(columns="smoker"),
        "the table has 4 problems:\n"
        "  the table has no column 'smoker'; it has no unused column\n"
        "  column 'age': the cell in row 4 should be a number and is not; correct it, or leave it empty if the number "
        "is missing\n"
        f"  the label 'ill' is missing in row 2; {LEAVE_OUT}\n"
        f"  the label 'ill' is none of the classes no, yes in row 6; {CLASSES}",
    ),
]
FILES: list[tuple[str, str, bytes | None, str]] = [
    ("no such file", "t.csv", None, "FILE: there is no such file"),
    ("an empty file", "t.csv", b"", "FILE is empty"),
    (
        "rows of another length",
        "t.csv",
        (HEADER + LINES + "1,f,yes\n" + LINES + "1,f,yes,no,no\n").encode(),
        "FILE: 2 rows (3, 6) have 3 or 5 cells instead of 4: is a separator or a quotation mark missing or doubled?",
    ),
    (
        "Latin-1 in the names",
        "t.csv",
        ("größe," + HEADER + "1," + LINES).encode("latin-1"),
        "FILE: the first line is not UTF-8 text; save it as CSV in UTF-8, or name its encoding with --encoding, such "
        "as cp1252",
    ),
    (
        "Latin-1 in the cells",
        "t.csv",
        (HEADER + "50,männlich,yes,no\n").encode("latin-1"),
        "FILE: column 'sex' is not UTF-8 text; save it as CSV in UTF-8, or name its encoding with --encoding, "
        "such as cp1252",
    ),
    (
        "another format",
        "t.sav",
        b"$FL2",
        "FILE: unknown ending '.sav'; export the table as CSV or Parquet there, or with pandas",
    ),
    (
        "CSV with the suffix of Excel",
        "t.xlsx",
        (HEADER + LINES).encode(),
        "FILE cannot be read as XLSX: it is no Excel or ODS file; if it is text, rename it to .csv",
    ),
    ("only a header", "t.csv", HEADER.encode(), "FILE has no rows"),
    (
        "ragged rows and wrong cells",
        "t.csv",
        (HEADER + "x,f,yes,no\n1,f\n20,m,no,\n").encode(),
        "FILE has 3 problems:\n"
        "  row 2 has 2 cells instead of 4: is a separator or a quotation mark missing or doubled?\n"
        "  column 'age': the cell in row 1 should be a number and is not; correct it, or leave it empty if the number "
        "is missing\n"
        f"  the label 'ill' is missing in row 3; {LEAVE_OUT}",
    ),
]


def test_there_are_twenty_five() -> None:
    assert len(FRAMES) + len(FILES) == 25


@pytest.mark.parametrize(("table", "message"), [each[1:] for each in FRAMES], ids=[each[0] for each in FRAMES])
def test_a_frame_with_a_mistake(table: Any, message: str) -> None:
    with pytest.raises(DPADMMError) as caught:
        dpadmm.train(STUDY, table)
    assert str(caught.value) == message


@pytest.mark.parametrize(("name", "content", "message"), [each[1:] for each in FILES], ids=[each[0] for each in FILES])
def test_a_file_with_a_mistake(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DPADMMError) as caught:
        dpadmm.train(STUDY, path)
    assert str(caught.value) == message.replace("FILE", str(path))


def test_values_are_for_the_owner_only() -> None:
    with pytest.raises(dpadmm.DataError) as caught:
        dpadmm.train(STUDY, frame(age=cells("5", r3="secret", r9="hidden")))
    (problem,) = caught.value.problems  # type: ignore[attr-defined]
    assert "secret" not in str(caught.value)
    assert (problem.locations.first, problem.locations.values) == ([3, 9], ["secret", "hidden"])


def test_an_error_leaves_no_thread_behind() -> None:
    """Its traceback keeps generators alive. Collected later in another thread, they would wait for their own thread."""
    with pytest.raises(DPADMMError) as caught:
        dpadmm.train(STUDY, frame(age=cells("5", r3="unknown")))
    assert caught.value.__traceback__ is not None
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("ahead")] == []
