"""Training methods, one file each."""

from dpadmm.training.methods.admm import Admm
from dpadmm.training.methods.admm_dvp import AdmmDvp
from dpadmm.training.methods.admm_pvp import AdmmPvp
from dpadmm.training.methods.base import GradientMethod, Method, Round, State
from dpadmm.training.methods.centralized import Centralized, minimizer
from dpadmm.training.methods.dp_admm import DpAdmm
from dpadmm.training.methods.dp_sgd import DpSgd
from dpadmm.training.methods.objective_perturbation import ObjectivePerturbation
from dpadmm.training.methods.output_perturbation import OutputPerturbation

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
