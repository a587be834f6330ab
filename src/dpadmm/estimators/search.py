"""Tune the parameters of an estimator on private rows, with the privacy cost of the selection included.

The accounting is in :mod:`dpadmm.accounting.selection`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from operator import itemgetter
from random import Random, SystemRandom
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, check_is_fitted, clone
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.metaestimators import available_if

from dpadmm.accounting.calibration import mu_from_epsilon
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.selection import draw_runs, expected_runs, run_mu, selection_epsilon
from dpadmm.errors import StudyError
from dpadmm.estimators.base import PrivateLinearModel, with_leak_notice
from dpadmm.estimators.linear_models import DPADMMClassifier
from dpadmm.estimators.validation import check_parameters
from dpadmm.matrices.arrays import Floats
from dpadmm.parameters.fields import Count, Delta, Positive, nearest
from dpadmm.trusted.discrete_gaussian import Draw, Lattice, as_mean, release_sum

SCORE_SHARE = 0.1
"""Share of a run's μ² that its score spends."""

HALF = 0.5
"""Bound on the absolute contribution of a row to a score."""

GUARANTEE = (
    "with secret, exact noise of this size: for any one row replaced by any other (number of rows public), against "
    "everyone who sees the selected model, its parameters and its score, but not the other runs or their number"
)
FIXED_PARAMETERS = (
    "epsilon", "delta", "random_state", "accountant", "classes", "y_bounds", "n_agents", "aggregation",
    "min_honest_sites",
)  # fmt: skip
"""Parameters that a candidate may not set, because they would change the meaning of a score or its noise."""


def _delegate(name: str) -> Any:
    """Return a method that calls the method of the selected model, available if the model has it."""

    def method(self: PrivateSearch, X: Any) -> Any:
        check_is_fitted(self, "best_estimator_")
        return getattr(self.best_estimator_, name)(X)

    method.__doc__ = f"Call ``{name}`` of the selected model."
    return available_if(lambda self: hasattr(getattr(self, "best_estimator_", self.estimator), name))(method)


@dataclass(eq=False, repr=False)
class PrivateSearch(MetaEstimatorMixin, BaseEstimator):
    """Tune the parameters of a private estimator, with one total budget (ε, δ).

    ``GridSearchCV`` spends ε in every fit. This search draws a secret number of runs. Each run draws a candidate at
    random, trains it on all rows, and computes a noisy score on the same rows. Only the best run is released.

    Parameters
    ----------
    estimator : DPADMMClassifier, DPADMMRegressor or DPADMMPoissonRegressor
        Estimator to tune. The search sets its ``epsilon``, ``delta`` and ``random_state``.
    candidates : list of dicts
        Parameters to try, for example ``[{"C": 0.1}, {"C": 1, "max_iter": 30}]`` or a
        :class:`sklearn.model_selection.ParameterGrid`. ``{}`` is the estimator without changes.
    epsilon : float
        Total ε of training, scores and selection.
    delta : float
        Total δ of training, scores and selection.
    runs : int, default=5
        Mean of the Poisson-distributed number of runs, from 1 to 100. At least one run is made. More runs find a
        better candidate, but each has more noise.
    random_state : None, int or RandomState, default=None
        None: exact noise. Otherwise simulated noise from a seed, for experiments only, without privacy.

    Attributes
    ----------
    best_estimator_ : estimator
        Model of the best run. Its ``privacy_`` is that of the search.
    best_params_ : dict
        Candidate of the best run.
    best_score_ : float
        Noisy score on the training rows. For classes, the accuracy. For numbers, 1 minus the mean squared error in
        half widths of ``y_bounds``, with the error of each row clipped to 1.
    privacy_ : dict
        Total ε and δ, the accounting method, the expected number of runs, and the ε of a single run. The number of
        runs and the other scores are neither released nor stored.

    Notes
    -----
    The guarantee holds only while the other runs stay secret, so the search needs one owner and one process. The
    duration of ``fit`` depends on the number of runs, so only the owner should see it. With several agents, the
    messages of every run would be visible. Therefore ``groups`` raise an error, and studies have no search.

    The selection costs accuracy: with ``runs=5`` the noise of a run is 1.6 times that of a single fit. Test error with
    a search minus that of ``auto`` at the same total, in percentage points (``benchmarks/search.py``; six candidates,
    ten splits):

    ===  =====  =====  =========  ======
    ε    Adult  churn  mortality  compas
    ===  =====  =====  =========  ======
    1    +0.5   +0.2   +0.2       −0.4
    3    +0.2   +0.2   0.0        −0.1
    ===  =====  =====  =========  ======

    So prefer ``auto`` without a search unless you have a reason. Tuning on public rows costs no budget: use
    ``dpadmm plan`` or any search of scikit-learn.

    Examples
    --------
    >>> X = np.random.default_rng(0).uniform(-1, 1, (2000, 2))
    >>> y = np.where(X[:, 0] > X[:, 1], "yes", "no")
    >>> model = DPADMMClassifier(bounds=(-1, 1), classes=["no", "yes"])
    >>> search = PrivateSearch(model, [{"C": 1e-3}, {"C": 1.0}], epsilon=1.0, delta=1e-5).fit(X, y)
    >>> round(search.privacy_["epsilon"], 6), round(search.privacy_["run_epsilon"], 3)
    (1.0, 0.617)
    """

    estimator: Any
    candidates: Any
    _: KW_ONLY
    epsilon: Positive
    delta: Delta
    runs: Count = 5
    random_state: Any = None

    predict = _delegate("predict")
    decision_function = _delegate("decision_function")
    predict_proba = _delegate("predict_proba")
    predict_log_proba = _delegate("predict_log_proba")
    classes_ = property(lambda self: self.best_estimator_.classes_)
    n_features_in_ = property(lambda self: self.best_estimator_.n_features_in_)

    def score(self, X: Any, y: Any) -> float:
        """Return the score of the selected model on these rows: accuracy, R² or D².

        The score has no noise. Only the owner of the rows should see it.
        """
        check_is_fitted(self, "best_estimator_")
        return float(self.best_estimator_.score(X, y))

    def fit(self, X: Any, y: Any, groups: Any = None, public: Any = None) -> Self:
        """Search with private rows.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Private rows.
        y : array-like of shape (n_samples,)
            Private labels.
        groups : None
            Not supported; see Notes.
        public : tuple (X, y), optional
            Public rows; see ``DPADMMClassifier.fit``.

        Returns
        -------
        self
        """
        check_parameters(self)
        candidates = self._candidates()
        for name, value in {"groups": groups, "n_agents": self.estimator.n_agents}.items():
            if value is not None:
                raise StudyError(
                    f"{name}: a search is private only while the other runs stay secret, but messages between agents "
                    f"show every run; fit without {name}, or tune on public rows"
                )
        mu = run_mu(self.epsilon, self.delta, self.runs)
        noise_multiplier = 1.0 / (mu * math.sqrt(SCORE_SHARE))
        # Slightly less than the rest of μ², because ε is rounded up
        epsilon = float(exact_epsilon(mu * math.sqrt(1.0 - SCORE_SHARE) * (1.0 - 1e-9), self.delta))
        rng, draw = self._random_sources()
        leaks: dict[str, None] = {}
        for candidate in candidates:  # all of them, so that an invalid candidate always raises an error
            run = self._estimator_for(candidate, epsilon, rng)
            leaks |= dict.fromkeys(run._check(X, y, None, public).leaks)
        Lattice(HALF, 1, len(np.asarray(y))).noise_scale(noise_multiplier)
        run._warn([*leaks])
        best: tuple[float, Any, Mapping[str, Any]] = -math.inf, None, {}
        for _ in range(draw_runs(self.runs, rng.randrange)):
            candidate = rng.choice(candidates)
            run = self._estimator_for(candidate, epsilon, rng)
            run._check(X, y, None, public).train()
            score = private_score(run, X, y, noise_multiplier, draw=draw)
            best = max(best, (score, run, candidate), key=itemgetter(0))
        self.best_score_, self.best_estimator_, self.best_params_ = best[0], best[1], dict(best[2])
        self._report_privacy(math.hypot(mu_from_epsilon(epsilon, self.delta), 1.0 / noise_multiplier), [*leaks])
        return self

    def _candidates(self) -> list[Mapping[str, Any]]:
        """Return the candidates. Raise StudyError if they or the estimator are invalid."""
        kind = type(self.estimator).__name__
        if not isinstance(self.estimator, PrivateLinearModel):
            raise StudyError(
                f"estimator must be a DPADMMClassifier or DPADMMRegressor, not a {kind}; "
                "to search in a pipeline, make PrivateSearch its last step"
            )
        if self.estimator._accountants():
            raise StudyError(
                "a search cannot be charged to a BudgetAccountant, which composes Gaussian noise only; fit it outside "
                "of with blocks and without accountant=, and add its epsilon and delta to those of other fits"
            )
        candidates = list(self.candidates) if isinstance(self.candidates, Iterable) else []
        if not candidates or not all(isinstance(candidate, Mapping) for candidate in candidates):
            raise StudyError(
                "candidates must be a list of at least one dict of the estimator's parameters, such as "
                f"[{{'C': 0.1}}, {{'C': 1.0}}], not {self.candidates!r:.60}"
            )
        names = list(self.estimator.get_params(deep=False))
        for i, name in ((i, name) for i, candidate in enumerate(candidates, 1) for name in candidate):
            if name not in names:
                raise StudyError(f"candidate {i}: {kind} has no parameter {name!r}; {nearest(str(name), names)}")
            if name in FIXED_PARAMETERS:
                raise StudyError(f"candidate {i} sets {name}, which all runs share; set it in the search or estimator")
        return candidates

    def _estimator_for(self, candidate: Mapping[str, Any], epsilon: float, rng: Random) -> Any:
        """Return the estimator of one run."""
        seed = None if self.random_state is None else rng.randrange(2**31)
        run = clone(self.estimator).set_params(**candidate)
        return run.set_params(epsilon=epsilon, delta=self.delta, random_state=seed)

    def _random_sources(self) -> tuple[Random, Draw | None]:
        """Return the generator for runs and candidates, and the noise of the scores (None: exact)."""
        if self.random_state is None:
            return SystemRandom(), None
        seeded = Random(int(check_random_state(self.random_state).randint(2**31)))
        return seeded, lambda scale, count: np.array([round(seeded.gauss(0.0, scale)) for _ in range(count)])

    def _report_privacy(self, mu: float, leaks: Sequence[str]) -> None:
        """Set the privacy report of the whole search, also in the best model, which has that of its own run only."""
        best = self.best_estimator_
        self.privacy_ = with_leak_notice(
            {
                "private": True,
                "epsilon": selection_epsilon(mu, self.runs, self.delta),
                "delta": self.delta,
                "run_epsilon": float(exact_epsilon(mu, self.delta)),
                "expected_runs": expected_runs(self.runs),
                "accountant": "Rényi bound of the best of a secret Poisson number of runs",
                "guarantee": GUARANTEE,
                **{name: best.privacy_[name] for name in ("noise", "method")},
            },
            leaks,
        )
        best.set_params(epsilon=self.epsilon, random_state=self.random_state)
        best.privacy_, best._model = self.privacy_, replace(best._model, privacy=self.privacy_)

    def __sklearn_tags__(self) -> Any:
        tags, of_estimator = super().__sklearn_tags__(), get_tags(self.estimator)
        for name in ("estimator_type", "classifier_tags", "regressor_tags"):
            setattr(tags, name, getattr(of_estimator, name))
        tags.input_tags.sparse = of_estimator.input_tags.sparse
        return tags


def private_score(model: Any, X: Any, y: Any, noise_multiplier: float, *, draw: Draw | None = None) -> float:
    """Return ½ plus the mean of :func:`row_scores`, with exact noise.

    Each row affects only its own score, which is in [−½, ½]. Replacing a row changes the sum by at most 1.
    """
    scores = row_scores(model, X, np.asarray(y).ravel())
    lattice = Lattice(HALF, 1, len(scores))
    noisy_sum = release_sum(scores.sum(keepdims=True), lattice, noise_multiplier, draw=draw)
    return float(HALF + as_mean(noisy_sum, lattice)[0])


def row_scores(model: Any, X: Any, y: NDArray[Any]) -> Floats:
    """Return ``½ − min(1, e)²`` for every row.

    For classes the error e is 0 or 1. For numbers it is in half widths of ``y_bounds``, for counts in ``y_max``.
    """
    predictions = model.predict(X)
    if isinstance(model, DPADMMClassifier):
        return np.where(predictions == y, HALF, -HALF)
    with np.errstate(over="ignore"):
        errors = np.minimum(1.0, np.abs(predictions - y.astype(float)) / model._label_scale[1])
    return np.asarray(HALF - errors**2)
