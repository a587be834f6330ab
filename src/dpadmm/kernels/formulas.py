"""Compile the formula of a loss, which its file defines once for NumPy and for the compiler."""

from __future__ import annotations

import hashlib
import inspect
import warnings
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from numba import types as nbt

from dpadmm.errors import PerformanceWarning
from dpadmm.kernels.compiler import numba
from dpadmm.losses.base import exp

_inline = numba.njit(error_model="numpy", fastmath={"contract"})


@_inline
def _exp(x):  # type: ignore[no-untyped-def]
    """Return exp(x) to the last bit or two. The compiler can vectorise this arithmetic, unlike that of libm.

    With ``x = k ln2 + r`` it is a polynomial in r, times 2^k, which is built from its bits. x is clamped to
    [−708, 709]; beyond, the result is practically 0 or inf.
    """
    x = np.minimum(np.maximum(x, -708.0), 709.0)
    shifted = x * 1.4426950408889634 + 6755399441055744.0  # adding 1.5·2^52 rounds to whole numbers
    k = shifted - 6755399441055744.0
    r = (x - k * 0.6931471803691238) - k * 1.9082149292705877e-10
    total = 1.0 / 6227020800.0
    total = total * r + 1.0 / 479001600.0
    total = total * r + 1.0 / 39916800.0
    total = total * r + 1.0 / 3628800.0
    total = total * r + 1.0 / 362880.0
    total = total * r + 1.0 / 40320.0
    total = total * r + 1.0 / 5040.0
    total = total * r + 1.0 / 720.0
    total = total * r + 1.0 / 120.0
    total = total * r + 1.0 / 24.0
    total = total * r + 1.0 / 6.0
    total = total * r + 0.5
    total = total * r + 1.0
    total = total * r + 1.0
    power = (np.float64(shifted).view(np.int64) + np.int64(1023)) << np.int64(52)
    return total * np.int64(power).view(np.float64)


def _slopes_of_rows(labels, scores, parameters, out):  # type: ignore[no-untyped-def]
    for i in range(labels.shape[0]):
        formula(i, labels, scores, parameters, out)  # type: ignore[name-defined]  # noqa: F821


_VECTOR, _MATRIX = nbt.Array(nbt.float64, 1, "C"), nbt.Array(nbt.float64, 2, "C")
SLOPES_SIGNATURE = nbt.void(_VECTOR, _MATRIX, _VECTOR, _MATRIX)


@cache
def compiled_slopes(formula: Any, of_rows: bool = False) -> Any | None:
    """Return the compiled slopes of a loss, from its formula or from its own loop over rows; None if numba fails.

    The compiler's cache is by name, so the name contains a hash of this file and of the file of the loss: an edited
    formula never uses the machine code of the old one.
    """
    try:
        text = Path(inspect.getfile(formula)).read_bytes() + Path(__file__).read_bytes()
    except (OSError, TypeError):
        text = None  # entered at a prompt: compiled in every process
    names = dict(formula.__globals__)
    if formula.__closure__:
        text = None  # the text does not contain captured values
    if text is not None:  # numbers outside of the function may be defined in any file
        used = [(name, names.get(name)) for name in formula.__code__.co_names]
        text += repr([(name, value) for name, value in used if isinstance(value, int | float)]).encode()
    if names.get("exp") is exp:
        names["exp"] = _exp
    own = FunctionType(formula.__code__, names, formula.__name__, formula.__defaults__, formula.__closure__)
    copy = own
    if not of_rows:
        copy = FunctionType(_slopes_of_rows.__code__, {"formula": numba.njit(own, error_model="numpy")})
    copy.__qualname__ = f"_slopes_{hashlib.sha256(text or b'').hexdigest()[:16]}_{formula.__qualname__}"
    copy.__module__ = __name__
    try:
        return numba.cfunc(SLOPES_SIGNATURE, cache=text is not None, error_model="numpy")(copy)
    except numba.core.errors.NumbaError as problem:
        warnings.warn(
            f"{formula.__qualname__} cannot be compiled, so the slower NumPy path is used: "
            f"{str(problem).splitlines()[0]}",
            PerformanceWarning,
            stacklevel=4,
        )
        return None
