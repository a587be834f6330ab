"""Losses refuse invalid parameters and name them."""

from __future__ import annotations

import numpy as np
import pytest
from looping import case

from dpadmm.errors import StudyError
from dpadmm.losses import Huber, Poisson, SmoothedHinge, Softmax, Squared

BAD = [0.0, -1.0, np.inf, -np.inf, np.nan]


def test_invalid_parameter_is_named():
    for cls, name, bad in [
        *((Huber, "delta", bad) for bad in BAD),
        *((SmoothedHinge, "width", bad) for bad in BAD),
        *((Squared, "gradient_bound", bad) for bad in BAD),
        *((Poisson, "gradient_bound", bad) for bad in BAD),
        *((Softmax, "n_outputs", bad) for bad in (1, 0, -3, 2.5, np.inf, np.nan)),
    ]:
        with case(cls, name, bad), pytest.raises(StudyError, match=rf"^{cls.name}: {name} .*{bad}"):
            cls(**{name: bad})


def test_invalid_unit_and_cuts_are_refused():
    for bad in ({"unit": 0.0}, {"unit": 2.0}, {"cuts": (0.5, 0.2)}, {"cuts": (0.5, 1.0)}, {"cuts": (0.0,)}):
        with case(bad), pytest.raises(StudyError, match="cuts must rise between 0 and 1"):
            Poisson(**bad)


def test_squared_loss_declares_its_gradient_bound():
    assert Squared(gradient_bound=0.7).lipschitz == 0.7
    assert Squared().lipschitz == 2.0
