"""What a run gave away, per agent and for the worst agent, as numbers and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from looping import case
from reports import constant_report

from dpadmm.accounting import Release, exact_epsilon, paper_epsilon, paper_noise_multiplier
from dpadmm.accounting.composition import total_epsilon
from dpadmm.accounting.events import ObjectiveRelease, PureRelease, SampledRelease
from dpadmm.accounting.report import PrivacyReport


def report(z: list[float], done: list[int], planned: list[int] | None = None, **changes: object) -> PrivacyReport:
    values = {"delta": 1e-3, "method": "dp_admm"} | changes
    return constant_report([Release(v) for v in z], np.array(done), np.array(planned or done), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(("round_epsilon", "paper", "exact"), [(0.05, 0.5009, 0.2772), (0.1, 1.0193, 0.6339)])
def test_the_papers_figures(round_epsilon: float, paper: float, exact: float) -> None:
    z = float(paper_noise_multiplier(round_epsilon, 1e-3))
    made = report([z] * 3, [100] * 3)
    assert made.epsilon == pytest.approx(exact, abs=5e-5)
    assert made.planned_epsilon == made.epsilon
    assert made.paper_epsilon == pytest.approx(paper, abs=5e-5)
    assert made.round_epsilon == pytest.approx(round_epsilon, rel=1e-12)


def test_every_agent_is_charged_for_its_own_releases() -> None:
    made = report([10.0, 10.0, 20.0], [100, 25, 100], [100, 100, 100])
    np.testing.assert_allclose(made.mu, [1.0, 0.5, 0.5])
    np.testing.assert_allclose(made.epsilon_by_agent, exact_epsilon(np.array([1.0, 0.5, 0.5]), 1e-3))
    assert made.epsilon == pytest.approx(exact_epsilon(1.0, 1e-3))
    assert made.paper_epsilon == pytest.approx(paper_epsilon(10.0, 100, 1e-3))


def test_the_plan_counts_rounds_not_taken() -> None:
    made = report([10.0, 10.0], [4, 9], [100, 100])
    assert made.epsilon == pytest.approx(exact_epsilon(0.3, 1e-3))
    assert made.planned_epsilon == pytest.approx(exact_epsilon(1.0, 1e-3))


def test_who_said_nothing_gave_nothing_away() -> None:
    made = report([10.0, 0.0], [0, 0])
    assert made.private
    assert made.epsilon == made.paper_epsilon == 0.0
    assert made.as_json()["epsilon"] == 0.0


def test_without_noise_there_is_no_privacy() -> None:
    for z, done in [([0.0, 0.0], [5, 5]), ([0.0, 3.0], [5, 5]), ([0.0, 3.0], [5, 0])]:
        with case(z, done):
            made = report(z, done)
            assert not made.private
            assert made.epsilon == np.inf
            said = made.as_json()
            assert (said["private"], said["epsilon"], said["paper_epsilon"]) == (False, None, None)
            assert said["guarantee"].startswith("none")


def test_json_is_plain_and_without_nan() -> None:
    for done, z in product([[0, 0], [0, 7], [7, 7]], [[3.0, 4.0], [0.0, 4.0], [0.0, 0.0]]):
        with case(done, z):
            made = report(z, done, [7, 7], delta=np.float64(1e-5))
            said = json.loads(json.dumps(made.as_json(), allow_nan=False))
            assert said["n_releases"] == done
            assert said["noise_multiplier"] == z
            assert len(said["epsilon_by_agent"]) == 2
            assert said["delta"] == 1e-5
            if any(z):
                assert "not a protection" in said["noise"]
            if made.private:
                assert "one row" in said["guarantee"]


OTHER_EVENTS = [
    (SampledRelease(5.0, 0.2), "privacy loss distribution (PLD)"),
    (ObjectiveRelease(20.0, 0.01), "Rényi bound of objective perturbation"),
    (PureRelease(0.05), "optimal composition of pure ε"),
]


def test_any_release_is_accounted_by_its_own_accountant() -> None:
    for event, accountant in OTHER_EVENTS:
        with case(event, accountant):
            made = constant_report([event] * 3, np.array([10, 0, 4]), np.array([20, 20, 20]), 1e-3, "some_method")
            expected = [total_epsilon(event, count, 1e-3) for count in (10, 0, 4)]
            np.testing.assert_array_equal(made.epsilon_by_agent, expected)
            assert made.epsilon == expected[0]
            assert made.planned_epsilon == total_epsilon(event, 20, 1e-3)
            assert made.accountant == accountant
            assert made.private
            assert np.isnan(made.paper_epsilon)  # a bound for plain Gaussian releases
            assert np.isnan(made.mu).all()
            said = json.loads(json.dumps(made.as_json(), allow_nan=False))
            assert (said["accountant"], said["paper_epsilon"]) == (accountant, None)
            pure = isinstance(event, PureRelease)
            assert said["round_epsilon"] == (0.05 if pure else None)
            assert said["noise_multiplier"] == [None if pure else event.noise_multiplier] * 3  # type: ignore[union-attr]
            assert "not a protection" in said["noise"]
            stopped = replace(made, ended_by_result=True)
            assert stopped.epsilon == made.planned_epsilon


def test_agents_with_different_releases() -> None:
    made = constant_report(
        [Release(10.0), PureRelease(0.01), Release(0.0)],
        np.array([4, 3, 0]),
        np.array([4, 3, 1]),
        1e-3,
        "mixed",
    )
    pure = total_epsilon(PureRelease(0.01), 3, 1e-3)
    np.testing.assert_array_equal(made.epsilon_by_agent, [exact_epsilon(0.2, 1e-3), pure, 0.0])
    assert made.accountant == "exact Gaussian composition, optimal composition of pure ε"
    assert np.isnan(made.paper_epsilon)
    assert np.isnan(made.round_epsilon)


def test_without_noise_on_a_sample_there_is_no_privacy() -> None:
    made = constant_report([SampledRelease(0.0, 0.5)], np.array([1]), np.array([1]), 1e-3, "dp_sgd")
    assert not made.private
    assert made.as_json()["guarantee"].startswith("none")
    assert made.as_json()["noise"] == "none"
