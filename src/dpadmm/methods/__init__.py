"""Training methods, one file each."""

from dpadmm.methods.admm import Admm
from dpadmm.methods.admm_dvp import AdmmDvp
from dpadmm.methods.admm_pvp import AdmmPvp
from dpadmm.methods.base import GradientMethod, Method, Round, State
from dpadmm.methods.centralized import Centralized, minimizer
from dpadmm.methods.dp_admm import DpAdmm
from dpadmm.methods.dp_sgd import DpSgd
from dpadmm.methods.objective_perturbation import ObjectivePerturbation
from dpadmm.methods.output_perturbation import OutputPerturbation

__all__ = [
    "Admm",
    "AdmmDvp",
    "AdmmPvp",
    "Centralized",
    "DpAdmm",
    "DpSgd",
    "GradientMethod",
    "Method",
    "ObjectivePerturbation",
    "OutputPerturbation",
    "Round",
    "State",
    "minimizer",
]
