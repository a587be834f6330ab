"""Does the default reach the optimum with little noise? ``python -m benchmarks.consistency``.

Excess log-loss of the default with one agent over the optimum on the same encoded rows (for numbers: the share of the
variance that is not explained in addition), on five generated and five real tables. Ten minutes.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from dpadmm import Dataset, simulate
from dpadmm.data.datasets.synthetic import synthetic
from dpadmm.data.datasets.tables import load_table
from dpadmm.queries.problem import make_rows

LOSSES = {"binary": "logistic", "multiclass": "softmax", "regression": "squared", "count": "poisson"}
GENERATED: dict[str, dict[str, Any]] = {
    "two classes": {"task": "binary", "n_rows": 7500, "n_features": 20, "signal": 2.0},
    "counts": {"task": "count", "n_rows": 7500, "n_features": 20, "signal": 1.0},
    "numbers": {"task": "regression", "n_rows": 7500, "n_features": 20},
    "four classes": {"task": "multiclass", "n_rows": 11354, "n_features": 30, "n_classes": 4, "signal": 1.5},
    "four classes, few rows": {"task": "multiclass", "n_rows": 1424, "n_features": 30, "n_classes": 4, "signal": 1.5},
}
REAL = {"churn": "binary", "affairs": "binary", "mortality": "binary", "rodents": "multiclass", "hotels": "regression"}


def tables() -> dict[str, tuple[str, Dataset]]:
    """All tables by name, with the kind of their labels."""
    generated = {name: (options["task"], synthetic(**options, seed=1)) for name, options in GENERATED.items()}
    return generated | {name: (task, load_table(name)) for name, task in REAL.items()}


def excess(task: str, data: Dataset, epsilon: float) -> float:
    """Return the excess of the default over the optimum, on the training rows."""
    options: dict[str, Any] = {"loss": LOSSES[task], "intercept": True, "alpha": 1e-6, "n_agents": 1}
    options |= {"test_rows": 0, "metrics_every": 0, "seed": 1}
    private, best = (simulate(data, method=method, **options, **budget) for method, budget in (
        ("auto", {"epsilon": epsilon}), ("centralized", {})))  # fmt: skip
    rows = make_rows(private.rows.features, private.rows.labels, order=private.rows.order)
    gap = private.problem.objective(rows, private.weights) - private.problem.objective(rows, best.weights)
    return 2.0 * gap / float(np.var(rows.labels)) if task == "regression" else gap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", nargs="+", type=float, default=[50.0, 200.0])
    given = parser.parse_args()
    print("| table |", " | ".join(f"ε = {each:g}" for each in given.epsilon), "|")
    print("|---|" + "---|" * len(given.epsilon))
    for name, (task, data) in tables().items():
        print(f"| {name} |", " | ".join(f"{excess(task, data, each):.4f}" for each in given.epsilon), "|", flush=True)


if __name__ == "__main__":
    main()
