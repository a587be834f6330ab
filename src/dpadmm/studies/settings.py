"""What a run can be told: ``Training``, which a study fixes, and ``Settings``, with what simulations need too.

Names are the same in Python, in files and as options. Losses, regularizers and methods own their parameters:
``loss="huber", loss_delta=0.5`` is ``loss=Huber(delta=0.5)``, and ``rho=0.2`` goes to a method that has one.
Settings are public: none of them is read off the rows.
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
from dpadmm.methods import Auto, DpAdmm, Method, MethodSettings
from dpadmm.methods.setup import Setup
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
"""Ways to say how much may be spent; a private method takes exactly one."""

PRIVACY = (*BUDGETS, "delta", "calibration", "trust", "honest")
"""What a study's file has in ``[privacy]``."""


@dataclass(frozen=True)
class Registry:
    """Classes by name; a parameter of one of them is a setting whose name begins with ``prefix``."""

    classes: Mapping[str, Any]
    prefix: str
    help: str
    check: Callable[[Any], None]
    """Refuses an object of another class that does not have what it takes."""


def _check_kind(kind: type, what: str) -> Callable[[Any], None]:
    def check(made: Any) -> None:
        if not isinstance(made, kind):
            raise StudyError(
                f"{what} {type(made).__name__} is not a {kind.__name__}; see CONTRIBUTING.md for what it needs"
            )

    return check


REGISTRIES: Mapping[str, Registry] = {
    "method": Registry(ALL_METHODS, "", "Training method.", _check_kind(MethodSettings, "method")),
    "loss": Registry(LOSSES, "loss_", "Loss.", check_loss),
    "regularizer": Registry(REGULARIZERS, "regularizer_", "Regularizer.", _check_kind(Regularizer, "regularizer")),
}


@dataclass(frozen=True, init=False)
class Training:
    """Model, method and budget: the part of a study that is about training.

    Examples
    --------
    >>> training = Training(loss="huber", loss_delta=0.5, method="dp_admm", rho=0.2, epsilon=1.0)
    >>> training.loss, training.method.rho, training.delta
    (Huber(delta=0.5), 0.2, 1e-05)
    """

    loss: Loss = field(default=Logistic())
    regularizer: Regularizer = field(default=L2())
    reg_share: Annotated[
        NotNegative | None, "λ/n: weight of the regularizer beside the mean loss; if not given, 1e-4 (auto: 1e-6)."
    ] = None
    intercept: Annotated[bool, "Add a constant column (0.28, and rows are scaled by 0.96 to keep norm ≤ 1)."] = False
    epsilon: Annotated[
        Positive | tuple[Positive, ...] | None,
        "TOTAL ε of the run, exact; one number or one per agent (1,2,0.5).",
    ] = None
    round_epsilon: Annotated[
        Positive | tuple[Positive, ...] | None,
        "ε per ROUND, as in the paper; one number or one per agent (auto deals the total of all rounds anew).",
    ] = None
    noise_multiplier: Annotated[
        NotNegative | tuple[NotNegative, ...] | None, "Noise in units of the sensitivity, z; 0: no privacy."
    ] = None
    delta: Annotated[Delta, "δ of the total (and of a round in the paper's calibration)."] = 1e-5
    calibration: Annotated[
        Literal["paper", "exact"], "How round_epsilon becomes noise: √(2 ln(1.25/δ))/ε, or the exact curve."
    ] = "paper"
    trust: Annotated[
        Literal["local", "secure_aggregation"],
        "local: each agent adds all the noise that protects it. secure_aggregation: a share, and only the sum is seen.",
    ] = "local"
    honest: Annotated[
        Honest | None,
        "With secure_aggregation: how many agents of every round are honest, at least; fewer mean more noise.",
    ] = None
    method: MethodSettings = field(default=Auto())
    n_rounds: Annotated[
        Rounds | None,
        "Rounds, t; if not given, 100, or what suits rows and budget (auto).",
    ] = None
    average: Annotated[
        AverageName,
        "The model is the consensus of the last round, or its mean over all rounds or the second half.",
    ] = "last"

    def __init__(self, **given: Any) -> None:
        known = flat_parameters(type(self))
        check_names(given, known, type(self).__name__.lower())
        for name in given.keys() - {each.name for each in parameters(type(self))}:
            known[name].checked(given[name])  # also where nothing that was chosen has it
        for each in parameters(type(self)):
            value = given.get(each.name, each.default)
            if each.name in REGISTRIES:
                object.__setattr__(self, each.name, _chosen(each.name, value, given))
            else:
                object.__setattr__(self, each.name, each.checked(value))
        if self.reg_share is None:
            object.__setattr__(self, "reg_share", self.method.usual_reg_share)
        if self.n_rounds is None and (not self.method.rounds_by_size or self.epsilon is None):
            object.__setattr__(self, "n_rounds", self.method.usual_rounds)
        self._check_budget()
        self._check_trust()
        if given.get("inference") and not hasattr(self.method, "inference"):
            raise StudyError(f"inference belongs to auto, and {self.method.name} gives no intervals; leave it out")
        if getattr(self.method, "inference", False) and self.average != "last":
            raise StudyError('intervals are around the model of the last round: with inference, average is "last"')

    def _check_trust(self) -> None:
        if self.trust == "local":
            if self.honest is not None:
                raise StudyError('honest belongs to trust = "secure_aggregation"; leave it out')
            return
        if self.honest is None:
            raise StudyError(
                "secure_aggregation needs honest: how many agents of a round can be relied on not to work with the "
                "aggregator; the guarantee holds if there are so many"
            )
        if not self.method.sums_only:
            able = ", ".join(name for name, each in ALL_METHODS.items() if each.sums_only)
            raise StudyError(
                f"{self.method.name} needs the answer of every agent by itself, and with secure_aggregation only their "
                f'sum is seen; choose {able}, or trust = "local"'
            )
        if self.noise_multiplier == 0.0 or any(isinstance(getattr(self, name), tuple) for name in BUDGETS):
            raise StudyError("with secure_aggregation all agents have one budget, and noise; give one number above 0")

    def _check_budget(self) -> None:
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if not self.method.private and given:
            raise StudyError(f"the {self.method.name} method is not private, so it takes no {given[0]}; leave it out")
        if self.method.private and len(given) != 1:
            said = f"{' and '.join(given)} were given" if given else "none was given"
            raise StudyError(
                f"give exactly one of epsilon (total), round_epsilon, noise_multiplier; {said} "
                "(noise_multiplier = 0 means no privacy)"
            )

    @property
    def planned_rounds(self) -> int:
        """Rounds of this method: ``n_rounds``, or 1 where every agent speaks once."""
        return 1 if self.method.one_round else self.n_rounds or self.method.usual_rounds

    def with_rounds(self, problem: Problem, sizes: Sizes) -> Self:
        """The same with the rounds that suit public sizes and the budget, where nobody said how many."""
        if self.n_rounds is not None:
            return self
        planned = np.full(sizes.n_agents, self.planned_rounds)
        return self.changed(n_rounds=self.method.best_rounds(self._setup(problem, sizes, planned, 0)))

    def check_intercept(self) -> None:
        """Of counts: methods start at the rate of all rows, which is a weight of the constant column."""
        if self.loss.task == "count" and not self.intercept:
            raise StudyError(f"the loss {self.loss.name} needs intercept = true: rates have a level of their own")

    def problem(self, n_classes: int, label: Label | None = None) -> Problem:
        """What is minimised; ``n_classes`` counts the declared classes (0: regression). Counts need a study's label."""
        loss: Any = self.loss
        if isinstance(loss, Poisson) and label is not None:
            loss = replace(loss, unit=1.0 / label.largest, cuts=label.cuts)
        if loss.task == "multiclass":
            loss = replace(loss, n_outputs=n_classes)
        weighted = label is not None and label.weighted
        return Problem(loss, self.regularizer, float(self.reg_share or 0.0), weighted, self.intercept)

    def rounds(self, problem: Problem, sizes: Sizes, planned: Integers, *, seed: int = 0) -> Method[Any]:
        """The method with noise for ``planned`` (n,) rounds of every agent."""
        return self.method.rounds(self._setup(problem, sizes, planned, seed))

    def _setup(self, problem: Problem, sizes: Sizes, planned: Integers, seed: int) -> Setup:
        budget = {name: getattr(self, name) for name in PRIVACY}
        return Setup(problem=problem, sizes=sizes, planned=planned, n_rounds=self.planned_rounds, seed=seed, **budget)

    def changed(self, **given: Any) -> Self:
        """The same with some settings changed, by the names under which they can be given."""
        check_names(given, flat_parameters(type(self)), type(self).__name__.lower())
        own = {each.name: getattr(self, each.name) for each in parameters(type(self))}
        if "method" in given:  # another method has its own usual values
            usual = {"n_rounds": self.method.usual_rounds, "reg_share": self.method.usual_reg_share}
            own |= {name: None for name, value in usual.items() if own[name] == value}
        for what, registry in REGISTRIES.items():
            made = chosen(what, registry.classes, given.get(what, own[what]))
            beside = {each.name: f"{registry.prefix}{each.name}" for each in parameters(type(made))}
            changes = {name: given.pop(flat) for name, flat in beside.items() if flat in given}
            given[what] = replace(made, **changes) if changes else made
        return type(self)(**{**own, **given})

    def flat(self) -> dict[str, Any]:
        """Every setting by the name under which it can be given; what is chosen by name, by its name."""
        out: dict[str, Any] = {}
        for each in parameters(type(self)):
            value = getattr(self, each.name)
            if each.name not in REGISTRIES:
                out[each.name] = value
                continue
            prefix, out[each.name] = REGISTRIES[each.name].prefix, value.name
            out |= {f"{prefix}{own.name}": getattr(value, own.name) for own in parameters(type(value))}
        return out


@dataclass(frozen=True, init=False)
class Settings(Training):
    """Settings of one simulated run: :class:`Training`, and how agents and measurements are simulated."""

    method: Annotated[
        MethodSettings, "Training method; if not given, the paper's dp_admm (a study's default is auto)."
    ] = field(default=DpAdmm())
    n_agents: Annotated[Count, "Number of agents; not used where agents are given by groups."] = 10
    partition: Annotated[
        Literal["equal", "unequal", "label_skewed", "groups"],
        "How rows are dealt to agents: equal random shares, log-normal shares, Dirichlet over labels, by groups.",
    ] = "equal"
    partition_spread: Annotated[
        Positive, "Log-standard-deviation of unequal shares, or concentration of label_skewed."
    ] = 0.5
    clip_rows: Annotated[bool, "Shorten rows longer than 1 instead of refusing them."] = False
    participation: Annotated[Probability, "Chance of an agent to take part in a round."] = 1.0
    void_rounds: Annotated[
        Annotated[float, Meta(ge=0, lt=1)],
        "With secure_aggregation: share of rounds that are void since an agent vanishes: charged, and nothing learnt.",
    ] = 0.0
    stop_tolerance: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None, "Stop when the consensus moves less than this (relative)."
    ] = None
    test_rows: Annotated[NotNegative, "Rows held out: a count, or a share below 1; 0 for none."] = 0.2
    metrics_every: Annotated[Annotated[int, Meta(ge=0)], "Measure every this many rounds; 0: never."] = 1
    seed: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        "Seed of the split, of participation and of the noise (default: from the system).",
    ] = None

    def _check_trust(self) -> None:
        super()._check_trust()
        if self.void_rounds and self.trust == "local":
            raise StudyError('void_rounds belongs to trust = "secure_aggregation"; leave it out')


def settings_from(table: Mapping[str, Any], where: str = "settings") -> Settings:
    """Settings from a table of names and values, such as a TOML file; unknown names are refused.

    Examples
    --------
    >>> settings_from({"epsilon": 1.0, "n_agents": 5}).n_agents
    5
    """
    check_names(table, flat_parameters(Settings), where)
    return Settings(**table)


_FLAT: dict[type, dict[str, Parameter]] = {}


def flat_parameters(made: type[Training]) -> dict[str, Parameter]:
    """All that can be set, by name: own fields, and the parameters of everything that can be chosen."""
    if made not in _FLAT:
        _FLAT[made] = _flat_parameters(made)
    return _FLAT[made]


def _flat_parameters(made: type[Training]) -> dict[str, Parameter]:
    found: dict[str, Parameter] = {}
    for each in parameters(made):
        if each.name not in REGISTRIES:
            found[each.name] = each
            continue
        registry = REGISTRIES[each.name]
        names = tuple(registry.classes)
        help = f"{each.help or registry.help} One of {', '.join(names)}."
        found[each.name] = Parameter(each.name, Literal[names], each.default.name, help)
        owners: dict[str, dict[str, list[str]]] = {}  # of each parameter: what it means, for whom
        for name, own in ((cls.name, own) for cls in registry.classes.values() for own in parameters(cls)):
            flat = f"{registry.prefix}{own.name}"
            meanings = owners.setdefault(flat, {})
            meanings.setdefault(own.help, []).append(name)
            help = " ".join(f"{text} ({', '.join(names)})" for text, names in meanings.items())
            found[flat] = replace(own, name=flat, help=help)
    return found


def _chosen(what: str, value: object, given: Mapping[str, Any]) -> Any:
    """What is named or given, with those of its parameters that were given beside it."""
    registry = REGISTRIES[what]
    made = chosen(what, registry.classes, value)
    if type(made) not in registry.classes.values():
        registry.check(made)
    beside = {each.name: f"{registry.prefix}{each.name}" for each in parameters(type(made))}
    changes = {name: given[flat] for name, flat in beside.items() if flat in given}
    if changes and not isinstance(given.get(what, ""), str):
        raise StudyError(f"{what} is an object, so {next(iter(changes))} must be given to it, and not beside it")
    return replace(made, **changes) if changes else made
