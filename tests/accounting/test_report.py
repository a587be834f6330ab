"""Privacy reports: the loss of every agent and of the worst one, JSON, and reports that cannot be files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from hashlib import sha256
from itertools import product

import numpy as np
import pytest
from guards import STUDY, Z, consensus, guarded
from looping import case
from reports import agent_releases, constant_report, counts, study_report

from dpadmm.accounting import Release, exact_epsilon, paper_epsilon, paper_noise_multiplier
from dpadmm.accounting.composition import total_epsilon
from dpadmm.accounting.events import ObjectiveRelease, PureRelease, SampledRelease, UnpricedRelease
from dpadmm.accounting.report import (
    MAX_AGENTS,
    AgentReleases,
    PrivacyReport,
    canonical,
    privacy_sentence,
    share_equal,
)
from dpadmm.accounting.verification import read_privacy_report
from dpadmm.errors import StudyError
from dpadmm.sites.accounts import report_of_account
from dpadmm.trusted.ledger import Account, Record, read_ledger


def report(z: list[float], done: list[int], planned: list[int] | None = None, **changes: object) -> PrivacyReport:
    values = {"delta": 1e-3, "method": "dp_admm"} | changes
    return constant_report([Release(v) for v in z], done, planned or done, **values)  # type: ignore[arg-type]


def equal_rounds(*releases: object, charge_planned: bool = False) -> PrivacyReport:
    """Return agents that released 7 of 10 planned rounds."""
    n = len(releases)
    return constant_report(releases, [7] * n, [10] * n, 1e-5, "dp_admm", charge_planned=charge_planned)  # type: ignore[arg-type]


# The privacy loss


@pytest.mark.parametrize(("round_epsilon", "paper", "exact"), [(0.05, 0.5009, 0.2772), (0.1, 1.0193, 0.6339)])
def test_reference_values(round_epsilon: float, paper: float, exact: float) -> None:
    z = float(paper_noise_multiplier(round_epsilon, 1e-3))
    made = report([z] * 3, [100] * 3)
    assert made.epsilon == pytest.approx(exact, abs=5e-5)
    assert made.planned_epsilon == made.epsilon
    assert made.paper_epsilon == pytest.approx(paper, abs=5e-5)
    assert made.round_epsilon == pytest.approx(round_epsilon, rel=1e-12)
    document = made.to_dict()
    for values in (document, *document["agents"]):
        assert (round(values["epsilon"], 4), round(values["paper_epsilon"], 4)) == (exact, paper)
        assert values["epsilon_of_person"] is None


def test_every_agent_is_charged_for_its_own_releases() -> None:
    made = report([10.0, 10.0, 20.0], [100, 25, 100], [100, 100, 100])
    np.testing.assert_allclose(made.mu, [1.0, 0.5, 0.5])
    np.testing.assert_allclose(made.epsilon_by_agent, exact_epsilon(np.array([1.0, 0.5, 0.5]), 1e-3))
    assert made.epsilon == pytest.approx(exact_epsilon(1.0, 1e-3))
    assert made.paper_epsilon == pytest.approx(paper_epsilon(10.0, 100, 1e-3))
    assert made.n_releases.tolist() == made.charged_releases.tolist() == [100, 25, 100]


def test_planned_rounds_that_were_missed() -> None:
    made = report([10.0, 10.0], [4, 9], [100, 100])
    assert made.epsilon == pytest.approx(exact_epsilon(0.3, 1e-3))
    assert made.planned_epsilon == pytest.approx(exact_epsilon(1.0, 1e-3))


def test_equal_agents_share_one_instance() -> None:
    made = report([10.0, 20.0, 10.0, 10.0], [5, 5, 5, 4], [5] * 4)
    assert made.agents[0] is made.agents[2]
    assert made.group_of_agent.tolist() == [0, 1, 0, 2]
    assert [made.members(i) for i in range(3)] == [{"1": 10, "3": 12}, {"2": 11}, {"4": 13}]
    assert share_equal([], [], charge_planned=True) == []


def test_a_million_agents_are_grouped_and_not_listed() -> None:
    n = 10**6
    made = PrivacyReport([agent_releases()] * n, np.full(n, 20), 1e-5, "pgd")
    assert len(made.groups) == 1
    document = made.to_dict()
    assert (document["n_agents"], document["agents"][0]["n_agents"]) == (n, n)
    assert document["agents"][0]["n_rows"] is None
    with pytest.raises(StudyError, match=f"1 to {MAX_AGENTS} agents"):
        made.to_bytes()


def test_without_releases_nothing_is_lost() -> None:
    made = report([10.0, 0.0], [0, 0])
    assert made.private
    assert made.epsilon == made.paper_epsilon == made.to_dict()["epsilon"] == 0.0
    values = study_report(agent_releases(counts(20.0, 0, 0))).to_dict()
    assert {*values["epsilon_by_delta"].values(), *values["epsilon_by_rows"].values(), values["paper_epsilon"]} == {0.0}


def test_without_noise_there_is_no_privacy() -> None:
    for z, done in [([0.0, 0.0], [5, 5]), ([0.0, 3.0], [5, 5]), ([0.0, 3.0], [5, 0])]:
        with case(z, done):
            made = report(z, done)
            assert not made.private
            assert made.epsilon == np.inf
            document = made.to_dict()
            assert (document["private"], document["epsilon"], document["paper_epsilon"]) == (False, None, None)
            assert document["guarantee"].startswith("None")


def test_without_noise_on_a_sample_there_is_no_privacy() -> None:
    made = constant_report([SampledRelease(0.0, 0.5)], [1], [1], 1e-3, "dp_sgd")
    assert not made.private
    assert made.to_dict()["guarantee"] == "None: rows were used without noise."
    assert made.noise == "none"


def test_a_noise_source_of_unknown_cost_has_no_guarantee() -> None:
    made = constant_report([UnpricedRelease("my noise")], [1], [1], 1e-3, "dp_admm")
    assert made.epsilon == np.inf
    assert made.to_dict()["guarantee"] == "None: the noise source has no known privacy cost."


OTHER_EVENTS = [
    (SampledRelease(5.0, 0.2), "privacy loss distribution (PLD)"),
    (ObjectiveRelease(20.0, 0.01), "Rényi bound of objective perturbation"),
    (PureRelease(0.05), "optimal composition of pure ε"),
]


def test_every_mechanism_has_its_own_accountant() -> None:
    for event, accountant in OTHER_EVENTS:
        with case(event, accountant):
            made = constant_report([event] * 3, [10, 0, 4], [20, 20, 20], 1e-3, "some_method")
            expected = [total_epsilon(event, count, 1e-3) for count in (10, 0, 4)]
            np.testing.assert_array_equal(made.epsilon_by_agent, expected)
            assert made.epsilon == expected[0]
            assert made.planned_epsilon == total_epsilon(event, 20, 1e-3)
            assert made.accountant == accountant
            assert made.private
            assert np.isnan(made.paper_epsilon)  # a bound for Gaussian releases
            assert np.isnan(made.mu).all()
            document = json.loads(json.dumps(made.to_dict(), allow_nan=False))
            assert (document["accountant"], document["paper_epsilon"]) == (accountant, None)
            assert (document["epsilon"], document["epsilon_by_rows"]) == (made.epsilon, None)
            pure = isinstance(event, PureRelease)
            assert document["round_epsilon"] == (0.05 if pure else None)
            (release,) = document["agents"][0]["releases"]
            assert release.get("noise_multiplier") == (None if pure else event.noise_multiplier)  # type: ignore[union-attr]
            assert [release[name] for name in ("charged", "released", "planned")] == [10, 10, 20]
            assert document["noise"] == "simulated"
            charged = constant_report([event] * 3, [10, 0, 4], [20] * 3, 1e-3, "some_method", charge_planned=True)
            assert charged.epsilon == charged.planned_epsilon == made.planned_epsilon


def test_agents_with_different_mechanisms() -> None:
    made = constant_report([Release(10.0), PureRelease(0.01), Release(0.0)], [4, 3, 0], [4, 3, 1], 1e-3, "mixed")
    pure = total_epsilon(PureRelease(0.01), 3, 1e-3)
    np.testing.assert_array_equal(made.epsilon_by_agent, [exact_epsilon(0.2, 1e-3), pure, 0.0])
    assert made.accountant == "exact Gaussian composition, optimal composition of pure ε"
    assert np.isnan(made.paper_epsilon)
    assert np.isnan(made.round_epsilon)


@pytest.mark.parametrize("charge_planned", [True, False])
def test_a_run_that_stops_by_its_result_is_charged_in_full(charge_planned: bool) -> None:
    made = equal_rounds(Release(5.0), charge_planned=charge_planned)
    (release,) = made.to_dict()["agents"][0]["releases"]
    assert (release["charged"], release["released"], release["planned"]) == (10 if charge_planned else 7, 7, 10)
    assert made.epsilon == exact_epsilon(math.sqrt(release["charged"]) / 5.0, 1e-5)


def test_if_all_others_collude_one_share_of_the_noise_is_left() -> None:
    made = study_report(agent_releases(counts(30.0), k=3), min_honest_sites=4)
    assert made.epsilon_if_others_collude == pytest.approx(exact_epsilon(2.0 * 3.0 * 10.0 / 30.0, 1e-3))
    assert made.to_dict()["epsilon_if_others_collude"] == made.epsilon_if_others_collude
    assert "at least 4 honest agents" in made.guarantee
    plain = study_report()
    assert plain.epsilon_if_others_collude == plain.epsilon
    assert plain.to_dict()["epsilon_if_others_collude"] is None


# The JSON form


def test_json_is_plain_and_without_nan() -> None:
    for done, z in product([[0, 0], [0, 7], [7, 7]], [[3.0, 4.0], [0.0, 4.0], [0.0, 0.0]]):
        with case(done, z):
            made = report(z, done, [7, 7], delta=np.float64(1e-5))
            document = json.loads(json.dumps(made.to_dict(), allow_nan=False))
            releases = [agent["releases"][0] for agent in document["agents"]]
            in_order = [releases[i] for i in made.group_of_agent]
            assert [release["released"] for release in in_order] == done
            assert [release["noise_multiplier"] for release in in_order] == z
            assert document["n_agents"] == 2
            assert document["delta"] == 1e-5
            if any(z):
                assert document["noise"] == "simulated"
            if made.private:
                assert "one row" in document["guarantee"]


def test_every_value_by_its_own_formula() -> None:
    delta = 3e-7
    values = study_report(agent_releases(counts(30.0, 50, 0), k=3), delta=delta).to_dict()["agents"][0]
    mu = math.sqrt(50) / 30.0
    assert values["epsilon"] == pytest.approx(exact_epsilon(mu, delta), rel=1e-12)
    assert {float(key) for key in values["epsilon_by_delta"]} == {1e-3, 1e-4, 1e-5, 1e-6, 1e-8}
    for key, epsilon in values["epsilon_by_delta"].items():
        assert epsilon == pytest.approx(exact_epsilon(mu, float(key)), rel=1e-12)
    assert set(values["epsilon_by_rows"]) == set("234")
    for rows, epsilon in values["epsilon_by_rows"].items():
        assert epsilon == pytest.approx(exact_epsilon(int(rows) * mu, delta), rel=1e-12)
    assert values["epsilon_of_person"] == pytest.approx(exact_epsilon(3 * mu, delta), rel=1e-12)
    assert values["paper_epsilon"] == paper_epsilon(30.0, 50, delta)


def test_charged_releases_count_and_not_those_released() -> None:
    full, short = (study_report(agent_releases(counts(20.0, 100, n))).to_dict() for n in (100, 1))
    assert (full["epsilon"], full["epsilon_by_delta"]) == (short["epsilon"], short["epsilon_by_delta"])
    assert study_report(agent_releases(counts(20.0, 1, 1))).epsilon < 0.5 * full["epsilon"]


def test_releases_with_different_noise_compose_and_have_no_bound_of_the_paper() -> None:
    values = study_report(agent_releases(counts(20.0, 100), counts(10.0, 50, 0))).to_dict()
    mu = math.sqrt(100 / 400 + 50 / 100)
    assert values["epsilon"] == pytest.approx(exact_epsilon(mu, 1e-3), rel=1e-12)
    assert values["paper_epsilon"] is None


def test_the_worst_person_may_be_at_another_agent_than_the_worst_row() -> None:
    much, little = agent_releases(counts(10.0)), agent_releases(counts(20.0), k=4)
    document = study_report(much, little).to_dict()
    first, second = document["agents"]
    assert document["epsilon"] == first["epsilon"]
    assert document["epsilon_of_person"] == second["epsilon_of_person"] > first["epsilon"]
    other = study_report(agent_releases(counts(5.0)), little).to_dict()
    assert other["epsilon_of_person"] == pytest.approx(exact_epsilon(2.0, 1e-3))


def test_bytes_are_canonical() -> None:
    agent = agent_releases()
    raw = study_report(agent, agent, names=["zürich", "aachen"], n_rows=[4, 5]).to_bytes()
    assert raw == study_report(agent, agent, names=["aachen", "zürich"], n_rows=[5, 4]).to_bytes()
    document = json.loads(raw)
    assert raw == (json.dumps(document, sort_keys=True, indent=2, ensure_ascii=False) + "\n").encode()
    assert "zürich" in raw.decode()
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical({"x": math.nan})


def test_a_change_of_texts_requires_a_new_format() -> None:
    """Files must be verifiable for years, so new texts need a new format version."""
    words = []
    for made in (study_report(), study_report(min_honest_sites=2), equal_rounds(Release(5.0))):
        document = made.to_dict()
        words += [
            document[name] for name in ("format", "neighbours", "noise", "accountant", "guarantee", "limitations")
        ]
    assert sha256(canonical(words)).hexdigest()[:16] == "48523e7c0bcb82b6"


@pytest.mark.parametrize("n_agents", [1, 2000])
def test_round_trip(tmp_path, n_agents):
    agents = [*[agent_releases()] * n_agents, agent_releases(counts(7.5), k=2)]
    made = study_report(*agents, names=[f"agent {i}" for i in range(n_agents + 1)], n_rows=range(4, 5 + n_agents))
    path = tmp_path / "m.privacy.json"
    path.write_bytes(made.to_bytes())
    again = read_privacy_report(path)
    assert again.to_bytes() == made.to_bytes()
    assert again.groups == made.groups
    assert path.stat().st_size < 4500 + 40 * n_agents


def test_a_simulated_run() -> None:
    made = equal_rounds(Release(5.0), Release(5.0), Release(6.0, count=2))
    document = json.loads(made.to_bytes())
    assert [agent["n_rows"] for agent in document["agents"]] == [{"1": 10, "2": 11}, {"3": 12}]
    assert [agent["releases"][0]["charged"] for agent in document["agents"]] == [7, 14]
    assert (document["noise"], document["study"]) == ("simulated", None)
    assert document["guarantee"].startswith("None, because simulated noise can be reproduced.")


def test_agents_with_equal_noise_are_charged_for_their_own_rounds() -> None:
    """The number of rounds counts, not only z."""
    made = constant_report([Release(5.0)] * 4, [2, 7, 2, 0], [10] * 4, 1e-5, "dp_admm")
    document = made.to_dict()
    charged = {name: agent["releases"][0]["charged"] for agent in document["agents"] for name in agent["n_rows"]}
    assert charged == {"1": 2, "2": 7, "3": 2, "4": 0}
    assert [agent["n_agents"] for agent in document["agents"]] == [2, 1, 1]
    assert document["epsilon"] == pytest.approx(made.epsilon)


def test_only_gaussian_noise_can_be_a_file() -> None:
    for kind, words in [
        (PureRelease(1.0), "PureRelease"),
        (SampledRelease(1.0, 0.1), "SampledRelease"),
        (Release(0.0), "without noise"),
    ]:
        with (
            case(kind, words),
            pytest.raises(StudyError, match=f"agent 2: releases .*{words}.*only reports with Gaussian noise"),
        ):
            equal_rounds(Release(5.0), kind).to_bytes()


def test_values_out_of_range_cannot_be_a_file() -> None:
    valid = study_report()
    for make, words in [
        (lambda: study_report(agent_releases(counts(1e-4))), "noise_multiplier must be a number from 0.001 to 1e"),
        (lambda: study_report(agent_releases(counts(20.0, 10**400))), "planned must be .* not a huge number"),
        (lambda: study_report(agent_releases(counts(20.0, True))), "planned must be a whole number"),  # type: ignore[arg-type]
        (
            lambda: study_report(agent_releases(counts(20.0, 5, 6))),
            "released must be .* from 0 to 5, not 6",
        ),
        (lambda: study_report(agent_releases(k=401)), "rows_per_person must be a whole number from 1 to 400, not 401"),
        (lambda: study_report(agent_releases(counts(0.001, 10, 0))), "no protection"),
        (lambda: study_report(agent_releases(counts(2.0, 10, 0)), min_honest_sites=10**6), "no protection"),
        (lambda: study_report(min_honest_sites=1), "min_honest_sites must be"),
        (lambda: study_report(AgentReleases(())), "0 different releases"),
        (lambda: study_report(agent_releases(*[counts(z) for z in range(10, 19)])), "9 different releases"),
        (lambda: study_report(names=["a\nb"]), "printable"),
        (lambda: study_report(n_rows=[0]), "n_rows must be"),
        (lambda: study_report(delta=0.6), "delta must be"),
        (lambda: study_report(agent_releases(), agent_releases(), names=["a", "a"]), "same name"),
        (lambda: study_report(names=["a", "b"]), "lacks its name or rows"),
        (lambda: replace(valid, agents=[], n_rows=[]), "a privacy report has 1 to"),
        (lambda: replace(valid, study_hash="xyz"), "hash must match"),
        (lambda: replace(valid, study_hash=None), "both name and hash"),
        (lambda: replace(valid, version="a b"), "version must match"),
        (lambda: replace(valid, method=""), "method must be"),
    ]:
        with case(make, words), pytest.raises(StudyError, match=words):
            make().to_bytes()


def test_a_report_in_a_notebook_and_on_a_terminal() -> None:
    made = study_report(agent_releases(counts(75.0)), agent_releases(counts(80.0)), min_honest_sites=3)
    text = made.rendering().to_text()
    for words in ("Privacy loss of dp_admm, study a study", "if all other agents collude", "moments bound"):
        assert words in text
        assert words in made._repr_html_()
    assert f"{math.ceil(made.epsilon * 1e4) / 1e4:.4f}" in text
    assert "75.0000 to 80.0000" in text
    text = equal_rounds(PureRelease(0.1)).rendering().to_text()
    assert "optimal composition of pure ε" in text
    assert "moments bound" not in text
    assert "∞ (no privacy)" in report([0.0], [1]).rendering().to_text()


def test_the_sentence_for_publication() -> None:
    made = study_report()
    text = privacy_sentence(made.to_dict())
    assert (
        "(2.1838, 0.001)-differentially private" in text or f"({math.ceil(1e4 * made.epsilon) / 1e4:g}, 0.001)" in text
    )
    assert "simulated" not in text
    assert "the noise was simulated" in privacy_sentence(equal_rounds(Release(5.0)).to_dict())
    assert "at least 3 sites" in privacy_sentence(study_report(min_honest_sites=3).to_dict())
    assert privacy_sentence(report([0.0], [1]).to_dict()) == "This result is not differentially private."


# The report of an account in a ledger


def test_an_account_that_a_guard_opened(tmp_path):
    with guarded(tmp_path) as guard:
        guard.enrol(STUDY)
        for round in (1, 2):
            guard.answer(STUDY.hash, round, consensus(round))
    account = read_ledger(tmp_path).accounts[STUDY.hash]
    made = report_of_account(STUDY.hash, account, site="here")
    assert made.groups == (agent_releases(counts(Z, 12, 2)),)
    assert made.members(0) == {"here": 8}
    assert (made.study, made.study_hash, made.noise) == (STUDY.name, STUDY.hash, "exact-discrete-gaussian")
    assert made.epsilon == pytest.approx(exact_epsilon(math.sqrt(account.reservation.mu_squared), 1e-5), rel=1e-9)
    raw = made.to_bytes().decode()
    assert account.about["salt"] not in raw
    assert account.about["rows"] not in raw


ABOUT = {
    "name": "a",
    "method": "dp_admm",
    "plan": [{"statistic": "gradient", "noise_multiplier": 10, "rounds": 4}],
    "delta": 1e-5,
    "n_rows": 9,
    "rows_per_person": 2,
}


def account(mu_squared: float = 4 * 0.04, **changes: object) -> Account:
    return Account(Record("reserve", "ab" * 8, mu_squared), {**ABOUT, **changes}, may_miss_rounds=False)


def test_an_account_with_several_rows_per_person():
    made = report_of_account("ab" * 8, account(), site="here")
    assert made.to_dict()["epsilon_of_person"] == pytest.approx(exact_epsilon(0.4, 1e-5), rel=1e-9)


def test_an_account_that_reserved_something_else():
    with pytest.raises(StudyError, match="another Σμ²"):
        report_of_account("ab" * 8, account(0.04), site="here")


def test_an_account_with_a_missing_value():
    for name in ABOUT:
        with case(name):
            whole = account()
            lacking = replace(whole, about={key: value for key, value in whole.about.items() if key != name})
            with pytest.raises(StudyError, match=f"not enrolled by a guard.*{name}"):
                report_of_account("ab" * 8, lacking, site="here")


def test_an_account_with_invalid_values():
    for make in [
        lambda: account(plan=[{**ABOUT["plan"][0], "noise_multiplier": "10"}]),
        lambda: account(n_rows=1),
        lambda: account(plan=[{**ABOUT["plan"][0], "rounds": 4.0}]),
        lambda: account(delta=None),
        lambda: account(name="\x1b[2J"),
    ]:
        with case(make), pytest.raises(StudyError, match="must be"):
            report_of_account("ab" * 8, make(), site="here")
