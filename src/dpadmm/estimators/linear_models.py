"""Private linear models for scikit-learn: a classifier, a regressor, and a regressor for counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import d2_tweedie_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from dpadmm.data import Dataset, encode_labels
from dpadmm.errors import DataError, StudyError
from dpadmm.estimators.base import (
    CheckedFit,
    PrivateLinearModel,
    as_groups,
    partition_settings,
    suggest_parameter_names,
)
from dpadmm.estimators.encoding import label_scale
from dpadmm.estimators.frames import classes_of
from dpadmm.estimators.validation import check_parameters, positive
from dpadmm.losses import Poisson
from dpadmm.losses.base import Task
from dpadmm.losses.poisson import LARGEST_SCORE, coded
from dpadmm.matrices.arrays import Floats
from dpadmm.parameters.fields import NotNegative, Positive

MIN_RATE = 1e-300


def _gives_probabilities(classifier: DPADMMClassifier) -> bool:
    return classifier.loss == "logistic"


@suggest_parameter_names
@dataclass(eq=False, repr=False)
class DPADMMClassifier(ClassifierMixin, PrivateLinearModel):
    """Logistic regression or linear SVM with (ε, δ)-differential privacy for every row.

    The whole fit is private: anyone may see ``coef_``, ``intercept_`` and ``privacy_``. All bounds must be public
    knowledge. A bound that is not given is inferred from the private data, which ε does not cover, and a
    :class:`dpadmm.PrivacyLeakWarning` is issued.

    Parameters
    ----------
    epsilon : float, default=1.0
        Privacy budget ε of one fit. Replacing one row changes the probability of any outcome by a factor of at most
        ``e^ε``, plus ``delta``. The number of rows is public.
    delta : float, default=1e-5
        Privacy budget δ of one fit.
    data_norm : float, optional
        Public bound on the L2 norm of a row. Rows with a larger norm are clipped to it, in training and prediction.
        If ``bounds`` or ``scale`` is given, the bound applies to the scaled row and defaults to √n_features.
        Otherwise it is inferred from the rows if not given, with a warning.
    bounds : (low, high) or dict, optional
        Public bounds of the features. ``low`` and ``high`` are numbers or arrays with one value per feature. A dict
        ``{column: (low, high)}`` needs an X with column names. Values are clamped to the bounds. Without ``scale``,
        they are then mapped to [−1, 1] (sparse rows, or no intercept: divided by the larger of ``|low|`` and
        ``|high|``).
    center : float, array-like or dict, optional
        Public typical value of each feature, for example its mean in a public table. One number, one per feature, or
        one per column name (a dict or a pandas series). Requires ``scale``. Default: 0.
    scale : float, array-like or dict, optional
        Public typical spread of each feature, for example its standard deviation in a public table. Same forms as
        ``center``. Rows are standardised and then clipped to ``data_norm``. This is usually more accurate than
        ``bounds`` alone, because values are rarely close to their bounds. Use ``scale=1`` if X is standardised.
    l1_ratio : float, default=0.0
        Share of the L1 penalty: 0 for L2, 1 for L1, between them for elastic net.
    fit_intercept : bool, default=True
        Whether to fit an intercept.
    method : {"auto", "dp_admm"}, default="auto"
        ``"auto"`` has no hyperparameters. ``"dp_admm"`` is the paper's method.
    max_iter : int, optional
        Number of rounds. The rounds share ε, so more rounds mean more noise in each. Default: derived from the number
        of rows, the number of features and the budget (``dp_admm``: 100).
    n_agents : int, optional
        Number of simulated agents, to which rows are assigned at random. All rows stay in this process, so this
        estimates the accuracy of a deployment with several sites. Default: 1, which is the most accurate choice for
        rows in one place. Use ``fit(groups=...)`` to assign rows to agents explicitly.
    aggregation : {"plain", "secure"}, default="plain"
        With several agents, who sees single answers. ``"plain"``: each answer carries all the noise that protects the
        agent's rows. ``"secure"`` (``auto`` only): only the sum is visible, and each agent adds a share
        of the noise.
    min_honest_sites : int, optional
        Minimum number of honest agents per round that ``epsilon`` relies on (secure aggregation only). If all other
        agents collude, ε is ``privacy_["epsilon_if_others_collude"]``.
    inference : bool, default=False
        Whether to spend most of ``epsilon`` on confidence intervals that include the privacy noise; see
        ``conf_int`` and ``summary``. Requires ``method="auto"``, logistic loss and two classes. The fit then
        has no penalty.
    weight_max : float, optional
        Public maximum of ``sample_weight``. Larger weights are clipped to it. The noise is proportional to it.
        Inferred from the weights if not given, with a warning.
    rho : float, default=0.1
        ADMM penalty parameter ρ (``dp_admm`` only). Affects convergence, not privacy.
    weight_radius : float, default=30.0
        Public estimate of the norm of the scaled weights, about ``data_norm`` times the norm of ``coef_``
        (``dp_admm`` only). Affects the step sizes, not privacy.
    random_state : None, int or RandomState, default=None
        None: exact noise from the operating system's entropy. Otherwise simulated noise from a seed, for reproducible
        experiments only. It provides no privacy, and a warning is issued.
    accountant : BudgetAccountant, optional
        Accountant to charge before the fit starts. Default: the accountants with an open ``with`` block.
    study : Study or path, optional
        Study whose public columns and label encode X and y, instead of ``bounds``, ``center``, ``scale``,
        ``data_norm`` and ``classes``. X must be a data frame or an Arrow table. It may have categories, booleans and
        missing values, and further columns, which are ignored. Coefficients are those of the encoded features. The
        study's own budget and method are not used. See :func:`dpadmm.draft_study`.
    classes : sequence, optional
        Public list of the class labels. Inferred from ``y`` if not given, with a warning.
    C : float, default=1.0
        Inverse strength of the penalty; ``inf`` for no penalty.
    loss : {"logistic", "hinge", "smoothed_hinge"}, default="logistic"
        Logistic loss becomes softmax loss for more than two classes. The others require two classes.
    class_weight : dict or "balanced", optional
        Public positive weight of each class; 1 for classes that are not listed. ``"balanced"`` derives the weights
        from the labels of ``fit(public=...)``, because private labels would leak.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients in the units of X. The scores are ``X @ coef_.T + intercept_``, unless a value is clamped or a row
        is clipped; see ``is_clipped``.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercept.
    classes_ : ndarray of shape (n_classes,)
        Class labels, sorted.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Column names of X, if it has any.
    n_iter_ : int
        Number of rounds.
    privacy_ : dict
        Privacy report: ε, δ, kind of noise, the guarantee, and the values inferred from the data.

    See Also
    --------
    PublicScaler : Standardise rows with public constants.
    PrivateSearch : Tune parameters with one total budget.
    dpadmm.BudgetAccountant : Limit the total budget of several fits.

    Notes
    -----
    With m rows, the objective is that of :class:`sklearn.linear_model.LogisticRegression`:
    ``mean loss + (l1_ratio·‖w‖₁ + (1 − l1_ratio)/2·‖w‖²)/(C·m)``. There is one difference: the intercept is penalised,
    as the weight of a constant column of 0.29 times ``data_norm``. w is in the units of X (with ``bounds``, of X mapped
    to [−1, 1]; with ``scale``, of X standardised).

    ``auto`` approximates the optimum as closely as the noise and a small number of rounds allow. ``dp_admm`` converges
    to it with little noise and many rounds. It gives every agent the same weight, regardless of its number of rows.

    The paper's λ/n, called ``alpha`` elsewhere in dpadmm, is ``0.92/(C·m·data_norm²)`` for the L2 penalty with an
    intercept, and ``1/(C·m·data_norm²)`` without.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (2000, 2))
    >>> y = np.where(X[:, 0] > X[:, 1], "yes", "no")
    >>> model = DPADMMClassifier(epsilon=1.0, bounds=(-1, 1), classes=["no", "yes"]).fit(X, y)
    >>> bool(model.score(X, y) > 0.9), round(model.privacy_["epsilon"], 6), model.privacy_["noise"]
    (True, 1.0, 'exact-discrete-gaussian')
    """

    _: KW_ONLY
    classes: Sequence[Any] | None = None
    C: Positive = 1.0
    loss: Literal["logistic", "hinge", "smoothed_hinge"] = "logistic"
    class_weight: Any = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # check_classifiers_train requires an accuracy of 0.83 on 300 rows of three classes. At the default epsilon of
        # 1, the noise is as large as the signal of so few rows. The rest of that check runs.
        tags.classifier_tags.poor_score = True
        return tags

    def _check(
        self, X: Any, y: Any, groups: Any = None, public: Any = None, *, sample_weight: Any = None
    ) -> CheckedFit:
        check_parameters(self, unlimited="C")
        X, y = self._validated(X, y, ensure_min_samples=2)
        check_classification_targets(y)
        classes, leaks = self._classes_of(y)
        is_binary = len(classes) == 2
        if not is_binary and self.loss != "logistic":
            raise StudyError(f"loss {self.loss} is for two classes, not {len(classes)}; use logistic")
        encoding, norm_leaks = self._encoding_of(X)
        weights, max_weight, weight_leaks = self._row_weights(sample_weight, X)
        class_weights = self._class_weights(classes, public)
        max_class_weight = 1.0 if class_weights is None else float(class_weights.max())
        settings = self._settings(
            X.shape[0],
            encoding,
            strength=1.0 / float(self.C) / (max_weight * max_class_weight),
            half=1.0,
            loss=self.loss if is_binary else "softmax",
            **partition_settings(groups, self.n_agents),
        )
        task: Task = "binary" if is_binary else "multiclass"
        names = classes.tolist()

        def encode(X: Any, y: Any, groups: Any = None, weights: Floats | None = None) -> Dataset:
            labels = encode_labels(y, task=task, classes=names)
            if class_weights is not None:
                codes = (labels > 0.0).astype(np.intp) if is_binary else labels.astype(np.intp)
                weights = class_weights[codes] / max_class_weight * (1.0 if weights is None else weights)
            return Dataset("X", encoding.rows(X), labels, tuple(names), as_groups(groups), row_weights=weights)

        prepared = self._prepared(encode(X, y, groups, weights), settings)
        prior = self._prior(public, encode, settings, None if weights is None else max_weight)
        leaks += norm_leaks + weight_leaks

        def train() -> None:
            result = self._run(prepared, settings, leaks, prior)
            self.classes_ = classes
            self._store_model(result.model, encoding, middle=0.0, half=1.0)
            self.coef_, self.intercept_ = encoding.coefficients(result.model.weights, settings.intercept)

        return CheckedFit(leaks, train)

    def _classes_of(self, y: NDArray[Any]) -> tuple[NDArray[Any], list[str]]:
        """Return the sorted classes, and the values that were inferred from the labels."""
        declared = self.classes
        if declared is None and (study := self._declared):
            declared = classes_of(study.label, y)
        labels = y if declared is None else np.asarray(declared)
        if labels.ndim != 1:
            raise StudyError("classes must be a list of class labels")
        classes = np.unique(labels)
        if len(classes) < 2:
            raise DataError(f"a classifier needs at least two classes, not only one class: {classes.tolist()!r:.60}")
        return classes, ["the classes (set classes=)"] if declared is None else []

    def _class_weights(self, classes: NDArray[Any], public: Any) -> Floats | None:
        """Return the weight of every class, or None if all are 1."""
        given = self.class_weight
        if given is None:
            return None
        if isinstance(given, str) and given == "balanced":
            if public is None:
                raise StudyError(
                    "class_weight='balanced' would be inferred from private labels; pass a dict of numbers, or "
                    "fit(public=) with public rows"
                )
            counts = np.array([np.count_nonzero(np.asarray(public[1]) == name) for name in classes])
            if not counts.all():
                raise DataError("public: class_weight='balanced' needs rows of every class; add some, or pass a dict")
            return np.asarray(counts.sum() / (len(classes) * counts))
        if not isinstance(given, Mapping):
            raise StudyError(f"class_weight must be a dict of numbers by class, or 'balanced', not {given!r:.60}")
        names = classes.tolist()
        for name in given:
            if name not in names:
                raise StudyError(f"class_weight: {name!r:.60} is not one of the classes {names!r:.60}")
        return np.array([positive("class_weight", given.get(name, 1.0)) for name in names])

    def decision_function(self, X: Any) -> Floats:
        """Return the scores of rows.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)

        Returns
        -------
        array of shape (n_samples,) or (n_samples, n_classes)
            For two classes one score per row, positive for ``classes_[1]``.
        """
        rows = self._encode(X)
        scores = self._model.decision_function(rows)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the class of each row."""
        scores = self.decision_function(X)
        codes = (scores > 0.0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[codes])

    @available_if(_gives_probabilities)
    def predict_proba(self, X: Any) -> Floats:
        """Return class probabilities of shape (n_samples, n_classes), in the order of ``classes_``.

        Available for logistic loss only.
        """
        rows = self._encode(X)
        return self._model.predict_proba(rows)

    @available_if(_gives_probabilities)
    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithm of :meth:`predict_proba`."""
        return np.asarray(np.log(self.predict_proba(X)))


@suggest_parameter_names
@dataclass(eq=False, repr=False)
class DPADMMRegressor(RegressorMixin, PrivateLinearModel):
    """Linear regression (ridge, lasso or Huber) with (ε, δ)-differential privacy for every row.

    All bounds must be public knowledge. A bound that is not given is inferred from the private data, which ε does not
    cover, and a :class:`dpadmm.PrivacyLeakWarning` is issued.

    Parameters
    ----------
    epsilon, delta, data_norm, bounds, center, scale, l1_ratio, fit_intercept, method, max_iter
        See :class:`DPADMMClassifier`.
    n_agents, aggregation, min_honest_sites, weight_max, rho, random_state, accountant
        See :class:`DPADMMClassifier`.
    inference : bool, default=False
        Whether to spend most of ``epsilon`` on confidence intervals; see ``conf_int``. Requires ``method="auto"``
        and squared loss; with a ``sample_weight`` also an intercept. The fit then has no penalty.
    weight_radius : float, default=3.0
        Public estimate of the norm of the weights for labels scaled to [−1, 1] (``dp_admm`` only).
    y_bounds : (low, high), optional
        Public bounds of the labels. Labels are clamped to them and scaled. Inferred from ``y`` if not given, with a
        warning.
    alpha : float, default=1.0
        Strength of the penalty; 0 for no penalty.
    loss : {"squared", "huber"}, default="squared"
        Huber loss is squared for errors up to ``gradient_bound`` and linear above.
    gradient_bound : float, default=1.0
        Clipping bound of a row's gradient, in half widths of ``y_bounds``. The noise is proportional to it.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Coefficients in the units of X and y.
    intercept_ : float
        Intercept in the units of y.
    n_features_in_, feature_names_in_, n_iter_, privacy_
        See :class:`DPADMMClassifier`.

    Notes
    -----
    With m rows, the objective is that of :class:`sklearn.linear_model.Ridge` divided by 2m:
    ``mean of ½(y − ŷ)² + alpha/m·(l1_ratio·‖w‖₁ + (1 − l1_ratio)/2·‖w‖²)``. There is one difference: the weight of the
    constant column is penalised. w is in the units of X and y (with ``bounds`` or ``scale``, of X mapped to [−1, 1] or
    standardised).

    The paper's λ/n, called ``alpha`` elsewhere in dpadmm, is ``0.92·alpha/(m·data_norm²)`` for the L2 penalty with
    an intercept, and ``alpha/(m·data_norm²)`` without.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (5000, 2))
    >>> y = 20.0 + 3.0 * X[:, 0] - 2.0 * X[:, 1]
    >>> model = DPADMMRegressor(epsilon=1.0, bounds=(-1, 1), y_bounds=(15, 25)).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _: KW_ONLY
    y_bounds: tuple[float, float] | None = None
    alpha: NotNegative = 1.0
    loss: Literal["squared", "huber"] = "squared"
    gradient_bound: Positive = 1.0
    weight_radius: Positive = 3.0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # check_regressors_train requires R² > 0.5 on 200 rows. At the default epsilon of 1, the noise is larger than
        # the signal of so few rows. The rest of that check runs.
        tags.regressor_tags.poor_score = True
        return tags

    def _check(
        self, X: Any, y: Any, groups: Any = None, public: Any = None, *, sample_weight: Any = None
    ) -> CheckedFit:
        check_parameters(self)
        X, y = self._validated(X, y, ensure_min_samples=2, y_numeric=True)
        intercept = bool(self.fit_intercept)
        y_bounds = self.y_bounds
        if y_bounds is None and (study := self._declared):
            y_bounds = study.label.bounds
        low, high, middle, half = label_scale(y.astype(float), y_bounds, centred=intercept)
        leaks = ["the bounds of y (set y_bounds=)"] if y_bounds is None else []
        encoding, norm_leaks = self._encoding_of(X)
        weights, max_weight, weight_leaks = self._row_weights(sample_weight, X)
        if weights is not None and self.inference and not intercept:
            raise StudyError("intervals with a sample_weight need fit_intercept=True, which gives the mean weight")
        settings = self._settings(
            X.shape[0],
            encoding,
            strength=float(self.alpha) / max_weight,
            half=half,
            loss={"name": self.loss, "delta" if self.loss == "huber" else "gradient_bound": self.gradient_bound},
            **partition_settings(groups, self.n_agents),
        )

        def encode(X: Any, y: Any, groups: Any = None, weights: Floats | None = None) -> Dataset:
            labels = (np.clip(y.astype(float), low, high) - middle) / half
            return Dataset("X", encoding.rows(X), labels, None, as_groups(groups), row_weights=weights)

        prepared = self._prepared(encode(X, y, groups, weights), settings)
        prior = self._prior(public, encode, settings, None if weights is None else max_weight)
        leaks += norm_leaks + weight_leaks

        def train() -> None:
            result = self._run(prepared, settings, leaks, prior)
            self._store_model(result.model, encoding, middle=middle, half=half)
            self._label_scale = middle, half
            coef, constant = encoding.coefficients(result.model.weights, settings.intercept)
            self.coef_, self.intercept_ = half * coef[0], float(middle + half * constant[0])

        return CheckedFit(leaks, train)

    def predict(self, X: Any) -> Floats:
        """Predict the label of each row, in the units of y."""
        rows = self._encode(X)
        scores = self._model.decision_function(rows)[:, 0]
        middle, half = self._label_scale
        return np.asarray(middle + half * scores)


@suggest_parameter_names
@dataclass(eq=False, repr=False)
class DPADMMPoissonRegressor(RegressorMixin, PrivateLinearModel):
    """Poisson regression with log link and (ε, δ)-differential privacy for every row, for counts and rates.

    All bounds must be public knowledge. A bound that is not given is inferred from the private data, which ε does not
    cover, and a :class:`dpadmm.PrivacyLeakWarning` is issued.

    Parameters
    ----------
    epsilon, delta, data_norm, bounds, center, scale, l1_ratio, method, max_iter
        See :class:`DPADMMClassifier`.
    n_agents, aggregation, min_honest_sites, inference, weight_max, rho, weight_radius, random_state, accountant
        See :class:`DPADMMClassifier`.
    fit_intercept : bool, default=True
        Must be True, because rates need a baseline.
    y_max : float, optional
        Public maximum of a count. Larger counts are clipped to it. Inferred from ``y`` if not given, with a warning.
    exposure_max : float, optional
        Public maximum of an exposure, if ``fit`` is called with exposures. Larger ones are clipped to it. Inferred
        from them if not given, with a warning.
    alpha : float, default=0.0
        Strength of the penalty; 0 for no penalty. With a ``sample_weight``, the losses have the weights divided by
        ``weight_max``.
    gradient_bound : float, default=1.0
        Clipping bound of a row's gradient, as a multiple of ``y_max`` (``dp_admm`` only). The noise is proportional
        to it.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Logarithms of the rate ratios, in the units of X.
    intercept_ : float
        Logarithm of the rate per unit of exposure at X = 0.
    n_features_in_, feature_names_in_, n_iter_, privacy_
        See :class:`DPADMMClassifier`.

    Notes
    -----
    The objective is that of :class:`sklearn.linear_model.PoissonRegressor`: ``mean of half the deviance +
    alpha·(l1_ratio·‖w‖₁ + (1 − l1_ratio)/2·‖w‖²)``. There is one difference: the weight of the constant column is
    penalised. w is in the units of X (with ``bounds`` or ``scale``, of X mapped to [−1, 1] or standardised).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, years = rng.uniform(-1, 1, (20_000, 2)), rng.uniform(1, 5, 20_000)
    >>> y = rng.poisson(years * np.exp(0.5 + X[:, 0] - X[:, 1]))
    >>> model = DPADMMPoissonRegressor(epsilon=1.0, bounds=(-1, 1), y_max=60, exposure_max=5)
    >>> model = model.fit(X, y, exposure=years)
    >>> bool(abs(model.coef_ - [1, -1]).max() < 0.2), bool(abs(model.predict([[0, 0]])[0] - np.exp(0.5)) < 0.3)
    (True, True)
    """

    _: KW_ONLY
    y_max: Positive | None = None
    exposure_max: Positive | None = None
    alpha: NotNegative = 0.0
    gradient_bound: Positive = 1.0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # see DPADMMRegressor
        tags.target_tags.positive_only = True
        return tags

    def fit(
        self,
        X: Any,
        y: Any,
        groups: Any = None,
        public: Any = None,
        *,
        sample_weight: Any = None,
        exposure: Any = None,
    ) -> Self:
        """Fit the model with differential privacy.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Private rows.
        y : array-like of shape (n_samples,)
            Private counts of at least 0.
        groups : array-like of shape (n_samples,), optional
            Owner of each row. Default: one agent owns all rows.
        public : tuple (X, y) or (X, y, weights), optional
            Public rows with an exposure of 1; see ``DPADMMClassifier.fit``.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of at least 0. Weights above ``weight_max`` are clipped to it.
        exposure : array-like of shape (n_samples,), optional
            Positive exposure of each count, such as years or persons. Default: 1.

        Returns
        -------
        self
        """
        checked = self._check(X, y, groups, public, sample_weight=sample_weight, exposure=exposure)
        self._warn(checked.leaks)
        checked.train()
        return self

    def _check(
        self,
        X: Any,
        y: Any,
        groups: Any = None,
        public: Any = None,
        *,
        sample_weight: Any = None,
        exposure: Any = None,
    ) -> CheckedFit:
        check_parameters(self)
        X, y = self._validated(X, y, ensure_min_samples=2, y_numeric=True)
        if not self.fit_intercept:
            raise StudyError("fit_intercept must be True for counts, because rates need a baseline")
        y, exposures = _check_counts(y.astype(float)), _exposures(exposure, len(y))
        y_max, exposure_max = self.y_max, self.exposure_max
        if study := self._declared:
            label = study.label
            y_max = label.largest if y_max is None and label.bounds else y_max
            exposure_max = label.exposure_bound if exposure_max is None else exposure_max
        leaks = ["the largest count (set y_max=)"] if y_max is None else []
        max_count = positive("y_max", float(y.max()) or 1.0 if y_max is None else y_max)
        if exposure is not None and exposure_max is None:
            leaks.append("the largest exposure (set exposure_max=)")
        max_exposure = positive("exposure_max", float(exposures.max()) if exposure_max is None else exposure_max)
        encoding, norm_leaks = self._encoding_of(X)
        weights, max_weight, weight_leaks = self._row_weights(sample_weight, X)
        settings = self._settings(
            X.shape[0],
            encoding,
            strength=float(self.alpha) * X.shape[0] / max_count,
            half=1.0,
            loss=Poisson(self.gradient_bound, unit=min(1.0, 1.0 / max_count)),
            **partition_settings(groups, self.n_agents),
        )

        def encode(X: Any, y: Any, groups: Any = None, exposures: Any = 1.0, weights: Floats | None = None) -> Dataset:
            counts = np.minimum(_check_counts(y.astype(float)) / max_count, 1.0)
            labels = coded(counts, np.minimum(exposures / max_exposure, 1.0))
            return Dataset("X", encoding.rows(X), labels, None, as_groups(groups), row_weights=weights)

        prepared = self._prepared(encode(X, y, groups, exposures, weights), settings)
        prior = self._prior(public, encode, settings, None if weights is None else max_weight)
        leaks += norm_leaks + weight_leaks
        log_unit = float(np.log(max_count / max_exposure))

        def train() -> None:
            result = self._run(prepared, settings, leaks, prior)
            self._store_model(result.model, encoding, middle=log_unit, half=1.0)
            self._label_scale = 0.0, max_count  # the scores of a search are relative to it
            coef, constant = encoding.coefficients(result.model.weights, settings.intercept)
            self.coef_, self.intercept_ = coef[0], float(log_unit + constant[0])

        return CheckedFit(leaks, train)

    def predict(self, X: Any) -> Floats:
        """Predict the rate of each row: the mean count per unit of exposure."""
        rows = self._encode(X)
        scores = self._model.decision_function(rows)[:, 0] + self._units[1]
        return np.asarray(np.exp(np.minimum(scores, LARGEST_SCORE)))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return D², the fraction of the deviance explained, like :class:`sklearn.linear_model.PoissonRegressor`.

        For rates, pass ``y`` divided by the exposure, and the exposure as ``sample_weight``.
        """
        rates = np.maximum(self.predict(X), MIN_RATE)
        return float(d2_tweedie_score(y, rates, sample_weight=sample_weight, power=1))


def _check_counts(y: Floats) -> Floats:
    """Return the counts. Raise DataError if one is negative."""
    if (y < 0.0).any():
        row = int(np.argmax(y < 0.0))
        raise DataError(f"y[{row}] is {y[row]:g}; counts must be at least 0")
    return y


def _exposures(exposure: Any, n_rows: int) -> Floats:
    """Return one positive exposure per row. Default: 1."""
    if exposure is None:
        return np.ones(n_rows)
    exposures = np.asarray(exposure, dtype=float)
    if exposures.shape != (n_rows,):
        raise DataError(f"exposure has shape {exposures.shape}, but there are {n_rows} rows; pass one number per row")
    is_valid = np.isfinite(exposures) & (exposures > 0.0)
    if not is_valid.all():
        row = int(np.argmin(is_valid))
        raise DataError(f"exposure[{row}] is {exposures[row]:g}; exposures must be finite and positive")
    return exposures
