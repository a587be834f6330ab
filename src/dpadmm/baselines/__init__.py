"""Methods for comparison, one file each. They run in simulations only.

``BASELINES`` lists them by name; ``ALL_METHODS`` adds the deployable methods.
"""

from dpadmm.baselines.admm import Admm
from dpadmm.baselines.admm_asynchronous import AdmmAsynchronous
from dpadmm.baselines.admm_dvp import AdmmDvp
from dpadmm.baselines.admm_fixed_point import AdmmFixedPoint
from dpadmm.baselines.admm_graph import AdmmGraph
from dpadmm.baselines.admm_local_steps import AdmmLocalSteps
from dpadmm.baselines.admm_minibatch import AdmmMinibatch
from dpadmm.baselines.admm_penalty import AdmmPenalty
from dpadmm.baselines.admm_pvp import AdmmPvp
from dpadmm.baselines.admm_recycled import AdmmRecycled
from dpadmm.baselines.centralized import Centralized
from dpadmm.baselines.objective_perturbation import ObjectivePerturbation
from dpadmm.baselines.output_perturbation import OutputPerturbation
from dpadmm.methods import METHODS, MethodChoice
from dpadmm.parameters.fields import registered

BASELINES: dict[str, type[MethodChoice]] = registered(
    __name__,
    "admm",
    "admm_pvp",
    "admm_dvp",
    "admm_penalty",
    "admm_recycled",
    "admm_minibatch",
    "admm_local_steps",
    "admm_graph",
    "admm_asynchronous",
    "admm_fixed_point",
    "output_perturbation",
    "objective_perturbation",
    "centralized",
    having="concrete",
)
_FIRST = ("auto", "pgd", "newton", "dp_admm", "admm", "admm_pvp", "admm_dvp", "dp_sgd")
ALL_METHODS = {name: (METHODS | BASELINES)[name] for name in (*_FIRST, *METHODS, *BASELINES)}
"""All methods, in the order of tables and legends."""
METHOD_TITLES = {name: method.title for name, method in ALL_METHODS.items()}
"""Display names of the methods, in display order."""
ONE_MODEL = tuple(name for name, method in ALL_METHODS.items() if not method.local_models)
"""Methods without local models; their single model is reported as the local one."""

__all__ = [
    "ALL_METHODS",
    "BASELINES",
    "METHOD_TITLES",
    "ONE_MODEL",
    "Admm",
    "AdmmAsynchronous",
    "AdmmDvp",
    "AdmmFixedPoint",
    "AdmmGraph",
    "AdmmLocalSteps",
    "AdmmMinibatch",
    "AdmmPenalty",
    "AdmmPvp",
    "AdmmRecycled",
    "Centralized",
    "ObjectivePerturbation",
    "OutputPerturbation",
]
