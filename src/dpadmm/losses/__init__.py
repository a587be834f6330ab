"""Losses, one file each; ``LOSSES`` names them for files and the command line."""

from dpadmm.losses.base import Loss, Task, curvatures, slopes
from dpadmm.losses.hinge import Hinge
from dpadmm.losses.huber import Huber
from dpadmm.losses.logistic import Logistic
from dpadmm.losses.poisson import Poisson
from dpadmm.losses.smoothed_hinge import SmoothedHinge
from dpadmm.losses.softmax import Softmax
from dpadmm.losses.squared import Squared
from dpadmm.parameters.fields import registered

LOSSES = registered(
    __name__,
    "logistic",
    "softmax",
    "hinge",
    "smoothed_hinge",
    "squared",
    "poisson",
    "huber",
    having="formula",
)

__all__ = [
    "LOSSES", "Hinge", "Huber", "Logistic", "Loss", "Poisson", "SmoothedHinge", "Softmax", "Squared", "Task",
    "curvatures", "slopes",
]  # fmt: skip
