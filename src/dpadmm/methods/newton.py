"""``auto`` with intervals: private Newton steps, the last of which has a covariance that counts sample and noise.

Every round asks for the gradient and the Hessian at the current point, of rows as they are. The rounds before the
last share 40% of the budget, in μ², and come so near the optimum that one more step from there is linear: its
estimate and covariance are those of the last round alone (docs/decisions/0019-intervals.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.engine.method import NoState, RoundResult, ServerSideMethod
from dpadmm.errors import StudyError
from dpadmm.losses.poisson import Poisson
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.clipping import INTERCEPT
from dpadmm.queries.newton import NewtonQuery
from dpadmm.queries.problem import Problem

if TYPE_CHECKING:
    from dpadmm.methods.prior import Prior
    from dpadmm.methods.setup import Setup

LAST_SHARE = 0.6
"""Share of the budget, in μ², that the last round takes."""

ROUNDS = 5
"""Rounds, where nobody says how many."""

MOST_COLUMNS = 200
"""At most so many features, of which all d(d + 1)/2 products are released."""

CLEAR = 2.0
"""Eigenvalues of the Hessian are to be so many times as large as the largest of its noise."""

CAP, MOST_CAP, NEGLIGIBLE = 2.0, 1e3, 1e-4
"""Means of counts are capped at so many times the mean count, and at more where noise is less than this."""

TRACES = {"logistic": 0.25, "squared": 1.0}
"""Most that the trace of a row's Hessian can be, as rows have length 1; that of counts has no such bound."""

LARGEST_RESIDUAL = 2.0
"""Of labels and predictions in [−1, 1]."""


@dataclass(frozen=True)
class Inferred:
    """All that the aggregator knows, which is public.

    ``clip`` is what residuals are clipped to, or means of counts; ``clearance`` the smallest eigenvalue of the last
    Hessian over what intervals need, 0 until it was released; the covariance (d, d) is 0 unless that is at least 1.
    Eigenvalues that noise may have made are not counted, so that it is above ½, however much is
    missing, or 0.001 if none is left.
    """

    clip: float
    clearance: float
    weights: Floats  # (d,)
    covariance: Floats

    def packed(self) -> Floats:
        return np.concatenate([[self.clip, self.clearance], self.weights, _upper(self.covariance)])

    @classmethod
    def unpacked(cls, packed: Floats, d: int) -> Inferred:
        half = np.zeros((d, d))
        half[np.triu_indices(d)] = packed[2 + d :]
        return cls(float(packed[0]), float(packed[1]), packed[2 : 2 + d], half + np.triu(half, 1).T)


def _upper(matrix: Floats) -> Floats:
    return np.asarray(matrix[np.triu_indices(len(matrix))])


@dataclass(frozen=True)
class NewtonRounds(ServerSideMethod):
    """z of the last round and of the others, of every agent (n,), or of all alike (1,).

    ``prior`` is what the aggregator knows of public rows: the start.
    """

    problem: Problem
    n_features: int
    n_rounds: int
    earlier: Floats
    last: Floats
    prior: Prior | None = None

    name: ClassVar[str] = "auto"
    cure: ClassVar[str] = "fewer columns, or more noise"

    @classmethod
    def of(cls, setup: Setup) -> NewtonRounds:
        NewtonQuery.of(setup.problem, 1)  # of a loss that has one
        if setup.n_rounds < 2:
            raise StudyError("intervals need at least 2 rounds: the last one starts from what the others found")
        if setup.sizes.n_features > MOST_COLUMNS:
            raise StudyError(
                f"intervals are for at most {MOST_COLUMNS} features, and there are {setup.sizes.n_features}, whose "
                "products would all be released; leave columns out, or inference"
            )
        last, earlier = setup.gaussian_apart(LAST_SHARE)
        return cls(setup.problem, setup.sizes.n_features, setup.n_rounds, earlier, last)

    @property
    def _pair(self) -> NewtonQuery:
        return NewtonQuery(self.problem.loss, self.n_features)

    def check_rows(self, n_rows: Integers, n_columns: int, honest: int | None = None) -> None:
        """Refuse a study whose Hessian is below its noise for sure, by public numbers alone.

        Of k directions one has at most 1/k of the trace, and noise has eigenvalues up to ``2s√k``. A column is one
        direction here, though a category may have several.
        """
        trace = TRACES.get(self.problem.loss.name)
        if trace is None:
            return
        z = float(self.last.min()) * math.sqrt(len(n_rows) / (honest or 1))
        scale = self._pair.weights(LARGEST_RESIDUAL).hessian
        spread = mean_sensitivity(NewtonQuery.row_norm, 1) * z / float(n_rows.sum()) / (math.sqrt(2.0) * scale)
        edge = 2.0 * spread * math.sqrt(n_columns)
        if trace / n_columns < edge:
            factor = CLEAR * edge * n_columns / trace
            raise StudyError(
                f"inference: the noise would hide how {n_columns} columns go together, whatever the "
                f"{int(n_rows.sum()):,} rows are: take an ε, or rows, about {factor:.2g} times as large, at most "
                f"{max(1, int(n_columns / factor ** (2.0 / 3.0)))} columns, or leave inference out"
            )

    def release(self, round: int) -> tuple[str, Floats]:
        return NewtonQuery.name, self.last if round == self.n_rounds else self.earlier

    def start(self, shape: tuple[int, int], warm_start: Floats | None = None) -> Floats:
        d = self._pair.n_weights
        if warm_start is None and self.prior is not None:
            warm_start = self.prior.weights
        point = np.zeros(d)
        if warm_start is not None:  # a constant for every interval, and the mean of what else they have
            point = np.append(warm_start[:-1].mean(axis=1), warm_start[-1])
        numbers = self.problem.loss.task == "regression" and point.any()
        return Inferred(LARGEST_RESIDUAL if numbers else 1.0, 0.0, point, np.zeros((d, d))).packed()

    def with_prior(self, prior: Prior) -> NewtonRounds:
        return replace(self, prior=prior)

    def model(self, consensus: Floats) -> Floats:
        weights, p = self._state(consensus).weights, self.problem.loss.n_outputs
        return np.vstack([np.repeat(weights[:-p, None], p, axis=1), weights[-p:]])

    def inferred(self, consensus: Floats) -> tuple[float, Floats | None]:
        now = self._state(consensus)
        return now.clearance, now.covariance if now.clearance >= 1.0 else None

    def _state(self, consensus: Floats) -> Inferred:
        return Inferred.unpacked(consensus, self._pair.n_weights)

    def parameters(self, state: NoState, consensus: Floats, *, round: int) -> Floats:
        now, size = self._state(consensus), self._pair.parameter_shape[0]
        return np.broadcast_to(np.append(now.weights, now.clip)[:size], (len(state.released), size))

    def aggregate(self, gathered: RoundResult) -> Floats:
        final = gathered.round == self.n_rounds
        z, n_rows = gathered.multipliers(self.last if final else self.earlier), gathered.n_rows[gathered.present]
        weights = n_rows / z if np.all(z) else n_rows.astype(float)
        weights = weights / weights.sum()
        mean = gathered.mean(weights)
        deviation = mean_sensitivity(NewtonQuery.row_norm, 1) * float(np.linalg.norm(weights * z / n_rows))
        per_row = float(np.sum(np.square(weights) / n_rows))
        return self._stepped(self._state(gathered.consensus), mean, deviation, per_row, final=final).packed()

    def _stepped(self, now: Inferred, released: Floats, deviation: float, per_row: float, *, final: bool) -> Inferred:
        """A Newton step ``ŵ = w − Ĥ⁻¹ĝ``; in the last round with its covariance, if the Hessian is clear of its noise.

        With noise E in Ĥ and e in ĝ, and ``v = w − H⁻¹g``, the step without noise, ``Ĥ(ŵ − v) = E(w − v) − e``. E has
        the variance s² off the diagonal and 2s² on it, so Eδ has the covariance ``s²(‖δ‖²I + δδᵀ)``. The sample adds
        ``φ·H/N``, where φ is 1, or the variance of residuals, or of counts what one event adds to them. With weights
        ω in [0, 1] H is ``Σω·h·aaᵀ/N`` and the sample adds ``φ·Σω²·h·aaᵀ/N²``, which is no more, since ``ω² ≤ ω``.

        Directions of which rows say nothing, such as one category less the constant, keep their weights and have the
        variance 0: with C the others, v is then the solution within ``w + span(C)``, and all above holds for it. Where
        the Hessian is not clear, and in all rounds before the last, steps are damped by its noise.
        """
        pair, loss, start = self._pair, self.problem.loss, now.weights
        d, scales = pair.n_weights, pair.weights(now.clip)
        gradient, hessian, squares = pair.split(released, now.clip)
        spread = deviation / (math.sqrt(2.0) * scales.hessian)
        mean = 1.0
        if isinstance(loss, Poisson):
            ones = np.append(np.zeros(d - loss.n_outputs), np.full(loss.n_outputs, 1.0 / INTERCEPT))
            seen = hessian @ ones  # rows times their means, as every row times this is 1
            unsure = deviation / (scales.gradient * INTERCEPT)
            mean = max(float(ones @ (seen - gradient)), 0.0) + unsure
            if not start.any():  # means are exposures: at any other constant they are so many times as large
                rate = mean / max(float(ones @ seen), mean)
                gradient, hessian, spread = rate * seen - (seen - gradient), rate * hessian, rate * spread
                start = math.log(rate) * ones
        known = np.diag(hessian) > 3.0 * math.sqrt(2.0) * spread + 1e-10  # other columns are about 0 in all rows
        edge = max(2.0 * spread * math.sqrt(np.count_nonzero(known)), 1e-10)
        values, inside = np.linalg.eigh(hessian[np.ix_(known, known)])
        told = values > edge
        clearance = float(values[told].min()) / (CLEAR * edge) if told.any() else 1e-3
        fine = final and clearance >= 1.0
        basis = np.zeros((d, np.count_nonzero(told)))
        basis[known] = inside[:, told]
        inverse = basis / (values[told] + (0.0 if fine else edge)) @ basis.T
        step, dispersion = inverse @ gradient, 1.0
        clip, covariance = now.clip, np.zeros((d, d))
        if isinstance(loss, Poisson):
            dispersion, clip = loss.unit, mean * min(max(CAP, NEGLIGIBLE / max(deviation, 1e-12)), MOST_CAP)
        if loss.task == "regression":  # of residuals after the step
            error, weight = deviation / scales.squares, 1.0
            if self.problem.weighted:  # squares are times the weights, whose mean the constant column tells
                unsure = math.sqrt(2.0) * spread / INTERCEPT**2
                seen = max(float(hessian[-1, -1]) / INTERCEPT**2, unsure)
                weight = seen if seen + 3.0 * unsure < 1.0 else 1.0
            dispersion = max(squares - float(gradient @ step), error) / weight
            clip = min(max(3.0 * math.sqrt(dispersion + error), 1e-3), LARGEST_RESIDUAL)
        if fine:
            within = ((deviation / scales.gradient) ** 2 + spread**2 * float(step @ step)) * np.eye(d)
            within += spread**2 * np.outer(step, step)
            covariance = inverse @ within @ inverse + dispersion * per_row * inverse
        return Inferred(clip, clearance if final else 0.0, start - step, covariance)
