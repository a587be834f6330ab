"""Export a model as a fitted scikit-learn pipeline with the same predictions.

The first step encodes tables by the public schema, or clips rows if training did. The second step is a linear model of
scikit-learn with the trained coefficients, in the units of the label: LogisticRegression for logistic and softmax loss,
LinearSVC for the hinge losses, LinearRegression for squared and Huber loss, PoissonRegressor for counts.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpadmm.data.encoder import Encoder
from dpadmm.data.reader import is_table, open_batches
from dpadmm.data.schema import Number, Schema
from dpadmm.errors import DataError
from dpadmm.matrices.clipping import as_matrix, clip_rows, stacked
from dpadmm.matrices.coded import CodedRows
from dpadmm.matrices.features import Features
from dpadmm.models.file import require_finite
from dpadmm.models.model import Model

try:
    from sklearn.base import BaseEstimator, TransformerMixin
    from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer
    from sklearn.svm import LinearSVC
except ModuleNotFoundError:
    raise DataError("to_sklearn() needs scikit-learn; install it with: pip install 'dpadmm[sklearn]'") from None


class TableEncoder(TransformerMixin, BaseEstimator):
    """Encode tables as features with a norm of at most 1, by a public schema. ``fit`` does nothing.

    Accepts pandas and polars data frames, Arrow tables and mappings of columns.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def fit(self, X: Any, y: Any = None) -> Self:
        """Return self. The schema is public, so there is nothing to fit."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def transform(self, X: Any) -> Features:
        """Return features (n_rows, n_features), sparse if that saves half of the memory."""
        if not is_table(X):
            raise DataError("the encoder needs column names; pass a data frame, not an array")
        encoder = Encoder(self.schema)
        names = [column.name for column in self.schema.columns]
        numbers = frozenset(column.name for column in self.schema.columns if isinstance(column, Number))
        rows = stacked([encoder.encode(batch) for batch in open_batches(X, names, numbers=numbers)])
        if isinstance(rows, CodedRows):
            return rows.tocsr() if 4 * rows.n_stored <= rows.width else rows.toarray()
        return rows

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the names of the features, in the order of the coefficients."""
        return np.array(self.schema.features, dtype=object)


def clip_to_unit_norm(rows: Any) -> Features:
    """Clip rows to an L2 norm of 1, as in training."""
    return clip_rows(as_matrix(rows))


def to_sklearn(model: Model) -> Pipeline:
    """Return a fitted pipeline with ``predict``, and ``predict_proba`` or ``decision_function`` if available."""
    require_finite({"weights": model.weights}, "no pipeline was made")
    steps: list[tuple[str, Any]] = []
    if model.schema is not None:
        steps.append(("encode", TableEncoder(model.schema)))
    elif model.clip:
        steps.append(("clip", FunctionTransformer(clip_to_unit_norm, feature_names_out="one-to-one")))
    return Pipeline([*steps, ("model", _linear(model))])


def _linear(model: Model) -> Any:
    coefficients, constants = model.coefficients
    if model.task == "count":
        if len(coefficients) > 1:
            raise DataError("scikit-learn has no hazard model with time intervals, so the model cannot be exported")
        estimator = PoissonRegressor()
        estimator.coef_, estimator.intercept_ = coefficients[0], float(constants[0] + model.log_rate)
        estimator.n_iter_, estimator._base_loss = 0, estimator._get_loss()
    elif model.task == "regression":
        estimator = LinearRegression()
        scale, shift = model.label_units
        estimator.coef_ = coefficients[0] * scale
        estimator.intercept_ = float(constants[0] * scale + shift)
    else:
        estimator = LogisticRegression() if model.has_probabilities else LinearSVC()
        if len(coefficients) == 2:  # softmax of two classes: log odds of the second
            coefficients, constants = np.diff(coefficients, axis=0), np.diff(constants)
        estimator.coef_, estimator.intercept_ = coefficients, constants
        estimator.classes_ = np.asarray(model.class_names)
        estimator.n_iter_ = np.array([0])
    estimator.n_features_in_ = coefficients.shape[1]
    return estimator
