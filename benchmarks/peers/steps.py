"""One step of another library for every line that comes in: ``python steps.py PEER ROWS.npz``, which prints seconds.

Whoever asks takes turns between peers, so that a slow moment of the machine hits all of them.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable

import numpy as np


def torch_step(features: np.ndarray, labels: np.ndarray) -> Callable[[], float]:
    """A full-batch gradient step without privacy, float32."""
    import torch

    rows, answers = torch.tensor(features, dtype=torch.float32), torch.tensor(labels > 0).float()
    model = torch.nn.Linear(features.shape[1], 1, bias=False)
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.BCEWithLogitsLoss()

    def step() -> float:
        optimizer.zero_grad()
        loss(model(rows)[:, 0], answers).backward()
        optimizer.step()
        return 1.0

    return step


def opacus_step(features: np.ndarray, labels: np.ndarray) -> Callable[[], float]:
    """The same with every row's gradient clipped to 1, and noise."""
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    rows, answers = torch.tensor(features, dtype=torch.float32), torch.tensor(labels > 0).float()
    model = GradSampleModule(torch.nn.Linear(features.shape[1], 1, bias=False))
    plain, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.BCEWithLogitsLoss()
    optimizer = DPOptimizer(plain, noise_multiplier=10.0, max_grad_norm=1.0, expected_batch_size=len(labels))

    def step() -> float:
        optimizer.zero_grad()
        loss(model(rows)[:, 0], answers).backward()
        optimizer.step()
        return 1.0

    return step


def diffprivlib_step(features: np.ndarray, labels: np.ndarray) -> Callable[[], float]:
    """An iteration of the solver behind objective perturbation."""
    from diffprivlib.models import LogisticRegression

    shorter = features * (1.0 - 1e-9)  # norms of 1 to the last digit are refused

    def step() -> float:
        model = LogisticRegression(epsilon=1.0, data_norm=1.0, fit_intercept=False, max_iter=20, tol=1e-12)
        return float(np.max(model.fit(shorter, labels).n_iter_))

    return step


STEPS = {"torch": torch_step, "opacus": opacus_step, "diffprivlib": diffprivlib_step}
"""What does a number of steps, and says how many."""


def main() -> None:
    warnings.simplefilter("ignore")
    rows = dict(np.load(sys.argv[2]))
    step = STEPS[sys.argv[1]](rows["features"], rows["labels"])
    step()
    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        count = step()
        print((time.perf_counter() - started) / count, flush=True)


if __name__ == "__main__":
    main()
