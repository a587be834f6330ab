"""How often 95% intervals of a private fit contain the coefficients that rows were made with.

    python benchmarks/intervals.py                    # every cell, 500 repetitions each: about an hour on two cores
    python benchmarks/intervals.py --repetitions 50 --only "logistic, d = 6"

Each repetition has fresh rows, labels and (simulated) noise, so intervals have to count the sample and the noise.
Labels are drawn from the model of the rows as agents hold them, except in the misspecified cells. Beside the coverage
stands that of intervals which leave the privacy noise out, and the median width over that of a fit without privacy.
"""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dpadmm.engine.noise import SimulatedNoise
from dpadmm.losses import Poisson
from dpadmm.losses.poisson import coded, decoded
from dpadmm.matrices.clipping import INTERCEPT, clip_rows, with_intercept
from dpadmm.models.run import run
from dpadmm.queries.problem import make_rows
from dpadmm.studies.settings import Training

Numbers = NDArray[np.float64]
Z = 1.959964
REACH = 1.5
"""Rows are divided by this times √columns, and shortened to 1: few of normal columns are."""
LARGEST_COUNT = 20
"""Counts have a mean of about 1, by exposures between .2 and 1."""
LOSSES = {"logistic": "logistic", "squared": "squared", "poisson": Poisson(unit=1.0 / LARGEST_COUNT)}


@dataclass(frozen=True)
class Cell:
    """One kind of data and trust."""

    loss: str
    n_weights: int  # d, with the constant
    correlation: float
    aggregation: str  # plain (20 agents) or secure
    n_rows: int
    epsilon: float
    misfit: str = ""  # "", "heavy tails" or "clamped"

    def __str__(self) -> str:
        words = f"{self.loss}, d = {self.n_weights}, correlation {self.correlation:g}, {self.aggregation}"
        return f"{words}, {self.misfit}" if self.misfit else words


def cells() -> list[Cell]:
    """Rows and ε for which intervals are given: more of them for columns that go together, and for local noise."""
    found = []
    for loss in LOSSES:
        for d in (6, 11, 21):
            for correlation in (0.3, 0.8):
                for aggregation in ("plain", "secure"):
                    rows = 20_000 * (3 if aggregation == "plain" else 1) * (2 if d == 21 else 1)
                    rows = rows * 3 // 2 if correlation == 0.8 and d > 6 else rows
                    if loss == "poisson":
                        rows = rows * 3 // 2 if correlation == 0.3 else rows * 2
                    if (loss, d, correlation, aggregation) == ("squared", 21, 0.8, "plain"):
                        rows += rows // 3  # else six of ten runs give none
                    found.append(Cell(loss, d, correlation, aggregation, rows, 2.0))
        found += [Cell(loss, 6, 0.3, "secure", 20_000, 2.0, misfit) for misfit in ("heavy tails", "clamped")]
    return found


def data(cell: Cell, rng: np.random.Generator) -> tuple[Numbers, Numbers, Numbers]:
    """Rows of norm ≤ 1, labels, and the weights that they were made with."""
    d, n = cell.n_weights - 1, cell.n_rows
    shared = rng.normal(size=(n, 1))
    x = math.sqrt(cell.correlation) * shared + math.sqrt(1.0 - cell.correlation) * rng.normal(size=(n, d))
    if cell.misfit == "heavy tails":
        x *= np.sqrt(3.0 / rng.chisquare(3.0, size=(n, 1))) / math.sqrt(3.0)
    reach = REACH * math.sqrt(d) / (2.0 if cell.misfit == "clamped" else 1.0)
    true = np.resize([0.6, -0.4, 0.0, 0.3, -0.2], d)  # per standard deviation of a column
    scale = {"logistic": 1.0, "squared": 0.15, "poisson": 0.5}[cell.loss]
    constant = 0.5 - math.log(LARGEST_COUNT) if cell.loss == "poisson" else -0.5 * scale
    weights = np.append(true * scale * reach / 0.96, constant / INTERCEPT)
    plain = with_intercept(x / reach)
    rows = np.asarray(with_intercept(clip_rows(x / reach)))
    scores = np.asarray(plain if cell.misfit else rows) @ weights
    if cell.loss == "logistic":
        return rows, np.where(rng.random(n) < expit(scores), 1.0, -1.0), weights
    if cell.loss == "poisson":
        exposures, spread = rng.uniform(0.2, 1.0, n), 1.0
        if cell.misfit == "heavy tails":  # counts vary twice as much as their model says, or more
            spread = rng.gamma(2.0, 0.5, n)
        means = LARGEST_COUNT * exposures * spread * np.exp(scores)
        counts = rng.poisson(np.minimum(means, 1e6))  # which are cut at the largest count anyway
        return rows, coded(np.minimum(counts / LARGEST_COUNT, 1.0), exposures), weights
    noise = rng.standard_t(3.0, size=n) * 0.12 if cell.misfit == "heavy tails" else rng.normal(size=n) * 0.2
    return rows, np.clip(scores + noise, -1.0, 1.0), weights


def reference(cell: Cell, rows: Numbers, labels: Numbers) -> tuple[Numbers, Numbers]:
    """Estimate and covariance without privacy, by Newton's method."""
    w = np.zeros(rows.shape[1])
    if cell.loss == "poisson":
        counts, exposures = decoded(labels)
        w[-1] = math.log(counts.sum() / exposures.sum()) / INTERCEPT
        for _ in range(8):
            means = exposures * np.exp(rows @ w)
            hessian = (rows * means[:, None]).T @ rows
            w = w - np.linalg.solve(hessian, rows.T @ (means - counts))
        return w, np.linalg.inv(hessian) / LARGEST_COUNT
    for _ in range(8 if cell.loss == "logistic" else 1):
        p = expit(rows @ w) if cell.loss == "logistic" else rows @ w
        h = p * (1.0 - p) if cell.loss == "logistic" else np.ones(len(rows))
        hessian = (rows * h[:, None]).T @ rows
        w = w - np.linalg.solve(hessian, rows.T @ (p - (labels > 0 if cell.loss == "logistic" else labels)))
    spread = 1.0 if cell.loss == "logistic" else float(np.mean(np.square(labels - rows @ w)))
    return w, spread * np.linalg.inv(hessian)


def repetition(cell: Cell, seed: int) -> dict[str, Any] | None:
    """What one run told; None where it gave no intervals."""
    rng = np.random.default_rng([seed, 17])
    rows, labels, true = data(cell, rng)
    n = 20
    secure = {"aggregation": cell.aggregation, "min_honest_sites": n} if cell.aggregation == "secure" else {}
    training = Training(
        loss=LOSSES[cell.loss],
        method={"name": "auto", "inference": True},
        intercept=True,
        epsilon=cell.epsilon,
        delta=1e-5,
        **secure,
    )
    problem = training.problem(2 if cell.loss == "logistic" else 0)
    held = make_rows(rows, labels, order=np.arange(len(rows)), offsets=np.linspace(0, len(rows), n + 1).astype(int))
    done = run(training, problem, held, SimulatedNoise(seed, n, (cell.n_weights, 1)))
    covariance = done.covariance
    if covariance is None:
        return None
    without = reference(cell, rows, labels)[1]
    target = plain_limit(cell) if cell.misfit else true
    error, width = done.weights[:, 0] - target, np.sqrt(np.diag(covariance))
    return {
        "covered": np.abs(error) <= Z * width,
        "naive": np.abs(error) <= Z * np.sqrt(np.diag(without)),
        "ratio": width / np.sqrt(np.diag(without)),
        "true": np.abs(done.weights[:, 0] - true) <= Z * width,
    }


_LIMITS: dict[Cell, Numbers] = {}


def plain_limit(cell: Cell) -> Numbers:
    """What a fit without privacy tends to, from 40 times as many rows."""
    if cell not in _LIMITS:
        parts = [reference(cell, *data(cell, np.random.default_rng([part, 18]))[:2])[0] for part in range(40)]
        _LIMITS[cell] = np.mean(parts, axis=0)
    return _LIMITS[cell]


def coverage(cell: Cell, repetitions: int, pool: ProcessPoolExecutor | None = None) -> dict[str, float]:
    """Shares over repetitions and weights."""
    several = (pool.map if pool else map)(repetition, [cell] * repetitions, range(repetitions))
    told = list(several)
    given = [each for each in told if each is not None]
    means = {name: float(np.mean([each[name] for each in given])) for name in ("covered", "naive", "true")}
    ratio = float(np.median([each["ratio"] for each in given])) if given else math.nan
    return {**means, "ratio": ratio, "given": len(given) / len(told)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=500)
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    print("| cell | rows | ε | coverage | without counting the noise | width over non-private | given |")
    print("|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(asked.workers) as pool:
        for cell in cells():
            if asked.only in str(cell):
                told = coverage(cell, asked.repetitions, pool)
                more = f" ({told['true']:.3f} of the true weights)" if cell.misfit else ""
                print(
                    f"| {cell} | {cell.n_rows:,} | {cell.epsilon:g} | {told['covered']:.3f}{more} "
                    f"| {told['naive']:.3f} | {told['ratio']:.2f} | {told['given']:.0%} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
