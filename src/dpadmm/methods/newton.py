"""``newton``: private Newton steps, with confidence intervals.

Every round releases the gradient and the Hessian at the current point, without preconditioner. The rounds before the
last share 40% of the budget (in μ²). They come close enough to the optimum that the last step is linear: estimate and
covariance depend on the last round only, and the covariance includes sampling error and privacy noise
(docs/decisions/0019-intervals.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.engine.method import Covariance, NoState, RoundResult, ServerSideMethod, prepared
from dpadmm.errors import StudyError
from dpadmm.losses.poisson import Poisson
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.clipping import INTERCEPT
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.methods.prior import Prior
from dpadmm.queries.newton import NewtonQuery
from dpadmm.queries.problem import Problem, Sizes

LAST_SHARE = 0.6
"""Share of the budget of the last round, in μ²."""

MAX_FEATURES = 200
"""All d(d + 1)/2 products of features are released."""

MIN_HESSIAN_SNR = 2.0
"""Intervals need this ratio of the smallest eigenvalue of the Hessian to the largest of its noise."""

MIN_CAP, MAX_CAP, NEGLIGIBLE_NOISE = 2.0, 1e3, 1e-4
"""Predicted means of counts are capped at ``MIN_CAP`` to ``MAX_CAP`` times the mean count, more with less noise."""

MAX_TRACES = {"logistic": 0.25, "squared": 1.0}
"""Upper bound of the trace of a row's Hessian, for rows of norm 1. Counts have no such bound."""

MAX_RESIDUAL = 2.0
"""For labels and predictions in [−1, 1]."""


@dataclass(frozen=True)
class NewtonState:
    """The aggregator's state, which is public.

    Attributes
    ----------
    clip : float
        Clipping bound of residuals, or of predicted means of counts.
    hessian_snr : float
        Smallest eigenvalue of the last Hessian relative to the value that intervals need; 0 until it is released.
        Eigenvalues that may be noise are excluded, so it is above ½ even if directions are missing, or 0.001 if no
        eigenvalue is left.
    weights : (d,)
    covariance : (d, d)
        0 unless ``hessian_snr`` is at least 1.
    """

    clip: float
    hessian_snr: float
    weights: Floats
    covariance: Floats

    def packed(self) -> Floats:
        return np.concatenate([[self.clip, self.hessian_snr], self.weights, _upper(self.covariance)])

    @classmethod
    def unpacked(cls, packed: Floats, d: int) -> NewtonState:
        half = np.zeros((d, d))
        half[np.triu_indices(d)] = packed[2 + d :]
        return cls(float(packed[0]), float(packed[1]), packed[2 : 2 + d], half + np.triu(half, 1).T)


def _upper(matrix: Floats) -> Floats:
    return np.asarray(matrix[np.triu_indices(len(matrix))])


@dataclass(frozen=True)
class Newton(ServerSideMethod):
    """Newton steps with confidence intervals. It has no parameters.

    Attributes
    ----------
    earlier, last : (n,) or (1,)
        Noise multipliers of the rounds before the last and of the last, per agent or common to all.
    prior : Prior, optional
        Prior from public rows: the start. Only the aggregator needs it.
    """

    problem: Problem = prepared()
    n_features: int = prepared()
    n_rounds: int = prepared()
    earlier: Floats = prepared()
    last: Floats = prepared()
    prior: Prior | None = prepared()

    name: ClassVar[str] = "newton"
    title: ClassVar[str] = "Newton"
    divergence_hint: ClassVar[str] = "fewer columns, or more noise"
    default_alpha: ClassVar[float] = 1e-6
    default_rounds: ClassVar[int] = 5
    sums_only: ClassVar[bool] = True
    uses_public_rows: ClassVar[bool] = True

    def build(self, problem: Problem, sizes: Sizes, budget: PrivacyBudget) -> Self:
        NewtonQuery.of(problem, 1)  # raises if the loss has no such query
        if budget.n_rounds < 2:
            raise StudyError("intervals need at least 2 rounds: the last one starts from the result of the others")
        if sizes.n_features > MAX_FEATURES:
            raise StudyError(
                f"intervals support at most {MAX_FEATURES} features, not {sizes.n_features}, since all of their "
                "products are released; remove columns, or set inference = false"
            )
        last, earlier = budget.gaussian_apart(LAST_SHARE)
        n_features, n_rounds = sizes.n_features, budget.n_rounds
        return replace(self, problem=problem, n_features=n_features, n_rounds=n_rounds, earlier=earlier, last=last)

    @property
    def _query(self) -> NewtonQuery:
        return NewtonQuery(self.problem.loss, self.n_features)

    def check_rows(self, n_rows: Integers, n_columns: int, min_honest_sites: int | None = None) -> None:
        """Raise StudyError if the Hessian is certain to be below its noise, by public numbers.

        Of k directions one has at most 1/k of the trace. The eigenvalues of the noise go up to ``2s√k``. A column
        counts as one direction, though a category may have several.
        """
        trace = MAX_TRACES.get(self.problem.loss.name)
        if trace is None:
            return
        z = float(self.last.min()) * math.sqrt(len(n_rows) / (min_honest_sites or 1))
        scale = self._query.weights(MAX_RESIDUAL).hessian
        spread = mean_sensitivity(NewtonQuery.row_norm, 1) * z / float(n_rows.sum()) / (math.sqrt(2.0) * scale)
        edge = 2.0 * spread * math.sqrt(n_columns)
        if trace / n_columns < edge:
            factor = MIN_HESSIAN_SNR * edge * n_columns / trace
            raise StudyError(
                f"inference: too much noise to estimate the covariance of {n_columns} columns from "
                f"{int(n_rows.sum()):,} rows; use {factor:.2g} times the ε or the rows, at most "
                f"{max(1, int(n_columns / factor ** (2.0 / 3.0)))} columns, or inference = false"
            )

    def release(self, round: int) -> tuple[str, Floats]:
        return NewtonQuery.name, self.last if round == self.n_rounds else self.earlier

    def start(self, shape: tuple[int, int], warm_start: Floats | None = None) -> Floats:
        d = self._query.n_weights
        if warm_start is None and self.prior is not None:
            warm_start = self.prior.weights
        point = np.zeros(d)
        if warm_start is not None:  # one constant per interval, and the mean of the other weights
            point = np.append(warm_start[:-1].mean(axis=1), warm_start[-1])
        is_warm_regression = self.problem.loss.task == "regression" and point.any()
        return NewtonState(MAX_RESIDUAL if is_warm_regression else 1.0, 0.0, point, np.zeros((d, d))).packed()

    def with_prior(self, prior: Prior) -> Self:
        return replace(self, prior=prior)

    def model(self, consensus: Floats) -> Floats:
        weights, p = self._state(consensus).weights, self.problem.loss.n_outputs
        return np.vstack([np.repeat(weights[:-p, None], p, axis=1), weights[-p:]])

    def covariance(self, consensus: Floats) -> Covariance | None:
        now = self._state(consensus)
        if not now.hessian_snr:
            return None
        return Covariance(now.hessian_snr, now.covariance if now.hessian_snr >= 1.0 else None)

    def _state(self, consensus: Floats) -> NewtonState:
        return NewtonState.unpacked(consensus, self._query.n_weights)

    def parameters(self, state: NoState, consensus: Floats, *, round: int) -> Floats:
        now, size = self._state(consensus), self._query.parameter_shape[0]
        return np.broadcast_to(np.append(now.weights, now.clip)[:size], (len(state.released), size))

    def aggregate(self, result: RoundResult) -> Floats:
        final = result.round == self.n_rounds
        z, n_rows = result.multipliers(self.last if final else self.earlier), result.n_rows[result.present]
        weights = n_rows / z if np.all(z) else n_rows.astype(float)
        weights = weights / weights.sum()
        mean = result.mean(weights)
        deviation = mean_sensitivity(NewtonQuery.row_norm, 1) * float(np.linalg.norm(weights * z / n_rows))
        per_row = float(np.sum(np.square(weights) / n_rows))
        return self._take_step(self._state(result.consensus), mean, deviation, per_row, final=final).packed()

    def _take_step(
        self, now: NewtonState, released: Floats, deviation: float, per_row: float, *, final: bool
    ) -> NewtonState:
        """Take a Newton step ``ŵ = w − Ĥ⁻¹ĝ``. In the last round, compute its covariance if the Hessian allows it.

        Let E be the noise in Ĥ, e the noise in ĝ, and ``v = w − H⁻¹g`` the result of the step without noise. Then
        ``Ĥ(ŵ − v) = E(w − v) − e``. E has the variance s² off the diagonal and 2s² on it, so Eδ has the covariance
        ``s²(‖δ‖²I + δδᵀ)``. The sample adds ``φ·H/N``. φ is 1 for classes, the variance of residuals for numbers, and
        the unit of one event for counts. With weights ω in [0, 1], H is ``Σω·h·aaᵀ/N``, and the sample adds
        ``φ·Σω²·h·aaᵀ/N²``. This is no more, since ``ω² ≤ ω``.

        Directions in which rows have no information, such as one category minus the constant, keep their weights and
        have the variance 0. With C the other directions, v is then the solution within ``w + span(C)``, and all of the
        above holds for it. If the Hessian is too noisy, and in all rounds before the last, the step is damped by the
        noise.
        """
        query, loss, start = self._query, self.problem.loss, now.weights
        d, scales = query.n_weights, query.weights(now.clip)
        gradient, hessian, squares = query.split(released, now.clip)
        spread = deviation / (math.sqrt(2.0) * scales.hessian)
        mean = 1.0
        if isinstance(loss, Poisson):
            ones = np.append(np.zeros(d - loss.n_outputs), np.full(loss.n_outputs, 1.0 / INTERCEPT))
            predicted = hessian @ ones  # mean of rows times predicted counts, since rows times `ones` are 1
            error = deviation / (scales.gradient * INTERCEPT)
            mean = max(float(ones @ (predicted - gradient)), 0.0) + error
            if not start.any():  # predictions at 0 are the exposures; a constant log(rate) multiplies them by the rate
                rate = mean / max(float(ones @ predicted), mean)
                observed = predicted - gradient
                gradient, hessian, spread = rate * predicted - observed, rate * hessian, rate * spread
                start = math.log(rate) * ones
        nonzero = np.diag(hessian) > 3.0 * math.sqrt(2.0) * spread + 1e-10  # other columns are about 0 in all rows
        edge = max(2.0 * spread * math.sqrt(np.count_nonzero(nonzero)), 1e-10)
        values, vectors = np.linalg.eigh(hessian[np.ix_(nonzero, nonzero)])
        above = values > edge
        hessian_snr = float(values[above].min()) / (MIN_HESSIAN_SNR * edge) if above.any() else 1e-3
        has_covariance = final and hessian_snr >= 1.0
        basis = np.zeros((d, np.count_nonzero(above)))
        basis[nonzero] = vectors[:, above]
        inverse = basis / (values[above] + (0.0 if has_covariance else edge)) @ basis.T
        step, dispersion = inverse @ gradient, 1.0
        clip, covariance = now.clip, np.zeros((d, d))
        if isinstance(loss, Poisson):
            cap = min(max(MIN_CAP, NEGLIGIBLE_NOISE / max(deviation, 1e-12)), MAX_CAP)
            dispersion, clip = loss.unit, mean * cap
        if loss.task == "regression":  # dispersion of the residuals after the step
            error, weight = deviation / scales.squares, 1.0
            if self.problem.weighted:  # squares include the weights; the constant column gives their mean
                weight_error = math.sqrt(2.0) * spread / INTERCEPT**2
                estimate = max(float(hessian[-1, -1]) / INTERCEPT**2, weight_error)
                weight = estimate if estimate + 3.0 * weight_error < 1.0 else 1.0
            dispersion = max(squares - float(gradient @ step), error) / weight
            clip = min(max(3.0 * math.sqrt(dispersion + error), 1e-3), MAX_RESIDUAL)
        if has_covariance:
            noise = ((deviation / scales.gradient) ** 2 + spread**2 * float(step @ step)) * np.eye(d)
            noise += spread**2 * np.outer(step, step)
            covariance = inverse @ noise @ inverse + dispersion * per_row * inverse
        return NewtonState(clip, hessian_snr if final else 0.0, start - step, covariance)
