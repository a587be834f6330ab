"""One run of a study on stand-in rows: what the planned agents would do with rows like these.

Noise and step sizes are those of the planned agents; only the number of rows that are computed with may be
smaller. An agent's noise is ``z·2c1/m``: with the planned m in it, a run on fewer rows has the same noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dpadmm._base.arrays import Features, Floats, Integers
from dpadmm.optim.problem import Problem, PublicSizes, make_rows
from dpadmm.privacy.releases import AnyRelease
from dpadmm.runs.run import run as run_cohort
from dpadmm.study.settings import Training
from dpadmm.training.oracles import Question, SimulatedNoise, with_normals

MOST_AGENTS = 200
"""Agents that are computed with. Of more, this many stand for all, each with noise that is smaller by the
root of the share, so that the mean over agents has the noise of the plan."""

MOST_WEIGHTS, LEAST_AGENTS = 500_000, 10
"""Weights of all these agents together; it lowers their number where a model is wide, but not below ten."""

MOST_ENTRIES = 200_000
"""Numbers in the rows of all agents that are computed with."""

LEAST_ROWS = 50
"""Rows of every agent that are computed with, if it has as many."""


@dataclass(frozen=True, eq=False)
class Pool:
    """Encoded rows of length at most 1, with labels as the loss wants them."""

    features: Features
    labels: Floats

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Integers) -> Pool:
        """These rows, perhaps repeated."""
        return Pool(self.features[index], self.labels[index])


@dataclass(frozen=True)
class PlannedNoise:
    """Seeded noise of agents that will have ``n_rows`` rows, however many are computed with."""

    normals: SimulatedNoise
    n_rows: Integers
    scale: float = 1.0

    def draw(self, round: int, stream: int = 0, shape: tuple[int, ...] | None = None) -> Floats:
        return self.normals.draw(round, stream, shape)

    def price(self, release: AnyRelease) -> None:
        """None: it is the noise of other agents than those computed with."""

    def answer(self, asked: Question) -> Floats:
        scaled = replace(asked, noise_multiplier=self.scale * asked.noise_multiplier)
        return with_normals(scaled, self, self.n_rows)


def run(training: Training, problem: Problem, pool: Pool, sizes: Integers, *, seed: int) -> Floats:
    """The weights (d, p) that agents of these sizes would end with, were their rows like the pool's."""
    n_weights = pool.features.shape[1] * problem.loss.n_outputs
    chosen = stand_ins(sizes, n_weights)
    rng = np.random.default_rng(seed)
    dealt = pool.take(resampled(len(pool), int(computed(chosen, pool).sum()), rng))
    offsets = np.concatenate([[0], np.cumsum(computed(chosen, pool))])
    rows = make_rows(dealt.features, dealt.labels, offsets=offsets)
    shape = (rows.n_features, problem.loss.n_outputs)
    noise = PlannedNoise(
        SimulatedNoise(seed, len(chosen), shape), chosen, scale=float(np.sqrt(len(chosen) / len(sizes)))
    )
    return run_cohort(training, problem, rows, noise, sizes=PublicSizes(chosen, rows.n_features)).weights


def stand_ins(sizes: Integers, n_weights: int = 1) -> Integers:
    """The agents that are computed with: all, or some of every size.

    Examples
    --------
    >>> stand_ins(np.array([30, 10, 20])).tolist(), len(stand_ins(np.full(1000, 5)))
    ([30, 10, 20], 200)
    >>> len(stand_ins(np.full(1000, 5), n_weights=20_000))
    25
    """
    most = min(MOST_AGENTS, max(LEAST_AGENTS, MOST_WEIGHTS // n_weights))
    if len(sizes) <= most:
        return sizes
    places = (np.arange(most) + 0.5) * len(sizes) / most
    return np.asarray(np.sort(sizes)[places.astype(np.intp)])


def computed(sizes: Integers, pool: Pool) -> Integers:
    """Rows of every agent that are computed with: all, or the same share of each within the limit."""
    stored = pool.features.nnz / len(pool) if hasattr(pool.features, "nnz") else pool.features.shape[1]
    share = min(1.0, MOST_ENTRIES / (float(sizes.sum()) * max(1.0, stored)))
    wanted = np.maximum(np.ceil(sizes * share).astype(np.int64), LEAST_ROWS)
    return np.asarray(np.minimum(sizes, wanted))


def resampled(n_pool: int, n_rows: int, rng: np.random.Generator) -> Integers:
    """``n_rows`` of a pool in random order, every one of it as often as any other, give or take one.

    Drawing with replacement would add an error that neither the pool nor the plan has.

    Examples
    --------
    >>> np.bincount(resampled(3, 7, np.random.default_rng(0))).tolist()
    [2, 2, 3]
    """
    rounds = -(-n_rows // n_pool)
    return np.concatenate([rng.permutation(n_pool) for _ in range(rounds)])[:n_rows]
