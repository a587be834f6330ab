"""One run of a method over a cohort of agents in this process, and what is left of it.

Simulations, training, forecasts and estimators differ in rows, noise and observers; all go through :func:`run`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpadmm.accounting.report import PrivacyReport
from dpadmm.accounting.statement import Statement, of_report
from dpadmm.data import Dataset
from dpadmm.engine.loop import (
    Averages,
    Observer,
    Outcome,
    Participation,
    PlannedParticipation,
    StopRule,
    tallies,
    train,
)
from dpadmm.engine.method import plans_of
from dpadmm.engine.metrics import Trace
from dpadmm.engine.noise import Noise, SecureSumNoise, priced
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.methods import Method
from dpadmm.methods.prior import Prior
from dpadmm.methods.theory import Constants, constants_of
from dpadmm.models.model import Model, model_of
from dpadmm.queries.problem import Problem, Rows, Sizes
from dpadmm.studies.settings import Settings, Training
from dpadmm.studies.study import Study
from dpadmm.version import VERSION


@dataclass(frozen=True, repr=False)
class Result:
    """What is left of a finished (or interrupted) run.

    Attributes
    ----------
    training : Training
        As used; :class:`dpadmm.Settings` in a simulation.
    rows : Rows
        The training rows as the agents hold them. Private.
    method : Method
        With its noise.
    outcome : Outcome
        Last consensus, local models, averages.
    planned : (rounds, n) bool, optional
        Who was to take part when, if that was planned.
    stopped_by_result : bool
        Whether a rule that looked at the result could end it.
    seconds : float
        Time of calibration and rounds.
    trace : Trace
        The paper's measures by round, in a simulation.
    of_study, names, dataset
        What was run, the agents' names, and the data of a simulation.
    """

    training: Training
    problem: Problem
    rows: Rows
    method: Method[Any]
    noise: Noise
    outcome: Outcome
    planned: NDArray[np.bool_] | None = None
    stopped_by_result: bool = False
    seconds: float = 0.0
    trace: Trace = field(default_factory=lambda: Trace({}))
    of_study: Study | None = None
    names: Sequence[str] = ()
    dataset: Dataset | None = None

    def __repr__(self) -> str:
        """In a line, and nothing of the rows."""
        agents = "one agent" if self.rows.n_agents == 1 else f"{self.rows.n_agents} agents"
        cost = f"ε = {self.privacy.epsilon:.4g}" if self.privacy.private else "no privacy"
        return f"<Result of {self.method.name}: {agents}, {self.outcome.rounds} rounds, {cost}>"

    @property
    def study(self) -> Study:
        """The study that was run."""
        if self.of_study is None:
            raise StudyError("a simulation is not the run of a study; its settings are in .settings")
        return self.of_study

    @property
    def settings(self) -> Settings:
        """The settings of a simulation, with the seed that was drawn."""
        if not isinstance(self.training, Settings):
            raise StudyError("only a simulation has settings; a study has training")
        return self.training

    @property
    def n_rows(self) -> tuple[int, ...]:
        """Rows of every agent, which is public."""
        return tuple(self.rows.n_rows.tolist())

    @property
    def weights(self) -> Floats:
        """The global model (d, p)."""
        return self.outcome.weights(self.training.average)

    @property
    def inferred(self) -> tuple[float, Floats | None]:
        """How clear the Hessian is of its noise (0: none was released), and the weights' covariance if it is."""
        return self.method.inferred(self.outcome.broadcast)

    @property
    def broadcast(self) -> Floats:
        """All that the aggregator knows in the end."""
        return self.outcome.broadcast

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the run early."""
        return self.outcome.interrupted

    @property
    def iterations(self) -> float:
        """Gradient passes of the exact local solves, per agent and round; 0 for methods without any."""
        passes = getattr(self.outcome.state, "passes", np.zeros(1))
        return float(np.mean(passes)) / max(1, self.outcome.rounds)

    @property
    def constants(self) -> Constants:
        """c1..c4 and the rest, for :mod:`dpadmm.methods.theory`."""
        return constants_of(
            self.problem,
            n_features=self.rows.n_features,
            n_rows=self.rows.n_rows,
            noise_multiplier=getattr(self.method, "noise_multiplier", np.zeros(self.rows.n_agents)),
            weight_radius=getattr(self.training.method, "weight_radius", 1.0),
        )

    @cached_property
    def privacy(self) -> PrivacyReport:
        """What every agent has given away, by the method's plans at the noise's prices."""
        plans = plans_of(self.method, self.rows.n_agents, self.training.planned_rounds)
        at_price = {id(plan): priced(plan, self.noise) for plan in {id(plan): plan for plan in plans}.values()}
        plans = [at_price[id(plan)] for plan in plans]
        return PrivacyReport(
            tallies(plans, self.outcome.attended, self.outcome.charged_rounds),
            tallies(plans, self.planned, self.training.planned_rounds),
            self.training.delta,
            self.method.name,
            ended_by_result=self.interrupted or self.stopped_by_result,
            exact_noise=getattr(self.noise, "exact", False),
            honest=self.training.honest,
        )

    @cached_property
    def statement(self) -> Statement:
        """What a study's run gave away, for others to verify."""
        return of_report(
            self.privacy,
            self.n_rows,
            name=self.study.name,
            settings_hash=self.study.hash,
            version=VERSION,
            names=self.names,
        )

    @cached_property
    def model(self) -> Model:
        """The global model, ready to predict and save; nothing of the rows is in it but what was released."""
        if self.of_study is not None:
            return model_of(self)
        settings, dataset = self.settings, self.dataset
        return Model(
            weights=self.weights,
            task=self.problem.loss.task,
            loss=self.problem.loss.name,
            classes=dataset.classes if dataset else None,
            intercept=settings.intercept,
            clip=settings.clip_rows,
            feature_names=dataset.feature_names if dataset else (),
            privacy=self.privacy.as_json(),
            covariance=self.inferred[1],
            clearance=self.inferred[0],
        )

    def summary(self) -> dict[str, Any]:
        """Plain values for JSON: settings, rounds, measures at the end, privacy."""
        return {
            "settings": self.training.flat(),
            "agents": self.rows.n_agents,
            "rows": len(self.rows.labels),
            "features": self.rows.n_features,
            "rounds": self.outcome.rounds,
            "interrupted": self.interrupted,
            "seconds": self.seconds,
            "measures": {k: v if np.isfinite(v) else None for k, v in self.trace.last().items()},
            "privacy": self.privacy.as_json(),
        }


def run(
    training: Training,
    problem: Problem,
    rows: Rows,
    noise: Noise,
    *,
    sizes: Sizes | None = None,
    participation: Participation | None = None,
    stop: StopRule | None = None,
    averages: Averages | None = None,
    observers: Sequence[Observer] = (),
    warm_start: Floats | None = None,
    prior: Prior | None = None,
    keep_interrupted: bool = False,
    n_rounds: int | None = None,
    seed: int = 0,
    voids: Callable[[int], bool] | None = None,
    most_rows: int | None = None,
) -> Result:
    """Calibrate a method to its budget, and train.

    Parameters
    ----------
    sizes : Sizes, optional
        Public sizes that noise and steps are for, where they are not those of ``rows`` (forecasts).
    warm_start : (d, p), optional
        Public weights to start from; zero if left out.
    prior : Prior, optional
        What public rows say: ``auto`` weighs it against the noise, other methods start from its weights.
    keep_interrupted : bool
        Whether Ctrl-C ends the run and returns what was done; otherwise it is raised as usual.
    n_rounds : int, optional
        Rounds to do now, if fewer than are planned.
    voids : callable, optional
        round -> whether it is void, with secure aggregation.
    most_rows : int, optional
        Bound of an agent's rows that shares of exact noise are for; if not given, what the largest agent has.
    """
    started = perf_counter()
    training = training.with_rounds(problem, sizes or rows)
    if n_rounds is not None and n_rounds > training.planned_rounds:
        raise StudyError(f"n_rounds must be at most the {training.planned_rounds} that noise is planned for")
    mask = participation.mask if isinstance(participation, PlannedParticipation) else None
    planned = np.full(rows.n_agents, training.planned_rounds) if mask is None else mask.sum(axis=0)
    method = training.rounds(problem, sizes or rows, planned, seed=seed)
    if prior is not None:
        method, warm_start = method.with_prior(prior), prior.weights
    if training.honest is not None:
        noise = _pooled(noise, training.honest, (sizes or rows).n_rows, most_rows)
    outcome = train(
        method,
        problem,
        rows,
        n_rounds=training.planned_rounds if n_rounds is None else n_rounds,
        noise=noise,
        participation=participation,
        stop=stop,
        averages=averages,
        observers=observers,
        warm_start=warm_start,
        keep_interrupted=keep_interrupted,
        sizes=sizes,
        voids=voids,
    )
    found = Result(training, problem, rows, method, noise, outcome, mask, stop is not None)
    return replace(found, seconds=perf_counter() - started)


def _pooled(noise: Noise, honest: int, n_rows: Integers, most_rows: int | None) -> SecureSumNoise:
    """Noise in shares, of which only the sum is used."""
    largest = int(n_rows.max())
    need_honest(honest, len(n_rows))
    if most_rows is not None and most_rows < largest:
        raise StudyError(f"most_rows = {most_rows:,}, but an agent has {largest:,} rows; agree on a larger number")
    return SecureSumNoise(noise, honest, n_rows, most_rows or largest)


def need_honest(honest: int | None, n_agents: int) -> None:
    """Refuse to rely on more honest agents than there are."""
    if honest is not None and honest > n_agents:
        raise StudyError(f"honest = {honest}, but there are {n_agents} agents; take at most {n_agents}")
