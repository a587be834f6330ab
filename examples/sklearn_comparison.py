"""The cost of privacy: DPADMMClassifier against scikit-learn's LogisticRegression at several ε.

    python examples/sklearn_comparison.py [FITS]

Accuracy on a quarter of the rows, held out; mean and spread over fits (3) with fresh exact noise. The bounds
are public: a pixel is 0 to 16, the norm of 64 of them is assumed to be at most 80, and the measures of a
nucleus are rounded up from the summary that is published with that data set.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpadmm import DPADMMClassifier

EPSILONS = (0.5, 1.0, 3.0, 10.0)
DELTA = 1e-5

# radius, texture, perimeter, area; smoothness, compactness, concavity; concave points, symmetry, fractal
_NUCLEUS = np.array([40.0, 50.0, 260.0, 4500.0, 0.25, 1.1, 1.3, 0.3, 0.7, 0.25])
_LARGEST = np.concatenate([_NUCLEUS, _NUCLEUS / 8.0, _NUCLEUS])  # mean, standard error, worst

DATA: dict[str, tuple[Any, dict[str, Any]]] = {
    "digits": (load_digits, {"data_norm": 80.0, "classes": range(10)}),
    "breast cancer": (load_breast_cancer, {"bounds": (0.0, _LARGEST), "classes": [0, 1]}),
}


class Line(NamedTuple):
    """One line of the table: accuracy, mean and standard deviation over fits, by ε; None is not private."""

    data: str
    epsilon: float | None
    accuracy: float
    spread: float


def compare(data: str, *, epsilons: Sequence[float] = EPSILONS, n_fits: int = 3) -> list[Line]:
    """Accuracies without privacy and at every ε, each the mean of ``n_fits`` fits."""
    load, public = DATA[data]
    X, y = load(return_X_y=True)
    train_rows, test_rows, train_labels, test_labels = train_test_split(X, y, stratify=y, random_state=0)
    plain = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(train_rows, train_labels)
    lines = [Line(data, None, float(plain.score(test_rows, test_labels)), 0.0)]
    for epsilon in epsilons:
        scores = [
            DPADMMClassifier(epsilon, delta=DELTA, **public).fit(train_rows, train_labels).score(test_rows, test_labels)
            for _ in range(n_fits)
        ]
        lines.append(Line(data, epsilon, float(np.mean(scores)), float(np.std(scores))))
    return lines


def main(n_fits: int = 3) -> None:
    """Print the table."""
    print(f"{'data':<15}{'model':<22}{'total ε':>8}{'accuracy':>10}{'± spread':>10}")
    for data in DATA:
        for line in compare(data, n_fits=n_fits):
            model = "LogisticRegression" if line.epsilon is None else "DPADMMClassifier"
            epsilon = "none" if line.epsilon is None else f"{line.epsilon:g}"
            print(f"{line.data:<15}{model:<22}{epsilon:>8}{line.accuracy:>10.3f}{line.spread:>10.3f}")
    print(f"δ = {DELTA:g}; every fit by itself has the ε of its line")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
