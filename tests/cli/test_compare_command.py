"""``dpadmm compare``: equal privacy for all, the optimum beside them, reasons where none applies."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from looping import case
from paper_runs import rows as dataset_rows
from printed import printed

from dpadmm.cli.compare import _say_head, rows_of, show
from dpadmm.experiments.results import read_results

pytestmark = pytest.mark.usefixtures("workers_forked")

TINY = ["-t", "5", "--repeats", "2", "--delta", "1e-3", "--test-rows", "0.25"]
FILE = ["--label", "label", "--classes", "no,yes"]


def write_rows(path: Path, *, owners: bool = False) -> Path:
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["x", "y", "z", "label", *(["owner"] if owners else [])])
        for i, row in enumerate(rng.uniform(-1.0, 1.0, (120, 3)) / np.sqrt(3.0)):
            owner = [("north", "south", "west")[i % 3]] if owners else []
            writer.writerow([*row, "yes" if row[0] > row[1] else "no", *owner])
    return path


@pytest.fixture
def rows_csv(tmp_path):
    return write_rows(tmp_path / "rows.csv")


def compare(cli, path, *words, **options):
    return cli("compare", "--data", path, *FILE, *TINY, *words, **options)


@pytest.mark.usefixtures("sketched")
def test_a_method_that_diverges_is_told_and_the_others_are_compared(cli, rows_csv, tmp_path):
    words = ["-m", "dp_admm,dp_sgd", "--epsilon", "1", "--learning-rate", "1e100", "--reg-share", "1"]
    answer = compare(cli, rows_csv, *words, "-o", tmp_path / "out").succeeded()
    text = " ".join(answer.out.split())
    assert "DPSGD diverged" in text
    assert text.count("dp_sgd diverged in round 4 of 5: the weights are no longer finite numbers") == 1
    assert "does not apply" not in text
    status = {row.method: row.status for row in rows_of(read_results(tmp_path / "out"))}
    assert status == {"centralized": "done", "dp_admm": "done", "dp_sgd": "refused"}


def test_all_methods_get_the_same_total(cli, rows_csv, tmp_path):
    names = "dp_admm,admm_pvp,admm_dvp,dp_sgd,output_perturbation,objective_perturbation,admm"
    words = ["--methods", names, "--epsilon", "1,4", "--agents", "2,3", "-o", tmp_path / "out"]
    answer = compare(cli, rows_csv, *words, "--json").succeeded()
    rows = answer.json["rows"]
    assert len(rows) == 1 + 2 * (6 * 2 + 1)
    private = [row for row in rows if row["budget"] == "epsilon"]
    assert {(row["method"], row["n_agents"], row["asked"]) for row in private} == {
        (name, n, e) for name in names.split(",")[:-1] for n in (2, 3) for e in (1.0, 4.0)
    }
    for row in private:
        assert row["status"] == "done", row["reason"]
        assert 0.98 * row["asked"] < row["total_epsilon"] <= row["asked"], row["method"]
        assert len(row["measures"]["test_error_global"]["values"]) == 2
    assert [row["total_epsilon"] for row in rows if row["method"] in ("admm", "centralized")] == [None] * 3
    results = read_results(tmp_path / "out")  # what dpadmm report reads
    assert results.experiments == ["comparison"]
    for name in ("comparison.png", "comparison.svg"):
        assert str(tmp_path / "out" / name) in answer.json["files"]
        assert (tmp_path / "out" / name).stat().st_size > 0


def test_the_paper_s_way_is_an_equal_epsilon_per_round(cli, rows_csv):
    words = ["--methods", "dp_admm,dp_sgd", "--round-epsilon", "0.5", "--calibration", "paper", "--json"]
    rows = compare(cli, rows_csv, *words).succeeded().json["rows"]
    totals = {row["total_epsilon"] for row in rows if row["budget"] == "round_epsilon"}
    assert len(totals) == 1
    assert None not in totals


@pytest.mark.usefixtures("sketched")
def test_tables_for_people_fit_and_show_what_does_not_apply(cli, rows_csv, tmp_path):
    words = [
        "--methods",
        "dp_admm,admm_pvp,objective_perturbation",
        "--regularizer",
        "l1",
        "--epsilon",
        "1,2",
    ]
    words += ["-o", tmp_path / "out"]  # the second time nothing is run again
    for columns in (80, 120):
        answer = compare(cli, rows_csv, *words, columns=columns).succeeded()
        shown = [line for line in answer.out.splitlines() if not line.startswith(("Results:", "Figure:"))]
        assert max(map(len, shown)) <= columns
        assert "…" not in answer.out
        assert answer.out.count("optimum") >= 2
        assert answer.out.count("total ε = ") == 2
        text = " ".join(answer.out.split())
        assert text.count("admm_pvp does not apply") == 1
        assert "smooth" in text
        assert " ± " in text


def test_when_nothing_applies_it_is_an_error(cli, rows_csv):
    answer = compare(cli, rows_csv, "--methods", "admm_pvp,admm_dvp", "--regularizer", "l1", "--epsilon", "1")
    assert answer.code == 2
    assert answer.err.startswith("dpadmm: none of these methods applies; ")
    assert answer.err.count("\n") == 1
    assert answer.out == ""


def test_agents_can_be_given_by_the_data(cli, tmp_path):
    rows_csv = write_rows(tmp_path / "owned.csv", owners=True)
    words = ["--by", "owner", "--methods", "dp_admm", "--epsilon", "1"]
    rows = compare(cli, rows_csv, *words, "--json").succeeded().json["rows"]
    assert [(row["method"], row["n_agents"]) for row in rows] == [("centralized", 3), ("dp_admm", 3)]
    answer = compare(cli, rows_csv, *words, "--agents", "5")
    assert answer.code == 2
    assert "leave --agents out" in answer.err


def test_mistakes_are_told_in_one_sentence(cli, rows_csv):
    for words, says in [
        ([], "either --epsilon (totals) or --round-epsilon"),
        (["--epsilon", "1", "--round-epsilon", "1"], "either --epsilon (totals) or --round-epsilon"),
        (["--epsilon", "1;2"], "epsilon must be numbers with commas between"),
        (["--epsilon", "-1"], "epsilon must be a positive number"),
        (["--epsilon", "1", "--agents", "two"], "agents must be whole numbers"),
        (["--epsilon", "1", "--agents", "0"], "n_agents must be a whole number of at least 1"),
        (
            ["--epsilon", "1", "--methods", "dp_adm"],
            "method 'dp_adm' does not exist; did you mean 'dp_admm'?",
        ),
        (["--epsilon", "1", "--methods", ","], "methods must be names with commas between"),
        (["--epsilon", "1", "--rho", "-1"], "rho must be a positive number"),
        (["--epsilon", "1", "--metrics-every", "0"], "metrics_every must be at least 1"),
        (["--epsilon", "1", "--repeats", "0"], "repeats must be a whole number of at least 1"),
        (["--epsilon", "1", "--data", "nothing"], "there is no data set and no file 'nothing'"),
    ]:
        with case(words, says):
            answer = compare(cli, rows_csv, *words)
            assert answer.code == 2
            assert says in answer.err
            assert answer.err.count("\n") == 1


def test_without_data_it_says_so(cli):
    answer = cli("compare", "--epsilon", "1")
    assert answer.code == 2
    assert "say which data" in answer.err


def shown(results, rows) -> str:
    return printed(80, show, dataset_rows(), results, rows)


def test_the_footer_says_only_what_is_so(comparison_results):
    rows = rows_of(comparison_results)
    bound = [replace(row, accountant="some bound") if row.method == "dp_sgd" else row for row in rows]
    private = " ".join(shown(comparison_results, bound).split())
    assert "without privacy. Local" in private
    assert "ADMM has no privacy either" not in private
    assert "The noise is simulated" in private
    assert "Total ε is exact for plain Gaussian noise and otherwise a bound that holds" in private
    assert "by the accountant (exact Gaussian composition; some bound)" in private
    assert "ε exact" not in private
    free = [
        replace(row, method="admm", budget=None, asked=None, total_epsilon=None, accountant=None)
        for row in rows
        if row.method == "dp_admm" and row.asked == 0.5
    ]
    text = " ".join(shown(comparison_results, [rows[0], *free]).split())
    assert "; ADMM has no privacy either." in text
    assert "simulated" not in text
    assert "Gaussian" not in text


def test_methods_with_one_model_show_no_local_error(comparison_results):
    rows = rows_of(comparison_results)
    lines = {line.split()[0]: line for line in shown(comparison_results, rows).splitlines() if "%" in line}
    names = ("DP-ADMM", "DPSGD", "optimum")
    assert [lines[name].count("%") for name in names] == [2, 1, 1]
    assert [" – " in lines[name] for name in names] == [False, True, True]
    alone = shown(comparison_results, [row for row in rows if row.method != "dp_admm"])
    assert "local" not in alone.lower()


def test_the_head_breaks_between_its_parts_only():
    for columns in range(60, 130, 3):
        with case(columns):
            parts = ["20000 rows × 20 features", "logistic loss", "20 rounds", "δ = 1e-05"]
            head = printed(columns, _say_head, "synthetic binary", *parts)
            lines = head.splitlines()
            assert max(map(len, lines)) <= columns
            assert all(any(part in line for line in lines) for part in parts)
            assert "\u00a0" not in head  # plain spaces, for whoever searches or copies
