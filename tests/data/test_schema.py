"""Public schemas: refusals, and the features of columns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from looping import case

from dpadmm.data.encoder import Encoder
from dpadmm.data.schema import Boolean, Category, Label, Number, Ordinal, Plain, Schema
from dpadmm.errors import StudyError


def test_features_of_every_kind() -> None:
    columns = (
        Number("age", (0, 120), missing="indicator"),
        Number("dose", (1, 1000), transform="log"),
        Number("bmi", (10, 60), bins=(18.5, 25, 30)),
        Category("sex", ("f", "m")),
        Ordinal("stage", ("I", "II", "III")),
        Boolean("smoker", missing="indicator"),
        Plain("score"),
    )
    schema = Schema(columns)
    assert schema.features == (
        "age", "age missing", "dose", "bmi 10 to 18.5", "bmi 18.5 to 25", "bmi 25 to 30", "bmi 30 to 60",
        "bmi missing", "sex=f", "sex=m", "sex=other", "stage", "smoker", "smoker missing", "score",
    )  # fmt: skip
    assert schema.scale == pytest.approx(6**0.5)
    assert Schema((Plain("a"), Plain("b"))).scale == 1.0
    assert Schema(columns, row_norm=2).scale == 2.0


def test_categories_and_bins_are_coded_and_other_columns_are_numbers() -> None:
    of_bins, of_values = Number("a", (0, 9), bins=(3, 6)), Category("b", ("x", "y"))
    schema = Schema((of_bins, Number("c", (0, 1), missing="indicator"), of_values, Ordinal("d", ("low", "high"))))
    assert schema.n_categories == 2
    assert [schema.features[place] for place in schema.number_places] == ["c", "c missing", "d"]
    assert not Schema((Number("b", (0, 1)),)).n_categories


def crossed(pairs: Any) -> Schema:
    wide = [Category(name, tuple(map(str, range(n)))) for name, n in (("wide", 200), ("more", 100))]
    return Schema((Boolean("a"), Boolean("b"), Plain("p"), *wide), interactions=pairs)


def test_invalid_schemas_are_refused_in_one_sentence() -> None:
    for make, words in [
        (lambda: Number("age", (120, 0)), "bounds must rise"),
        (lambda: Number("age", (0, 0)), "bounds must rise"),
        (lambda: Number("age", (0, 5e-324)), "so far apart or so close"),
        (lambda: Number("age", (-1e308, 1e308)), "so far apart or so close"),
        (lambda: Number("age", (1e300, 1.0000000000000002e300), transform="log"), "too close for a log"),
        (lambda: Label("y", bounds=(-1e308, 1e308)), "so far apart or so close"),
        (lambda: Category("sex", ("f", "other")), "leave 'other' out"),
        (lambda: Category("sex", ("f", "m"), unseen=("x",)), "unseen names 'x', which is none of its values"),
        (lambda: Category("sex", ("f", " m")), "no blanks around"),
        (lambda: Number("age", (0,)), "bounds must be two numbers"),
        (lambda: Number("age", None), "bounds must be two numbers"),
        (lambda: Number("age", (0, float("nan"))), "must be finite numbers"),
        (lambda: Number("age", (0, "9")), "must be finite numbers"),
        (lambda: Number("age", (0, True)), "must be finite numbers"),
        (lambda: Number("age", (0, 9), transform="sqrt"), "transform must be none or log"),
        (lambda: Number("age", (0, 9), transform="log"), "a log needs bounds above 0"),
        (lambda: Number("age", (0, 9), missing="mean"), "missing must be middle or indicator"),
        (lambda: Number("age", (0, 9), bins=(5, 5)), "bins must be edges that rise"),
        (lambda: Number("age", (0, 9), bins=(-5, 5)), "bins must be edges that rise"),
        (lambda: Number("age", (0, 9), knots=(5, 5)), "knots must be numbers that rise within the bounds"),
        (lambda: Number("age", (0, 9), knots=(0, 5)), "knots must be numbers that rise within the bounds"),
        (lambda: Number("age", (0, 9), knots=(5,), bins=(5,)), "give one of them"),
        (lambda: Number("age", (0, 9), knots=(5,), center=1.0, scale=1.0), "knots need no center and scale"),
        (lambda: Number("a", (1, 1e301), knots=(1e300, math.nextafter(1e300, 1e301)), transform="log"), "too close"),
        (lambda: crossed("ab"), "interactions must be a list of pairs"),
        (lambda: crossed([("a", "b", "a")]), "interactions must be pairs of columns"),
        (lambda: crossed([("a", "z")]), "there is no column 'z'"),
        (lambda: crossed([("a", 3)]), "there is no column 3"),
        (lambda: crossed([("a", "p")]), "column 'p' is plain"),
        (lambda: crossed([("a", "a")]), "paired with itself"),
        (lambda: crossed([("a", "b"), ("b", "a")]), "'b' and 'a' are paired twice"),
        (lambda: crossed([("wide", "more")]), "would have 20,301 features"),
        (lambda: Category("sex", ()), "list of 1 to"),
        (lambda: Category("sex", "fm"), "list of 1 to"),
        (lambda: Category("sex", ("f", "f")), "'f' is there twice"),
        (lambda: Category("sex", ("f", 1.5)), "text or a whole number"),
        (lambda: Category("sex", ("  ",)), "must not be empty"),
        (lambda: Ordinal("stage", ("I",)), "list of 2 to"),
        (lambda: Schema(()), "at least one column"),
        (lambda: Schema((Plain("a"), Plain("a"))), "column 'a' is there twice"),
        (lambda: Schema((Category("a", ("b",)), Plain("a=b"))), "feature 'a=b' is there twice"),
        (lambda: Schema((Plain("a"),), row_norm=0.0), "row_norm must be a positive number"),
        (lambda: Label("y"), "either classes"),
        (lambda: Label("y", classes=("a", "b"), bounds=(0, 1)), "either classes"),
        (lambda: Label("y", classes=("a",)), "list of 2 to"),
        (lambda: Label("y", bounds=(1, 0)), "bounds must rise"),
        (lambda: Label("", bounds=(0, 1)), "name of a column"),
    ]:
        with case(make, words), pytest.raises(StudyError, match=words):
            make()


def test_missing_indicator_counts_in_the_row_norm() -> None:
    """With a scale far beyond the bounds the value is small, and the missing indicator is not."""
    wide = Number("a", (0.0, 1.0), center=0.5, scale=100.0, missing="indicator")
    schema = Schema((wide, Number("b", (-1.41, 1.41), center=0.0, scale=1.0)))
    assert wide.max_norm == 1.0
    assert not schema.bounded
    encoder = Encoder(schema)
    rows = encoder.encode(pa.record_batch({"a": [None, 0.5], "b": [1.41, 0.1]}))
    assert np.linalg.norm(rows, axis=1).max() <= 1.0
    assert encoder.report.clipped == 1
