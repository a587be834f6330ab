"""Decentralised ADMM: as written edge by edge, graphs, the star, and an attack."""

from __future__ import annotations

import numpy as np
import pytest
from cohorts import SIZES, cohort
from linear_games import PROBLEM, attack, budget_of, world
from written_admm import argmin, run

from dpadmm import simulate
from dpadmm.accounting.events import Release
from dpadmm.baselines import AdmmGraph, AdmmPvp
from dpadmm.baselines.admm_graph import parse_edges, regular_edges
from dpadmm.engine.method import Round
from dpadmm.engine.minimizer import minimizer
from dpadmm.engine.noise import SimulatedNoise
from dpadmm.errors import StudyError
from dpadmm.losses import Logistic
from dpadmm.queries.problem import Problem
from dpadmm.regularizers import L2

N, D, RHO = len(SIZES), 5, 0.2
LOGISTIC = Problem(Logistic(), L2(), 0.02)
KITE = "1-2,2-3,1-3,3-4"


def built(n: int = N, z: float = 0.0, problem: Problem = LOGISTIC, rho: float = RHO, **graph: object) -> AdmmGraph:
    method = AdmmGraph(rho, 1e-9, **graph)  # type: ignore[arg-type]
    return method.build(problem, cohort(Logistic()) if n == N else world(1.0, n), budget_of(4, n, z))


def test_without_noise_it_is_written_out_with_a_dual_for_every_end_of_an_edge():
    """Zhang and Zhu's constraints w_i = z_e = w_j, on a graph whose agents have different degrees."""
    rows, edges = cohort(Logistic()), [(0, 1), (1, 2), (0, 2), (2, 3)]
    rho = RHO * N / (2 * len(edges))
    middle = {e: np.zeros((D, 1)) for e in edges}
    dual = {(i, e): np.zeros((D, 1)) for e in edges for i in e}
    models = np.zeros((N, D, 1))
    for _ in range(6):
        for i in range(N):
            own = [e for e in edges if i in e]
            center = np.mean([middle[e] + dual[i, e] / rho for e in own], axis=0)
            models[i] = argmin(LOGISTIC, rows, i, center, rho * len(own))
        for e in edges:
            middle[e] = np.mean([models[i] - dual[i, e] / rho for i in e], axis=0)
            for i in e:
                dual[i, e] = dual[i, e] - rho * (models[i] - middle[e])
    np.testing.assert_allclose(run(built(edges=KITE), LOGISTIC, rows, 6).released, models, atol=1e-7)


@pytest.mark.parametrize("graph", [{"graph": "ring"}, {"graph": "grid"}, {"graph": "complete"}, {"graph": "star"},
                                   {"graph": "regular", "degree": 2}, {"edges": KITE}])  # fmt: skip
def test_without_noise_all_agents_reach_the_optimum(graph):
    rows = cohort(Logistic())
    outcome = run(built(**graph), LOGISTIC, rows, 400)
    best = np.broadcast_to(minimizer(LOGISTIC, rows), (N, D, 1))
    np.testing.assert_allclose(outcome.released, best, atol=5e-3)


def test_a_star_is_the_algorithm_with_aggregator():
    """Also with noise."""
    runs = [
        simulate("synthetic", method=method, epsilon=1.0, delta=1e-3, n_agents=12, n_rounds=20, seed=1)
        for method in ({"name": "admm_graph", "graph": "star"}, "admm_pvp")
    ]
    np.testing.assert_allclose(runs[0].weights, runs[1].weights, rtol=1e-9)
    np.testing.assert_allclose(runs[0].outcome.released, runs[1].outcome.released, atol=1e-9)
    assert runs[0].privacy.epsilon == runs[1].privacy.epsilon
    assert runs[0].method.messages == 24


@pytest.mark.parametrize(
    ("graph", "n", "edges"), [("ring", 100, 100), ("grid", 100, 180), ("complete", 100, 4950), ("ring", 2, 1),
                              ("grid", 6, 7), ("grid", 7, 6)]
)  # fmt: skip
def test_graphs_have_their_edges(graph, n, edges):
    method = built(n, problem=PROBLEM, graph=graph)
    assert method.messages == 2 * edges
    assert len({frozenset(e) for e in method.generate(n)}) == edges
    np.testing.assert_allclose(method.mixing.sum(axis=1), 1.0)
    np.testing.assert_allclose(method.penalties.mean(), RHO)


@pytest.mark.parametrize(("n", "degree"), [(100, 4), (10, 9), (7, 2), (2, 1), (50, 3)])
def test_random_regular_graphs(n, degree):
    edges = regular_edges(n, degree, seed=1)
    assert len(set(edges)) == n * degree // 2
    assert all(i < j for i, j in edges)
    assert (np.bincount(np.ravel(edges)) == degree).all()
    assert edges == regular_edges(n, degree, seed=1)
    assert degree in (9, 1) or edges != regular_edges(n, degree, seed=2)


def test_messages_go_to_neighbours_only():
    """The next point of an agent depends on its neighbours' last messages, and on no other."""
    method, noise = built(6, problem=PROBLEM, graph="ring"), SimulatedNoise(1, 6, (D, 1))
    rows = world(1.0, 6)
    _, sent = method.step(method.init(PROBLEM, rows), Round(1, PROBLEM, rows, method.start((3, 1)), noise))
    changed = sent.copy()
    changed[2] += 1.0
    moved = np.abs(method.mixing @ (changed - sent)[:, :, 0]).max(axis=1) > 0.0
    assert moved.tolist() == [False, True, True, True, False, False]


def test_a_round_is_a_gaussian_release_whatever_the_degree():
    assert {built(z=2.0, edges=KITE).plan(i, 4).at(3) for i in range(N)} == {Release(2.0)}


@pytest.mark.parametrize("graph", [{"graph": "ring"}, {"graph": "star"}])
def test_an_attack_finds_all_releases_and_not_more(graph):
    def build(z):
        return lambda n: built(n, z, PROBLEM, **graph)

    mu = np.sqrt(3.0) / 2.0
    found = attack(build(2.0), build(0.0), 3)
    assert found.mu == pytest.approx(mu, rel=0.05)
    assert 0.7 * mu < found.proven <= mu
    assert attack(build(2.0), build(0.0), 3, share=0.5).proven > mu


def test_an_agent_of_high_degree_has_the_sensitivity_of_its_own_penalty():
    """Agent 3 of the kite has three edges: its minimiser moves less, and its noise is smaller."""
    released, n = [], 4
    for sign in (1.0, -1.0):
        rows = world(sign, n)
        method = AdmmGraph(RHO, 1e-9, edges=KITE).build(PROBLEM, rows, budget_of(1, n, 0.0))
        state, _ = method.step(
            method.init(PROBLEM, rows), Round(1, PROBLEM, rows, method.start((3, 1)), SimulatedNoise(1, n, (3, 1)))
        )
        released.append(state.released[:, 0, 0])
    limits = 2.0 / 4.0 / (RHO * np.array([2.0, 2.0, 3.0, 1.0]) / 2.0)
    np.testing.assert_allclose(np.abs(released[0] - released[1]), limits, rtol=1e-6)


def test_releases_of_other_agents_do_not_change_with_ones_rows():
    assert isinstance(built(z=1.0), AdmmPvp)
    rows, others = world(1.0, 8), world(-1.0, 8)
    sent = [run(built(8, 1.0, PROBLEM), PROBLEM, each, 1).released for each in (rows, others)]
    assert (np.abs(sent[0] - sent[1]).max(axis=(1, 2)) > 0.0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graph": "torus"}, "graph must be one of ring, grid, regular, star, complete, not 'torus'"),
        ({"degree": 0}, "degree must be a whole number of at least 1, not 0"),
        ({"edges": "1-2,2"}, "edges must be pairs of agents such as 1-2,2-3, not '2'"),
        ({"edges": "1-2,0-1"}, "edges must be pairs of agents such as 1-2,2-3, not '0-1'"),
        ({"edges": "1-2,3-3"}, "edges has 3-3, an edge from an agent to itself; remove it"),
        ({"edges": " , "}, "edges is empty; list pairs of agents such as 1-2,2-3, or use graph"),
        ({"edges": "ring"}, "edges must be text like [0-9, -]+, not 'ring'"),
    ],
)
def test_bad_parameters_are_named(options, message):
    with pytest.raises(StudyError) as caught:
        AdmmGraph(**options)
    assert str(caught.value) == f"admm_graph: {message}"


@pytest.mark.parametrize(
    ("options", "n", "message"),
    [
        ({"edges": "1-2,3-4"}, 4, "the graph is not connected, so agents cannot agree; add edges"),
        ({"edges": "1-2,2-9"}, 4, "edges names agent 9, but there are 4 agents"),
        ({"graph": "regular", "degree": 3}, 5, "there is no connected graph of 5 agents with degree 3; "),
        ({"graph": "regular", "degree": 1}, 4, "there is no connected graph of 4 agents with degree 1; "),
        ({"graph": "ring"}, 1, "a graph needs at least 2 agents; use admm_pvp"),
    ],
)
def test_graphs_that_do_not_fit_the_agents_are_refused(options, n, message):
    with pytest.raises(StudyError, match=rf"^admm_graph: {message}"):
        simulate("synthetic", method={"name": "admm_graph", **options}, epsilon=1.0, n_agents=n, n_rounds=2)


def test_every_agent_takes_part_in_every_round():
    with pytest.raises(StudyError, match="admm_graph needs the releases of all neighbours, so participation must be 1"):
        simulate("synthetic", method="admm_graph", epsilon=1.0, n_agents=5, n_rounds=5, participation=0.5)


def test_edges_are_counted_from_one_and_kept_once():
    assert parse_edges("2-1, 1-2 ,2-3") == [(0, 1), (1, 2)]
