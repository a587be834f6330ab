"""Train one linear model across data owners, with differential privacy that each owner enforces.

In every round, each agent adds calibrated Gaussian noise to the statistics it sends. The paper's method, DP-ADMM
(Huang, Hu, Guo, Chan-Tin, Gong), and the tuning-free default ``auto`` are included.

>>> from dpadmm import simulate
>>> result = simulate("synthetic", n_agents=20, epsilon=1.0, delta=1e-5, seed=7)
>>> bool(result.trace.last()["test_error_global"] < 0.5)
True
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpadmm.version import VERSION

if TYPE_CHECKING:
    from dpadmm.accounting import (
        affordable_rounds,
        exact_delta,
        exact_epsilon,
        paper_epsilon,
        paper_noise_multiplier,
        total_noise_multiplier,
    )
    from dpadmm.accounting.budget import BudgetAccountant
    from dpadmm.accounting.report import PrivacyReport
    from dpadmm.data import (
        Dataset,
        Partition,
        by_group,
        encode_labels,
        equal,
        holdout,
        label_skewed,
        load_adult,
        read_table,
        synthetic,
        unequal,
    )
    from dpadmm.engine.metrics import Trace
    from dpadmm.engine.minimizer import minimizer
    from dpadmm.errors import (
        BudgetExceededError,
        ConvergenceWarning,
        DataError,
        DivergenceError,
        DPADMMError,
        PerformanceWarning,
        PrivacyLeakWarning,
        StudyError,
    )
    from dpadmm.estimators import (
        DPADMMClassifier,
        DPADMMPoissonRegressor,
        DPADMMRegressor,
        PrivateSearch,
        PublicScaler,
    )
    from dpadmm.losses import Hinge, Huber, Logistic, Loss, Poisson, SmoothedHinge, Softmax, Squared
    from dpadmm.models.file import load_model
    from dpadmm.models.model import Model
    from dpadmm.models.run import Result
    from dpadmm.planning.drafting import draft_study
    from dpadmm.queries.problem import Problem, Rows, make_rows
    from dpadmm.regularizers import L1, L2, ElasticNet, NoRegularizer, Regularizer
    from dpadmm.studies.reading import read_study
    from dpadmm.studies.settings import Settings, Training
    from dpadmm.studies.study import Study
    from dpadmm.training.plan import plan
    from dpadmm.training.release import describe, evaluate
    from dpadmm.training.simulate import simulate
    from dpadmm.training.train import train

__version__ = VERSION

__all__ = [
    "L1",
    "L2",
    "BudgetAccountant",
    "BudgetExceededError",
    "ConvergenceWarning",
    "DPADMMClassifier",
    "DPADMMError",
    "DPADMMPoissonRegressor",
    "DPADMMRegressor",
    "DataError",
    "Dataset",
    "DivergenceError",
    "ElasticNet",
    "Hinge",
    "Huber",
    "Logistic",
    "Loss",
    "Model",
    "NoRegularizer",
    "Partition",
    "PerformanceWarning",
    "Poisson",
    "PrivacyLeakWarning",
    "PrivacyReport",
    "PrivateSearch",
    "Problem",
    "PublicScaler",
    "Regularizer",
    "Result",
    "Rows",
    "Settings",
    "SmoothedHinge",
    "Softmax",
    "Squared",
    "Study",
    "StudyError",
    "Trace",
    "Training",
    "affordable_rounds",
    "by_group",
    "describe",
    "draft_study",
    "encode_labels",
    "equal",
    "evaluate",
    "exact_delta",
    "exact_epsilon",
    "holdout",
    "label_skewed",
    "load_adult",
    "load_model",
    "make_rows",
    "minimizer",
    "paper_epsilon",
    "paper_noise_multiplier",
    "plan",
    "read_study",
    "read_table",
    "simulate",
    "synthetic",
    "total_noise_multiplier",
    "train",
    "unequal",
]

_LAZY_IMPORTS = {
    "dpadmm.data": (
        "Dataset",
        "Partition",
        "by_group",
        "encode_labels",
        "equal",
        "holdout",
        "label_skewed",
        "load_adult",
        "read_table",
        "synthetic",
        "unequal",
    ),
    "dpadmm.errors": (
        "BudgetExceededError",
        "ConvergenceWarning",
        "DataError",
        "DivergenceError",
        "DPADMMError",
        "PerformanceWarning",
        "PrivacyLeakWarning",
        "StudyError",
    ),
    "dpadmm.estimators": (
        "DPADMMClassifier",
        "DPADMMPoissonRegressor",
        "DPADMMRegressor",
        "PrivateSearch",
        "PublicScaler",
    ),
    "dpadmm.losses": ("Hinge", "Huber", "Logistic", "Loss", "Poisson", "SmoothedHinge", "Softmax", "Squared"),
    "dpadmm.engine.minimizer": ("minimizer",),
    "dpadmm.engine.metrics": ("Trace",),
    "dpadmm.models.model": ("Model",),
    "dpadmm.models.file": ("load_model",),
    "dpadmm.accounting": (
        "affordable_rounds",
        "exact_delta",
        "exact_epsilon",
        "paper_epsilon",
        "paper_noise_multiplier",
        "total_noise_multiplier",
    ),
    "dpadmm.accounting.budget": ("BudgetAccountant",),
    "dpadmm.accounting.report": ("PrivacyReport",),
    "dpadmm.planning.drafting": ("draft_study",),
    "dpadmm.queries.problem": ("Problem", "Rows", "make_rows"),
    "dpadmm.regularizers": ("L1", "L2", "ElasticNet", "NoRegularizer", "Regularizer"),
    "dpadmm.studies.settings": ("Settings", "Training"),
    "dpadmm.studies.reading": ("read_study",),
    "dpadmm.studies.study": ("Study",),
    "dpadmm.models.run": ("Result",),
    "dpadmm.training.plan": ("plan",),
    "dpadmm.training.release": ("describe", "evaluate"),
    "dpadmm.training.simulate": ("simulate",),
    "dpadmm.training.train": ("train",),
}
"""Public names by module, imported on first use. A saved model predicts without the compiler, and only the estimators
need scikit-learn."""

_PACKAGES = {
    "accounting": "dpadmm.accounting",
    "data": "dpadmm.data",
    "losses": "dpadmm.losses",
    "methods": "dpadmm.methods",
    "regularizers": "dpadmm.regularizers",
}
_MODULES = {name: module for module, names in _LAZY_IMPORTS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(_PACKAGES[name])
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
