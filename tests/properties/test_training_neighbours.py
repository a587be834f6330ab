"""Training in one process: replacing a row changes the first noisy sums by at most the sensitivity.

This covers ``train`` on a file, ``simulate`` with exact noise, and the estimators. The unit is a row. All entropy comes
from a seed, so both worlds assign rows and draw noise alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cases import prove
from guards import memory_folder
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from neighbours import LONG, Outbound, Releases, allowed_steps, dense, recorded, steps_between, watched
from person_tables import COLUMNS, OUTCOMES, POLES, PersonTable, Row, person_study
from scipy.sparse import csr_array

from dpadmm import Dataset, simulate
from dpadmm.cli.train import encode
from dpadmm.errors import PrivacyLeakWarning
from dpadmm.estimators import DPADMMClassifier, DPADMMRegressor
from dpadmm.methods.theory import Constants, constants_of
from dpadmm.models.model import model_of
from dpadmm.models.run import Result
from dpadmm.training.train import run_study

some = settings(prove, phases=set(Phase) - {Phase.explain}, max_examples=500 if LONG else 8)


TASKS = {"logistic": "binary", "softmax": "multiclass", "squared": "regression", "huber": "regression"}


@dataclass
class World:
    """Public facts and releases of a run."""

    public: Any
    releases: Releases
    messages: list[str]
    first: Any = None


def world(run: Callable[[], tuple[Any, Any]]) -> World:
    """Run a function with the seeded entropy and the stopped clock that all worlds share."""
    seen = Outbound()
    with watched(seen, seed=1), recorded() as releases, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        public, first = run()
    seen.messages += [f"{warning.category.__name__}: {warning.message}" for warning in caught]
    return World(public, releases, seen.messages, first)


def check(one: World, other: World, n_agents: int) -> None:
    """Check that public facts agree, that one row differs, and that one agent's first sum changed by at most S."""
    assert one.public == other.public
    assert one.messages == other.messages
    rows, twins = one.releases.rows, other.releases.rows
    assert rows is not None
    assert twins is not None
    assert np.array_equal(rows.offsets, twins.offsets)
    (a, b), (c, d) = dense(rows), dense(twins)
    assert np.count_nonzero((a != c).any(axis=1) | (b != d)) <= 1
    pairs = list(zip(one.releases.answers, other.releases.answers, strict=True))
    assert len(pairs) >= n_agents
    assert all(grid == twin for (grid, _), (twin, _) in pairs)
    moved = [steps_between(a, b) / allowed_steps(grid) for (grid, a), (_, b) in pairs[:n_agents]]
    assert sum(mutant > 0.0 for mutant in moved) <= 1
    assert max(moved) <= 1.0


# dpadmm train

ODD = {
    "age": ("", None, "500", "-3", "1e308", "-1e308", "0.001"),
    "bmi": ("", None, "500", "-1e300", "1e18"),
    "region": ("", None, "elsewhere", "north ", "other", 'say "so"', "a,b"),
    "grade": ("", None, "best", " high"),
    "smoker": ("", None, "perhaps", "TRUE", "f"),
    "note": ("two\nlines", "x"),
}


@st.composite
def bodies(draw: Any, outcomes: tuple[str, ...]) -> Row:
    """Draw a row without its owner, with a valid label. Invalid labels raise an error that names the row."""
    cells = list(POLES[draw(st.sampled_from(("top", "bottom", "inside")))])
    for _ in range(draw(st.sampled_from((0, 0, 1, 2)))):
        column = draw(st.sampled_from(COLUMNS[1:-1]))
        cells[COLUMNS.index(column) - 1] = draw(st.sampled_from(ODD[column]))
    return (*cells, draw(st.sampled_from(outcomes)))


@st.composite
def trainings(draw: Any, loss: str) -> tuple[Any, list[PersonTable], str | None, int | None]:
    """Draw a study, a table, its neighbour, and the assignment of rows to agents."""
    study = draw(
        st.builds(
            person_study,
            st.just(loss),
            st.sampled_from(("mixed", "sparse", "shortened")),
            intercept=st.booleans(),
            method=st.sampled_from(("auto", "dp_sgd", "dp_admm")),
        )
    )
    outcomes = OUTCOMES["numbers"] if study.classes is None else study.classes
    body = bodies(outcomes)
    bare = draw(st.lists(body, min_size=6, max_size=14))
    owners = "abab" + draw(st.text("ab", min_size=len(bare) - 4, max_size=len(bare) - 4))
    whole = [(owner, *row) for owner, row in zip(owners, bare, strict=True)]
    place = draw(st.integers(0, len(whole) - 1))
    other = [*whole[:place], (whole[place][0], *draw(body)), *whole[place + 1 :]]
    form = draw(st.sampled_from(("csv", "parquet text", "parquet coded", "parquet typed")))
    by = draw(st.sampled_from(("id", None)))
    agents = None if by else draw(st.sampled_from((None, 1, 2, 3)))
    return study, [PersonTable(tuple(item), form, "text") for item in (whole, other)], by, agents


@pytest.mark.parametrize("loss", sorted(TASKS))
@some
@given(data=st.data())
def test_only_noisy_sums_of_train_depend_on_a_row(data: Any, loss: str) -> None:
    study, tables, by, agents = data.draw(trainings(loss))

    def run(table: PersonTable) -> tuple[Any, Any]:
        with memory_folder() as folder:
            rows = encode(study, folder / table.write(folder), by=by)
            seen: list[Any] = []
            result = run_study(
                study, rows, n_agents=agents or 1, observers=[lambda view: seen.append(view.consensus.copy())]
            )
            model = model_of(result)
            about = (model.task, model.classes, model.feature_names, model.weights.shape, model.privacy)
        facts = (result.names, result.n_rows, np.shape(seen), result.outcome.rounds)
        public = (result.privacy.to_bytes(), facts, about)
        return public, seen[0]

    one, other = (world(lambda table=table: run(table)) for table in tables)
    n_agents = 2 if by else agents or 1
    check(one, other, n_agents)
    if study.training.method.name == "dp_sgd":  # the first model is the mean of uploads, times the step
        sizes = {grid.n_rows: grid for grid, _ in one.releases.answers}
        most = max(grid.sensitivity / m for m, grid in sizes.items()) / n_agents
        moved = float(np.linalg.norm(one.first - other.first))
        assert moved <= study.training.method.learning_rate * most * (1.0 + 1e-9)


# simulate(exact_noise=True)

SIZES = [0.0, 5e-324, 1e-170, 1e-12, 0.3, 1.0, 1e3, 1e150]
SIGNS = st.sampled_from([-1.0, 1.0])


def _label(loss: str, sign: float, size: float) -> float:
    if TASKS[loss] == "binary":
        return sign
    return float(size > 0.5) + float(sign > 0.0) if TASKS[loss] == "multiclass" else sign * size


@st.composite
def arrays(draw: Any, loss: str) -> tuple[Any, Any, Any, Any]:
    """Draw rows and labels, and the same with one row replaced."""
    few = draw(st.sampled_from((len(SIZES), 6, 5)))  # the new person may be an extreme outlier

    def row(sizes: list[float]) -> Any:
        cell = st.builds(np.multiply, st.sampled_from(sizes), SIGNS)
        return st.lists(cell, min_size=3, max_size=3)

    def label(sizes: list[float]) -> Any:
        return st.builds(lambda sign, size: _label(loss, sign, size), SIGNS, st.sampled_from(sizes))

    x = np.array(draw(st.lists(row(SIZES[:few]), min_size=8, max_size=12)))
    y = np.array(draw(st.lists(label([0.0, 1.0]), min_size=len(x), max_size=len(x))))
    x2, y2, place = x.copy(), y.copy(), draw(st.integers(0, len(x) - 1))
    x2[place], y2[place] = draw(row(SIZES)), draw(label([0.0, 1.0, 1e6]))
    return x, y, x2, y2


def _constants(result: Result) -> Constants:
    """Return the constants of the paper's theorems, for any method."""
    return constants_of(
        result.problem,
        n_features=result.rows.n_features,
        n_rows=result.rows.n_rows,
        noise_multiplier=getattr(result.method, "noise_multiplier", np.zeros(result.rows.n_agents)),
        weight_radius=getattr(result.training.method, "weight_radius", 1.0),
    )


@pytest.mark.parametrize("loss", sorted(TASKS))
@some
@given(data=st.data())
def test_only_noisy_sums_of_simulate_with_exact_noise_depend_on_a_row(data: Any, loss: str) -> None:
    x, y, x2, y2 = data.draw(arrays(loss))
    partition, sparse = data.draw(st.sampled_from(("equal", "unequal", "groups"))), data.draw(st.booleans())
    groups = np.arange(len(y)) % 2 if partition == "groups" else None
    choices = {
        "loss": loss,
        "method": data.draw(st.sampled_from(("auto", "dp_admm", "dp_sgd"))),
        "intercept": data.draw(st.booleans()),
        "metrics_every": data.draw(st.sampled_from((0, 1))),
        "test_rows": data.draw(st.sampled_from((0, 2))) if partition == "equal" else 0,
        "participation": data.draw(st.sampled_from((1.0, 0.6))),
        "partition": partition,
        "partition_spread": 0.1,
        "n_agents": 2,
        "seed": data.draw(st.sampled_from((3, None))),
    }
    classes = {"binary": (-1, 1), "multiclass": (0, 1, 2)}.get(TASKS[loss])

    def run(features: Any, labels: Any) -> tuple[Any, Any]:
        dataset = Dataset("rows", csr_array(features) if sparse else features, labels, classes, groups)
        result = simulate(dataset, epsilon=2.0, n_rounds=4, clip_rows=True, exact_noise=True, **choices)
        rows, model = result.rows, result.model
        facts = (rows.n_rows.tolist(), rows.n_features, result.outcome.rounds, result.iterations)
        shapes = (result.outcome.released.shape, model.weights.shape, sorted(result.trace.columns))
        public = (
            result.privacy.to_dict(),
            result.settings,
            _constants(result),
            result.method,
            facts,
            shapes,
            model.privacy,
        )
        return repr(public), None

    one, other = world(lambda: run(x, y)), world(lambda: run(x2, y2))
    check(one, other, 2 if choices["participation"] == 1.0 else 1)


# The estimators


@pytest.mark.parametrize("loss", sorted(TASKS))
@some
@given(data=st.data())
def test_only_noisy_sums_of_an_estimator_depend_on_a_row(data: Any, loss: str) -> None:
    x, y, x2, y2 = data.draw(arrays(loss))
    sparse, grouped = data.draw(st.booleans()), data.draw(st.booleans())
    kind = data.draw(st.sampled_from((np.float64, np.float32)))
    scale = data.draw(
        st.sampled_from(({"bounds": (-1.0, 1.0)}, {"data_norm": 2.0}, {"bounds": (-2.0, 1.0)}, {"scale": 0.5}))
    )
    method = data.draw(st.sampled_from(("auto", "dp_admm")))
    shared = {**scale, "method": method, "fit_intercept": data.draw(st.booleans()), "max_iter": 4, "epsilon": 2.0}
    groups = np.arange(len(y)) % 2 if grouped else None

    def run(features: Any, labels: Any) -> tuple[Any, Any]:
        features = np.clip(features, -1e30, 1e30).astype(kind)
        if TASKS[loss] == "regression":
            model = DPADMMRegressor(y_bounds=(-2.0, 2.0), loss=loss, gradient_bound=0.5, **shared)
        else:
            classes = [-1.0, 1.0] if loss == "logistic" else [0.0, 1.0, 2.0]
            model = DPADMMClassifier(classes=classes, **shared)
        model.fit(csr_array(features) if sparse else features, labels, groups)
        shapes = (np.shape(model.coef_), np.shape(model.intercept_), model.n_iter_, model.n_features_in_)
        return (model.privacy_, shapes, getattr(model, "classes_", np.empty(0)).tolist()), None

    one, other = world(lambda: run(x, y)), world(lambda: run(x2, y2))
    check(one, other, 2 if grouped else 1)


def test_message_about_missing_bounds_does_not_depend_on_rows() -> None:
    x = np.random.default_rng(0).uniform(-1.0, 1.0, (12, 3))
    y = np.where(x[:, 0] > 0.0, 1.0, -1.0)
    x2 = x.copy()
    x2[3] *= 100.0

    def run(features: Any) -> tuple[Any, Any]:
        return DPADMMClassifier(max_iter=3).fit(features, y).privacy_, None

    one, other = world(lambda: run(x)), world(lambda: run(x2))
    assert one.public == other.public
    assert one.messages == other.messages
    assert any(PrivacyLeakWarning.__name__ in line for line in one.messages)
