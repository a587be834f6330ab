"""Public rows as a prior: a model of them, weighted against the noise, at no privacy cost."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from cohorts import cohort
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import PredefinedSplit, cross_val_predict

from dpadmm.data.datasets.synthetic import synthetic
from dpadmm.engine.noise import ExactNoise, SimulatedNoise
from dpadmm.errors import DataError
from dpadmm.losses import Logistic, Loss, Softmax, Squared
from dpadmm.matrices.arrays import Floats
from dpadmm.methods.pgd import PublicState
from dpadmm.methods.prior import FOLDS, RIDGE, prior_of
from dpadmm.models.run import Result, run
from dpadmm.queries.problem import Problem, Rows, make_rows
from dpadmm.regularizers import L1, L2
from dpadmm.studies.settings import Training

LOSSES: tuple[Loss, ...] = (Logistic(), Softmax(n_outputs=3), Squared())
TASKS = {"binary": LOSSES[0], "multiclass": LOSSES[1], "regression": LOSSES[2]}


# What public rows say


@pytest.mark.parametrize("loss", LOSSES)
def test_prior_equals_scikit_learns_model(loss: Loss) -> None:
    """Its penalty is the first after which a smaller one is no better on held-out rows.

    The study's penalty is not used.
    """
    for scale in (1.0, 0.05):  # shorter rows need larger weights
        rows = cohort(loss, sizes=(300,))
        features, labels = scale * rows.features[rows.order], rows.labels
        folds = np.empty(300, dtype=int)
        folds[np.argsort(labels, kind="stable")] = np.arange(300) % FOLDS
        losses, models = [], []
        for ridge in (RIDGE / 4.0**k for k in range(6)):
            if loss.task == "regression":
                oracle: Any = Ridge(alpha=ridge, fit_intercept=False)
            else:
                oracle = LogisticRegression(C=1.0 / ridge, fit_intercept=False, tol=1e-10, max_iter=1000)
            how = "predict" if loss.task == "regression" else "decision_function"
            scores = cross_val_predict(oracle, features, labels, cv=PredefinedSplit(folds), method=how)
            losses.append(loss.value(labels, scores.reshape(300, -1)).mean())
            models.append(np.atleast_2d(oracle.fit(features, labels).coef_))
        best = next((k for k in range(5) if losses[k + 1] >= losses[k]), 5)
        found = prior_of(Problem(loss, L1(), 0.3), make_rows(features, labels))
        np.testing.assert_allclose(found.weights.T, models[best], rtol=1e-4, atol=1e-4)
        assert scale == 1.0 or best > 0
        assert found.n_rows == 300
        np.testing.assert_allclose(found.means, features.mean(axis=0))
        np.testing.assert_allclose(found.squares, np.square(features).mean(axis=0))


@pytest.mark.parametrize("loss", LOSSES)
def test_sparse_rows_give_the_same_prior(loss: Loss) -> None:
    rows, problem = cohort(loss, sizes=(100,)), Problem(loss, L2(), 0.0)
    features = rows.features[rows.order]
    dense = prior_of(problem, make_rows(features, rows.labels))
    sparse = prior_of(problem, make_rows(csr_array(features), rows.labels))
    for field in fields(dense):
        np.testing.assert_allclose(getattr(sparse, field.name), getattr(dense, field.name), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("loss", LOSSES[:2])
def test_rows_of_every_class_are_needed(loss: Loss) -> None:
    rows = cohort(loss, sizes=(100,))
    some = rows.labels == rows.labels[0]
    lacking = make_rows(rows.features[rows.order][some], rows.labels[some])
    with pytest.raises(DataError, match="must contain every class"):
        prior_of(Problem(loss, L2(), 0.0), lacking)


# What it does to a run


@dataclass(frozen=True)
class World:
    """3,000 private rows of three agents, public rows of the same distribution, and 4,000 test rows."""

    problem: Problem
    private: Rows
    public: Rows
    turned: Rows
    others: Rows
    seed: int

    @classmethod
    def of(cls, task: Any, n_public: int, seed: int) -> World:
        data = synthetic(task, n_rows=7000 + n_public, n_features=8, seed=seed)
        order = np.random.default_rng(seed).permutation(len(data.labels))
        features, labels = data.features[order], data.labels[order]
        turned = (labels[7000:] + 1.0) % 3.0 if task == "multiclass" else -labels[7000:]
        return cls(
            problem=Problem(TASKS[task], L2(), 1e-6),
            private=make_rows(features[:3000], labels[:3000], offsets=np.arange(0, 3001, 1000)),
            public=make_rows(features[7000:], labels[7000:]),
            turned=make_rows(features[7000:], turned),
            others=make_rows(features[3000:7000], labels[3000:7000]),
            seed=seed,
        )

    def trained(
        self, epsilon: float, known: Rows | None = None, *, method: str = "auto", exact: bool = False
    ) -> Result:
        problem, rows = self.problem, self.private
        training = Training(method=method, loss=problem.loss, epsilon=epsilon)
        noise = SimulatedNoise(self.seed, 3, (rows.n_features, problem.loss.n_outputs))
        prior = None if known is None else prior_of(problem, known)
        return run(training, problem, rows, ExactNoise() if exact else noise, prior=prior)

    def loss(self, weights: Floats) -> float:
        return self.problem.objective(self.others, weights)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("epsilon", "n_public"), [(0.3, 150), (0.3, 1000), (1.0, 1000), (5.0, 150)])
def test_public_rows_of_the_same_distribution_do_not_hurt(task: str, epsilon: float, n_public: int) -> None:
    """Better than the private run alone with much noise, and nearly as good as the public model at least."""
    found = []
    for seed in range(4):
        world = World.of(task, n_public, seed)
        runs = world.trained(epsilon), world.trained(epsilon, world.public)
        public = prior_of(world.problem, world.public).weights
        found.append([world.loss(entry) for entry in (*(item.weights for item in runs), public)])
    without, together, alone = np.mean(found, axis=0)
    assert together <= 1.01 * without
    assert together <= 1.05 * alone
    if (epsilon, n_public) == (0.3, 1000):
        assert together < 0.96 * without
    if epsilon == 5.0:
        assert together < 0.97 * alone


@pytest.mark.parametrize("task", TASKS)
def test_public_model_remains_under_extreme_noise(task: str) -> None:
    found = []
    for seed in range(6):
        world = World.of(task, 60, seed)
        features, labels = world.private.features[:90], world.private.labels[:90]
        few = replace(world, private=make_rows(features, labels, offsets=np.arange(0, 91, 30)))
        public = prior_of(world.problem, world.public).weights
        found.append([world.loss(item) for item in (few.trained(0.3, world.public).weights, public)])
    together, alone = np.mean(found, axis=0)
    assert together < 1.03 * alone


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("epsilon", [1.0, 5.0])
def test_public_rows_with_flipped_labels_are_down_weighted(task: str, epsilon: float) -> None:
    """The first gradient is larger than expected for rows of the same distribution, so private rows get more weight."""
    found, aggregation = [], []
    for seed in range(4):
        world = World.of(task, 150, seed)
        without, same, turned = (world.trained(epsilon, rows) for rows in (None, world.public, world.turned))
        wrong = prior_of(world.problem, world.turned).weights
        found.append([world.loss(item) for item in (without.weights, turned.weights, wrong)])
        states = [PublicState.unpacked(item.outcome.broadcast, wrong.shape) for item in (without, same, turned)]
        assert states[0].prior_weight == 0.0
        aggregation.append(states[2].prior_weight / states[1].prior_weight)
    assert max(aggregation) < 0.5
    without_any, misled, public = np.mean(found, axis=0)
    assert misled < 1.06 * without_any < public


@pytest.mark.parametrize("task", TASKS)
def test_flipped_labels_with_much_noise_still_give_a_useful_model(task: str) -> None:
    found = []
    for seed in range(4):
        world = World.of(task, 150, seed)
        misled = world.trained(0.3, world.turned)
        found.append([world.loss(item) for item in (misled.weights, np.zeros_like(misled.weights))])
    misled_loss, nothing = np.mean(found, axis=0)
    assert misled_loss < 0.75 * nothing


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_public_rows_with_random_labels_cost_little(task: str) -> None:
    """Dummy rows: if private rows are uninformative too, the model must not be a down-weighted prior."""
    found = []
    for seed in range(4):
        world = World.of(task, 150, seed)
        labels = np.random.default_rng(seed).permutation(world.public.labels)
        dummies = make_rows(world.public.features, labels)
        found.append([world.loss(world.trained(0.3, rows).weights) for rows in (None, dummies)])
    without, misled = np.mean(found, axis=0)
    assert misled < (1.07 if task == "binary" else 1.1) * without


# What it costs


@pytest.mark.parametrize("method", ["auto", "dp_admm"])
@pytest.mark.parametrize("exact", [False, True])
def test_prior_has_no_privacy_cost(method: str, exact: bool) -> None:
    """Plan, noise and report equal those of the run without public rows."""
    world = World.of("binary", 100, 1)
    plain, started = (world.trained(1.0, rows, method=method, exact=exact) for rows in (None, world.public))
    assert started.privacy.to_dict() == plain.privacy.to_dict()
    rounds = plain.training.planned_rounds
    assert started.training == plain.training
    for agent in range(3):
        assert started.method.plan(agent, rounds) == plain.method.plan(agent, rounds)
    if not exact:
        assert not np.array_equal(started.weights, plain.weights)


def test_other_methods_start_from_the_public_model() -> None:
    world = World.of("binary", 100, 1)
    prior = prior_of(world.problem, world.public)
    training = Training(method="dp_admm", loss=Logistic(), epsilon=1.0, n_rounds=3)
    shape = prior.weights.shape
    runs = [
        run(training, world.problem, world.private, SimulatedNoise(1, 3, shape), **given)
        for given in ({"prior": prior}, {"warm_start": prior.weights})
    ]
    np.testing.assert_array_equal(runs[0].weights, runs[1].weights)
