"""Check the parameters of an estimator by their annotations, which are the types that a study's settings have."""

from __future__ import annotations

import math
from dataclasses import MISSING
from typing import Any

from dpadmm.errors import StudyError
from dpadmm.parameters.fields import Parameter, Positive, choices, parameters, plain


def checked_parameters(estimator: Any) -> list[Parameter]:
    """Return the parameters of an estimator that are numbers, booleans or one of several words."""
    names = estimator.get_params(deep=False)
    return [
        each
        for each in parameters(type(estimator))
        if each.name in names and (each.base in (bool, int, float) or choices(each.kind))
    ]


def check_parameters(estimator: Any, *, unlimited: str = "") -> None:
    """Raise one error that names all wrong parameters; the parameter ``unlimited`` may be infinite.

    As in scikit-learn, this happens in ``fit`` and changes no parameter.
    """
    found = []
    for each in checked_parameters(estimator):
        value = plain(getattr(estimator, each.name))
        if each.name == unlimited and isinstance(value, float) and value == math.inf:
            continue
        try:
            each.checked(value)
        except StudyError as error:
            found.append(str(error))
    if found:
        raise StudyError("; ".join(found))


def positive(name: str, value: Any) -> float:
    """Return a positive, finite number, or raise a sentence."""
    return float(Parameter(name, Positive, MISSING, "").checked(value))
