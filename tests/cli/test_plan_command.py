"""``dpadmm plan``: costs and a forecast, before any private row is read."""

from __future__ import annotations

import json
import re
from hashlib import sha256

import planned
import pytest

from dpadmm.studies.reading import read_study


@pytest.fixture
def study_file(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(planned.STUDY)
    return path


@pytest.fixture
def public(tmp_path):
    return planned.table(tmp_path / "public.csv", 120)


def words(*more):
    return ["--agents", 5, "--rows", 400, "--rounds", "5", "--epsilon", "0.5", "--repeats", 2, *more]


@pytest.mark.parametrize("columns", [80, 120])
def test_help_fits_the_screen(cli, columns):
    text = cli("plan", "--help", columns=columns).succeeded().out
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text


def test_public_rows_of_the_study_are_the_default(cli, study_file, public):
    given = cli("plan", study_file, *words("--public", public, "--json")).succeeded().json
    study_file.write_text(study_file.read_text().replace('"dp_admm"', '"auto"'))
    sha = sha256(public.read_bytes()).hexdigest()
    study_file.write_text(f'{study_file.read_text()}\n[public_rows]\nfile = "public.csv"\nsha256 = "{sha}"\n')
    own = cli("plan", study_file, *words("--json")).succeeded().json
    assert own["source"] == given["source"] == str(public)
    assert own["hash"] == read_study(study_file).hash
    assert [each["public_model"] for each in own["scenarios"]] == [each["public_model"] for each in given["scenarios"]]
    text = " ".join(cli("plan", study_file, *words()).succeeded().out.split())
    assert "the study, which starts from them, is forecast to reach" in text
    assert "without train --public" not in text
    made_up = cli("plan", study_file, *words("--no-public", "--json")).succeeded().json
    assert (made_up["source"], len(made_up["scenarios"])) == ("synthetic rows", 3)
    public.unlink()
    refused = cli("plan", study_file, *words())
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "--no-public" in refused.err


@pytest.mark.parametrize("columns", [80, 120])
def test_costs_forecast_and_verdict_are_shown(cli, study_file, public, columns):
    answer = cli("plan", study_file, *words("--public", public, "--goal", "0.99"), columns=columns).succeeded()
    text = " ".join(answer.out.split())
    assert max(map(len, answer.out.splitlines())) <= columns
    assert "…" not in answer.out
    for expected in (
        "5 agents with 400 rows each",
        "No private rows were read",
        "total ε at δ = 1e-05, exact 1.0000",
        "Forecast of accuracy",
        "AUC",
        "log-loss",
        "The public rows alone reach",
        "Cross-validated on 80 rows of public.csv (2 of 3 folds; use --repeats 3 to test all rows), which are",
        "Goal: 99.0%.",
        "Not recommended: forecast accuracy",
        "None of the tried combinations of ε and rounds reaches the goal",
        "a model without noise would not either.",
    ):
        assert expected in text


@pytest.mark.parametrize("columns", [80, 120])
def test_without_public_rows_three_signal_strengths_give_a_range(cli, study_file, columns):
    answer = cli("plan", study_file, *words(), columns=columns).succeeded()
    assert max(map(len, answer.out.splitlines())) <= columns
    for name in ("weak signal", "medium signal", "strong signal", "synthetic rows", "–"):
        assert name in answer.out


def test_the_forecast_error_of_a_small_public_table_is_reported(cli, study_file, tmp_path):
    few = planned.table(tmp_path / "few.csv", 150)
    text = " ".join(cli("plan", study_file, *words("--public", few)).succeeded().out.split())
    told = re.search(
        r"only 100 public rows, the forecast has a standard error of ([0-9.]+) points.* about ([0-9,]+) rows",
        text,
    )
    assert told is not None
    points, wanted = float(told[1]), float(told[2].replace(",", ""))
    assert 2.0 < points < 5.0
    assert wanted == pytest.approx(100 * points**2, rel=0.1)
    many = planned.table(tmp_path / "many.csv", 3000)
    assert "public rows, the forecast has" not in cli("plan", study_file, *words("--public", many)).succeeded().out


def test_a_leaky_column_is_a_warning(cli, study_file, public):
    study_file.write_text(planned.STUDY.replace("[training]", '[columns.code]\nkind = "boolean"\n[training]'))
    header, *rows = public.read_text().splitlines()
    told = [f"{row},{'yes' if row.split(',')[3].strip(chr(34)) == 'yes' else 'no'}" for row in rows]
    public.write_text("\n".join([f'{header},"code"', *told]) + "\n")
    warning = "column 'code' alone determines the label in 120 of 120 rows: is it known before the outcome?"
    text = " ".join(cli("plan", study_file, *words("--public", public)).succeeded().out.split())
    assert f"Warning: {warning}" in text
    (said,) = cli("plan", study_file, *words("--public", public, "--json")).succeeded().json["warnings"]
    assert said.startswith(warning)


def test_json_has_everything_and_the_seed_repeats_it(cli, study_file, public):
    first = cli("plan", study_file, *words("--public", public, "--json")).succeeded().json
    again = cli("plan", study_file, *words("--public", public, "--json")).succeeded().json
    other = cli("plan", study_file, *words("--public", public, "--json", "--seed", 9)).succeeded().json
    assert first["hash"] == read_study(study_file).hash
    assert first["private_rows_read"] == 0
    assert first["forecast"] is True
    assert first["n_rows"] == [400] * 5
    assert first["warnings"] == []
    (scenario,) = first["scenarios"]
    assert [(c["epsilon"], c["n_rounds"]) for c in scenario["cells"]] == [
        (0.5, 5),
        (0.5, 20),
        (1, 5),
        (1, 20),
    ]
    assert scenario["own"] == {k: v for k, v in scenario["cells"][3].items() if k not in ("epsilon", "n_rounds")}
    assert scenario["verdict"] == first["verdict"]
    for name in ("accuracy", "auc"):
        assert scenario["constant"][name] < scenario["without_noise"][name]["mean"]
    assert scenario["constant"]["log_loss"] > scenario["without_noise"]["log_loss"]["mean"]
    assert (first["measure"], first["n_rounds"]) == ("auc", 20)
    assert again["scenarios"] == first["scenarios"] != other["scenarios"]


def test_figure_and_numbers_are_written_to_a_new_folder(cli, study_file, public, tmp_path):
    folder = tmp_path / "plan"
    shown = cli("plan", study_file, *words("--public", public, "--json", "-o", folder)).succeeded().json
    assert sorted(path.name for path in folder.iterdir()) == ["forecast.json", "forecast.png", "forecast.svg"]
    files = shown.pop("files")
    assert len(files) == 3
    assert json.loads((folder / "forecast.json").read_text()) == shown
    assert "Forecast, not a result" in (folder / "forecast.svg").read_text()
    answer = cli("plan", study_file, *words("--public", public, "-o", folder))
    assert answer.code == 2
    assert "not empty" in answer.err


def test_errors_of_numbers_in_the_labels_units(cli, tmp_path, public):
    path = tmp_path / "numbers.toml"
    path.write_text(planned.REGRESSION)
    answer = cli("plan", path, *words("--public", public, "--goal", "1")).succeeded()
    assert "root mean square error of cost" in answer.out
    assert "%" not in answer.out[answer.out.index("Forecast for") :]


def test_the_rounds_of_auto_can_be_written_into_the_study(cli, study_file, public):
    given = planned.STUDY.replace('name = "dp_admm"', 'name = "auto"  # nothing to tune').replace("n_rounds = 20\n", "")
    assert "auto" in given
    study_file.write_text(given)
    call = ["plan", study_file, "--agents", 5, "--rows", 2000, "--repeats", 2, "--epsilon", "1"]
    text = " ".join(cli(*call, "--public", public, columns=80).succeeded().out.split())
    assert "The study leaves the number of rounds open. --write sets the best number, which sites require." in text
    assert study_file.read_text() == given
    found = cli(*call, "--public", public, "--write", "--json").succeeded().json
    assert found["files"] == [str(study_file)]
    assert found["scenarios"][0]["cells"][0]["n_rounds"] == 5
    assert study_file.read_text() == given.replace("[training]\n", f"[training]\nn_rounds = {found['n_rounds']}\n")
    assert read_study(study_file).training.n_rounds == found["n_rounds"]
    assert "rounds open" not in cli(*call, "--public", public).succeeded().out
    study_file.write_text(given.replace("epsilon = 1.0", "epsilon = 0.01"))
    noisy = cli("plan", study_file, "--agents", 5, "--rows", 10, "--repeats", 4).succeeded().out
    assert "too much to learn from (above 0.6)" in noisy
    assert "no better than a constant prediction" in " ".join(noisy.split())


def masked(given: str) -> str:
    """A study with auto, a small ε and secure aggregation."""
    given = given.replace('name = "dp_admm"', 'name = "auto"').replace("n_rounds = 20\n", "")
    return given.replace("epsilon = 1.0", 'epsilon = 0.2\naggregation = "secure"\nmin_honest_sites = 3')


@pytest.mark.parametrize("columns", [80, 120])
def test_secure_aggregation_is_planned_for_several_numbers_of_honest_agents(cli, study_file, public, columns):
    study_file.write_text(masked(planned.STUDY))
    call = ["plan", study_file, "--agents", 8, "--rows", 150, "--repeats", 2, "--epsilon", "0.2", "--public", public]
    answer = cli(*call, columns=columns).succeeded()
    assert max(map(len, answer.out.splitlines())) <= columns
    text = " ".join(answer.out.split())
    assert "total ε at δ = 1e-05, exact 0.2000 with at least 3 honest agents if all others collude 0.36" in text
    assert re.search(r"2 0% 14 [^*]* 3\* 0% 14 [^*]* 4 0% 14 [^*]* 7 0% 14 [^*]* 3 10% 14 ", text)
    assert "An aborted round is charged in full." in text
    assert "With secure aggregation" not in text
    found = cli(*call, "--json").succeeded().json
    assert (found["costs"]["min_honest_sites"], round(found["costs"]["epsilon_if_others_collude"], 2)) == (3, 0.36)
    told = found["secure_aggregation"]
    assert [(each["min_honest_sites"], each["aborted_rounds"]) for each in told] == [
        (2, 0),
        (3, 0),
        (4, 0),
        (7, 0),
        (3, 0.1),
    ]
    assert told[1]["scenarios"][0] == found["scenarios"][0]["own"]  # the same noise
    refused = cli("plan", study_file, "--agents", 3, "--rows", 150)
    assert refused.code == 2
    assert "min_honest_sites = 3, but a round may have only 3 sites" in refused.err


def test_a_gain_from_secure_aggregation_is_reported(cli, study_file, public):
    local = masked(planned.STUDY).replace('aggregation = "secure"\nmin_honest_sites = 3\n', "")
    study_file.write_text(local)
    call = ["plan", study_file, "--agents", 8, "--repeats", 2, "--epsilon", "0.2", "--no-public"]
    text = " ".join(cli(*call, "--rows", 150).succeeded().out.split())
    assert "With secure aggregation and at least 4 honest agents the same ε is forecast to reach " in text
    assert "(docs/explanation/secure-aggregation.md)" in text
    assert "aborted" not in text
    assert "secure aggregation" not in cli(*call, "--rows", 10**6).succeeded().out


def test_a_rare_outcome_is_judged_by_auc(cli, study_file, tmp_path):
    """One row in twenty is ill: the constant prediction has an accuracy of 95% and an AUC of ½."""
    header, *rows = planned.table(tmp_path / "all.csv", 6000).read_text().splitlines()
    place = [each.strip('"') for each in header.split(",")].index("ill")
    ill, well = ([row for row in rows if row.split(",")[place].strip('"') == each] for each in ("yes", "no"))
    rare = tmp_path / "rare.csv"
    rare.write_text("\n".join([header, *well[:1900], *ill[:100]]) + "\n")
    call = ["plan", study_file, "--agents", 5, "--rows", 2000, "--rounds", 20, "--epsilon", 1, "--repeats", 3]
    call += ["--public", rare, "--json"]
    found = cli(*call).succeeded().json
    assert found["measure"] == "auc"
    assert found["verdict"] == "inconclusive"  # 2,000 public rows rank as well
    assert "not clearly better than the model from public rows alone" in found["reason"]
    assert found["scenarios"][0]["own"]["auc"]["mean"] > 0.75
    goal = cli(*call, "--goal", "accuracy=0.97").succeeded().json
    assert (goal["verdict"], goal["measure"]) == ("not recommended", "accuracy")
    assert "above the goal" in cli(*call, "--goal", "auc=0.7").succeeded().json["reason"]


def test_requested_intervals_are_forecast(cli, study_file, public):
    asking = planned.STUDY.replace('"dp_admm"', '"auto"\ninference = true').replace("n_rounds = 20\n", "")
    study_file.write_text(asking)
    call = ["plan", study_file, "--agents", 2, "--epsilon", "1", "--rounds", "5", "--repeats", 2, "--public", public]
    text = " ".join(cli(*call, "--rows", 500).succeeded().out.split())
    told = re.search(
        r"Confidence intervals: unlikely at ε = 1 with 1,000 rows \(0 of 2 runs had them\); about ([0-9,]+) rows would "
        "do, or fewer columns and rare categories, or a larger ε.",
        text,
    )
    assert told is not None
    enough = int(told[1].replace(",", ""))
    found = cli(*call, "--rows", enough // 2, "--json").succeeded().json["intervals"]
    assert found == {"n_with_intervals": 2, "n_runs": 2, "n_rows_needed": enough, "is_likely": True}
    likely = " ".join(cli(*call[:-2], "--rows", 10**6).succeeded().out.split())
    assert "Confidence intervals: likely at ε = 1 with 2,000,000 rows (6 of 6 runs had them)." in likely
    study_file.write_text(asking.replace("inference = true", ""))
    assert "Confidence intervals" not in cli(*call, "--rows", 500).succeeded().out


def test_large_budgets_are_warned_about(cli, study_file, public):
    study_file.write_text(planned.STUDY.replace("epsilon = 1.0", "epsilon = 20.0"))
    call = ["plan", study_file, "--agents", 1, "--rows", 200000, "--rounds", "5", "--repeats", 2, "--public", public]
    large, delta = cli(*call, "--json").succeeded().json["warnings"]
    assert large.startswith("ε = 20 gives weak protection")
    assert delta.startswith("δ = 1e-05 is not below 1/200,000")


def test_agents_of_different_sizes_are_described(cli, study_file, public):
    answer = cli(
        "plan", study_file, "--rows", "100,400,400", "--rounds", "5", "--repeats", "2", "--public", public
    ).succeeded()
    assert "100 to 400 rows" in answer.out


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (["--rows", "100"], "give --agents"),
        (["--agents", 3, "--rows", "100,200"], "rows has 2 numbers for 3 agents"),
        (["--agents", 0, "--rows", "100"], "agents must be a whole number"),
        (["--agents", 3, "--rows", "1"], "rows must be whole numbers from 2"),
        (["--agents", 3, "--rows", "many"], "rows must be whole numbers"),
        (["--agents", 3, "--rows", "50", "--rounds", "0"], "rounds must be whole numbers from 1"),
        (["--agents", 3, "--rows", "50", "--epsilon", "-1"], "epsilon must be positive numbers"),
        (["--agents", 3, "--rows", "50", "--epsilon", "nan"], "epsilon must be positive numbers"),
        (["--agents", 3, "--rows", "50", "--repeats", "1"], "repeats must be a whole number from 2"),
        (["--agents", 3, "--rows", "50", "--goal", "80"], "goal must be an accuracy between 0 and 1"),
        (["--agents", 3, "--rows", "50", "--seed", "-1"], "seed must be"),
        (["--agents", 3, "--rows", "50", "--public", "nowhere.csv"], "there is no such file"),
    ],
)
def test_invalid_plans_are_reported_in_one_sentence(cli, study_file, tmp_path, wrong, sentence):
    folder = tmp_path / "out"
    answer = cli("plan", study_file, *wrong, "-o", folder)
    assert answer.code == 2
    assert sentence in answer.err
    assert "Traceback" not in answer.err
    assert not folder.exists()


def test_a_study_without_columns_is_planned_on_synthetic_rows_only(cli, tmp_path, public):
    path = tmp_path / "plain.toml"
    cli("study", "new", path).succeeded()
    if "[columns" in path.read_text():
        path.write_text(
            'format = "dpadmm-study/2"\nname = "plain"\nfeatures = ["a", "b"]\nclasses = ["no", "yes"]\n'
            "[privacy]\nepsilon = 1.0\n"
        )
    cli("plan", path, *words()).succeeded()
    answer = cli("plan", path, *words("--public", public))
    assert answer.code == 2
    assert "requires a study with [columns]" in answer.err
