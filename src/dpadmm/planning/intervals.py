"""Whether a study that requests confidence intervals will have them, before any private row is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.errors import DataError
from dpadmm.matrices.arrays import Integers
from dpadmm.models.explain import explain
from dpadmm.models.model import Model
from dpadmm.models.run import Result
from dpadmm.planning.forecast import LEAST_FOLDS, Scenario, public_scenario, run, synthetic_scenarios
from dpadmm.studies.study import Study

LIKELY, MOST_TIMES = 0.8, 256
"""Share of runs with intervals from which they are likely; and the most that rows are multiplied by to get there."""

SEED = 1
"""Of the forecast before training, as in ``dpadmm plan``."""


@dataclass(frozen=True)
class Intervals:
    """In how many of the runs every column had confidence intervals, and the total of rows with which that is likely.

    ``rows`` is the planned total, or that times a power of two; None where :data:`MOST_TIMES` that would not do.
    """

    having: int
    runs: int
    rows: int | None

    @property
    def likely(self) -> bool:
        return self.having >= LIKELY * self.runs

    def text(self, epsilon: float, n_rows: int) -> str:
        """Whether there will be intervals, and with what."""
        counted = f"at ε = {epsilon:.4g} with {n_rows:,} rows ({self.having} of {self.runs} runs had them)"
        if self.likely:
            return f"Confidence intervals: likely {counted}."
        rows = "" if self.rows is None else f"about {self.rows:,} rows would do, or "
        needed = "" if rows else ", would be needed"
        return (
            f"Confidence intervals: unlikely {counted}; {rows}fewer columns and rare categories, or a larger ε{needed}."
        )

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "likely": self.likely}


def forecast_intervals(study: Study, scenarios: Sequence[Scenario], sizes: Integers, *, seed: int) -> Intervals:
    """Whether a study that requests intervals will have them, from runs with the noise of the planned rows."""
    folds = [(k, train, each.prior(k)) for each in scenarios for k, (train, _) in enumerate(each.folds)]

    def having(times: int) -> int:
        ran = (
            run(study.training, study.problem, train, times * sizes, seed=seed + k, prior=prior)
            for k, train, prior in folds
        )
        return sum(_has_intervals(study, each) for each in ran)

    planned, n = having(1), int(sizes.sum())
    if planned >= LIKELY * len(folds):
        return Intervals(planned, len(folds), n)
    more = (2**k for k in range(1, MOST_TIMES.bit_length()))
    enough = next((times for times in more if having(times) >= LIKELY * len(folds)), None)
    return Intervals(planned, len(folds), None if enough is None else enough * n)


def unlikely_intervals(study: Study, sizes: Integers, public: Path | None) -> str:
    """A warning before a study is trained on agents of these sizes; empty if intervals are likely, or not requested.

    It depends on public values alone: the study, the numbers of rows, and the public rows, or else synthetic ones.
    """
    if not study.training.has_inference:
        return ""
    n_rows, epsilon = int(sizes.sum()), exact_epsilon(math.sqrt(study.terms.plan.mu_squared()), study.terms.delta)
    found = forecast_intervals(study, _stand_ins(study, n_rows, public), sizes, seed=SEED)
    return "" if found.likely else found.text(epsilon, n_rows)


def _stand_ins(study: Study, n_rows: int, public: Path | None) -> list[Scenario]:
    if public is not None:
        with suppress(DataError):  # too few for a forecast
            return [public_scenario(study, public, repeats=LEAST_FOLDS, seed=SEED)]
    return synthetic_scenarios(study, n_rows, repeats=LEAST_FOLDS, seed=SEED)


def _has_intervals(study: Study, result: Result) -> bool:
    """Whether all columns have intervals, but for those with values that no public row had."""

    found = explain(
        Model(
            result.weights,
            task=study.problem.loss.task,
            loss=study.problem.loss.name,
            intercept=study.training.intercept,
            feature_names=study.features,
            schema=study.schema,
            label=study.label,
            covariance=result.covariance,
            hessian_snr=result.hessian_snr,
        )
    )
    unseen = {each.column for each in found.coefficients if each.unseen}
    told = {each.column for each in found.coefficients if each.interval()}
    return not found.no_intervals_because and told | unseen >= {each.column for each in found.coefficients}
