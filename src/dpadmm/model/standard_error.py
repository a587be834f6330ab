"""How far privacy noise alone moves the weights of a released model, from public values and no rows.

Along its path the consensus obeys a linear recursion: every round adds noise of known size, and the
curvature of the mean loss pulls back what earlier rounds added (:class:`Recursion`). The curvature depends on
the rows. It is that of tables that might be, by the public schema (``typical_tables``), and that agree with
the public transcript (:class:`Evidence`), found by a Markov chain. Nothing here ever sees a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from dpadmm._base.arrays import Floats, Integers
from dpadmm._base.errors import DataError
from dpadmm.model.typical_tables import TypicalTable
from dpadmm.optim.losses.base import Loss, slopes
from dpadmm.optim.problem import Problem
from dpadmm.privacy.sensitivity import mean_gradient_sensitivity
from dpadmm.study.study import Study
from dpadmm.training.loop import AverageName
from dpadmm.training.methods import DpAdmmRounds, DpSgdRounds

MOST_WEIGHTS, TABLES = 600, 12
"""Beyond so many, weights are taken one by one, and from so many typical tables."""

KINK_PASSES, KINK_SHIFTS = 3, (-1.0, 1.0)

POINTS = 8
"""Places on the path where curvature is looked at."""

KINK_STEP = 0.3
"""Losses with kinks get their curvature from differences of slopes so far apart."""

SIGNAL = 0.15
"""How much a model can gain over zero weights, in units of c1²/c3: bounds the gradient at the start."""

TINY = 1e-12

CHAINS, STARTS = 4, 8
"""Every chain begins with the best of so many random tables."""

SWEEPS, PASSES = 48, 2
"""Passes over the columns between which the rows' curvature is not looked at again; the first half of the
sweeps only leads to where the transcript is."""

WORK = 3e9
"""Multiplications of a chain, above which it has fewer sweeps."""

STRIDES = (0.15, 0.4, 1.0)


@dataclass(frozen=True)
class NoiseError:
    """Covariance of the weights (d, p), laid out row by row, that privacy noise alone gives them.

    ``covariance`` is (dp, dp), or its diagonal (dp,) where there are very many weights.
    """

    covariance: Floats
    shape: tuple[int, int]

    @property
    def std(self) -> Floats:
        """Standard deviation of every weight: (d, p)."""
        variance = self.covariance if self.covariance.ndim == 1 else np.diag(self.covariance)
        return np.sqrt(variance).reshape(self.shape)

    def std_of(self, combinations: Floats) -> Floats:
        """Standard deviation of linear combinations of the weights: (q, dp) -> (q,)."""
        if self.covariance.ndim == 1:
            return np.asarray(np.sqrt(combinations**2 @ self.covariance))
        return np.asarray(np.sqrt(np.einsum("qi,qi->q", combinations @ self.covariance, combinations)))


def noise_error_of(study: Study, history: Floats, n_rows: Integers) -> NoiseError:
    """Noise standard errors, from a study, the consensus of every round (t + 1, d, p) and the agents' m."""
    history = np.asarray(history, dtype=float)
    if history.ndim != 3 or history.shape[1:] != study.shape or len(history) < 2:
        raise DataError(f"a history has the shape (rounds + 1, {study.shape[0]}, {study.shape[1]})")
    recursion = recursion_of(study, n_rows, len(history) - 1)
    if history[0].size > MOST_WEIGHTS:
        return NoiseError(_one_by_one(study, recursion, history), study.shape)
    last = history[-1].ravel()
    covariances = [
        _covariance(matrix, relative, study.problem, recursion, last)
        for seed in range(CHAINS)
        for matrix, relative in _chain(study, recursion, history, np.random.default_rng(seed))
    ]
    return NoiseError(np.mean(covariances, axis=0), study.shape)


def _covariance(matrix: Floats, relative: Floats, problem: Problem, recursion: Recursion, model: Floats) -> Floats:
    """Covariance (dp, dp) of the weights if curvature is this matrix, of this relative size by round."""
    smooth, kinks = problem.reg_share * problem.regularizer.convexity, 0.0
    if problem.regularizer.smoothness is None:  # λ/n times its slope on either side of zero
        kinks = float(problem.reg_share * problem.regularizer.gradient(np.array([[1e-12]]))[0, 0])
    free = _propagated(matrix + smooth * np.eye(len(matrix)), recursion, relative)
    if not kinks:
        return free
    local = recursion.local_variance(float(np.trace(matrix)) / len(matrix))[-1]

    def settled(center: Floats, out: Floats) -> Floats:
        for _ in range(KINK_PASSES):
            spread = np.sqrt(np.diag(out) + local)  # mean curvature of |w| for w spread so: 2φ(w/τ)/τ
            bend = np.sqrt(2.0 / np.pi) * np.exp(-0.5 * (center / spread) ** 2) / spread
            pull = smooth + kinks * bend
            out = _propagated(matrix + np.diag(pull), recursion, relative)
        return out

    here = settled(model, free)
    # in another run a weight may be at the kink, or away from it
    others = [settled(model + shift * np.sqrt(np.diag(here)), here) for shift in KINK_SHIFTS]
    return np.asarray(np.mean([here, *others], axis=0))


def _propagated(curvature: Floats, recursion: Recursion, relative: Floats) -> Floats:
    size, directions = np.linalg.eigh(curvature)
    return np.asarray((directions * recursion.variance(np.maximum(size, 0.0), relative)) @ directions.T)


def _one_by_one(study: Study, recursion: Recursion, history: Floats) -> Floats:
    """Variances (dp,) without regard to how weights go together, which with so many hardly matters."""
    pull = study.problem.reg_share * study.problem.regularizer.convexity
    total = np.zeros(history[0].size)
    spread = spread_of_agents(recursion, study.problem.loss, history.shape[1])
    for seed in range(TABLES):
        rng = np.random.default_rng(seed)
        rows = TypicalTable(study, rng).rows()
        found = curvature_along(history, rows, loss=study.problem.loss, spread=spread, rng=rng)
        total += recursion.variance(mean_square(rows, found.of_rows) + pull, found.relative)
    return np.asarray(total / TABLES)


@dataclass(frozen=True)
class Recursion:
    """How noise travels through the rounds of a study, as far as they were run, in one direction.

    Where the mean loss has curvature h in a direction, every agent's gradient there is h times where it
    stands, plus a constant, plus noise of known size. All else is the method's public arithmetic, so the
    variance that all noise together leaves in the model is a function of h alone. Agents with the same number
    of rows are one group.
    """

    counts: Integers  # (g,) agents in every group
    noise_std: Floats  # (g,) of the noise on an agent's mean gradient, z·2c1/m
    steps: Floats  # (t, g) how far a gradient moves an agent's model: 1/(ρ + 1/η), or the learning rate
    rho: float | None  # of DP-ADMM; None for DP-SGD
    average: Floats  # (t,) the model is Σ_k average_k x^k of the consensus of every round

    @property
    def n_agents(self) -> int:
        return int(self.counts.sum())

    @property
    def mean_steps(self) -> Floats:
        """How far the mean gradient moves the consensus: (t,)."""
        return np.asarray(self.steps @ self.counts / self.n_agents)

    @property
    def gradient_noise(self) -> Floats:
        """Standard deviation of the noise on the consensus' step divided by ``mean_steps``: (t,)."""
        moved = np.sqrt((self.steps * self.noise_std) ** 2 @ self.counts) / self.n_agents
        return np.asarray(moved / self.mean_steps)

    def variance(self, curvature: Floats, relative: Floats) -> Floats:
        """Variance of the model in directions of these curvatures: (r,) -> (r,).

        ``relative`` (t,) says how much stronger or weaker curvature is in each round. Backwards through the
        rounds goes the derivative of the model with respect to everything an agent remembers; its square,
        times the noise's, adds up.
        """
        return self._sgd(curvature, relative) if self.rho is None else self._admm(curvature, relative, self.rho)

    def _sgd(self, curvature: Floats, relative: Floats) -> Floats:
        size = (self.mean_steps * self.gradient_noise) ** 2
        slope, out = np.zeros(len(curvature)), np.zeros(len(curvature))
        for k in reversed(range(len(self.steps))):
            slope += self.average[k]
            out += size[k] * slope**2
            slope *= 1.0 - self.mean_steps[k] * relative[k] * curvature
        return out

    def _admm(self, curvature: Floats, relative: Floats, rho: float) -> Floats:
        n, shape = self.n_agents, (len(curvature), len(self.counts))
        model, dual, consensus = np.zeros(shape), np.zeros(shape), np.zeros((shape[0], 1))
        out = np.zeros(shape[0])
        for k in reversed(range(len(self.steps))):
            step = self.steps[k]
            consensus += self.average[k]
            # x^k = mean(w̃ − γ/ρ)
            model += consensus / n
            dual -= consensus / (n * rho)
            # w̃^k = step·((1/η − h) w̃^{k−1} + ρ x^{k−1} + γ^{k−1} − noise), and 1/η = 1/step − ρ
            out += (step * self.noise_std * model) ** 2 @ self.counts
            dual += step * model
            back = (1.0 - step * (rho + relative[k] * curvature[:, None])) * model
            # γ^{k−1} = γ^{k−2} − ρ (w̃^{k−1} − x^{k−1})
            consensus = rho * ((step * model + dual) @ self.counts)[:, None]
            model = back - rho * dual
        return out

    def local_variance(self, curvature: float) -> Floats:
        """Variance of agents' models around the consensus before every round, mean over agents: (t,)."""
        if self.rho is None or self.n_agents == 1:
            return np.zeros(len(self.steps))
        rho, out = self.rho, np.empty(len(self.steps))
        model = both = dual = np.zeros(len(self.counts))  # variances and covariance of w̃ and γ
        for k, step in enumerate(self.steps):
            out[k] = model @ self.counts / self.n_agents
            dual, both = dual - 2.0 * rho * both + rho**2 * model, both - rho * model
            keep = 1.0 - step * (rho + curvature)
            model, both = (
                keep**2 * model + 2.0 * keep * step * both + step**2 * dual + (step * self.noise_std) ** 2,
                keep * both + step * dual,
            )
        return out * (1.0 - 1.0 / self.n_agents)


def recursion_of(study: Study, n_rows: Integers, rounds: int) -> Recursion:
    """The first ``rounds`` rounds of a study with agents of so many rows."""
    settings, loss = study.training, study.problem.loss
    sizes, counts = np.unique(np.asarray(n_rows, dtype=np.int64), return_counts=True)
    method = study.method(*sizes.tolist())
    assert isinstance(method, DpAdmmRounds | DpSgdRounds)  # a study has no others
    rho = method.rho if isinstance(method, DpAdmmRounds) else None
    steps = [
        1.0 / (method.rho + 1.0 / method.schedule(k))
        if isinstance(method, DpAdmmRounds)
        else np.full(len(sizes), method.learning_rate)
        for k in range(1, rounds + 1)
    ]
    return Recursion(
        counts=counts,
        noise_std=method.noise_multiplier * mean_gradient_sensitivity(loss.lipschitz, sizes),
        steps=np.array(steps),
        rho=rho,
        average=average_weights(settings.average, rounds, settings.planned_rounds),
    )


def average_weights(average: AverageName, rounds: int, planned: int) -> Floats:
    """The share of every round's consensus in the model, as :class:`dpadmm.training.loop.Averages` has it."""
    numbers = np.arange(1, rounds + 1)
    used = {"last": numbers == rounds, "all": numbers > 0, "tail": 2 * numbers > planned}[average]
    chosen = used if used.any() else numbers > 0
    return np.asarray(chosen / chosen.sum())


@dataclass(frozen=True)
class Curvature:
    """``∂²ℓ/∂s∂s`` of every row, ``of_rows`` (n, p, p); its ``relative`` size by round (t,)."""

    of_rows: Floats
    relative: Floats


def spread_of_agents(recursion: Recursion, loss: Loss, n_features: int) -> Floats:
    """Standard deviation of agents' weights around the consensus before every round, roughly: (t,)."""
    return np.sqrt(recursion.local_variance(0.2 * (loss.smoothness or 0.5) / n_features))


def curvature_along(
    history: Floats, rows: Floats, *, loss: Loss, spread: Floats, rng: np.random.Generator
) -> Curvature:
    """Mean over the later part of a path (t + 1, d, p), with agents so widely ``spread`` around it (t,)."""
    rounds, lengths = len(spread), np.linalg.norm(rows, axis=1)
    at = np.unique(np.linspace(0, rounds - 1, min(POINTS, rounds)).astype(int))
    found = []
    for k in at:
        scores = rows @ history[k]
        # agents' gradients are taken at their own models, which lie around the consensus
        scores += spread[k] * lengths[:, None] * rng.normal(size=scores.shape)
        found.append(_curvatures(loss, scores, rng))
    sizes = np.array([np.einsum("nhh,n->", each, lengths**2) for each in found])
    late = 3 * at >= rounds - 1
    if not sizes[late].any():  # a loss with kinks may be flat there, on these rows
        late[:] = True
    size = sizes[late].mean()
    relative = np.interp(np.arange(rounds), at, sizes / size) if size > 0.0 else np.ones(rounds)
    return Curvature(np.mean([each for each, used in zip(found, late, strict=True) if used], axis=0), relative)


def mean_outer(left: Floats, right: Floats, curvature: Floats) -> Floats:
    """Mean of ``abᵀ ⊗ C`` over rows a of ``left`` and b of ``right``, for weights (d, p) laid out by row."""
    n, p = len(left), curvature.shape[1]
    out = np.empty((left.shape[1], p, right.shape[1], p))
    for h in range(p):
        for g in range(h, p):
            out[:, h, :, g] = (left * curvature[:, h, g, None]).T @ right / n
            out[:, g, :, h] = out[:, h, :, g]
    return out.reshape(left.shape[1] * p, right.shape[1] * p)


def mean_square(rows: Floats, curvature: Floats) -> Floats:
    """The diagonal of ``mean_outer(rows, rows, curvature)``."""
    return np.asarray((rows**2).T @ np.einsum("nhh->nh", curvature) / len(rows)).ravel()


def _curvatures(loss: Loss, scores: Floats, rng: np.random.Generator) -> Floats:
    """``∂²ℓ/∂s∂s`` of rows whose labels are as the scores say: (rows, p, p)."""
    n, p = scores.shape
    if loss.task == "binary":
        sharpness = 1.0 if loss.name == "logistic" else 2.0
        labels = np.where(rng.random(n) < expit(sharpness * scores[:, 0]), 1.0, -1.0)
    elif loss.task == "regression":
        labels = np.clip(scores[:, 0] + 0.4 * rng.normal(size=n), -1.0, 1.0)
    else:
        labels = np.zeros(n)  # the second derivative does not depend on it
    step, out = 1e-2 if loss.name in ("logistic", "softmax") else KINK_STEP, np.empty((n, p, p))
    for h in range(p):
        ahead, behind = scores.copy(), scores.copy()
        ahead[:, h] += step
        behind[:, h] -= step
        out[:, h] = (slopes(loss, labels, ahead) - slopes(loss, labels, behind)) / (2.0 * step)
    return out


@dataclass(frozen=True)
class Transcript:
    """Gradients (t, dp) that the steps of the consensus reveal, at points (t, dp), and their weights (t,).

    Every step of the consensus is a noisy gradient: ``y_k = b + H ξ_k + noise`` of known size, with y_k the
    mean gradient that a step reveals, b the gradient at the start and ξ_k the way from there (in units of
    curvature, where that changes along the path). The noise of round k is independent of ξ_k, so this is a
    regression. Its rounds are few beside the entries of H: it does not tell H, but which of the tables that
    might be agree with it.
    """

    gradients: Floats
    points: Floats
    weights: Floats


def transcript_of(problem: Problem, recursion: Recursion, history: Floats) -> Transcript:
    """From the consensus of every round, (t + 1, d, p)."""
    points = history[:-1].reshape(len(history) - 1, -1)
    moved = (history[:-1] - history[1:]) / recursion.mean_steps[:, None, None]
    pull = problem.reg_share * problem.regularizer.gradient(history[:-1])
    return Transcript((moved - pull).reshape(points.shape), points, recursion.gradient_noise**-2.0)


def start_variance(problem: Problem, curvature: Floats) -> Floats:
    """Covariance (dp, dp) of the gradient at the start: what a model can gain is moderate."""
    loss = problem.loss
    gain = SIGNAL * loss.lipschitz**2 / (loss.smoothness or 1.0)
    total = max(float(np.trace(curvature)), TINY)
    return np.asarray(0.5 * gain * (curvature / len(curvature) + curvature @ curvature / total))


@dataclass(frozen=True)
class Evidence:
    """Sums over the rounds from which the likelihood of a curvature follows."""

    second: Floats
    cross: Floats
    way: Floats
    seen: Floats
    start: Floats

    def log_likelihood(self, curvature: Floats) -> float:
        """``Σ w(y·Hξ − ½|Hξ|²) + ½ rᵀ(w + V⁻¹)⁻¹r`` with ``r = Σ w(y − Hξ)``: beside no curvature at all.

        The last part is due to the gradient at the start, which is normal with variance V.
        """
        fit = np.sum((self.cross - 0.5 * curvature @ self.second) * curvature)
        rest = self.seen - curvature @ self.way
        return float(fit + 0.5 * rest @ self.start @ rest)


def evidence(transcript: Transcript, relative: Floats, start: Floats) -> Evidence:
    """The transcript if curvature has this ``relative`` size by round, (t,)."""
    way = np.zeros_like(transcript.points)
    between = 0.5 * (relative[1:] + relative[:-1])[:, None]
    np.cumsum(between * np.diff(transcript.points, axis=0), axis=0, out=way[1:])
    weights, total = transcript.weights[:, None], transcript.weights.sum()
    return Evidence(
        second=(weights * way).T @ way,
        cross=(weights * transcript.gradients).T @ way,
        way=(weights * way).sum(axis=0),
        seen=(weights * transcript.gradients).sum(axis=0),
        start=np.linalg.solve(np.eye(len(start)) + total * start, start),
    )


def _chain(
    study: Study, recursion: Recursion, history: Floats, rng: np.random.Generator
) -> Iterator[tuple[Floats, Floats]]:
    """Curvatures (dp, dp) that agree with the schema and the transcript, and their relative sizes by round.

    A Markov chain over typical tables. A step proposes other parameters for one column
    (``√(1−β²)·u + β·normal``, which leaves their distribution as it is) and is taken by the likelihood of the
    transcript alone. So where the transcript says nothing, tables stay as typical as they were; where
    curvature matters it says much, since noise that was pulled back shows.
    """
    problem, p = study.problem, history.shape[2]
    transcript = transcript_of(problem, recursion, history)
    spread = spread_of_agents(recursion, problem.loss, history.shape[1])

    def seen_from(rows: Floats) -> tuple[Curvature, Floats]:
        found = curvature_along(history, rows, loss=problem.loss, spread=spread, rng=rng)
        return found, mean_outer(rows, rows, found.of_rows)

    tables = [TypicalTable(study, rng) for _ in range(STARTS)]
    views = [seen_from(table.rows()) for table in tables]
    start = start_variance(problem, np.mean([matrix for _, matrix in views], axis=0))
    scores = [evidence(transcript, c.relative, start).log_likelihood(matrix) for c, matrix in views]
    table = tables[int(np.argmax(scores))]
    steps = PASSES * len(table.columns)
    sweeps = int(np.clip(WORK / (steps * history[0].size ** 3), 2, SWEEPS))
    for sweep in range(sweeps):
        rows = table.rows()
        curvature, matrix = seen_from(rows)
        seen = evidence(transcript, curvature.relative, start)
        now = seen.log_likelihood(matrix)
        for j in np.tile(np.arange(len(table.columns)), PASSES):
            stride, old = rng.choice(STRIDES), table.parameters[j]
            new = np.sqrt(1.0 - stride**2) * old + stride * rng.normal(size=len(old))
            place, before = table.places[j], rows[:, table.places[j]].copy()
            rows[:, place] = table.column(j, new)
            there = slice(place.start * p, place.stop * p)
            other = matrix.copy()
            other[there] = mean_outer(rows[:, place], rows, curvature.of_rows)
            other[:, there] = other[there].T
            then = seen.log_likelihood(other)
            if np.log(rng.random()) < then - now:
                now, matrix, table.parameters[j] = then, other, new
            else:
                rows[:, place] = before
        if 2 * sweep >= sweeps:
            yield matrix, curvature.relative
