"""``pgd``: definition, cost, and behaviour with unequal agents, dropouts and much noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from cases import LOSS_CASES, REGULARIZER_CASES, prove
from cohorts import SIZES, cohort
from hypothesis import given
from hypothesis import strategies as st
from looping import case

from dpadmm import Dataset, simulate
from dpadmm.accounting import exact_epsilon
from dpadmm.accounting.calibration import mu_from_epsilon
from dpadmm.accounting.release_plan import gaussian
from dpadmm.data.datasets.synthetic import synthetic
from dpadmm.engine.loop import tallies, train
from dpadmm.engine.minimizer import minimizer
from dpadmm.engine.noise import CohortQuery, ExactNoise, Noise, SimulatedNoise
from dpadmm.errors import StudyError
from dpadmm.kernels.compiler import numba
from dpadmm.losses import Huber, Logistic, Loss, Softmax, Squared
from dpadmm.losses.base import slopes
from dpadmm.matrices.arrays import Floats
from dpadmm.methods import Pgd, Round, RoundResult
from dpadmm.methods.hyperparameters import HYPERPARAMETERS
from dpadmm.methods.pgd import PublicState
from dpadmm.models.run import Result
from dpadmm.queries.moments import Moments
from dpadmm.queries.preconditioner import MAX_DIRECTION_FEATURES, Preconditioner
from dpadmm.queries.problem import Problem, PublicSizes, Rows, make_rows
from dpadmm.regularizers import L1, L2, ElasticNet, Regularizer
from dpadmm.studies.settings import Settings, Training

N, D, RIDGE = len(SIZES), 5, L2()
MEANT = {"test_rows": 0, "metrics_every": 0}


@dataclass(frozen=True)
class Noiseless(Noise):
    """A noise source that adds no noise."""

    def draw(self, *_: Any, **__: Any) -> Floats:
        raise AssertionError

    def answer(self, asked: CohortQuery) -> Floats:
        return asked.statistic.means(asked.rows, asked.parameters, asked.active)


def made(
    rows: Rows, loss: Loss, n_rounds: int, *, alpha: float = 0.0, regularizer: Regularizer = RIDGE, **budget: Any
) -> Pgd:
    training = Training(method="auto", loss=loss, n_rounds=n_rounds, alpha=alpha, regularizer=regularizer, **budget)
    method = training.build(Problem(loss, regularizer, alpha), rows, np.full(rows.n_agents, n_rounds))
    assert isinstance(method, Pgd)
    return method


# As it is defined


def as_defined(rows: Rows, loss: Loss, mu: float, n_rounds: int) -> Floats:
    """The definition of the method with d × d matrices, for equal agents without noise."""
    features, labels, d, p = rows.features[rows.order], rows.labels, rows.n_features, loss.n_outputs
    t, nu = max(n_rounds - 2, 1), 1.0 / (math.sqrt(rows.n_agents) * rows.n_rows[0] * mu)
    total = Moments(loss, d).means(rows, np.zeros((rows.n_agents, 0))).mean(axis=0)
    first, second, by_label, label_squares = Moments(loss, d).split(total)
    q = 0.0065 / (nu * math.sqrt(d * max(1, p - 1)))
    step = min(4.0 * math.sqrt(64.0 / t), 8.0)
    kernel = np.diag(np.maximum(second - first**2, 0.0)) + np.outer(first, first)
    e, u = np.linalg.eigh(kernel)
    many = p * (p - 1) / 2 if loss.task == "multiclass" else 1.0
    tau = max(150.0 * d * nu**2 * many, 1.3 * nu)
    b = u @ np.diag((e + tau) ** -0.5) @ u.T
    rank = math.sqrt(np.sum(e / (e + tau)))
    along = first / np.linalg.norm(first)
    top = along @ kernel @ along  # nearly the largest eigenvalue
    step *= min(1.0 + tau / top, 2.0)
    if loss.task == "multiclass":
        growth = max(1.0, math.sqrt(2.0 * q))
        clip, step, shrink = 0.7 * math.sqrt(1.0 - 1.0 / p) * growth * rank, step * p / 4.0, min(1.0, 0.9 * growth)
        theta = 1.25 * p * b @ (by_label - by_label.mean(axis=1, keepdims=True))
    elif loss.task == "binary":
        growth = 0.35 * math.sqrt(max(0.7, 0.6 * q))
        clip, shrink, theta = growth * rank, min(1.0, 0.5 + 0.45 * growth), 2.5 * b @ by_label
        step *= np.clip(math.sqrt(2.0 * q), 0.4, 1.0)
    else:
        clip, step, shrink = 0.6 * math.sqrt(label_squares) * math.sqrt(max(q, 0.7)) * rank, step / 4.0, 1.0
        theta = 0.625 * b @ by_label
    turned, x, age = features @ b, theta, 0
    last, kept = np.zeros((d, p)), []
    for k in range(1, t + 1):
        each = turned[:, :, None] * slopes(loss, labels, turned @ theta)[:, None, :]
        lengths = np.linalg.norm(each, axis=(1, 2))
        g = np.mean(each * np.minimum(1.0, clip / np.maximum(lengths, 1e-300))[:, None, None], axis=0)
        if loss.task == "multiclass":
            g = g - g.mean(axis=1, keepdims=True)
        deviation = 2.0 * clip * nu * math.sqrt(t / (0.85 if n_rounds == 2 else 0.8))
        free = d * max(1, p - 1)
        bound = 3.0 * deviation**2 * math.sqrt(free)
        bound += 0.25 * max(np.sum(last**2) - free * deviation**2, 0.0)
        opposed = k > 1 and np.sum(g * last) < -bound
        step = step / 2.0 if opposed else step
        move = theta - step * g - x
        age = 0 if opposed or np.sum(g * move) > 3.0 * deviation * np.linalg.norm(move) else age + 1
        x, last = theta - step * g, g
        theta = x + min(age / (age + 3.0), max(0.0, min(0.9, 1.0 - 4.0 / q))) * move
        kept += [x] if k > t / 2 else []
    theta = shrink * np.mean(kept, axis=0)
    if n_rounds == 2:
        return np.asarray(b @ theta)
    along, size, reach = turned @ theta, np.linalg.norm(theta), max(1.0, math.sqrt(q))
    bound = min(1.0, 2.0 * math.sqrt(label_squares)) if loss.task == "regression" else 1.0
    curvature = 1.0 if loss.task == "regression" else 0.25
    h = along / np.maximum(np.linalg.norm(along, axis=1), reach * size)[:, None]
    one, half = (slopes(loss, labels, share * along) for share in (1.0, 0.5))
    change, change_bound = one - half, min(curvature * size, 2.0 * bound)
    one, change = (
        each / np.maximum(1.0, np.linalg.norm(each, axis=1)[:, None] / limit)
        for each, limit in ((one, bound), (change, change_bound))
    )
    gradient, hessian = (np.mean(np.sum(h * each, axis=1)) for each in (one, 2.0 * change))
    error = 2.0 * nu / math.sqrt(0.05) * math.sqrt(1.25)
    newton, variance = -gradient / hessian, (bound * error) ** 2
    variance = (variance + (newton * 4.0 * change_bound * error) ** 2) / hessian**2
    if hessian <= 2.0 * 4.0 * change_bound * error:
        return np.asarray(b @ theta)
    prior = 0.1**2 if loss.task == "regression" else 0.3**2
    return np.asarray((1.0 + newton * prior / (prior + variance)) * b @ theta)


@pytest.mark.parametrize("loss", [Logistic(), Softmax(n_outputs=3), Squared()])
@pytest.mark.parametrize(("mu", "n_rounds"), [(1.0, 17), (0.5, 5), (100.0, 40), (3.0, 2)])
def test_pgd_equals_its_definition_up_to_a_rotation(loss: Loss, mu: float, n_rounds: int) -> None:
    """The definition uses a matrix, the code two vectors. They differ by a rotation, without effect on the model."""
    rows = cohort(loss, sizes=(400, 400, 400), seed=2)
    method = made(rows, loss, n_rounds, noise_multiplier=math.sqrt(n_rounds) / mu)
    outcome = train(method, method.problem, rows, n_rounds=n_rounds, noise=Noiseless())
    np.testing.assert_allclose(outcome.consensus, as_defined(rows, loss, mu, n_rounds), rtol=1e-6, atol=1e-8)


def test_broadcast_contains_the_whole_state() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(D, 3)) for _ in range(5)]
    shape = Preconditioner(rng.uniform(1, 2, D), rng.normal(size=D))
    state = PublicState(0.5, 2.0, 1.5, 0.4, 0.2, 0.7, 1.2, 0.3, 4.0, 5.0, 0.1, 0.0, 0.3, shape, *arrays)
    again = PublicState.unpacked(state.packed(), (D, 3))
    assert np.array_equal(again.packed(), state.packed())
    assert again.preconditioner.same(state.preconditioner)
    assert np.array_equal(again.weights, state.weights)
    mean, level = 0.7 * state.preconditioner.transposed_times(arrays[3] / 4.0), np.zeros((D, 3))
    level[-1] = 0.3
    np.testing.assert_allclose(state.weights, level + 1.2 * (mean - level))
    state = replace(state, scale=1.0)
    np.testing.assert_allclose(state.weights, mean)
    np.testing.assert_allclose(replace(state, n_averaged=0.0).weights, state.preconditioner.transposed_times(arrays[0]))
    weighted = replace(state, prior_weight=0.5)
    assert np.array_equal(PublicState.unpacked(weighted.packed(), (D, 3)).weights, weighted.weights)
    start, learnt = arrays[4], 0.7 * arrays[3] / 4.0
    b = np.stack([shape.times(each) for each in np.eye(D)], axis=1)
    known = np.eye(D) - 0.1 * b @ b.T + HYPERPARAMETERS.min_private * np.eye(D)  # M + fI
    kept = known @ np.linalg.solve(known + 0.5 * np.eye(D), learnt - start)
    np.testing.assert_allclose(weighted.weights, state.preconditioner.transposed_times(start + kept))


def test_pgd_starts_from_public_weights() -> None:
    """The model equals the start before and after round 1, which determines only the preconditioner."""
    loss, warm = Logistic(), np.linspace(-1.0, 1.0, D)[:, None]
    rows = cohort(loss, sizes=(400, 400))
    method = made(rows, loss, 9, noise_multiplier=1.0)
    assert np.array_equal(method.model(method.start((D, 1), warm)), warm)
    sent = Noiseless().answer(CohortQuery(rows, Moments(loss, D), np.zeros((2, 0)), method.first, 1))
    packed = method.aggregate(RoundResult(sent, method.start((D, 1), warm), 1, method.problem, rows.n_rows))
    after = PublicState.unpacked(packed, (D, 1))
    np.testing.assert_allclose(after.weights, warm, atol=1e-12)
    np.testing.assert_array_equal(after.origin, after.point)
    packed = method.aggregate(RoundResult(sent, method.start((D, 1)), 1, method.problem, rows.n_rows))
    assert PublicState.unpacked(packed, (D, 1)).preconditioner.same(after.preconditioner)


# What it costs


@prove
@given(
    st.lists(st.floats(0.01, 20.0), min_size=3, max_size=3),
    st.sampled_from([1e-3, 1e-5, 1e-9]),
    st.integers(2, 70),
    st.floats(0.0, 1.0),
    st.integers(0, 2**32),
)
def test_releases_of_an_agent_add_up_to_its_budget(
    epsilons: list[float], delta: float, n_rounds: int, there: float, seed: int
) -> None:
    """For any set of planned rounds, with or without round 1."""
    mask = np.random.default_rng(seed).random((n_rounds, 3)) < there
    mask[:, 0], mask[0, 1] = True, False
    mask[-1] = True
    training = Training(method="auto", epsilon=tuple(epsilons), delta=delta, n_rounds=n_rounds)
    sizes, problem = PublicSizes(np.array([10, 200, 3000]), D), Problem(Logistic(), L2(), 1e-6)
    method = training.build(problem, sizes, mask.sum(axis=0))
    for i, epsilon in enumerate(epsilons):
        plan = method.plan(i, n_rounds)
        assert plan.n_rounds == plan.n_releases == n_rounds
        names = ["moments", "preconditioned_gradient", *(["calibration"] if n_rounds > 2 else [])]
        assert [gaussian(each).statistic for each, _ in plan.runs] == names
        spent = sum(n / gaussian(each).noise_multiplier ** 2 for each, n in plan.tally(np.flatnonzero(mask[:, i]) + 1))
        most = float(mu_from_epsilon(epsilon, delta)) ** 2
        assert spent <= most
        assert exact_epsilon(math.sqrt(spent), delta) <= epsilon
        if mask[:, i].all():
            assert spent == pytest.approx(most, rel=1e-9)
            assert gaussian(plan.at(1)).noise_multiplier ** -2 == pytest.approx(0.15 * spent, rel=1e-9)
        else:
            assert spent >= 0.8 * most * (1.0 - 2.0 / mask[:, i].sum())
            if n_rounds > 2:
                assert gaussian(plan.at(n_rounds)).noise_multiplier ** -2 <= 0.05 * most * (1.0 + 1e-9)


def test_agent_without_planned_rounds_has_noise() -> None:
    """It gets no query. An answer would cost at most its share of one round."""
    sizes, problem = PublicSizes(np.array([100, 100]), D), Problem(Logistic(), L2(), 1e-6)
    training = Training(method="auto", noise_multiplier=3.0, n_rounds=9)
    plan = training.build(problem, sizes, np.array([9, 0])).plan(1, 9)
    assert min(gaussian(each).noise_multiplier for each, _ in plan.runs) >= 3.0
    with pytest.raises(StudyError, match="n_releases"):
        training.with_changes(noise_multiplier=None, epsilon=1.0).build(problem, sizes, np.array([9, 0]))


@pytest.mark.parametrize("budget", [{"round_epsilon": 0.1}, {"noise_multiplier": 7.0}])
def test_redistributed_round_budgets_cost_as_much_as_equal_rounds(budget: dict[str, float]) -> None:
    sizes, problem = PublicSizes(np.array([100]), D), Problem(Logistic(), L2(), 1e-6)
    cost = [
        Training(method=name, n_rounds=20, **budget).build(problem, sizes, np.array([20])).plan(0, 20).mu_squared()
        for name in ("auto", "dp_admm")
    ]
    assert float(cost[0]) == pytest.approx(float(cost[1]), rel=1e-12)


def test_report_contains_the_participation_of_each_agent() -> None:
    """One agent misses round 1, one leaves after it, one participates in all rounds. None exceeds its ε."""
    data, epsilons = synthetic("binary", n_rows=600, n_features=4), (0.5, 1.0, 2.0)
    groups, mask = np.arange(600) % 3, np.ones((9, 3), dtype=bool)
    mask[0, 0] = mask[1:, 1] = False
    for exact in (False, True):
        result = simulate(data, groups=groups, method="auto", epsilon=epsilons, n_rounds=9, participation=mask,
                          seed=1, exact_noise=exact, **MEANT)  # fmt: skip
        plans = [result.method.plan(i, 9) for i in range(3)]
        for epsilon, tally in zip(
            epsilons, tallies(plans, result.outcome.attended, result.outcome.charged_rounds), strict=True
        ):
            spent = sum(n / gaussian(each).noise_multiplier ** 2 for each, n in tally)
            assert exact_epsilon(math.sqrt(spent), 1e-5) <= epsilon
        assert 1.99 < result.privacy.epsilon <= 2.0


def test_pgd_needs_two_rounds() -> None:
    with pytest.raises(StudyError, match="at least 2 rounds: one for moments"):
        simulate("synthetic", method="auto", epsilon=1.0, n_rounds=1)


# Who counts how much


def test_answers_are_weighted_by_rows_and_budget_of_present_agents() -> None:
    """W_i ∝ m_i·μ_i. Earlier answers of absent agents are not used."""
    sizes, epsilons, problem = np.array([50, 500, 20, 4000]), (0.1, 2.0, 8.0, 0.5), Problem(Logistic(), L2(), 0.0)
    training = Training(method="auto", epsilon=epsilons, n_rounds=9)
    method: Any = training.build(problem, PublicSizes(sizes, D), np.full(4, 9))
    rng = np.random.default_rng(1)
    mus = np.array([float(mu_from_epsilon(epsilon, 1e-5)) for epsilon in epsilons])
    for active in (None, np.array([1, 3]), np.array([2])):
        there = np.arange(4) if active is None else active
        state = replace(PublicState.unpacked(method.start((D, 1)), (D, 1)), clip=0.3, step=1.0)
        uploads = np.full((4, D, 1), np.nan)
        uploads[there] = rng.normal(size=(len(there), D, 1))
        packed = method.aggregate(RoundResult(uploads, state.packed(), 3, problem, sizes, active))
        weights = (sizes * mus)[there] / np.sum((sizes * mus)[there])
        expected = 0.3 * np.tensordot(weights, uploads[there], axes=1)
        np.testing.assert_allclose(PublicState.unpacked(packed, (D, 1)).last_gradient, expected, rtol=1e-9)


def test_unequal_agents_lose_little_accuracy() -> None:
    """Rows assigned by labels to agents of very different sizes, with budgets that differ by a factor of 20."""
    data = synthetic("binary", n_rows=6000, n_features=8, seed=3)

    def loss_of(**choices: Any) -> float:
        found = []
        for seed in range(3):
            result = simulate(data, method="auto", n_agents=10, seed=seed, n_rounds=17, **MEANT, **choices)
            found.append(pooled_loss(result, data))
        return float(np.mean(found))

    alike = loss_of(epsilon=1.0)
    rng, groups = np.random.default_rng(1), np.arange(6000) % 10
    for label in (-1.0, 1.0):  # shares of each label by Dirichlet(0.1), but for the first 100 rows
        rest = np.flatnonzero((data.labels == label) & (np.arange(6000) >= 100))
        groups[rest] = rng.choice(10, size=len(rest), p=rng.dirichlet(np.full(10, 0.1)))
    assert loss_of(epsilon=1.0, groups=groups) < 1.03 * alike
    assert loss_of(epsilon=(0.1,) * 5 + (2.0,) * 5) < 1.03 * alike


def pooled_loss(result: Result, data: Dataset) -> float:
    """Return the mean loss over all rows."""
    rows = make_rows(data.features, data.labels)
    return result.problem.objective(rows, result.weights)


# Absences, few rounds, much noise


def test_dropout_after_a_quarter_of_the_rounds_does_little_harm() -> None:
    data, groups = synthetic("binary", n_rows=6000, n_features=8, seed=3), np.arange(6000) % 3
    mask, keep = np.ones((17, 3), dtype=bool), groups < 2
    mask[4:, 2] = False
    pair = Dataset("two of three", data.features[keep], data.labels[keep], (-1, 1))
    ratios = []
    for seed in range(4):
        shared = {"method": "auto", "epsilon": 1.0, "n_rounds": 17, "seed": seed, **MEANT}
        left = simulate(data, groups=groups, participation=mask, **shared)
        two = simulate(pair, groups=groups[keep], **shared)
        ratios.append(pooled_loss(left, data) / pooled_loss(two, data))
    assert np.mean(ratios) < 1.02
    assert max(ratios) < 1.03


def test_step_shrinks_with_the_noise_if_fewer_agents_answer() -> None:
    """The step is computed for the noise of round 1. With more agents in a round it is not shortened."""
    rows = PublicSizes(np.full(3, 2000), 4)
    method = made(rows, Logistic(), 17, noise_multiplier=4.0)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)

    def gathered(round: int, consensus: Floats, uploads: Floats, *active: int) -> RoundResult:
        return RoundResult(
            uploads, consensus, round, method.problem, rows.n_rows, np.array(active), rows.n_rows * 0 + 1
        )

    moments = np.broadcast_to(0.1 * rng.normal(size=Moments(Logistic(), 4).shape), (3, *Moments(Logistic(), 4).shape))
    first = method.aggregate(gathered(1, method.start((4, 1)), moments, 0, 1))
    before, gradients = PublicState.unpacked(first, (4, 1)), np.repeat(rng.normal(size=(1, 4, 1)), 3, axis=0)
    moved = {}
    for active in ((0, 1), (0,), (0, 1, 2)):
        after = PublicState.unpacked(method.aggregate(gathered(2, first, gradients, *active)), (4, 1))
        moved[len(active)] = after.point - before.point
        assert (after.step, after.noise) == (before.step, before.noise)
    np.testing.assert_allclose(moved[1], moved[2] / np.sqrt(2.0), rtol=1e-12)
    np.testing.assert_allclose(moved[3], moved[2], rtol=1e-12)


def test_five_rounds_are_nearly_as_accurate() -> None:
    for task, loss in (("binary", "logistic"), ("regression", "squared")):
        data = synthetic(task, n_rows=6000, n_features=8, seed=3)  # type: ignore[arg-type]
        shared = {"loss": loss, "method": "auto", "epsilon": 1.0, "n_agents": 3, "seed": 1, **MEANT}
        few, usual = simulate(data, n_rounds=5, **shared), simulate(data, **shared)
        assert few.outcome.rounds == 5
        assert few.privacy.epsilon == pytest.approx(usual.privacy.epsilon, rel=1e-6)
        assert pooled_loss(few, data) < 1.06 * pooled_loss(usual, data)


def test_run_that_ends_early_returns_the_last_point() -> None:
    rows = cohort(Logistic(), sizes=(400, 400))
    method = made(rows, Logistic(), 17, noise_multiplier=1.0)
    noise = SimulatedNoise(1, 2, (D, 1))
    outcome = train(method, method.problem, rows, n_rounds=4, noise=noise)
    state = PublicState.unpacked(outcome.broadcast, (D, 1))
    assert state.n_averaged == 0.0
    np.testing.assert_allclose(outcome.consensus, state.preconditioner.transposed_times(state.point))
    whole = train(method, method.problem, rows, n_rounds=17, noise=noise)
    assert PublicState.unpacked(whole.broadcast, (D, 1)).n_averaged == 8.0
    assert PublicState.unpacked(whole.broadcast, (D, 1)).scale != 1.0


def test_noisy_moments_give_no_preconditioner() -> None:
    """x = νd > .6: no preconditioner, a clipping bound of ½ (of the residuals), and steps limited by the noise."""
    for loss in (Logistic(), Softmax(n_outputs=3), Squared()):
        for m, seed in product((3, 20, 50), range(3)):
            with case(loss, m, seed):
                rows = cohort(loss, sizes=(m, m))
                method = made(rows, loss, 9, noise_multiplier=30.0)
                nu = 1.0 / (math.sqrt(2) * m * math.sqrt(9) / 30.0)
                assert D * nu > 0.6
                noise = SimulatedNoise(seed, 2, (D, loss.n_outputs))
                outcome = train(method, method.problem, rows, n_rounds=1, noise=noise)
                state = PublicState.unpacked(outcome.broadcast, (D, loss.n_outputs))
                assert state.preconditioner.same(Preconditioner(np.ones(D), np.zeros(D)))
                curvature = 4.0 if loss.task == "regression" else 1.0
                assert state.step == pytest.approx(min(16.0, 4.0 / (nu * D), 0.125 / nu) / curvature)
                assert state.clip == 0.5 if loss.task != "regression" else state.clip <= 0.5
                assert (state.shrink, np.abs(state.point).max()) == (1.0, 0.0)


def test_wide_rows_get_a_diagonal_preconditioner() -> None:
    loss, d = Logistic(), MAX_DIRECTION_FEATURES + 1
    rng = np.random.default_rng(0)
    moments = np.concatenate([rng.uniform(0, 0.1, d), rng.uniform(0, 0.01, d), rng.uniform(-0.1, 0.1, d)])
    for width in (d, MAX_DIRECTION_FEATURES):
        problem, z = Problem(loss, L2(), 0.0), np.full(1, 1e-3)
        method = Pgd(problem=problem, n_features=width, n_rounds=9, first=z, later=z, last=z)
        told = np.concatenate([each[:width] for each in np.split(moments, 3)])[None]
        packed = method.aggregate(RoundResult(told, method.start((width, 1)), 1, problem, np.array([10**6])))
        direction = PublicState.unpacked(packed, (width, 1)).preconditioner.direction
        assert direction.any() == (width == MAX_DIRECTION_FEATURES)


# The step's guard


def test_step_is_halved_when_gradients_oppose_each_other() -> None:
    """By public values: more than noise explains, and a quarter of the previous gradient above noise."""
    loss = Logistic()
    rows = cohort(loss, sizes=(400, 400))
    method = made(rows, loss, 17, noise_multiplier=1.0)
    last = np.linspace(0.5, 1.0, D)[:, None]
    state = replace(PublicState.unpacked(method.start((D, 1)), (D, 1)), step=4.0, last_gradient=last)
    square = float(np.sum(last**2))
    for deviation in (0.0, 0.01, 0.2):
        bound = 3.0 * deviation**2 * math.sqrt(D) + 0.25 * (square - D * deviation**2)
        for share, halved in ((0.99, False), (1.01, True), (-2.0, False)):
            with case(deviation, share):
                gradient = -share * bound / square * last
                assert method._take_step(state, gradient, deviation, 5, 1.0).step == (2.0 if halved else 4.0)
                assert method._take_step(state, gradient, deviation, 2, 1.0).step == 4.0  # there is none before
                after = method._take_step(state, gradient, deviation, 5, 1.0)
                np.testing.assert_array_equal(after.point, -after.step * gradient)
                np.testing.assert_array_equal(after.last_gradient, gradient)


def test_diverging_steps_converge_after_halving() -> None:
    """Steps of 40 times the allowed length reverse the gradient until they are short enough."""
    loss = Squared()
    rows = cohort(loss, sizes=(400, 400))
    method = made(rows, loss, 40, noise_multiplier=0.5)
    state = replace(PublicState.unpacked(method.start((D, 1)), (D, 1)), step=200.0, clip=50.0)
    packed, steps = state.packed(), []
    for k in range(2, 40):
        now = Round(k, method.problem, rows, packed, Noiseless())
        _, sent = method.step(method.init(method.problem, rows), now)
        packed = method.aggregate(RoundResult(sent, packed, k, method.problem, rows.n_rows))
        steps.append(PublicState.unpacked(packed, (D, 1)).step)
    assert steps[-1] < 20.0
    objective = method.problem.objective(rows, PublicState.unpacked(packed, (D, 1)).point)
    assert objective < 1.05 * method.problem.objective(rows, optimum(rows))


def optimum(rows: Rows) -> Floats:
    """Least squares."""
    features = rows.features[rows.order]
    return np.linalg.lstsq(features, rows.labels[:, None], rcond=None)[0]


# The calibration


def calibration_of(rows: Rows, factor: float, noise_multiplier: float = 1e-3, **penalty: Any) -> tuple[float, float]:
    """The scale that a factor of the optimum gets, and the objective that is left above that of the optimum."""
    method = made(rows, Logistic(), 5, noise_multiplier=noise_multiplier, **penalty)
    best = minimizer(method.problem, rows)
    state = PublicState.unpacked(method.start((D, 1), factor * best), (D, 1))
    packed = replace(state, curvature=0.25, score_bound=2.0).packed()
    now = Round(5, method.problem, rows, packed, SimulatedNoise(3, rows.n_agents, (D, 1)))
    _, sent = method.step(method.init(method.problem, rows), now)
    after = PublicState.unpacked(method.aggregate(RoundResult(sent, packed, 5, method.problem, rows.n_rows)), (D, 1))
    excess = method.problem.objective(rows, after.weights) - method.problem.objective(rows, best)
    return after.scale, excess


def test_the_scale_of_a_model_is_corrected() -> None:
    """One Newton step goes more than half of the way to the right scale, and stays where the scale is right."""
    rows = cohort(Logistic(), sizes=(3000, 3000), seed=5)
    assert calibration_of(rows, 1.0)[0] == pytest.approx(1.0, abs=0.02)
    for factor in (1.6, 1.3, 1.15, 0.85):
        with case(factor):
            scale, excess = calibration_of(rows, factor)
            assert abs(scale - 1.0 / factor) < 0.55 * abs(1.0 - 1.0 / factor)
            assert excess < 3e-3


@pytest.mark.parametrize("regularizer", [L2(), L1(), ElasticNet(0.5)])
def test_the_calibration_keeps_the_shrinkage_of_the_penalty(regularizer: Regularizer) -> None:
    """The right scale is that of the penalised optimum. The loss alone would make the weights larger."""
    rows, penalty = cohort(Logistic(), sizes=(3000, 3000), seed=5), {"alpha": 0.03, "regularizer": regularizer}
    assert calibration_of(rows, 1.0, **penalty)[0] == pytest.approx(1.0, abs=0.02)
    for factor in (1.6, 1.3, 0.85):
        with case(factor):
            scale, excess = calibration_of(rows, factor, **penalty)
            assert abs(scale - 1.0 / factor) < 0.55 * abs(1.0 - 1.0 / factor)
            assert excess < 3e-3


def test_where_noise_hides_the_curvature_the_scale_stays() -> None:
    """With as much noise as that, a step would be noise."""
    rows = cohort(Logistic(), sizes=(3000, 3000), seed=5)
    assert calibration_of(rows, 1.6, 10.0)[0] == 1.0
    assert calibration_of(rows, 1.6, 0.1)[0] < 0.8


def test_a_calibration_without_answers_of_some_agents_is_that_of_the_others() -> None:
    rows = cohort(Logistic(), sizes=(3000, 3000), seed=5)
    method = made(rows, Logistic(), 5, noise_multiplier=1e-3)
    state = PublicState.unpacked(method.start((D, 1), 2.0 * minimizer(method.problem, rows)), (D, 1))
    packed = replace(state, curvature=0.25).packed()
    uploads = np.array([[0.1, 0.05], [np.nan, np.nan]])
    result = RoundResult(uploads, packed, 5, method.problem, rows.n_rows, np.array([0]))
    assert 0.0 <= PublicState.unpacked(method.aggregate(result), (D, 1)).scale < 1.0


def test_two_rounds_have_no_calibration_and_any_more_have_one() -> None:
    rows = cohort(Logistic(), sizes=(400, 400))
    for n_rounds, names in ((2, 2), (3, 3), (9, 3)):
        method = made(rows, Logistic(), n_rounds, noise_multiplier=1.0)
        statistics = [method.release(k)[0] for k in range(1, n_rounds + 1)]
        assert len(set(statistics)) == names
        assert (statistics[-1] == "calibration") == (n_rounds > 2)
        assert statistics.count("preconditioned_gradient") == method.n_steps


# Everything that can be chosen


def test_all_losses_and_regularizers_run() -> None:
    """Every loss with one regularizer, and every regularizer with a loss of one and of several outputs."""
    whole = [loss for loss in LOSS_CASES if not getattr(loss, "cuts", ())]  # hazards by intervals need inference
    pairs = [*product(whole, [L2()]), *product([Logistic(), Softmax(n_outputs=3)], REGULARIZER_CASES)]
    for (loss, regularizer), epsilon in product(pairs, (0.5, 1e3)):
        with case(loss, regularizer, epsilon):
            rows, problem = cohort(loss), Problem(loss, regularizer, 0.01)
            training = Training(method="auto", loss=loss, regularizer=regularizer, epsilon=epsilon, n_rounds=9)
            method = training.build(problem, rows, np.full(N, 9))
            noise = SimulatedNoise(3, N, (D, loss.n_outputs))
            outcome = train(method, problem, rows, n_rounds=9, noise=noise)
            assert outcome.consensus.shape == (D, loss.n_outputs)
            if epsilon > 1.0 and loss.task != "count":  # studies of counts have a constant column
                start = problem.objective(rows, np.zeros_like(outcome.consensus))
                assert problem.objective(rows, outcome.consensus) <= start * (1.0 + 1e-9)


@pytest.mark.parametrize(
    ("task", "loss", "worse"),
    [
        ("binary", "logistic", 1.01),
        ("binary", "smoothed_hinge", 1.01),
        ("binary", "hinge", 1.03),
        ("multiclass", "softmax", 1.05),
        ("regression", "squared", 1.001),
        ("regression", "huber", 1.001),
    ],
)
def test_pgd_is_close_to_the_optimum_without_noise(task: Any, loss: str, worse: float) -> None:
    """It does not reach the optimum: clipping and the shrinkage after it remain (most visible for three classes)."""
    data = synthetic(task, n_rows=3000, n_features=8, seed=3)
    shared = {"loss": loss, "n_agents": 3, "seed": 1, "alpha": 1e-6, **MEANT}
    result = simulate(data, method="auto", noise_multiplier=0.0, **shared)
    best = simulate(data, method="centralized", **shared)
    assert not result.privacy.private
    assert pooled_loss(result, data) < worse * pooled_loss(best, data)


# Noise, order and threads


def test_noise_of_the_weighted_mean_matches_the_step_control() -> None:
    """For simulated and exact noise and unequal agents: the deviation of every number, and of the moments."""
    loss, d, sizes = Logistic(), 200, (300, 100, 50)
    rows = cohort(loss, sizes=sizes, d=d)
    method = made(rows, loss, 30, epsilon=(1.0, 3.0, 0.5))
    weights = rows.n_rows / method.later
    weights = weights / weights.sum()
    asked = np.broadcast_to(np.concatenate([np.full(d, 3.0), np.zeros(2 * d)]), (3, 3 * d))
    for noise in (SimulatedNoise(5, 3, (d, 1)), ExactNoise()):
        for round, parameters, row_norm in ((1, np.zeros((3, 0)), 2.0), (2, asked, 1.0)):
            name, z = method.release(round)
            drawn = []
            for k in range(30):
                now = Round(round + 1000 * k, method.problem, rows, np.zeros(0), noise)
                query = now.query(name, parameters, z)
                drawn.append(np.tensordot(weights, noise.answer(query) - Noiseless().answer(query), axes=1))
            deviation = 2.0 * row_norm * math.sqrt(np.sum(np.square(weights * z / rows.n_rows)))
            with case(noise, round):
                assert np.std(drawn) == pytest.approx(deviation, rel=0.04)
                assert abs(np.mean(drawn)) < 5.0 * deviation / math.sqrt(np.size(drawn))


def test_exact_and_simulated_noise_are_equally_accurate() -> None:
    data = synthetic("binary", n_rows=3000, n_features=6, seed=3)
    shared = {"method": "auto", "epsilon": 1.0, "n_agents": 3, "n_rounds": 17, **MEANT}
    losses = [
        [pooled_loss(simulate(data, seed=seed, exact_noise=exact, **shared), data) for seed in range(6)]
        for exact in (False, True)
    ]
    assert np.mean(losses[0]) == pytest.approx(np.mean(losses[1]), rel=0.02)


@pytest.mark.usefixtures("all_threads")
def test_result_does_not_depend_on_threads_or_order_of_agents() -> None:
    data = synthetic("multiclass", n_rows=2000, n_features=6, seed=3)
    shared = {"loss": "softmax", "method": "auto", "epsilon": 2.0, "n_agents": 4, "n_rounds": 9, "seed": 1, **MEANT}
    before, found = numba.get_num_threads(), []
    for threads in {1, before}:
        numba.set_num_threads(threads)
        found.append(simulate(data, **shared).weights)
    numba.set_num_threads(before)
    assert all(np.array_equal(item, found[0]) for item in found)
    loss = Logistic()
    rows = cohort(loss)
    offsets, order = rows.offsets, rows.order
    turned = [order[offsets[i] : offsets[i + 1]] for i in (2, 0, 3, 1)]
    labels = rows.labels[np.argsort(order)]
    other = make_rows(
        rows.features,
        labels,
        order=np.concatenate(turned),
        offsets=np.concatenate([[0], np.cumsum([len(item) for item in turned])]),
    )
    models = []
    for held in (rows, other):
        method = made(held, loss, 9, noise_multiplier=0.3)
        models.append(train(method, method.problem, held, n_rounds=9, noise=Noiseless()).consensus)
    np.testing.assert_allclose(models[0], models[1], rtol=1e-9)


def test_huber_clipping_bound_starts_at_most_at_delta() -> None:
    """Slopes beyond delta are constant, so a larger clipping bound would only admit noise."""
    rows, loss = cohort(Huber(delta=0.05), sizes=(4000, 4000)), Huber(delta=0.05)
    method = made(rows, loss, 9, noise_multiplier=0.5)
    outcome = train(method, method.problem, rows, n_rounds=2, noise=SimulatedNoise(1, 2, (D, 1)))
    state = PublicState.unpacked(outcome.broadcast, (D, 1))
    q = 0.0065 * math.sqrt(2.0) * 4000 * math.sqrt(9.0) / 0.5 / math.sqrt(D)
    assert state.clip <= 0.6 * math.sqrt(q) * 0.05 * math.sqrt(D)


def test_default_settings() -> None:
    assert Settings(method="auto", epsilon=1.0).alpha == 1e-6
    assert Settings(method="dp_admm", epsilon=1.0).alpha == 1e-4
    assert Settings(method="auto", epsilon=1.0).n_rounds is None
    changed = Settings(method="dp_admm", epsilon=1.0).with_changes(method="auto")
    assert (changed.alpha, changed.n_rounds) == (1e-6, None)
