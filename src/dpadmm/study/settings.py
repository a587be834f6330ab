"""Everything a simulated run can be told, with defaults; the same names in Python, in TOML and as options.

Settings are public: none of them is read off the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np

from dpadmm._base.errors import StudyError
from dpadmm._base.suggestions import near_name
from dpadmm.optim.losses import LOSSES, Hinge, Huber, Logistic, Loss, SmoothedHinge, Softmax, Squared
from dpadmm.optim.problem import Problem
from dpadmm.optim.regularizers import REGULARIZERS, ElasticNet, Regularizer
from dpadmm.training.loop import AVERAGES, AverageName, StopWhenStill

MethodName = Literal[
    "dp_admm",
    "admm",
    "admm_pvp",
    "admm_dvp",
    "dp_sgd",
    "output_perturbation",
    "objective_perturbation",
    "centralized",
]
NOT_PRIVATE: tuple[MethodName, ...] = ("admm", "centralized")
"""References that use rows without noise, and take no budget."""
ONE_ROUND: tuple[MethodName, ...] = ("output_perturbation", "objective_perturbation", "centralized")
"""Methods in which every agent speaks once, whatever ``n_rounds`` says."""
PartitionName = Literal["equal", "unequal", "label_skewed", "groups"]
CalibrationName = Literal["paper", "exact"]
MechanismName = Literal["gaussian", "pure"]
ScheduleName = Literal["theorem", "constant"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one simulated run.

    Attributes
    ----------
    method : str
        dp_admm (Algorithm 1), admm (Algorithm 2, no noise), admm_pvp (Algorithm 3), admm_dvp, dp_sgd,
        output_perturbation, objective_perturbation (each agent alone, then averaged), or centralized (the
        non-private optimum on pooled rows).
    n_agents : int
        n. Ignored where the agents are given by groups.
    partition : {"equal", "unequal", "label_skewed", "groups"}
        How rows are dealt to agents: equal random shares, log-normal shares, Dirichlet over labels, or by the
        groups that come with the data.
    partition_spread : float
        Log-standard-deviation of unequal shares, or the Dirichlet concentration of label_skewed.
    loss : str
        One of logistic, softmax, hinge, smoothed_hinge, squared, huber.
    loss_width, loss_delta, gradient_bound : float
        Parameters of smoothed_hinge, huber and squared.
    regularizer : {"none", "l2", "l1", "elastic_net"}
    l1_ratio : float
        Parameter of elastic_net.
    reg_share : float
        λ/n: weight of the regularizer beside the mean loss.
    intercept : bool
        Add a constant column (0.28, and rows are scaled by 0.96 to keep norm ≤ 1).
    clip_rows : bool
        Shorten rows with L2 norm > 1 instead of refusing them.
    epsilon : float or sequence of float, optional
        Total ε of the whole run, exact composition; one number, or one per agent.
    round_epsilon : float or sequence of float, optional
        ε of every round, as in the paper.
    noise_multiplier : float or sequence of float, optional
        z itself; 0 means no noise and no privacy.
    delta : float
        δ of the total guarantee (and of each round in the paper's calibration).
    calibration : {"paper", "exact"}
        How round_epsilon becomes noise: the paper's √(2 ln(1.25/δ))/ε (ε ≤ 1), or the exact Gaussian curve.
    n_rounds : int
        t.
    rho : float
        ρ.
    weight_radius : float
        c_w: a public guess of the norm of the best weights. It shapes the step sizes, not the privacy.
    schedule : {"theorem", "constant"}
        Step sizes of the paper's theorem that applies, or ``step_size`` in every round.
    step_size : float
        η of the constant schedule.
    learning_rate : float, optional
        Step of dp_sgd. Left out: 1/(c3 + λc4/n), which the smooth theory allows.
    sampling : float
        Share of its rows an agent uses in a round of dp_sgd, each row by chance.
    mechanism : {"gaussian", "pure"}
        Noise of admm_dvp, output_perturbation and objective_perturbation: Gaussian, or the originals' with
        density ∝ exp(−ζ‖ξ‖), which is ε-private with δ = 0 in every round.
    split_regularizer : bool
        admm: put the regularizer into the consensus step, so that local problems are smooth.
    solver_tolerance : float
        Exact local solves stop at a gradient norm of this share of the mean gradient's sensitivity 2c1/m;
        the privacy price of it is paid.
    participation : float
        Chance of an agent to take part in a round.
    average : {"last", "all", "tail"}
        Which average of the consensus is the model.
    stop_tolerance : float, optional
        Stop when the public consensus moves less than this (relative) in a round.
    test_rows : int or float
        Rows held out for testing: a count (≥ 1) or a share (< 1); 0 for none.
    metrics_every : int
        Measure every so many rounds; 0 for never.
    seed : int, optional
        Names the split, the participation and the simulated noise. Left out: from the operating system.
    """

    method: MethodName = "dp_admm"
    n_agents: int = 10
    partition: PartitionName = "equal"
    partition_spread: float = 0.5
    loss: str = "logistic"
    loss_width: float = 1.0
    loss_delta: float = 1.0
    gradient_bound: float = 2.0
    regularizer: str = "l2"
    l1_ratio: float = 0.5
    reg_share: float = 1e-4
    intercept: bool = False
    clip_rows: bool = False
    epsilon: float | Sequence[float] | None = None
    round_epsilon: float | Sequence[float] | None = None
    noise_multiplier: float | Sequence[float] | None = None
    delta: float = 1e-5
    calibration: CalibrationName = "paper"
    n_rounds: int = 100
    rho: float = 0.1
    weight_radius: float = 10.0
    schedule: ScheduleName = "theorem"
    step_size: float = 1.0
    learning_rate: float | None = None
    sampling: float = 1.0
    mechanism: MechanismName = "gaussian"
    split_regularizer: bool = False
    solver_tolerance: float = 1e-3
    participation: float = 1.0
    average: AverageName = "last"
    stop_tolerance: float | None = None
    test_rows: float = 0.2
    metrics_every: int = 1
    seed: int | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            object.__setattr__(self, each.name, _plain(getattr(self, each.name)))
        _one_of("method", self.method, get_args(MethodName))
        _one_of("partition", self.partition, get_args(PartitionName))
        _one_of("loss", self.loss, LOSSES)
        _one_of("regularizer", self.regularizer, REGULARIZERS)
        _one_of("calibration", self.calibration, get_args(CalibrationName))
        _one_of("mechanism", self.mechanism, get_args(MechanismName))
        _one_of("schedule", self.schedule, get_args(ScheduleName))
        _one_of("average", self.average, AVERAGES)
        for name, least in (("n_agents", 1), ("n_rounds", 1), ("metrics_every", 0)):
            _whole(name, getattr(self, name), least)
        if self.seed is not None:
            _whole("seed", self.seed, 0)
        for name in ("intercept", "clip_rows", "split_regularizer"):
            if not isinstance(getattr(self, name), bool):
                raise StudyError(f"{name} must be true or false, not {getattr(self, name)!r}")
        for name in ("partition_spread", "loss_width", "loss_delta", "gradient_bound", "rho", "weight_radius",
                     "step_size", "participation", "sampling", "solver_tolerance"):  # fmt: skip
            _number(name, getattr(self, name), positive=True)
        for name in ("l1_ratio", "reg_share", "delta", "test_rows"):
            _number(name, getattr(self, name))
        for name in ("participation", "sampling"):
            if getattr(self, name) > 1.0:
                raise StudyError(f"{name} must be a probability in (0, 1], not {getattr(self, name)!r}")
        if self.learning_rate is not None:
            _number("learning_rate", self.learning_rate, positive=True)
        if self.l1_ratio > 1.0:
            raise StudyError(f"l1_ratio must lie in [0, 1], not {self.l1_ratio!r}")
        if self.stop_tolerance is not None:
            StopWhenStill(_number("stop_tolerance", self.stop_tolerance, positive=True))
        self._check_budget()

    def _check_budget(self) -> None:
        if not (0.0 < self.delta < 1.0):
            raise StudyError(f"delta must lie strictly between 0 and 1, not {self.delta!r}")
        names = ("epsilon", "round_epsilon", "noise_multiplier")
        given = [name for name in names if getattr(self, name) is not None]
        if self.method in NOT_PRIVATE:
            if given:
                raise StudyError(
                    f"the {self.method} method is not private, so it takes no {given[0]}; leave it out"
                )
            return
        if len(given) != 1:
            said = f"{' and '.join(given)} were given" if given else "none was given"
            raise StudyError(
                f"give exactly one of epsilon (total), round_epsilon, noise_multiplier; {said} "
                "(noise_multiplier = 0 means no privacy)"
            )
        value = getattr(self, given[0])
        if value == ():
            raise StudyError(f"{given[0]} is an empty list; give one number, or one per agent")
        for number in value if isinstance(value, tuple) else (value,):
            _number(given[0], number, positive=given[0] != "noise_multiplier")

    @property
    def private(self) -> bool:
        """Whether the method adds noise at all (with ``noise_multiplier=0`` it adds none)."""
        return self.method not in NOT_PRIVATE

    @property
    def planned_rounds(self) -> int:
        """Rounds of this method: ``n_rounds``, or 1 where every agent speaks once."""
        return 1 if self.method in ONE_ROUND else self.n_rounds

    def problem(self, n_classes: int) -> Problem:
        """The problem these settings name; ``n_classes`` counts the declared classes (0: regression)."""
        return Problem(self._loss(n_classes), self._regularizer(), self.reg_share)

    def _loss(self, n_classes: int) -> Loss:
        makers: dict[str, Any] = {
            "logistic": Logistic,
            "softmax": lambda: Softmax(n_classes),
            "hinge": Hinge,
            "smoothed_hinge": lambda: SmoothedHinge(self.loss_width),
            "squared": lambda: Squared(self.gradient_bound),
            "huber": lambda: Huber(self.loss_delta),
        }
        loss: Loss = makers[self.loss]()
        return loss

    def _regularizer(self) -> Regularizer:
        if self.regularizer == "elastic_net":
            return ElasticNet(self.l1_ratio)
        regularizer: Regularizer = REGULARIZERS[self.regularizer]()
        return regularizer


def settings_from(table: Mapping[str, Any], where: str = "settings") -> Settings:
    """Settings from a table of names and values, such as a TOML file; unknown names are refused.

    Examples
    --------
    >>> settings_from({"epsilon": 1.0, "n_agents": 5}).n_agents
    5
    """
    check_names(table, [f.name for f in fields(Settings)], where)
    return Settings(**table)


def check_names(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Refuse unknown names, with the nearest known one."""
    known = list(known)
    for name in given:
        if name not in known:
            raise StudyError(f"{where}: unknown setting {name!r}; {nearest(name, known)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """'did you mean ...?' or the list of what there is."""
    known = sorted(known)
    near = near_name(name, known)
    return f"did you mean {near!r}?" if near else f"known are {', '.join(known)}"


def _plain(value: object) -> object:
    """Python's own numbers, text and tuples in place of NumPy's and of lists, so that settings are values."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    return tuple(_plain(each) for each in value) if isinstance(value, list | tuple) else value


def _one_of(name: str, value: object, known: Iterable[str]) -> None:
    if value not in (known := list(known)):
        raise StudyError(f"{name} {value!r} does not exist; {nearest(str(value), known)}")


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise StudyError(f"{name} must be a whole number of at least {least}, not {value!r}")


def _number(name: str, value: object, *, positive: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not np.isfinite(float(value)):
        raise StudyError(f"{name} must be a finite number, not {value!r}")
    if float(value) < 0.0 or (positive and float(value) == 0.0):
        raise StudyError(f"{name} must be {'positive' if positive else 'at least 0'}, not {value!r}")
    return float(value)
