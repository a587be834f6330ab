"""Regularizers, one file each; ``REGULARIZERS`` names them for settings files and the command line."""

from dpadmm._base.fields import registered
from dpadmm.optim.regularizers.base import Regularizer
from dpadmm.optim.regularizers.elastic_net import ElasticNet
from dpadmm.optim.regularizers.l1 import L1
from dpadmm.optim.regularizers.l2 import L2
from dpadmm.optim.regularizers.none import NoRegularizer

REGULARIZERS = registered(
    __name__,
    "none",
    "l2",
    "l1",
    "elastic_net",
    having="prox",
)

__all__ = ["L1", "L2", "REGULARIZERS", "ElasticNet", "NoRegularizer", "Regularizer"]
