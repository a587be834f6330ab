"""Training methods, one file each."""

from dpadmm.methods.base import Method, State
from dpadmm.methods.centralized import Centralized, minimizer
from dpadmm.methods.dp_admm import DpAdmm

__all__ = ["Centralized", "DpAdmm", "Method", "State", "minimizer"]
