"""All agents in this process: settings + data -> model, trace and privacy report.

The noise here is simulated, unless exact noise is asked for: good for experiments, no protection for anyone,
and the report says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpadmm._base.arrays import Floats, Integers
from dpadmm._base.errors import StudyError
from dpadmm.model.model import Model
from dpadmm.optim.constants import Constants
from dpadmm.optim.problem import Problem, Rows
from dpadmm.privacy.report import PrivacyReport
from dpadmm.runs.preparation import DataSource, Prepared, as_dataset, prepare, seed_of
from dpadmm.study.assembly import make_method, rho_of
from dpadmm.study.settings import Settings, settings_from
from dpadmm.training.loop import (
    Averages,
    Observer,
    Outcome,
    Participation,
    PlannedParticipation,
    RandomParticipation,
    StopWhenStill,
    train,
)
from dpadmm.training.methods.base import Method
from dpadmm.training.metrics import Metrics, Trace
from dpadmm.training.oracles import ExactNoise, Noise, SimulatedNoise, fresh_seed, priced


@dataclass(frozen=True)
class Result:
    """A finished (or interrupted) simulated run.

    Attributes
    ----------
    model : Model
        The global model, ready to predict and save.
    trace : Trace
        The paper's measures by round; empty when ``metrics_every=0``.
    privacy : PrivacyReport
        What every agent has given away.
    outcome : Outcome
        Last consensus, local models, averages.
    constants : Constants
        c1..c4 and the rest, for :mod:`dpadmm.optim.bounds`.
    problem : Problem
    rows : Rows
        The training rows as the agents hold them.
    settings : Settings
        As used: with the seed that was drawn.
    seconds : float
        Time in rounds.
    """

    model: Model
    trace: Trace
    privacy: PrivacyReport
    outcome: Outcome
    constants: Constants
    problem: Problem
    rows: Rows
    settings: Settings
    seconds: float

    @property
    def iterations(self) -> float:
        """Gradient passes of the exact local solves, per agent and round; 0 for methods without any."""
        passes = getattr(self.outcome.state, "passes", np.zeros(1))
        return float(np.mean(passes)) / max(1, self.outcome.rounds)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the run early."""
        return self.outcome.interrupted

    def summary(self) -> dict[str, Any]:
        """Plain values for JSON: settings, rounds, measures at the end, privacy."""
        return {
            "settings": asdict(self.settings),
            "agents": self.rows.n_agents,
            "rows": len(self.rows.labels),
            "features": self.rows.n_features,
            "rounds": self.outcome.rounds,
            "interrupted": self.interrupted,
            "seconds": self.seconds,
            "measures": {k: v if np.isfinite(v) else None for k, v in self.trace.last().items()},
            "privacy": self.privacy.as_json(),
        }


def simulate(
    data: DataSource,
    *,
    settings: Settings | None = None,
    classes: Sequence[Any] | None = None,
    groups: ArrayLike | None = None,
    participation: ArrayLike | None = None,
    observers: Sequence[Observer] = (),
    exact_noise: bool = False,
    warm_start: Floats | Model | None = None,
    keep_interrupted: bool = False,
    **changes: Any,
) -> Result:
    """Train across simulated agents and report what it cost in privacy and what it reached.

    Parameters
    ----------
    data : Dataset, (features, labels), "adult" or "synthetic"
        Rows must have an L2 norm ≤ 1 (or ``clip_rows=True``).
    settings : Settings, optional
        A ready value; ``changes`` are applied on top.
    classes : sequence, optional
        Public list of the labels, negative first; needed where labels are not ±1.
    groups : array of one value per row, optional
        Who owns a row: each value is an agent (``partition="groups"``, ``n_agents`` does not count).
    participation : bool array (rounds, agents), optional
        A public plan of who takes part when; noise is then calibrated to each agent's own number of rounds.
        A chance for unplanned absence is ``participation=0.8`` instead.
    observers : sequence of callables, optional
        Called with a :class:`dpadmm.training.loop.RoundView` after every round.
    warm_start : (d, p) array or Model, optional
        Public weights to start from, in the encoding of these rows.
    keep_interrupted : bool
        Whether Ctrl-C ends the run and returns what was done; otherwise it is raised as usual.
    exact_noise : bool
        Add what a deployed agent adds, whole numbers from the operating system's entropy: slower, never the
        same twice, and for dp_admm and dp_sgd only. ``seed`` still names the split of the rows.
    **changes
        Any field of :class:`dpadmm.Settings`, such as ``epsilon=1.0, n_agents=100``.

    Examples
    --------
    >>> from dpadmm import simulate
    >>> result = simulate("synthetic", n_agents=10, epsilon=1.0, delta=1e-5, n_rounds=20, seed=1)
    >>> print(f"{result.privacy.epsilon:.3f}")
    1.000
    >>> result.model.predict(result.rows.features[:3]).shape
    (3,)
    """
    if participation is not None and np.ndim(participation) == 0:
        changes["participation"], participation = participation, None
    if groups is not None and settings is None:
        changes.setdefault("partition", "groups")
    settings = _settings(settings, changes)
    if exact_noise and settings.partition == "label_skewed":
        raise StudyError(
            "exact noise is for agents whose numbers of rows tell nothing: partition='label_skewed' deals "
            "rows by their labels; choose equal, unequal or groups, or simulated noise"
        )
    if settings.seed is None:
        settings = replace(settings, seed=fresh_seed())
    dataset = as_dataset(data, settings, classes=classes, groups=groups)
    prepared = prepare(dataset, settings)
    noise = ExactNoise() if exact_noise else None
    return run(
        prepared,
        settings,
        plan=participation,
        observers=observers,
        noise=noise,
        warm_start=warm_start.weights if isinstance(warm_start, Model) else warm_start,
        keep_interrupted=keep_interrupted,
    )


def run(
    prepared: Prepared,
    settings: Settings,
    *,
    plan: ArrayLike | None = None,
    observers: Sequence[Observer] = (),
    noise: Noise | None = None,
    warm_start: Floats | None = None,
    keep_interrupted: bool = False,
) -> Result:
    """Calibrate, train and report on prepared rows; ``noise`` is simulated from the seed if left out."""
    started = perf_counter()
    problem, rows, seed = prepared.problem, prepared.rows, seed_of(settings)
    participation, planned = _participation(settings, plan, rows.n_agents, seed)
    method, constants = make_method(settings, problem, rows, planned, seed)
    rho = rho_of(settings)
    averages = Averages(with_released=settings.metrics_every > 0)
    every = max(1, settings.metrics_every)
    metrics = Metrics(
        problem, rows, averages, rho, prepared.test, every, settings.average, method.local_models
    )
    source = noise or SimulatedNoise(seed, rows.n_agents, (rows.n_features, problem.loss.n_outputs))
    outcome = train(
        method,
        problem,
        rows,
        n_rounds=settings.planned_rounds,
        noise=source,
        participation=participation,
        stop=StopWhenStill(settings.stop_tolerance) if settings.stop_tolerance else None,
        averages=averages,
        observers=[*([metrics] if settings.metrics_every else []), *observers],
        warm_start=warm_start,
        keep_interrupted=keep_interrupted,
    )
    privacy = report_of(
        method,
        source,
        outcome,
        settings,
        attending=participation.mask if isinstance(participation, PlannedParticipation) else None,
        ended_by_result=outcome.interrupted or settings.stop_tolerance is not None,
    )
    dataset = prepared.dataset
    model = Model(
        weights=outcome.weights(settings.average),
        task=problem.loss.task,
        loss=problem.loss.name,
        classes=dataset.classes,
        intercept=settings.intercept,
        clip=settings.clip_rows,
        feature_names=dataset.feature_names,
        privacy=privacy.as_json(),
    )
    return Result(
        model, metrics.trace, privacy, outcome, constants, problem, rows, settings, perf_counter() - started
    )


def report_of(
    method: Method[Any],
    noise: Noise,
    outcome: Outcome,
    settings: Settings,
    *,
    ended_by_result: bool,
    attending: NDArray[np.bool_] | None = None,
) -> PrivacyReport:
    """What a run gave away, by its method's plans at the noise's prices.

    ``attending`` (rounds, agents) says who was to take part when, if that was planned.
    """
    agents = range(len(outcome.released))
    plans = [priced(method.plan(agent, settings.planned_rounds), noise) for agent in agents]
    planned = [
        plan.tally(None if attending is None else np.flatnonzero(attending[:, i]) + 1)
        for i, plan in enumerate(plans)
    ]
    return PrivacyReport(
        outcome.tallies(plans),
        planned,
        settings.delta,
        method.name,
        ended_by_result=ended_by_result,
        exact_noise=isinstance(noise, ExactNoise),
    )


def _settings(settings: Settings | None, changes: Mapping[str, Any]) -> Settings:
    if settings is None:
        return settings_from(changes, "simulate()")
    return settings_from({**asdict(settings), **changes}, "simulate()")


def _participation(
    settings: Settings, plan: ArrayLike | None, n_agents: int, seed: int
) -> tuple[Participation | None, Integers]:
    """Who takes part when, and for how many rounds every agent's noise must be calibrated."""
    everything = np.full(n_agents, settings.planned_rounds)
    if plan is None:
        if settings.participation == 1.0:
            return None, everything
        return RandomParticipation(settings.participation, n_agents, seed), everything
    mask: NDArray[np.bool_] = np.asarray(plan, dtype=bool)
    if mask.shape != (settings.planned_rounds, n_agents):
        raise StudyError(
            f"the participation plan has shape {mask.shape}, but there are {settings.planned_rounds} rounds "
            f"and {n_agents} agents"
        )
    if not mask.any(axis=0).all():
        idle = int(np.argmin(mask.any(axis=0))) + 1
        raise StudyError(f"agent {idle} never takes part in the participation plan; leave it out")
    return PlannedParticipation(mask), mask.sum(axis=0)
