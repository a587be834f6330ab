"""Lines that became no rows are seen; line breaks in a few cells, blank lines and other files are not."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from looping import case

from dpadmm.data import lines
from dpadmm.data.batches import open_batches
from dpadmm.data.lines import n_lines, swallowed


def rows_of(path: Path) -> int:
    return sum(batch.num_rows for batch in open_batches(path, ["ill"]))


def written(path: Path, cells: list[str], end: str = "\n") -> Path:
    path.write_bytes(
        f"age,ill{end}{end.join(f'{20 + k},{cell}' for k, cell in enumerate(cells))}{end}".encode()
    )
    return path


def test_an_open_quotation_mark_in_the_last_column_is_seen(tmp_path_factory: pytest.TempPathFactory):
    for closed_at, end in product([None, 30], ["\n", "\r\n"]):
        with case(closed_at, end):
            tmp_path = tmp_path_factory.mktemp("case")
            cells = ["no"] * 50
            cells[10] = '"no'
            if closed_at:
                cells[closed_at] = 'no"'
            path = written(tmp_path / "t.csv", cells, end)
            rows = rows_of(path)
            assert rows == (11 if closed_at is None else 30)
            (sentence,) = swallowed(path, rows)
            assert sentence.startswith(f"51 lines of the file make {rows} rows: is a quotation mark open")


def test_a_few_line_breaks_and_blank_lines_are_fine(tmp_path):
    path = written(tmp_path / "t.csv", ["no", '"on\ntwo lines"', *["yes"] * 20])
    path.write_text(path.read_text() + "\n" * 30)
    assert rows_of(path) == 22
    assert swallowed(path, 22) == []


def test_other_files_have_no_lines(tmp_path):
    pq.write_table(pa.table({"age": [1]}), tmp_path / "t.parquet")
    assert swallowed(tmp_path / "t.parquet", 1) == []


def test_lines_are_counted_in_pieces_of_any_size(tmp_path_factory: pytest.TempPathFactory):
    for (text, count), chunk in product(
        [
            ("", 0),
            ("a", 1),
            ("a\n", 1),
            ("\n\na\r\n\r\nb", 2),
            ("a\rb\r", 2),
            ("\r\n\n", 0),
            ("a\n\n\n\nb\n", 2),
        ],
        [1, 2, 3, 1000],
    ):
        with case(text, count, chunk), pytest.MonkeyPatch.context() as monkeypatch:
            tmp_path = tmp_path_factory.mktemp("case")
            monkeypatch.setattr(lines, "CHUNK", chunk)
            (tmp_path / "t").write_bytes(text.encode())
            assert n_lines(tmp_path / "t") == count
