"""Replacing one row, with all else equal, moves the messages of every private ADMM by at most what its noise covers."""

from __future__ import annotations

import numpy as np
import pytest
from cases import prove
from hypothesis import given
from hypothesis import strategies as st
from linear_games import budget_of

from dpadmm.baselines import (
    AdmmAsynchronous,
    AdmmFixedPoint,
    AdmmGraph,
    AdmmLocalSteps,
    AdmmMinibatch,
    AdmmPenalty,
    AdmmRecycled,
)
from dpadmm.engine.method import Round, RoundResult
from dpadmm.engine.noise import SimulatedNoise
from dpadmm.losses import Huber, Logistic, SmoothedHinge, Squared
from dpadmm.queries.problem import Problem, make_rows
from dpadmm.regularizers import L2

RHO, ALPHA, ROUNDS, N, D, ETA, Q, SHARE = 0.3, 0.05, 4, 3, 2, 0.8, 0.5, 1e-6
LOSSES = (Logistic(), SmoothedHinge(0.5), Huber(0.5), Squared(0.5))

# Method, and the movement that its noise covers in units of 2c1/m, by round and agent
STEP = 1.0 / (RHO + 1.0 / ETA)
SOLVED = 1.0 / (RHO + ALPHA)
DEGREES = np.array([1.0, 2.0, 1.0])
CASES = {
    "penalty": (AdmmPenalty(RHO, 0.5, SHARE), lambda method, k: 1.0 / (RHO * 1.5 ** (k - 1) + ALPHA)),
    "recycled": (AdmmRecycled(RHO, None, SHARE), lambda method, k: SOLVED if k % 2 else 0.0),
    "minibatch": (AdmmMinibatch(RHO, 3.0, "constant", ETA, sampling=Q), lambda method, k: STEP / Q),
    "local steps": (AdmmLocalSteps(RHO, 3.0, "constant", ETA, local_steps=3), lambda method, k: 3.0 * STEP),
    "graph": (AdmmGraph(RHO, SHARE, edges="1-2,2-3"), lambda method, k: 1.0 / (RHO * DEGREES / DEGREES.mean() + ALPHA)),
    "fixed point": (AdmmFixedPoint(RHO, SHARE, relaxation=0.8), lambda method, k: 1.6 * SOLVED),
    "asynchronous": (
        AdmmAsynchronous(RHO, 3.0, "constant", ETA, max_delay=3),
        lambda method, k: np.where(method.answers[k - 1], STEP, 0.0),
    ),
}


@pytest.mark.parametrize("name", CASES)
@prove
@given(seed=st.integers(0, 10**6), m=st.integers(2, 5), kind=st.integers(0, len(LOSSES) - 1))
def test_one_row_moves_every_message_by_at_most_what_the_noise_covers(name, seed, m, kind):
    """All agents have the same row replaced; both worlds have the same state and noise in every round."""
    rng = np.random.default_rng(seed)
    problem = Problem(LOSSES[kind], L2(), ALPHA)
    method, covered = CASES[name]
    features = rng.standard_normal((N, m, D)) * rng.choice([1e-3, 1.0, 30.0], size=(N, m, 1))
    labels = rng.choice([-1.0, 1.0], size=(N, m))
    other, flipped = features.copy(), labels.copy()
    other[:, 0], flipped[:, 0] = 10.0 * rng.standard_normal((N, D)), rng.choice([-1.0, 1.0], size=N)
    worlds = []
    for x, y in ((features, labels), (other, flipped)):
        x = x / np.maximum(1.0, np.linalg.norm(x, axis=2, keepdims=True))
        worlds.append(make_rows(x.reshape(-1, D), y.ravel(), offsets=np.arange(N + 1) * m))
    method = method.build(problem, worlds[0], budget_of(ROUNDS, N, 1.0))
    noise = SimulatedNoise(seed, N, (D, 1))
    state, sent = method.init(problem, worlds[0]), method.start((D, 1)) + 3.0 * rng.standard_normal()
    unit = 2.0 * problem.loss.lipschitz / m
    for k in range(1, ROUNDS + 1):
        (new, one), (_, moved) = (
            method.step(state, Round(k, problem, rows, sent, noise, seed=seed)) for rows in worlds
        )
        apart = np.linalg.norm(one - moved, axis=(1, 2))
        limit = np.broadcast_to(covered(method, k), (N,)) * unit
        assert (apart <= limit * (1.0 + 1e-4) + 1e-12).all()
        state, sent = new, method.aggregate(RoundResult(one, sent, k, problem, worlds[0].n_rows))
