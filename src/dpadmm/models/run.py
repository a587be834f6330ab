"""Run a method over the agents in this process, and return the result.

Simulations, training, forecasts and estimators all call :func:`run`. They differ in rows, noise and observers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpadmm.accounting.report import PrivacyReport, share_equal
from dpadmm.baselines.solved_rounds import SingleState, SolverState
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
from dpadmm.engine.metrics import Trace
from dpadmm.engine.noise import Noise, SecureSumNoise, priced
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.methods import Method
from dpadmm.methods.prior import Prior
from dpadmm.models.model import Model, model_of
from dpadmm.queries.problem import Problem, Rows, Sizes
from dpadmm.rendering import Block, Fact, Facts, Paragraph, Renderable, Rendering
from dpadmm.rendering.formats import number_range, plural
from dpadmm.studies.settings import Settings, Training
from dpadmm.studies.study import Study


@dataclass(frozen=True, repr=False)
class Result(Renderable):
    """Result of a run, finished or interrupted.

    Attributes
    ----------
    model : Model
        The trained model.
    privacy : PrivacyReport
        The privacy loss of every agent.
    trace : Trace
        The paper's measures by round (simulations only).
    weights : array of shape (n_features, n_outputs)
        Weights of the model.
    training : Training
        Parameters of the run, including the number of rounds; :class:`dpadmm.Settings` in a simulation.
    problem : Problem
        Loss, regularizer and their constants.
    rows : Rows
        The training rows of all agents. Private.
    method : Method
        The method, calibrated to the budget.
    noise : Noise
        The noise source.
    outcome : Outcome
        Last consensus, local models and averages.
    planned : bool array of shape (n_rounds, n_agents), optional
        The rounds in which each agent was to participate, if there was a plan.
    stopped_by_result : bool
        Whether a stopping rule on the result could end the run.
    seconds : float
        Wall time of calibration and rounds.
    of_study : Study, optional
        The study, if the run was that of a study; see :attr:`study`.
    names : sequence of str
        Names of the agents.
    dataset : Dataset, optional
        The data of a simulation.

    See Also
    --------
    dpadmm.train, dpadmm.simulate : Functions that return a result.
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
        """One line, without values from the rows."""
        agents = "one agent" if self.rows.n_agents == 1 else f"{self.rows.n_agents} agents"
        cost = f"ε = {self.privacy.epsilon:.4g}" if self.privacy.private else "no privacy"
        return f"<Result of {self.method.name}: {agents}, {self.outcome.rounds} rounds, {cost}>"

    def rendering(self) -> Rendering:
        """Return size, method, privacy loss and, for a simulation, the last measures."""
        training, privacy, study, n_rows = self.training, self.privacy, self.of_study, self.n_rows
        agents = "one agent"
        if len(n_rows) > 1:
            agents = f"{len(n_rows)} agents with {number_range(n_rows, ',d')} rows each"
        name = study.name if study else self.dataset.name if self.dataset else training.method.name
        losses = f"{training.loss.name} loss, {training.regularizer.name} regularizer"
        body: list[Block] = [
            Paragraph(f"{training.method.name}, {losses}, {plural(self.outcome.rounds, 'round')}"),
            Paragraph("Privacy loss of a person with one row", "bold"),
            *(block for block in privacy.rendering().body if isinstance(block, Facts)),
        ]
        if study and any(map(math.isnan, privacy.noise_multiplier)):
            body.append(Facts([Fact("", "noise multiplier z", study.terms.plan.describe_noise())]))
        if measures := self.trace.last():
            facts = [Fact("", label.replace("_", " "), value) for label, value in measures.items() if label != "round"]
            body.append(Facts(facts, title="Measures after the last round"))
        names = list(self.names) or [str(i + 1) for i in range(len(n_rows))]
        is_secure = privacy.min_honest_sites is not None
        n_features = len(study.features) if study else self.rows.n_features
        return Rendering(
            title=f"{name}: {sum(n_rows):,} rows × {n_features} features, {agents}",
            body=body,
            data={
                **({"study": {"name": study.name, "hash": study.hash}} if study else {}),
                "noise": "exact" if privacy.exact_noise else "simulated",
                "epsilon": privacy.epsilon,
                "epsilon_paper": privacy.paper_epsilon,
                "epsilon_if_others_collude": privacy.epsilon_if_others_collude if is_secure else None,
                "delta": privacy.delta,
                "agents": dict(zip(names, n_rows, strict=True)),
                "rows": sum(n_rows),
                "rounds": self.outcome.rounds,
                "interrupted": self.interrupted,
            },
        )

    @property
    def study(self) -> Study:
        """The study of this run. Raises StudyError for a simulation without a study."""
        if self.of_study is None:
            raise StudyError("this simulation has no study; use .settings")
        return self.of_study

    @property
    def settings(self) -> Settings:
        """The settings of a simulation, including the seed. Raises StudyError for other runs."""
        if not isinstance(self.training, Settings):
            raise StudyError("only a simulation has settings; use .training")
        return self.training

    @property
    def n_rows(self) -> tuple[int, ...]:
        """Number of rows of every agent. Public."""
        return tuple(self.rows.n_rows.tolist())

    @property
    def weights(self) -> Floats:
        """Weights of the global model, of shape (n_features, n_outputs)."""
        return self.outcome.weights(self.training.average)

    @property
    def covariance(self) -> Floats | None:
        """Covariance of the weights; None if no Hessian was released or ``hessian_snr`` is below 1."""
        released = self.method.covariance(self.broadcast)
        return None if released is None else released.matrix

    @property
    def hessian_snr(self) -> float:
        """Smallest eigenvalue of the released Hessian over the value that intervals require; 0 without a release."""
        released = self.method.covariance(self.broadcast)
        return 0.0 if released is None else released.hessian_snr

    @property
    def broadcast(self) -> Floats:
        """The aggregator's last broadcast, which contains its whole state."""
        return self.outcome.broadcast

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the run early."""
        return self.outcome.interrupted

    @property
    def iterations(self) -> float:
        """Mean number of gradient passes of the exact local solver, per agent and round; 0 for other methods."""
        state = self.outcome.state
        if not isinstance(state, SolverState | SingleState):
            return 0.0
        return float(np.mean(state.passes)) / max(1, self.outcome.rounds)

    @cached_property
    def privacy(self) -> PrivacyReport:
        """Privacy loss of every agent, from the method's release plans and the noise source."""
        plans = self.method.plans(self.rows.n_agents, self.training.planned_rounds)
        by_id = {id(plan): priced(plan, self.noise) for plan in {id(plan): plan for plan in plans}.values()}
        plans = [by_id[id(plan)] for plan in plans]
        return PrivacyReport(
            share_equal(
                tallies(plans, self.planned, self.training.planned_rounds),
                tallies(plans, self.outcome.attended, self.outcome.charged_rounds),
                charge_planned=self.interrupted or self.stopped_by_result,
            ),
            self.rows.n_rows,
            self.training.delta,
            self.method.name,
            exact_noise=self.noise.exact,
            names=self.names,
            study=None if self.of_study is None else self.of_study.name,
            study_hash=None if self.of_study is None else self.of_study.hash,
            min_honest_sites=self.training.min_honest_sites,
        )

    @cached_property
    def model(self) -> Model:
        """The global model. It contains released values only, no other information from the rows."""
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
            privacy=self.privacy.to_dict(),
            covariance=self.covariance,
            hessian_snr=self.hessian_snr,
        )

    def summary(self) -> dict[str, Any]:
        """Return settings, rounds, final measures and privacy as values that JSON can store."""
        return {
            "settings": self.training.to_dict(),
            "agents": self.rows.n_agents,
            "rows": len(self.rows.labels),
            "features": self.rows.n_features,
            "rounds": self.outcome.rounds,
            "interrupted": self.interrupted,
            "seconds": self.seconds,
            "measures": {k: v if np.isfinite(v) else None for k, v in self.trace.last().items()},
            "privacy": self.privacy.to_dict(),
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
    aborts: Callable[[int], bool] | None = None,
    max_rows_per_site: int | None = None,
) -> Result:
    """Calibrate a method to its budget, and train.

    Parameters
    ----------
    sizes : Sizes, optional
        Public sizes for the calibration of noise and steps, if they differ from those of ``rows`` (forecasts).
    stop : StopRule, optional
        Stopping rule on the result. The report then covers all planned rounds.
    warm_start : array of shape (n_features, n_outputs), optional
        Public weights to start from. Default: zero.
    prior : Prior, optional
        Prior from public rows. ``auto`` weights it against the noise; other methods start from its weights.
    keep_interrupted : bool
        Whether Ctrl-C ends the run and returns the rounds so far. If False, KeyboardInterrupt is raised.
    n_rounds : int, optional
        Number of rounds to run now, if fewer than planned.
    aborts : callable, optional
        Function that returns whether a round's secure sum is lost.
    max_rows_per_site : int, optional
        Maximum number of rows per agent, to which the shares of exact noise are calibrated. Default: the rows of the
        largest agent.
    """
    started = perf_counter()
    training = training.resolved(problem, sizes or rows)
    if n_rounds is not None and n_rounds > training.planned_rounds:
        raise StudyError(f"n_rounds must be at most {training.planned_rounds}, the number of planned rounds")
    mask = participation.mask if isinstance(participation, PlannedParticipation) else None
    planned = np.full(rows.n_agents, training.planned_rounds) if mask is None else mask.sum(axis=0)
    method = training.build(problem, sizes or rows, planned)
    if prior is not None:
        method, warm_start = method.with_prior(prior), prior.weights
    if training.min_honest_sites is not None:
        noise = _secure_sum(noise, training.min_honest_sites, (sizes or rows).n_rows, max_rows_per_site)
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
        aborts=aborts,
        seed=seed,
    )
    result = Result(training, problem, rows, method, noise, outcome, mask, stop is not None)
    return replace(result, seconds=perf_counter() - started)


def _secure_sum(noise: Noise, min_honest_sites: int, n_rows: Integers, max_rows_per_site: int | None) -> SecureSumNoise:
    """Return the noise source of a secure sum, in which every agent adds a share of the noise."""
    max_rows = int(n_rows.max())
    check_min_honest_sites(min_honest_sites, len(n_rows))
    if max_rows_per_site is not None and max_rows_per_site < max_rows:
        raise StudyError(
            f"max_rows_per_site = {max_rows_per_site:,}, but an agent has {max_rows:,} rows; increase max_rows_per_site"
        )
    return SecureSumNoise(noise, min_honest_sites, n_rows, max_rows_per_site or max_rows)


def check_min_honest_sites(min_honest_sites: int | None, n_agents: int) -> None:
    """Raise StudyError if ``min_honest_sites`` exceeds the number of agents."""
    if min_honest_sites is not None and min_honest_sites > n_agents:
        raise StudyError(
            f"min_honest_sites = {min_honest_sites}, but there are {n_agents} agents; use at most {n_agents}"
        )
