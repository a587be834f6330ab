"""Opacus DP-SGD, logistic regression: 200 steps, each on a twentieth of the rows (Poisson), clipped to 1.

Learning rates are 1, 4 and 16, of which the suite's page counts the best.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import numpy as np
import torch
from lines import Train, print_lines
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant
from opacus.accountants.utils import get_noise_multiplier

RATE, STEPS, LEARNING_RATES = 0.05, 200, (1.0, 4.0, 16.0)


@cache
def noise(epsilon: float, delta: float) -> tuple[float, float]:
    """Noise multiplier, and the ε that it gives."""
    sigma = get_noise_multiplier(
        target_epsilon=epsilon,
        target_delta=delta,
        sample_rate=RATE,
        steps=STEPS,
        accountant="prv",
        epsilon_tolerance=0.005,
    )
    accountant = PRVAccountant()
    accountant.history = [(sigma, RATE, STEPS)]
    return sigma, float(accountant.get_epsilon(delta))


def train(features: np.ndarray, labels: np.ndarray, seed: int, *, sigma: float, learning_rate: float) -> np.ndarray:
    torch.manual_seed(seed)
    model = torch.nn.Linear(features.shape[1], 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    data = torch.utils.data.TensorDataset(torch.tensor(features, dtype=torch.float32), torch.tensor(labels > 0).float())
    loader = torch.utils.data.DataLoader(data, batch_size=max(1, round(RATE * len(labels))))
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=sigma, max_grad_norm=1.0
    )
    loss, done = torch.nn.BCEWithLogitsLoss(), 0
    while done < STEPS:
        for rows, answers in loader:
            if done == STEPS:
                break
            optimizer.zero_grad()
            loss(model(rows)[:, 0], answers).backward()
            optimizer.step()
            done += 1
    return model._module.weight.detach().numpy()[0].astype(float)


def runs(epsilon: float, delta: float) -> Iterator[tuple[str, float, Train]]:
    sigma, spent = noise(epsilon, delta)
    for rate in LEARNING_RATES:
        yield f"{rate:g}", spent, partial(train, sigma=sigma, learning_rate=rate)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print_lines("opacus", runs)
