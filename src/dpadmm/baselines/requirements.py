"""Conditions on a problem that the solver or the privacy proof of a method needs."""

from __future__ import annotations

import numpy as np

from dpadmm.errors import StudyError
from dpadmm.losses import Loss
from dpadmm.losses.base import slopes
from dpadmm.matrices.arrays import Floats
from dpadmm.queries.problem import Problem

_SIZES = np.array([0.0, 1e-3, 0.1, 0.5, 100.0, 600.0, 708.0, 709.9, 746.0, 1e3, 1e5, 1e9, 1e20, 1e100, 1e300])


def need_solvable(problem: Problem, method: str) -> None:
    """Raise StudyError for a loss with kinks, for which there is no exact local solver."""
    if problem.loss.smoothness is None:
        raise StudyError(
            f"{method} solves local problems exactly, which needs a loss without kinks; "
            f"{problem.loss.name} has them: use smoothed_hinge, or dp_admm, which applies to any convex loss"
        )


def need_smooth(problem: Problem, method: str) -> None:
    """Raise StudyError unless the objective is smooth."""
    for part in (problem.loss, problem.regularizer):
        if part.smoothness is None:
            raise StudyError(
                f"{method} does not apply: its privacy proof needs a smooth objective, and {part.name} has "
                "kinks; use the l2 regularizer and a smooth loss, or dp_admm, which needs neither"
            )


def need_one_score(problem: Problem, method: str) -> None:
    """Raise StudyError for several outputs, to which the proof of a perturbed objective does not apply."""
    if problem.loss.n_outputs != 1:
        raise StudyError(
            f"{method} does not apply: its privacy proof is for losses of one score, and {problem.loss.name} "
            f"has {problem.loss.n_outputs}; use dp_admm or dp_sgd"
        )


def need_convex(problem: Problem, method: str, penalty: float = 0.0) -> None:
    """Raise StudyError for a problem that is not strongly convex without its rows (``penalty`` is ρ)."""
    if problem.alpha * problem.regularizer.convexity + penalty <= 0.0:
        raise StudyError(
            f"{method} does not apply: one row can move an agent's minimiser without limit unless the "
            "regularizer is strongly convex; use the l2 regularizer with alpha > 0, or dp_admm"
        )


def need_monotone_slopes(problem: Problem, method: str) -> None:
    """Raise StudyError for a loss whose clipped slopes are not those of a convex function.

    A release of gradients only needs clipping. The sensitivity of a *minimiser* also depends on convexity. The slope of
    one score still increases after clipping; for several scores this holds only if nothing is clipped. The check uses a
    public grid of scores, including very large ones, at which a formula may overflow.
    """
    loss = problem.loss
    labels, scores = _grid(loss)
    with np.errstate(all="ignore"):
        values = slopes(loss, labels, scores)
        if loss.n_outputs == 1:
            rising = values[1:, 0] - values[:-1, 0] >= -1e-9 * np.maximum(1.0, np.abs(values[:-1, 0]))
            is_valid = bool(np.isfinite(values).all() and rising[labels[1:] == labels[:-1]].all())
        else:
            is_valid = bool((np.linalg.norm(values, axis=1) <= loss.lipschitz * (1.0 + 1e-9)).all())
    if not is_valid:
        need = "finite slopes that rise with the score" if loss.n_outputs == 1 else "slopes within its lipschitz"
        raise StudyError(
            f"{method} does not apply: it needs a loss with {need}, and {loss.name} has others; "
            "correct the loss, or use dp_admm or dp_sgd, which clip"
        )


def _grid(loss: Loss) -> tuple[Floats, Floats]:
    """Return labels (rows,) and scores (rows, p): for one score, all sizes in increasing order for every label."""
    classes = {"binary": [-1.0, 1.0], "multiclass": [*range(loss.n_outputs)]}
    labels = np.array(classes.get(loss.task, [-10.0, -1.0, 0.0, 0.3, 10.0]), dtype=float)
    line = np.unique(np.concatenate([-_SIZES, _SIZES, np.linspace(-50.0, 50.0, 801)]))
    if loss.n_outputs == 1:
        return np.repeat(labels, len(line)), np.tile(line, len(labels))[:, None]
    rng = np.random.default_rng(0)
    points = rng.choice(line, size=(4000, loss.n_outputs))
    return rng.choice(labels, size=len(points)), points
