"""Secure aggregation in one process: shares of noise, of which only the sum is used."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dpadmm import simulate
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.engine.noise import CohortQuery, ExactNoise, SecureSumNoise, SimulatedNoise, _batched
from dpadmm.errors import StudyError
from dpadmm.trusted.discrete_gaussian import MIN_SHARE_SCALE, SHARE_MARGIN, Lattice

COMMON = {"method": "auto", "n_agents": 6, "epsilon": 1.0, "seed": 3, "metrics_every": 0, "n_rounds": 7}


class Nothing:
    """A statistic whose sums are zero, so that an answer is noise."""

    name, row_norm, shape, parameter_shape = "nothing", 1.0, (40, 1), ()

    def accepts(self, parameters):
        return True

    def sums(self, rows, parameters, active=None, *, bound):
        return np.zeros((rows.n_agents, *self.shape))

    def means(self, rows, parameters, active=None):
        return np.zeros((rows.n_agents, *self.shape))


class Cohort:
    n_agents, n_rows = 8, np.array([100, 200, 300, 400, 100, 200, 300, 400])


def asked(z: float = 5.0, round: int = 1, active=None) -> CohortQuery:
    n = Cohort.n_agents
    return CohortQuery(Cohort(), Nothing(), np.zeros((n, 0)), np.full(n, z), round, active)  # type: ignore[arg-type]


def test_the_shares_of_honest_agents_add_up_to_the_noise_of_a_release() -> None:
    for noise in (ExactNoise(), SimulatedNoise(1, 8, (40, 1))):
        for min_honest_sites, active in ((8, None), (3, None), (2, np.array([1, 4, 6]))):
            pooled = SecureSumNoise(noise, min_honest_sites, Cohort.n_rows, 400)
            answers = np.array([pooled.answer(asked(round=k, active=active)) for k in range(1, 61)])
            members = np.arange(8) if active is None else active
            stated = 5.0 * 2.0 * math.sqrt(len(members) / min_honest_sites) / Cohort.n_rows[members].sum()
            assert answers.shape == (60, 1, 40, 1)
            # 2,400 numbers: the standard deviation of their own is 1.4% of it
            assert answers.std() == pytest.approx(stated, rel=0.07)


def test_a_share_is_never_smaller_than_its_part_of_the_noise() -> None:
    grid = Lattice(1.0, 104, 1000)
    whole = grid.sensitivity / grid.step
    for min_honest_sites in (2, 5, 100):
        share = grid.noise_scale(7.0, min_honest_sites)
        assert 7.0 * whole * (1.0 + SHARE_MARGIN) <= share * math.sqrt(min_honest_sites) <= 7.0 * whole * 1.001
        assert share >= MIN_SHARE_SCALE
    assert grid.noise_scale(7.0, 1) == grid.noise_scale(7.0)
    with pytest.raises(StudyError, match="too small"):
        Lattice(1.0, 1, 10).noise_scale(0.1, 10**9)


def test_one_share_equals_plain_aggregation_of_one_agent() -> None:
    """With h = n equal agents, the sum has the noise of one agent with all rows."""
    several = simulate("synthetic", **{**COMMON, "n_rounds": None}, aggregation="secure", min_honest_sites=6)
    alone = simulate("synthetic", **{**COMMON, "n_rounds": None, "n_agents": 1})
    assert several.outcome.rounds == alone.outcome.rounds > 20
    state, one = (each.method._state(each.outcome.broadcast) for each in (several, alone))
    assert state.clip == pytest.approx(one.clip, rel=0.2)
    assert np.corrcoef(several.weights.ravel(), alone.weights.ravel())[0, 1] > 0.95


def test_the_report_has_both_guarantees() -> None:
    result = simulate("synthetic", **COMMON, aggregation="secure", min_honest_sites=4, exact_noise=True)
    report = result.privacy
    assert report.exact_noise
    assert report.epsilon == pytest.approx(1.0)
    assert report.epsilon_if_others_collude == pytest.approx(exact_epsilon(2.0 * report.mu[0], 1e-5))
    written = json.loads(report.to_bytes())
    assert (written["aggregation"], written["min_honest_sites"]) == ("secure", 4)
    assert "4 honest agents" in written["guarantee"]
    assert "computational" in written["guarantee"]
    assert written["epsilon_if_others_collude"] == report.epsilon_if_others_collude
    local = simulate("synthetic", **COMMON).privacy
    assert local.to_dict()["aggregation"] == "plain"
    assert local.epsilon_if_others_collude == local.epsilon


def test_fewer_honest_agents_mean_more_noise() -> None:
    found = [simulate("synthetic", **COMMON, aggregation="secure", min_honest_sites=h).privacy for h in (2, 4, 6)]
    assert all(more.epsilon_if_others_collude > less.epsilon_if_others_collude for less, more in pairwise(found))
    assert {round(each.epsilon, 6) for each in found} == {1.0}


def test_exact_shares_of_unequal_agents_add_up_on_one_grid() -> None:
    """With given noise, the pooled answer is the sum of the guards' answers over all rows."""
    rng = np.random.default_rng(5)
    noise = {(i, k): rng.integers(-(10**6), 10**6, 40) for i in range(8) for k in (1, 2)}
    source = ExactNoise(lambda i, k: lambda scale, count: noise[i, k])
    pooled = SecureSumNoise(source, 3, Cohort.n_rows, 1000)
    total = sum(noise[i, 2] for i in range(8))
    step = Lattice(1.0, 40, 1000).step
    assert np.array_equal(pooled.answer(asked(round=2)).ravel(), total * step / Cohort.n_rows.sum())
    assert source.integer_sums(asked(round=2), Cohort.n_rows).dtype == np.int64


def test_agents_with_different_budgets_are_refused() -> None:
    unequal = replace(asked(), noise_multiplier=np.array([5.0] * 7 + [6.0]))
    with pytest.raises(StudyError, match="all agents have the same budget"):
        SecureSumNoise(ExactNoise(), 4, Cohort.n_rows, 400).answer(unequal)


def test_other_draws_come_from_the_source_of_the_shares() -> None:
    noise = SimulatedNoise(1, 8, (40, 1))
    pooled = SecureSumNoise(noise, 4, Cohort.n_rows, 400)
    assert np.array_equal(pooled.draw(3), noise.draw(3))
    assert np.array_equal(pooled.draw(3, 2, (5,)), noise.draw(3, 2, (5,)))
    assert [SecureSumNoise(each, 4, Cohort.n_rows, 400).exact for each in (noise, ExactNoise())] == [False, True]


def test_noise_in_portions_is_drawn_once() -> None:
    draw = _batched(Counter({1000: 5}))(0, 1)
    found = np.array([draw(1000, 20_000) for _ in range(5)])
    assert len(np.unique(found[:, :50], axis=0)) == 5
    assert found.std() == pytest.approx(1000.0, rel=0.02)


def test_absent_agents_add_no_share_and_small_rounds_are_skipped() -> None:
    changes = {**COMMON, "n_rounds": 30, "aggregation": "secure", "min_honest_sites": 4, "participation": 0.7}
    result = simulate("synthetic", **changes)
    there = result.outcome.attended.sum(axis=1)
    assert (there == 0).any()
    assert there[there > 0].min() >= 4
    assert result.privacy.epsilon < 1.0
    with pytest.raises(StudyError, match="round 1 has 3 agents, but min_honest_sites is 4"):
        SecureSumNoise(ExactNoise(), 4, Cohort.n_rows, 400).answer(asked(active=np.array([0, 1, 2])))


def test_aborted_rounds_are_charged_and_the_run_goes_on_even_without_its_first() -> None:
    changes = {
        **COMMON,
        "n_rounds": 25,
        "epsilon": 20.0,
        "aggregation": "secure",
        "min_honest_sites": 4,
        "metrics_every": 1,
    }
    whole = simulate("synthetic", **changes)
    for seed in range(40):
        aborted = simulate("synthetic", **{**changes, "seed": seed}, aborted_rounds=0.3)
        first_is_aborted = not aborted.method._state(aborted.outcome.broadcast).ridge
        if first_is_aborted:
            break
    assert first_is_aborted
    assert aborted.privacy.epsilon == pytest.approx(whole.privacy.epsilon)
    best, reached = (each.trace.last()["test_loss_global"] for each in (whole, aborted))
    assert reached < (best + math.log(2.0)) / 2.0


def test_unsupported_settings_of_secure_aggregation_are_errors() -> None:
    masked = {**COMMON, "aggregation": "secure"}
    for changes, words in (
        ({}, "requires min_honest_sites"),
        ({"min_honest_sites": 1}, "min_honest_sites"),
        ({"min_honest_sites": 7}, "there are 6 agents"),
        ({"min_honest_sites": 3, "method": "dp_admm"}, "does not support secure aggregation"),
        ({"min_honest_sites": 3, "epsilon": (1.0,) * 6}, "one budget"),
        ({"min_honest_sites": 3, "epsilon": None, "noise_multiplier": 0.0}, "above 0"),
        ({"min_honest_sites": 3, "aggregation": "plain"}, "requires aggregation"),
        ({"aggregation": "plain", "aborted_rounds": 0.1}, "aborted_rounds requires"),
    ):
        with pytest.raises(StudyError, match=words):
            simulate("synthetic", **{**masked, **changes})
