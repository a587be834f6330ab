"""Check the parameters of an estimator by their annotations, which use the parameter types of a study."""

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
        parameter
        for parameter in parameters(type(estimator))
        if parameter.name in names and (parameter.base in (bool, int, float) or choices(parameter.kind))
    ]


def check_parameters(estimator: Any, *, unlimited: str = "") -> None:
    """Raise one StudyError that lists all invalid parameters. The parameter ``unlimited`` may be infinite.

    As in scikit-learn, ``fit`` calls this, and no parameter is changed.
    """
    problems = []
    for parameter in checked_parameters(estimator):
        value = plain(getattr(estimator, parameter.name))
        if parameter.name == unlimited and isinstance(value, float) and value == math.inf:
            continue
        try:
            parameter.checked(value)
        except StudyError as error:
            problems.append(str(error))
    if problems:
        raise StudyError("; ".join(problems))


def positive(name: str, value: Any) -> float:
    """Return a positive, finite number. Raise StudyError for other values."""
    return float(Parameter(name, Positive, MISSING, "").checked(value))
