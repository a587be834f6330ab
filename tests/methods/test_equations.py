"""The ADMM equations compared with a literal transcription of the paper's Algorithm 1."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from cases import LOSS_CASES, REGULARIZER_CASES, numbers, prove, random_labels, random_rows
from hypothesis import given
from hypothesis import strategies as st
from looping import case

from dpadmm import kernels
from dpadmm.engine.loop import RoundView, train
from dpadmm.engine.method import DeployableMethod
from dpadmm.engine.noise import SimulatedNoise
from dpadmm.kernels import updates as compiled
from dpadmm.losses import Huber, Loss, slopes
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.methods import DpAdmm, Round
from dpadmm.methods import dp_admm as updates
from dpadmm.methods.theory import constants_of, theorem_schedule
from dpadmm.queries.problem import Problem, Rows, make_rows
from dpadmm.regularizers import L2

SIZES = (3, 8, 5, 20)
N, D, RHO, RADIUS, ROUNDS = len(SIZES), 4, 0.3, 5.0, 5
Z = np.array([0.5, 2.0, 0.0, 7.0])


@pytest.fixture(autouse=True, scope="module")
def compiled_kernels() -> Iterator[None]:
    """Compile the kernels for cohorts of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "MIN_COMPILED_ENTRIES", 0)
        yield


def cohort(loss: Loss, seed: int = 0, sizes: tuple[int, ...] = SIZES) -> Rows:
    rng = np.random.default_rng(seed)
    m = sum(sizes)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return make_rows(random_rows(rng, m, D), random_labels(loss, rng, m), order=rng.permutation(m), offsets=offsets)


def paper_row_gradients(loss: Loss, a: Floats, b: Floats, w: Floats) -> Floats:
    """Return ℓ'(a_j, b_j, w) as d × p matrices, each of norm ≤ c1."""
    slope = slopes(loss, b, a @ w)
    each = np.einsum("jd,jp->jdp", a, slope)
    norms = np.linalg.norm(each, axis=(1, 2))
    return each * np.minimum(1.0, loss.lipschitz / np.maximum(norms, 1e-300))[:, None, None]


def algorithm_1(problem: Problem, rows: Rows, eta: list[Floats], normals: Floats) -> list[tuple[Floats, ...]]:
    """Run lines 1..12 of Algorithm 1 per agent, with noise on w; return (w^k, w̃_i^k, γ_i^k) of every round."""
    loss, shape = problem.loss, (D, problem.loss.n_outputs)
    w, w_tilde, gamma = np.zeros(shape), np.zeros((N, *shape)), np.zeros((N, *shape))
    out = []
    for k in range(1, len(eta) + 1):
        new = np.empty_like(w_tilde)
        for i in range(N):
            mine = slice(rows.offsets[i], rows.offsets[i + 1])
            a, b, m_i = rows.features[rows.order[mine]], rows.labels[mine], SIZES[i]
            data = paper_row_gradients(loss, a, b, w_tilde[i]).sum(axis=0) / m_i
            reg = problem.alpha * problem.regularizer.gradient(w_tilde[i])
            inverse = RHO + 1.0 / eta[k - 1][i]
            w_i = (-data - reg + gamma[i] + RHO * w + w_tilde[i] / eta[k - 1][i]) / inverse
            sigma = Z[i] * 2.0 * loss.lipschitz / (m_i * inverse)
            new[i] = w_i + sigma * -normals[k - 1, i]  # +N on the gradient is −N on w: the same law
        w_tilde = new
        w = w_tilde.mean(axis=0) - gamma.mean(axis=0) / RHO
        gamma = gamma - RHO * (w_tilde - w)
        out.append((w, w_tilde, gamma))
    return out


def numbers_of(seed: int, shape: tuple[int, int], rounds: int = ROUNDS) -> Floats:
    noise = SimulatedNoise(seed, N, shape)
    return np.array([noise.draw(k).copy() for k in range(1, rounds + 1)])


def test_dp_admm_is_algorithm_1() -> None:
    for loss, regularizer in product(LOSS_CASES, REGULARIZER_CASES):
        with case(loss, regularizer):
            problem, rows = Problem(loss, regularizer, 0.01), cohort(loss)
            shape = (D, loss.n_outputs)
            constants = constants_of(
                problem, n_features=D, n_rows=rows.n_rows, noise_multiplier=Z, weight_radius=RADIUS
            )
            schedule = theorem_schedule(constants)
            seen: list[RoundView] = []
            train(
                DpAdmm(RHO, step_sizes=schedule, noise_multiplier=Z),
                problem,
                rows,
                n_rounds=ROUNDS,
                noise=SimulatedNoise(11, N, shape),
                observers=[seen.append],
            )
            eta = [schedule(k) for k in range(1, ROUNDS + 1)]
            expected = algorithm_1(problem, rows, eta, numbers_of(11, shape))
            assert len(seen) == ROUNDS
            for view, (w, w_tilde, _) in zip(seen, expected, strict=True):
                np.testing.assert_allclose(view.consensus, w, rtol=1e-12, atol=1e-12)
                np.testing.assert_allclose(view.released, w_tilde, rtol=1e-12, atol=1e-12)


def test_transcription_is_sensitive_to_the_noise_scale() -> None:
    """With half the noise the run differs."""
    loss = LOSS_CASES[0]
    problem, rows = Problem(loss, REGULARIZER_CASES[1], 0.01), cohort(loss)
    eta = [np.full(N, 0.5)] * ROUNDS
    normals = numbers_of(3, (D, 1))
    right = algorithm_1(problem, rows, eta, normals)[-1][0]
    halved = algorithm_1(problem, rows, eta, normals / 2.0)[-1][0]
    assert np.abs(right - halved).max() > 1e-3


def _arrays(shape: tuple[int, ...]) -> st.SearchStrategy[Floats]:
    return st.lists(numbers(1e3), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))).map(
        lambda values: np.reshape(values, shape)
    )


STATE = (3, 2, 2)


@prove
@given(_arrays(STATE), _arrays(STATE), _arrays(STATE), _arrays(STATE), _arrays(STATE[1:]))
def test_primal_step_is_the_minimiser_of_the_approximate_lagrangian(h, reg, released, dual, consensus) -> None:
    """The gradient ``h + r − γ + ρ(w − w^{k−1}) + (w − w̃^{k−1})/η`` vanishes there."""
    rho, eta = 0.7, np.array([0.1, 1.0, 30.0])[:, None, None]
    w = updates.primal_step(h, reg, released=released, dual=dual, consensus=consensus, rho=rho, step_size=eta)
    slope = h + reg - dual + rho * (w - consensus) + (w - released) / eta
    assert np.abs(slope).max() < 1e-9


@prove
@given(_arrays(STATE), _arrays(STATE), st.floats(1e-3, 1e3))
def test_upload_and_consensus_are_line_8(released, dual, rho) -> None:
    consensus = updates.consensus_step(updates.upload(released, dual, rho))
    expected = released.mean(axis=0) - dual.mean(axis=0) / rho
    scale = 1.0 + np.abs(released).max() + np.abs(dual).max() / rho
    np.testing.assert_allclose(consensus, expected, rtol=0, atol=1e-14 * scale)


@prove
@given(_arrays(STATE), _arrays(STATE), st.floats(1e-2, 1e2))
def test_duals_sum_to_zero_after_dual_step(released, dual, rho) -> None:
    consensus = updates.consensus_step(updates.upload(released, dual, rho))
    after = updates.dual_step(dual, released=released, consensus=consensus, rho=rho)
    np.testing.assert_allclose(after, dual - rho * (released - consensus), atol=1e-9, rtol=0)
    assert np.abs(after.sum(axis=0)).max() < 1e-10 * (1e3 + rho * 1e3)


def test_updates_do_not_change_their_inputs() -> None:
    rng = np.random.default_rng(0)
    h, reg, released, dual = rng.standard_normal((4, *STATE))
    consensus, eta = rng.standard_normal(STATE[1:]), np.ones((3, 1, 1))
    given_arrays = (h, reg, released, dual, consensus, eta)
    copies = [array.copy() for array in given_arrays]
    updates.primal_step(h, reg, released=released, dual=dual, consensus=consensus, rho=0.5, step_size=eta)
    updates.upload(released, dual, 0.5)
    updates.dual_step(dual, released=released, consensus=consensus, rho=0.5)
    for array, copy in zip(given_arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_duals_sum_to_zero_with_partial_participation() -> None:
    """With the consensus that an agent returns to, the duals of all agents sum to zero in every round."""
    loss = LOSS_CASES[0]
    problem, rows = Problem(loss, REGULARIZER_CASES[1], 0.01), cohort(loss)
    present: list[Integers] = [np.array(who) for who in ([0, 2], [1], [0, 1, 3], [3], [2, 3], [0], [1, 2])]
    method = DpAdmm(RHO, step_sizes=lambda k: np.full(N, 0.5), noise_multiplier=Z)
    noise = SimulatedNoise(5, N, (D, 1))
    state, uploads, consensus = method.init(problem, rows), np.zeros((N, D, 1)), np.zeros((D, 1))
    for k, active in enumerate(present, start=1):
        state, sent = method.step(
            state,
            Round(number=k, problem=problem, rows=rows, consensus=consensus, noise=noise, active=active),
        )
        uploads[active] = sent[active]
        consensus = updates.consensus_step(uploads)
        closed = updates.dual_step(state.dual, released=state.released, consensus=consensus, rho=RHO)
        assert np.abs(closed.sum(axis=0)).max() < 1e-12


def test_compiled_round_equals_the_equations_bit_for_bit() -> None:
    for loss, regularizer, z, alone in product(LOSS_CASES, REGULARIZER_CASES, (Z, 0.0 * Z), (0, 2**20)):
        with case(loss, regularizer, z, alone), pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(compiled, "MAX_SERIAL_NUMBERS", alone)  # numbers up to which one thread does it
            problem, rows = Problem(loss, regularizer, 0.01), cohort(loss)
            shape = (D, loss.n_outputs)
            method, noise = (
                DpAdmm(RHO, step_sizes=lambda k: np.array([0.5, 0.1, 2.0, 7.0]) / k, noise_multiplier=z),
                SimulatedNoise(5, N, shape),
            )
            state, consensus = method.init(problem, rows), np.zeros(shape)
            for k in range(1, 4):
                now = Round(number=k, problem=problem, rows=rows, consensus=consensus, noise=noise)
                expected, sent = DeployableMethod.step(method, state, now)
                state, uploads = method.step(state, now)
                np.testing.assert_array_equal(state.released, expected.released)
                np.testing.assert_array_equal(state.dual, expected.dual)
                np.testing.assert_array_equal(uploads, sent)
                consensus = updates.consensus_step(uploads)


def test_noise_is_scaled_to_the_current_rows_and_bound() -> None:
    """One method object used with other rows or another loss keeps nothing of earlier sizes."""
    method = DpAdmm(RHO, step_sizes=lambda k: np.array([0.5, 0.1, 2.0, 7.0]), noise_multiplier=Z)
    few, many = cohort(Huber(1.0)), cohort(Huber(1.0), sizes=tuple(9 * size for size in SIZES))
    for rows, delta in ((few, 1.0), (many, 1.0), (few, 1.0), (few, 3.0), (few, 1.0)):
        with case(len(rows.labels), delta):
            problem = Problem(Huber(delta), L2(), 0.01)
            now = Round(
                number=1, problem=problem, rows=rows, consensus=np.zeros((D, 1)), noise=SimulatedNoise(5, N, (D, 1))
            )
            state = method.init(problem, rows)
            np.testing.assert_array_equal(method.step(state, now)[1], DeployableMethod.step(method, state, now)[1])
