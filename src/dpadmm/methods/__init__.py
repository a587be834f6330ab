"""Deployable methods, one file each; ``METHODS`` lists them by name."""

from dpadmm.engine.method import DeployableMethod, Method, MethodSettings, Round, RoundResult, State
from dpadmm.methods.auto import Auto, AutoRounds
from dpadmm.methods.dp_admm import DpAdmm, DpAdmmRounds
from dpadmm.methods.dp_sgd import DpSgd, DpSgdRounds
from dpadmm.methods.release import KINDS, EvaluationRelease, Released, ReleaseRounds, StatisticsRelease
from dpadmm.parameters.fields import registered

METHODS: dict[str, type[MethodSettings]] = registered(
    __name__,
    "auto",
    "dp_admm",
    "dp_sgd",
    having="rounds",
)

__all__ = [
    "KINDS",
    "METHODS",
    "Auto",
    "AutoRounds",
    "DeployableMethod",
    "DpAdmm",
    "DpAdmmRounds",
    "DpSgd",
    "DpSgdRounds",
    "EvaluationRelease",
    "Method",
    "MethodSettings",
    "ReleaseRounds",
    "Released",
    "Round",
    "RoundResult",
    "State",
    "StatisticsRelease",
]  # fmt: skip
