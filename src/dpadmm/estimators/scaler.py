"""A pipeline step that standardises rows by public constants, without privacy loss."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin, check_is_fitted
from sklearn.utils import check_array

from dpadmm.errors import StudyError
from dpadmm.estimators.encoding import Encoding, encoding_of, safe_error, validated
from dpadmm.matrices.features import Features


@dataclass(eq=False, repr=False)
class PublicScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Standardise features by public constants: ``(clamp(x) − center)/scale``.

    Use this instead of :class:`sklearn.preprocessing.StandardScaler`, which would leak the means and variances of
    private rows. ``fit`` stores only the number and the names of the columns. Missing values stay missing. Set
    ``scale=1`` in the private estimator that follows, because its rows are already standardised.

    Parameters
    ----------
    center : float, array-like or dict, optional
        Public typical value of each feature: one number, one per feature, or one per column name (a dict or a pandas
        series, for an X with column names). Default: 0, which keeps sparse rows sparse.
    scale : float, array-like or dict, optional
        Public typical spread of each feature, in the same forms.
    bounds : (low, high) or dict, optional
        Public bounds, to which values are clamped first: a pair of the same forms, or ``{column: (low, high)}``.
        Without ``scale``, values are then mapped to [−1, 1].

    See Also
    --------
    DPADMMClassifier, DPADMMRegressor, DPADMMPoissonRegressor

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
        """Return a scaler with the means and standard deviations of a public table.

        No noise is added, so never pass private rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Public rows. Missing values are ignored.
        bounds : (low, high) or dict, optional
            Public bounds of the features.

        Returns
        -------
        PublicScaler
        """
        try:
            rows = check_array(X, dtype=np.float64, ensure_all_finite="allow-nan")
        except ValueError as error:
            raise safe_error(error, X) from None
        center, spread = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)
        scale = np.where(spread > 0.0, spread, 1.0)
        names = [name for name in getattr(X, "columns", ()) if isinstance(name, str)]
        if len(names) == rows.shape[1]:
            return cls(*(dict(zip(names, values.tolist(), strict=True)) for values in (center, scale)), bounds=bounds)
        return cls(center, scale, bounds=bounds)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the public constants against the number and names of the columns of X. ``y`` is ignored."""
        X = validated(self, X, ensure_all_finite="allow-nan")
        if self.scale is None and self.center is None and self.bounds is None:
            raise StudyError("PublicScaler needs public numbers: set center and scale, or bounds")
        names = getattr(self, "feature_names_in_", None)
        public = {"center": self.center, "scale": self.scale, "bounds": self.bounds, "names": names}
        self._encoding, _ = encoding_of(X, data_norm=1.0, centred=True, **public)
        return self

    def transform(self, X: Any) -> Features:
        """Standardise each row."""
        check_is_fitted(self)
        return self._encoding.rows(validated(self, X, reset=False, ensure_all_finite="allow-nan"))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse, tags.input_tags.allow_nan = self.center is None, True
        return tags
