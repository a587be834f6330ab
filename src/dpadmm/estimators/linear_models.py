"""Private linear models with scikit-learn's manners: a classifier, a regressor, and one for counts."""

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
from dpadmm.estimators.base import Checked, PrivateLinearModel, as_groups, hinted, owned
from dpadmm.estimators.encoding import label_scale, validated
from dpadmm.estimators.validation import check_parameters, positive
from dpadmm.losses import Poisson
from dpadmm.losses.base import Task
from dpadmm.losses.poisson import LARGEST_SCORE, coded
from dpadmm.matrices.arrays import Floats
from dpadmm.parameters.fields import NotNegative, Positive

LEAST_RATE = 1e-300


def _gives_probabilities(classifier: DPADMMClassifier) -> bool:
    return classifier.loss == "logistic"


@hinted
@dataclass(eq=False, repr=False)
class DPADMMClassifier(ClassifierMixin, PrivateLinearModel):
    """Logistic regression (or an SVM) whose whole fit is (ε, δ)-private for every single row.

    Minimises, with m rows, what :class:`sklearn.linear_model.LogisticRegression` does:
    ``mean loss + (l1_ratio·‖w‖₁ + (1 − l1_ratio)/2·‖w‖²)/(C·m)``, except that the intercept is penalised too, as
    the weight of a constant column of 0.29 times ``data_norm``. w is in the units of X (of X mapped to [−1, 1]
    where ``bounds`` are given, of X standardised where ``scale`` is). ``auto`` comes as near to that as noise
    and few rounds allow; ``dp_admm`` gets there with little noise and many rounds, and counts every agent the
    same, whatever the number of its rows. The paper's λ/n, that is ``reg_share`` elsewhere in dpadmm, is
    ``0.92/(C·m·data_norm²)`` for the L2 penalty with an intercept, and ``1/(C·m·data_norm²)`` without.

    Parameters
    ----------
    epsilon, delta : float
        Total budget of one fit: replacing any one row changes the probability of any outcome by a
        factor of at most ``e^ε``, plus δ. The number of rows is public.
    data_norm : float, optional
        Public bound of the L2 norm of a row; longer rows are shortened to it, in training and prediction.
        With ``bounds`` or ``scale``: of the norm after these, √d if left out.
    bounds : (low, high) or dict, optional
        Public bounds of the features: one number or one per feature, or ``{column: (low, high)}`` for an X
        with column names. Values are clamped to them and, without ``scale``, mapped to [−1, 1] (sparse rows,
        or without an intercept: divided by the larger of ``|low|`` and ``|high|``).
    center, scale : number, array or dict, optional
        A public value that is usual and a usual distance from it, such as mean and standard deviation of a
        public table: one number, one per feature, or one by column name (a dict or a series of pandas). Rows
        are standardised by them, and those beyond ``data_norm`` shortened. Better than bounds alone, which are
        rarely reached. ``scale=1`` says that X is standardised; without ``center`` rows are not moved.
        Without bounds, scale and data_norm, the norm is read off the rows: a leak, and a
        :class:`dpadmm.PrivacyLeakWarning`.
    classes : sequence, optional
        Public list of the labels. Left out: read off ``y``, with the same warning.
    class_weight : dict or "balanced", optional
        Public numbers above 0 by class, 1 for those left out: rows count so many times as much, as in scikit-learn.
        ``"balanced"`` takes them from the labels of ``fit(public=)``; private ones would tell of rows.
    weight_max : float, optional
        Public largest weight, where ``fit`` is given a ``sample_weight``; larger ones are taken to be this, and noise
        is in proportion to it. Left out: read off them, with the same warning.
    C : float
        Inverse strength of the penalty; inf for none.
    l1_ratio : float
        0 for L2, 1 for L1, between for both.
    loss : {"logistic", "hinge", "smoothed_hinge"}
        Logistic loss is softmax for more than two classes; the others are for two.
    fit_intercept : bool
    method : {"auto", "dp_admm"}
        ``auto`` has nothing to tune; ``dp_admm`` is the paper's.
    max_iter : int, optional
        Rounds, which share ε: of more of them each has more noise. Left out: what suits the numbers of rows and
        features and the budget (dp_admm: 100).
    n_agents : int, optional
        Simulate so many agents, each with a random share of the rows (``fit(groups=)`` says whose they are).
        All rows are in this process, which sees them: this tells what agents in places of their own would
        reach. Rows in one place lose nothing by being one agent's, the default.
    trust : {"local", "secure_aggregation"}
        With several agents: each adds all the noise that protects its rows, or a share of it, so that only the
        sum of all answers may be seen (``auto``).
    honest : int, optional
        With secure_aggregation, h: epsilon holds if at least h agents of every round are honest, and
        ``privacy_["epsilon_alone"]`` if all others work together.
    inference : bool
        Whether to spend most of epsilon on confidence intervals that count the privacy noise (``auto``, two classes,
        logistic loss): ``conf_int()``, ``summary()``. The fit then has no penalty.
    rho, weight_radius : float
        For dp_admm: ADMM's penalty, and a public guess of the norm of the scaled weights (about ``data_norm``
        times that of ``coef_``): both shape the steps and not the privacy.
    random_state : None, int or RandomState
        None: exact noise from the operating system. A number: simulated noise, the same in every fit, for
        experiments; it protects nobody, and there is a warning.
    accountant : BudgetAccountant, optional
        Charged before the fit starts. None: those whose ``with`` block is open.

    Attributes
    ----------
    coef_ : (1 or classes, features)
    intercept_ : (1 or classes,)
        In the units of X: scores are ``X @ coef_.T + intercept_`` unless a row is clamped, or shortened
        (``shortened(X)`` says which are; that is for the owner of the rows only, and no attribute has it).
    classes_, n_features_in_, feature_names_in_, n_iter_
        As in scikit-learn.
    privacy_ : dict
        The privacy report: ε, δ, kind of noise, what it holds for, and what was read off the data.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (2000, 2))
    >>> y = np.where(X[:, 0] > X[:, 1], "yes", "no")
    >>> model = DPADMMClassifier(epsilon=1.0, bounds=(-1, 1), classes=["no", "yes"]).fit(X, y)
    >>> bool(model.score(X, y) > 0.9), round(model.privacy_["epsilon"], 6), model.privacy_["noise"][:23]
    (True, 1.0, 'exact discrete Gaussian')
    """

    _: KW_ONLY
    classes: Sequence[Any] | None = None
    C: Positive = 1.0
    loss: Literal["logistic", "hinge", "smoothed_hinge"] = "logistic"
    class_weight: Any = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # check_classifiers_train wants an accuracy of 0.83 on 300 rows of three classes: at the default
        # epsilon of 1 the noise is as large as what so few rows say. All else of that check runs.
        tags.classifier_tags.poor_score = True
        return tags

    def _checked(self, X: Any, y: Any, groups: Any = None, public: Any = None, *, sample_weight: Any = None) -> Checked:
        check_parameters(self, unlimited="C")
        X, y = validated(self, X, y, ensure_min_samples=2)
        check_classification_targets(y)
        classes, leaks = self._classes_of(y)
        binary = len(classes) == 2
        if not binary and self.loss != "logistic":
            raise StudyError(f"loss {self.loss} is for two classes, not {len(classes)}; use logistic")
        encoding, unbounded = self._encoding_of(X)
        weights, largest, read_off = self._row_weights(sample_weight, X)
        by_class = self._class_weights(classes, public)
        heaviest = 1.0 if by_class is None else float(by_class.max())
        settings = self._settings(
            X.shape[0],
            encoding,
            strength=1.0 / float(self.C) / (largest * heaviest),
            half=1.0,
            loss=self.loss if binary else "softmax",
            **owned(groups, self.n_agents),
        )
        task: Task = "binary" if binary else "multiclass"
        names = classes.tolist()

        def encoded(X: Any, y: Any, groups: Any = None, weights: Floats | None = None) -> Dataset:
            labels = encode_labels(y, task=task, classes=names)
            if by_class is not None:
                codes = (labels > 0.0).astype(np.intp) if binary else labels.astype(np.intp)
                weights = by_class[codes] / heaviest * (1.0 if weights is None else weights)
            return Dataset("X", encoding.rows(X), labels, tuple(names), as_groups(groups), row_weights=weights)

        prepared = self._prepared(encoded(X, y, groups, weights), settings)
        prior = self._prior(public, encoded, settings, None if weights is None else largest)
        leaks += unbounded + read_off

        def train() -> None:
            result = self._run(prepared, settings, leaks, prior)
            self.classes_ = classes
            self._keep(result.model, encoding, middle=0.0, half=1.0)
            self.coef_, self.intercept_ = encoding.coefficients(result.model.weights, settings.intercept)

        return Checked(leaks, train)

    def _classes_of(self, y: NDArray[Any]) -> tuple[NDArray[Any], list[str]]:
        given = y if self.classes is None else np.asarray(self.classes)
        if given.ndim != 1:
            raise StudyError("classes must be a list of the labels' values")
        classes = np.unique(given)
        if len(classes) < 2:
            raise DataError(f"a classifier needs two classes or more; here is only one class: {classes.tolist()!r:.60}")
        return classes, ["the classes (give classes=)"] if self.classes is None else []

    def _class_weights(self, classes: NDArray[Any], public: Any) -> Floats | None:
        """A number above 0 for every class."""
        given = self.class_weight
        if given is None:
            return None
        if isinstance(given, str) and given == "balanced":
            if public is None:
                raise StudyError(
                    "class_weight='balanced' would be read off the private labels; give numbers by class, or public= "
                    "rows whose labels say how frequent the classes are"
                )
            counts = np.array([np.count_nonzero(np.asarray(public[1]) == each) for each in classes])
            if not counts.all():
                raise DataError("public: class_weight='balanced' needs rows of every class; add some, or give numbers")
            return np.asarray(counts.sum() / (len(classes) * counts))
        if not isinstance(given, Mapping):
            raise StudyError(f"class_weight must be a dict of numbers by class, or 'balanced', not {given!r:.60}")
        known = classes.tolist()
        for name in given:
            if name not in known:
                raise StudyError(f"class_weight names {name!r:.60}, which is none of the classes {known!r:.60}")
        return np.array([positive("class_weight", given.get(each, 1.0)) for each in known])

    def decision_function(self, X: Any) -> Floats:
        """Scores: (rows,) for two classes, above 0 for the second; else (rows, classes)."""
        rows = self._encode(X)
        scores = self._model.decision_function(rows)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of every row."""
        scores = self.decision_function(X)
        chosen = (scores > 0.0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[chosen])

    @available_if(_gives_probabilities)
    def predict_proba(self, X: Any) -> Floats:
        """Probability of every class: (rows, classes). Logistic loss only."""
        rows = self._encode(X)
        return self._model.predict_proba(rows)

    @available_if(_gives_probabilities)
    def predict_log_proba(self, X: Any) -> Floats:
        """Logarithm of :meth:`predict_proba`."""
        return np.asarray(np.log(self.predict_proba(X)))


@hinted
@dataclass(eq=False, repr=False)
class DPADMMRegressor(RegressorMixin, PrivateLinearModel):
    """Ridge regression (or lasso, or Huber's) whose whole fit is (ε, δ)-private for every single row.

    Minimises, with m rows, what :class:`sklearn.linear_model.Ridge` does (divided by 2m):
    ``mean of ½(y − ŷ)² + alpha/m·(l1_ratio·‖w‖₁ + (1 − l1_ratio)/2·‖w‖²)``, except that the weight of the
    constant column is penalised too. w is in the units of X and y (of X mapped to [−1, 1] or standardised, where
    ``bounds`` or ``scale`` are given). The paper's λ/n, ``reg_share`` elsewhere in dpadmm, is
    ``0.92·alpha/(m·data_norm²)`` for the L2 penalty with an intercept, and ``alpha/(m·data_norm²)`` without.

    Parameters
    ----------
    y_bounds : (low, high), optional
        Public bounds of the labels, which are clamped to them and scaled. Left out: read off ``y``, with a
        :class:`dpadmm.PrivacyLeakWarning`.
    alpha : float
        Strength of the penalty; 0 for none.
    loss : {"squared", "huber"}
        Huber's is squared up to an error of ``gradient_bound`` and linear beyond.
    gradient_bound : float
        In half widths of ``y_bounds``: a row whose gradient is longer counts no more than this, and the noise is
        in proportion to it.
    epsilon, delta, data_norm, bounds, center, scale, l1_ratio, fit_intercept, method, max_iter
        As in :class:`DPADMMClassifier`.
    n_agents, trust, honest, inference
        Likewise; intervals are for the squared loss, and with a ``sample_weight`` need an intercept.
    weight_max
        Likewise.
    rho, weight_radius, random_state, accountant
        Likewise; ``weight_radius`` is for labels scaled to [−1, 1].

    Attributes
    ----------
    coef_ : (features,)
    intercept_ : float
        In the units of X and y.
    n_features_in_, feature_names_in_, n_iter_, privacy_
        As in :class:`DPADMMClassifier`.

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
        # check_regressors_train wants R² > 0.5 on 200 rows: at the default epsilon of 1 the noise is larger
        # than what so few rows say. All else of that check runs.
        tags.regressor_tags.poor_score = True
        return tags

    def _checked(self, X: Any, y: Any, groups: Any = None, public: Any = None, *, sample_weight: Any = None) -> Checked:
        check_parameters(self)
        X, y = validated(self, X, y, ensure_min_samples=2, y_numeric=True)
        intercept = bool(self.fit_intercept)
        low, high, middle, half = label_scale(y.astype(float), self.y_bounds, centred=intercept)
        leaks = ["the bounds of y (give y_bounds=)"] if self.y_bounds is None else []
        encoding, unbounded = self._encoding_of(X)
        weights, largest, read_off = self._row_weights(sample_weight, X)
        if weights is not None and self.inference and not intercept:
            raise StudyError("intervals with a sample_weight need fit_intercept=True, which tells the mean weight")
        settings = self._settings(
            X.shape[0],
            encoding,
            strength=float(self.alpha) / largest,
            half=half,
            loss=self.loss,
            loss_gradient_bound=self.gradient_bound,
            loss_delta=self.gradient_bound,
            **owned(groups, self.n_agents),
        )

        def encoded(X: Any, y: Any, groups: Any = None, weights: Floats | None = None) -> Dataset:
            labels = (np.clip(y.astype(float), low, high) - middle) / half
            return Dataset("X", encoding.rows(X), labels, None, as_groups(groups), row_weights=weights)

        prepared = self._prepared(encoded(X, y, groups, weights), settings)
        prior = self._prior(public, encoded, settings, None if weights is None else largest)
        leaks += unbounded + read_off

        def train() -> None:
            result = self._run(prepared, settings, leaks, prior)
            self._keep(result.model, encoding, middle=middle, half=half)
            self._label_scale = middle, half
            coef, constant = encoding.coefficients(result.model.weights, settings.intercept)
            self.coef_, self.intercept_ = half * coef[0], float(middle + half * constant[0])

        return Checked(leaks, train)

    def predict(self, X: Any) -> Floats:
        """Numbers in the units of y: (rows,)."""
        rows = self._encode(X)
        scores = self._model.decision_function(rows)[:, 0]
        middle, half = self._label_scale
        return np.asarray(middle + half * scores)


@hinted
@dataclass(eq=False, repr=False)
class DPADMMPoissonRegressor(RegressorMixin, PrivateLinearModel):
    """Poisson regression with log link whose whole fit is (ε, δ)-private for every single row: counts and rates.

    Minimises what :class:`sklearn.linear_model.PoissonRegressor` does: ``mean of half the deviance + alpha·(l1_ratio·
    ‖w‖₁ + (1 − l1_ratio)/2·‖w‖²)``, except that the weight of the constant column is penalised too. w is in the units
    of X (of X mapped to [−1, 1] or standardised, where ``bounds`` or ``scale`` are given).

    Parameters
    ----------
    y_max : float, optional
        Public largest count; larger ones are taken to be this. Left out: read off ``y``, with a
        :class:`dpadmm.PrivacyLeakWarning`.
    exposure_max : float, optional
        Public largest exposure, where ``fit`` is given some; larger ones are taken to be this. Left out: read off
        them, with the same warning.
    alpha : float
        Strength of the penalty; 0 for none. With a ``sample_weight`` it stands beside losses of weights over
        ``weight_max``.
    gradient_bound : float
        For dp_admm, in largest counts: a row whose gradient is longer counts no more than this, and the noise is in
        proportion to it.
    epsilon, delta, data_norm, bounds, center, scale, l1_ratio, method, max_iter
        As in :class:`DPADMMClassifier`.
    fit_intercept : bool
        It has to be True: rates have a level of their own.
    n_agents, trust, honest, inference, weight_max, rho, weight_radius, random_state, accountant
        Likewise.

    Attributes
    ----------
    coef_ : (features,)
        Logarithms of rate ratios, in the units of X.
    intercept_ : float
        Logarithm of the rate of one exposure where X is 0.
    n_features_in_, feature_names_in_, n_iter_, privacy_
        As in :class:`DPADMMClassifier`.

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
        tags.regressor_tags.poor_score = True  # as of DPADMMRegressor
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
        """Fit to rows X (dense or sparse) and counts y; ``groups`` says who owns a row (None: one agent).

        ``exposure`` has the years, doses or persons that a count belongs to, above 0: (rows,), or 1 for all. ``public``
        is a pair (X, y) of rows that anyone may see, with an exposure of 1. ``sample_weight`` as in other estimators.
        """
        checked = self._checked(X, y, groups, public, sample_weight=sample_weight, exposure=exposure)
        self._warn(checked.leaks)
        checked.train()
        return self

    def _checked(
        self,
        X: Any,
        y: Any,
        groups: Any = None,
        public: Any = None,
        *,
        sample_weight: Any = None,
        exposure: Any = None,
    ) -> Checked:
        check_parameters(self)
        X, y = validated(self, X, y, ensure_min_samples=2, y_numeric=True)
        if not self.fit_intercept:
            raise StudyError("fit_intercept must be True for counts: rates have a level of their own")
        y, spent = _counts(y.astype(float)), _exposures(exposure, len(y))
        leaks = ["the largest count (give y_max=)"] if self.y_max is None else []
        largest = positive("y_max", float(y.max()) or 1.0 if self.y_max is None else self.y_max)
        if exposure is not None and self.exposure_max is None:
            leaks.append("the largest exposure (give exposure_max=)")
        longest = positive("exposure_max", float(spent.max()) if self.exposure_max is None else self.exposure_max)
        encoding, unbounded = self._encoding_of(X)
        weights, heaviest, read_off = self._row_weights(sample_weight, X)
        settings = self._settings(
            X.shape[0],
            encoding,
            strength=float(self.alpha) * X.shape[0] / largest,
            half=1.0,
            loss=Poisson(self.gradient_bound, unit=min(1.0, 1.0 / largest)),
            **owned(groups, self.n_agents),
        )

        def encoded(X: Any, y: Any, groups: Any = None, spent: Any = 1.0, weights: Floats | None = None) -> Dataset:
            labels = coded(np.minimum(_counts(y.astype(float)) / largest, 1.0), np.minimum(spent / longest, 1.0))
            return Dataset("X", encoding.rows(X), labels, None, as_groups(groups), row_weights=weights)

        prepared = self._prepared(encoded(X, y, groups, spent, weights), settings)
        prior = self._prior(public, encoded, settings, None if weights is None else heaviest)
        leaks += unbounded + read_off
        level = float(np.log(largest / longest))

        def train() -> None:
            result = self._run(prepared, settings, leaks, prior)
            self._keep(result.model, encoding, middle=level, half=1.0)
            self._label_scale = 0.0, largest  # a search judges by errors beside it
            coef, constant = encoding.coefficients(result.model.weights, settings.intercept)
            self.coef_, self.intercept_ = coef[0], float(level + constant[0])

        return Checked(leaks, train)

    def predict(self, X: Any) -> Floats:
        """Rates: the mean count of one exposure, (rows,)."""
        rows = self._encode(X)
        scores = self._model.decision_function(rows)[:, 0] + self._units[1]
        return np.asarray(np.exp(np.minimum(scores, LARGEST_SCORE)))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """D², the share of the deviance that is explained, as of PoissonRegressor: of rates, weighted by exposures."""
        rates = np.maximum(self.predict(X), LEAST_RATE)
        return float(d2_tweedie_score(y, rates, sample_weight=sample_weight, power=1))


def _counts(y: Floats) -> Floats:
    """Counts as they are, if none is negative."""
    if (y < 0.0).any():
        row = int(np.argmax(y < 0.0))
        raise DataError(f"y[{row}] is {y[row]:g}, and counts are never negative; correct it or leave the row out")
    return y


def _exposures(exposure: Any, n_rows: int) -> Floats:
    """One for every row, above 0."""
    if exposure is None:
        return np.ones(n_rows)
    found = np.asarray(exposure, dtype=float)
    if found.shape != (n_rows,):
        raise DataError(f"exposure has shape {found.shape}, and there are {n_rows} rows; give one number a row")
    good = np.isfinite(found) & (found > 0.0)
    if not good.all():
        row = int(np.argmin(good))
        raise DataError(
            f"exposure[{row}] is {found[row]:g}, and exposures are above 0; correct it or leave the row out"
        )
    return found
