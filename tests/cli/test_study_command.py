"""``dpadmm study``: an example to change, and what a study means."""

from __future__ import annotations

import math

import pytest

from dpadmm.privacy import exact_epsilon, paper_epsilon
from dpadmm.study import read_study


@pytest.fixture
def study_file(cli, tmp_path):
    path = tmp_path / "study.toml"
    cli("study", "new", path).succeeded()
    return path


PLAIN = """
format = "dpadmm-study/1"
name = "Example: repayment of loans"
features = ["income", "age"]
classes = ["no", "yes"]
[training]
loss = "logistic"      # and more
epsilon = 1.0
"""


@pytest.fixture
def plain_file(tmp_path):
    path = tmp_path / "plain.toml"
    path.write_text(PLAIN)
    return path


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("words", [[], ["new"], ["show"], ["check"], ["schema"]])
def test_help_fits_the_screen(cli, words, columns):
    text = cli("study", *words, "--help", columns=columns).succeeded().out
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text


def test_the_example_is_a_study_and_is_not_overwritten(cli, study_file):
    study_file.write_text(study_file.read_text().replace("n_rounds = 100", "n_rounds = 30"))
    answer = cli("study", "new", study_file)
    assert answer.code == 2
    assert "exists" in answer.err
    assert read_study(study_file).settings.n_rounds == 30


@pytest.mark.parametrize("columns", [80, 120])
def test_show_says_what_is_asked(cli, study_file, columns):
    study = read_study(study_file)
    text = cli("study", "show", study_file, columns=columns).succeeded().out
    assert max(map(len, text.splitlines())) <= columns
    assert study.hash in text
    cells = dict(line.strip().split("  ", 1) for line in text.splitlines() if "  " in line.strip())
    cells = {name: value.strip() for name, value in cells.items()}
    z, t, delta = study.noise_multiplier, study.settings.n_rounds, study.settings.delta
    assert cells["columns"] == "4, which make 8 features"
    assert cells["label"] == "repaid: no, yes"
    assert cells["rows are divided by R"] == "2, the square root of columns"
    shown = " ".join(text.split())
    assert "income number 100 to 100,000, log 1" in shown
    assert "age number 18 to 100; missing is said 2" in shown
    assert "purpose category car, house, education 4" in shown
    assert "employed boolean 1" in shown
    assert cells["rounds"] == "100"
    assert float(cells["noise multiplier z"]) == pytest.approx(z, abs=1e-4)
    exact, paper = exact_epsilon(math.sqrt(t) / z, delta), paper_epsilon(z, t, delta)
    assert exact <= float(cells["total ε, exact"]) <= exact + 1e-4
    assert paper <= float(cells["total ε, paper's moments bound"]) <= paper + 1e-4
    assert "weight_radius: assumed" in text


def test_show_as_json(cli, study_file):
    study = read_study(study_file)
    answer = cli("study", "show", study_file, "--json").succeeded().json
    assert answer["hash"] == study.hash
    assert answer["study"] == study.as_json()
    assert answer["noise_multiplier"] == study.noise_multiplier
    assert answer["epsilon_exact"] < answer["epsilon_paper"]
    assert answer["mu_squared"] == pytest.approx(100 / study.noise_multiplier**2)


def test_many_columns_and_a_long_name_fit(cli, plain_file):
    names = ", ".join(f'"measurement number {k} of [bold]the[/wrong] patient"' for k in range(40))
    text = plain_file.read_text().replace('"income", "age"', names)
    plain_file.write_text(text.replace("Example: repayment", "[red]" + "very long " * 15))
    out = cli("study", "show", plain_file).succeeded().out
    assert max(map(len, out.splitlines())) <= 80
    assert "and 28 more" in " ".join(out.split())
    assert "[red]very" in out
    assert "[bold]the[/wrong]" in "".join(out.split())
    assert "…" not in out


def test_a_study_of_numbers(cli, plain_file):
    text = plain_file.read_text().replace('classes = ["no", "yes"]\n', "")
    assert "2: income, age" in " ".join(cli("study", "show", plain_file).succeeded().out.split())
    plain_file.write_text(text.replace('"logistic"      #', '"huber"  #'))
    assert "a number" in cli("study", "show", plain_file).succeeded().out
    plain_file.write_text(text)
    assert "-1, 1" in cli("study", "show", plain_file).succeeded().out


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('weight_radius = "assumed"', "", ""),
        ("weight_radius = 10.0 ", "weight_radius = 5.0 ", ""),
        ("epsilon = 1.0 ", "epsilon = nan ", "epsilon must be a finite number"),
        ("epsilon = 1.0 ", "epsilon = [1.0, 2.0] ", "one value"),
        ('"logistic"  ', '"logistik"  ', "did you mean 'logistic'"),
        ("n_rounds", "rounds", "did you mean 'n_rounds'"),
        ("[training]", "[trainings]", "did you mean 'training'"),
        ('["car", "house", "education"]', "[]", "values must be a list of 1 to"),
        ("format", "form at", "not valid TOML"),
    ],
)
def test_a_mistake_is_one_sentence(cli, study_file, old, new, complaint):
    assert old in study_file.read_text()
    study_file.write_text(study_file.read_text().replace(old, new, 1))
    answer = cli("study", "show", study_file)
    if not complaint:
        answer.succeeded()
        return
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"dpadmm: {study_file}")
    assert answer.err.count("\n") == 1
    assert complaint in answer.err


def test_a_file_that_is_not_there(cli, tmp_path):
    answer = cli("study", "show", tmp_path / "none.toml")
    assert answer.code == 2
    assert "no such file" in answer.err
