"""Warnings for the owner about cells and lines of a table."""

from __future__ import annotations

from dpadmm.cli import owner_report
from dpadmm.data.encoder import Report, Tally


def test_warnings_on_skipped_lines_and_changed_columns(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("age\n" + "1\n" * 40)
    report = Report(rows=20, columns={"age": Tally(clamped=10), "sex": Tally(missing=20)})
    first, second = owner_report.warnings(report, table)
    assert first.startswith("41 lines of the file make 20 rows")
    assert second.startswith("column 'age': 50.0% of the cells were clamped")
    assert owner_report.to_dict(report, table)["warnings"] == [first, second]
    assert owner_report.warnings(Report(rows=40), table) == []
