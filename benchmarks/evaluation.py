"""How often 95% intervals of an evaluation under privacy contain what they are for.

    python benchmarks/evaluation.py                   # 1,000 repetitions of every population: about three minutes
    python benchmarks/evaluation.py --repetitions 200 --only usual

Each repetition has fresh rows and fresh noise; only the release is simulated, which is all that figures are made of.
Figures of the population are those of its scores themselves, and not of the bins of a histogram. Where noise hides a
calibration slope, no interval is given.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from dpadmm.accounting.calibration import mu_from_epsilon
from dpadmm.models.evaluate import auc
from dpadmm.models.private_evaluation import histogram_metrics
from dpadmm.queries.score_histogram import EDGES, N_BINS, ScoreHistogram

FIGURES = ("accuracy", "auc", "brier", "mean_probability", "calibration_in_the_large", "calibration_slope")
MANY = 1_000_000


class Population(NamedTuple):
    """Scores are normal with this mean and standard deviation, and the log odds are ``constant + slope·score``."""

    name: str
    mean: float
    sd: float
    constant: float
    slope: float

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Any, Any]:
        scores = rng.normal(self.mean, self.sd, n)
        return scores, rng.random(n) < expit(self.constant + self.slope * scores)


POPULATIONS = (
    Population("usual", -0.5, 1.2, 0.1, 0.9),
    Population("calibrated", 0.0, 1.0, 0.0, 1.0),
    Population("wide, too sure", 0.0, 2.5, 0.0, 0.7),
    Population("narrow", 0.0, 0.5, 0.0, 0.9),
    Population("rare", -2.5, 1.0, 0.0, 1.0),
)


def histogram(scores: Any, positive: Any) -> Any:
    places = positive * N_BINS + np.searchsorted(EDGES, scores)
    return np.bincount(places, minlength=2 * N_BINS).reshape(2, N_BINS).astype(float)


def truth(population: Population) -> dict[str, float]:
    scores, positive = population.draw(MANY, np.random.default_rng(0))
    chances = expit(scores)
    return {
        "accuracy": float(np.mean((scores > 0.0) == positive)),
        "auc": auc(positive, scores) or 0.0,
        "brier": float(np.mean((chances - positive) ** 2)),
        "mean_probability": float(chances.mean()),
        "calibration_in_the_large": float((chances - positive).mean()),
        "calibration_slope": population.slope,
    }


def coverage(
    population: Population, repetitions: int, *, n_rows: int = 2000, epsilon: float = 1.0, delta: float = 1e-6
) -> dict[str, tuple[float, float]]:
    """Of every figure, the share of intervals that contain it, and the share of repetitions that gave one."""
    noise = 2.0 * ScoreHistogram.row_norm / mu_from_epsilon(epsilon, delta)
    right, rng = truth(population), np.random.default_rng(1)
    hits: dict[str, list[bool]] = {name: [] for name in FIGURES}
    for _ in range(repetitions):
        counts = histogram(*population.draw(n_rows, rng)) + noise * rng.standard_normal((2, N_BINS))
        counts += (n_rows - counts.sum()) / counts.size
        found = histogram_metrics(counts, noise, all_count=True, probabilities=True)
        for name in FIGURES:
            if (each := found[name]) is not None:
                low, high = (
                    end if end is not None else sign * np.inf for end, sign in ((each.low, -1), (each.high, 1))
                )
                hits[name].append(low <= right[name] <= high)
    return {name: (float(np.mean(each)), len(each) / repetitions) for name, each in hits.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--only", default="", help="populations whose name has this in it")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    chosen = parser.parse_args()
    print(f"| population | {' | '.join(FIGURES)} | slope given |\n|{'---|' * (len(FIGURES) + 2)}")
    for each in POPULATIONS:
        if chosen.only in each.name:
            told = coverage(each, chosen.repetitions, n_rows=chosen.rows, epsilon=chosen.epsilon)
            covered = " | ".join(f"{told[name][0]:.3f}" for name in FIGURES)
            print(f"| {each.name} | {covered} | {told['calibration_slope'][1]:.0%} |", flush=True)
