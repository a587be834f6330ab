"""Settings of a run: ``Training`` for studies, and its subclass ``Settings`` for simulations.

Settings have the same names in Python, in files and on the command line. Losses, regularizers and methods own their
parameters: ``loss="huber"``, ``loss={"name": "huber", "delta": 0.5}`` and ``loss=Huber(delta=0.5)`` are valid. All
settings are public. None of them is inferred from private rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

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
    convert_arguments,
    nearest,
    parameters,
    problems,
    raise_problems,
)
from dpadmm.parameters.suggestions import near_name
from dpadmm.queries.problem import Problem, Sizes
from dpadmm.regularizers import L2, REGULARIZERS, Regularizer

BUDGETS = ("epsilon", "round_epsilon", "noise_multiplier")
"""Alternative ways to set the budget. A private method takes exactly one."""

PRIVACY = (*BUDGETS, "delta", "calibration", "aggregation", "min_honest_sites")
"""Keys of ``[privacy]`` in a study file."""

CHOICES: Mapping[str, Mapping[str, Any]] = {"method": ALL_METHODS, "loss": LOSSES, "regularizer": REGULARIZERS}
"""Settings whose values are objects with parameters, and the classes of these objects by name."""


def choice_problems(what: str, entries: Mapping[str, Any]) -> list[str]:
    """Return a message for each problem of a mapping with the ``name`` of a choice and its parameters."""
    classes, name = CHOICES[what], entries.get("name")
    if not isinstance(name, str) or name not in classes:
        message = f"{name!r:.60} does not exist" if "name" in entries else "name is missing"
        return [f"{what}: {message}; {nearest(str(name), classes)}"]
    known = {parameter.name: parameter for parameter in parameters(classes[name])}
    messages = []
    for key in entries.keys() - known.keys() - {"name"}:
        owners = [other for other, cls in classes.items() if key in {own.name for own in parameters(cls)}]
        if owners:
            messages.append(f"{what}: {key} is a parameter of {', '.join(owners)}, not of {name}; remove it")
        else:
            near = near_name(key, known)
            hint = f"; did you mean {near!r}? Parameters:" if near else "; parameters:"
            listed = f"{hint} {', '.join(known)}" if known else ", and no parameters at all"
            messages.append(f"{what}: {name} has no parameter {key!r:.60}{listed}")
    return messages + problems({key: entries[key] for key in known if key in entries}, known.values(), what)


def build_choice(what: str, given: object, current: Any) -> Any:
    """Return the loss, regularizer or method for a name, a mapping or an object.

    A mapping without ``name`` changes parameters of ``current``.
    """
    if isinstance(given, str):
        given = {"name": given}
    if isinstance(given, Mapping):
        raise_problems(choice_problems(what, {"name": current.name, **given}))
        own = {str(key): value for key, value in given.items() if key != "name"}
        return CHOICES[what][given["name"]](**own) if "name" in given else replace(current, **own)
    if isinstance(given, type):
        raise StudyError(f"{what} must be a name or an object, such as {given.__name__}(), and not a class")
    if type(given) not in CHOICES[what].values():
        _check_interface(what, given)
    return given


def _check_interface(what: str, given: Any) -> None:
    """Raise StudyError if an object of an unregistered class lacks the required interface."""
    kinds: Mapping[str, type] = {"method": MethodChoice, "regularizer": Regularizer}
    if not isinstance(getattr(given, "name", None), str):
        raise StudyError(f"{what} must be a name, a mapping or an object, not {given!r:.60}")
    if what == "loss":
        check_loss(given)
    elif not isinstance(given, kinds[what]):
        kind = kinds[what].__name__
        raise StudyError(f"{what} {type(given).__name__} is not a {kind}; see CONTRIBUTING.md for the interface")


def nested_parameters(settings: type[Training]) -> Mapping[str, Parameter]:
    """Return all parameters by name: own settings, and ``loss.delta`` for the parameters of choices."""
    return _nested_parameters(cast(Any, settings))


@cache
def _nested_parameters(settings: Any) -> Mapping[str, Parameter]:
    named: dict[str, Parameter] = {}
    for parameter in parameters(settings):
        named[parameter.name] = parameter
        for cls in CHOICES.get(parameter.name, {}).values():
            for own in parameters(cls):
                named.setdefault(f"{parameter.name}.{own.name}", own)
    return named


def name_problems(given: Iterable[str], settings: type[Training], where: str) -> list[str]:
    """Return a message with a suggestion for each name that is not a setting."""
    own = [parameter.name for parameter in parameters(settings)]
    nested = nested_parameters(settings)
    by_last_part = {name.rpartition(".")[2]: name for name in nested}
    messages = []
    for name in given:
        if name not in own:
            near = near_name(name, own) or near_name(name, nested)
            near = near or by_last_part.get(near_name(name, by_last_part) or "")
            hint = f"did you mean {near!r}?" if near else f"known are {', '.join(sorted(own))}"
            messages.append(f"{where}: unknown setting {name!r:.60}; {hint}")
    return messages


def nest(given: Mapping[str, Any]) -> dict[str, Any]:
    """Nest dotted names, as in ``--set loss.delta=0.5``.

    Examples
    --------
    >>> nest({"loss": "huber", "loss.delta": 0.5, "epsilon": 1.0})
    {'loss': {'name': 'huber', 'delta': 0.5}, 'epsilon': 1.0}
    """
    nested: dict[str, Any] = {}
    for name, value in given.items():
        what, _, key = name.partition(".")
        if what not in CHOICES or (not key and not isinstance(value, str | Mapping)):
            nested[name] = value
            continue
        entries = value if isinstance(value, Mapping) else {key or "name": value}
        nested[what] = {**nested.get(what, {}), **entries}
    return nested


def _normalize(cls: type[Training], given: dict[str, Any]) -> dict[str, Any]:
    """Check each setting, build the choices, and fill in the defaults of the method."""
    values: dict[str, Any] = {}
    messages = name_problems(given, cls, cls.__name__.lower())
    for parameter in parameters(cls):
        name, default = parameter.name, parameter.default
        value = given.get(name, default)
        try:
            values[name] = build_choice(name, value, default) if name in CHOICES else parameter.checked(value)
        except StudyError as error:
            messages.append(str(error))
    raise_problems(messages)
    method = values["method"]
    if values["alpha"] is None:
        values["alpha"] = method.concrete().default_alpha
    if not (isinstance(method, Auto) and method.is_open(values["epsilon"], values["n_rounds"])):
        values["n_rounds"] = values["n_rounds"] or method.concrete().default_rounds
    return values


@convert_arguments(_normalize)
@dataclass(frozen=True, kw_only=True)
class Training:
    """Model, method and privacy budget of a study.

    Examples
    --------
    >>> training = Training(loss={"name": "huber", "delta": 0.5}, method="dp_admm", epsilon=1.0)
    >>> training.loss, training.method.rho, training.delta
    (Huber(delta=0.5), 0.1, 1e-05)
    """

    if TYPE_CHECKING:  # the constructor also accepts names and mappings

        def __init__(self, **settings: Any) -> None: ...

    loss: Annotated[Loss, "Loss: a name, or a table with its name and parameters."] = field(default=Logistic())
    regularizer: Annotated[Regularizer, "Regularizer: a name, or a table with its name and parameters."] = field(
        default=L2()
    )
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
    method: Annotated[MethodChoice, "Training method: a name, or a table with its name and parameters."] = field(
        default=Auto()
    )
    n_rounds: Annotated[
        Rounds | None,
        "Number of rounds t (default: 100; auto: chosen from the number of rows and the budget).",
    ] = None
    average: Annotated[
        AverageName,
        "Model: the consensus of the last round, or its mean over all rounds or over the second half.",
    ] = "last"

    def __post_init__(self) -> None:
        raise_problems(list(self._problems()))

    def _problems(self) -> Iterator[str]:
        """Yield a message for each conflict between settings."""
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if not self.method.private and given:
            yield f"the {self.method.name} method is not private; remove {given[0]}"
        if self.method.private and len(given) != 1:
            yield (
                "set exactly one of epsilon (total), round_epsilon and noise_multiplier (0 = no privacy); "
                f"{' and '.join(given) if given else 'none'} given"
            )
        if self.aggregation == "secure":
            yield from self._secure_aggregation_problems()
        elif self.min_honest_sites is not None:
            yield 'min_honest_sites requires aggregation = "secure"; remove it'
        if self.has_inference and self.average != "last":
            yield 'inference requires average = "last"'

    def _secure_aggregation_problems(self) -> Iterator[str]:
        if self.min_honest_sites is None:
            yield (
                "secure aggregation requires min_honest_sites, the number of agents in a round that do not collude "
                "with the server; ε holds only if there are at least that number"
            )
        if not self.method.sums_only:
            supported = ", ".join(name for name, method in ALL_METHODS.items() if method.sums_only)
            yield (
                f"{self.method.name} does not support secure aggregation, because it uses the answer of each agent; "
                f'use {supported}, or aggregation = "plain"'
            )
        if self.noise_multiplier == 0.0 or any(isinstance(getattr(self, name), tuple) for name in BUDGETS):
            yield "secure aggregation requires one budget above 0 for all agents"

    @property
    def has_inference(self) -> bool:
        """Whether the method estimates intervals."""
        return isinstance(self.method.concrete(), Newton)

    @property
    def is_open(self) -> bool:
        """Whether the number of rounds depends on the sizes of the agents; see :meth:`resolved`."""
        return self.n_rounds is None

    @property
    def planned_rounds(self) -> int:
        """Number of rounds: ``n_rounds``, or 1 for methods of one round."""
        return 1 if self.method.one_round else self.n_rounds or self.method.concrete().default_rounds

    def concrete(self) -> Self:
        """Return a copy with the method that ``auto`` selects, unless the number of rounds is open."""
        if self.is_open or not isinstance(self.method, Auto):
            return self
        return self.with_changes(method=self.method.concrete(), n_rounds=self.n_rounds)

    def resolved(self, problem: Problem, sizes: Sizes) -> Self:
        """Return a copy with a concrete method and number of rounds, chosen from public sizes and the budget.

        Planning, simulation, training and estimators all call this function, so the same sizes give the same rounds.
        """
        if not (self.is_open and isinstance(self.method, Auto)):
            return self.concrete()
        budget = self.budget(np.full(sizes.n_agents, self.planned_rounds))
        return self.with_changes(n_rounds=self.method.n_rounds(problem, sizes, budget)).concrete()

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

    def with_changes(self, **changes: Any) -> Self:
        """Return a copy with some settings changed. ``method={"rho": 0.2}`` changes a parameter of the same method."""
        settings = {own.name: getattr(self, own.name) for own in fields(self)}
        if "method" in changes:  # another method has its own defaults
            method = self.method.concrete()
            defaults = {"n_rounds": method.default_rounds, "alpha": method.default_alpha}
            settings |= {name: None for name, value in defaults.items() if settings[name] == value}
        for what in CHOICES.keys() & changes.keys():
            changes[what] = build_choice(what, changes[what], settings[what])
        return type(self)(**settings | changes)

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as plain values, with a name and parameters for each choice."""
        return {
            parameter.name: choice_to_dict(getattr(self, parameter.name))
            if parameter.name in CHOICES
            else getattr(self, parameter.name)
            for parameter in parameters(type(self))
        }


def choice_to_dict(choice: Any) -> dict[str, Any]:
    """Return the name and the parameters of a loss, regularizer or method."""
    return {"name": choice.name, **{own.name: getattr(choice, own.name) for own in parameters(type(choice))}}


@convert_arguments(_normalize)
@dataclass(frozen=True, kw_only=True)
class Settings(Training):
    """Settings of a simulation: :class:`Training`, plus partition, participation and metrics."""

    if TYPE_CHECKING:

        def __init__(self, **settings: Any) -> None: ...

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

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.aborted_rounds and self.aggregation == "plain":
            yield 'aborted_rounds requires aggregation = "secure"; remove it'


def settings_from(table: Mapping[str, Any], where: str = "settings") -> Settings:
    """Build settings from a mapping such as a parsed TOML file. Unknown names raise StudyError.

    Examples
    --------
    >>> settings_from({"epsilon": 1.0, "n_agents": 5}).n_agents
    5
    """
    raise_problems(name_problems(table, Settings, where))
    return Settings(**table)
