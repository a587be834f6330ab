"""Choosing an estimator's parameters on private rows, with the choice paid for (:mod:`dpadmm.accounting.selection`)."""

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
from dpadmm.estimators.base import PrivateLinearModel, told
from dpadmm.estimators.linear_models import DPADMMClassifier
from dpadmm.estimators.validation import check_parameters
from dpadmm.matrices.arrays import Floats
from dpadmm.parameters.fields import Count, Delta, Positive, nearest
from dpadmm.trusted.discrete_gaussian import Draw, Lattice, as_mean, release_sum

SCORE_SHARE = 0.1
"""Of a run's μ², what its score gets."""

HALF = 0.5
"""The most that a row adds to a score, in either direction."""

GUARANTEE = (
    "with secret, exact noise of this size: for any one row replaced by any other (number of rows public), against "
    "everyone who sees the chosen model, its parameters and its score, and neither the other runs nor their number"
)
SHARED = ("epsilon", "delta", "random_state", "accountant", "classes", "y_bounds", "n_agents", "trust", "honest")
"""Parameters that a candidate may not set: they would change what a score means, or its noise."""


def _of_the_best(name: str) -> Any:
    """A method of the chosen model, there if the model has it."""

    def method(self: PrivateSearch, X: Any) -> Any:
        check_is_fitted(self, "best_estimator_")
        return getattr(self.best_estimator_, name)(X)

    method.__doc__ = f"``{name}`` of the chosen model."
    return available_if(lambda self: hasattr(getattr(self, "best_estimator_", self.estimator), name))(method)


@dataclass(eq=False, repr=False)
class PrivateSearch(MetaEstimatorMixin, BaseEstimator):
    """The best of several private fits with different parameters, for one total (ε, δ).

    ``GridSearchCV`` spends ε in every fit. Here a secret number of runs is drawn, Poisson and at least one; each
    takes a candidate by chance, trains it on all rows, and gives itself a noisy score on the same rows. The best
    run alone is released. The noise of a run is such that the choice is paid for: with ``runs=5`` it is 1.6 times
    that of a single fit. Measured (``benchmarks/search.py``; six candidates, ten splits, test error less that of
    ``auto`` at the same total, in points): at ε 1 Adult +0.5, churn +0.2, mortality +0.2, compas −0.4; at ε 3
    +0.2, +0.2, 0.0, −0.1. So leave ``auto`` as it is unless you have a reason.

    It holds where the other runs stay hidden: for one owner, in one process. The time that ``fit`` takes tells
    about how many runs there were, so it is for the owner too. With several agents every run's messages are seen:
    ``groups`` are refused, and studies have no search. What costs nothing is to choose on public rows, with
    ``dpadmm plan`` or any search of scikit-learn.

    Parameters
    ----------
    estimator : DPADMMClassifier, DPADMMRegressor or DPADMMPoissonRegressor
        Its ``epsilon``, ``delta`` and ``random_state`` are not used; those of the search are.
    candidates : list of dicts
        Parameters to try, ``[{"C": 0.1}, {"C": 1, "max_iter": 30}]`` or a
        :class:`sklearn.model_selection.ParameterGrid`; ``{}`` is the estimator as it is.
    epsilon, delta : float
        Total budget of training, scores and choice.
    runs : int
        Mean of the Poisson number of runs, 1 to 100: more find a better candidate, with more noise in each.
    random_state : None, int or RandomState
        As in the estimators: None for exact noise, a number for an experiment that protects nobody.

    Attributes
    ----------
    best_estimator_, best_params_
        The model of the best run, and its candidate. Its ``privacy_`` is that of the search.
    best_score_ : float
        Noisy, on the training rows: the share of right predictions, or for numbers 1 less the mean squared error
        in half widths of ``y_bounds``, where no row counts more than 1.
    privacy_ : dict
        Total ε and δ, how they were added up, the expected number of runs, and ε of one run by itself. How many
        runs there were and the scores of the others are not released, and kept nowhere.

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

    predict = _of_the_best("predict")
    decision_function = _of_the_best("decision_function")
    predict_proba = _of_the_best("predict_proba")
    predict_log_proba = _of_the_best("predict_log_proba")
    classes_ = property(lambda self: self.best_estimator_.classes_)
    n_features_in_ = property(lambda self: self.best_estimator_.n_features_in_)

    def score(self, X: Any, y: Any) -> float:
        """Accuracy, or R², of the chosen model on these rows, without noise: for their owner."""
        check_is_fitted(self, "best_estimator_")
        return float(self.best_estimator_.score(X, y))

    def fit(self, X: Any, y: Any, groups: Any = None, public: Any = None) -> Self:
        """Search with rows X (dense or sparse) and labels y; ``public`` as in the estimators, no ``groups``."""
        check_parameters(self)
        candidates = self._candidates()
        several = {"groups": groups, "n_agents": self.estimator.n_agents}
        for name in (name for name, value in several.items() if value is not None):
            raise StudyError(
                f"{name}: a search holds only where the losing runs stay hidden, and messages between agents show "
                f"every run; fit without {name}, or choose parameters on public rows"
            )
        mu = run_mu(self.epsilon, self.delta, self.runs)
        noise_multiplier = 1.0 / (mu * math.sqrt(SCORE_SHARE))
        # A little less than the rest, since ε is rounded up
        share = float(exact_epsilon(mu * math.sqrt(1.0 - SCORE_SHARE) * (1.0 - 1e-9), self.delta))
        chance, draw = self._chance()
        leaks: dict[str, None] = {}
        for each in candidates:  # all of them: that a wrong one is refused is not left to chance
            run = self._run(each, share, chance)
            leaks |= dict.fromkeys(run._checked(X, y, None, public).leaks)
        Lattice(HALF, 1, len(np.asarray(y))).noise_scale(noise_multiplier)
        run._warn([*leaks])
        best: tuple[float, Any, Mapping[str, Any]] = -math.inf, None, {}
        for _ in range(draw_runs(self.runs, chance.randrange)):
            candidate = chance.choice(candidates)
            run = self._run(candidate, share, chance)
            run._checked(X, y, None, public).train()
            score = private_score(run, X, y, noise_multiplier, draw=draw)
            best = max(best, (score, run, candidate), key=itemgetter(0))
        self.best_score_, self.best_estimator_, self.best_params_ = best[0], best[1], dict(best[2])
        self._tell(math.hypot(mu_from_epsilon(share, self.delta), 1.0 / noise_multiplier), [*leaks])
        return self

    def _candidates(self) -> list[Mapping[str, Any]]:
        """The candidates, or a sentence about what is wrong with them or the estimator."""
        kind = type(self.estimator).__name__
        if not isinstance(self.estimator, PrivateLinearModel):
            raise StudyError(
                f"estimator must be a DPADMMClassifier or DPADMMRegressor, not a {kind}; "
                "a pipeline takes a PrivateSearch as its last step"
            )
        if self.estimator._accountants():
            raise StudyError(
                "a search cannot be charged to a BudgetAccountant, which adds up Gaussian noise alone: fit it outside "
                "of with blocks and without accountant=; its epsilon and delta are added to those of other fits"
            )
        found = list(self.candidates) if isinstance(self.candidates, Iterable) else []
        if not found or not all(isinstance(each, Mapping) for each in found):
            raise StudyError(
                "candidates must be a list of at least one dict of the estimator's parameters, such as "
                f"[{{'C': 0.1}}, {{'C': 1.0}}], not {self.candidates!r:.60}"
            )
        names = list(self.estimator.get_params(deep=False))
        for i, name in ((i, name) for i, each in enumerate(found, 1) for name in each):
            if name not in names:
                raise StudyError(f"candidate {i}: {kind} has no parameter {name!r}; {nearest(str(name), names)}")
            if name in SHARED:
                raise StudyError(
                    f"candidate {i} sets {name}, which all runs share; give it to the search or its estimator"
                )
        return found

    def _run(self, candidate: Mapping[str, Any], epsilon: float, chance: Random) -> Any:
        seed = None if self.random_state is None else chance.randrange(2**31)
        run = clone(self.estimator).set_params(**candidate)
        return run.set_params(epsilon=epsilon, delta=self.delta, random_state=seed)

    def _chance(self) -> tuple[Random, Draw | None]:
        """What draws the runs and their candidates, and the noise of scores (None: exact)."""
        if self.random_state is None:
            return SystemRandom(), None
        seeded = Random(int(check_random_state(self.random_state).randint(2**31)))
        return seeded, lambda scale, count: np.array([round(seeded.gauss(0.0, scale)) for _ in range(count)])

    def _tell(self, mu: float, leaks: Sequence[str]) -> None:
        """The price of all of it, in the model too, which knows that of its own run alone."""
        best = self.best_estimator_
        self.privacy_ = told(
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
    """½ and the mean of :func:`row_scores`, with exact noise.

    A row's own number alone depends on it, and lies in [−½, ½]: replacing the row moves the sum by at most 1.
    """
    scores = row_scores(model, X, np.asarray(y).ravel())
    grid = Lattice(HALF, 1, len(scores))
    return float(HALF + as_mean(release_sum(scores.sum(keepdims=True), grid, noise_multiplier, draw=draw), grid)[0])


def row_scores(model: Any, X: Any, y: NDArray[Any]) -> Floats:
    """``½ − min(1, e)²`` of every row: e is 0 or 1 for classes, the error in half widths of ``y_bounds`` else."""
    found = model.predict(X)
    if isinstance(model, DPADMMClassifier):
        return np.where(found == y, HALF, -HALF)
    with np.errstate(over="ignore"):
        errors = np.minimum(1.0, np.abs(found - y.astype(float)) / model._label_scale[1])
    return np.asarray(HALF - errors**2)
