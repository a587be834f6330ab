"""Decentralised ADMM on a graph (Zhang and Zhu 2017): no aggregator, neighbours exchange releases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from math import isqrt
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from msgspec import Meta
from scipy.sparse import csr_array

from dpadmm.baselines.admm_pvp import AdmmPvp
from dpadmm.baselines.local_solver import LocalProblems, tolerances
from dpadmm.baselines.solved_rounds import SolverState
from dpadmm.engine.method import Round, RoundResult, prepared
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.parameters.fields import Count, checked_parameters
from dpadmm.queries.problem import Problem, Sizes

GraphName = Literal["ring", "grid", "regular", "star", "complete"]
EdgeList = Annotated[str, Meta(pattern="^[0-9, -]+$")]
Edges = list[tuple[int, int]]


@checked_parameters
@dataclass(frozen=True)
class AdmmGraph(AdmmPvp):
    """ADMM with one constraint per edge, and primal variable perturbation.

    Agent i has d_i neighbours. The constraint of an edge e = (i, j) is ``w_i = z_e = w_j`` with penalty ρ_e. The duals
    of an edge sum to zero, so ``z_e = (w_i + w_j)/2`` and agents need only the sum γ_i of their duals:

    ``w_i^k = argmin_w f_i(w) − ⟨γ_i, w⟩ + (ρ_i/2)‖w − v_i^{k−1}‖²``, ``γ_i ← γ_i − ρ_i(w̃_i^k − v_i^k)``,

    with ``v_i = mean_{j ~ i}(w̃_i + w̃_j)/2`` and ``ρ_i = ρ_e d_i``. These are the iterations of Zhang and Zhu with
    η = ρ_e/2 and λ = −γ/2. ``ρ_e = ρ/mean(d)``, so that graphs of any degree have the penalty ρ per agent on average.

    In a *star* the centre is an aggregator without rows, which holds one z for all edges: v_i is the mean of all
    agents, and this is Algorithm 3.

    **Privacy.** Anyone who sees the messages of agent i sees w̃_i^k. It is the minimiser of a function of earlier
    messages and the rows, plus Gaussian noise of scale zΔ with ``Δ = (2c1/m_i + 2·tol)/(ρ_i + λc/n)``: a Gaussian
    release. γ_i and v_i are functions of messages. An agent sends one release to all neighbours, so its cost does not
    depend on its degree, or on who colludes. Zhang and Zhu bound the loss of one node in one iteration; here all
    rounds compose exactly.

    The reported global model is the mean of all v_i. No agent has it; local models are those of the agents.
    """

    graph: Annotated[GraphName, "ring, grid (as square as possible), regular (random), star, or complete."] = "ring"
    degree: Annotated[Count, "Number of neighbours in a regular graph."] = 4
    graph_seed: Annotated[Count, "Seed of a regular graph."] = 1
    edges: Annotated[EdgeList | None, "Edge list such as 1-2,2-3,1-3, with agents from 1; replaces graph."] = None
    mixing: csr_array | None = prepared()
    """``v = mixing · w̃``: (n, n). None for a star, where v is the mean."""
    degrees: Integers = prepared()

    name: ClassVar[str] = "admm_graph"
    title: ClassVar[str] = "ADMM on a graph"

    def __post_init__(self) -> None:
        if self.edges is not None:
            parse_edges(self.edges)

    def build(self, problem: Problem, sizes: Sizes, budget: PrivacyBudget) -> Self:
        n = sizes.n_agents
        degrees, mixing = np.ones(n, dtype=np.int64), None
        if n == 1:
            raise StudyError(f"{self.name}: a graph needs at least 2 agents; use admm_pvp")
        if self.edges is not None or self.graph != "star":
            edges = parse_edges(self.edges) if self.edges else list(self.generate(n))
            degrees, mixing = self._pairs(edges, n)
        return replace(super().build(problem, sizes, budget), mixing=mixing, degrees=degrees)

    def generate(self, n: int) -> Iterator[tuple[int, int]]:
        """Yield the edges of the graph on n agents, counted from 0."""
        if self.graph == "ring":
            yield from ((i, (i + 1) % n) for i in range(n if n > 2 else n - 1))
        elif self.graph == "grid":
            width = n // next(k for k in range(isqrt(n), 0, -1) if n % k == 0)
            yield from ((i, i + 1) for i in range(n) if (i + 1) % width)
            yield from ((i, i + width) for i in range(n - width))
        elif self.graph == "complete":
            yield from combinations(range(n), 2)
        else:
            yield from regular_edges(n, self.degree, self.graph_seed)

    def _pairs(self, edges: Edges, n: int) -> tuple[Integers, csr_array]:
        """Return degrees, and ``(I + D⁻¹A)/2``."""
        ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
        if len(ends) and ends.max() >= n:
            raise StudyError(f"{self.name}: edges names agent {ends.max() + 1}, but there are {n} agents")
        both = np.concatenate([ends, ends[:, ::-1]])
        if not is_connected(edges, n):
            raise StudyError(f"{self.name}: the graph is not connected, so agents cannot agree; add edges")
        degrees = np.bincount(both[:, 0], minlength=n)
        mean = csr_array((0.5 / degrees[both[:, 0]], (both[:, 0], both[:, 1])), shape=(n, n))
        half = csr_array((np.full(n, 0.5), (np.arange(n), np.arange(n))), shape=(n, n))
        return degrees, csr_array(mean + half)

    @property
    def messages(self) -> int:
        """Number of messages per round: one per agent and neighbour; with an aggregator, two per agent."""
        return 2 * len(self.degrees) if self.mixing is None else int(self.degrees.sum())

    @property
    def penalties(self) -> Floats:
        """ρ_i of every agent: (n,)."""
        return np.asarray(self.rho * (self.degrees / self.degrees.mean()))

    @property
    def dual_steps(self) -> Floats:
        return self.penalties[:, None, None]

    def problems(self, now: Round, dual: Floats) -> LocalProblems:
        centers = now.consensus + dual / self.dual_steps
        tolerance = tolerances(now.problem, now.rows, self.solver_tolerance)
        return LocalProblems(now.problem, now.rows, self.penalties, centers, tolerance)

    def step(self, state: SolverState, now: Round) -> tuple[SolverState, Floats]:
        if now.active is not None:
            raise StudyError(f"{self.name} needs the releases of all neighbours, so participation must be 1")
        state, _ = super().step(state, now)
        return state, state.released

    def start(self, shape: tuple[int, int], warm_start: Floats | None = None) -> Floats:
        return np.tile(super().start(shape, warm_start), (len(self.degrees), 1, 1))

    def aggregate(self, result: RoundResult) -> Floats:
        """Return v_i of every agent, which it computes from its neighbours' messages: (n, d, p)."""
        uploads = np.asarray(result.uploads)
        if self.mixing is None:
            return np.broadcast_to(super().aggregate(result), uploads.shape)
        return np.asarray(self.mixing @ uploads.reshape(len(uploads), -1)).reshape(uploads.shape)

    def model(self, consensus: Floats) -> Floats:
        return np.asarray(consensus.mean(axis=0))


def parse_edges(text: str) -> Edges:
    """Return the edges of a list such as ``1-2,2-3``, counted from 0, each once."""
    edges = set()
    for item in filter(None, (part.strip() for part in text.split(","))):
        ends = item.split("-")
        if len(ends) != 2 or not all(end.isdecimal() and 0 < len(end) < 10 and int(end) > 0 for end in ends):
            raise StudyError(f"admm_graph: edges must be pairs of agents such as 1-2,2-3, not {item!r:.60}")
        first, second = sorted(int(end) - 1 for end in ends)
        if first == second:
            raise StudyError(f"admm_graph: edges has {item}, an edge from an agent to itself; remove it")
        edges.add((first, second))
    if not edges:
        raise StudyError("admm_graph: edges is empty; list pairs of agents such as 1-2,2-3, or use graph")
    return sorted(edges)


def regular_edges(n: int, degree: int, seed: int) -> Edges:
    """Return the edges of a random connected graph in which all n agents have this degree."""
    if degree >= n or n * degree % 2 or (degree == 1 and n > 2):
        raise StudyError(
            f"admm_graph: there is no connected graph of {n} agents with degree {degree}; "
            "n·degree must be even, and degree at least 2 and below n"
        )
    circle = {(i, (i + k) % n) for i in range(n) for k in range(1, degree // 2 + 1)}
    chords = {(i, i + n // 2) for i in range(n // 2)} if degree % 2 else set()
    edges = [(min(e), max(e)) for e in circle | chords]
    rng = np.random.default_rng([seed, 5])
    for _ in range(1000):
        edges = swap_ends(sorted(edges), rng)
        if is_connected(edges, n):
            return edges
    raise StudyError(f"admm_graph: no connected graph found for graph_seed = {seed}; use another")


def swap_ends(edges: Edges, rng: np.random.Generator) -> Edges:
    """Return a graph with the same degrees: ten times as many random swaps of two edges' ends as there are edges."""
    present = set(edges)
    for one, other, flip in rng.integers(0, [len(edges), len(edges), 2], size=(10 * len(edges), 3)).tolist():
        (a, b), (c, d) = edges[one], edges[other][:: 1 - 2 * flip]
        new = (min(a, d), max(a, d)), (min(c, b), max(c, b))
        if a != d and c != b and new[0] != new[1] and not present & set(new):
            present -= {edges[one], edges[other]}
            present |= set(new)
            edges[one], edges[other] = new
    return sorted(edges)


def is_connected(edges: Edges, n: int) -> bool:
    """Return whether all agents are connected."""
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
    adjacency = csr_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(n, n))
    from scipy.sparse.csgraph import connected_components  # loads scipy.linalg: 10 MB

    return bool(connected_components(adjacency, directed=False)[0] == 1)
