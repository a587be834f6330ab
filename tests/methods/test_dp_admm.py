"""DP-ADMM: its releases, convergence without noise, and both convergence bounds."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from cases import LOSS_CASES, REGULARIZER_CASES, SMOOTH_LOSS_CASES
from cohorts import SIZES, cohort
from looping import case

from dpadmm.accounting.gaussian import Release
from dpadmm.engine.loop import Averages, Outcome, RandomParticipation, train
from dpadmm.engine.minimizer import minimizer
from dpadmm.engine.noise import SimulatedNoise
from dpadmm.errors import StudyError
from dpadmm.losses import Hinge, Logistic, Loss, Softmax
from dpadmm.matrices.arrays import Floats
from dpadmm.methods import DpAdmm, Round
from dpadmm.methods import theory as bounds
from dpadmm.methods.theory import Constant, constants_of, theorem_schedule
from dpadmm.queries.problem import Problem, Rows, make_rows
from dpadmm.regularizers import L1, L2, ElasticNet, NoRegularizer

QUIET = np.zeros(len(SIZES))


def run(
    problem: Problem, rows: Rows, *, rounds: int, rho: float, radius: float, z: Floats = QUIET, seed: int = 0,
    **options: object,
) -> Outcome:  # fmt: skip
    shape = (rows.n_features, problem.loss.n_outputs)
    constants = constants_of(problem, n_features=shape[0], n_rows=rows.n_rows, noise_multiplier=z, weight_radius=radius)
    noise = SimulatedNoise(seed, rows.n_agents, shape)
    method = DpAdmm(rho, step_sizes=theorem_schedule(constants), noise_multiplier=constants.noise_multiplier)
    return train(method, problem, rows, n_rounds=rounds, noise=noise, **options)  # type: ignore[arg-type]


# --- what is released --------------------------------------------------------------------------------------


def released_noise(loss: Loss, *, z: float, m: int, rho: float, eta: float, n: int = 2000, d: int = 100) -> Floats:
    """Return the noise on the gradient, recovered from the first released w̃ of n agents without data."""
    p = loss.n_outputs
    problem = Problem(loss, NoRegularizer(), 0.0)
    rows = make_rows(np.zeros((n * m, d)), np.zeros(n * m), offsets=np.arange(0, n * m + 1, m))
    method = DpAdmm(rho, step_sizes=Constant(eta, n), noise_multiplier=np.full(n, z))
    state, _ = method.step(
        method.init(problem, rows),
        Round(
            number=1,
            problem=problem,
            rows=rows,
            consensus=np.zeros((d, p)),
            noise=SimulatedNoise(1, n, (d, p)),
        ),
    )
    return -state.released * (rho + 1.0 / eta)


def test_noise_has_standard_deviation_z_times_2_c1_over_m() -> None:
    for (z, m), loss in product([(1.0, 2), (7.5, 3)], [LOSS_CASES[0], LOSS_CASES[2], LOSS_CASES[-1]]):
        with case(z, m, loss):
            noise = released_noise(loss, z=z, m=m, rho=0.3, eta=0.7)
            assert noise.var() == pytest.approx((z * 2.0 * loss.lipschitz / m) ** 2, rel=0.01)
            assert abs(noise.mean()) < 5.0 * noise.std() / np.sqrt(noise.size)


def test_noise_on_the_gradient_does_not_depend_on_rho_or_eta() -> None:
    usual = released_noise(Logistic(), z=2.0, m=2, rho=0.1, eta=1.0, n=20)
    for rho, eta in ((1e-4, 1.0), (1e4, 1.0), (0.1, 1e-5), (0.1, 1e5)):
        other = released_noise(Logistic(), z=2.0, m=2, rho=rho, eta=eta, n=20)
        np.testing.assert_allclose(other, usual, rtol=1e-9)


def test_noise_differs_between_rounds_and_agents_have_their_own_z() -> None:
    loss = Logistic()
    rows, problem = cohort(loss), Problem(loss, NoRegularizer(), 0.0)
    z = np.array([0.0, 1.0, 2.0, 3.0])
    eta, rho = 0.5, 0.2
    quiet, loud = (DpAdmm(rho, step_sizes=Constant(eta, 4), noise_multiplier=levels) for levels in (QUIET, z))
    noise, found = SimulatedNoise(3, 4, (5, 1)), []
    state = quiet.init(problem, rows)
    for k in (1, 2):
        now = Round(number=k, problem=problem, rows=rows, consensus=np.zeros((5, 1)), noise=noise)
        clean, _ = quiet.step(state, now)
        noisy, _ = loud.step(state, now)
        found.append(-(noisy.released - clean.released) * (rho + 1.0 / eta))
    numbers = SimulatedNoise(3, 4, (5, 1))
    for k in (1, 2):
        expected = numbers.draw(k) * (z * 2.0 / np.array(SIZES))[:, None, None]
        np.testing.assert_allclose(found[k - 1], expected, atol=1e-12)


def test_state_of_an_absent_agent_is_kept() -> None:
    loss = Logistic()
    rows, problem = cohort(loss), Problem(loss, L2(), 0.1)
    method, noise = DpAdmm(0.2, step_sizes=Constant(0.5, 4), noise_multiplier=np.ones(4)), SimulatedNoise(3, 4, (5, 1))
    everyone, _ = method.step(
        method.init(problem, rows),
        Round(number=1, problem=problem, rows=rows, consensus=np.zeros((5, 1)), noise=noise),
    )
    before = everyone.released.copy(), everyone.dual.copy()
    after, _ = method.step(
        everyone,
        Round(
            number=2,
            problem=problem,
            rows=rows,
            consensus=np.ones((5, 1)),
            noise=noise,
            active=np.array([1, 3]),
        ),
    )
    for absent in (0, 2):
        np.testing.assert_array_equal(after.released[absent], before[0][absent])
        np.testing.assert_array_equal(after.dual[absent], before[1][absent])
    assert (after.released[[1, 3]] != before[0][[1, 3]]).all()
    np.testing.assert_array_equal(everyone.released, before[0])  # the state before is not overwritten


def test_releases_say_what_is_spent() -> None:
    method = DpAdmm(0.2, step_sizes=Constant(0.5, 2), noise_multiplier=np.array([4.0, 0.0]))
    assert method.plan(0, 1).at(1) == Release(4.0)
    assert method.plan(1, 1).at(1) == Release(0.0)


def test_invalid_rho_is_named() -> None:
    for rho in [0.0, -1.0, np.inf, np.nan]:
        with case(rho), pytest.raises(StudyError, match="rho"):
            DpAdmm(rho=rho)


# --- without noise it reaches the optimum ------------------------------------------------------------------


def relative_gap(problem: Problem, rows: Rows, weights: Floats, best: Floats) -> float:
    floor = problem.objective(rows, best)
    return (problem.objective(rows, weights) - floor) / floor


def test_centralised_optimum_is_reached() -> None:
    """Every loss with one regularizer, and every regularizer with a loss of one and of several outputs."""
    every = [NoRegularizer(), L1(), ElasticNet(0.5)]
    for loss, regularizer in [
        *product(SMOOTH_LOSS_CASES, [L2()]),
        *product([Logistic(), Softmax(n_outputs=3)], every),
    ]:
        with case(loss, regularizer):
            rows, problem = cohort(loss), Problem(loss, regularizer, 0.01)
            best = minimizer(problem, rows)
            size = max(1.0, float(np.linalg.norm(best)))
            outcome = run(problem, rows, rounds=1000, rho=0.1, radius=2.0 * size * max(1.0, loss.lipschitz))
            for average in ("last", "tail"):
                assert abs(relative_gap(problem, rows, outcome.weights(average), best)) < 1e-3
            spread = np.linalg.norm(outcome.released - outcome.consensus, axis=(1, 2)).max()
            assert spread < 2e-3 * size  # local models agree


def test_hinge_loss_approaches_the_optimum() -> None:
    for regularizer in REGULARIZER_CASES:
        with case(regularizer):
            rows, problem = cohort(Hinge()), Problem(Hinge(), regularizer, 0.01)
            best = minimizer(problem, rows)
            radius = float(np.linalg.norm(best))
            gaps = [
                relative_gap(problem, rows, run(problem, rows, rounds=t, rho=0.3, radius=radius).weights("all"), best)
                for t in (10, 100, 1000)
            ]
            assert gaps[0] > 3.0 * gaps[1] > 9.0 * gaps[2]
            assert abs(gaps[2]) < 5e-3


def test_unequal_agents_have_equal_weight() -> None:
    """With 2 and 300 rows, the optimum is that of the mean over agents, not over rows."""
    loss = Logistic()
    rows, problem = cohort(loss, sizes=(2, 300, 10)), Problem(loss, L2(), 0.02)
    outcome = run(problem, rows, rounds=3000, rho=0.3, radius=3.0, z=np.zeros(3))
    np.testing.assert_allclose(outcome.consensus, minimizer(problem, rows), atol=1e-3)
    np.testing.assert_allclose(problem.gradient(rows, outcome.consensus), 0.0, atol=1e-4)


@pytest.mark.parametrize("loss", [Logistic(), Softmax(n_outputs=3)], ids=lambda loss: loss.name)
def test_optimum_is_reached_with_half_of_the_agents_per_round(loss: Loss) -> None:
    rows, problem = cohort(loss), Problem(loss, L2(), 0.01)
    best = minimizer(problem, rows)
    outcome = run(problem, rows, rounds=1500, rho=0.3, radius=3.0, participation=RandomParticipation(0.5, 4, seed=1))
    assert relative_gap(problem, rows, outcome.consensus, best) < 1e-2
    assert (np.abs(outcome.n_attended - 750) < 120).all()


# --- the theorems ------------------------------------------------------------------------------------------


def test_measured_values_are_below_the_bounds() -> None:
    """``E Σ_i [f_i(w̄_i) − f_i(w*) + β‖w̄_i − w̄‖]`` with β = ρ, over a few seeds."""
    for problem, rounds, z in product(
        [Problem(Logistic(), L2(), 0.01), Problem(Hinge(), L2(), 0.01), Problem(Logistic(), L1(), 0.01)],
        [1, 10, 100, 400],
        [0.0, 2.0, 10.0],
    ):
        with case(problem, rounds, z):
            rows, rho = cohort(problem.loss), 0.3
            best = minimizer(problem, rows)
            radius, multiplier = float(np.linalg.norm(best)), np.full(4, z)
            constants = constants_of(
                problem, n_features=5, n_rows=rows.n_rows, noise_multiplier=multiplier, weight_radius=radius
            )
            bound = (bounds.smooth_bound if problem.smooth else bounds.nonsmooth_bound)(
                constants, n_rounds=rounds, rho=rho, beta=rho
            )
            floor = problem.objectives(rows, np.broadcast_to(best, (4, *best.shape))).sum()
            measured = []
            for seed in range(3 if z else 1):  # without noise all are the same
                averages = Averages(with_released=True)
                run(
                    problem,
                    rows,
                    rounds=rounds,
                    rho=rho,
                    radius=radius,
                    z=multiplier,
                    seed=seed,
                    averages=averages,
                )
                local = averages.released if problem.smooth else averages.released_before
                spread = np.linalg.norm(local - averages.consensus, axis=(1, 2)).sum()
                measured.append(problem.objectives(rows, local).sum() - floor + rho * spread)
            assert np.mean(measured) <= bound
            assert np.isfinite(bound)
