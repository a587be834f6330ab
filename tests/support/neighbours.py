"""Two neighbouring worlds with the same entropy and clock: their outbound data, and the distance of their answers.

Noise, salts and random splits come from a seed instead of the operating system, through the real samplers. Every
difference between the worlds is therefore caused by the rows.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from dpadmm.engine.noise import CohortQuery, ExactNoise
from dpadmm.errors import RefusalError
from dpadmm.queries.problem import Rows
from dpadmm.trusted.discrete_gaussian import Lattice, release_sum

LONG = os.environ.get("DPADMM_TORTURE") == "1"
LIMIT = 1.7e308


class SeededOS:
    """``os`` with seeded randomness."""

    def __init__(self, seed: int) -> None:
        self.seed, self.calls = seed, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def urandom(self, count: int) -> bytes:
        self.calls += 1
        return hashlib.shake_128(f"{self.seed} {self.calls}".encode()).digest(count)


class Clock:
    """A stopped clock."""

    @staticmethod
    def now(_: object) -> datetime:
        return datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(eq=False)
class Outbound(logging.Handler):
    """Everything that an outside observer receives from an agent: uploads, and all other data."""

    uploads: list[Any] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(level=0)

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("numba"):  # numba logs compilation, at a varying time
            self.messages.append(f"{record.name} {record.levelno} {record.getMessage()}")

    def ask(self, act: Callable[..., Any], *words: Any) -> None:
        try:
            answer = act(*words)
            self.uploads.append(answer) if isinstance(answer, np.ndarray) else self.messages.append(repr(answer))
        except RefusalError as refused:
            self.messages.append(f"{refused.code}: {refused} {refused!r} {refused.args}")


@contextmanager
def watched(seen: Outbound, seed: int, clocks: Sequence[str] = ("dpadmm.trusted.ledger",)) -> Iterator[None]:
    """Seed all entropy, stop the clocks of these modules, and capture the log."""
    out, root = io.StringIO(), logging.getLogger()
    level = root.level
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        chance = SeededOS(seed)
        for module in ("discrete_gaussian", "guard", "ledger"):
            patch.setattr(f"dpadmm.trusted.{module}.os", chance)
        patch.setattr("random._urandom", chance.urandom)  # secrets, and NumPy's generators without a seed
        for module in clocks:
            patch.setattr(f"{module}.datetime", Clock)
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(out))
        root.addHandler(seen)
        root.setLevel(0)
        try:
            yield
        finally:
            root.removeHandler(seen)
            root.setLevel(level)
    seen.messages.append(f"on the screen: {out.getvalue()}")


def steps_between(one: Any, other: Any) -> float:
    """Return the distance of two integer answers, in steps of their grid."""
    return float(np.linalg.norm((one - other).astype(float)))


def allowed_steps(grid: Lattice, k: int = 1) -> float:
    """Return the maximum distance for ``k`` rows of a person: k times the sensitivity."""
    return k * grid.sensitivity / grid.step


def points_for(shape: tuple[int, int]) -> list[Any]:
    """Return points: ordinary ones, ones that saturate every row, and the largest possible ones."""
    d, p = shape
    signs = np.where(np.arange(d * p).reshape(shape) % 2, -1.0, 1.0)
    last = np.zeros(shape)
    last[-1] = 1e6 * signs[-1]
    return [np.zeros(shape), last, -last, 40.0 * signs, 1e154 * signs, LIMIT * signs]


def dense(rows: Rows) -> tuple[Any, Any]:
    """Return features and labels as plain arrays."""
    features = rows.features.toarray() if hasattr(rows.features, "toarray") else np.asarray(rows.features)
    return features, rows.labels


@dataclass
class Releases:
    """Every exact release of a run in this process, with its grid, and the rows of the first sums."""

    answers: list[tuple[Lattice, Any]] = field(default_factory=list)
    rows: Rows | None = None

    def release_sum(self, total: Any, grid: Lattice, noise_multiplier: float, **more: Any) -> Any:
        answer = release_sum(total, grid, noise_multiplier, **more)
        self.answers.append((grid, answer))
        return answer

    def answer(self, noise: ExactNoise, asked: CohortQuery) -> Any:
        self.rows = self.rows or asked.rows
        return _answer(noise, asked)


_answer = ExactNoise.answer


@contextmanager
def recorded() -> Iterator[Releases]:
    """Record the real sums and releases of cohorts in this process."""
    releases = Releases()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpadmm.engine.noise.release_sum", releases.release_sum)
        patch.setattr(ExactNoise, "answer", lambda noise, asked: releases.answer(noise, asked))
        yield releases
