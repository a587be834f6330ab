"""Replacing one person in a file changes a sum by at most 2·k·c1 and leaves m unchanged.

These are regression examples: when rows above the limit and rows without an id were dropped, replacing one person could
activate another person's row. They use only the files of a site.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from guards import gradient_total
from looping import case

from dpadmm.sites.site import read_site
from dpadmm.studies.study import Study

SITE = """
format = "dpadmm-site/2"
ledger = "ledger"
[data]
table = "{table}"
label = "y"
[person]
column = "id"
rows = {k}
[limits]
epsilon = 1.0
delta = 1e-6
methods = ["dp_admm"]
losses = ["logistic"]
max_rounds = 50
min_rows = 2
"""
STUDY = Study(
    name="a person",
    features=("a", "b"),
    classes=(-1, 1),
    training={"method": "dp_admm", "noise_multiplier": 20.0, "delta": 1e-6, "n_rounds": 5, "loss": "logistic"},
)
UP, SIDE, DOWN = ("0", "1", "1"), ("1", "0", "1"), ("0", "1", "-1")
"""Cells a, b and the label: gradients of norm 1/2 at 0, and of almost 1 far out."""

FAR = np.array([[-1e3], [-1e3]])
EXAMPLES = {
    "a blank id becomes a new person": (
        [("", *UP), ("", *UP), ("b", *SIDE)],
        [("n", *DOWN), ("", *UP), ("b", *SIDE)],
    ),
    "a new person becomes a blank id": (
        [("n", *UP), ("", *UP), ("b", *SIDE)],
        [(" ", *DOWN), ("", *UP), ("b", *SIDE)],
    ),
    "one of two spellings leaves": (
        [("7", *UP), ("007", *UP), ("b", *SIDE)],
        [("n", *DOWN), ("007", *UP), ("b", *SIDE)],
    ),
    "a second spelling comes first": (
        [("n", *UP), ("7", *DOWN), ("b", *SIDE)],
        [("7.0", *UP), ("7", *DOWN), ("b", *SIDE)],
    ),
    "capitals": ([("n", *UP), ("ada", *DOWN), ("b", *SIDE)], [("Ada", *UP), ("ada", *DOWN), ("b", *SIDE)]),
    "blanks around": ([("7", *UP), (" 7", *UP), ("b", *SIDE)], [("n", *DOWN), (" 7", *UP), ("b", *SIDE)]),
    "no value": ([("NA", *UP), ("NA", *UP), ("b", *SIDE)], [("n", *DOWN), ("NA", *UP), ("b", *SIDE)]),
}


def rows_of(folder, table, rows, *, k=1):
    """Return the rows of a file as a guard holds them."""
    columns = dict(zip(("id", "a", "b", "y"), zip(*rows, strict=True), strict=True))
    if table.endswith(".csv"):
        lines = [",".join(columns), *(",".join(row) for row in rows)]
        (folder / table).write_text("\n".join(lines) + "\n")
    else:
        numbers = {name: [float(cell) for cell in columns[name]] for name in ("a", "b")}
        pa.parquet.write_table(pa.table({**columns, **numbers}), folder / table)
    (folder / "site.toml").write_text(SITE.format(table=table, k=k))
    return read_site(folder / "site.toml").open_rows(STUDY)


def test_replacing_a_person_changes_a_sum_by_at_most_the_sensitivity(
    tmp_path_factory: pytest.TempPathFactory,
):
    for example, table in product(EXAMPLES, ["table.csv", "table.parquet"]):
        with case(example, table):
            tmp_path = tmp_path_factory.mktemp("case")
            one, other = (rows_of(tmp_path, table, rows) for rows in EXAMPLES[example])
            assert one.n_rows == other.n_rows == 3
            for point in (np.zeros((2, 1)), FAR, -FAR, FAR * [[1.0], [-1.0]]):
                moved = gradient_total(one, point, 1.0) - gradient_total(other, point, 1.0)
                assert np.linalg.norm(moved) <= 2.0


def test_silent_rows_have_zero_gradient_and_others_are_unchanged(tmp_path):
    rows = [("x", *UP), ("x", *SIDE), ("", *UP), ("8", *UP), ("08", *UP), ("y", *DOWN)]
    held = rows_of(tmp_path, "table.csv", rows)
    alone = rows_of(tmp_path, "table.csv", [rows[0], rows[5]])
    assert held.n_rows == 6
    assert np.array_equal(gradient_total(held, FAR, 1.0), gradient_total(alone, FAR, 1.0))
    assert gradient_total(held, FAR, 1.0).any()
