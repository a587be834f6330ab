"""Tables: the right numbers, in Markdown and CSV that any reader takes."""

from __future__ import annotations

import csv
import io

import pytest

from dpadmm.reporting.series import where
from dpadmm.reporting.tables import accuracy_table, settings_table, tables, time_table
from dpadmm.reporting.times import PAPER_SECONDS, times


def test_times_beside_the_papers(paper_results):
    rows = {(row.name, row.budget): row for row in times(paper_results.select("table3"))}
    assert set(rows) == {("dp_admm", 0.05), ("admm", 0.05), ("admm_pvp", 0.05)}
    admm = rows["admm", 0.05]
    seconds = where(paper_results, timed=True, method="admm").last().column("seconds").min()
    assert admm.seconds == pytest.approx(seconds)
    assert admm.ratio == pytest.approx(seconds / rows["dp_admm", 0.05].seconds)
    assert admm.paper_ratio == pytest.approx(67.242 / 5.322)
    assert admm.iterations > 0
    assert len(PAPER_SECONDS) == 12


def test_time_table_shows_no_iterations_where_nothing_is_solved(paper_results):
    table = time_table(paper_results)
    shown = {row[1]: row for row in table.rows}
    assert shown["DP-ADMM"][4:6] == ("1.0", "–")
    assert float(shown["PVP"][5]) > 0


def test_accuracy_at_the_end(paper_results):
    table = accuracy_table(paper_results, "fig7")
    shown = {row[:4]: row for row in table.rows}
    row = shown["DP-ADMM", "4", "0.05", "10⁻³"]
    assert row[4:6] == ("0.2772", "0.5009")
    lines = where(paper_results.select("fig7"), method="dp_admm", round_epsilon=0.05, round=100)
    error = lines.column("test_error_global")
    assert row[7] == f"{100 * error.mean():.2f} ± {100 * error.std(ddof=1):.2f}%"
    optimum = next(row for row in table.rows if row[0] == "optimum")
    assert optimum[1:6] == ("–",) * 5
    assert shown["DPSGD, rate 0.1", "4", "0.05", "10⁻³"][8:] == ("–", "–")


def test_two_kinds_of_budget_in_one_experiment(paper_results):
    budgets = {row[2] for row in accuracy_table(paper_results, "choices").rows}
    assert budgets == {"0.1", "1 (total ε)"}


def test_markdown_and_csv_hold_the_same(paper_results):
    for table in tables(paper_results):
        read = list(csv.reader(io.StringIO(table.csv())))
        assert [tuple(row) for row in read] == [table.columns, *table.rows]
        lines = [line for line in table.markdown().splitlines() if line.startswith("| ")]
        assert len(lines) == len(table.rows) + 2
        assert {line.replace("\\|", "").count("|") for line in lines} == {len(table.columns) + 1}


def test_settings_with_their_values(paper_results):
    shown = dict(settings_table(paper_results).rows)
    assert shown["round_epsilon"] == "0.05, 0.1"
    assert shown["n_rounds"] == "100"
    assert shown["seed"] == "1, 2"
    assert "stop_tolerance" not in shown
