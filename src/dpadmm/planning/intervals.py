"""Forecast of confidence intervals: whether a study that requests them will have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.data.reader import Table
from dpadmm.errors import DataError
from dpadmm.matrices.arrays import Integers
from dpadmm.models.explain import explain
from dpadmm.models.model import Model
from dpadmm.models.run import Result
from dpadmm.planning.forecast import run
from dpadmm.planning.scenarios import MIN_FOLDS, Scenario, public_scenario, synthetic_scenarios
from dpadmm.studies.study import Study

LIKELY_SHARE, MAX_FACTOR = 0.8, 256
"""Share of runs with intervals from which they are likely, and the largest tried multiple of the planned rows."""

SEED = 1
"""Seed of the forecast before training, as in ``dpadmm plan``."""


@dataclass(frozen=True)
class Intervals:
    """Number of runs in which every column had confidence intervals, and the number of rows that makes them likely.

    ``n_rows_needed`` is the planned total times a power of two; None if :data:`MAX_FACTOR` times is not enough.
    """

    n_with_intervals: int
    n_runs: int
    n_rows_needed: int | None

    @property
    def is_likely(self) -> bool:
        return self.n_with_intervals >= LIKELY_SHARE * self.n_runs

    def text(self, epsilon: float, n_rows: int) -> str:
        """Return the forecast as a sentence."""
        counted = f"at ε = {epsilon:.4g} with {n_rows:,} rows ({self.n_with_intervals} of {self.n_runs} runs had them)"
        if self.is_likely:
            return f"Confidence intervals: likely {counted}."
        rows = "" if self.n_rows_needed is None else f"about {self.n_rows_needed:,} rows would do, or "
        needed = "" if rows else ", would be needed"
        return (
            f"Confidence intervals: unlikely {counted}; {rows}fewer columns and rare categories, or a larger ε{needed}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "is_likely": self.is_likely}


def forecast_intervals(study: Study, scenarios: Sequence[Scenario], sizes: Integers, *, seed: int) -> Intervals:
    """Forecast from runs with the noise of the planned rows whether a study will have intervals."""
    folds = [(k, train, each.prior(k)) for each in scenarios for k, (train, _) in enumerate(each.folds)]

    def count(times: int) -> int:
        results = (
            run(study.training, study.problem, train, times * sizes, seed=seed + k, prior=prior)
            for k, train, prior in folds
        )
        return sum(_has_intervals(study, result) for result in results)

    planned, n = count(1), int(sizes.sum())
    if planned >= LIKELY_SHARE * len(folds):
        return Intervals(planned, len(folds), n)
    factors = (2**k for k in range(1, MAX_FACTOR.bit_length()))
    enough = next((times for times in factors if count(times) >= LIKELY_SHARE * len(folds)), None)
    return Intervals(planned, len(folds), None if enough is None else enough * n)


def intervals_warning(study: Study, sizes: Integers, public: Table | None) -> str:
    """Return a warning for a study and agents of these sizes; empty if intervals are likely or not requested.

    It depends on public values only: the study, the numbers of rows, and public or synthetic rows.
    """
    if not study.training.has_inference:
        return ""
    n_rows, epsilon = int(sizes.sum()), exact_epsilon(math.sqrt(study.terms.plan.mu_squared()), study.terms.delta)
    forecast = forecast_intervals(study, _scenarios(study, n_rows, public), sizes, seed=SEED)
    return "" if forecast.is_likely else forecast.text(epsilon, n_rows)


def _scenarios(study: Study, n_rows: int, public: Table | None) -> list[Scenario]:
    if public is not None:
        with suppress(DataError):  # too few for a forecast
            return [public_scenario(study, public, repeats=MIN_FOLDS, seed=SEED)]
    return synthetic_scenarios(study, n_rows, repeats=MIN_FOLDS, seed=SEED)


def _has_intervals(study: Study, result: Result) -> bool:
    """Return whether all columns have intervals, except those with values that no public row has."""
    explanation = explain(
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
    columns = {each.column for each in explanation.coefficients}
    unseen = {each.column for each in explanation.coefficients if each.unseen}
    covered = {each.column for each in explanation.coefficients if each.interval()}
    return not explanation.no_intervals_because and covered | unseen >= columns
