"""Output and objective perturbation at single agents: definition, noise and average."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from cohorts import SIZES, cohort
from looping import case
from scipy import stats

from dpadmm import simulate
from dpadmm.accounting.events import ObjectiveRelease, PureRelease, Release
from dpadmm.baselines import ObjectivePerturbation, OutputPerturbation
from dpadmm.baselines.calibration import ObjectivePlan
from dpadmm.baselines.objective_noise import PURE_ROUNDING, ObjectiveNoise
from dpadmm.engine.loop import Outcome, train
from dpadmm.engine.minimizer import minimizer
from dpadmm.engine.noise import SimulatedNoise
from dpadmm.errors import StudyError
from dpadmm.losses import Logistic
from dpadmm.matrices.arrays import Floats
from dpadmm.methods import Method
from dpadmm.queries.problem import Problem, Rows, make_rows
from dpadmm.regularizers import L2

N, D, SHARE = len(SIZES), 5, 0.05
PROBLEM = Problem(Logistic(), L2(), SHARE)
TIGHT = 1e-9


def run(method: Method[Any], rows: Rows) -> Outcome:
    noise = SimulatedNoise(3, rows.n_agents, (rows.n_features, 1))
    return train(method, PROBLEM, rows, n_rounds=1, noise=noise)


def planned(z: float, ridge: float, n: int = N, m: float = 20.0) -> ObjectiveNoise:
    release = ObjectiveRelease(z, 0.250001 / (m * (SHARE + ridge)), 20.0 * z)
    return ObjectiveNoise((ObjectivePlan(release, z * 2.0 / m, ridge),) * n)


def empty_rows(n: int, m: int, d: int) -> Rows:
    return make_rows(np.zeros((n * m, d)), np.ones(n * m), offsets=np.arange(0, n * m + 1, m))


def test_output_perturbation_is_the_optimum_of_each_agent_plus_noise() -> None:
    rows, z = cohort(Logistic()), np.array([1.0, 2.0, 0.5, 4.0])
    outcome = run(OutputPerturbation(noise_multiplier=z, solver_tolerance=TIGHT), rows)
    numbers = SimulatedNoise(3, N, (D, 1)).draw(1)
    for i in range(N):
        expected = minimizer(PROBLEM, rows.agent(i)) + z[i] * 2.0 / (SIZES[i] * SHARE) * numbers[i]
        np.testing.assert_allclose(outcome.released[i], expected, atol=1e-4)
    np.testing.assert_allclose(outcome.consensus, outcome.released.mean(axis=0))


def test_objective_perturbation_is_stationary_with_its_noise() -> None:
    rows = cohort(Logistic())
    outcome = run(ObjectivePerturbation(perturbation=planned(1.5, 0.3), solver_tolerance=1e-12), rows)
    xi = 1.5 * 2.0 / 20.0 * SimulatedNoise(3, N, (D, 1)).draw(1)
    for i in range(N):
        w = outcome.released[i]
        slope = PROBLEM.gradient(rows.agent(i), w) + 0.3 * w + xi[i]
        np.testing.assert_allclose(slope, 0.0, atol=1e-8)


@pytest.mark.parametrize("pure", [False, True])
def test_output_noise_covers_sensitivity_and_solver_tolerance(pure: bool) -> None:
    n, m, z, d, tolerance = 1500, 4, 2.0, 9, 0.5
    noise = run(
        OutputPerturbation("pure" if pure else "gaussian", tolerance, noise_multiplier=np.full(n, z)),
        empty_rows(n, m, d),
    ).released
    scale = z * (2.0 / m) * (1.0 + 2.0 * tolerance) / SHARE
    lengths = np.linalg.norm(noise, axis=(1, 2)) / scale
    law: Any = stats.gamma(d) if pure else stats.chi(d)
    assert stats.kstest(lengths, law.cdf).pvalue > 0.01


def test_objective_noise_covers_the_solver_tolerance() -> None:
    n, m, d, share = 1500, 4, 50, 0.02
    noise = run(
        ObjectivePerturbation(solver_tolerance=share, perturbation=planned(2.0, 0.1, n, m)), empty_rows(n, m, d)
    ).released
    q = SHARE + 0.1
    inside, covering = 2.0 * (2.0 / m) / q, 40.0 * 2.0 * share * (2.0 / m) / q
    assert noise.std() == pytest.approx(np.hypot(inside, covering), rel=0.01)


def test_releases_say_what_is_spent() -> None:
    z = np.array([4.0])
    assert OutputPerturbation(noise_multiplier=z).plan(0, 1).at(1) == Release(4.0)
    assert OutputPerturbation(noise_multiplier=z, mechanism="pure").plan(0, 1).at(1) == PureRelease(0.25)
    assert isinstance(ObjectivePerturbation(perturbation=planned(2.0, 0.0)).plan(0, 1).at(1), ObjectiveRelease)


def totals(**options: Any) -> tuple[float, Floats]:
    result = simulate("synthetic", n_agents=4, seed=1, delta=1e-4, n_rounds=30, alpha=0.01, **options)
    return result.privacy.epsilon, result.outcome.n_attended


def test_total_is_respected_and_nearly_used() -> None:
    for method, mechanism in product(
        ["output_perturbation", "objective_perturbation", "admm_dvp"], ["gaussian", "pure"]
    ):
        with case(method, mechanism):
            total, releases = totals(method={"name": method, "mechanism": mechanism}, epsilon=0.8)
            assert 0.99 * 0.8 < total <= 0.8
            assert releases.tolist() == [30 if method == "admm_dvp" else 1] * 4


@pytest.mark.parametrize("method", ["output_perturbation", "objective_perturbation"])
def test_options_without_effect_are_refused(method: str) -> None:
    with pytest.raises(StudyError, match=f"{method} has one round"):
        totals(method=method, epsilon=1.0, participation=0.5)
    with pytest.raises(StudyError, match="pure mechanism has no noise_multiplier"):
        totals(method={"name": method, "mechanism": "pure"}, noise_multiplier=1.0)


def test_pure_form_includes_the_tolerance_noise_in_its_epsilon() -> None:
    """Objective: 98% of ε (less the curvature's part). Tolerance: 2%."""
    n, m, d, epsilon, share = 1500, 4, 9, 0.5, 0.05
    inside = epsilon * (1.0 - PURE_ROUNDING)
    plan = ObjectivePlan(PureRelease(epsilon), (2.0 / m) / inside, 0.0)
    noise = SimulatedNoise(3, n, (d, 1))
    perturbation = ObjectiveNoise((plan,) * n)
    covered = perturbation.cover(np.zeros((n, d, 1)), np.full(n, share), noise, 1)
    scale = 2.0 * share / (PURE_ROUNDING * epsilon)
    assert stats.kstest(np.linalg.norm(covered, axis=(1, 2)) / scale, stats.gamma(d).cdf).pvalue > 0.01
