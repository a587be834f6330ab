"""diffprivlib's LogisticRegression: ``python diffprivlib_lines.py FOLDER EPSILONS DELTA`` prints the suite's lines.

Objective perturbation with its defaults and data_norm = 1, pure ε (δ = 0). One curator trains on all rows; or every
agent on its own, and the models are averaged.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
from diffprivlib.models import LogisticRegression


def train(features: np.ndarray, labels: np.ndarray, epsilon: float, seed: int) -> np.ndarray:
    if len(set(labels.tolist())) < 2:  # it refuses to train on one class
        return np.zeros(features.shape[1])
    model = LogisticRegression(epsilon=epsilon, data_norm=1.0, fit_intercept=False, max_iter=1000, random_state=seed)
    return np.asarray(model.fit(features, labels).coef_[0])


def main() -> None:
    warnings.simplefilter("ignore")
    folder, epsilons = Path(sys.argv[1]), [float(each) for each in sys.argv[2].split(",")]
    for path in sorted(folder.glob("*.npz")):
        name, agents, seed = path.stem.rsplit("-", 2)
        data = np.load(path)
        features = data["features"] * (1.0 - 1e-9)  # norms of 1 to the last digit are refused or clipped with a warning
        parts = list(zip(data["offsets"][:-1], data["offsets"][1:], strict=True))
        contender = "diffprivlib_curator" if agents == "1" else "diffprivlib_agents"
        for epsilon in epsilons:
            models = [
                train(features[a:b], data["labels"][a:b], epsilon, 1000 * int(seed) + k)
                for k, (a, b) in enumerate(parts)
            ]
            scores = data["test_labels"] * (data["test_features"] @ np.mean(models, axis=0))
            error, loss = np.mean(scores <= 0), np.mean(np.logaddexp(0.0, -scores))
            print(f"{name},{contender},{agents},{epsilon:g},{seed},{error:.6g},{loss:.6g},,{epsilon:g}")


if __name__ == "__main__":
    main()
