"""What both estimators share: rows -> settings -> charge -> run -> coefficients in the rows' own units."""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import wraps
from threading import Lock
from traceback import walk_stack
from typing import Any, Literal, NamedTuple, Self, TypeVar

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
from dpadmm.estimators.encoding import Encoding, encoding_of, validated
from dpadmm.estimators.validation import positive
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.clipping import row_norms
from dpadmm.methods.prior import Prior, prior_of
from dpadmm.models.explain import CONSERVATIVE, Explanation, in_units
from dpadmm.models.model import Model
from dpadmm.models.run import Result, need_honest
from dpadmm.parameters.fields import Count, Delta, Honest, Positive, Rounds, Share, nearest
from dpadmm.queries import make_query
from dpadmm.regularizers import ElasticNet
from dpadmm.studies.settings import Settings
from dpadmm.training.preparation import PreparedData, prepare
from dpadmm.training.simulate import run_prepared
from dpadmm.trusted.discrete_gaussian import Lattice

_ONE_AT_A_TIME = Lock()
"""The compiled rounds use all cores by themselves, and not every threading layer of numba can be shared."""


class Checked(NamedTuple):
    """A fit that can run: what was read off the data for it, and the training itself, which is charged first."""

    leaks: Sequence[str]
    train: Callable[[], None]


T = TypeVar("T", bound=type)


def hinted(made: T) -> T:
    """The class with a hint, where a parameter is given that it does not have."""
    init: Any = made.__init__  # type: ignore[misc]  # of this very class

    @wraps(init)
    def checked(self: Any, *values: Any, **given: Any) -> None:
        known = list(inspect.signature(init).parameters)[1:]
        for name in given.keys() - set(known):
            raise TypeError(f"{made.__name__} has no parameter {name!r}; {nearest(name, known)}")
        init(self, *values, **given)

    made.__init__ = checked  # type: ignore[misc]
    return made


@dataclass(eq=False, repr=False)
class PrivateLinearModel(BaseEstimator):
    """Fitting with a budget: the parameters that both estimators have, and what a fit does with them."""

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
    trust: Literal["local", "secure_aggregation"] = "local"
    honest: Honest | None = None
    inference: bool = False
    weight_max: Positive | None = None
    rho: Positive = 0.1
    weight_radius: Positive = 30.0
    random_state: Any = None
    accountant: BudgetAccountant | None = None
    _encoding: Encoding = field(init=False)
    _model: Model = field(init=False)
    _units: tuple[Floats, float] = field(init=False)
    _weighted: bool = field(init=False)
    _sent_from: tuple[BudgetAccountant, ...] = field(init=False)

    def fit(self, X: Any, y: Any, groups: Any = None, public: Any = None, *, sample_weight: Any = None) -> Self:
        """Fit to rows X (dense or sparse) and labels y; ``groups`` says who owns a row (None: one agent).

        ``public`` is a pair (X, y) of rows that anyone may see: a model of them is the start, and is
        trusted as far as the first private answers agree with it. ``sample_weight`` has a number for every row, of at
        least 0, up to ``weight_max``; public rows are then (X, y, weights).
        """
        checked = self._checked(X, y, groups, public, sample_weight=sample_weight)
        self._warn(checked.leaks)
        checked.train()
        return self

    @abstractmethod
    def _checked(self, X: Any, y: Any, groups: Any = None, public: Any = None, *, sample_weight: Any = None) -> Checked:
        """Check all that a fit needs, and say nothing yet."""

    def shortened(self, X: Any) -> NDArray[np.bool_]:
        """Which rows are longer than ``data_norm``, so that ``coef_`` holds for them up to a factor: (rows,).

        Nothing of it is kept in the estimator. It is about the rows, without noise: for their owner only.
        """
        return np.asarray(row_norms(self._encode(X)) > 1.0)

    def conf_int(self, level: float = 0.95) -> Floats:
        """Confidence intervals of the coefficients, in the order of ``coef_``, and last of the intercept: (d + 1, 2).

        They count how much a sample varies and the privacy noise. They need ``inference=True``, and are nan for a
        coefficient of which the rows say nothing.
        """
        ends = self._explained().conf_int(level).values()
        return np.array([(np.nan, np.nan) if each is None else each for each in ends])

    def summary(self) -> str:
        """Coefficients with standard errors, p-values and 95% intervals, as a table of text; for ``inference=True``."""
        about = [f"ε = {self.privacy_['epsilon']:.4g} at δ = {self.privacy_['delta']:g}"]
        return self._explained().summary([*about, CONSERVATIVE] if self._weighted else about)

    def _explained(self) -> Explanation:
        check_is_fitted(self)
        if not self._model.clearance:
            raise StudyError("there are no intervals: fit with inference=True, which spends a part of epsilon on them")
        (rows, shift), model = self._units, self._model
        names = [str(name) for name in getattr(self, "feature_names_in_", map("x{}".format, range(len(rows) - 1)))]
        return in_units(model, rows, [*names, "intercept"], shift=shift)

    def _keep(self, model: Model, encoding: Encoding, *, middle: float, half: float) -> None:
        """The model, and its coefficients in the units of rows and labels as combinations of weights."""
        coef, constant = encoding.coefficients(np.eye(len(model.weights)), model.intercept)
        self._encoding, self._model = encoding, model
        self._units = half * np.column_stack([coef, constant]).T, middle

    def _encode(self, X: Any) -> Any:
        """Rows to predict, scaled as the training rows were."""
        check_is_fitted(self)
        return self._encoding.rows(validated(self, X, reset=False))

    def _encoding_of(self, X: Any) -> tuple[Encoding, list[str]]:
        encoding, read_off = encoding_of(
            X,
            data_norm=self.data_norm,
            bounds=self.bounds,
            center=self.center,
            scale=self.scale,
            centred=bool(self.fit_intercept),
            names=getattr(self, "feature_names_in_", None),
        )
        return encoding, ["the norm of rows (give bounds=, scale= or data_norm=)"] if read_off else []

    def _row_weights(self, sample_weight: Any, X: Any) -> tuple[Floats | None, float, list[str]]:
        """Weights over the largest, from 0 to 1, the largest, and what was read off them; None where there are none."""
        if sample_weight is None:
            return None, 1.0, []
        weights = as_weights(sample_weight, X)
        read_off = ["the largest weight (give weight_max=)"] if self.weight_max is None else []
        largest = positive("weight_max", weights.max() if self.weight_max is None else self.weight_max)
        return np.minimum(weights / largest, 1.0), largest, read_off

    def _settings(self, n_rows: int, encoding: Encoding, strength: float, half: float, **loss: Any) -> Settings:
        """Settings of the fit; ``strength`` is the penalty in the units of the rows, times their number."""
        seed = self.random_state
        return Settings(
            **loss,
            **_penalty(strength / n_rows, float(self.l1_ratio), scale=encoding.scale(self.fit_intercept), half=half),
            epsilon=self.epsilon,
            delta=self.delta,
            intercept=self.fit_intercept,
            method=self.method,
            n_rounds=self.max_iter,
            trust=self.trust,
            honest=self.honest,
            inference=self.inference,
            rho=self.rho,
            weight_radius=self.weight_radius,
            clip_rows=True,
            test_rows=0,
            metrics_every=0,
            seed=fresh_seed() if seed is None else int(check_random_state(seed).randint(2**31)),
        )

    def _prepared(self, dataset: Dataset, settings: Settings) -> PreparedData:
        """Everything is checked here, so that what is charged can run."""
        prepared = prepare(dataset, settings)
        problem, rows = prepared.problem, prepared.rows
        need_honest(settings.honest, rows.n_agents)
        settings = settings.with_rounds(problem, rows)
        t = settings.planned_rounds
        method = settings.rounds(problem, rows, np.full(rows.n_agents, t))
        if self.random_state is None:
            try:
                for release, _ in method.plan(0, t).runs:  # all agents have the same
                    if isinstance(release, Release):
                        made = make_query(release.statistic, problem, rows.n_features)
                        grid = Lattice(made.row_norm, math.prod(made.shape), int(rows.n_rows.max()))
                        grid.noise_scale(release.noise_multiplier, settings.honest or 1)
            except StudyError as error:
                raise StudyError(
                    f"there is no exact noise for epsilon={self.epsilon:g} in {t} rounds: {error}"
                ) from None
        return prepared

    def _prior(
        self, public: Any, encoded: Callable[..., Dataset], settings: Settings, largest: float | None = None
    ) -> Prior | None:
        """What the public rows say, which is weighed against the noise; ``largest`` is that of weights, if any."""
        if public is None:
            return None
        if not isinstance(public, tuple | list) or len(public) != (2 if largest is None else 3):
            what = "a pair (X, y) of public rows and their labels"
            if largest is not None:
                what = "(X, y, weights) where there is a sample_weight: public rows, their labels and their weights"
            raise StudyError(f"public: it must be {what}")
        try:
            X, y = validated(self, *public[:2], reset=False)
            weights = None if largest is None else np.minimum(as_weights(public[2], X) / largest, 1.0)
            dataset = encoded(X, y, weights=weights)
            found = prepare(dataset, settings.changed(partition="equal", n_agents=1))
            return prior_of(found.problem, found.rows)
        except ValueError as error:
            raise DataError(f"public: {error}") from None

    def _run(self, prepared: PreparedData, settings: Settings, leaks: Sequence[str], prior: Prior | None) -> Result:
        """Charge, train, and keep what every fitted estimator has."""
        charge_all(self._accountants(), float(self.epsilon), float(self.delta))
        with _ONE_AT_A_TIME:
            noise = ExactNoise() if self.random_state is None else None
            result = run_prepared(prepared, settings, noise=noise, prior=prior)
        self.n_iter_, self._weighted = result.outcome.rounds, prepared.problem.weighted
        self.privacy_ = told(result.privacy.as_json(), leaks)
        if (n := len(result.n_rows)) > 1:
            self.privacy_["agents"] = f"{n} simulated in one process, which sees the rows of all"
        return result

    def _warn(self, leaks: Sequence[str]) -> None:
        """Call it from ``fit`` itself: warnings then point at whoever called that."""
        said = [f"read off the data, and not covered by epsilon: {', '.join(leaks)}"] if leaks else []
        if self.random_state is not None:
            said.append(
                "random_state makes the noise reproducible, so it protects nobody; "
                "random_state=None draws exact noise from the operating system"
            )
        if _in_a_search():
            counted = self._accountants()
            said.append(
                "every fit of a search or cross-validation costs its own epsilon on the same rows; they are "
                + (f"charged to {counted[0]!r}" if counted else "not added up: give accountant=, or use PrivateSearch")
            )
        for sentence in said:
            warnings.warn(sentence, PrivacyLeakWarning, stacklevel=3)

    def _accountants(self) -> Sequence[BudgetAccountant]:
        left_behind = [each for each in self.__dict__.get("_sent_from", ()) if not each.here]
        if self.accountant is None:
            return [*open_accountants(), *left_behind]
        if not isinstance(self.accountant, BudgetAccountant):
            raise StudyError(f"accountant must be a BudgetAccountant or None, not {self.accountant!r:.60}")
        own = self.accountant
        return [own, *(each for each in (*open_accountants(), *left_behind) if each is not own)]

    # Open accountants of this process do not exist in a worker process. An estimator that is sent there takes
    # word of them along, also to its clones, so that its fit is refused and not forgotten.
    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        opened = open_accountants()
        return {**state, "_sent_from": opened} if opened else state

    def __sklearn_clone__(self) -> Self:
        copy: Self = super().__sklearn_clone__()
        if "_sent_from" in self.__dict__:
            copy._sent_from = self._sent_from
        return copy

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _penalty(strength: float, ratio: float, *, scale: float, half: float) -> dict[str, Any]:
    """``strength·(l1_ratio·‖w‖₁ + (1 − l1_ratio)/2·‖w‖²)`` of the coefficients, for the scaled weights.

    A scaled weight is ``w/(scale·half)`` and a scaled squared loss is ``1/half²`` of the loss.
    """
    if not np.isfinite(strength):
        raise StudyError("the penalty must be finite")
    lasso, ridge = strength * ratio * scale / half, strength * (1.0 - ratio) * scale**2
    share = lasso + ridge
    if share == 0.0:
        return {"regularizer": "none", "reg_share": 0.0}
    if ratio in (0.0, 1.0):
        return {"regularizer": "l1" if ratio else "l2", "reg_share": share}
    return {"regularizer": ElasticNet(lasso / share), "reg_share": share}


def _in_a_search() -> bool:
    """Whether scikit-learn's model selection called: nothing that it passes on says so."""
    names = (str(frame.f_globals.get("__name__")) for frame, _ in walk_stack(sys._getframe()))
    return any(name.startswith("sklearn.model_selection") for name in names)


def told(report: dict[str, Any], leaks: Sequence[str]) -> dict[str, Any]:
    """A privacy report, with what it does not cover."""
    beyond = f"; it does not cover what was read off the data: {', '.join(leaks)}" if leaks else ""
    return report | {"guarantee": report["guarantee"] + beyond, "read_off_the_data": list(leaks)}


def owned(groups: Any, n_agents: Any) -> dict[str, Any]:
    """Settings and rows' owners: one agent, so many with a random share each, or one for every value in ``groups``."""
    if groups is None:
        return {"n_agents": n_agents or 1}
    if n_agents is not None:
        raise StudyError("groups say who the agents are; leave n_agents out")
    return {"partition": "groups"}


def as_weights(weights: Any, X: Any) -> Floats:
    """One for every row, of at least 0."""
    found = np.asarray(_check_sample_weight(weights, X, dtype=np.float64))
    if (found < 0.0).any():
        row = int(np.argmax(found < 0.0))
        raise DataError(f"sample_weight[{row}] is {found[row]:g}, and weights are never negative; correct it")
    return found


def as_groups(groups: Any) -> Any:
    """One value per row, from a list, an array or a column of a table."""
    return None if groups is None else np.asarray(groups)
