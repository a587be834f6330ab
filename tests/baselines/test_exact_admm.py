"""ADMM with exact solves: Algorithms 2 and 3 and dual perturbation, definition and accounting."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from cases import LOSS_CASES, prove
from cohorts import SIZES, cohort
from hypothesis import given
from hypothesis import strategies as st
from looping import case
from scipy import stats

from dpadmm import kernels
from dpadmm.accounting.events import ObjectiveRelease, PureRelease, Release
from dpadmm.baselines import Admm, AdmmDvp, AdmmPvp
from dpadmm.baselines.calibration import ObjectivePlan
from dpadmm.baselines.objective_noise import PURE_ROUNDING, ROUNDING, ObjectiveNoise
from dpadmm.engine.loop import Outcome, RandomParticipation, train
from dpadmm.engine.minimizer import minimizer
from dpadmm.engine.noise import SimulatedNoise, spherical
from dpadmm.errors import StudyError
from dpadmm.losses import Huber, Logistic, Loss, SmoothedHinge, Softmax, Squared
from dpadmm.matrices.arrays import Floats
from dpadmm.methods import Method, Round
from dpadmm.queries.problem import Problem, Rows, make_rows
from dpadmm.regularizers import L1, L2, ElasticNet, NoRegularizer
from dpadmm.studies.settings import Settings

N, D, RHO = len(SIZES), 5, 0.2
TIGHT = 1e-8
M = np.array(SIZES, dtype=float)


def run(method: Method[Any], problem: Problem, rows: Rows, rounds: int, **options: Any) -> Outcome:
    noise = SimulatedNoise(3, rows.n_agents, (rows.n_features, problem.loss.n_outputs))
    return train(method, problem, rows, n_rounds=rounds, noise=noise, **options)


def exact_solve(problem: Problem, rows: Rows, i: int, linear: Floats, pull: float) -> Floats:
    """Return ``argmin f_i(w) + ⟨linear, w⟩ + (pull/2)‖w‖²`` by gradient descent to machine precision."""
    alone, w = rows.agent(i), np.zeros((D, problem.loss.n_outputs))
    step = 1.0 / ((problem.loss.smoothness or 0.0) + problem.alpha + pull)
    for _ in range(150):
        slope = kernels.gradient(alone, w[None], problem.loss, bound=np.inf)[0]
        w = w - step * (slope + problem.alpha * problem.regularizer.gradient(w) + linear + pull * w)
    return w


def reference_run(problem: Problem, rows: Rows, rounds: int, noise: Floats, inside: bool) -> Floats:
    """Run the paper's equations line by line: w_i, w̃_i, w, γ_i; noise on the model or inside the problem."""
    shape = (D, problem.loss.n_outputs)
    consensus, dual = np.zeros(shape), np.zeros((N, *shape))
    for k in range(rounds):
        models = np.zeros((N, *shape))
        for i in range(N):
            linear = -dual[i] - RHO * consensus + (noise[k, i] if inside else 0.0)
            models[i] = exact_solve(problem, rows, i, linear, RHO) + (0.0 if inside else noise[k, i])
        consensus = models.mean(axis=0) - dual.mean(axis=0) / RHO
        dual = dual - RHO * (models - consensus)
    return consensus


@pytest.mark.parametrize("loss", [Logistic(), Softmax(n_outputs=3)], ids=lambda loss: loss.name)
def test_admm_is_algorithm_2(loss: Loss) -> None:
    rows, problem = cohort(loss), Problem(loss, L2(), 0.02)
    outcome = run(Admm(RHO, solver_tolerance=TIGHT), problem, rows, 4)
    written = reference_run(problem, rows, 4, np.zeros((4, N, D, loss.n_outputs)), inside=False)
    np.testing.assert_allclose(outcome.consensus, written, atol=1e-8)


def test_pvp_is_algorithm_3() -> None:
    rows, problem, z = cohort(Logistic()), Problem(Logistic(), L2(), 0.02), np.array([1.0, 2.0, 3.0, 4.0])
    outcome = run(AdmmPvp(RHO, noise_multiplier=z, solver_tolerance=TIGHT), problem, rows, 4)
    numbers = np.stack([SimulatedNoise(3, N, (D, 1)).draw(k) for k in range(1, 5)])
    sigma = z * 2.0 / ((0.02 + RHO) * M)  # the paper's σ_i, with z = √(2 ln(1.25/δ))/ε
    written = reference_run(problem, rows, 4, numbers * sigma[:, None, None], inside=False)
    np.testing.assert_allclose(outcome.consensus, written, atol=1e-6)


def objective_noise(z: Floats, sizes: Floats = M) -> ObjectiveNoise:
    return ObjectiveNoise(
        tuple(
            ObjectivePlan(ObjectiveRelease(each, 0.250001 / (m * RHO), ROUNDING * each), each * 2.0 / m, 0.0)
            for each, m in zip(z.tolist(), sizes.tolist(), strict=True)
        )
    )


def test_dvp_noise_is_part_of_the_problem() -> None:
    rows, problem, z = cohort(Logistic()), Problem(Logistic(), L2(), 0.02), np.array([1.0, 2.0, 3.0, 4.0])
    outcome = run(AdmmDvp(RHO, perturbation=objective_noise(z), solver_tolerance=1e-12), problem, rows, 4)
    numbers = np.stack([SimulatedNoise(3, N, (D, 1)).draw(k) for k in range(1, 5)])
    written = reference_run(problem, rows, 4, numbers * (z * 2.0 / M)[:, None, None], inside=True)
    np.testing.assert_allclose(outcome.consensus, written, atol=1e-6)


def test_admm_reaches_the_centralised_optimum() -> None:
    """Every loss with one regularizer, and every regularizer with a loss of one and of several outputs."""
    losses = [Logistic(), Softmax(3), SmoothedHinge(1.0), Squared(2.0), Huber(1.0)]
    pairs = [*product(losses, [L2()]), *product(losses[:2], [NoRegularizer(), L1(), ElasticNet(0.5)])]
    for (loss, regularizer), split in product(pairs, [False, True]):
        with case(loss, regularizer, split):
            rows, problem = cohort(loss), Problem(loss, regularizer, 0.01)
            best = minimizer(problem, rows)
            outcome = run(Admm(RHO, split, solver_tolerance=1e-6), problem, rows, 200)
            floor = problem.objective(rows, best)
            assert abs(problem.objective(rows, outcome.consensus) - floor) < 1e-4 * floor
            assert np.linalg.norm(outcome.released - outcome.consensus, axis=(1, 2)).max() < 1e-2 * np.linalg.norm(best)


def test_split_l1_has_exact_zeros_in_the_global_model() -> None:
    rows, problem = cohort(Logistic()), Problem(Logistic(), L1(), 0.05)
    split, whole = (run(Admm(RHO, form, 1e-6), problem, rows, 300).consensus for form in (True, False))
    best = minimizer(problem, rows)
    assert 0 < np.count_nonzero(split == 0.0) < D
    np.testing.assert_allclose(split, best, atol=1e-4)
    np.testing.assert_allclose(whole, best, atol=1e-4)


def test_optimum_is_reached_with_half_of_the_agents_per_round() -> None:
    rows, problem = cohort(Logistic()), Problem(Logistic(), L2(), 0.01)
    outcome = run(Admm(RHO), problem, rows, 600, participation=RandomParticipation(0.5, N, seed=1))
    np.testing.assert_allclose(outcome.consensus, minimizer(problem, rows), atol=2e-2)


# --- what is released, and what is said of it --------------------------------------------------------------


def pure_noise(epsilon: float, m: float) -> ObjectiveNoise:
    left = epsilon * (1.0 - PURE_ROUNDING) - np.log1p(0.250001 / (m * RHO))
    return ObjectiveNoise((ObjectivePlan(PureRelease(epsilon), 2.0 / m / left, 0.0),))


def first_release(method: Method[Any], n: int, m: int, d: int, seed: int = 1) -> Floats:
    """Return the release of n agents without data in round 1."""
    problem = Problem(Logistic(), NoRegularizer(), 0.0)
    rows = make_rows(np.zeros((n * m, d)), np.ones(n * m), offsets=np.arange(0, n * m + 1, m))
    state, _ = method.step(
        method.init(problem, rows),
        Round(
            number=1,
            problem=problem,
            rows=rows,
            consensus=np.zeros((d, 1)),
            noise=SimulatedNoise(seed, n, (d, 1)),
        ),
    )
    return np.asarray(state.released)


@pytest.mark.parametrize("tolerance", [1e-3, 0.5])
def test_pvp_noise_covers_sensitivity_and_solver_tolerance(tolerance: float) -> None:
    n, m, z = 1000, 3, 2.0
    noise = first_release(AdmmPvp(RHO, tolerance, noise_multiplier=np.full(n, z)), n, m, 50)
    assert noise.std() == pytest.approx(z * (2.0 / m) * (1.0 + 2.0 * tolerance) / RHO, rel=0.01)


def test_dvp_noise_covers_sensitivity_and_solver_tolerance() -> None:
    n, m, z, share = 1000, 3, 2.0, 0.02
    perturbation = objective_noise(np.full(n, z), np.full(n, float(m)))
    noise = first_release(AdmmDvp(RHO, solver_tolerance=share, perturbation=perturbation), n, m, 50)
    inside, covering = z * (2.0 / m) / RHO, ROUNDING * z * 2.0 * share * (2.0 / m) / RHO
    assert noise.std() == pytest.approx(np.hypot(inside, covering), rel=0.01)
    numbers = SimulatedNoise(1, n, (50, 1))
    left = noise + inside * numbers.draw(1)
    assert np.corrcoef(left.ravel(), numbers.draw(1).ravel())[0, 1] == pytest.approx(0.0, abs=0.02)


def test_pure_dvp_noise_has_the_original_distribution() -> None:
    n, m, d, epsilon = 2000, 3, 7, 0.8
    perturbation = ObjectiveNoise(pure_noise(epsilon, m).plans * n)
    released = first_release(AdmmDvp(RHO, solver_tolerance=1e-9, perturbation=perturbation), n, m, d)
    zeta = m * (epsilon * (1.0 - PURE_ROUNDING) - np.log1p(0.250001 / (m * RHO))) / 2.0
    lengths = np.linalg.norm(released, axis=(1, 2)) * RHO
    assert stats.kstest(lengths, stats.gamma(d, scale=1.0 / zeta).cdf).pvalue > 0.01


def test_releases_say_what_is_spent() -> None:
    z = np.array([4.0, 0.0, 1.0, 2.0])
    pvp, dvp = AdmmPvp(RHO, noise_multiplier=z), AdmmDvp(RHO, perturbation=objective_noise(z))
    assert [pvp.plan(i, 1).at(1) for i in (0, 1)] == [Release(4.0), Release(0.0)]
    assert dvp.plan(0, 1).at(1) == ObjectiveRelease(4.0, 0.250001 / (20 * RHO), 80.0)
    assert dvp.plan(1, 1).at(1) == Release(0.0)
    assert Admm(RHO).plan(0, 1).at(1) == Release(0.0)
    assert AdmmDvp(RHO, perturbation=pure_noise(0.5, 20)).plan(0, 1).at(1) == PureRelease(0.5)


SIZE = st.integers(2, 6)


@prove
@given(seed=st.integers(0, 10**6), m=SIZE, share=st.sampled_from([1e-9, 0.1]))
def test_replacing_a_row_changes_a_minimiser_by_at_most_the_sensitivity(seed: int, m: int, share: float) -> None:
    """This includes an early stop of the solver, because PVP's noise is calibrated to its result."""
    rng = np.random.default_rng(seed)
    loss = [Logistic(), SmoothedHinge(0.1), Huber(0.5), Squared(0.5)][seed % 4]
    problem, method = Problem(loss, L2(), 0.05), AdmmPvp(RHO, share, noise_multiplier=np.zeros(1))
    rows = rng.standard_normal((m, 2))
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
    labels = rng.choice([-1.0, 1.0], size=m)
    other, flipped = rows.copy(), labels.copy()
    other[0] = rng.standard_normal(2) * 10.0
    other[0] /= np.linalg.norm(other[0])
    flipped[0] = rng.choice([-1.0, 1.0])
    consensus, found = 3.0 * rng.standard_normal((2, 1)), []
    for a, b in ((rows, labels), (other, flipped)):
        cohort_of_one = make_rows(a, b)
        state, _ = method.step(
            method.init(problem, cohort_of_one),
            Round(
                number=1,
                problem=problem,
                rows=cohort_of_one,
                consensus=consensus,
                noise=SimulatedNoise(1, 1, (2, 1)),
            ),
        )
        found.append(state.released)
    allowed = 2.0 * loss.lipschitz / m * (1.0 + 2.0 * share) / (RHO + 0.05)
    assert np.linalg.norm(found[0] - found[1]) <= allowed * (1.0 + 1e-9)


# --- where a method applies --------------------------------------------------------------------------------


METHODS = {
    "admm": {},
    "admm_pvp": {"epsilon": 1.0},
    "admm_dvp": {"epsilon": 1.0},
    "dp_sgd": {"epsilon": 1.0, "method": {"name": "dp_sgd", "learning_rate": 0.5}},
    "output_perturbation": {"epsilon": 1.0},
    "objective_perturbation": {"epsilon": 1.0},
    "dp_admm": {"epsilon": 1.0},
}
NEEDS_SMOOTH = ("admm_pvp", "admm_dvp", "objective_perturbation")


def test_method_applies_or_is_refused_with_a_reason() -> None:
    losses = {(loss.name, loss.smoothness is None): loss for loss in LOSS_CASES}.values()
    for name, loss, regularizer in product(METHODS, losses, [NoRegularizer(), L2(), L1(), ElasticNet(0.5)]):
        with case(name, loss, regularizer):
            problem, rows = Problem(loss, regularizer, 0.01), cohort(loss)
            settings = Settings(**{"method": name, "n_rounds": 2, "delta": 1e-3, **METHODS[name]})
            kinked = loss.smoothness is None or regularizer.smoothness is None
            refused = (
                (name in NEEDS_SMOOTH and kinked)
                or (name in ("admm_dvp", "objective_perturbation") and loss.n_outputs > 1)
                or (name.endswith("_perturbation") and regularizer.convexity == 0.0)
                or (name in ("admm", "output_perturbation") and loss.smoothness is None)
            )
            planned = np.full(N, settings.planned_rounds)
            if refused:
                with pytest.raises(StudyError, match=rf"{name}.*\buse\b"):
                    run(
                        settings.build(problem, rows, planned),
                        problem,
                        rows,
                        settings.planned_rounds,
                    )
                continue
            method = settings.build(problem, rows, planned)
            outcome = run(method, problem, rows, settings.planned_rounds)
            assert np.isfinite(outcome.consensus).all()
            assert outcome.consensus.any()


@pytest.mark.parametrize("rho", [0.0, -1.0, np.inf, np.nan])
def test_invalid_rho_is_named(rho: float) -> None:
    for method in (Admm, AdmmPvp, AdmmDvp):
        with pytest.raises(StudyError, match=f"{method.name}: rho must be a positive number"):
            method(rho=rho)


def test_dvp_with_a_ridge_solves_the_ridged_problem() -> None:
    """Without noise the minimiser is that of f + (Φ/2)‖w‖²."""
    rows, problem, ridge = cohort(Logistic()), Problem(Logistic(), L2(), 0.02), 0.7
    quiet = ObjectivePlan(ObjectiveRelease(0.0, 0.1), 0.0, ridge)
    state, _ = (method := AdmmDvp(RHO, solver_tolerance=TIGHT, perturbation=ObjectiveNoise((quiet,) * N))).step(
        method.init(problem, rows),
        Round(
            number=1,
            problem=problem,
            rows=rows,
            consensus=np.zeros((D, 1)),
            noise=SimulatedNoise(3, N, (D, 1)),
        ),
    )
    for i in range(N):
        expected = exact_solve(replace(problem), rows, i, np.zeros((D, 1)), RHO + ridge)
        np.testing.assert_allclose(state.released[i], expected, atol=1e-7)


def test_tolerance_noise_has_separate_random_streams() -> None:
    noise = SimulatedNoise(3, 2, (6, 1))
    one, other = spherical(noise, 1), spherical(noise, 1, first_stream=4)
    assert not np.any(one == other)
