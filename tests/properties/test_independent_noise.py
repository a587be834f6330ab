"""Noise of ``train``, ``simulate`` and the estimators is independent between agents, rounds, runs and studies.

Rows are zeros, so their gradients are zero. Answers then consist of noise only, which is recovered from the public
models. The sampler is not replaced.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from guards import STUDY, guarded, memory_folder, tiny
from looping import case
from noise_checks import RoundRecorder, check_independent, check_nothing_shared, check_scale, released_gradients
from noise_queries import gradient_query

import dpadmm.estimators.base as base
from dpadmm import DPADMMClassifier, DPADMMRegressor, simulate
from dpadmm.accounting.calibration import total_noise_multiplier
from dpadmm.data.encoder import Report
from dpadmm.data.table import EncodedTable
from dpadmm.engine.noise import ExactNoise
from dpadmm.losses import LOSSES, Logistic, Softmax
from dpadmm.matrices.arrays import Floats
from dpadmm.methods import DpAdmm, DpSgd
from dpadmm.queries.problem import make_rows
from dpadmm.studies.study import Study
from dpadmm.training.simulate import run_prepared as run
from dpadmm.training.train import run_study
from dpadmm.trusted.discrete_gaussian import Lattice

SIZES = (2, 5, 40, 300)
ROUNDS, EPSILON, DELTA = 8, 1.0, 1e-5
SHAPES = {"logistic": (240, 1), "softmax": (80, 3), "squared": (240, 1)}
CLASSES = {"logistic": (-1, 1), "softmax": (0, 1, 2), "squared": None}


def owners() -> Any:
    return np.repeat(np.arange(len(SIZES)), SIZES)


def zeros(loss: str, kind: type = np.float64) -> tuple[Floats, Floats]:
    """Return rows of zeros, and labels that fit the loss."""
    n = sum(SIZES)
    classes = CLASSES[loss]
    labels = np.zeros(n) if classes is None else np.asarray(classes, float)[np.arange(n) % len(classes)]
    return np.zeros((n, SHAPES[loss][0]), kind), labels


def standardised(answers: Floats, c1: float, rounds: int = ROUNDS, sizes: Any = SIZES) -> Floats:
    """Return noise in units of its nominal standard deviation, z·2c1/m for each agent."""
    sigma = total_noise_multiplier(EPSILON, DELTA, rounds) * 2.0 * c1 / np.asarray(sizes, float)
    return answers / np.asarray(sigma)[None, :, None, None]


def check_on_grid(noise: Floats, loss: str) -> None:
    """Check that exact noise is a multiple of each agent's public step. Float noise is not."""
    c1 = problem_of(loss).lipschitz
    d, p = SHAPES[loss]
    z = float(total_noise_multiplier(EPSILON, DELTA, ROUNDS))
    steps = noise * z * 2.0 * c1 / Lattice(c1, d * p, 2).step
    assert np.abs(steps).max() > 1e6
    assert np.abs(steps - np.rint(steps)).max() < 0.1


def problem_of(loss: str) -> Any:
    return {"logistic": Logistic(), "softmax": Softmax(n_outputs=3), "squared": LOSSES["squared"]()}[loss]


def trained(loss: str, name: str = "a study", *, seed: int | None = None) -> Floats:
    """Return the noise of ``dpadmm train``."""
    d, _ = SHAPES[loss]
    study = Study(
        name=name,
        features=tuple(f"x{j}" for j in range(d)),
        classes=CLASSES[loss],
        training={
            "method": "dp_admm",
            "loss": loss,
            "epsilon": EPSILON,
            "delta": DELTA,
            "n_rounds": ROUNDS,
            "regularizer": "none",
            "intercept": False,
        },
    )
    features, labels = zeros(loss, np.float32)
    table = EncodedTable(features, labels, owners(), tuple(map(str, range(len(SIZES)))), Report())
    seen = RoundRecorder()
    result = run_study(study, table, seed=seed, observers=[seen])
    assert result.n_rows == SIZES
    planned = np.full(len(SIZES), ROUNDS)
    method = study.training.build(study.problem, result.rows, planned)
    assert isinstance(method, DpAdmm)
    return standardised(released_gradients(seen, method, study.problem), study.problem.loss.lipschitz)


def simulated(loss: str, **more: Any) -> Floats:
    """Return the noise of ``simulate``."""
    features, labels = zeros(loss)
    seen = RoundRecorder()
    result = simulate(
        (features, labels),
        classes=CLASSES[loss],
        groups=owners(),
        loss=loss,
        epsilon=EPSILON,
        delta=DELTA,
        n_rounds=ROUNDS,
        regularizer="none",
        intercept=False,
        test_rows=0,
        metrics_every=0,
        observers=[seen],
        **more,
    )
    method = result.settings.build(result.problem, result.rows, np.full(len(SIZES), ROUNDS))
    assert isinstance(method, DpAdmm)
    return standardised(released_gradients(seen, method, result.problem), result.problem.loss.lipschitz)


@dataclass
class Fits:
    """Record the runs of estimators, without changing them."""

    seen: list[tuple[RoundRecorder, Any]]

    def noise(self, loss: str, *, fit: Any = None, **more: Any) -> Floats:
        model = fit or _estimator(loss, **more)
        features, labels = zeros(loss)
        model.fit(features, labels, groups=owners())
        watcher, result = self.seen[-1]
        planned = np.full(len(SIZES), ROUNDS)
        method = result.settings.build(result.problem, result.rows, planned)
        c1 = result.problem.loss.lipschitz
        return standardised(released_gradients(watcher, method, result.problem), c1)


def _estimator(loss: str, **more: Any) -> Any:
    given = {"bounds": (-1.0, 1.0), "fit_intercept": False, "max_iter": ROUNDS, "delta": DELTA, "method": "dp_admm"}
    given |= more
    if loss == "squared":
        return DPADMMRegressor(EPSILON, loss="squared", alpha=0.0, y_bounds=(-1, 1), **given)
    return DPADMMClassifier(EPSILON, C=np.inf, classes=CLASSES[loss], **given)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> Fits:
    watched: list[tuple[RoundRecorder, Any]] = []

    def watching(*words: Any, **more: Any) -> Any:
        watcher = RoundRecorder()
        result = run(*words, observers=[watcher], **more)
        watched.append((watcher, result))
        return result

    monkeypatch.setattr(base, "run_prepared", watching)
    return Fits(watched)


RUNS = {
    "train": trained,
    "simulate": simulated,
    "simulate with exact noise": lambda loss: simulated(loss, exact_noise=True),
}


def test_noise_of_a_run_is_integer_and_independent() -> None:
    for how, loss in product(RUNS, SHAPES):
        with case(how, loss):
            noise = RUNS[how](loss)
            assert noise.shape == (ROUNDS, len(SIZES), *SHAPES[loss])
            if how != "simulate":
                check_on_grid(noise, loss)
            check_scale(noise)
            check_independent(noise)


@pytest.mark.parametrize("loss", SHAPES)
def test_noise_of_an_estimator_is_independent_and_fresh_in_every_fit(fits: Fits, loss: str) -> None:
    model = _estimator(loss)
    noise = [fits.noise(loss, fit=model), fits.noise(loss, fit=model), fits.noise(loss)]
    for share in noise:
        if loss != "squared":  # c1 follows from the bounds of the labels
            check_on_grid(share, loss)
        check_scale(share)
        check_independent(share)
    check_nothing_shared(*noise)


def test_models_of_two_fits_differ_by_their_noise() -> None:
    features, labels = zeros("logistic")
    models = [_estimator("logistic", max_iter=1).fit(features, labels, groups=owners()) for _ in range(12)]
    coefficients = np.array([model.coef_.ravel() for model in models])
    coefficients /= coefficients.std()
    check_independent(coefficients[:, None, :, None])


def test_runs_and_studies_share_no_noise() -> None:
    """Compare the same study twice, two studies in parallel, and a simulation with the same seed."""
    np.random.seed(7)  # noqa: NPY002
    random.seed(7)
    noise = [trained("logistic"), trained("logistic"), trained("logistic", "another study")]
    noise += [simulated("logistic", exact_noise=True, seed=7) for _ in range(2)]
    noise += [simulated("logistic"), simulated("logistic"), simulated("logistic", seed=7)]
    noise += [simulated("logistic", seed=8), trained("logistic", seed=9)]
    check_nothing_shared(*noise)


def test_seed_determines_the_noise_of_a_simulation() -> None:
    np.testing.assert_array_equal(simulated("logistic", seed=7), simulated("logistic", seed=7))


def test_global_seeds_do_not_repeat_noise(fits: Fits) -> None:
    noise = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        noise += [trained("logistic"), simulated("logistic", exact_noise=True), fits.noise("logistic")]
        noise.append(simulated("logistic"))
    check_nothing_shared(*noise)


def test_noise_of_guards_is_independent_between_rounds_studies_sites_and_restarts() -> None:
    """The same rows, points and rounds in two studies at two sites, with a restart in the middle."""
    features, labels = zeros("logistic")
    studies = [
        replace(
            STUDY,
            name=name,
            features=tuple(f"x{j}" for j in range(240)),
            training=STUDY.training.with_changes(n_rounds=8),
        )
        for name in ("one", "another")
    ]
    answers = np.empty((8, 4, 240, 1))
    for site in range(2):
        with memory_folder() as folder:
            for rounds in (range(1, 5), range(5, 9)):
                with guarded(folder, tiny(features, labels)) as guard:
                    for which, study in enumerate(studies):
                        scale = guard.enrol(study).query_at(1).grid.noise_scale(study.noise_multiplier)
                        for round in rounds:
                            answer = guard.answer(study.hash, round, np.zeros(study.shape))
                            answers[round - 1, 2 * site + which] = answer / scale
    check_scale(answers)
    check_independent(answers)


FORKS = """
import json, os, random, sys
import numpy as np
from dpadmm import DPADMMClassifier, simulate

X, y = np.zeros((60, 40)), np.tile([-1.0, 1.0], 30)
about = dict(epsilon=1.0, delta=1e-5, n_rounds=2, intercept=False, test_rows=0, metrics_every=0, n_agents=2)

def noise():
    np.random.seed(1), random.seed(1)
    exact = simulate((X, y), exact_noise=True, seed=1, **about).outcome.released.ravel()
    model = DPADMMClassifier(1.0, bounds=(-1, 1), classes=[-1, 1], fit_intercept=False, max_iter=2)
    return [exact.tolist(), model.fit(X, y).coef_.ravel().tolist()]

noise()  # whatever could be kept is there before the fork
pipes = []
for _ in range(2):
    reader, writer = os.pipe()
    if os.fork() == 0:
        with os.fdopen(writer, "w") as out:
            json.dump(noise(), out)
        os._exit(0)
    os.close(writer)
    pipes.append(reader)
said = [noise()]
for reader in pipes:
    with os.fdopen(reader) as answer:
        said.append(json.load(answer))
    os.wait()
json.dump(said, sys.stdout)
"""


def test_forked_processes_with_the_same_seeds_draw_different_noise() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report) == 3
    for kind in zip(*report, strict=True):
        numbers = np.abs([item for process in kind for item in process])
        assert len(np.unique(numbers)) == numbers.size


@pytest.mark.parametrize("active", [None, np.array([0, 2])])
def test_noise_scale_depends_on_the_agents_own_number_of_rows(active: Any) -> None:
    """σ in steps equals that of the agent's own grid exactly, for all d·p numbers."""
    loss = LOSSES["softmax"](n_outputs=3)
    asked: dict[tuple[int, int], tuple[int, int]] = {}

    def source(agent: int, round: int) -> Any:
        def draw(scale: int, count: int) -> Any:
            assert (agent, round) not in asked
            asked[agent, round] = scale, count
            return np.zeros(count, np.int64)

        return draw

    features, labels = zeros("softmax")
    offsets = np.concatenate([[0], np.cumsum(SIZES)])
    rows = make_rows(features, labels, order=np.arange(len(labels)), offsets=offsets)
    z = np.array([1.0, 2.0, 3.0, 4.0])
    points = np.ones((len(SIZES), *SHAPES["softmax"]))
    rounds = (1, 2, 9, 33, 101, 1001, 2**17)
    for round in rounds:
        ExactNoise(source).answer(gradient_query(rows, loss, points, z, round, active))
    agents = range(len(SIZES)) if active is None else active.tolist()
    assert asked == {
        (i, round): (Lattice(loss.lipschitz, 240, SIZES[i]).noise_scale(z[i]), 240) for i in agents for round in rounds
    }


def test_noise_of_other_methods_differs_between_rounds_and_runs() -> None:
    for how in ["dp_sgd", "dp_sgd of samples", "dp_sgd, exact", "admm_pvp"]:
        with case(how):
            method, _, kind = how.replace(" of samples", ",samples").partition(",")
            features, labels = np.zeros((20, 240)), np.tile([-1.0, 1.0], 10)
            runs = []
            for _ in range(2):
                seen = RoundRecorder()
                sampled = DpSgd(learning_rate=1.0, sampling=0.5 if kind == "samples" else 1.0)
                simulate(
                    (features, labels),
                    method=sampled if method == "dp_sgd" else method,
                    noise_multiplier=10.0,
                    delta=DELTA,
                    n_rounds=ROUNDS,
                    n_agents=1,
                    regularizer="none",
                    intercept=False,
                    test_rows=0,
                    metrics_every=0,
                    exact_noise="exact" in kind,
                    observers=[seen],
                )
                models = np.array([np.zeros_like(seen.consensus[0]), *seen.consensus])
                moves = np.diff(models, axis=0)[:, None]
                if method == "dp_sgd":
                    moves /= 10.0 * 2.0 / 20 / sampled.sampling
                    check_scale(moves)
                else:
                    moves /= moves.std()
                check_independent(moves)
                runs.append(moves)
            check_nothing_shared(*runs)
