"""Studies whose rounds differ: the release plan in every command, from the study to the privacy report."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.verification import read_privacy_report
from dpadmm.sites.site import read_site
from dpadmm.studies.reading import read_study
from dpadmm.trusted.ledger import read_ledger

STUDY = """
format = "dpadmm-study/2"
name = "illness"
label = {column = "ill", classes = ["no", "yes"]}
method = {name = "auto"}
training = {n_rounds = 20, intercept = true}
privacy = {epsilon = 1.0, delta = 1e-5}
[columns.age]
kind = "number"
bounds = [20, 90]
"""
SITE = """
format = "dpadmm-site/2"
ledger = "ledger"
data = {table = "table.csv", label = "ill"}
person = {rows = 1}
[limits]
epsilon = 2.0
delta = 1e-5
methods = ["pgd"]
losses = ["logistic"]
max_rounds = 100
min_rows = 100
"""
N_ROUNDS, SHARE, LAST_SHARE = 20, 0.15, 0.05


@pytest.fixture
def place(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    ages = rng.integers(20, 91, 200)
    lines = (
        f"{age},{'yes' if age + noise > 55 else 'no'}" for age, noise in zip(ages, rng.normal(0, 9, 200), strict=True)
    )
    (tmp_path / "table.csv").write_text("\n".join(["age,ill", *lines]) + "\n")
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "site.toml").write_text(SITE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def planned(place):
    """(statistic, z, rounds): 15% of μ² for moments, 5% for the calibration, the rest for 18 equal gradients."""
    mu_squared = float(read_study(place / "study.toml").terms.plan.mu_squared())
    assert exact_epsilon(math.sqrt(mu_squared), 1e-5) == pytest.approx(1.0, rel=1e-9)
    later = N_ROUNDS - 2
    return [
        ("moments", (SHARE * mu_squared) ** -0.5, 1),
        ("preconditioned_gradient", ((1.0 - SHARE - LAST_SHARE) * mu_squared / later) ** -0.5, later),
        ("calibration", (LAST_SHARE * mu_squared) ** -0.5, 1),
    ]


def flat(text: str) -> str:
    return " ".join(text.split())


def narrow(answer) -> str:
    assert max(map(len, answer.succeeded().out.splitlines())) <= 80
    assert "…" not in answer.out
    assert "nan" not in answer.out
    return flat(answer.out)


def test_study_review_and_training_show_releases_and_noise(cli, place, planned):
    (_, first, _), (_, later, _), (_, last, _) = planned
    read_site("site.toml").begin()
    gradients = f"{later:.4f} in rounds 2 to 19 (preconditioned_gradient)"
    noise = f"{first:.4f} in round 1 (moments), {gradients}, {last:.4f} in round 20 (calibration)"
    for words in (("study", "show", "study.toml"), ("site", "review", "study.toml")):
        text = narrow(cli(*words))
        assert noise in text
        assert "in one round the sum of the moments" in text
        assert "once in each of 18 rounds the sum of the preconditioned_gradient" in text
    train, plan = (
        ("train", "study.toml", "--data", "table.csv", "-o", "model"),
        ("plan", "study.toml", "--repeats", "2"),
    )
    for words in (train, (*plan, "--agents", "2", "--rows", "100", "--rounds", "20")):
        text = narrow(cli(*words))
        assert f"{first:.4f} in round 1 (moments), {later:.4f}" in text
        assert f"{last:.4f} in round 20 (calibration)" in text


def test_the_privacy_report_of_a_training_lists_both_releases_and_is_verified(cli, place, planned):
    cli("train", "study.toml", "--data", "table.csv", "-o", "model").succeeded()
    document = json.loads((place / "model.privacy.json").read_text())
    (agent,) = document["agents"]
    stated = [(each["statistic"], each["noise_multiplier"], each["charged"]) for each in agent["releases"]]
    assert stated == [(name, pytest.approx(z, rel=1e-9), n) for name, z, n in planned]
    assert agent["epsilon"] == pytest.approx(1.0, rel=1e-9)
    text = narrow(cli("verify", "model.privacy.json"))
    for (name, z, n), share in zip(planned, ("15.0%", "80.0%", "5.0%"), strict=True):
        assert f"{name} {z:.4g} {n} of {n} {share}" in text
    answer = cli("verify", "model.privacy.json", "--json").succeeded().json
    assert answer["agents"][0]["releases"] == agent["releases"]
    for check in answer["agents"][0]["checks"]:
        assert check["pld"] == pytest.approx(check["closed_form"], rel=1e-3)


def test_the_ledger_shows_the_plan_and_the_report_agrees_with_it(cli, place, planned):
    read_site("site.toml").begin()
    cli("site", "accept", "study.toml").succeeded()
    text = narrow(cli("site", "budget", "--ledger", "ledger"))
    (study,) = read_ledger(place / "ledger").accounts
    for name, z, n in planned:
        assert f"{study[:12]} {name} {z:.4f} 0 of {n}" in text
    (shown,) = cli("site", "budget", "--ledger", "ledger", "--json").succeeded().json["studies"]
    assert shown["by_statistic"] == [
        {"statistic": name, "noise_multiplier": pytest.approx(z, rel=1e-9), "released": 0, "planned": n}
        for name, z, n in planned
    ]
    cli("site", "export", "illness", "--ledger", "ledger", "-o", "said.json").succeeded()
    cli("verify", "said.json", "--ledger", "ledger").succeeded()
    assert [each.release.statistic for each in read_privacy_report(place / "said.json").groups[0].releases] == [
        name for name, _, _ in planned
    ]
    lie = (place / "said.json").read_text().replace("preconditioned_gradient", "gradient")
    (place / "lie.json").write_text(lie)
    answer = cli("verify", "lie.json", "--ledger", "ledger")
    assert answer.code == 2
    held = "the ledger ['moments', 'preconditioned_gradient', 'calibration']"
    assert f"it has statistic ['moments', 'gradient', 'calibration'], {held}" in answer.err
