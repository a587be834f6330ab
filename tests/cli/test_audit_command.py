"""``dpadmm audit``: verdict, exit code, files, and Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
from xml.etree import ElementTree

import numpy as np
import pytest
from looping import case

from audit.mutants import factor_2_missing
from dpadmm.audit import gates
from dpadmm.figures.roc import roc_figure

SHORT = ("--trials", 40, "--workers", 1)
RARE = 1e-9
"""In place of the command's own rate of false alarms, which is too high for a test that runs often."""


@pytest.fixture
def rarely(monkeypatch):
    from dpadmm.audit import AuditPlan

    for name, value in (("confidence", 1.0 - RARE), ("false_alarm", RARE)):
        position = AuditPlan.__init__.__kwdefaults__
        monkeypatch.setitem(position, name, value)


def test_help_fits_the_screen(cli):
    text = cli("audit", "--help").succeeded().out
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    words = " ".join(text.split())
    assert "Exit code 0: all gates passed. 1: a gate failed. 2: user error. 3: inconclusive, because a gate" in words


@pytest.mark.usefixtures("rarely")
def test_a_short_audit_is_inconclusive_and_suggests_more_trials(cli, tmp_path):
    answer = cli("audit", *SHORT, "-o", tmp_path / "new")
    assert answer.code == 3
    assert answer.err == ""
    lines = answer.out.splitlines()
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 80
    assert "…" not in answer.out
    assert "noise: variance by round" in answer.out
    words = " ".join(answer.out.split())
    assert re.search(
        r"the audit has power: Inconclusive: [0-9.]+% of ε detected \(90% required\). Increase --trials.", words
    )
    assert re.search(
        r"INCONCLUSIVE: 1 of [0-9]+ gates undecided after 40 trials, and none failed. Increase --trials.", words
    )
    assert "GREEN" not in words
    assert "PASSED" not in words
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        "audit.json",
        "roc.md",
        "roc.png",
        "roc.svg",
    }
    ElementTree.parse(tmp_path / "new" / "roc.svg")
    numbers = json.loads((tmp_path / "new" / "audit.json").read_text())
    assert numbers["outcome"] == "inconclusive"
    assert numbers["game"]["studies"] == 40
    assert numbers["statistics"] == [
        "moments",
        "preconditioned_gradient",
        "calibration",
        "gradient",
        "newton",
        "column_sums",
        "score_histogram",
    ]
    assert {gate["name"] for gate in numbers["gates"]} >= {"noise: variance", "recorded before sent"}


@pytest.mark.usefixtures("sketched")
def test_enough_trials_pass_and_exit_code_0(cli, tmp_path, monkeypatch):
    """The power of a full audit takes minutes. A smaller share of ε needs fewer trials."""
    monkeypatch.setattr(gates, "POWER", 0.1)
    words = ("--method", "dp_admm", "--trials", 300, "--workers", 1)
    for more, shown in [((), "PASSED: the attack proves ε ≥ "), (("--quiet",), "PASSED: "), (("--json",), None)]:
        with case(more):
            answer = cli("audit", *words, "-o", tmp_path, *more).succeeded()
            assert shown in answer.out if shown else answer.json["outcome"] == "passed"
            assert json.loads((tmp_path / "audit.json").read_text())["outcome"] == "passed"


@pytest.mark.usefixtures("rarely", "sketched")
def test_an_inconclusive_audit_in_json_has_exit_code_3(cli, tmp_path):
    answer = cli("audit", *SHORT, "--method", "dp_admm", "-o", tmp_path, "--json")
    assert answer.code == 3
    assert answer.json["outcome"] == "inconclusive"
    assert [gate["name"] for gate in answer.json["gates"] if gate["passed"] is None] == ["the audit has power"]


@pytest.mark.usefixtures("rarely", "sketched")
def test_a_failed_audit_has_exit_code_1(cli, tmp_path, monkeypatch):
    factor_2_missing(monkeypatch)
    answer = cli("audit", *SHORT, "-o", tmp_path, "--quiet")
    assert answer.code == 1
    assert answer.err == ""
    assert "noise: variance: The noise has the promised variance" in answer.out
    assert answer.out.splitlines()[-1].startswith("FAILED: ")
    answer = cli("audit", *SHORT, "-o", tmp_path, "--json")
    assert answer.code == 1
    assert answer.json == json.loads((tmp_path / "audit.json").read_text())
    assert answer.json["outcome"] == "failed"
    assert "noise: variance" in {gate["name"] for gate in answer.json["gates"] if gate["passed"] is False}


@pytest.mark.usefixtures("rarely", "sketched")
@pytest.mark.parametrize(
    ("method", "games", "statistics"),
    [
        ("pgd", ["pgd"], ["moments", "preconditioned_gradient", "calibration"]),
        ("newton", ["newton", "newton_counts", "newton_times"], ["newton"]),
        ("dp_admm", ["dp_admm"], ["gradient"]),
    ],
)
def test_an_audit_of_one_method(cli, tmp_path, method, games, statistics):
    answer = cli("audit", *SHORT, "--method", method, "--aggregation", "plain", "-o", tmp_path)
    assert answer.code == 3
    assert f"gate ({method if len(games) == 1 else 'all studies'})" in answer.out
    assert f"studies of {' and '.join(games)} (statistics: {', '.join(statistics)})" in " ".join(answer.out.split())
    numbers = json.loads((tmp_path / "audit.json").read_text())
    assert numbers["statistics"] == statistics
    assert list(numbers["games"]) == games
    for game in games:
        rounds = numbers["games"][game]["rounds"]
        assert sum(each["noise_multiplier"] ** -2.0 for each in rounds) ** 0.5 == pytest.approx(2.0)
    assert {gate["game"] for gate in numbers["gates"]} == {None, *games}


@pytest.mark.usefixtures("rarely")
def test_an_audit_of_secure_aggregation(cli, tmp_path):
    answer = cli("audit", *SHORT, "--aggregation", "secure", "-o", tmp_path)
    assert answer.code == 3
    assert "studies of pgd_coalition and pgd_alone" in " ".join(answer.out.split())
    games = json.loads((tmp_path / "audit.json").read_text())["games"]
    totals = [sum(each["noise_multiplier"] ** -2.0 for each in game["rounds"]) for game in games.values()]
    assert totals == pytest.approx([4.0, 2.0])  # with half of the noise left, μ = 2 again
    assert [game["coalition"]["min_honest_sites"] for game in games.values()] == [2, 1]


def test_invalid_options_are_reported_in_one_sentence(cli):
    for words, says in [
        (
            ["--method", "dp_sgd"],
            "method must be all or one of pgd, dp_admm, newton, statistics, evaluation, not dp_sgd",
        ),
        (["--aggregation", "nobody"], "aggregation must be all or one of plain, secure, not nobody"),
        (["--method", "dp_admm", "--aggregation", "secure"], "there are no studies of dp_admm with"),
        (["--trials", "5"], "trials must be a whole number of at least 40"),
        (["--mu", "0"], "mu must be a number from 0.1 to 10"),
        (["--mu", "nan"], "mu must be a number from 0.1 to 10"),
        (["--delta", "1"], "delta"),
        (["--workers", "0"], "workers must be a whole number of at least 1"),
        (["--output", __file__], "is a file; choose another output folder"),
    ]:
        with case(words, says):
            answer = cli("audit", *words)
            assert (answer.code, answer.out) == (2, "")
            assert answer.err.startswith("dpadmm: ")
            assert answer.err.count("\n") == 1
            assert says in answer.err


@pytest.mark.usefixtures("rarely", "sketched")
def test_ctrl_c_evaluates_the_finished_trials(cli, tmp_path, monkeypatch):
    from dpadmm.audit import run

    sound = run.play

    def play_and_press(batch):
        seen = sound(batch)
        os.kill(os.getpid(), signal.SIGINT)
        return seen

    monkeypatch.setattr(run, "play", play_and_press)
    answer = cli("audit", "--trials", 1000, "--workers", 1, "-o", tmp_path)
    assert answer.code == 130
    assert "interrupted after 20 of 1000 studies" in answer.err
    assert "noise: variance" in answer.out
    assert json.loads((tmp_path / "audit.json").read_text())["game"]["studies"] == 20


def test_the_figure_shows_errors_and_the_guarantee():
    rng = np.random.default_rng(1)
    scores = rng.standard_normal(3000), rng.standard_normal(3000) + 2.0
    picture = roc_figure(scores, mu=2.0, proven=1.9, threshold=1.0, confidence=0.99, title="Audit of 3000 studies")
    for axes in picture.figure.axes:
        measured = next(line for line in axes.lines if "measured" in str(line.get_label()))
        x, y = measured.get_data()
        assert (np.diff(x) <= 0).all()
        assert (np.diff(y) >= 0).all()
        point = next(line for line in axes.lines if "fixed" in str(line.get_label())).get_data()
        np.testing.assert_allclose(np.ravel(point), 0.1587, atol=0.03)
        assert axes.get_xlabel()
        assert axes.get_ylabel()
    assert "μ ≥ 1.900" in picture.caption
    picture.figure.draw_without_rendering()
    assert "0.1%" in [label.get_text() for label in picture.figure.axes[1].get_xticklabels()]
