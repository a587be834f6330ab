"""What the peers' scripts share: ``python PEER_lines.py FOLDER EPSILONS DELTA`` prints the suite's lines.

One curator trains on all rows; or every agent on its own, and the models are averaged.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np

Train = Callable[[np.ndarray, np.ndarray, int], np.ndarray]
"""Features, labels ±1 and a seed -> weights."""


def print_lines(peer: str, runs: Callable[[float, float], Iterable[tuple[str, float, Train]]]) -> None:
    """A line for every file, ε and run; ``runs(ε, δ)`` are settings in words, total ε, and how to train."""
    warnings.simplefilter("ignore")
    folder, epsilons, delta = Path(sys.argv[1]), [float(each) for each in sys.argv[2].split(",")], float(sys.argv[3])
    for path in sorted(folder.glob("*.npz")):
        name, agents, seed = path.stem.rsplit("-", 2)
        data = dict(np.load(path))
        who = f"{peer}_{'curator' if agents == '1' else 'agents'}"
        for epsilon in epsilons:
            for setting, total, train in runs(epsilon, delta):
                models = [
                    train(data["features"][a:b], data["labels"][a:b], 1000 * int(seed) + k)
                    for k, (a, b) in enumerate(pairwise(data["offsets"]))
                ]
                scores = data["test_labels"] * (data["test_features"] @ np.mean(models, axis=0))
                error, loss = np.mean(scores <= 0), np.mean(np.logaddexp(0.0, -scores))
                print(f"{name},{who},{agents},{epsilon:g},{seed},{error:.6g},{loss:.6g},{setting},{total:.4g}")
