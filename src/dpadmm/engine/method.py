"""Interface of training methods: parameters, rounds at the agents, aggregation and release plan."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar, final

import numpy as np

from dpadmm.accounting.events import AnyRelease, Release
from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.engine.noise import CohortQuery, LazyAnswers, Noise, SimulatedNoise
from dpadmm.matrices.arrays import Floats, Integers, distinct_rows
from dpadmm.parameters.fields import NOT_IN_FILE, Positive
from dpadmm.queries import make_query
from dpadmm.queries.problem import Problem, Rows, Sizes

if TYPE_CHECKING:
    from dpadmm.methods.budget import PrivacyBudget
    from dpadmm.methods.prior import Prior

Rho = Annotated[Positive, "ADMM penalty parameter ρ."]
SolverTolerance = Annotated[
    Positive,
    "Tolerance of local solves, as a share of the mean gradient's sensitivity 2c1/m. Its privacy cost is included.",
]
Mechanism = Annotated[
    Literal["gaussian", "pure"], "Noise: gaussian, or pure (density ∝ exp(−ζ‖ξ‖), δ = 0 in every round)."
]

PATIENCE = 10
"""Number of missed rounds after which an agent leaves the mean until it answers again (decision 12)."""


@dataclass(frozen=True)
class Round:
    """Inputs of the agents in round k.

    Attributes
    ----------
    number : int
        k, from 1.
    consensus : (d, p)
        w^{k−1}, as broadcast.
    noise : Noise
        Noise source of all agents.
    active : (present,), optional
        Agents that participate; None for all.
    seed : int
        Seed of methods that sample rows, which is independent of the noise.
    """

    number: int
    problem: Problem
    rows: Rows
    consensus: Floats
    noise: Noise
    active: Integers | None = None
    seed: int = 0

    def query(self, statistic: str, parameters: Floats, noise_multiplier: Floats) -> CohortQuery:
        """Return the query for a statistic of every agent's rows, at its own public parameters (n, ...)."""
        query = make_query(statistic, self.problem, self.rows.n_features)
        return CohortQuery(self.rows, query, parameters, noise_multiplier, self.number, self.active)


@dataclass(frozen=True)
class RoundResult:
    """Answers received in round k, with the public sizes of the agents that sent them.

    Attributes
    ----------
    uploads : (n, *shape)
        Last uploads. Those of agents that missed this round are from earlier ones: server-side methods ignore them.
    consensus : array
        As broadcast in this round.
    round : int
        k, from 1.
    n_rows : (n,)
        m_i, which is public.
    active : (present,), optional
        Agents that answered in this round; None for all.
    answered : (n,), optional
        Last round in which each agent answered, 0 for never; None if all answered in this round.
    spread : float
        Noise of the answers relative to that of the release: above 1 if more than ``min_honest_sites`` agents add
        shares.
    """

    uploads: Floats | LazyAnswers
    consensus: Floats
    round: int
    problem: Problem
    n_rows: Integers
    active: Integers | None = None
    answered: Integers | None = None
    spread: float = 1.0

    def pooled(self, min_honest_sites: int) -> RoundResult:
        """Return the result with secure aggregation: one answer over the rows of all present agents."""
        members = self.n_rows if self.active is None else self.n_rows[self.active]
        spread = math.sqrt(len(members) / min_honest_sites)
        return replace(self, n_rows=members.sum(keepdims=True), active=None, spread=spread)

    @property
    def present(self) -> Integers:
        """Indices of the agents that answered."""
        return np.arange(len(self.n_rows)) if self.active is None else self.active

    def multipliers(self, z: Floats) -> Floats:
        """Return the noise multipliers of the present agents' answers, from z per agent (n,) or common to all (1,)."""
        n = len(self.n_rows)
        return np.broadcast_to(z[:n], (n,))[self.present] * self.spread

    def mean(self, weights: Floats | None = None) -> Floats:
        """Return the mean of the present agents' answers, weighted by ``weights`` (present,), which sum to 1."""
        if isinstance(self.uploads, LazyAnswers):
            n = len(self.present)
            return self.uploads.mean(np.full(n, 1.0 / n) if weights is None else weights)
        answers = self.uploads if self.active is None else self.uploads[self.active]
        if weights is None:
            return np.asarray(answers.mean(axis=0))
        return np.asarray(np.sum(weights.reshape(-1, *[1] * (answers.ndim - 1)) * answers, axis=0))

    @property
    def recent(self) -> Floats:
        """Uploads of agents that answered in one of the last ``PATIENCE`` rounds."""
        assert isinstance(self.uploads, np.ndarray)
        if self.answered is None:
            return self.uploads
        return self.uploads[(self.answered > 0) & (self.answered > self.round - PATIENCE)]


@dataclass(frozen=True)
class Covariance:
    """Covariance of the weights, from a released Hessian.

    Attributes
    ----------
    hessian_snr : float
        Smallest eigenvalue of the Hessian relative to the value that intervals need.
    matrix : (d, d), optional
        None if ``hessian_snr`` is below 1.
    """

    hessian_snr: float
    matrix: Floats | None


class State(Protocol):
    """State of a cohort of agents between rounds.

    Messages may depend on it only through the public transcript. A solver's starting point may be private: it changes
    the release by at most the solver's tolerance, whose privacy cost is included.
    """

    @property
    def released(self) -> Floats:
        """The public local models w̃_i: (n, d, p)."""


@dataclass(frozen=True)
class NoState:
    """Agents without state; every agent's model is the consensus."""

    released: Floats

    @classmethod
    def of(cls, problem: Problem, sizes: Sizes) -> NoState:
        shape = (sizes.n_agents, sizes.n_features, problem.loss.n_outputs)
        return cls(np.broadcast_to(np.zeros(()), shape))  # needs no memory


S = TypeVar("S", bound=State)
T = TypeVar("T", bound=Any)


def prepared() -> Any:
    """Return a dataclass field that :meth:`Method.build` sets. It is not a parameter."""
    return field(default=None, kw_only=True, repr=False, compare=False, metadata=NOT_IN_FILE)


@dataclass(frozen=True)
class MethodChoice(ABC):
    """A method as studies and simulations name it. Its fields are the parameters.

    Parameters have the same names in Python, in files and on the command line. The decorator ``checked_parameters``
    checks them.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    """Name in figures and tables."""
    private: ClassVar[bool] = True
    """Whether it adds noise. References without noise have no budget."""
    deployable: ClassVar[bool] = False
    """Whether agents release only noisy sums over all their rows, which a guard can check and charge."""
    one_round: ClassVar[bool] = False
    """Whether every agent sends one message, whatever ``n_rounds`` is."""
    local_models: ClassVar[bool] = True
    """Whether agents have local models. Otherwise all use the consensus."""
    sums_only: ClassVar[bool] = False
    """Whether the aggregator needs only the sum of all answers, as with secure aggregation."""
    uses_public_rows: ClassVar[bool] = False
    """Whether the aggregator weights public rows against the noise. Other methods only start from their model."""

    @abstractmethod
    def concrete(self) -> Method[Any]:
        """Return the method that runs."""


class Method(MethodChoice, Generic[S]):
    """A training method for a cohort of any number of agents.

    :meth:`build` returns the method with noise for a budget. The aggregator broadcasts the weights w^k, or a larger
    state if the method needs one.
    """

    default_alpha: ClassVar[float] = 1e-4
    """Default weight of the regularizer."""
    default_rounds: ClassVar[int] = 100
    divergence_hint: ClassVar[str]
    """Suggestion shown when the run diverges."""
    server_side: ClassVar[bool] = False
    """Whether only answers of the current round are used. Otherwise, an agent's last upload stays in the mean while it
    misses up to ``PATIENCE`` rounds."""
    weighs_answers: ClassVar[bool] = False
    """Whether ``aggregate`` uses only ``result.mean``, so single answers need not be stored."""

    def concrete(self) -> Self:
        return self

    def build(self, problem: Problem, sizes: Sizes, budget: PrivacyBudget) -> Self:
        """Return the method for a cohort, with its ``prepared`` fields. No row is read."""
        return self

    @abstractmethod
    def init(self, problem: Problem, rows: Rows) -> S:
        """Return the agents' state before round 1; all models are zero."""

    @abstractmethod
    def step(self, state: S, now: Round) -> tuple[S, Floats | LazyAnswers]:
        """Run round k at the agents: from the consensus w^{k−1}, return the new state and the uploads (n, d, p).

        Only the agents in ``now.active`` participate. The state of the others does not change, and their uploads must
        not be used.
        """

    @abstractmethod
    def plan(self, agent: int, n_rounds: int) -> ReleasePlan:
        """Return the release plan of agent i."""

    def plans(self, n_agents: int, n_rounds: int) -> Sequence[ReleasePlan]:
        """Return the release plans of all agents."""
        return [self.plan(agent, n_rounds) for agent in range(n_agents)]

    def start(self, shape: tuple[int, int], warm_start: Floats | None = None) -> Floats:
        """Return the broadcast before round 1, for weights of shape (d, p)."""
        return np.zeros(shape) if warm_start is None else warm_start

    def with_prior(self, prior: Prior) -> Self:
        """Return the method with a prior from public rows. By default it is not used beyond the start."""
        return self

    def model(self, consensus: Floats) -> Floats:
        """Return the weights (d, p) of a broadcast."""
        return consensus

    def covariance(self, consensus: Floats) -> Covariance | None:
        """Return the covariance of the weights of a broadcast; None if no Hessian was released."""
        return None

    def aggregate(self, result: RoundResult) -> Floats:
        """Return the next broadcast from the result of a round; by default the mean of recent uploads.

        The duals of the agents in this mean sum to zero after every round, whichever agents left before:
        ``Σ w̃_i − γ_i/ρ = n·w`` and ``γ_i ← γ_i − ρ(w̃_i − w)`` give ``Σγ_i = 0``.
        """
        return consensus_step(result.recent)


class DeployableMethod(Method[S]):
    """A method whose agents release only noisy means of statistics, which a guard can check and charge.

    Rounds may request different statistics. ``step`` is ``advance`` with the answers at ``parameters``. Everything
    except the answers is a function of public values, so an agent can be restored from its transcript.
    """

    deployable: ClassVar[bool] = True

    @abstractmethod
    def init(self, problem: Problem, sizes: Sizes) -> S:
        """Return the agents' state before round 1, from public numbers."""

    @abstractmethod
    def release(self, round: int) -> tuple[str, Floats]:
        """Return the statistic of round k and every agent's noise multiplier z (n,); inf: no release in this round."""

    @abstractmethod
    def parameters(self, state: S, consensus: Floats, *, round: int) -> Floats:
        """Return the statistic's public parameters in round k, given w^{k−1}: (n, *parameter_shape)."""

    @abstractmethod
    def advance(
        self, state: S, answers: Floats, consensus: Floats, *, round: int, problem: Problem
    ) -> tuple[S, Floats]:
        """Return the agents' state after round k and their uploads (n, d, p), from noisy means (n, *shape)."""

    def event(self, statistic: str, noise_multiplier: float) -> AnyRelease:
        """Return the privacy event of one answer: a Gaussian release."""
        return Release(noise_multiplier, statistic=statistic)

    @final
    def plan(self, agent: int, n_rounds: int) -> ReleasePlan:
        """Return the release plan of agent i. It follows from ``release``, so nothing else can be charged."""
        return self._plan(agent, self._runs(n_rounds))

    @final
    def plans(self, n_agents: int, n_rounds: int) -> Sequence[ReleasePlan]:
        """Return the release plans of all agents. Agents with the same noise share one plan."""
        runs = self._runs(n_rounds)
        first, which = distinct_rows(np.zeros(n_agents), *(z for _, z, _ in runs))
        plans = [self._plan(agent, runs) for agent in first.tolist()]
        return [plans[kind] for kind in which.tolist()]

    def _plan(self, agent: int, runs: list[tuple[str, Floats, int]]) -> ReleasePlan:
        return ReleasePlan.from_runs(
            (None if np.isinf(z[agent]) else self.event(name, float(z[agent])), count) for name, z, count in runs
        )

    def _runs(self, n_rounds: int) -> list[tuple[str, Floats, int]]:
        """Return runs of consecutive rounds with the same release: statistic, z (n,) and number of rounds."""
        runs: list[tuple[str, Floats, int]] = []
        for k in range(1, n_rounds + 1):
            name, z = self.release(k)
            if runs and runs[-1][0] == name and runs[-1][1] is z:
                runs[-1] = (name, z, runs[-1][2] + 1)
            else:
                runs.append((name, z, 1))
        return runs

    def step(self, state: S, now: Round) -> tuple[S, Floats | LazyAnswers]:
        """Run round k at the agents of a cohort; the state of agents that miss the round does not change."""
        statistic, z = self.release(now.number)
        query = now.query(statistic, self.parameters(state, now.consensus, round=now.number), z)
        if self.weighs_answers and type(now.noise) is SimulatedNoise and query.at_one_point:
            return state, LazyAnswers(query, now.noise)
        answers = now.noise.answer(query)
        new, uploads = self.advance(state, answers, now.consensus, round=now.number, problem=now.problem)
        return merge_states(new, state, now.active), uploads


class ServerSideMethod(DeployableMethod[NoState]):
    """A method whose agents have no state and send their answers. The aggregator computes the model."""

    local_models: ClassVar[bool] = False
    server_side: ClassVar[bool] = True

    def init(self, problem: Problem, sizes: Sizes) -> NoState:
        return NoState.of(problem, sizes)

    def advance(
        self, state: NoState, answers: Floats, consensus: Floats, *, round: int, problem: Problem
    ) -> tuple[NoState, Floats]:
        return state, answers


def consensus_step(uploads: Floats) -> Floats:
    """Return ``w^k = mean_i c_i^k``."""
    return np.asarray(np.add.reduce(uploads, axis=0) / len(uploads))


def zero_models(problem: Problem, sizes: Sizes) -> Floats:
    """Return all local models at zero: (n, d, p)."""
    return np.zeros((sizes.n_agents, sizes.n_features, problem.loss.n_outputs))


def keep_absent(new: Floats, old: Floats, active: Integers | None) -> Floats:
    """Return the new values for active agents and the old ones for the others."""
    if active is None:
        return new
    out = old.copy()
    out[active] = new[active]
    return out


def merge_states(new: T, old: T, active: Integers | None) -> T:
    """Return a state with the new arrays (n, ...) for active agents and the old ones for the others."""
    if active is None:
        return new
    names = [field.name for field in fields(new) if isinstance(getattr(new, field.name), np.ndarray)]
    return replace(new, **{name: keep_absent(getattr(new, name), getattr(old, name), active) for name in names})
