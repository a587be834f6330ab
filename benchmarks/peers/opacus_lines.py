"""Opacus DP-SGD, logistic regression: steps on a random share of the rows (Poisson), clipped to 1.

What follows δ on the command line is settings to try, SHARE:STEPS:LEARNING_RATE with commas between, of which the
suite's page counts the best; if nothing does, 200 steps on a twentieth of the rows with learning rates 1, 4 and 16.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache, partial

import numpy as np
import torch
from lines import Train, print_lines
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant
from opacus.accountants.utils import get_noise_multiplier

SETTINGS = "0.05:200:1,0.05:200:4,0.05:200:16"


class Rows(torch.utils.data.TensorDataset):
    """Rows that are fetched together: one by one takes longer than training on them."""

    def __getitems__(self, index: list[int]) -> tuple[torch.Tensor, ...]:
        return self[index]


@cache
def noise(epsilon: float, delta: float, share: float, steps: int) -> tuple[float, float]:
    """Noise multiplier, and the ε that it gives."""
    sigma = get_noise_multiplier(
        target_epsilon=epsilon,
        target_delta=delta,
        sample_rate=share,
        steps=steps,
        accountant="prv",
        epsilon_tolerance=0.005,
    )
    accountant = PRVAccountant()
    accountant.history = [(sigma, share, steps)]
    return sigma, float(accountant.get_epsilon(delta))


def train(
    features: np.ndarray, labels: np.ndarray, seed: int, *, sigma: float, share: float, steps: int, learning_rate: float
) -> np.ndarray:
    torch.manual_seed(seed)
    model = torch.nn.Linear(features.shape[1], 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    data = Rows(torch.tensor(features, dtype=torch.float32), torch.tensor(labels > 0).float())
    size = max(1, round(share * len(labels)))
    loader = torch.utils.data.DataLoader(data, batch_size=size, collate_fn=lambda batch: batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=sigma, max_grad_norm=1.0
    )
    loss, done = torch.nn.BCEWithLogitsLoss(), 0
    while done < steps:
        for rows, answers in loader:
            if done == steps:
                break
            optimizer.zero_grad()
            loss(model(rows)[:, 0], answers).backward()
            optimizer.step()
            done += 1
    return model._module.weight.detach().numpy()[0].astype(float)


def runs(epsilon: float, delta: float) -> Iterator[tuple[str, float, Train]]:
    for setting in (sys.argv[4] if len(sys.argv) > 4 else SETTINGS).split(","):
        share, steps, rate = (float(each) for each in setting.split(":"))
        sigma, spent = noise(epsilon, delta, share, int(steps))
        yield setting, spent, partial(train, sigma=sigma, share=share, steps=int(steps), learning_rate=rate)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print_lines("opacus", runs)
