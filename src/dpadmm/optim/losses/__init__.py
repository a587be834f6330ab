"""Losses, one file each; ``LOSSES`` names them for files and the command line."""

from dpadmm._base.fields import registered
from dpadmm.optim.losses.base import Loss, Task, curvatures, slopes
from dpadmm.optim.losses.hinge import Hinge
from dpadmm.optim.losses.huber import Huber
from dpadmm.optim.losses.logistic import Logistic
from dpadmm.optim.losses.poisson import Poisson
from dpadmm.optim.losses.smoothed_hinge import SmoothedHinge
from dpadmm.optim.losses.softmax import Softmax
from dpadmm.optim.losses.squared import Squared

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
