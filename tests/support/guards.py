"""A small study, its owner's policy, rows and a guard, for every test that needs an agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpadmm.errors import DataError, RefusalError
from dpadmm.losses import Logistic, Loss
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.clipping import clip_rows, with_intercept
from dpadmm.queries import Query
from dpadmm.queries.gradient import Gradient
from dpadmm.sites.agent import Agent
from dpadmm.studies.study import Study
from dpadmm.trusted.discrete_gaussian import Lattice, quantise
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import Ledger
from dpadmm.trusted.policy import Policy
from dpadmm.trusted.private_rows import CheckedRows, protect
from dpadmm.trusted.unit import ONE_ROW, PrivacyUnit

D, M, ROUNDS, Z = 3, 8, 12, 20.0
POLICY = Policy(
    epsilon=1.0,
    delta=1e-5,
    methods=frozenset({"dp_admm", "dp_sgd"}),
    losses=frozenset({"logistic", "huber"}),
    max_rounds=5000,
    min_rows=2,
)
STUDY = Study(
    name="a small study",
    features=tuple(f"x{i}" for i in range(D)),
    classes=(-1, 1),
    training={"method": "dp_admm", "noise_multiplier": Z, "delta": 1e-5, "n_rounds": ROUNDS},
)


def study(**training: Any) -> Study:
    """Return the small study with other settings: ``study(n_rounds=3)``."""
    return replace(STUDY, training=STUDY.training.with_changes(**training))


def rows(seed: int = 0, n_rows: int = M, d: int = D) -> tuple[Floats, Floats]:
    """Return features of norm at most 1 and labels ±1. Fewer rows are a prefix of more rows."""
    rng = np.random.default_rng([seed, d])
    drawn = rng.uniform(-1.0, 1.0, (n_rows, d + 1))
    return drawn[:, :d] / np.sqrt(d), np.where(drawn[:, d] < 0.0, -1.0, 1.0)


class TinyRows:
    """Logistic rows in a few lines of NumPy. Without compilation, processes start and fork quickly."""

    def __init__(self, features: Floats, labels: Floats, unit: PrivacyUnit = ONE_ROW) -> None:
        self.unit = unit
        if features.ndim != 2 or not np.isfinite(features).all():
            raise DataError("the table is no table")
        self.features, self.labels = features.copy(), labels.copy()

    @property
    def n_rows(self) -> int:
        return len(self.labels)

    @property
    def n_features(self) -> int:
        return self.features.shape[1]

    def digest(self) -> str:
        return sha256(self.features.tobytes() + self.labels.tobytes()).hexdigest()

    n_parts = 1

    def total(self, statistic: Query, point: Floats, grid: Lattice) -> Integers:
        assert statistic.name == "gradient"
        with np.errstate(all="ignore"):
            scores = np.nan_to_num(self.features @ point[:, 0])
            slopes = -self.labels / (1.0 + np.exp(np.minimum(self.labels * scores, 700.0)))
            norms = np.linalg.norm(self.features, axis=1)
            slopes *= np.minimum(1.0, grid.row_bound / np.maximum(np.abs(slopes) * norms, 1e-300))
        return quantise((self.features.T @ slopes)[:, None], grid)


def tiny(features: Floats, labels: Floats, unit: PrivacyUnit = ONE_ROW) -> Callable[[Study], TinyRows]:
    """Return ``open_rows`` of a guard: the same rows for every study."""
    return lambda study: TinyRows(features, labels, unit)


def own(features: Floats, labels: Floats) -> Callable[[Study], CheckedRows]:
    """Return ``open_rows`` with the real kernel and the loss of the study."""

    def opened(study: Study) -> CheckedRows:
        matrix = with_intercept(clip_rows(features)) if study.training.intercept else features
        return private(matrix, labels)

    return opened


def private(
    features: Any, labels: Floats, unit: PrivacyUnit = ONE_ROW, row_weights: Floats | None = None
) -> CheckedRows:
    """Return rows as a guard holds them, each of a different person."""
    return CheckedRows(protect(features, labels, unit, row_weights=row_weights))


def gradient_total(rows: CheckedRows, point: Floats, bound: float, loss: Loss | None = None) -> Floats:
    """Return the sum of the rows' gradients, each clipped to ``bound``."""
    return Gradient(loss or Logistic(), rows.n_features).sums(rows._rows, point[None], bound=bound)[0]


OpenRows = Callable[[Any], Any]


@contextmanager
def guarded(
    folder: Path,
    open_rows: OpenRows | None = None,
    policy: Policy = POLICY,
    *,
    cap: float | None = None,
    key: bytes | None = None,
) -> Iterator[Guard]:
    """Yield a guard with the ledger in a folder, created if missing and closed at the end."""
    caps = {"cap": policy.cap, "collusion_cap": policy.collusion_cap} if cap is None else {"cap": cap}
    with Ledger.open(folder, **caps, create=True) as ledger:
        yield Guard(policy, ledger, open_rows or tiny(*rows(), policy.unit), key and (lambda masking: key))


def consensus(round: int, shape: tuple[int, int] = (D, 1)) -> Floats:
    """Return the server's broadcast in a round."""
    return np.random.default_rng([7, round]).uniform(-1.0, 1.0, shape)


def play(agent: Agent, until: int) -> dict[int, bytes]:
    """Run an agent up to a round, and return its uploads."""
    rounds = range(agent.last_round + 1, until + 1)
    return {round: agent.step(round, consensus(round)).tobytes() for round in rounds}


def refusal(act: Callable[..., Any], *words: Any, **more: Any) -> RefusalError:
    """Return the refusal that the call must raise."""
    with pytest.raises(RefusalError) as refused:
        act(*words, **more)
    return refused.value


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Yield a folder in memory if possible: kills and faults need no disk, and syncing is slow."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


def process(*words: object) -> Any:
    """Run ``guard_runs.py`` as a separate process, and return its result."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("guard_runs.py"), *map(str, words)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # threads make forks slow
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
