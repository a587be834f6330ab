"""Studies without training: the same sums over rows in every round. The result is their mean over the rounds.

``StatisticsRelease`` releases counts, moments and two-way tables of columns, ``EvaluationRelease`` the histogram of a
finished model's scores by class. One round is enough. With several rounds, an aborted or missed round loses only its
share of the budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

import numpy as np
from msgspec import Meta

from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.engine.method import NoState, RoundResult, ServerSideMethod, prepared
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.parameters.fields import checked_parameters
from dpadmm.queries import Query, make_query
from dpadmm.queries.column_sums import ColumnSums
from dpadmm.queries.problem import Problem, Sizes
from dpadmm.queries.score_histogram import ScoreHistogram

MAX_NOISE = 0.1
"""Upper limit of the standard deviation of the noise of a count, as a share of the rows."""

Weight = Annotated[float, Meta(ge=-1e9, le=1e9)]


@dataclass(frozen=True)
class Released:
    """Released sums over ``n_rows`` rows, each with noise of standard deviation ``noise_std``."""

    n_rows: int
    noise_std: float
    sums: Floats


@dataclass(frozen=True)
class ReleaseMethod(ServerSideMethod):
    """One statistic at public parameters, released in every round.

    The broadcast consists of totals over the rounds so far, where n_k is the number of rows in round k: ``Σ n_k``,
    ``max n_k``, ``Σ σ_k²`` and the sums.
    """

    query: Query = prepared()
    noise_multiplier: Floats = prepared()
    n_rounds: int = prepared()

    statistic: ClassVar[str]

    default_rounds: ClassVar[int] = 1
    sums_only: ClassVar[bool] = True
    divergence_hint: ClassVar[str] = "more noise"

    @property
    def point(self) -> Floats:
        """Public parameters of the statistic."""
        return np.zeros(0)

    def build(self, problem: Problem, sizes: Sizes, budget: PrivacyBudget) -> Self:
        query = make_query(self.statistic, problem, sizes.n_features)
        if self.point.shape != query.parameter_shape:
            raise StudyError(f"{self.name}: {len(self.point)} weights for rows of {query.n_features} features")
        return replace(self, query=query, noise_multiplier=budget.gaussian(), n_rounds=budget.n_rounds)

    def release(self, round: int) -> tuple[str, Floats]:
        return self.statistic, self.noise_multiplier

    def start(self, shape: tuple[int, int], warm_start: Floats | None = None) -> Floats:
        return np.zeros(3 + math.prod(self.query.shape))

    def model(self, consensus: Floats) -> Floats:
        """Return a placeholder: there is no model."""
        return np.zeros((1, 1))

    def parameters(self, state: NoState, consensus: Floats, *, round: int) -> Floats:
        return np.broadcast_to(self.point, (len(state.released), len(self.point)))

    def aggregate(self, result: RoundResult) -> Floats:
        n_rows, total = result.n_rows[result.present], int(result.n_rows[result.present].sum())
        sums = total * result.mean(n_rows / total).ravel()
        row_sum, max_rows, variance, *before = result.consensus
        variance += self._variance(len(result.n_rows), result.present, result.spread)
        return np.concatenate([[row_sum + total, max(max_rows, total), variance], np.array(before) + sums])

    def _variance(self, n: int, present: Integers, spread: float = 1.0) -> float:
        """Return the variance of the noise of a round's sums."""
        z = np.broadcast_to(self.noise_multiplier[:n], (n,))[present] * spread
        return float(np.sum(np.square(z * mean_sensitivity(self.query.row_norm, 1))))

    def released(self, consensus: Floats) -> Released:
        """Return the mean over the rounds, scaled to the rows of the largest round."""
        row_sum, max_rows, variance = consensus[:3]
        if not row_sum:
            raise StudyError("nothing was released: every round was aborted or had no answers; start a new study")
        share = max_rows / row_sum
        return Released(int(max_rows), share * math.sqrt(variance), share * consensus[3:].reshape(self.query.shape))

    def check_rows(self, n_rows: Integers, unit: float, min_honest_sites: int | None = None) -> None:
        """Raise StudyError if counts would be too noisy. A count of 1 is released as 1/``unit``."""
        n, total = len(n_rows), int(n_rows.sum())
        spread = 1.0 if min_honest_sites is None else math.sqrt(n / min_honest_sites)
        members = np.arange(n if min_honest_sites is None else 1)
        variance = self._variance(len(members), members, spread) / self.n_rounds
        noise = unit * math.sqrt(variance)
        if noise <= MAX_NOISE * total:
            return
        factor = noise / (MAX_NOISE * total)
        fewer = f"about 1 in {math.ceil(factor**2):,} of the columns or tables, " if unit > 1.0 else ""
        raise StudyError(
            f"{self.name}: counts would have noise of ±{noise:,.0f} among {total:,} rows (limit {MAX_NOISE:.0%} of the "
            f"rows); use an ε about {math.ceil(10.0 * factor) / 10.0:g} times as large, {fewer}or "
            f"{math.ceil(factor * total):,} rows"
        )


@checked_parameters
@dataclass(frozen=True)
class StatisticsRelease(ReleaseMethod):
    """Counts, means, variances, histograms and two-way tables of columns."""

    tables: Annotated[
        tuple[tuple[str, str], ...] | None, 'Two-way tables: pairs of columns, such as [["sex", "smoker"]].'
    ] = None
    bins: Annotated[
        Annotated[int, Meta(ge=2, le=1000)], "Number of bins of equal width, for numbers that define no bins."
    ] = 20

    name: ClassVar[str] = "statistics"
    title: ClassVar[str] = "statistics"
    statistic: ClassVar[str] = ColumnSums.name


@checked_parameters
@dataclass(frozen=True)
class EvaluationRelease(ReleaseMethod):
    """Accuracy, AUC, calibration and Brier score of a finished model."""

    weights: Annotated[tuple[Weight, ...], "Weights of the model; the weight of the constant column is last."] = (0.0,)

    name: ClassVar[str] = "evaluation"
    title: ClassVar[str] = "evaluation"
    statistic: ClassVar[str] = ScoreHistogram.name

    @property
    def point(self) -> Floats:
        return np.array(self.weights, dtype=float)


KINDS: dict[str, type[ReleaseMethod]] = {kind.name: kind for kind in (StatisticsRelease, EvaluationRelease)}
"""Kinds of studies that train no model."""
