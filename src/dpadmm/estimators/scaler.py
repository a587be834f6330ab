"""Standardising by public numbers, as a step of a pipeline that leaks nothing."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin, check_is_fitted
from sklearn.utils import check_array

from dpadmm.errors import StudyError
from dpadmm.estimators.encoding import Encoding, encoding_of, refusal, validated
from dpadmm.matrices.features import Features


@dataclass(eq=False, repr=False)
class PublicScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """``(clamp(x) − center)/scale`` by public numbers: a StandardScaler that never learns from the rows it is given.

    ``fit`` notes the number and the names of the columns, and nothing else of X. Missing cells stay missing.
    After it, a private estimator takes ``scale=1``, which says that rows are standardised already.

    Parameters
    ----------
    center, scale : number, array or dict, optional
        What is usual, and a usual distance from it: one number for all columns, one for each, or one by
        column name (a dict or a series of pandas, for an X with column names). ``scale`` alone does not
        move rows, which keeps sparse ones sparse.
    bounds : (low, high) or dict, optional
        Values are clamped to them first: a pair as in ``center``, or ``{column: (low, high)}``. Without
        ``scale`` they are mapped to [−1, 1].

    Examples
    --------
    >>> PublicScaler(center=[50.0, 1.7], scale=[20.0, 0.1]).fit_transform([[70.0, 1.6]]).round(6).tolist()
    [[1.0, -1.0]]
    """

    center: Any = None
    scale: Any = None
    _: KW_ONLY
    bounds: Any = None
    _encoding: Encoding = field(init=False)

    @classmethod
    def from_public(cls, X: Any, *, bounds: Any = None) -> Self:
        """By means and standard deviations of a *public* table, whose missing cells do not count.

        No noise is added, so private rows must never be given here.
        """
        try:
            rows = check_array(X, dtype=np.float64, ensure_all_finite="allow-nan")
        except ValueError as error:
            raise refusal(error, X) from None
        center, spread = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)
        scale = np.where(spread > 0.0, spread, 1.0)
        names = [each for each in getattr(X, "columns", ()) if isinstance(each, str)]
        if len(names) == rows.shape[1]:
            return cls(*(dict(zip(names, each.tolist(), strict=True)) for each in (center, scale)), bounds=bounds)
        return cls(center, scale, bounds=bounds)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the public numbers against the columns of X."""
        X = validated(self, X, ensure_all_finite="allow-nan")
        if self.scale is None and self.center is None and self.bounds is None:
            raise StudyError("PublicScaler needs public numbers: center and scale, or bounds")
        names = getattr(self, "feature_names_in_", None)
        public = {"center": self.center, "scale": self.scale, "bounds": self.bounds, "names": names}
        self._encoding, _ = encoding_of(X, data_norm=1.0, centred=True, **public)
        return self

    def transform(self, X: Any) -> Features:
        """Rows standardised, each on its own."""
        check_is_fitted(self)
        return self._encoding.rows(validated(self, X, reset=False, ensure_all_finite="allow-nan"))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse, tags.input_tags.allow_nan = self.center is None, True
        return tags
