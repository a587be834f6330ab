"""Deployable methods, one file each; ``METHODS`` lists them by name."""

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
    "dp_sgd",
    having="rounds",
)

__all__ = [
    "KINDS", "METHODS", "Auto", "AutoRounds", "DeployableMethod", "DpAdmm", "DpAdmmRounds", "DpSgd", "DpSgdRounds",
    "Evaluation", "Gathered", "Method", "MethodSettings", "ReleaseRounds", "Released", "Round", "State", "Statistics",
]  # fmt: skip
