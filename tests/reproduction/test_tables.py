"""Tables: correct numbers, in standard Markdown and CSV."""

from __future__ import annotations

import csv
import io

import pytest
from quick_workers import quick_workers

from dpadmm.data import synthetic
from reproduction.figures import comparison_picture
from reproduction.grid import grid_from
from reproduction.measurements import PAPER_SECONDS, times
from reproduction.report import accuracy_table, display_title, settings_table, tables, time_table
from reproduction.results import read_results
from reproduction.runner import run_grid


def test_times_are_compared_with_the_paper(paper_results):
    rows = {(row.name, row.budget): row for row in times(paper_results.select("table3"))}
    assert set(rows) == {("dp_admm", 0.05), ("admm", 0.05), ("admm_pvp", 0.05)}
    admm = rows["admm", 0.05]
    seconds = paper_results.select(timed=True, method="admm").last().frame["seconds"].min()
    assert admm.seconds == pytest.approx(seconds)
    assert admm.ratio == pytest.approx(seconds / rows["dp_admm", 0.05].seconds)
    assert admm.paper_ratio == pytest.approx(67.242 / 5.322)
    assert admm.iterations > 0
    assert len(PAPER_SECONDS) == 12


def test_time_table_has_no_iterations_without_a_solver(paper_results):
    table = time_table(paper_results)
    shown = {row[1]: row for row in table.frame.itertuples(index=False)}
    assert shown["DP-ADMM"][4:6] == ("1.0", "–")
    assert float(shown["PVP"][5]) > 0


def test_final_accuracy(paper_results):
    table = accuracy_table(paper_results, "fig7")
    shown = {row[:4]: row for row in table.frame.itertuples(index=False)}
    row = shown["DP-ADMM", "4", "0.05", "10⁻³"]
    assert row[4:6] == ("0.2772", "0.5009")
    lines = paper_results.select("fig7").select(method="dp_admm", round_epsilon=0.05, round=100)
    error = lines.frame["test_error_global"]
    assert row[7] == f"{100 * error.mean():.2f} ± {100 * error.std(ddof=1):.2f}%"
    optimum = next(row for row in table.frame.itertuples(index=False) if row[0] == "optimum")
    assert optimum[1:6] == ("–",) * 5
    assert shown["DPSGD, rate 0.1", "4", "0.05", "10⁻³"][8:] == ("–", "–")


def test_experiment_with_two_kinds_of_budget(paper_results):
    budgets = {row[2] for row in accuracy_table(paper_results, "choices").frame.itertuples(index=False)}
    assert budgets == {"0.1", "1 (total ε)"}


def test_markdown_and_csv_agree(paper_results):
    for table in tables(paper_results):
        read = list(csv.reader(io.StringIO(table.csv())))
        assert [tuple(row) for row in read] == [
            tuple(table.frame.columns),
            *table.frame.itertuples(index=False, name=None),
        ]
        lines = [line for line in table.markdown().splitlines() if line.startswith("| ")]
        assert len(lines) == len(table.frame) + 2
        assert {line.replace("\\|", "").count("|") for line in lines} == {table.frame.shape[1] + 1}


def test_settings_table_contains_values(paper_results):
    shown = dict(settings_table(paper_results).frame.itertuples(index=False))
    assert shown["round_epsilon"] == "0.05, 0.1"
    assert shown["n_rounds"] == "100"
    assert shown["seed"] == "1, 2"
    assert "stop_tolerance" not in shown


def test_totals_name_their_accountant(paper_results, comparison_results):
    table = accuracy_table(paper_results, "fig7")
    assert tuple(table.frame.columns[2:5]) == ("ε per round", "δ", "total ε")
    accountants = set(paper_results.select("fig7").frame["accountant"].dropna())
    assert len(accountants) > 1
    assert all(name in table.note for name in accountants)
    assert "exact for plain Gaussian noise and an upper bound otherwise" in table.note
    asked = accuracy_table(comparison_results, "comparison")
    assert tuple(asked.frame.columns[2:5]) == ("requested total ε", "δ", "total ε")
    optimum = accuracy_table(comparison_results.select(method="centralized"), "comparison")
    assert "Total ε" not in optimum.note


def test_one_split_has_no_spread(comparison_results):
    table = accuracy_table(comparison_results.select(seed=1), "comparison")
    assert table.note.startswith("One split. ")
    assert not [cell for row in table.frame.itertuples(index=False) for cell in row if "±" in cell or "nan" in cell]
    (loss,) = {row[6] for row in table.frame.itertuples(index=False) if row[0] == "optimum"}
    best = comparison_results.select(method="centralized", seed=1).last().frame["train_loss_global"]
    assert loss == f"{best.iloc[0]:.4f}"


def test_errors_of_a_regression_are_rms_errors(tmp_path):
    grid = {
        "format": 1,
        "data": "synthetic",
        "repeats": 1,
        "shared": {"n_rounds": 3, "n_agents": 2, "loss": "squared"},
        "experiments": {"comparison": {"title": "", "runs": [{"method": ["admm", "centralized"]}]}},
    }
    rows = synthetic("regression", seed=0, n_rows=200, n_features=3)
    with quick_workers():
        run_grid(grid_from(grid), rows, tmp_path / "results.parquet", command="")
    results = read_results(tmp_path)
    columns = accuracy_table(results, "comparison").frame.columns
    assert (columns[7], columns[9]) == ("RMS error, global", "RMS error, local")
    picture = comparison_picture(results, "comparison")
    assert "RMS error (top)" in picture.caption
    assert picture.figure.axes[0].get_ylabel().endswith("RMS error, global model")


def test_titles_of_comparisons_use_display_names():
    assert display_title("dp_admm, dp_sgd on a on b.csv") == "DP-ADMM, DPSGD on a on b.csv"
    for title in ("A centralized model on rows", "dp_admm and others on rows", ""):
        assert display_title(title) == title
