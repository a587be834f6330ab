"""Does a private search pay? ``python benchmarks/search.py``: test error of ``auto`` and of a search, at one total ε.

Six candidates, four tables, ten splits; with simulated noise. Five minutes.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split

from dpadmm import DPADMMClassifier, PrivacyLeakWarning, PrivateSearch, load_adult
from dpadmm.data.datasets.tables import load_table

TABLES, SPLITS, DELTA = ("adult", "churn", "mortality", "compas"), 10, 1e-5
CANDIDATES: list[dict[str, Any]] = [
    {},
    {"C": 0.1},
    {"C": 0.01},
    {"max_iter": 10},
    {"max_iter": 50},
    {"method": "dp_admm", "max_iter": 30},
]


def errors(name: str, epsilon: float, split: int) -> tuple[float, float]:
    """Test error in percent of ``auto``, and of the search."""
    data = load_adult() if name == "adult" else load_table(name)
    seed = 1000 * split + 10 * TABLES.index(name) + int(epsilon)
    X, X_test, y, y_test = train_test_split(np.asarray(data.features), data.labels, test_size=0.25, random_state=split)
    auto = DPADMMClassifier(epsilon, delta=DELTA, data_norm=1.0, classes=[-1, 1], random_state=seed)
    search = PrivateSearch(auto, CANDIDATES, epsilon=epsilon, delta=DELTA, random_state=seed)
    first, second = (100.0 * (1.0 - each.fit(X, y).score(X_test, y_test)) for each in (auto, search))
    return first, second


def main() -> None:
    warnings.simplefilter("ignore", PrivacyLeakWarning)
    print("table       ε    auto  search  difference ± standard error")
    for name in TABLES:
        for epsilon in (1.0, 3.0):
            auto, search = np.array([errors(name, epsilon, split) for split in range(SPLITS)]).T
            spread = np.std(search - auto, ddof=1) / np.sqrt(SPLITS)
            told = f"{auto.mean():6.2f}  {search.mean():6.2f}  {np.mean(search - auto):+.2f} ± {spread:.2f}"
            print(f"{name:10}  {epsilon:g}  {told}", flush=True)


if __name__ == "__main__":
    main()
