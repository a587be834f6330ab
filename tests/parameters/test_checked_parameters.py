"""Losses, regularizers and methods check their parameters and convert them to Python values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from looping import case

from dpadmm import StudyError
from dpadmm.baselines import ALL_METHODS
from dpadmm.baselines.admm_dvp import AdmmDvp
from dpadmm.losses import LOSSES
from dpadmm.methods import KINDS, METHODS, DpAdmm
from dpadmm.parameters.fields import parameters
from dpadmm.regularizers import REGULARIZERS

CLASSES: dict[str, Any] = {**LOSSES, **REGULARIZERS, **METHODS, **ALL_METHODS, **KINDS}


def test_every_registered_class_converts_its_parameters():
    for name, cls in CLASSES.items():
        for parameter in parameters(cls):
            if isinstance(parameter.default, float):
                with case(name, parameter.name):
                    assert type(vars(cls(**{parameter.name: np.float32(0.5)}))[parameter.name]) is float


def test_every_registered_class_refuses_invalid_parameters():
    for name, cls in CLASSES.items():
        for parameter in parameters(cls):
            with case(name, parameter.name), pytest.raises(StudyError, match=f"^{name}: {parameter.name} must be"):
                cls(**{parameter.name: object()})


def test_positional_arguments_are_parameters_in_their_order():
    assert AdmmDvp(0.2, "pure").mechanism == "pure"
    assert DpAdmm(0.2, 5.0).weight_radius == 5.0
    with pytest.raises(TypeError, match="positional"):
        DpAdmm(0.2, 5.0, "constant", 1.0, 3.0)
