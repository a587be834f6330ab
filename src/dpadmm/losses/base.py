"""Losses: a convex function of (label, scores), and the constants the theorems need.

With row ``a`` (L2 norm ≤ 1), weights ``w`` (d × p) and scores ``s = wᵀa`` (p numbers), the row's loss is
``ℓ(b, s)`` and its gradient in ``w`` is the outer product ``a · (∂ℓ/∂s)ᵀ``, of Frobenius norm
``‖a‖·‖∂ℓ/∂s‖``. So a bound on ``‖∂ℓ/∂s‖`` is the Lipschitz constant c1, and a bound on the Hessian in
``s`` is c3.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats

Task = Literal["binary", "multiclass", "regression", "count"]

Index = int | slice
"""One row, or all rows."""

exp = np.exp
"""The exponential for formulas."""


@runtime_checkable
class Loss(Protocol):
    """A convex loss. To add one, write one file with a frozen dataclass that has these members.

    ``formula`` is the only place of the derivative. It is written once and run twice: compiled, with ``i``
    the number of a row, and by NumPy, with ``i`` a slice that means all rows. So use arithmetic, comparisons,
    NumPy's elementwise functions, and ``exp`` from this file, which the compiler has a faster version of.
    """

    name: ClassVar[str]
    task: ClassVar[Task]

    @property
    def n_outputs(self) -> int:
        """p, the number of scores of a row."""

    @property
    def lipschitz(self) -> float:
        """c1: bound of a row's gradient norm. Gradients are clipped to it, so that it always holds."""

    @property
    def smoothness(self) -> float | None:
        """c3: bound of the Hessian norm, or None when the loss has kinks."""

    @property
    def parameters(self) -> tuple[float, ...]:
        """Numbers that ``formula`` needs."""

    def value(self, labels: Floats, scores: Floats) -> Floats:
        """``ℓ`` of every row: labels (rows,), scores (rows, p) -> (rows,)."""

    @staticmethod
    def formula(i: Index, labels: Floats, scores: Floats, parameters: Floats, out: Floats) -> None:
        """Write ``∂ℓ/∂s_h`` of row i into ``out[h, i]`` for all h: labels (rows,), scores (p, rows)."""


@runtime_checkable
class RowLoop(Protocol):
    """A loss of several outputs with its own loop over the rows, which is compiled in place of ``formula``.

    With the rows in the innermost loop the compiler vectorises over four of them.
    """

    @staticmethod
    def formula_of_rows(labels: Floats, scores: Floats, parameters: Floats, out: Floats) -> None:
        """Write ``∂ℓ/∂s_h`` of every row i into ``out[h, i]``."""


def slopes(loss: Loss, labels: Floats, scores: Floats) -> Floats:
    """``∂ℓ/∂s`` of every row: labels (rows,), scores (rows, p) -> (rows, p), unclipped.

    Examples
    --------
    >>> from dpadmm.losses import Logistic
    >>> slopes(Logistic(), np.array([1.0, -1.0]), np.array([[0.0], [0.0]])).tolist()
    [[-0.5], [0.5]]
    """
    out = np.empty((scores.shape[1], scores.shape[0]))
    every_row = slice(None)
    loss.formula(every_row, labels, np.ascontiguousarray(scores.T), np.array(loss.parameters, dtype=float), out)
    return out.T


def check_loss(loss: Any) -> None:
    """Refuse an own loss that lacks a member, or whose formula does not give finite slopes for a few rows."""
    name = type(loss).__name__
    missing = [each for each in _MEMBERS if each not in dir(loss)]
    if missing:
        raise StudyError(f"loss {name} has no {missing[0]}; a loss needs {', '.join(_MEMBERS)} (CONTRIBUTING.md)")
    labels = np.array([1.0, -1.0, 1.0]) if loss.task == "binary" else np.array([0.0, 1.0, 0.0])
    scores = np.linspace(-2.0, 2.0, 3 * loss.n_outputs).reshape(3, -1)
    try:
        with np.errstate(all="ignore"):
            found = slopes(loss, labels, scores)
    except Exception as error:
        raise StudyError(
            f"loss {name}: NumPy cannot run its formula ({type(error).__name__}: {error}); write it with arithmetic, "
            "comparisons and NumPy's functions of arrays, and give parameters what it reads"
        ) from None
    if not np.isfinite(found).all():
        raise StudyError(f"loss {name}: its formula gives {found.min()} to {found.max()} for scores from −2 to 2")


_MEMBERS = ("name", "task", "n_outputs", "lipschitz", "smoothness", "parameters", "value", "formula")


def curvatures(loss: Loss, labels: Floats, scores: Floats, step: float = 1e-4) -> Floats:
    """``∂²ℓ/∂s∂s`` of every row by central differences of the slope: -> (rows, p, p), symmetric.

    Accurate to about 1e-8, which is plenty for the matrix of a Newton step: its fixed point depends on the
    slope alone.
    """
    p = scores.shape[1]
    out = np.empty((len(scores), p, p))
    for h in range(p):
        ahead, behind = scores.copy(), scores.copy()
        ahead[:, h] += step
        behind[:, h] -= step
        out[:, h] = (slopes(loss, labels, ahead) - slopes(loss, labels, behind)) / (2.0 * step)
    return (out + out.transpose(0, 2, 1)) / 2.0
