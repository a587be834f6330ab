"""scikit-learn estimators with differential privacy.

:class:`DPADMMClassifier`, :class:`DPADMMRegressor` and :class:`DPADMMPoissonRegressor` are linear models.
:class:`PublicScaler` standardises rows by public constants. :class:`PrivateSearch` tunes parameters.

Only this package needs scikit-learn: ``pip install 'dpadmm[sklearn]'``.
"""

from __future__ import annotations

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError:
    raise ImportError(
        "the estimators of dpadmm need scikit-learn; install it with: pip install 'dpadmm[sklearn]'",
        name="sklearn",
    ) from None

from dpadmm.estimators.linear_models import DPADMMClassifier, DPADMMPoissonRegressor, DPADMMRegressor
from dpadmm.estimators.scaler import PublicScaler
from dpadmm.estimators.search import PrivateSearch

__all__ = ["DPADMMClassifier", "DPADMMPoissonRegressor", "DPADMMRegressor", "PrivateSearch", "PublicScaler"]
