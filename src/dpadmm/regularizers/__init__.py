"""Regularizers, one file each; ``REGULARIZERS`` names them for settings files and the command line."""

from dpadmm.parameters.fields import registered
from dpadmm.regularizers.base import Regularizer
from dpadmm.regularizers.elastic_net import ElasticNet
from dpadmm.regularizers.l1 import L1
from dpadmm.regularizers.l2 import L2
from dpadmm.regularizers.none import NoRegularizer

REGULARIZERS = registered(
    __name__,
    "none",
    "l2",
    "l1",
    "elastic_net",
    having="prox",
)

__all__ = ["L1", "L2", "REGULARIZERS", "ElasticNet", "NoRegularizer", "Regularizer"]
