"""Opacus DP-SGD, logistic regression: ``python opacus_lines.py FOLDER EPSILONS DELTA`` prints the suite's lines.

One curator trains on all rows; or every agent on its own, and the models are averaged. 200 steps, each on a twentieth
of the rows (Poisson), clipped to 1; learning rates 1, 4, 16, of which the suite's page counts the best.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import torch
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


def train(features: np.ndarray, labels: np.ndarray, sigma: float, learning_rate: float, seed: int) -> np.ndarray:
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


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder, epsilons, delta = Path(sys.argv[1]), [float(each) for each in sys.argv[2].split(",")], float(sys.argv[3])
    for path in sorted(folder.glob("*.npz")):
        name, agents, seed = path.stem.rsplit("-", 2)
        data = np.load(path)
        parts = list(zip(data["offsets"][:-1], data["offsets"][1:], strict=True))
        contender = "opacus_curator" if agents == "1" else "opacus_agents"
        for epsilon in epsilons:
            sigma, spent = noise(epsilon, delta)
            for rate in LEARNING_RATES:
                models = [
                    train(data["features"][a:b], data["labels"][a:b], sigma, rate, 1000 * int(seed) + k)
                    for k, (a, b) in enumerate(parts)
                ]
                scores = data["test_labels"] * (data["test_features"] @ np.mean(models, axis=0))
                error, loss = np.mean(scores <= 0), np.mean(np.logaddexp(0.0, -scores))
                print(f"{name},{contender},{agents},{epsilon:g},{seed},{error:.6g},{loss:.6g},{rate:g},{spent:.4g}")


if __name__ == "__main__":
    main()
