"""Base class of the estimators: rows -> settings -> charge -> run -> coefficients in the units of the rows."""

from __future__ import annotations

import inspect
import math
import sys
import warnings
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import wraps
from threading import Lock
from traceback import walk_stack
from typing import Any, Literal, NamedTuple, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, check_is_fitted
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight

from dpadmm.accounting.budget import BudgetAccountant, charge_all, open_accountants
from dpadmm.accounting.events import Release
from dpadmm.data import Dataset
from dpadmm.engine.noise import ExactNoise, fresh_seed
from dpadmm.errors import DataError, PrivacyLeakWarning, StudyError
from dpadmm.estimators.encoding import Encoding, encoding_of, nearly_constant, validated
from dpadmm.estimators.frames import Declared, clipped_rows, declared_by, encode_frame, study_encoding
from dpadmm.estimators.validation import positive
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.clipping import row_norms
from dpadmm.methods.prior import Prior, prior_of
from dpadmm.models.explain import in_units
from dpadmm.models.explanation import CONSERVATIVE, Explanation
from dpadmm.models.model import Model
from dpadmm.models.run import Result, check_min_honest_sites
from dpadmm.parameters.fields import Count, Delta, Honest, Positive, Rounds, Share, nearest
from dpadmm.queries import make_query
from dpadmm.regularizers import ElasticNet
from dpadmm.studies.settings import Settings
from dpadmm.training.preparation import PreparedData, prepare
from dpadmm.training.simulate import run_prepared
from dpadmm.trusted.discrete_gaussian import Lattice

_TRAINING_LOCK = Lock()
"""One training at a time: compiled rounds use all cores, and some threading layers of numba are not thread-safe."""


class CheckedFit(NamedTuple):
    """A fit whose parameters and data were checked.

    ``leaks`` names the values that were inferred from the data. ``train`` charges the accountants and runs the fit.
    """

    leaks: Sequence[str]
    train: Callable[[], None]


T = TypeVar("T", bound=type)


def suggest_parameter_names(cls: T) -> T:
    """Decorate an estimator class so that the error for an unknown parameter suggests a name."""
    init: Any = cls.__init__  # type: ignore[misc]  # of this very class

    @wraps(init)
    def checked_init(self: Any, *args: Any, **kwargs: Any) -> None:
        names = list(inspect.signature(init).parameters)[1:]
        for name in kwargs.keys() - set(names):
            raise TypeError(f"{cls.__name__} has no parameter {name!r}; {nearest(name, names)}")
        init(self, *args, **kwargs)

    cls.__init__ = checked_init  # type: ignore[misc]
    return cls


@dataclass(eq=False, repr=False)
class PrivateLinearModel(BaseEstimator):
    """Base class of the private linear models: their common parameters, and the steps of a fit."""

    epsilon: Positive = 1.0
    _: KW_ONLY
    delta: Delta = 1e-5
    data_norm: Positive | None = None
    bounds: Any = None
    center: Any = None
    scale: Any = None
    l1_ratio: Share = 0.0
    fit_intercept: bool = True
    method: Literal["auto", "dp_admm"] = "auto"
    max_iter: Rounds | None = None
    n_agents: Count | None = None
    aggregation: Literal["plain", "secure"] = "plain"
    min_honest_sites: Honest | None = None
    inference: bool = False
    weight_max: Positive | None = None
    rho: Positive = 0.1
    weight_radius: Positive = 30.0
    random_state: Any = None
    accountant: BudgetAccountant | None = None
    study: Any = None
    _encoding: Encoding = field(init=False)
    _model: Model = field(init=False)
    _units: tuple[Floats, float] = field(init=False)
    _weighted: bool = field(init=False)
    _scale_warnings = cast("list[str]", [])
    _sent_from = cast("tuple[BudgetAccountant, ...]", ())  # not annotated: an attribute of the class, not a parameter

    def fit(self, X: Any, y: Any, groups: Any = None, public: Any = None, *, sample_weight: Any = None) -> Self:
        """Fit the model with differential privacy.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Private rows. A data frame of pandas or polars keeps its column names.
        y : array-like of shape (n_samples,)
            Private labels.
        groups : array-like of shape (n_samples,), optional
            Owner of each row. Each distinct value is one agent. Default: one agent owns all rows.
        public : tuple (X, y) or (X, y, weights), optional
            Public rows. Training starts from a model of these rows and down-weights it if the private data disagree.
            Weights are required together with ``sample_weight``.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of at least 0. Weights above ``weight_max`` are clipped to it.

        Returns
        -------
        self

        Raises
        ------
        StudyError
            If a parameter is invalid. Nothing is charged.
        DataError
            If X or y is invalid. Nothing is charged.
        BudgetExceededError
            If the accountant has not enough budget left. Nothing is released.

        Warns
        -----
        PrivacyLeakWarning
            If a bound was inferred from the data, if the noise is reproducible, or if a search fits the estimator.
        """
        checked = self._check(X, y, groups, public, sample_weight=sample_weight)
        self._warn(checked.leaks)
        checked.train()
        return self

    @abstractmethod
    def _check(
        self, X: Any, y: Any, groups: Any = None, public: Any = None, *, sample_weight: Any = None
    ) -> CheckedFit:
        """Check parameters and data, without warnings, charges or training."""

    def is_clipped(self, X: Any) -> NDArray[np.bool_]:
        """Return whether the norm of each row exceeds ``data_norm``, so that prediction clips the row.

        The scores of a clipped row are not ``X @ coef_.T + intercept_``. The result has no noise and is not stored in
        the estimator. Only the owner of the rows should see it.
        """
        check_is_fitted(self)
        if declared := self._declared:
            return clipped_rows(declared.schema, X)
        return np.asarray(row_norms(self._encode(X)) > 1.0)

    def conf_int(self, level: float = 0.95) -> Floats:
        """Return confidence intervals of the coefficients and the intercept. Requires ``inference=True``.

        The intervals include sampling variation and privacy noise.

        Parameters
        ----------
        level : float, default=0.95
            Confidence level.

        Returns
        -------
        array of shape (n_features + 1, 2)
            Lower and upper ends, in the order of ``coef_``, with the intercept last. nan if the rows contain no
            information about a coefficient.
        """
        intervals = self._explain().conf_int(level).values()
        return np.array([(np.nan, np.nan) if interval is None else interval for interval in intervals])

    def summary(self) -> str:
        """Return a text table with coefficients, standard errors, p-values and 95% intervals.

        Requires ``inference=True``.
        """
        notes = [f"ε = {self.privacy_['epsilon']:.4g} at δ = {self.privacy_['delta']:g}"]
        return self._explain().summary([*notes, CONSERVATIVE] if self._weighted else notes)

    def _explain(self) -> Explanation:
        check_is_fitted(self)
        if not self._model.hessian_snr:
            raise StudyError(
                "intervals are not available; fit with inference=True, which spends part of epsilon on them"
            )
        (rows, shift), model = self._units, self._model
        names = [str(name) for name in getattr(self, "feature_names_in_", map("x{}".format, range(len(rows) - 1)))]
        if declared := self._declared:
            names = [*declared.schema.features]
        return in_units(model, rows, [*names, "intercept"], shift=shift)

    def _store_model(self, model: Model, encoding: Encoding, *, middle: float, half: float) -> None:
        """Store the model, and the linear map from its weights to coefficients in the units of X and y."""
        coef, constant = encoding.coefficients(np.eye(len(model.weights)), model.intercept)
        self._encoding, self._model = encoding, model
        self._units = half * np.column_stack([coef, constant]).T, middle

    def _encode(self, X: Any) -> Any:
        """Return rows scaled like the training rows."""
        check_is_fitted(self)
        return self._encoding.rows(self._validated(X, reset=False))

    @property
    def _declared(self) -> Declared | None:
        """The columns and the label of the study, if the estimator has one."""
        own = {"bounds": self.bounds, "center": self.center, "scale": self.scale, "data_norm": self.data_norm}
        return declared_by(self.study, **own)

    def _validated(self, X: Any, *y: Any, **options: Any) -> Any:
        """Return rows, and labels if given, after the checks of scikit-learn; encoded rows with a study."""
        if declared := self._declared:
            return encode_frame(self, declared.schema, X, *y, **options)
        return validated(self, X, *y, **options)

    def _encoding_of(self, X: Any) -> tuple[Encoding, list[str]]:
        """Return the encoding of the rows, and the values that were inferred from them."""
        if declared := self._declared:
            return study_encoding(declared.schema), []
        encoding, is_inferred = encoding_of(
            X,
            data_norm=self.data_norm,
            bounds=self.bounds,
            center=self.center,
            scale=self.scale,
            centred=bool(self.fit_intercept),
            names=getattr(self, "feature_names_in_", None),
        )
        self._scale_warnings = nearly_constant(encoding, X, getattr(self, "feature_names_in_", None))
        return encoding, ["the norm of rows (set bounds=, scale= or data_norm=)"] if is_inferred else []

    def _row_weights(self, sample_weight: Any, X: Any) -> tuple[Floats | None, float, list[str]]:
        """Return weights scaled to [0, 1] (or None), the largest weight, and the values inferred from the weights."""
        if sample_weight is None:
            return None, 1.0, []
        weights = as_weights(sample_weight, X)
        leaks = ["the largest weight (set weight_max=)"] if self.weight_max is None else []
        max_weight = positive("weight_max", weights.max() if self.weight_max is None else self.weight_max)
        return np.minimum(weights / max_weight, 1.0), max_weight, leaks

    def _method(self) -> dict[str, Any]:
        """Return the method with those of the estimator's parameters that it has."""
        if self.method == "auto":
            return {"name": "auto", "inference": self.inference}
        if self.inference:
            raise StudyError(f"{self.method} does not support inference; use auto, or remove inference")
        return {"name": self.method, "rho": self.rho, "weight_radius": self.weight_radius}

    def _settings(self, n_rows: int, encoding: Encoding, strength: float, half: float, **loss: Any) -> Settings:
        """Return the settings of the fit. ``strength`` is the penalty in the units of the rows, times ``n_rows``."""
        seed = self.random_state
        return Settings(
            **loss,
            **_penalty(strength / n_rows, float(self.l1_ratio), scale=encoding.scale(self.fit_intercept), half=half),
            epsilon=self.epsilon,
            delta=self.delta,
            intercept=self.fit_intercept,
            method=self._method(),
            n_rounds=self.max_iter,
            aggregation=self.aggregation,
            min_honest_sites=self.min_honest_sites,
            clip_rows=True,
            test_rows=0,
            metrics_every=0,
            seed=fresh_seed() if seed is None else int(check_random_state(seed).randint(2**31)),
        )

    def _prepared(self, dataset: Dataset, settings: Settings) -> PreparedData:
        """Prepare the rows, and check that the run is possible before it is charged."""
        prepared = prepare(dataset, settings)
        problem, rows = prepared.problem, prepared.rows
        check_min_honest_sites(settings.min_honest_sites, rows.n_agents)
        settings = settings.resolved(problem, rows)
        n_rounds = settings.planned_rounds
        method = settings.build(problem, rows, np.full(rows.n_agents, n_rounds))
        if self.random_state is None:
            try:
                for release, _ in method.plan(0, n_rounds).runs:  # all agents have the same
                    if isinstance(release, Release):
                        query = make_query(release.statistic, problem, rows.n_features)
                        lattice = Lattice(query.row_norm, math.prod(query.shape), int(rows.n_rows.max()))
                        lattice.noise_scale(release.noise_multiplier, settings.min_honest_sites or 1)
            except StudyError as error:
                raise StudyError(
                    f"there is no exact noise for epsilon={self.epsilon:g} in {n_rounds} rounds: {error}"
                ) from None
        return prepared

    def _prior(
        self, public: Any, encode: Callable[..., Dataset], settings: Settings, max_weight: float | None = None
    ) -> Prior | None:
        """Return the prior from the public rows. They have weights if ``max_weight`` is given."""
        if public is None:
            return None
        if not isinstance(public, tuple | list) or len(public) != (2 if max_weight is None else 3):
            expected = "a pair (X, y)" if max_weight is None else "(X, y, weights) if there is a sample_weight"
            raise StudyError(f"public must be {expected}")
        try:
            X, y = self._validated(*public[:2], reset=False)
            weights = None if max_weight is None else np.minimum(as_weights(public[2], X) / max_weight, 1.0)
            dataset = encode(X, y, weights=weights)
            prepared = prepare(dataset, settings.with_changes(partition="equal", n_agents=1))
            return prior_of(prepared.problem, prepared.rows)
        except ValueError as error:
            raise DataError(f"public: {error}") from None

    def _run(self, prepared: PreparedData, settings: Settings, leaks: Sequence[str], prior: Prior | None) -> Result:
        """Charge the accountants, train, and set the attributes that all estimators have."""
        charge_all(self._accountants(), float(self.epsilon), float(self.delta))
        with _TRAINING_LOCK:
            noise = ExactNoise() if self.random_state is None else None
            result = run_prepared(prepared, settings, noise=noise, prior=prior)
        self.n_iter_, self._weighted = result.outcome.rounds, prepared.problem.weighted
        self.privacy_ = with_leak_notice(result.privacy.to_dict(), leaks)
        if (n := len(result.n_rows)) > 1:
            self.privacy_["simulated_agents"] = f"{n} simulated in one process, which has the rows of all agents"
        return result

    def _warn(self, leaks: Sequence[str]) -> None:
        """Issue the privacy warnings of a fit. Call this from ``fit``, so that they point to the caller of ``fit``."""
        messages = [f"inferred from the data and not covered by epsilon: {', '.join(leaks)}"] if leaks else []
        if self.random_state is not None:
            messages.append(
                "random_state makes the noise reproducible, so the fit provides no privacy; "
                "use random_state=None for exact noise"
            )
        search = _current_search()
        if search is not None:
            accountants = self._accountants()
            messages.append(
                "each fit of a search or cross-validation spends its own epsilon on the same rows; the fits are "
                + (
                    f"charged to {accountants[0]!r}"
                    if accountants
                    else "not added up: set accountant=, or use PrivateSearch"
                )
            )
        if search is not None:
            messages = _new_in_search(search, messages)
        for message in messages:
            warnings.warn(message, PrivacyLeakWarning, stacklevel=3)
        for message in self._scale_warnings:
            warnings.warn(message, UserWarning, stacklevel=3)
        self._scale_warnings = []

    def _accountants(self) -> Sequence[BudgetAccountant]:
        """Return the accountants to charge: the estimator's own, then the open ones of this and the sending process."""
        remote = [accountant for accountant in self._sent_from if not accountant.is_chargeable]
        if self.accountant is None:
            return [*open_accountants(), *remote]
        if not isinstance(self.accountant, BudgetAccountant):
            raise StudyError(f"accountant must be a BudgetAccountant or None, not {self.accountant!r:.60}")
        own = self.accountant
        return [own, *(accountant for accountant in (*open_accountants(), *remote) if accountant is not own)]

    # A worker process has none of the open accountants of this process. A pickled estimator and its clones therefore
    # carry references to them, and a fit in the worker raises an error instead of escaping the charge.
    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        opened = open_accountants()
        return {**state, "_sent_from": opened} if opened else state

    def __sklearn_clone__(self) -> Self:
        copy: Self = super().__sklearn_clone__()
        if self._sent_from:
            copy._sent_from = self._sent_from
        return copy

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.study is None
        tags.input_tags.string = tags.input_tags.categorical = tags.input_tags.allow_nan = self.study is not None
        return tags


def _penalty(strength: float, ratio: float, *, scale: float, half: float) -> dict[str, Any]:
    """Return the regularizer for scaled weights that equals a penalty on the coefficients.

    The penalty is ``strength·(ratio·‖w‖₁ + (1 − ratio)/2·‖w‖²)``. A scaled weight is ``w/(scale·half)``, and a scaled
    squared loss is ``1/half²`` of the loss.
    """
    if not np.isfinite(strength):
        raise StudyError("the penalty must be finite")
    lasso, ridge = strength * ratio * scale / half, strength * (1.0 - ratio) * scale**2
    share = lasso + ridge
    if share == 0.0:
        return {"regularizer": "none", "alpha": 0.0}
    if ratio in (0.0, 1.0):
        return {"regularizer": "l1" if ratio else "l2", "alpha": share}
    return {"regularizer": ElasticNet(lasso / share), "alpha": share}


class _Search(NamedTuple):
    """A search or cross-validation that is running, identified by an object that exists for this call only."""

    own: Any

    def is_same(self, other: _Search | None) -> bool:
        own = None if self.own is None else self.own()
        return own is not None and other is not None and other.own is not None and other.own() is own


_WARNED: dict[str, Any] = {"search": None, "messages": set()}
"""The last search, and the beginnings of its warnings, so that a search issues each warning once."""


def _current_search() -> _Search | None:
    """Return the search or cross-validation of scikit-learn that is on the call stack, if any.

    scikit-learn passes no argument from which this could be inferred.
    """
    frames = [frame for frame, _ in walk_stack(sys._getframe()) if _is_of_search(frame)]
    if not frames:
        return None
    own = next((each for each in (frame.f_locals.get("routed_params") for frame in frames[::-1]) if each), None)
    return _Search(None if own is None else weakref.ref(own))


def _is_of_search(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("sklearn.model_selection")


def _new_in_search(search: _Search, messages: Sequence[str]) -> list[str]:
    """Return one warning with the messages that this search has not issued yet, or none."""
    if not search.is_same(_WARNED["search"]):
        _WARNED.update(search=search, messages=set())
    new = [message for message in messages if message[:40] not in _WARNED["messages"]]
    _WARNED["messages"] |= {message[:40] for message in new}
    return ["; ".join(new)] if new else []


def with_leak_notice(report: dict[str, Any], leaks: Sequence[str]) -> dict[str, Any]:
    """Return a privacy report that lists the values it does not cover."""
    notice = f" It does not cover values inferred from the data: {', '.join(leaks)}." if leaks else ""
    return report | {"guarantee": report["guarantee"] + notice, "read_off_the_data": list(leaks)}


def partition_settings(groups: Any, n_agents: Any) -> dict[str, Any]:
    """Return the settings that assign rows to agents: by ``groups``, or at random to ``n_agents`` (default 1)."""
    if groups is None:
        return {"n_agents": n_agents or 1}
    if n_agents is not None:
        raise StudyError("groups determine the agents; leave n_agents out")
    return {"partition": "groups"}


def as_weights(sample_weight: Any, X: Any) -> Floats:
    """Return an array with one weight of at least 0 per row."""
    weights = np.asarray(_check_sample_weight(sample_weight, X, dtype=np.float64))
    if (weights < 0.0).any():
        row = int(np.argmax(weights < 0.0))
        raise DataError(f"sample_weight[{row}] is {weights[row]:g}; weights must be at least 0")
    return weights


def as_groups(groups: Any) -> Any:
    """Return an array with one value per row, or None."""
    return None if groups is None else np.asarray(groups)
