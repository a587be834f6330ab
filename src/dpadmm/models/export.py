"""A model as a fitted scikit-learn pipeline, which predicts the same from the same table.

The first step encodes tables by the public schema (or shortens rows, where training did), the second is
scikit-learn's own linear model with the trained coefficients: LogisticRegression for logistic and softmax
loss, LinearSVC for the hinges, LinearRegression for squared and Huber loss, PoissonRegressor, in the label's own units.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpadmm.data.encoder import Encoder
from dpadmm.data.schema import Schema
from dpadmm.errors import DataError
from dpadmm.matrices.clipping import as_matrix, clip_rows, stacked
from dpadmm.matrices.coded import CodedRows
from dpadmm.matrices.features import Features
from dpadmm.models.file import require_finite
from dpadmm.models.model import Model, batches_of, is_table

try:
    from sklearn.base import BaseEstimator, TransformerMixin
    from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer
    from sklearn.svm import LinearSVC
except ModuleNotFoundError:
    raise DataError("to_sklearn() needs scikit-learn; install it with: pip install 'dpadmm[sklearn]'") from None


class TableEncoder(TransformerMixin, BaseEstimator):
    """Tables -> features of length at most 1, by a public schema; nothing is ever learnt from rows.

    Takes pandas and polars data frames, Arrow tables and mappings of columns.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def fit(self, X: Any, y: Any = None) -> Self:
        """Nothing to do."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def transform(self, X: Any) -> Features:
        """(rows, features): sparse where that saves half of the memory, else dense."""
        if not is_table(X):
            raise DataError("the columns are found by their names: give a data frame, not an array")
        encoder = Encoder(self.schema)
        names = [column.name for column in self.schema.columns]
        rows = stacked([encoder.encode(batch) for batch in batches_of(X, names)])
        if isinstance(rows, CodedRows):
            return rows.tocsr() if 4 * rows.n_stored <= rows.width else rows.toarray()
        return rows

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """The names of the features, in the order of the coefficients."""
        return np.array(self.schema.features, dtype=object)


def shortened(rows: Any) -> Features:
    """Rows longer than 1 -> rows of length 1, as in training; the others stay as they are."""
    return clip_rows(as_matrix(rows))


def to_sklearn(model: Model) -> Pipeline:
    """A fitted pipeline: ``predict``, and ``predict_proba`` or ``decision_function`` where there are such."""
    require_finite({"weights": model.weights}, "no pipeline was made")
    steps: list[tuple[str, Any]] = []
    if model.schema is not None:
        steps.append(("encode", TableEncoder(model.schema)))
    elif model.clip:
        steps.append(("shorten", FunctionTransformer(shortened, feature_names_out="one-to-one")))
    return Pipeline([*steps, ("model", _linear(model))])


def _linear(model: Model) -> Any:
    coefficients, constants = model.coefficients
    if model.task == "count":
        if len(coefficients) > 1:
            raise DataError("scikit-learn has no model of hazards by intervals of time, so there is no such pipeline")
        made = PoissonRegressor()
        made.coef_, made.intercept_, made.n_iter_ = coefficients[0], float(constants[0] + model.log_rate), 0
        made._base_loss = made._get_loss()
    elif model.task == "regression":
        made = LinearRegression()
        scale, shift = model.label_units
        made.coef_ = coefficients[0] * scale
        made.intercept_ = float(constants[0] * scale + shift)
    else:
        made = LogisticRegression() if model.has_probabilities else LinearSVC()
        if len(coefficients) == 2:  # softmax of two classes: log odds of the second
            coefficients, constants = np.diff(coefficients, axis=0), np.diff(constants)
        made.coef_, made.intercept_ = coefficients, constants
        made.classes_ = np.asarray(model.class_names)
        made.n_iter_ = np.array([0])
    made.n_features_in_ = coefficients.shape[1]
    return made
