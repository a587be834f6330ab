"""Rows with owners: with ``by`` in a grid, every owner is an agent."""

from __future__ import annotations

import numpy as np
import pytest

from dpadmm.errors import StudyError
from reproduction.grid import grid_from
from reproduction.results import read_results

GRID = """
data = "patients.csv"
label = "outcome"
classes = ["no", "yes"]
by = "hospital"
[shared]
clip_rows = true
n_rounds = 3
test_rows = 0
[experiments.a]
[[experiments.a.runs]]
method = "dp_admm"
epsilon = 1.0
"""


@pytest.mark.usefixtures("workers_forked")
def test_owners_are_agents_in_the_results(reproduction, tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    lines = ["x,z,hospital,outcome"]
    lines += [
        f"{a:.3f},{b:.3f},{'ABC'[k % 3]},{'no' if a > 0.5 else 'yes'}" for k, (a, b) in enumerate(rng.random((60, 2)))
    ]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "patients.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "grid.toml").write_text(GRID)
    reproduction("run", "--grid", "grid.toml", "-o", "out", "--no-figures", "--workers", 1).succeeded()
    results = read_results(tmp_path / "out")
    assert set(results.frame["n_agents"]) == {3}
    assert set(results.frame["partition"]) == {"groups"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"n_agents": 5}, "leave n_agents out"), ({"partition": "equal"}, "partition cannot be 'equal'")],
)
def test_by_excludes_other_partition_settings(changes, says):
    run = {"method": "dp_admm", "epsilon": 1.0}
    for shared, block in (({}, changes), (changes, {})):
        table = {"data": "a.csv", "by": "hospital", "shared": shared}
        with pytest.raises(StudyError, match=says):
            grid_from({**table, "experiments": {"a": {"runs": [{**run, **block}]}}})


def test_seed_at_the_top_level_suggests_first_seed():
    with pytest.raises(StudyError, match="write that in place of seed"):
        grid_from({"seed": 3, "experiments": {}})
