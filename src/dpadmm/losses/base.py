"""Losses: convex functions of label and scores, with the constants of the theorems.

A row ``a`` (L2 norm ≤ 1) and weights ``w`` (d × p) give the scores ``s = wᵀa`` (p numbers). The loss of the row is
``ℓ(b, s)``. Its gradient in ``w`` is the outer product ``a · (∂ℓ/∂s)ᵀ``, of Frobenius norm ``‖a‖·‖∂ℓ/∂s‖``, so c1 is a
bound on ``‖∂ℓ/∂s‖``, and c3 a bound on the Hessian in ``s``.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats

Task = Literal["binary", "multiclass", "regression", "count"]

Index = int | slice
"""The number of a row, or a slice of all rows."""

exp = np.exp
"""Exponential function for formulas. Compiled formulas use a faster version."""


@runtime_checkable
class Loss(Protocol):
    """A convex loss. A new loss is one file with a frozen dataclass that has these members.

    ``formula`` is the only definition of the derivative. It runs compiled, with ``i`` the number of a row, and in
    NumPy, with ``i`` a slice of all rows. Use arithmetic, comparisons, NumPy's elementwise functions, and ``exp`` from
    this file.
    """

    name: ClassVar[str]
    task: ClassVar[Task]

    @property
    def n_outputs(self) -> int:
        """p, the number of scores of a row."""

    @property
    def lipschitz(self) -> float:
        """c1: bound of the gradient norm of a row. It always holds, because gradients are clipped to it."""

    @property
    def smoothness(self) -> float | None:
        """c3: bound of the Hessian norm; None if the loss has kinks."""

    @property
    def parameters(self) -> tuple[float, ...]:
        """Parameters of ``formula``."""

    def value(self, labels: Floats, scores: Floats) -> Floats:
        """Return ``ℓ`` of every row: labels (rows,), scores (rows, p) -> (rows,)."""

    @staticmethod
    def formula(i: Index, labels: Floats, scores: Floats, parameters: Floats, out: Floats) -> None:
        """Write ``∂ℓ/∂s_h`` of row i into ``out[h, i]`` for all h: labels (rows,), scores (p, rows)."""


@runtime_checkable
class RowLoop(Protocol):
    """A loss of several outputs with its own loop over rows, which is compiled instead of ``formula``.

    The compiler can vectorise it if the innermost loop is over rows.
    """

    @staticmethod
    def formula_of_rows(labels: Floats, scores: Floats, parameters: Floats, out: Floats) -> None:
        """Write ``∂ℓ/∂s_h`` of every row i into ``out[h, i]``."""


def slopes(loss: Loss, labels: Floats, scores: Floats) -> Floats:
    """Return ``∂ℓ/∂s`` of every row: labels (rows,), scores (rows, p) -> (rows, p), unclipped.

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
    """Raise StudyError for a custom loss that lacks a member, or whose formula returns slopes that are not finite."""
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
            f"loss {name}: NumPy cannot run its formula ({type(error).__name__}: {error}); use arithmetic, comparisons "
            "and NumPy's elementwise functions, and list its parameters in the property parameters"
        ) from None
    if not np.isfinite(found).all():
        raise StudyError(f"loss {name}: its formula returns {found.min()} to {found.max()} for scores from −2 to 2")


_MEMBERS = ("name", "task", "n_outputs", "lipschitz", "smoothness", "parameters", "value", "formula")


def curvatures(loss: Loss, labels: Floats, scores: Floats) -> Floats:
    """Return ``∂²ℓ/∂s∂s`` of every row by central differences of the slope: (rows, p, p), symmetric.

    The accuracy of about 1e-8 is enough for a Newton step, whose fixed point depends on the slope only.
    """
    step, p = 1e-4, scores.shape[1]
    out = np.empty((len(scores), p, p))
    for h in range(p):
        ahead, behind = scores.copy(), scores.copy()
        ahead[:, h] += step
        behind[:, h] -= step
        out[:, h] = (slopes(loss, labels, ahead) - slopes(loss, labels, behind)) / (2.0 * step)
    return (out + out.transpose(0, 2, 1)) / 2.0
