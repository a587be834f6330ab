"""What a training method is: how agents start, what they do in a round, and what that releases."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar, final

import numpy as np

from dpadmm import kernels
from dpadmm.accounting.events import AnyRelease, Release
from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.engine.noise import CohortQuery, LazyAnswers, Noise, SimulatedNoise
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats, Integers, kinds
from dpadmm.parameters.fields import Positive, check
from dpadmm.queries import make_query
from dpadmm.queries.gradient import Gradient
from dpadmm.queries.problem import Problem, Rows, Sizes

if TYPE_CHECKING:
    from dpadmm.methods.prior import Prior
    from dpadmm.methods.setup import Setup

Rho = Annotated[Positive, "Penalty ρ: how much agents are held together."]
SolverTolerance = Annotated[
    Positive,
    "Exact local solves stop at this share of the mean gradient's sensitivity 2c1/m, which is paid for.",
]
Mechanism = Annotated[
    Literal["gaussian", "pure"], "Noise: gaussian, or pure (density ∝ exp(−ζ‖ξ‖), δ = 0 in every round)."
]


@dataclass(frozen=True)
class MethodSettings(ABC):
    """What a study or a simulation says of a method; one class a method, which owns its parameters.

    The fields are parameters of the same name in Python, files and on the command line. ``rounds`` makes
    the method itself, with noise for the budget.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    """Its name in figures and tables."""
    private: ClassVar[bool] = True
    """Whether it adds noise; references that don't take no budget."""
    one_round: ClassVar[bool] = False
    """Whether every agent speaks once, whatever ``n_rounds`` says."""
    local_models: ClassVar[bool] = True
    """Whether agents have models of their own (else everyone has the consensus)."""
    deployable: ClassVar[bool] = False
    """Whether agents say nothing but noisy sums over all their rows: what a guard can answer for."""
    usual_reg_share: ClassVar[float] = 1e-4
    """Weight of the regularizer, where nobody says how much."""
    usual_rounds: ClassVar[int] = 100
    """Rounds, where nobody says how many and the sizes of a cohort are not known."""
    sums_only: ClassVar[bool] = False
    """Whether the aggregator needs no more than the sum of all answers, so that it can be all that it sees."""
    weighs_public_rows: ClassVar[bool] = False
    """Whether its aggregator weighs public rows against the noise; others can only start from their model."""
    omit_if_default: ClassVar[tuple[str, ...]] = ()
    """Parameters that studies of before do not say: left out at their default, so that hashes stay what they were."""
    rounds_by_size: ClassVar[bool] = False
    """Whether ``best_rounds`` depends on the sizes of a cohort."""

    def best_rounds(self, setup: Setup) -> int:
        """Rounds, where nobody says how many, for public sizes and a budget."""
        return self.usual_rounds

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def rounds(self, setup: Setup) -> Method[Any]:
        """The method for a cohort, with its noise."""


@dataclass(frozen=True)
class Round:
    """What agents have and are told in round k."""

    number: int  # k, from 1
    problem: Problem
    rows: Rows
    consensus: Floats  # (d, p): w^{k−1}, as it was broadcast
    noise: Noise  # where every agent's noise comes from
    active: Integers | None = None  # who takes part; None: all

    def answers(self, parameters: Floats, noise_multiplier: Floats, statistic: str = Gradient.name) -> Floats:
        """Every agent's noisy mean of a statistic, at its own public parameters: (n, *shape)."""
        return self.noise.answer(self.question(parameters, noise_multiplier, statistic))

    def question(self, parameters: Floats, noise_multiplier: Floats, statistic: str) -> CohortQuery:
        made = make_query(statistic, self.problem, self.rows.n_features)
        return CohortQuery(self.rows, made, parameters, noise_multiplier, self.number, self.active)


class State(Protocol):
    """What a cohort of agents remembers between rounds.

    What it says to others may depend on the public transcript only. A solver's starting point may be private:
    it moves what is released by no more than the solver's tolerance, which is paid for.
    """

    @property
    def released(self) -> Floats:
        """The local models w̃_i as others can know them: (n, d, p)."""


@dataclass(frozen=True)
class NoState:
    """Agents that remember nothing; everyone's model is the consensus."""

    released: Floats

    @classmethod
    def of(cls, problem: Problem, sizes: Sizes) -> NoState:
        shape = (sizes.n_agents, sizes.n_features, problem.loss.n_outputs)
        return cls(np.broadcast_to(np.zeros(()), shape))  # takes no room


S = TypeVar("S", bound=State)


PATIENCE = 10
"""Rounds without an answer after which an agent leaves the mean until it answers again (decision 12)."""


@dataclass(frozen=True)
class RoundResult:
    """What the aggregator has after round k.

    ``uploads`` (n, *shape) of those that are absent are what they sent before, which server-side methods must not use.
    ``answered`` is the round in which each agent answered last, 0 for never.
    ``spread`` is the noise of the answers over what the release costs: above 1 where more than the honest add shares.
    """

    uploads: Floats | LazyAnswers
    consensus: Floats  # as it was broadcast in this round
    round: int  # k, from 1
    problem: Problem
    n_rows: Integers  # (n,): m_i, which is public
    active: Integers | None = None  # who answered in this round; None: all
    answered: Integers | None = None  # (n,); None: all have answered in this round
    spread: float = 1.0

    def pooled(self, honest: int) -> RoundResult:
        """The same where all that is known is one answer over the rows of those present, by secure aggregation."""
        members = self.n_rows if self.active is None else self.n_rows[self.active]
        spread = math.sqrt(len(members) / honest)
        return replace(self, n_rows=members.sum(keepdims=True), active=None, spread=spread)

    @property
    def present(self) -> Integers:
        """The agents that answered."""
        return np.arange(len(self.n_rows)) if self.active is None else self.active

    def multipliers(self, z: Floats) -> Floats:
        """Noise multipliers of what those present said, of z of every agent (n,), or of all alike (1,)."""
        n = len(self.n_rows)
        return np.broadcast_to(z[:n], (n,))[self.present] * self.spread

    def mean(self, weights: Floats | None = None) -> Floats:
        """The mean of the answers of those present, by their weights (present,), which add up to 1, or plain."""
        if isinstance(self.uploads, LazyAnswers):
            n = len(self.present)
            return self.uploads.mean(np.full(n, 1.0 / n) if weights is None else weights)
        heard = self.uploads if self.active is None else self.uploads[self.active]
        if weights is None:
            return np.asarray(heard.mean(axis=0))
        return np.asarray(np.sum(weights.reshape(-1, *[1] * (heard.ndim - 1)) * heard, axis=0))

    @property
    def recent(self) -> Floats:
        """The uploads of agents that answered in one of the last ``PATIENCE`` rounds."""
        assert isinstance(self.uploads, np.ndarray)
        if self.answered is None:
            return self.uploads
        return self.uploads[(self.answered > 0) & (self.answered > self.round - PATIENCE)]


LARGE = 2**18
"""Numbers that are worth a second thread."""


def consensus_step(uploads: Floats) -> Floats:
    """``w^k = mean_i c_i^k``."""
    if uploads.size < LARGE or not kernels.can_compile():
        return np.asarray(np.add.reduce(uploads, axis=0) / len(uploads))
    from dpadmm.kernels.updates import column_means  # the same bits

    return column_means(uploads)


class Method(ABC, Generic[S]):
    """A training method, for a cohort of any number of agents.

    What aggregators broadcast are the weights w^k, unless a method needs more.
    """

    name: ClassVar[str]
    divergence_hint: ClassVar[str]
    """What keeps its weights in bounds, for whoever sees it diverge."""
    local_models: ClassVar[bool]
    """Whether agents have models of their own (else everyone has the consensus)."""
    server_side: ClassVar[bool] = False
    """Whether agents that are absent are left out; else their last uploads stay in the mean for a while."""
    weighs_answers: ClassVar[bool] = False
    """Whether ``aggregate`` takes no more than ``result.mean`` of what agents say, which then need not be kept."""

    @abstractmethod
    def init(self, problem: Problem, rows: Rows) -> S:
        """The agents before round 1; all models are zero."""

    @abstractmethod
    def step(self, state: S, now: Round) -> tuple[S, Floats | LazyAnswers]:
        """Round k at the agents: the consensus w^{k−1} comes in, uploads (n, d, p) go out.

        Only agents listed in ``now.active`` take part; the others' state and uploads stay untouched and must
        not be used.
        """

    @abstractmethod
    def plan(self, agent: int, n_rounds: int) -> ReleasePlan:
        """What agent i releases, round by round."""

    def start(self, shape: tuple[int, int], warm_start: Floats | None = None) -> Floats:
        """What is broadcast before round 1, for weights of shape (d, p)."""
        return np.zeros(shape) if warm_start is None else warm_start

    def with_prior(self, prior: Prior) -> Self:
        """The method with an aggregator that knows public rows; most can do no more than start from their model."""
        return self

    def model(self, consensus: Floats) -> Floats:
        """The weights (d, p) in what is broadcast."""
        return consensus

    def inferred(self, consensus: Floats) -> tuple[float, Floats | None]:
        """How clear the Hessian is of its noise (0: none was released), and the weights' covariance (d, d) if it is."""
        return 0.0, None

    def aggregate(self, result: RoundResult) -> Floats:
        """The aggregator: what was result in a round -> what is broadcast next; here the mean of recent uploads.

        Over the agents in it, duals sum to zero after every round, whoever left before: ``Σ w̃_i − γ_i/ρ = n·w`` and
        ``γ_i ← γ_i − ρ(w̃_i − w)`` give ``Σγ_i = 0``.
        """
        return consensus_step(result.recent)


class DeployableMethod(Method[S]):
    """A method whose agents say nothing of their rows but noisy means of statistics: what a guard can answer for.

    Rounds may differ in what they ask for. ``step`` is ``advance`` of the answers to ``parameters``; all but the
    answers is a function of public values, so that an agent can be rebuilt from its transcript.
    """

    @abstractmethod
    def init(self, problem: Problem, sizes: Sizes) -> S:
        """The agents before round 1, from public numbers."""

    @abstractmethod
    def release(self, round: int) -> tuple[str, Floats]:
        """The statistic that round k asks for, and every agent's noise multiplier z (n,)."""

    @abstractmethod
    def parameters(self, state: S, consensus: Floats, *, round: int) -> Floats:
        """The statistic's public parameters in round k, after w^{k−1} was heard: (n, *parameter_shape)."""

    @abstractmethod
    def advance(
        self, state: S, answers: Floats, consensus: Floats, *, round: int, problem: Problem
    ) -> tuple[S, Floats]:
        """The agents after round k, and their uploads (n, d, p), from noisy means (n, *shape)."""

    def event(self, statistic: str, noise_multiplier: float) -> AnyRelease:
        """What one answer costs: a Gaussian release."""
        return Release(noise_multiplier, statistic=statistic)

    @final
    def plan(self, agent: int, n_rounds: int) -> ReleasePlan:
        """What agent i releases, round by round: what ``release`` says, so that nothing else can be charged."""
        runs = self._runs(n_rounds)
        return ReleasePlan(tuple((self.event(name, float(z[agent])), count) for name, z, count in runs))

    def _runs(self, n_rounds: int) -> list[tuple[str, Floats, int]]:
        """Consecutive rounds that ask for the same, with their number; found once for all agents."""
        known: dict[int, list[tuple[str, Floats, int]]] = self.__dict__.setdefault("_known_runs", {})
        if n_rounds not in known:
            runs: list[tuple[str, Floats, int]] = []
            for k in range(1, n_rounds + 1):
                name, z = self.release(k)
                if runs and runs[-1][0] == name and runs[-1][1] is z:
                    runs[-1] = (name, z, runs[-1][2] + 1)
                else:
                    runs.append((name, z, 1))
            known[n_rounds] = runs
        return known[n_rounds]

    def step(self, state: S, now: Round) -> tuple[S, Floats | LazyAnswers]:
        """Round k at the agents of a cohort; those that are absent stay as they were."""
        statistic, z = self.release(now.number)
        asked = now.question(self.parameters(state, now.consensus, round=now.number), z, statistic)
        if self.weighs_answers and type(now.noise) is SimulatedNoise and asked.at_one_point:
            return state, LazyAnswers(asked, now.noise)
        answers = now.noise.answer(asked)
        new, uploads = self.advance(state, answers, now.consensus, round=now.number, problem=now.problem)
        return new if now.active is None else _merged(new, state, now.active), uploads


class ServerSideMethod(DeployableMethod[NoState]):
    """Agents remember nothing and send the answers that they were asked for; the aggregator makes the model of them."""

    local_models: ClassVar[bool] = False
    server_side: ClassVar[bool] = True

    def init(self, problem: Problem, sizes: Sizes) -> NoState:
        return NoState.of(problem, sizes)

    def advance(
        self, state: NoState, answers: Floats, consensus: Floats, *, round: int, problem: Problem
    ) -> tuple[NoState, Floats]:
        return state, answers


def plans_of(method: Method[Any], n_agents: int, n_rounds: int) -> list[ReleasePlan]:
    """The plans of all agents; those with the same noise share one, where nothing else can make a difference."""
    first = which = np.arange(n_agents)
    if isinstance(method, DeployableMethod):
        first, which = kinds(np.zeros(n_agents), *(z for _, z, _ in method._runs(n_rounds)))
    known = [method.plan(agent, n_rounds) for agent in first.tolist()]
    return [known[kind] for kind in which.tolist()]


def zero_models(problem: Problem, sizes: Sizes) -> Floats:
    """All local models at zero: (n, d, p)."""
    return np.zeros((sizes.n_agents, sizes.n_features, problem.loss.n_outputs))


def check_noise(noise_multiplier: Floats) -> None:
    if not (np.isfinite(noise_multiplier).all() and np.all(noise_multiplier >= 0.0)):
        raise StudyError(f"noise_multiplier must be numbers ≥ 0, not {noise_multiplier!r}")


def keep_absent(new: Floats, old: Floats, active: Integers | None) -> Floats:
    """The new values of the agents that took part, the old ones of the others."""
    if active is None:
        return new
    out = old.copy()
    out[active] = new[active]
    return out


def _merged(new: Any, old: Any, active: Integers) -> Any:
    """A state whose arrays (n, ...) are new for the agents in ``active`` only."""
    names = [each.name for each in fields(new) if isinstance(getattr(new, each.name), np.ndarray)]
    return replace(new, **{name: keep_absent(getattr(new, name), getattr(old, name), active) for name in names})
