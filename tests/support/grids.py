"""A small grid that uses all features, and the comparable part of results files."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dpadmm.data import Dataset, synthetic
from reproduction.results import TIMING, Results

SMALL: dict[str, Any] = {
    "title": "small",
    "data": "synthetic",
    "repeats": 2,
    "shared": {"n_rounds": 6, "metrics_every": 3, "delta": 1e-3},
    "experiments": {
        "agents": {
            "title": "Number of agents",
            "runs": [
                {"method": "dp_admm", "n_agents": [3, 6], "epsilon": [0.5, 2.0]},
                {"method": "centralized", "n_agents": 3},
            ],
        },
        "times": {
            "title": "Time",
            "runs": [{"method": "dp_admm", "n_agents": 3, "epsilon": 2.0, "timed": True, "repeats": 1}],
        },
        "again": {
            "title": "Cells of the first experiment, and one that cannot be",
            "runs": [
                {"method": "dp_admm", "n_agents": 3, "epsilon": 0.5},
                {"method": "dp_admm", "n_agents": 3, "round_epsilon": 5.0, "repeats": 1},
            ],
        },
    },
}
N_CELLS = 8 + 2 + 1 + 1


def small_rows() -> Dataset:
    return synthetic("binary", seed=0, n_rows=400, n_features=4)


def without_times(results: Results) -> pa.Table:
    """Return all columns that must agree between two runs of a grid."""
    return results.to_table().drop_columns(list(TIMING))
