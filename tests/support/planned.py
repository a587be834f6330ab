"""A small study with mixed columns, and tables for it, for the tests of plans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

STUDY = """
format = "dpadmm-study/2"
name = "Example: flu"
[label]
column = "ill"
classes = ["no", "yes"]
[columns.age]
kind = "number"
bounds = [0, 100]
[columns.region]
kind = "category"
values = ["north", "south", "west"]
[columns.smoker]
kind = "boolean"
[method]
name = "dp_admm"
[training]
n_rounds = 20
intercept = true
[privacy]
epsilon = 1.0
delta = 1e-5
"""

REGRESSION = (
    STUDY.replace('column = "ill"\nclasses = ["no", "yes"]', 'column = "cost"\nbounds = [0, 200]')
    + '[loss]\nname = "squared"\n'
)


def table(path: Path, n_rows: int, *, seed: int = 0) -> Path:
    """Write rows with a strong signal and 5% missing cells."""
    rng = np.random.default_rng(seed)
    age, smoker = rng.uniform(0, 100, n_rows), rng.random(n_rows) < 0.4
    region = rng.choice(["north", "south", "west"], n_rows)
    score = (age - 50.0) / 12.0 + 2.0 * smoker - 0.8
    missing = rng.random((3, n_rows)) < 0.05
    cells = {
        "age": pa.array(age.round(1), mask=missing[0]),
        "region": pa.array(region, mask=missing[1]),
        "smoker": pa.array(np.where(smoker, "yes", "no"), mask=missing[2]),
        "ill": np.where(rng.random(n_rows) < 1.0 / (1.0 + np.exp(-score)), "yes", "no"),
        "cost": (60.0 + 0.8 * age + 10.0 * rng.standard_normal(n_rows)).round(1),
    }
    pa.csv.write_csv(pa.table(cells), path)
    return path
