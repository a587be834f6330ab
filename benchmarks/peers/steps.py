"""Steps of one library beside reads of the same matrix: ``python steps.py CONTENDER ROWS.npz TURNS`` prints JSON.

A process is for one contender, so that no thread of another library is awake, and idle threads sleep: those that spin
slow the reads that a step is compared with, and on a busy machine everything.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

IDLE = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "OPENBLAS_THREAD_TIMEOUT": "4"}
"""Threads without work sleep, whichever library's; read when a library is loaded."""
os.environ.update(IDLE)

import numba  # noqa: E402
import numpy as np  # noqa: E402

AGENTS = 100
LEAST, LONG = 7, 20.0
"""Turns that are taken in any case, and seconds after which they suffice."""

Step = Callable[[], float]
"""Does a number of steps, and says how many."""


@numba.njit(parallel=True, fastmath=True)
def read(entries):
    """The sum of all entries with all cores: the least that any method could take which looks at every row once."""
    total = 0.0
    for i in numba.prange(entries.size):
        total += entries[i]
    return total


def one(task: Callable[[], object]) -> Step:
    def step() -> float:
        task()
        return 1.0

    return step


def dpadmm_round(features: np.ndarray, labels: np.ndarray, kind: str) -> Step:
    """A whole round of DP-ADMM, 100 agents."""
    from bench import round_of
    from dpadmm import load_adult, make_rows

    stored = load_adult().features[: len(labels)] if kind == "coded" else features.astype(kind)
    offsets = np.linspace(0, len(labels), AGENTS + 1).astype(np.int64)
    return one(round_of(make_rows(stored, labels, offsets=offsets)))


def numpy_round(features: np.ndarray, labels: np.ndarray) -> Step:
    """The same round as a researcher's loop over agents."""
    from bench import researchers_script

    return one(researchers_script(features, labels, AGENTS))


def scikit_learn_iteration(features: np.ndarray, labels: np.ndarray) -> Step:
    """An iteration of lbfgs, without privacy."""
    from sklearn.linear_model import LogisticRegression

    def step() -> float:
        model = LogisticRegression(fit_intercept=False, C=1.0, max_iter=1000, tol=1e-6)
        return float(np.max(model.fit(features, labels).n_iter_))

    return step


def torch_step(features: np.ndarray, labels: np.ndarray, *, private: bool = False) -> Step:
    """A full-batch gradient step, float32; if private, every row's gradient is clipped to 1 and noise is added."""
    import torch

    rows, answers = torch.tensor(features, dtype=torch.float32), torch.tensor(labels > 0).float()
    model = torch.nn.Linear(features.shape[1], 1, bias=False)
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.BCEWithLogitsLoss()
    if private:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        model = GradSampleModule(model)
        optimizer = DPOptimizer(optimizer, noise_multiplier=10.0, max_grad_norm=1.0, expected_batch_size=len(labels))

    def step() -> None:
        optimizer.zero_grad()
        loss(model(rows)[:, 0], answers).backward()
        optimizer.step()

    return one(step)


def diffprivlib_iteration(features: np.ndarray, labels: np.ndarray) -> Step:
    """An iteration of the solver behind objective perturbation."""
    from diffprivlib.models import LogisticRegression

    shorter = features * (1.0 - 1e-9)  # norms of 1 to the last digit are refused

    def step() -> float:
        model = LogisticRegression(epsilon=1.0, data_norm=1.0, fit_intercept=False, max_iter=20, tol=1e-12)
        return float(np.max(model.fit(shorter, labels).n_iter_))

    return step


@dataclass(frozen=True)
class Contender:
    """How it is called, the package that it is, its environment among the peers (None: ours), and its step."""

    title: str
    package: str
    environment: str | None
    make: Callable[[np.ndarray, np.ndarray], Step]


CONTENDERS = {
    "coded": Contender("dpadmm, coded rows", "dpadmm", None, lambda x, y: dpadmm_round(x, y, "coded")),
    "float32": Contender("dpadmm, float32 rows", "dpadmm", None, lambda x, y: dpadmm_round(x, y, "float32")),
    "float64": Contender("dpadmm, float64 rows", "dpadmm", None, lambda x, y: dpadmm_round(x, y, "float64")),
    "script": Contender("NumPy script, float64", "numpy", None, numpy_round),
    "lbfgs": Contender("scikit-learn, an lbfgs iteration", "scikit-learn", None, scikit_learn_iteration),
    "torch": Contender("torch, a full-batch step", "torch", "opacus", torch_step),
    "opacus": Contender("Opacus, a full-batch step", "opacus", "opacus", lambda x, y: torch_step(x, y, private=True)),
    "diffprivlib": Contender("diffprivlib, an lbfgs iteration", "diffprivlib", "diffprivlib", diffprivlib_iteration),
}


def second(step: Step) -> float:
    """Seconds of a step right after another."""
    step()
    started = time.perf_counter()
    count = step()
    return (time.perf_counter() - started) / count


def main() -> None:
    warnings.simplefilter("ignore")
    contender, rows, turns = CONTENDERS[sys.argv[1]], dict(np.load(sys.argv[2])), int(sys.argv[3])
    if contender.package != "dpadmm":
        numba.config.THREADING_LAYER = "workqueue"  # threads that never spin, beside those of the library
    entries = rows["features"].reshape(-1)
    one_read = one(lambda: read(entries))
    before = [second(one_read) for _ in range(turns)]
    step = contender.make(rows["features"], rows["labels"])
    reads, steps, started = [], [], time.perf_counter()
    while len(steps) < turns and (len(steps) < LEAST or time.perf_counter() < started + LONG):
        time.sleep(0.05)
        reads.append(second(one_read))
        steps.append(second(step))
    found = {"before": before, "read": reads, "step": steps}
    medians = {name: statistics.median(each) for name, each in found.items()}
    print(json.dumps(medians | {"turns": len(steps), "version": version(contender.package)}))


if __name__ == "__main__":
    main()
