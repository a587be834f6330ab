"""The constant column is part of the row: with it, row norms are at most 1 and gradient norms at most c1.

Norms are computed in exact fractions of the stored numbers, so rounding cannot hide a violation.
"""

from __future__ import annotations

import csv
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cases import coded, prove
from guards import gradient_total, private
from hypothesis import given
from hypothesis import strategies as st
from looping import case
from scipy.sparse import csr_array

import dpadmm.estimators.base as base
from dpadmm import DPADMMClassifier, DPADMMRegressor, kernels, simulate
from dpadmm.data.encoder import Encoder
from dpadmm.data.schema import Boolean, Category, Number, Plain, Schema
from dpadmm.losses import Logistic, Softmax, Squared
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.clipping import BESIDE_INTERCEPT, INTERCEPT, NORM_SLACK, clip_rows, with_intercept
from dpadmm.matrices.coded import CodedRows
from dpadmm.matrices.features import Features
from dpadmm.queries.problem import Rows, make_rows
from dpadmm.sites.site import site_from
from dpadmm.studies.study import Study
from dpadmm.training.simulate import run_prepared as run

STORAGE = ["dense-f64", "dense-f32", "csr-f64", "csr-f32", "coded-f64", "coded-f32"]
LOSSES = [Logistic(), Squared(gradient_bound=0.5), Softmax(n_outputs=3)]


def stored(rows: Floats, storage: str) -> Features:
    kind, width = storage.split("-")
    typed = np.asarray(rows, dtype=np.float64 if width == "f64" else np.float32)
    return {"dense": np.asarray, "csr": csr_array, "coded": coded}[kind](typed)


def dense(features: Features) -> Any:
    return features if isinstance(features, np.ndarray) else features.toarray()


def max_norm(features: Features) -> float:
    """Return the largest row norm, with its square summed without rounding."""
    squares = (sum(Fraction(float(x)) ** 2 for x in row) for row in dense(features))
    return float(max(squares)) ** 0.5


def slack(features: Features) -> float:
    return 4e-16 if features.dtype == np.float64 else 2e-7


def check_rows(features: Features, least: float = 0.0) -> None:
    """Check that norms are at most 1 and that the constant column is the last and equal in every row."""
    assert slack(features) < NORM_SLACK
    assert least <= max_norm(features) <= 1.0 + slack(features)
    column = dense(features)[:, -1]
    np.testing.assert_allclose(column, INTERCEPT, rtol=1e-15 if features.dtype == np.float64 else 3e-7)


def on_the_sphere(seed: int = 0, n: int = 200, d: int = 6) -> Floats:
    """Return rows of norm 1 up to rounding:

    in random directions, along the axes, and with entries of very different size.
    """
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, d)) * 10.0 ** rng.integers(-6, 1, (n, d))
    rows[:, 0] += 1e-3
    rows[:d], rows[d] = np.eye(d), np.resize([0.6, 0.8, 0, 0, 0, 0], d)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def test_squared_shares_of_rows_and_constant_sum_to_1() -> None:
    for kind in (np.float64, np.float32):
        total = sum(Fraction(float(kind(share))) ** 2 for share in (INTERCEPT, BESIDE_INTERCEPT))
        assert abs(float(total) - 1.0) <= (1e-16 if kind is np.float64 else 1e-7)
    assert INTERCEPT > 0.2


def test_rows_of_norm_1_keep_norm_1_with_the_constant_column() -> None:
    for storage in STORAGE:
        with case(storage):
            with_constant = with_intercept(stored(on_the_sphere(), storage))
            assert with_constant.dtype == (np.float64 if storage.endswith("64") else np.float32)
            assert with_constant.shape == (200, 7)
            check_rows(with_constant, least=1.0 - 1e-6)
            check_rows(with_intercept(stored(np.zeros((3, 6)), storage)))
            make_rows(with_constant, np.ones(200))  # its own check agrees


@prove
@given(st.integers(0, 2**32), st.sampled_from(STORAGE), st.floats(1.0, 1e12), st.integers(1, 40))
def test_rows_are_clipped_before_the_constant_column_is_added(seed: int, storage: str, factor: float, d: int) -> None:
    rows = on_the_sphere(seed, 50, d) * factor
    rows[::2] *= 1.0 + 1e-7
    check_rows(with_intercept(clip_rows(stored(rows, storage))), least=1.0 - 1e-6)


def test_rows_within_the_tolerance_stay_within_it() -> None:
    for storage in STORAGE:
        with case(storage):
            rows = on_the_sphere() * (1.0 + 0.7 * NORM_SLACK)
            assert max_norm(with_intercept(stored(rows, storage))) <= 1.0 + NORM_SLACK


# --- tables ------------------------------------------------------------------------------------------------

FEW = (Number("a", (0, 1)), Number("b", (-5, 5)), Boolean("c"))
MANY = (*FEW, Category("d", tuple(f"v{i}" for i in range(60))))
PLAIN = tuple(Plain(f"p{i}") for i in range(4))
WIDE = (*PLAIN, Category("d", tuple(f"v{i}" for i in range(60))))
SCHEMAS = {
    "dense": Schema(FEW),
    "sparse": Schema(MANY),
    "dense, a smaller norm": Schema(FEW, row_norm=0.7),
    "sparse, a smaller norm": Schema(MANY, row_norm=0.7),
    "dense, plain": Schema(PLAIN),
    "sparse, plain": Schema(WIDE),
}


def cells(n: int = 300) -> Any:
    """Return cells at or beyond their bounds, which give the largest possible norms."""
    rng = np.random.default_rng(1)
    table: dict[str, Any] = {
        "a": rng.choice([0.0, 1.0, -9.0, 9.0], n),
        "b": rng.choice([-5.0, 5.0, 1e9], n),
        "c": rng.choice(["true", "false"], n),
        "d": rng.choice([f"v{i}" for i in range(62)], n),
    }
    for i in range(4):
        table[f"p{i}"] = rng.standard_normal(n) * 10.0 ** rng.integers(-3, 3, n)
    return pa.record_batch({name: pa.array(list(values)) for name, values in table.items()})


def test_norms_of_encoded_tables_include_the_constant_column() -> None:
    for name in SCHEMAS:
        with case(name):
            schema = SCHEMAS[name]
            features = Encoder(schema, intercept=True).encode(cells())
            assert isinstance(features, CodedRows) == bool(schema.n_categories)
            assert features.shape == (300, len(schema.features) + 1)
            check_rows(features, least=1.0 - 1e-5)
            without = Encoder(schema).encode(cells())
            scaled = dense(without) * np.float32(BESIDE_INTERCEPT)
            np.testing.assert_allclose(dense(features)[:, :-1], scaled, rtol=1e-6, atol=0.0)


# --- gradients ---------------------------------------------------------------------------------------------


def gradients(rows: Rows, loss: Any, point: Floats, bound: float) -> list[Floats]:
    """Return the gradient of a duplicated row, from every kernel."""
    points = point[None]
    return [
        kernels.gradient(rows, points, loss, bound=bound)[0],
        kernels.guarded_sums(rows, points, loss, bound=bound)[0] / 2.0,
        kernels.reference_gradient(rows, points, loss, None, bound=bound)[0],
    ]


def test_gradient_is_clipped_jointly_with_the_constant_column() -> None:
    """At a far point the norm of the whole gradient is c1."""
    for storage, loss in product(STORAGE, LOSSES):
        with case(storage, loss):
            data = with_intercept(stored(on_the_sphere(n=8), storage))
            rng = np.random.default_rng(0)
            for bound in (loss.lipschitz, 0.25 * loss.lipschitz):
                for j in range(8):
                    rows = make_rows(data[[j, j]], np.ones(2))
                    wrong = np.array([-1.0] if loss.n_outputs == 1 else [1.0, -1.0, 0.0])
                    point = 1e4 * dense(data)[j].astype(float)[:, None] * wrong * rng.uniform(0.5, 1.0)
                    for found in gradients(rows, loss, point, bound):
                        length = float(np.linalg.norm(found))
                        assert 0.999 * bound <= length <= bound * (1.0 + 1e-12)
                        assert abs(found[-1]).max() > 0.1 * length  # it occurs


def test_an_owners_rows_with_a_constant_column() -> None:
    for storage, factor in product(STORAGE, [1.0, 1.0 + 1e-7, 7.0]):
        with case(storage, factor):
            loss = Squared(gradient_bound=0.5)
            for row in on_the_sphere(n=9)[:9]:
                rows = with_intercept(clip_rows(stored(np.stack([row, row]) * factor, storage)))
                own = private(rows, np.ones(2))
                assert own.n_features == 7
                check_rows(own._rows.features, least=1.0 - 1e-6)
                norms = own._rows.norms
                assert abs(norms[0] - max_norm(own._rows.features)) < 1e-12
                total = gradient_total(own, np.full((7, 1), 1e6), 0.5, loss) / 2.0
                assert 0.4999 < np.linalg.norm(total) <= 0.5 * (1.0 + 1e-12)


# --- whole runs --------------------------------------------------------------------------------------------


def check_run(rows: Rows, least: float = 1.0 - 1e-6) -> None:
    check_rows(rows.features, least)
    exact = np.linalg.norm(dense(rows.features).astype(float), axis=1)[rows.order]
    np.testing.assert_allclose(rows.norms, exact, rtol=1e-12)


def test_rows_of_a_simulation() -> None:
    for factor, storage in product([1.0, 50.0], STORAGE):
        with case(factor, storage):
            features = stored(on_the_sphere(n=60) * factor, storage)
            about: dict[str, Any] = {
                "epsilon": 1.0,
                "delta": 1e-5,
                "n_rounds": 1,
                "n_agents": 3,
                "metrics_every": 0,
            }
            result = simulate(
                (features, np.tile([-1.0, 1.0], 30)),
                intercept=True,
                clip_rows=factor > 1.0,
                test_rows=0,
                **about,
            )
            check_run(result.rows)


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize(
    "bounds",
    [{"data_norm": 2.0}, {"bounds": (-2.0, 2.0)}, {"scale": 0.5, "data_norm": 4.0}],
    ids=["norm", "bounds", "scale"],
)
def test_rows_of_estimators(monkeypatch: pytest.MonkeyPatch, storage: str, bounds: Any) -> None:
    seen: list[Rows] = []

    def watching(prepared: Any, *words: Any, **more: Any) -> Any:
        seen.append(prepared.rows)
        return run(prepared, *words, **more)

    monkeypatch.setattr(base, "run_prepared", watching)
    features = stored(on_the_sphere(n=60) * 2.0, storage)
    far = features * features.dtype.type(30.0)
    labels = np.arange(60) % 2
    for rows in (features, far):
        DPADMMClassifier(1.0, classes=[0, 1], max_iter=2, **bounds).fit(rows, labels)
        DPADMMRegressor(1.0, y_bounds=(0, 1), max_iter=2, **bounds).fit(rows, labels)
    assert len(seen) == 4
    for item in seen:
        check_run(item, least=1.0 - 1e-6 if "data_norm" in bounds else INTERCEPT)


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_rows_of_a_site(tmp_path: Path, kind: str) -> None:
    rows, labels = on_the_sphere(n=40, d=3) * np.where(np.arange(40) % 2, 1.0, 9.0)[:, None], np.ones(40)
    labels[::3] = -1.0
    if kind == "csv":
        with (tmp_path / "table.csv").open("w", newline="") as out:
            writer = csv.writer(out)
            writer.writerow(["x0", "x1", "x2", "y"])
            writer.writerows([*map(repr, map(float, row)), int(y)] for row, y in zip(rows, labels, strict=True))
    else:
        np.savez(tmp_path / "table.npz", features=rows, labels=labels)
    study = Study(
        name="with a constant",
        features=("x0", "x1", "x2") if kind == "csv" else ("x1", "x2", "x3"),
        classes=(-1, 1),
        training={"method": "dp_admm", "noise_multiplier": 20.0, "delta": 1e-5, "n_rounds": 2, "intercept": True},
    )
    table = {
        "format": "dpadmm-site/2",
        "ledger": "ledger",
        "data": {"table": f"table.{kind}", **({"label": "y"} if kind == "csv" else {})},
        "person": {"rows": 1},
        "limits": {
            "epsilon": 1.0,
            "delta": 1e-5,
            "methods": ["dp_admm"],
            "losses": ["logistic"],
            "max_rounds": 5,
            "min_rows": 2,
        },
    }
    site = site_from(table, tmp_path / "site.toml")
    check_run(site.open_rows(study)._rows)
