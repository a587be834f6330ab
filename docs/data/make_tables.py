"""Write the synthetic tables that the pages use: sample.csv (public), patients.csv (private), test.csv and new.csv."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

SIZES = {"sample": 1_000, "patients": 40_000, "test": 4_000, "new": 200}
DISTRICTS = [
    f"{place} {name}"
    for place in ("East", "Lower", "New", "Upper", "West")
    for name in ("Ashby", "Brook", "Carr", "Dale", "Elm", "Ford", "Glen", "Hall")
]


def make_table(n_rows: int, seed: int) -> pa.Table:
    """Patients of five hospitals; illness depends on age, blood pressure, weight, smoking, sex and district."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(3, n_rows))
    smoker, female = rng.random(n_rows) < 0.3, rng.random(n_rows) < 0.5
    district = rng.integers(len(DISTRICTS), size=n_rows)
    effects = np.random.default_rng(40).normal(scale=1.3, size=len(DISTRICTS))  # the same in all tables
    score = 0.9 * z[0] + 0.6 * z[1] + 0.4 * z[2] + 0.9 * (smoker - 0.3) - 0.3 * (female - 0.5)
    score += effects[district] - effects.mean()
    ill = rng.random(n_rows) < 1 / (1 + np.exp(0.5 - 1.3 * score))
    return pa.table(
        {
            "case": [f"c{i:05d}" for i in range(n_rows)],
            "hospital": rng.permutation(np.array(list("ABCDE"))[np.arange(n_rows) % 5]),
            "age": (56 + 16 * z[0]).clip(18, 99).round().astype(int),
            "systolic": (132 + 17 * z[1]).clip(80, 220).round().astype(int),
            "bmi": (27 + 5 * z[2]).clip(14, 60).round(1),
            "smoker": np.where(smoker, "yes", "no"),
            "sex": np.where(female, "female", "male"),
            "district": np.array(DISTRICTS)[district],
            "ill": np.where(ill, "yes", "no"),
        }
    )


def write_tables(folder: Path, *, draw: int = 0) -> None:
    """Write all four to a folder; new.csv has no label. Another ``draw`` is of other patients."""
    for k, (name, n_rows) in enumerate(SIZES.items()):
        table = make_table(n_rows, 4 * draw + k)
        csv.write_csv(table.drop_columns("ill") if name == "new" else table, folder / f"{name}.csv")


if __name__ == "__main__":
    write_tables(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
