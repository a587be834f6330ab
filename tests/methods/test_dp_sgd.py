"""Distributed DP-SGD: definition, releases, and independence of sampling from rows."""

from __future__ import annotations

import numpy as np
import pytest
from cases import prove
from cohorts import SIZES, cohort
from hypothesis import given
from hypothesis import strategies as st
from looping import case

from dpadmm import kernels, simulate
from dpadmm.accounting.events import Release, SampledRelease
from dpadmm.engine.loop import train
from dpadmm.engine.minimizer import minimizer
from dpadmm.engine.noise import LazyAnswers, SimulatedNoise
from dpadmm.errors import StudyError
from dpadmm.losses import Hinge, Logistic
from dpadmm.matrices.arrays import Floats
from dpadmm.methods import DpSgd, Round
from dpadmm.queries.problem import Problem, Rows, make_rows
from dpadmm.regularizers import L2

N, D = len(SIZES), 5
PROBLEM = Problem(Logistic(), L2(), 0.02)


def uploads(method: DpSgd, rows: Rows, *, round: int = 1, consensus: Floats | None = None, seed: int = 0) -> Floats:
    shape = (rows.n_features, 1)
    _, sent = method.step(
        method.init(PROBLEM, rows),
        Round(
            number=round,
            problem=PROBLEM,
            rows=rows,
            consensus=np.zeros(shape) if consensus is None else consensus,
            noise=SimulatedNoise(3, rows.n_agents, shape),
            seed=seed,
        ),
    )
    return sent.each() if isinstance(sent, LazyAnswers) else sent


def test_dp_sgd_is_gradient_descent() -> None:
    rows, z, rate = cohort(Logistic()), np.array([1.0, 0.0, 2.0, 5.0]), 0.7
    noise = SimulatedNoise(3, N, (D, 1))
    outcome = train(DpSgd(rate, noise_multiplier=z), PROBLEM, rows, n_rounds=6, noise=noise)
    w = np.zeros((D, 1))
    for k in range(1, 7):
        sent = np.zeros((N, D, 1))
        for i in range(N):
            alone = rows.agent(i)
            sent[i] = kernels.reference_gradient(alone, w[None], Logistic())[0]
            sent[i] += z[i] * 2.0 / SIZES[i] * noise.draw(k)[i]
        w = w - rate * (sent.mean(axis=0) + 0.02 * w)
    np.testing.assert_allclose(outcome.consensus, w, atol=1e-12)
    np.testing.assert_array_equal(outcome.released, np.broadcast_to(outcome.consensus, (N, D, 1)))


def test_dp_sgd_reaches_the_optimum_without_noise() -> None:
    rows = cohort(Logistic())
    quiet = DpSgd(3.0, noise_multiplier=np.zeros(N))
    outcome = train(quiet, PROBLEM, rows, n_rounds=500, noise=SimulatedNoise(3, N, (D, 1)))
    np.testing.assert_allclose(outcome.consensus, minimizer(PROBLEM, rows), atol=1e-5)


def test_noise_is_z_times_the_sensitivity() -> None:
    for sampling, z, m in [(1.0, 2.0, 3), (0.25, 2.0, 3), (0.5, 0.7, 8)]:
        with case(sampling, z, m):
            n, d = 2000, 50
            rows = make_rows(np.zeros((n * m, d)), np.ones(n * m), offsets=np.arange(0, n * m + 1, m))
            noise = uploads(DpSgd(1.0, sampling, noise_multiplier=np.full(n, z)), rows)
            assert noise.std() == pytest.approx(z * 2.0 / (sampling * m), rel=0.01)


@prove
@given(seed=st.integers(0, 10**6), sampling=st.sampled_from([0.2, 0.5, 1.0]))
def test_replacing_a_row_changes_the_upload_by_at_most_2_c1_over_q_m(seed: int, sampling: float) -> None:
    """The sample is the same for any replaced row: it depends on no row."""
    rng = np.random.default_rng(seed)
    m, method = 6, DpSgd(1.0, sampling, noise_multiplier=np.zeros(1))
    rows = rng.standard_normal((m, 2))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = rng.choice([-1.0, 1.0], size=m)
    other = rows.copy()
    other[seed % m] = -labels[seed % m] * np.array([1.0, 0.0])
    rows[seed % m] = labels[seed % m] * np.array([1.0, 0.0])
    consensus = np.array([[-1e3], [0.0]])
    first, second = (uploads(method, make_rows(x, labels), consensus=consensus, seed=seed)[0] for x in (rows, other))
    moved = float(np.linalg.norm(first - second))
    assert moved <= 2.0 / (sampling * m) * (1.0 + 1e-9)
    drawn = make_rows(rows, labels).subsample(sampling, seed=seed, round=1)
    assert (moved > 0.0) == bool(np.isin(seed % m, drawn.order))


def test_rows_are_sampled_independently() -> None:
    rows = make_rows(np.zeros((40_000, 1)), np.ones(40_000), offsets=np.arange(0, 40_001, 100))
    one, again, next_ = (rows.subsample(0.3, seed=s, round=k) for s, k in ((1, 1), (1, 1), (1, 2)))
    np.testing.assert_array_equal(one.order, again.order)
    assert len(np.intersect1d(one.order, next_.order)) == pytest.approx(0.09 * 40_000, rel=0.05)
    assert len(one.order) == pytest.approx(12_000, rel=0.03)
    # a fixed number per agent would be another mechanism, with another price
    assert one.n_rows.std() == pytest.approx(np.sqrt(100 * 0.3 * 0.7), rel=0.15)


def test_sampled_gradients_are_unbiased_and_an_empty_sample_is_zero() -> None:
    rows, point = cohort(Logistic()), np.full((D, 1), 0.3)
    sampled = DpSgd(1.0, 0.3, noise_multiplier=np.zeros(N))
    mean = np.mean([uploads(sampled, rows, round=k, consensus=point, seed=5) for k in range(1, 1501)], axis=0)
    whole = uploads(DpSgd(1.0, noise_multiplier=np.zeros(N)), rows, consensus=point)
    np.testing.assert_allclose(mean, whole, atol=0.02)
    nothing = uploads(DpSgd(1.0, 1e-9, noise_multiplier=np.zeros(N)), rows, consensus=point)
    np.testing.assert_array_equal(nothing, 0.0)


def test_releases_say_what_is_spent() -> None:
    assert DpSgd(1.0, noise_multiplier=np.array([4.0])).plan(0, 1).at(1) == Release(4.0)
    assert DpSgd(1.0, 0.1, noise_multiplier=np.array([4.0])).plan(0, 1).at(1) == SampledRelease(4.0, 0.1)


def test_invalid_numbers_are_named() -> None:
    for bad in [0.0, -1.0, np.nan, np.inf]:
        with case(bad):
            with pytest.raises(StudyError, match="learning_rate"):
                DpSgd(learning_rate=bad)
            with pytest.raises(StudyError, match="sampling"):
                DpSgd(sampling=bad)


def test_default_step_is_one_over_the_smoothness() -> None:
    options = {"epsilon": 1.0, "n_agents": 3, "n_rounds": 2, "seed": 1, "alpha": 1e-3}
    given_, left_out = (
        simulate("synthetic", method=method, **options).outcome.consensus
        for method in (DpSgd(learning_rate=1.0 / (0.25 + 1e-3)), DpSgd())
    )
    np.testing.assert_array_equal(given_, left_out)
    with pytest.raises(StudyError, match="learning_rate for the loss hinge"):
        simulate("synthetic", method="dp_sgd", **options, loss=Hinge().name)


def test_sampled_run_uses_the_subsampling_accountant() -> None:
    options = {"method": "dp_sgd", "n_agents": 3, "n_rounds": 20, "seed": 1, "delta": 1e-4}
    sampled = simulate("synthetic", **options | {"method": DpSgd(sampling=0.1)}, epsilon=1.0)
    assert 0.99 < sampled.privacy.epsilon <= 1.0
    assert "PLD" in sampled.privacy.accountant
    same_noise = simulate("synthetic", **options, noise_multiplier=float(sampled.privacy.noise_multiplier[0]))
    assert same_noise.privacy.epsilon > 2.0  # what the secret of the draw is worth
