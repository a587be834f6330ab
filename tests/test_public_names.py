"""The public names are listed here, so that adding or removing one is deliberate."""

from __future__ import annotations

import subprocess
import sys
from inspect import isclass, isfunction

import dpadmm
from dpadmm import accounting as privacy
from dpadmm import losses, methods, regularizers

NAMES = [
    "BudgetAccountant",
    "BudgetExceededError",
    "ConvergenceWarning",
    "DPADMMClassifier",
    "DPADMMPoissonRegressor",
    "DPADMMRegressor",
    "DataError",
    "Dataset",
    "DivergenceError",
    "DPADMMError",
    "ElasticNet",
    "Hinge",
    "Huber",
    "L1",
    "L2",
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
    "StudyError",
    "Trace",
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
    "read_table",
    "simulate",
    "synthetic",
    "total_noise_multiplier",
    "train",
    "Training",
    "Study",
    "read_study",
    "unequal",
]


def test_public_names_are_exactly_these() -> None:
    assert sorted(dpadmm.__all__) == sorted(NAMES)


def test_every_public_name_has_a_docstring() -> None:
    for module in (dpadmm, losses, methods, privacy, regularizers):
        for name in module.__all__:
            value = getattr(module, name)
            if isfunction(value) or isclass(value):
                assert value.__doc__, name


def test_names_in_studies_and_results_are_stable() -> None:
    """Users' files contain them. New names may be added: see CONTRIBUTING.md."""
    assert set(losses.LOSSES) >= {"logistic", "softmax", "hinge", "smoothed_hinge", "squared", "poisson", "huber"}
    assert set(regularizers.REGULARIZERS) >= {"none", "l2", "l1", "elastic_net"}


def test_version_is_public() -> None:
    assert dpadmm.__version__.count(".") == 2


def test_only_the_estimators_need_scikit_learn() -> None:
    program = """
import sys
import dpadmm
assert "sklearn" not in sys.modules
assert dpadmm.BudgetAccountant(1.0, 1e-5).left
sys.modules["sklearn"] = None  # as if it were not installed
try:
    dpadmm.DPADMMClassifier
except ImportError as error:
    print(error)
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "need scikit-learn; install it with: pip install 'dpadmm[sklearn]'" in answer.stdout


def test_package_has_no_other_attributes() -> None:
    assert not hasattr(dpadmm, "DPADMMTransformer")
