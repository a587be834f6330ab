"""``dpadmm compare``: equal privacy for all methods, the optimum, and reasons for methods that do not apply."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import mixed_tables
import numpy as np
import pytest
from looping import case
from paper_runs import rows as dataset_rows
from printed import printed
from quick_workers import quick_workers

from dpadmm import Settings, simulate
from dpadmm.cli import console
from dpadmm.studies.public_rows import PublicRows
from dpadmm.training.compare import compare as run_comparison
from dpadmm.training.comparison import Comparison

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
def test_a_diverging_method_is_reported_and_the_others_are_compared(cli, rows_csv, tmp_path):
    words = ["-m", "dp_admm,dp_sgd", "--epsilon", "1", "--set", "method.learning_rate=1e100", "--alpha", "1"]
    answer = compare(cli, rows_csv, *words, "-o", tmp_path / "out").succeeded()
    text = " ".join(answer.out.split())
    assert "DPSGD diverged" in text
    assert text.count("dp_sgd diverged in round 4 of 5: the weights are no longer finite numbers") == 1
    assert "does not apply" not in text
    rows = json.loads((tmp_path / "out" / "comparison.json").read_text())["rows"]
    status = {row["method"]: row["status"] for row in rows}
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
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["rows"] == rows
    for name in ("comparison.json", "comparison.png", "comparison.svg"):
        assert str(tmp_path / "out" / name) in answer.json["files"]
        assert (tmp_path / "out" / name).stat().st_size > 0


def test_round_epsilon_is_equal_for_all_methods(cli, rows_csv):
    words = ["--methods", "dp_admm,dp_sgd", "--round-epsilon", "0.5", "--calibration", "paper", "--json"]
    rows = compare(cli, rows_csv, *words).succeeded().json["rows"]
    totals = {row["total_epsilon"] for row in rows if row["budget"] == "round_epsilon"}
    assert len(totals) == 1
    assert None not in totals


@pytest.mark.usefixtures("sketched")
def test_tables_fit_the_screen_and_show_methods_that_do_not_apply(cli, rows_csv, tmp_path):
    words = [
        "--methods",
        "dp_admm,admm_pvp,objective_perturbation",
        "--regularizer",
        "l1",
        "--epsilon",
        "1,2",
    ]
    words += ["-o", tmp_path / "out", "--overwrite"]
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


def test_secure_and_plain_aggregation_are_compared(cli, rows_csv, tmp_path):
    words = ["--methods", "auto,dp_admm", "--epsilon", "1", "--agents", "3,4", "-o", tmp_path / "out"]
    words += ["--aggregation", "secure", "--min-honest-sites", "4"]
    rows = compare(cli, rows_csv, *words, "--json").succeeded().json["rows"]
    told = [(row["n_agents"], row["method"], row["min_honest_sites"], row["status"]) for row in rows[1:]]
    three = [(3, "auto", None, "done"), (3, "auto", 4, "refused"), (3, "dp_admm", None, "done")]
    assert told == [*three, *((4, method, min_honest_sites, "done") for _, method, min_honest_sites, _ in three)]
    masked = rows[5]
    same = simulate("synthetic", method="auto", epsilon=1.0, delta=1e-3, n_agents=4, n_rounds=5, metrics_every=0,
                    aggregation="secure", min_honest_sites=4, seed=1).privacy  # fmt: skip
    assert masked["total_epsilon"] == pytest.approx(same.epsilon)
    assert masked["epsilon_if_others_collude"] == pytest.approx(same.epsilon_if_others_collude, rel=1e-6)
    assert "auto, secure aggregation, h = 4" in (tmp_path / "out" / "comparison.svg").read_text()
    for columns in (80, 120):
        answer = compare(cli, rows_csv, *words, "--overwrite", columns=columns).succeeded()
        shown = [line for line in answer.out.splitlines() if not line.startswith(("Results:", "Figure:"))]
        assert max(map(len, shown)) <= columns
        text = " ".join(answer.out.split())
        assert f"4 agents, total ε = 1; h = 4: {same.epsilon_if_others_collude:.4f} if all others collude" in text
        assert all(f" {each} " in text for each in ("auto plain", "auto h = 4", "DP-ADMM plain"))
        assert "auto: min_honest_sites = 4, but there are 3 agents" in text
        assert "total ε holds if at least 4 agents of every round are honest" in text


def test_it_is_an_error_if_no_method_applies(cli, rows_csv):
    answer = compare(cli, rows_csv, "--methods", "admm_pvp,admm_dvp", "--regularizer", "l1", "--epsilon", "1")
    assert answer.code == 2
    assert answer.err.startswith("dpadmm: none of these methods applies; ")
    assert answer.err.count("\n") == 1
    assert answer.out == ""


def test_agents_can_be_defined_by_a_column(cli, tmp_path):
    rows_csv = write_rows(tmp_path / "owned.csv", owners=True)
    words = ["--by", "owner", "--methods", "dp_admm", "--epsilon", "1"]
    rows = compare(cli, rows_csv, *words, "--json").succeeded().json["rows"]
    assert [(row["method"], row["n_agents"]) for row in rows] == [("centralized", 3), ("dp_admm", 3)]
    answer = compare(cli, rows_csv, *words, "--agents", "5")
    assert answer.code == 2
    assert "leave --agents out" in answer.err


def test_errors_are_one_sentence(cli, rows_csv):
    for words, says in [
        ([], "--epsilon (totals) or --round-epsilon is required"),
        (["--epsilon", "1", "--round-epsilon", "1"], "--epsilon (totals) or --round-epsilon is required"),
        (["--epsilon", "1;2"], "epsilon must be numbers, separated by commas"),
        (["--epsilon", "-1"], "epsilon must be a positive number"),
        (["--epsilon", "1", "--agents", "two"], "agents must be whole numbers"),
        (["--epsilon", "1", "--agents", "0"], "n_agents must be a whole number of at least 1"),
        (
            ["--epsilon", "1", "--methods", "dp_adm"],
            "method: 'dp_adm' does not exist; did you mean 'dp_admm'?",
        ),
        (["--epsilon", "1", "--methods", ","], "methods must be a comma-separated list"),
        (["--epsilon", "1", "--set", "method.rho=-1"], "rho must be a positive number"),
        (["--epsilon", "1", "--metrics-every", "0"], "metrics_every must be at least 1"),
        (["--epsilon", "1", "--repeats", "0"], "repeats must be a whole number of at least 1"),
        (["--epsilon", "1", "--aggregation", "secure"], "secure aggregation requires min_honest_sites"),
        (["--epsilon", "1", "--min-honest-sites", "3"], "min_honest_sites requires aggregation"),
        (["--epsilon", "1", "--aborted-rounds", "0.1"], "aborted_rounds requires aggregation"),
        (
            ["--epsilon", "1", "-m", "dp_sgd", "--aggregation", "secure", "--min-honest-sites", "3"],
            "none of these methods supports secure aggregation; add one of: auto",
        ),
        (["--epsilon", "1", "--data", "nothing"], "there is no data set and no file 'nothing'"),
    ]:
        with case(words, says):
            answer = compare(cli, rows_csv, *words)
            assert answer.code == 2
            assert says in answer.err
            assert answer.err.count("\n") == 1


def test_missing_data_are_an_error(cli):
    answer = cli("compare", "--epsilon", "1")
    assert answer.code == 2
    assert "no data given" in answer.err


@pytest.fixture(scope="module")
def rows():
    """Two methods, budgets and numbers of agents, and the optimum."""
    shared = {"n_rounds": 5, "metrics_every": 5}
    private = [
        Settings(method=method, epsilon=epsilon, n_agents=n, seed=seed, **shared)
        for method, epsilon, n, seed in product(["dp_admm", "dp_sgd"], [0.5, 2.0], [2, 4], [1, 2])
    ]
    optimum = [Settings(method="centralized", seed=seed, **shared) for seed in (1, 2)]
    with quick_workers():
        return run_comparison(dataset_rows(), [*private, *optimum])


def shown(rows) -> str:
    data = {"name": "synthetic", "rows": 200, "features": 20}
    return printed(80, lambda: console.show(Comparison(data, Settings(epsilon=1.0, n_rounds=5), rows)))


def test_results_do_not_depend_on_the_number_of_processes(rows):
    assert [(row.method, row.n_agents, row.asked) for row in rows] == [
        ("centralized", 10, None),
        *((method, n, epsilon) for n, epsilon, method in product([2, 4], [0.5, 2.0], ["dp_admm", "dp_sgd"])),
    ]
    settings = Settings(method="dp_sgd", epsilon=2.0, n_agents=4, n_rounds=5, metrics_every=5)
    seen = []
    (again,) = run_comparison(
        dataset_rows(), [replace(settings, seed=seed) for seed in (1, 2)], workers=1, watch=seen.append
    )
    assert seen == [0, 1, 2]
    assert {**again.values, "seconds": []} == {**rows[-1].values, "seconds": []}
    for seed, error in zip((1, 2), again.values["train_error_global"], strict=True):
        result = simulate(dataset_rows(), settings=replace(settings, seed=seed))
        assert result.trace.last()["train_error_global"] == error


def test_a_stopped_comparison_returns_the_finished_runs():
    settings = [Settings(method="dp_sgd", epsilon=1.0, n_rounds=5, seed=seed) for seed in range(1, 40)]
    seen = []
    with quick_workers():
        (row,) = run_comparison(dataset_rows(), settings, workers=1, watch=seen.append, stop=lambda: seen[-1] > 1)
    assert 1 < len(row.values["seconds"]) == seen[-1] < 39


def test_the_footer_has_only_sentences_that_apply(rows):
    bound = [replace(row, accountant="some bound") if row.method == "dp_sgd" else row for row in rows]
    private = " ".join(shown(bound).split())
    assert "without privacy. Local models" in private
    assert "ADMM has no privacy either" not in private
    assert "The noise is simulated" in private
    assert "Total ε is exact for plain Gaussian noise and otherwise an upper bound" in private
    assert "(exact Gaussian composition; some bound)" in private
    assert "ε exact" not in private
    free = [
        replace(row, method="admm", budget=None, asked=None, total_epsilon=None, accountant=None)
        for row in rows
        if row.method == "dp_admm" and row.asked == 0.5
    ]
    text = " ".join(shown([rows[0], *free]).split())
    assert "; ADMM has no privacy either." in text
    assert "simulated" not in text
    assert "Gaussian" not in text


def test_methods_with_one_model_show_no_local_error(rows):
    lines = {line.split()[0]: line for line in shown(rows).splitlines() if "%" in line}
    names = ("DP-ADMM", "DPSGD", "optimum")
    assert [lines[name].count("%") for name in names] == [2, 1, 1]
    assert [" – " in lines[name] for name in names] == [False, True, True]
    alone = shown([row for row in rows if row.method != "dp_admm"])
    assert "local" not in alone.lower()


def test_a_study_is_compared_at_its_exact_budget_with_its_own_parameters(cli, tmp_path):
    table = mixed_tables.write_csv(tmp_path / "rows.csv", mixed_tables.make_cells(300))
    settings = {"method": {"name": "dp_admm", "rho": 0.5}, "noise_multiplier": 6.0, "n_rounds": 9}
    study = replace(mixed_tables.make_study(), training=settings, provenance={"method": {"rho": "assumed"}})
    (tmp_path / "study.toml").write_text(mixed_tables.to_toml(study))
    words = ["compare", tmp_path / "study.toml", "-d", table, "--repeats", "1", "-n", "3"]
    answer = cli(*words, "-m", "auto,dp_sgd", "-o", tmp_path / "out", "--json").succeeded().json
    assert answer["study"]["hash"] == study.hash
    rows = {row["method"]: row for row in answer["rows"]}
    assert list(rows) == ["centralized", "dp_admm", "auto", "dp_sgd"]
    for name in ("dp_admm", "auto", "dp_sgd"):
        assert rows[name]["total_epsilon"] == pytest.approx(study.epsilon, rel=1e-6)
    same = simulate(study, str(table), n_agents=3, seed=1)
    same_settings = same.settings
    assert (same_settings.method.rho, same_settings.noise_multiplier, same_settings.n_rounds) == (0.5, 6.0, 9)
    measured = rows["dp_admm"]["measures"]["train_loss_global"]["values"]
    assert measured == pytest.approx([same.trace.last()["train_loss_global"]], rel=1e-6)
    public = mixed_tables.write_csv(tmp_path / "public.csv", mixed_tables.make_cells(200, seed=9))
    sha256 = PublicRows.of(public).sha256
    text = mixed_tables.to_toml(mixed_tables.make_study(method="auto", n_rounds=5, epsilon=0.05))
    (tmp_path / "study.toml").write_text(f'{text}\n[public_rows]\nfile = "public.csv"\nsha256 = "{sha256}"\n')
    helped, alone = (
        cli(*words, "-m", "auto,dp_admm,admm_pvp", *more, "--json").succeeded().json["rows"]
        for more in ([], ["--no-public"])
    )
    # the study names pgd, which auto selects: one run, not two
    assert [row["method"] for row in helped] == ["centralized", "pgd", "dp_admm", "admm_pvp"]
    errors = [[row["measures"]["test_error_global"]["mean"] for row in rows] for rows in (helped, alone)]
    assert errors[0][0] == errors[1][0]  # of the optimum
    assert all(one < other for one, other in zip(errors[0][1:], errors[1][1:], strict=True))
    aggregation = text.replace('aggregation = "plain"', 'aggregation = "secure"\nmin_honest_sites = 2')
    (tmp_path / "study.toml").write_text(aggregation)
    rows = cli(*words, "-m", "dp_admm", "--json").succeeded().json["rows"]
    assert [(row["method"], row["min_honest_sites"], row["total_epsilon"]) for row in rows[1:]] == [
        (*who, pytest.approx(0.05, rel=1e-6)) for who in (("pgd", None), ("pgd", 2), ("dp_admm", None))
    ]
    refusal = cli(*words, "-e", "1")
    assert refusal.code == 2
    assert refusal.err == "dpadmm: epsilon is set by the study; leave it out here, or change it there\n"
