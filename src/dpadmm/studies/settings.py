"""Settings of a run: ``Training`` for studies, and its subclass ``Settings`` for simulations.

Settings have the same names in Python, in files and as command-line options. Losses, regularizers and methods own their
parameters: ``loss="huber", loss_delta=0.5`` means ``loss=Huber(delta=0.5)``, and ``rho=0.2`` is passed to the method.
All settings are public. None of them is inferred from private rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self

import numpy as np
from msgspec import Meta

from dpadmm.baselines import ALL_METHODS
from dpadmm.data.schema import Label
from dpadmm.engine.loop import AverageName
from dpadmm.errors import StudyError
from dpadmm.losses import LOSSES, Logistic, Loss, Poisson
from dpadmm.losses.base import check_loss
from dpadmm.matrices.arrays import Integers
from dpadmm.methods import Auto, DpAdmm, Method, MethodChoice, Newton, PrivacyBudget
from dpadmm.parameters.fields import (
    Count,
    Delta,
    Honest,
    NotNegative,
    Parameter,
    Positive,
    Probability,
    Rounds,
    check_names,
    chosen,
    parameters,
)
from dpadmm.queries.problem import Problem, Sizes
from dpadmm.regularizers import L2, REGULARIZERS, Regularizer

BUDGETS = ("epsilon", "round_epsilon", "noise_multiplier")
"""Alternative ways to set the budget. A private method takes exactly one."""

PRIVACY = (*BUDGETS, "delta", "calibration", "aggregation", "min_honest_sites")
"""Keys of ``[privacy]`` in a study file."""


@dataclass(frozen=True)
class Registry:
    """Classes by name. Each of their parameters is a setting with the name ``prefix + parameter``."""

    classes: Mapping[str, Any]
    prefix: str
    help: str
    check: Callable[[Any], None]
    """Raises StudyError if an object of an unregistered class lacks the required interface."""


def _check_kind(kind: type, what: str) -> Callable[[Any], None]:
    def check(instance: Any) -> None:
        if not isinstance(instance, kind):
            raise StudyError(
                f"{what} {type(instance).__name__} is not a {kind.__name__}; see CONTRIBUTING.md for the interface"
            )

    return check


REGISTRIES: Mapping[str, Registry] = {
    "method": Registry(ALL_METHODS, "", "Training method.", _check_kind(MethodChoice, "method")),
    "loss": Registry(LOSSES, "loss_", "Loss.", check_loss),
    "regularizer": Registry(REGULARIZERS, "regularizer_", "Regularizer.", _check_kind(Regularizer, "regularizer")),
}


@dataclass(frozen=True, init=False)
class Training:
    """Model, method and privacy budget of a study.

    Examples
    --------
    >>> training = Training(loss="huber", loss_delta=0.5, method="dp_admm", rho=0.2, epsilon=1.0)
    >>> training.loss, training.method.rho, training.delta
    (Huber(delta=0.5), 0.2, 1e-05)
    """

    loss: Loss = field(default=Logistic())
    regularizer: Regularizer = field(default=L2())
    alpha: Annotated[
        NotNegative | None, "λ/n: weight of the regularizer relative to the mean loss (default: 1e-4; auto: 1e-6)."
    ] = None
    intercept: Annotated[bool, "Add a constant column of 0.28. Rows are scaled by 0.96 to keep their norm ≤ 1."] = False
    epsilon: Annotated[
        Positive | tuple[Positive, ...] | None,
        "Total ε of the run, exact; one number, or one per agent (1,2,0.5).",
    ] = None
    round_epsilon: Annotated[
        Positive | tuple[Positive, ...] | None,
        "ε per round, as in the paper; one number, or one per agent. auto redistributes the total over the rounds.",
    ] = None
    noise_multiplier: Annotated[
        NotNegative | tuple[NotNegative, ...] | None,
        "Noise multiplier z, in units of the sensitivity; 0 = no privacy.",
    ] = None
    delta: Annotated[Delta, "δ of the total (and of a round in the paper's calibration)."] = 1e-5
    calibration: Annotated[
        Literal["paper", "exact"], "Noise for round_epsilon: √(2 ln(1.25/δ))/ε as in the paper, or exact."
    ] = "paper"
    aggregation: Annotated[
        Literal["plain", "secure"],
        "plain: each answer carries its own noise. secure: only the sum is visible and carries the noise.",
    ] = "plain"
    min_honest_sites: Annotated[
        Honest | None,
        "With secure aggregation: minimum number of honest agents in every round. A smaller number means more noise.",
    ] = None
    method: MethodChoice = field(default=Auto())
    n_rounds: Annotated[
        Rounds | None,
        "Number of rounds t (default: 100; auto: chosen from the number of rows and the budget).",
    ] = None
    average: Annotated[
        AverageName,
        "Model: the consensus of the last round, or its mean over all rounds or over the second half.",
    ] = "last"

    def __init__(self, **given: Any) -> None:
        known = flat_parameters(type(self))
        check_names(given, known, type(self).__name__.lower())
        for name in given.keys() - {parameter.name for parameter in parameters(type(self))}:
            known[name].checked(given[name])  # checked even if the chosen method does not have it
        for parameter in parameters(type(self)):
            value = given.get(parameter.name, parameter.default)
            if parameter.name in REGISTRIES:
                object.__setattr__(self, parameter.name, _build_choice(parameter.name, value, given))
            else:
                object.__setattr__(self, parameter.name, parameter.checked(value))
        if self.alpha is None:
            object.__setattr__(self, "alpha", self.method.concrete().default_alpha)
        if not (isinstance(self.method, Auto) and self.method.is_open(self.epsilon, self.n_rounds)):
            object.__setattr__(self, "n_rounds", self.n_rounds or self.method.concrete().default_rounds)
        self._check_budget()
        self._check_aggregation()
        if given.get("inference") and not self.has_inference:
            raise StudyError(f"{self.method.name} does not support inference; use auto, or remove inference")
        if self.has_inference and self.average != "last":
            raise StudyError('inference requires average = "last"')

    def _check_aggregation(self) -> None:
        if self.aggregation == "plain":
            if self.min_honest_sites is not None:
                raise StudyError('min_honest_sites requires aggregation = "secure"; remove it')
            return
        if self.min_honest_sites is None:
            raise StudyError(
                "secure aggregation requires min_honest_sites, the number of agents in a round that do not collude "
                "with the "
                "server; ε holds only if there are at least that number"
            )
        if not self.method.sums_only:
            supported = ", ".join(name for name, method in ALL_METHODS.items() if method.sums_only)
            raise StudyError(
                f"{self.method.name} does not support secure aggregation, because it uses the answer of each agent; "
                f'use {supported}, or aggregation = "plain"'
            )
        if self.noise_multiplier == 0.0 or any(isinstance(getattr(self, name), tuple) for name in BUDGETS):
            raise StudyError("secure aggregation requires one budget above 0 for all agents")

    def _check_budget(self) -> None:
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if not self.method.private and given:
            raise StudyError(f"the {self.method.name} method is not private; remove {given[0]}")
        if self.method.private and len(given) != 1:
            raise StudyError(
                "set exactly one of epsilon (total), round_epsilon and noise_multiplier (0 = no privacy); "
                f"{' and '.join(given) if given else 'none'} given"
            )

    @property
    def has_inference(self) -> bool:
        """Whether the method estimates intervals."""
        return isinstance(self.method.concrete(), Newton)

    @property
    def is_open(self) -> bool:
        """Whether the number of rounds depends on the sizes of the agents; see :meth:`resolved`."""
        return self.n_rounds is None

    def concrete(self) -> Self:
        """Return a copy with the method that ``auto`` selects, unless the number of rounds is open."""
        if self.is_open or not isinstance(self.method, Auto):
            return self
        return self.changed(method=self.method.concrete(), n_rounds=self.n_rounds)

    @property
    def planned_rounds(self) -> int:
        """Number of rounds: ``n_rounds``, or 1 for methods of one round."""
        return 1 if self.method.one_round else self.n_rounds or self.method.concrete().default_rounds

    def resolved(self, problem: Problem, sizes: Sizes) -> Self:
        """Return a copy with a concrete method and number of rounds, chosen from public sizes and the budget.

        Planning, simulation, training and estimators all call this function, so the same sizes give the same rounds.
        """
        if not (self.is_open and isinstance(self.method, Auto)):
            return self.concrete()
        budget = self.budget(np.full(sizes.n_agents, self.planned_rounds))
        return self.changed(n_rounds=self.method.n_rounds(problem, sizes, budget)).concrete()

    def check_intercept(self) -> None:
        """Raise StudyError if a count model has no intercept.

        Methods start at the overall rate, which is the weight of the constant column.
        """
        if self.loss.task == "count" and not self.intercept:
            raise StudyError(f"the {self.loss.name} loss requires intercept = true")

    def problem(self, n_classes: int, label: Label | None = None) -> Problem:
        """Return the optimization problem.

        ``n_classes`` is the number of declared classes, 0 for regression. Counts require the study's label.
        """
        loss: Any = self.loss
        if isinstance(loss, Poisson) and label is not None:
            loss = replace(loss, unit=1.0 / label.largest, cuts=label.cuts)
        if loss.task == "multiclass":
            loss = replace(loss, n_outputs=n_classes)
        weighted = label is not None and label.weighted
        return Problem(loss, self.regularizer, float(self.alpha or 0.0), weighted, self.intercept)

    def build(self, problem: Problem, sizes: Sizes, planned: Integers) -> Method[Any]:
        """Return the method with noise calibrated to the ``planned`` (n,) rounds of each agent."""
        return self.method.concrete().build(problem, sizes, self.budget(planned))

    def budget(self, planned: Integers) -> PrivacyBudget:
        """Return the privacy budget of agents with ``planned`` (n,) rounds each."""
        keys = (*BUDGETS, "delta", "calibration", "min_honest_sites")
        given = {name: getattr(self, name) for name in keys}
        return PrivacyBudget(planned=planned, n_rounds=self.planned_rounds, **given)

    def changed(self, **given: Any) -> Self:
        """Return a copy with some settings changed, by their flat names."""
        check_names(given, flat_parameters(type(self)), type(self).__name__.lower())
        own = {parameter.name: getattr(self, parameter.name) for parameter in parameters(type(self))}
        if "method" in given:  # another method has its own defaults
            method = self.method.concrete()
            defaults = {"n_rounds": method.default_rounds, "alpha": method.default_alpha}
            own |= {name: None for name, value in defaults.items() if own[name] == value}
        for what, registry in REGISTRIES.items():
            choice = chosen(what, registry.classes, given.get(what, own[what]))
            flat_names = _flat_names(registry, choice)
            changes = {name: given.pop(flat) for name, flat in flat_names.items() if flat in given}
            given[what] = replace(choice, **changes) if changes else choice
        return type(self)(**{**own, **given})

    def flat(self) -> dict[str, Any]:
        """Return all settings by flat name; method, loss and regularizer as their names."""
        settings: dict[str, Any] = {}
        for parameter in parameters(type(self)):
            value = getattr(self, parameter.name)
            if parameter.name not in REGISTRIES:
                settings[parameter.name] = value
                continue
            settings[parameter.name] = value.name
            flat_names = _flat_names(REGISTRIES[parameter.name], value)
            settings |= {flat: getattr(value, name) for name, flat in flat_names.items()}
        return settings


@dataclass(frozen=True, init=False)
class Settings(Training):
    """Settings of a simulation: :class:`Training`, plus partition, participation and metrics."""

    method: Annotated[MethodChoice, "Training method. Default: dp_admm, the method of the paper; in a study: auto."] = (
        field(default=DpAdmm())
    )
    n_agents: Annotated[Count, "Number of agents; ignored with partition = groups."] = 10
    partition: Annotated[
        Literal["equal", "unequal", "label_skewed", "groups"],
        "How rows are assigned to agents: equal random shares, log-normal shares, Dirichlet over labels, by groups.",
    ] = "equal"
    partition_spread: Annotated[
        Positive, "Standard deviation of the logarithm of unequal shares, or concentration of label_skewed."
    ] = 0.5
    clip_rows: Annotated[bool, "Clip rows to unit L2 norm instead of raising an error."] = False
    participation: Annotated[Probability, "Probability that an agent participates in a round."] = 1.0
    aborted_rounds: Annotated[
        Annotated[float, Meta(ge=0, lt=1)],
        "With secure aggregation: fraction of rounds lost to a dropout: the budget is spent, the update discarded.",
    ] = 0.0
    stop_tolerance: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None, "Stop when the relative change of the consensus is below this value."
    ] = None
    test_rows: Annotated[NotNegative, "Rows held out for testing: a count, or a fraction below 1; 0 = none."] = 0.2
    metrics_every: Annotated[Annotated[int, Meta(ge=0)], "Evaluate every N rounds (0 = never)."] = 1
    seed: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        "Seed of the split, the participation and the noise (default: random).",
    ] = None

    def _check_aggregation(self) -> None:
        super()._check_aggregation()
        if self.aborted_rounds and self.aggregation == "plain":
            raise StudyError('aborted_rounds requires aggregation = "secure"; remove it')


def settings_from(table: Mapping[str, Any], where: str = "settings") -> Settings:
    """Build settings from a mapping such as a parsed TOML file. Unknown names raise StudyError.

    Examples
    --------
    >>> settings_from({"epsilon": 1.0, "n_agents": 5}).n_agents
    5
    """
    check_names(table, flat_parameters(Settings), where)
    return Settings(**table)


_FLAT: dict[type, dict[str, Parameter]] = {}


def flat_parameters(settings: type[Training]) -> dict[str, Parameter]:
    """Return all parameters by flat name: own fields, and those of every registered class."""
    if settings not in _FLAT:
        _FLAT[settings] = _collect_parameters(settings)
    return _FLAT[settings]


def _collect_parameters(settings: type[Training]) -> dict[str, Parameter]:
    collected: dict[str, Parameter] = {}
    for parameter in parameters(settings):
        if parameter.name not in REGISTRIES:
            collected[parameter.name] = parameter
            continue
        registry = REGISTRIES[parameter.name]
        names = tuple(registry.classes)
        help = f"{parameter.help or registry.help} One of {', '.join(names)}."
        collected[parameter.name] = Parameter(parameter.name, Literal[names], parameter.default.name, help)
        owners: dict[str, dict[str, list[str]]] = {}  # flat name -> help text -> classes
        for name, own in ((cls.name, own) for cls in registry.classes.values() for own in parameters(cls)):
            flat = f"{registry.prefix}{own.name}"
            meanings = owners.setdefault(flat, {})
            meanings.setdefault(own.help, []).append(name)
            help = " ".join(f"{text} ({', '.join(names)})" for text, names in meanings.items())
            collected[flat] = replace(own, name=flat, help=help)
    return collected


def _flat_names(registry: Registry, choice: object) -> dict[str, str]:
    """Return the flat name of each parameter of a loss, regularizer or method."""
    return {parameter.name: f"{registry.prefix}{parameter.name}" for parameter in parameters(type(choice))}


def _build_choice(what: str, value: object, given: Mapping[str, Any]) -> Any:
    """Return the method, loss or regularizer, with its parameters from ``given``."""
    registry = REGISTRIES[what]
    choice = chosen(what, registry.classes, value)
    if type(choice) not in registry.classes.values():
        registry.check(choice)
    changes = {name: given[flat] for name, flat in _flat_names(registry, choice).items() if flat in given}
    if changes and not isinstance(given.get(what, ""), str):
        raise StudyError(f"{what} is an object; pass {next(iter(changes))} to its constructor")
    return replace(choice, **changes) if changes else choice
