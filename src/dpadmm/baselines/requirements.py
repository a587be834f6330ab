"""Where a method applies: what its solver and its privacy proof need of a problem."""

from __future__ import annotations

import numpy as np

from dpadmm.errors import StudyError
from dpadmm.losses import Loss
from dpadmm.losses.base import slopes
from dpadmm.matrices.arrays import Floats
from dpadmm.queries.problem import Problem

_SIZES = np.array([0.0, 1e-3, 0.1, 0.5, 100.0, 600.0, 708.0, 709.9, 746.0, 1e3, 1e5, 1e9, 1e20, 1e100, 1e300])


def need_solvable(problem: Problem, method: str) -> None:
    """Refuse a loss with kinks, for which no exact local solver is here."""
    if problem.loss.smoothness is None:
        raise StudyError(
            f"{method} solves local problems exactly, which needs a loss without kinks; "
            f"{problem.loss.name} has them: use smoothed_hinge, or dp_admm, which applies to any convex loss"
        )


def need_smooth(problem: Problem, method: str) -> None:
    """Refuse an objective with kinks where a method's privacy proof needs it smooth."""
    for part in (problem.loss, problem.regularizer):
        if part.smoothness is None:
            raise StudyError(
                f"{method} does not apply: its privacy proof needs a smooth objective, and {part.name} has "
                "kinks; use the l2 regularizer and a smooth loss, or dp_admm, which needs neither"
            )


def need_one_score(problem: Problem, method: str) -> None:
    """Refuse several outputs, for which the privacy proof of a perturbed objective does not hold."""
    if problem.loss.n_outputs != 1:
        raise StudyError(
            f"{method} does not apply: its privacy proof is for losses of one score, and {problem.loss.name} "
            f"has {problem.loss.n_outputs}; use dp_admm or dp_sgd"
        )


def need_convex(problem: Problem, method: str, penalty: float = 0.0) -> None:
    """Refuse a problem that is not strongly convex without its rows (``penalty`` is ρ)."""
    if problem.alpha * problem.regularizer.convexity + penalty <= 0.0:
        raise StudyError(
            f"{method} does not apply: one row can move an agent's minimiser without limit unless the "
            "regularizer is strongly convex; use the l2 regularizer with alpha > 0, or dp_admm"
        )


def need_monotone_slopes(problem: Problem, method: str) -> None:
    """Refuse a loss whose clipped slopes are not those of a convex function.

    Clipping bounds a row's gradient, which is all that a release of gradients needs. How far a row can move
    a *minimiser* also rests on convexity. A slope of one score that rises is still one when clipped; with
    several scores it is only where nothing is clipped. Looked at on a public grid of scores, far out too,
    where a formula may overflow.
    """
    loss = problem.loss
    labels, scores = _grid(loss)
    with np.errstate(all="ignore"):
        found = slopes(loss, labels, scores)
        if loss.n_outputs == 1:
            rising = found[1:, 0] - found[:-1, 0] >= -1e-9 * np.maximum(1.0, np.abs(found[:-1, 0]))
            fine = bool(np.isfinite(found).all() and rising[labels[1:] == labels[:-1]].all())
        else:
            fine = bool((np.linalg.norm(found, axis=1) <= loss.lipschitz * (1.0 + 1e-9)).all())
    if not fine:
        what = "finite slopes that rise with the score" if loss.n_outputs == 1 else "slopes within its lipschitz"
        raise StudyError(
            f"{method} does not apply: it needs a loss with {what}, and {loss.name} has others; "
            "mend the loss, or use dp_admm or dp_sgd, which clip"
        )


def _grid(loss: Loss) -> tuple[Floats, Floats]:
    """Labels (rows,) and scores (rows, p): for one score all sizes in rising order for every label."""
    known = {"binary": [-1.0, 1.0], "multiclass": [*range(loss.n_outputs)]}
    labels = np.array(known.get(loss.task, [-10.0, -1.0, 0.0, 0.3, 10.0]), dtype=float)
    line = np.unique(np.concatenate([-_SIZES, _SIZES, np.linspace(-50.0, 50.0, 801)]))
    if loss.n_outputs == 1:
        return np.repeat(labels, len(line)), np.tile(line, len(labels))[:, None]
    rng = np.random.default_rng(0)
    points = rng.choice(line, size=(4000, loss.n_outputs))
    return rng.choice(labels, size=len(points)), points
