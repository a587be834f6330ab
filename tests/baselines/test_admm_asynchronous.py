"""Asynchronous DP-ADMM: as written with late answers, what each agent is charged, and an attack."""

from __future__ import annotations

import numpy as np
import pytest
from cohorts import SIZES, cohort
from linear_games import PROBLEM, attack, budget_of, world
from written_admm import run, slope

from dpadmm import simulate
from dpadmm.accounting.composition import tally_epsilon
from dpadmm.accounting.events import Release
from dpadmm.baselines import AdmmAsynchronous
from dpadmm.baselines.admm_asynchronous import draw_answers
from dpadmm.engine.minimizer import minimizer
from dpadmm.errors import StudyError
from dpadmm.losses import Logistic
from dpadmm.queries.problem import Problem
from dpadmm.regularizers import L2

N, D, RHO, ETA, DELAY = len(SIZES), 5, 0.2, 1.5, 3
LOGISTIC = Problem(Logistic(), L2(), 0.02)


def built(n: int, rounds: int, z: float = 0.0, problem: Problem = LOGISTIC, delay: int = DELAY) -> AdmmAsynchronous:
    method = AdmmAsynchronous(RHO, 3.0, "constant", ETA, max_delay=delay)
    return method.build(problem, world(1.0, n), budget_of(rounds, n, z))


def test_without_noise_it_is_written_out_agent_by_agent():
    """Every agent keeps the consensus that it got after its last answer, and works on it until the next."""
    rows, method, rounds = cohort(Logistic()), built(N, 12), 12
    answers = draw_answers(1, DELAY, rounds, N)
    assert answers.any(axis=0).all()
    assert not answers.all(axis=0).any()
    w, models, dual, last = np.zeros((D, 1)), np.zeros((N, D, 1)), np.zeros((N, D, 1)), np.zeros((N, D, 1))
    got = [w] * N
    for k in range(rounds):
        for i in np.flatnonzero(answers[k]):
            dual[i] = dual[i] - RHO * (models[i] - got[i])  # with the consensus of its own last round
            there = slope(LOGISTIC, rows.agent(i), models[i])
            models[i] = (models[i] / ETA + RHO * got[i] + dual[i] - there) / (RHO + 1.0 / ETA)
            last[i] = models[i] - dual[i] / RHO
        w = last.mean(axis=0)
        for i in np.flatnonzero(answers[k]):
            got[i] = w
        np.testing.assert_allclose(run(method, LOGISTIC, rows, k + 1).consensus, w, atol=1e-12)


def test_without_delays_it_is_dp_admm():
    runs = [
        simulate("synthetic", method=method, epsilon=1.0, delta=1e-3, n_agents=4, n_rounds=9, seed=1)
        for method in ({"name": "admm_asynchronous", "max_delay": 1}, "dp_admm")
    ]
    np.testing.assert_allclose(runs[0].outcome.released, runs[1].outcome.released, rtol=1e-12)
    np.testing.assert_array_equal(runs[0].method.noise_multiplier, runs[1].method.noise_multiplier)
    assert runs[0].privacy.epsilon == runs[1].privacy.epsilon


def test_without_noise_it_reaches_the_optimum():
    rows = cohort(Logistic())
    np.testing.assert_allclose(
        run(built(N, 3000), LOGISTIC, rows, 3000).consensus, minimizer(LOGISTIC, rows), atol=1e-3
    )


def test_delays_are_bounded_and_public():
    answers = draw_answers(1, 4, 200, 50)
    gaps = [np.diff(np.concatenate([[-1], np.flatnonzero(answers[:, i])])) for i in range(50)]
    assert max(gap.max() for gap in gaps) == 4
    assert np.concatenate(gaps).mean() == pytest.approx(2.5, rel=0.05)
    np.testing.assert_array_equal(answers, draw_answers(1, 4, 200, 50))
    assert draw_answers(1, 1, 9, 3).all()


def test_agents_are_charged_for_their_own_answers_and_all_have_the_total_epsilon():
    result = simulate("synthetic", method="admm_asynchronous", epsilon=1.0, delta=1e-3, n_agents=9, n_rounds=21, seed=1)
    counts = result.method.answers.sum(axis=0)
    assert len(set(counts.tolist())) > 1
    for agent, plan in enumerate(result.method.plans(9, 21)):
        ((release, n),) = plan.tally()
        assert isinstance(release, Release)
        assert n == counts[agent]
        assert [plan.at(k) is not None for k in range(1, 22)] == result.method.answers[:, agent].tolist()
        assert tally_epsilon(plan.tally(), 1e-3) == pytest.approx(1.0, rel=1e-9)
    assert result.privacy.epsilon <= 1.0


def test_an_attack_finds_the_releases_of_an_agents_own_answers():
    """All agents get the delays of one, so that they are trials of the same game."""
    alike = draw_answers(1, DELAY, 6, 1)

    def build(z):
        def method(n):
            answers = np.broadcast_to(alike, (6, n))
            return AdmmAsynchronous(
                RHO, 3.0, "constant", ETA, answers=answers, noise_multiplier=np.full(n, z),
                step_sizes=built(n, 6, z, PROBLEM).step_sizes,
            )  # fmt: skip

        return method

    mu = np.sqrt(alike.sum()) / 2.0
    assert 1 < alike.sum() < 6
    found = attack(build(2.0), build(0.0), 6)
    assert found.mu == pytest.approx(mu, rel=0.05)
    assert 0.7 * mu < found.proven <= mu
    assert attack(build(2.0), build(0.0), 6, share=0.5).proven > mu


def test_other_absences_are_refused():
    with pytest.raises(StudyError, match="has delays of its own, so participation must be 1; use max_delay"):
        simulate("synthetic", method="admm_asynchronous", epsilon=1.0, n_agents=5, n_rounds=5, participation=0.5)


@pytest.mark.parametrize(("name", "value"), [("max_delay", 0), ("max_delay", 1.5), ("delay_seed", -1)])
def test_bad_parameters_are_named(name, value):
    with pytest.raises(
        StudyError, match=rf"^admm_asynchronous: {name} must be a whole number of at least 1, not [^\n]*$"
    ):
        AdmmAsynchronous(**{name: value})
