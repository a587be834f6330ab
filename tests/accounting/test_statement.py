"""Privacy statements: figures of the reference table, the same bytes always, and what cannot be stated."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from guards import STUDY, Z, consensus, guarded
from looping import case
from reports import constant_report

from dpadmm.accounting.calibration import paper_noise_multiplier
from dpadmm.accounting.events import PureRelease, Release, SampledRelease
from dpadmm.accounting.gaussian import exact_epsilon, paper_epsilon
from dpadmm.accounting.report import PrivacyReport
from dpadmm.accounting.statement import (
    EXACT,
    SIMULATED,
    AgentGroup,
    StatedRelease,
    Statement,
    canonical,
    of_report,
    read_statement,
)
from dpadmm.errors import StudyError
from dpadmm.sites.accounts import of_account
from dpadmm.trusted.ledger import Account, Record, read_ledger


def release(z: float = 20.0, charged: int = 100, released: int = 40) -> StatedRelease:
    return StatedRelease("gradient", z, charged, released)


def group(*releases: StatedRelease, k: int = 1, **n_rows: int) -> AgentGroup:
    return AgentGroup(n_rows or {"site": 400}, k, releases or (release(),))


def statement(*groups: AgentGroup, delta: float = 1e-3) -> Statement:
    return Statement("a study", "ab" * 32, "dp_admm", EXACT, delta, groups or (group(),), "0.1.0")


def report(*releases: object, released: int = 7, planned: int = 10, ended: bool = False) -> PrivacyReport:
    counts = np.full(len(releases), released), np.full(len(releases), planned)
    return constant_report(releases, *counts, 1e-5, "dp_admm", ended_by_result=ended)


def simulated(of: PrivacyReport) -> Statement:
    sizes = [10 + i for i in range(len(of.released))]
    return of_report(of, sizes, name="a run", settings_hash="cd" * 32, version="0.1.0")


@pytest.mark.parametrize(("round_epsilon", "paper", "exact"), [(0.05, 0.5009, 0.2772), (0.1, 1.0193, 0.6339)])
def test_reference_figures(round_epsilon, paper, exact):
    stated = statement(group(release(paper_noise_multiplier(round_epsilon, 1e-3)))).as_json()
    for figures in (stated["agents"][0], stated["worst"]):
        assert round(figures["epsilon"]["0.001"], 4) == exact
        assert round(figures["epsilon_of_rows"]["1"], 4) == exact
        assert round(figures["epsilon_paper"], 4) == paper
        assert figures["epsilon_of_person"] is None


def test_every_figure_by_its_own_formula():
    delta = 3e-7
    stated = statement(group(release(30.0, 50, 0), k=3), delta=delta).as_json()["agents"][0]
    mu = math.sqrt(50) / 30.0
    assert {float(key) for key in stated["epsilon"]} == {1e-3, 1e-4, 1e-5, 1e-6, 1e-8, delta}
    for key, epsilon in stated["epsilon"].items():
        assert epsilon == pytest.approx(exact_epsilon(mu, float(key)), rel=1e-12)
    assert set(stated["epsilon_of_rows"]) == set("1234")
    for rows, epsilon in stated["epsilon_of_rows"].items():
        assert epsilon == pytest.approx(exact_epsilon(int(rows) * mu, delta), rel=1e-12)
    assert stated["epsilon_of_person"] == pytest.approx(exact_epsilon(3 * mu, delta), rel=1e-12)
    assert stated["epsilon_paper"] == paper_epsilon(30.0, 50, delta)


def test_what_is_charged_counts_and_not_what_was_released():
    full, short = (statement(group(release(20.0, 100, n))).as_json()["worst"] for n in (100, 1))
    assert full == short
    assert statement(group(release(20.0, 1, 1))).as_json()["worst"]["epsilon"]["0.001"] < 0.5 * max(
        full["epsilon"].values()
    )


def test_releases_of_different_noise_add_up_and_have_no_bound_of_the_papers():
    stated = statement(group(release(20.0, 100), release(10.0, 50, 0))).as_json()["agents"][0]
    mu = math.sqrt(100 / 400 + 50 / 100)
    assert stated["epsilon"]["0.001"] == pytest.approx(exact_epsilon(mu, 1e-3), rel=1e-12)
    assert stated["epsilon_paper"] is None


def test_the_worst_person_may_be_at_another_agent_than_the_worst_row():
    much, little = group(release(10.0), a=5), group(release(20.0), k=4, b=5)
    stated = statement(much, little).as_json()
    first, second = stated["agents"]
    assert stated["worst"]["epsilon"] == first["epsilon"]
    assert stated["worst"]["epsilon_of_person"] == second["epsilon_of_person"]
    assert second["epsilon_of_person"] > first["epsilon"]["0.001"]
    assert statement(group(release(5.0), a=5), little).as_json()["worst"]["epsilon_of_person"] == pytest.approx(
        exact_epsilon(2.0, 1e-3)
    )


def test_who_released_nothing_gave_away_nothing():
    worst = statement(group(release(20.0, 0, 0))).as_json()["worst"]
    assert {*worst["epsilon"].values(), *worst["epsilon_of_rows"].values(), worst["epsilon_paper"]} == {0.0}


def test_bytes_are_canonical():
    raw = statement(group(release(), zürich=4, aachen=5)).as_bytes()
    assert raw == statement(group(release(), aachen=5, zürich=4)).as_bytes()
    document = json.loads(raw)
    assert raw == (json.dumps(document, sort_keys=True, indent=2, ensure_ascii=False) + "\n").encode()
    assert "zürich" in raw.decode()
    assert document == statement(group(release(), zürich=4, aachen=5)).as_json()
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical({"x": math.nan})


def test_a_change_of_words_is_a_change_of_format():
    """Files must verify for years: whoever changes a sentence has to give the format a new number."""
    words = []
    for each in (statement().as_json(), simulated(report(Release(5.0))).as_json()):
        words += [each[name] for name in ("format", "adjacency", "sampler", "guaranteed", "not_guaranteed")]
        words += [each["study"]["hash_is"]]
    assert sha256(canonical(words)).hexdigest()[:16] == "bf48bf139e14f344"


@pytest.mark.parametrize("n_agents", [1, 2000])
def test_round_trip(tmp_path, n_agents):
    groups = group(release(), **{f"agent {i}": 4 + i for i in range(n_agents)}), group(release(7.5), k=2, b=3)
    path = tmp_path / "statement.json"
    path.write_bytes(statement(*groups).as_bytes())
    assert read_statement(path).statement == statement(*groups)
    assert path.stat().st_size < 4000 + 40 * n_agents


def test_of_a_simulated_run():
    stated = simulated(report(Release(5.0), Release(5.0), Release(6.0, count=2)))
    assert [dict(each.n_rows) for each in stated.groups] == [{"1": 10, "2": 11}, {"3": 12}]
    assert [each.releases[0] for each in stated.groups] == [release(5.0, 7, 7), release(6.0, 14, 14)]
    assert stated.sampler == SIMULATED
    assert "protects nobody" in stated.as_json()["sampler"]["words"]
    assert stated.as_json()["guaranteed"].startswith("Nothing")


def test_agents_of_the_same_noise_are_stated_with_their_own_numbers_of_releases():
    """Who took part more often gave away more, though its z is the same."""
    counts = np.array([2, 7, 2, 0]), np.array([10, 10, 10, 10])
    whole = constant_report([Release(5.0)] * 4, *counts, 1e-5, "dp_admm")
    stated = simulated(whole)
    numbers = {name: each.releases[0].charged for each in stated.groups for name in each.n_rows}
    assert numbers == {"1": 2, "2": 7, "3": 2, "4": 0}
    assert [len(each.n_rows) for each in stated.groups] == [2, 1, 1]
    assert stated.as_json()["worst"]["epsilon"]["1e-05"] == pytest.approx(whole.epsilon)


@pytest.mark.parametrize("ended", [True, False])
def test_a_run_that_its_result_ended_is_charged_in_full(ended):
    whole = report(Release(5.0), ended=ended)
    assert simulated(whole).groups[0].releases[0] == release(5.0, 10 if ended else 7, 7)
    assert simulated(whole).as_json()["worst"]["epsilon"]["1e-05"] == whole.epsilon


def test_only_gaussian_noise_can_be_stated():
    for kind, words in [
        (PureRelease(1.0), "PureRelease"),
        (SampledRelease(1.0, 0.1), "SampledRelease"),
        (Release(0.0), "without noise"),
    ]:
        with (
            case(kind, words),
            pytest.raises(StudyError, match=f"agent 2 has releases .*{words}.*only Gaussian noise"),
        ):
            simulated(report(Release(5.0), kind))


def test_of_an_account_that_a_guard_opened(tmp_path):
    with guarded(tmp_path) as guard:
        guard.enrol(STUDY)
        for round in (1, 2):
            guard.answer(STUDY.hash, round, consensus(round))
    account = read_ledger(tmp_path).accounts[STUDY.hash]
    stated = of_account(STUDY.hash, account, site="here", version="0.1.0")
    assert stated.groups == (group(release(Z, 12, 2), here=8),)
    assert (stated.name, stated.study_hash, stated.sampler) == (STUDY.name, STUDY.hash, EXACT)
    worst = stated.as_json()["worst"]["epsilon"]["1e-05"]
    assert worst == pytest.approx(exact_epsilon(math.sqrt(account.reservation.mu_squared), 1e-5), rel=1e-9)
    raw = stated.as_bytes().decode()
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


def test_of_an_account_with_several_rows_per_person():
    stated = of_account("ab" * 8, account(), site="here", version="0.1.0")
    assert stated.as_json()["worst"]["epsilon_of_person"] == pytest.approx(exact_epsilon(0.4, 1e-5), rel=1e-9)


def test_an_account_that_reserved_something_else():
    with pytest.raises(StudyError, match="another Σμ²"):
        of_account("ab" * 8, account(0.04), site="here", version="0.1.0")


def test_an_account_that_lacks_something():
    for name in ABOUT:
        with case(name):
            whole = account()
            lacking = replace(whole, about={key: value for key, value in whole.about.items() if key != name})
            with pytest.raises(StudyError, match=f"not enrolled by a guard.*{name}"):
                of_account("ab" * 8, lacking, site="here", version="0.1.0")


def test_an_account_with_odd_values_is_refused():
    for make in [
        lambda: account(plan=[{**ABOUT["plan"][0], "noise_multiplier": "10"}]),
        lambda: account(n_rows=1),
        lambda: account(plan=[{**ABOUT["plan"][0], "rounds": 4.0}]),
        lambda: account(delta=None),
        lambda: account(name="\x1b[2J"),
    ]:
        with case(make), pytest.raises(StudyError, match="must be"):
            of_account("ab" * 8, make(), site="here", version="0.1.0")


def test_what_cannot_be_stated():
    for make, words in [
        (lambda: release(0.0), "noise_multiplier must be a number from 0.001 to 1e"),
        (lambda: release(math.nan), "noise_multiplier must be"),
        (lambda: release(20.0, 10**400), "charged must be .* not a huge number"),
        (lambda: release(20.0, True), "charged must be a whole number"),
        (lambda: release(20.0, 5, 6), "released must be a whole number from 0 to 5, not 6"),
        (lambda: group(k=401), "rows_per_person must be a whole number from 1 to 400, not 401"),
        (lambda: group(release(0.001, 10, 0)), "no protection to state"),
        (lambda: AgentGroup({}, 1, (release(),)), "at least one agent"),
        (lambda: AgentGroup({"a": 1}, 1, ()), "1 to 8 releases"),
        (lambda: group(**{"a\nb": 3}), "printable"),
        (lambda: statement(delta=0.6), "delta must be"),
        (lambda: statement(group(a=3), group(a=3)), "same name"),
        (lambda: replace(statement(), groups=()), "a statement has 1 to"),
        (lambda: replace(statement(), study_hash="xyz"), "hash must be"),
        (lambda: replace(statement(), sampler="best"), "sampler must be one of"),
    ]:
        with case(make, words), pytest.raises(StudyError, match=words):
            make()
