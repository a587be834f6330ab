"""Training methods, one file each; ``METHODS`` names them for studies, simulations and the command line."""

from dpadmm.baselines.admm import Admm, AdmmRounds
from dpadmm.baselines.admm_dvp import AdmmDvp, AdmmDvpRounds
from dpadmm.baselines.admm_pvp import AdmmPvp, AdmmPvpRounds
from dpadmm.baselines.centralized import Centralized, CentralizedRounds, minimizer
from dpadmm.baselines.objective_perturbation import ObjectivePerturbation, ObjectivePerturbationRounds
from dpadmm.baselines.output_perturbation import OutputPerturbation, OutputPerturbationRounds
from dpadmm.engine.method import DeployableMethod, Gathered, Method, MethodSettings, Round, State
from dpadmm.methods.auto import Auto, AutoRounds
from dpadmm.methods.dp_admm import DpAdmm, DpAdmmRounds
from dpadmm.methods.dp_sgd import DpSgd, DpSgdRounds
from dpadmm.methods.release import KINDS, Evaluation, Released, ReleaseRounds, Statistics
from dpadmm.parameters.fields import registered

METHODS: dict[str, type[MethodSettings]] = registered(
    __name__,
    "auto",
    "dp_admm",
    "admm",
    "admm_pvp",
    "admm_dvp",
    "dp_sgd",
    "output_perturbation",
    "objective_perturbation",
    "centralized",
    having="rounds",
)

__all__ = [
    "KINDS", "METHODS", "Admm", "AdmmDvp", "AdmmDvpRounds", "AdmmPvp", "AdmmPvpRounds", "AdmmRounds", "Auto",
    "AutoRounds",
    "Centralized", "CentralizedRounds", "DeployableMethod", "DpAdmm", "DpAdmmRounds", "DpSgd", "DpSgdRounds",
    "Evaluation", "Gathered", "Method", "MethodSettings", "ObjectivePerturbation", "ObjectivePerturbationRounds",
    "OutputPerturbation", "OutputPerturbationRounds", "ReleaseRounds",
    "Released", "Round", "State", "Statistics", "minimizer",
]  # fmt: skip
