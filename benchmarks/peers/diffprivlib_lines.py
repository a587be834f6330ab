"""diffprivlib's LogisticRegression: objective perturbation with its defaults and data_norm = 1, pure ε (δ = 0)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from diffprivlib.models import LogisticRegression
from lines import Train, print_lines


def runs(epsilon: float, delta: float) -> Iterator[tuple[str, float, Train]]:
    def train(features: np.ndarray, labels: np.ndarray, seed: int) -> np.ndarray:
        if len(set(labels.tolist())) < 2:  # it refuses to train on one class
            return np.zeros(features.shape[1])
        model = LogisticRegression(
            epsilon=epsilon, data_norm=1.0, fit_intercept=False, max_iter=1000, random_state=seed
        )
        shorter = features * (1.0 - 1e-9)  # norms of 1 to the last digit are refused or clipped with a warning
        return np.asarray(model.fit(shorter, labels).coef_[0])

    yield "", epsilon, train


if __name__ == "__main__":
    print_lines("diffprivlib", runs)
