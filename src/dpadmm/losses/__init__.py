"""Losses, one file each; ``LOSSES`` names them for settings files and the command line."""

from dpadmm.losses.base import Loss, Task, curvatures, slopes
from dpadmm.losses.hinge import Hinge
from dpadmm.losses.huber import Huber
from dpadmm.losses.logistic import Logistic
from dpadmm.losses.smoothed_hinge import SmoothedHinge
from dpadmm.losses.softmax import Softmax
from dpadmm.losses.squared import Squared

LOSSES = {cls.name: cls for cls in (Logistic, Softmax, Hinge, SmoothedHinge, Squared, Huber)}

__all__ = [
    "LOSSES",
    "Hinge",
    "Huber",
    "Logistic",
    "Loss",
    "SmoothedHinge",
    "Softmax",
    "Squared",
    "Task",
    "curvatures",
    "slopes",
]
