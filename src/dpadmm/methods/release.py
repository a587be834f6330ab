"""Studies that train nothing: the same sums over rows in every round, whose mean over the rounds is the result.

``StatisticsRelease`` is counts, moments and two-way tables of columns. ``EvaluationRelease`` is the histogram of a
finished model's scores by class. One round is enough. Several rounds share the budget, so that an aborted or missed
round loses only its part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from msgspec import Meta

from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.engine.method import MethodSettings, NoState, RoundResult, ServerSideMethod
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.queries import Query, make_query
from dpadmm.queries.column_sums import ColumnSums
from dpadmm.queries.score_histogram import ScoreHistogram

if TYPE_CHECKING:
    from dpadmm.methods.setup import Setup

MOST_NOISE = 0.1
"""Standard deviation of the noise of a count, beside the number of rows: with more a release would say nothing."""

Weight = Annotated[float, Meta(ge=-1e9, le=1e9)]


@dataclass(frozen=True)
class ReleaseSettings(MethodSettings):
    """What both have in common."""

    statistic: ClassVar[str]
    private: ClassVar[bool] = True
    local_models: ClassVar[bool] = False
    deployable: ClassVar[bool] = True
    sums_only: ClassVar[bool] = True
    usual_rounds: ClassVar[int] = 1

    @property
    def point(self) -> tuple[float, ...]:
        """The statistic's public parameters."""
        return ()

    def rounds(self, setup: Setup) -> ReleaseRounds:
        made = make_query(self.statistic, setup.problem, setup.sizes.n_features)
        point = np.array(self.point, dtype=float)
        if point.shape != made.parameter_shape:
            raise StudyError(f"{self.name}: there are {len(point)} weights for rows of {made.n_features} features")
        rounds = StatisticsRounds if self.statistic == ColumnSums.name else EvaluationRounds
        return rounds(made, point, setup.gaussian(), setup.n_rounds)


@dataclass(frozen=True)
class StatisticsRelease(ReleaseSettings):
    """Counts, means, variances, histograms and two-way tables of columns."""

    tables: Annotated[
        tuple[tuple[str, str], ...] | None, 'Two-way tables: pairs of columns, such as [["sex", "smoker"]].'
    ] = None
    bins: Annotated[Annotated[int, Meta(ge=2, le=1000)], "Bins of equal width of a number without its own."] = 20

    name: ClassVar[str] = "statistics"
    title: ClassVar[str] = "statistics"
    statistic: ClassVar[str] = ColumnSums.name


@dataclass(frozen=True)
class EvaluationRelease(ReleaseSettings):
    """Accuracy, AUC, calibration and Brier score of a finished model."""

    weights: Annotated[tuple[Weight, ...], "Weights of the model, that of the constant column last."] = (0.0,)

    name: ClassVar[str] = "evaluation"
    title: ClassVar[str] = "evaluation"
    statistic: ClassVar[str] = ScoreHistogram.name

    @property
    def point(self) -> tuple[float, ...]:
        return self.weights


KINDS: dict[str, type[ReleaseSettings]] = {each.name: each for each in (StatisticsRelease, EvaluationRelease)}
"""Kinds of studies beside those that train a model."""


@dataclass(frozen=True)
class Released:
    """What was released: the sums over ``n_rows`` rows, each with noise of this standard deviation."""

    n_rows: int
    noise_std: float
    sums: Floats


@dataclass(frozen=True)
class ReleaseRounds(ServerSideMethod):
    """Asks for one statistic at public parameters, with z of every agent (n,), or of all alike (1,).

    What is broadcast counts what was heard: ``Σ n_k``, ``max n_k``, ``Σ σ_k²`` and the sums of all rounds.
    """

    statistic: Query
    point: Floats
    noise_multiplier: Floats
    n_rounds: int

    cure: ClassVar[str] = "more noise"

    def release(self, round: int) -> tuple[str, Floats]:
        return self.statistic.name, self.noise_multiplier

    def start(self, shape: tuple[int, int], warm_start: Floats | None = None) -> Floats:
        return np.zeros(3 + math.prod(self.statistic.shape))

    def model(self, consensus: Floats) -> Floats:
        """None: nothing is learnt."""
        return np.zeros((1, 1))

    def parameters(self, state: NoState, consensus: Floats, *, round: int) -> Floats:
        return np.broadcast_to(self.point, (len(state.released), len(self.point)))

    def aggregate(self, gathered: RoundResult) -> Floats:
        n_rows, total = gathered.n_rows[gathered.present], int(gathered.n_rows[gathered.present].sum())
        sums = total * gathered.mean(n_rows / total).ravel()
        heard, most, variance, *before = gathered.consensus
        variance += self._variance(len(gathered.n_rows), gathered.present, gathered.spread)
        return np.concatenate([[heard + total, max(most, total), variance], np.array(before) + sums])

    def _variance(self, n: int, present: Integers, spread: float = 1.0) -> float:
        """Of the noise of a round's sums."""
        z = np.broadcast_to(self.noise_multiplier[:n], (n,))[present] * spread
        return float(np.sum(np.square(z * mean_sensitivity(self.statistic.row_norm, 1))))

    def released(self, consensus: Floats) -> Released:
        """The mean over the rounds, for the rows of the largest of them."""
        heard, most, variance = consensus[:3]
        if not heard:
            raise StudyError("nothing was released: every round is void, or nobody has answered; agree on a new study")
        share = most / heard
        return Released(int(most), share * math.sqrt(variance), share * consensus[3:].reshape(self.statistic.shape))

    def check_rows(self, n_rows: Integers, unit: float, honest: int | None = None) -> None:
        """Refuse what noise would hide, before anything is spent: ``unit`` is what a count of 1 is divided by."""
        n, total = len(n_rows), int(n_rows.sum())
        spread = 1.0 if honest is None else math.sqrt(n / honest)
        members = np.arange(n if honest is None else 1)
        variance = self._variance(len(members), members, spread) / self.n_rounds
        noise = unit * math.sqrt(variance)
        if noise <= MOST_NOISE * total:
            return
        factor = noise / (MOST_NOISE * total)
        what = f"fewer columns or tables (about 1 in {math.ceil(factor**2):,}), " if unit > 1.0 else ""
        raise StudyError(
            f"{self.name}: counts would have noise of ±{noise:,.0f} among {total:,} rows, and {MOST_NOISE:.0%} of the "
            f"rows is the most that says anything: take an ε about {math.ceil(10.0 * factor) / 10.0:g} times as large, "
            f"{what}or {math.ceil(factor * total):,} rows"
        )


class StatisticsRounds(ReleaseRounds):
    """Rounds of :class:`StatisticsRelease`."""

    name: ClassVar[str] = StatisticsRelease.name


class EvaluationRounds(ReleaseRounds):
    """Rounds of :class:`EvaluationRelease`."""

    name: ClassVar[str] = EvaluationRelease.name
