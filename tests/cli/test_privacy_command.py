"""``dpadmm privacy``: output, JSON, errors."""

from __future__ import annotations

import json
import math

import pytest
import typer
from looping import case
from typer.testing import CliRunner

from dpadmm.accounting import exact_epsilon
from dpadmm.cli.privacy import privacy
from dpadmm.errors import StudyError

app = typer.Typer()
app.command()(privacy)


def run(line: str, columns: int = 80) -> str:
    result = CliRunner().invoke(app, line.split(), env={"COLUMNS": str(columns), "TERM": "dumb"})
    if result.exception:
        raise result.exception
    assert result.exit_code == 0
    return result.output


def values(line: str) -> dict:
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(run(line + " --json"), parse_constant=refuse)


@pytest.mark.parametrize(
    ("round_epsilon", "paper", "exact"), [("0.05", "0.5009", "0.2772"), ("0.1", "1.0193", "0.6339")]
)
def test_the_papers_two_settings(round_epsilon, paper, exact):
    lines = run(f"--round-epsilon {round_epsilon} --delta 1e-3 --rounds 100").splitlines()
    assert any("total ε, paper's moments bound" in line and paper in line for line in lines)
    assert any("total ε, exact" in line and exact in line for line in lines)


WIDE = [
    "--round-epsilon 0.05 --delta 1e-3 -t 100 --epsilon 0.5 --cross-check --rows 400 --lipschitz 1.5",
    "--epsilon 1 --delta 1e-5 -t 100 --rows-per-person 12",
    "-z 0 --delta 1e-3 -t 5",
    "-z 0.2 --delta 1e-12 -t 100000 --epsilon 1e7",
]


def test_readable_at_80_columns():
    for line in WIDE:
        with case(line):
            text = run(line)
            assert max(len(row) for row in text.splitlines()) <= 80
            assert "…" not in text


def test_total_epsilon_gives_noise():
    answer = values("--epsilon 1 --delta 1e-5 --rounds 50")
    assert answer["person_epsilon_exact"] <= 1.0
    assert answer["epsilon_exact"] == pytest.approx(1.0, rel=1e-9)
    assert answer["affordable_rounds_exact"] == 50
    assert answer["fits_exact"] is True
    assert answer["fits_paper"] is False


def test_noise_multiplier_gives_the_rest():
    answer = values("-z 30 --delta 1e-5 -t 100")
    assert answer["mu"] == pytest.approx(1 / 3)
    assert answer["epsilon_exact"] == exact_epsilon(answer["mu"], 1e-5)
    assert answer["round_epsilon_paper"] == pytest.approx(math.sqrt(2 * math.log(1.25e5)) / 30)
    assert "epsilon_rdp" not in answer


def test_rounds_under_a_budget():
    answer = values("--epsilon 0.5 --round-epsilon 0.05 --delta 1e-3")
    assert (answer["affordable_rounds_paper"], answer["affordable_rounds_exact"]) == (99, 268)
    text = run("--epsilon 0.5 --round-epsilon 0.05 --delta 1e-3 -t 100")
    assert "100 rounds do not fit" in text
    assert "100 rounds fit" in text
    text = run("--epsilon 0.5 -z 10 --delta 1e-3 -t 1")
    assert "1 round fits" in text
    assert "1 round does not fit" in run("--epsilon 0.1 -z 1 --delta 1e-3 -t 1")
    assert "ε at most 0.5000" in run("--epsilon 0.5 --round-epsilon 0.05 --delta 1e-3")
    assert "does not allow a single round" in run("--epsilon 0.01 -z 1 --delta 1e-3")


def test_exact_calibration_takes_any_epsilon():
    answer = values("--round-epsilon 3 --calibration exact --delta 1e-5 -t 1")
    assert answer["epsilon_exact"] == pytest.approx(3.0, rel=1e-9)
    assert answer["epsilon_exact"] <= 3.0
    assert "not proven above 1" in run("--round-epsilon 3 --calibration exact --delta 1e-5 -t 1")


def test_cross_checks_agree():
    answer = values("-z 30 --delta 1e-5 -t 100 --cross-check")
    assert answer["epsilon_pld"] == pytest.approx(answer["epsilon_exact"], rel=1e-4)
    assert answer["epsilon_exact"] < answer["epsilon_rdp"] < answer["epsilon_paper"]


def test_noise_itself():
    answer = values("-z 30 --delta 1e-5 -t 100 --rows 400 --lipschitz 1.5")
    assert answer["noise_std"] == pytest.approx(30 * 2 * 1.5 / 400)


def test_person_with_several_rows():
    answer = values("-z 30 --delta 1e-5 -t 100 --rows-per-person 3")
    assert answer["person_epsilon_exact"] == exact_epsilon(3 * answer["mu"], 1e-5)
    assert answer["person_epsilon_exact"] > 3 * answer["epsilon_exact"]
    assert "person with 3 rows" in run("-z 30 --delta 1e-5 -t 100 --rows-per-person 3")
    protected = values("--epsilon 1 --delta 1e-5 -t 100 --rows-per-person 3")
    assert protected["person_epsilon_exact"] <= 1.0


def test_zero_noise_is_reported_and_valid_json():
    assert "no privacy guarantee" in run("-z 0 --delta 1e-3 -t 5")
    assert values("-z 0 --delta 1e-3 -t 5 --epsilon 9 --cross-check")["epsilon_exact"] is None


def test_guarantee_in_words_is_not_understated():
    text = " ".join(run("--round-epsilon 0.1 --delta 1e-3 -t 100").split())
    assert "ε at most 0.6340 at δ = 0.001 for each person with one row, replace-one neighbours" in text
    assert "against everyone who sees all messages of 100 rounds" in text


def test_refusals():
    for line, message in [
        ("", "give --round-epsilon, --noise-multiplier, or a total --epsilon together with --rounds"),
        ("--delta 1e-3 --rounds 5", "give --round-epsilon, --noise-multiplier, or a total --epsilon"),
        ("--epsilon 1 --delta 1e-3", "--epsilon needs --rounds"),
        ("--round-epsilon 0.1 --delta 1e-3", "give --rounds for the total"),
        ("--round-epsilon 0.1 -z 3 --delta 1e-3 -t 5", "not both"),
        ("--round-epsilon 0.1 -t 5", "--delta is missing"),
        ("-z 1 --delta 1e-3 -t 5 --calibration exact", "--calibration needs --round-epsilon"),
        ("-z 1 --delta 1e-3 -t 5 --rows 10", "--rows and --lipschitz must be given together"),
        ("-z 1 --delta 1e-3 --epsilon 5 --cross-check", "--cross-check needs --rounds"),
        ("--round-epsilon 1.5 --delta 1e-3 -t 5", "--calibration exact"),
        ("--round-epsilon -1 --delta 1e-3 -t 5", "round_epsilon must be a positive number, not -1.0"),
        ("--round-epsilon nan --delta 1e-3 -t 5", "round_epsilon must be a positive number, not nan"),
        ("--epsilon 0 --delta 1e-3 -t 5", "epsilon must be a positive number, not 0.0"),
        ("--epsilon 1 --delta 1 -t 5", "delta must be between 0 and 1"),
        ("-z -2 --delta 1e-3 -t 5", "noise_multiplier must be a finite number of at least 0, not -2.0"),
        ("-z 1 --delta 1e-3 -t 0", "rounds must be a whole number of at least 1, not 0"),
        ("-z 1 --delta 1e-3 -t 5 --rows-per-person 0", "rows_per_person must be"),
        (
            "-z 1 --delta 1e-3 -t 5 --rows 2 --lipschitz 1 --rows-per-person 3",
            "rows_per_person must be at most",
        ),
        ("-z 1 --delta 1e-3 -t 5 --rows 0 --lipschitz 1", "must be"),
        ("-z 1 --delta 1e-3 -t 5 --rows 5 --lipschitz 0", "lipschitz must be a positive number"),
    ]:
        with case(line, message):
            result = CliRunner().invoke(app, line.split())
            assert isinstance(result.exception, StudyError)
            assert message in str(result.exception)
            assert "\n" not in str(result.exception)
            assert result.output == ""
