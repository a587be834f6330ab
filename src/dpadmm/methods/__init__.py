"""Deployable methods, one file each; ``METHODS`` lists them by name. ``auto`` selects one of them."""

from dpadmm.engine.method import (
    DeployableMethod,
    Method,
    MethodChoice,
    NoState,
    Round,
    RoundResult,
    ServerSideMethod,
    State,
    prepared,
)
from dpadmm.methods.auto import Auto
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.methods.dp_admm import DpAdmm
from dpadmm.methods.dp_sgd import DpSgd
from dpadmm.methods.newton import Newton
from dpadmm.methods.pgd import Pgd
from dpadmm.methods.release import KINDS, EvaluationRelease, Released, ReleaseMethod, StatisticsRelease
from dpadmm.parameters.fields import registered

METHODS: dict[str, type[MethodChoice]] = registered(
    __name__,
    "auto",
    "pgd",
    "newton",
    "dp_admm",
    "dp_sgd",
    having="concrete",
)
CONCRETE_METHODS = tuple(name for name, method in METHODS.items() if issubclass(method, Method))
"""Names of the methods that run: all except ``auto``."""

__all__ = [
    "CONCRETE_METHODS",
    "KINDS",
    "METHODS",
    "Auto",
    "DeployableMethod",
    "DpAdmm",
    "DpSgd",
    "EvaluationRelease",
    "Method",
    "MethodChoice",
    "Newton",
    "NoState",
    "Pgd",
    "PrivacyBudget",
    "ReleaseMethod",
    "Released",
    "Round",
    "RoundResult",
    "ServerSideMethod",
    "State",
    "StatisticsRelease",
    "prepared",
]
