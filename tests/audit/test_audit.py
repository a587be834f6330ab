"""The parts of an audit: what it knows for itself, what its limits prove, and how often it errs."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from looping import case
from scipy.stats import binomtest

from dpadmm._base.errors import StudyError
from dpadmm.audit import Plan, run_audit
from dpadmm.audit import run as run_module
from dpadmm.audit.game import (
    IDLE,
    N_FEATURES,
    N_ROUNDS,
    ROLES,
    SHARPNESS,
    Listener,
    gradient_sum,
    grid_step,
    make_study,
    noise_multiplier,
    noise_steps,
)  # fmt: skip
from dpadmm.audit.gates import Gate, chance_of_mu, error_limit, judge, lower_bound
from dpadmm.audit.trials import PER_LEDGER, Batch, Seen, play, world_of
from dpadmm.optim import kernels
from dpadmm.optim.problem import PublicSizes, make_rows
from dpadmm.privacy.accounting import exact_epsilon
from dpadmm.privacy.calibration import mu_from_epsilon
from dpadmm.trusted.discrete_gaussian import Grid

MU, DELTA = 2.0, 1e-5
STUDY = make_study("test", mu=MU, delta=DELTA)


# --- what the audit knows for itself is what the code does --------------------------------------------------


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_grid_and_noise_are_those_of_the_guard(role):
    grid = Grid(1.0, N_FEATURES, role.n_rows)
    assert grid_step() == grid.step
    assert noise_steps(MU) <= grid.noise_scale(noise_multiplier(MU)) < noise_steps(MU) * (1.0 + 1e-5)


def test_a_study_costs_what_is_said():
    assert STUDY.terms.plan.n_rounds == N_ROUNDS
    assert N_ROUNDS**0.5 / STUDY.noise_multiplier == pytest.approx(MU, rel=1e-14)
    assert noise_multiplier(MU) ** 2 != pytest.approx(noise_multiplier(MU), rel=0.1)


def test_gradients_are_those_of_the_kernel():
    for world, role in product([0, 1], ROLES):
        with case(world, role):
            features, labels = role.rows(world)
            rows, total = make_rows(features, labels), gradient_sum(features, labels)
            for scale in (0.0, 0.3, 10.0, 600.0):
                point = scale * np.random.default_rng(1).standard_normal(N_FEATURES)
                mean = kernels.gradient(rows, point[None, :, None], STUDY.problem.loss)[0, :, 0]
                np.testing.assert_allclose(total(point), mean * role.n_rows, rtol=1e-12, atol=1e-12)
                assert not total(point)[IDLE].any()


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_worlds_differ_in_one_row_as_far_as_they_can(role):
    (one, labels), (other, same) = role.rows(0), role.rows(1)
    np.testing.assert_array_equal(labels, same)
    assert np.flatnonzero((one != other).any(axis=1)).tolist() == [0]
    for point in (np.zeros(N_FEATURES), role.sent()[:, 0], 1.5 * role.sent()[:, 0]):
        shift = gradient_sum(one, labels)(point) - gradient_sum(other, labels)(point)
        assert np.linalg.norm(shift) == pytest.approx(2.0 * SHARPNESS, rel=1e-12)
        assert np.abs(one[0] @ point - labels[0]) > 5.0  # without clipping it would be far more


def test_a_listener_undoes_the_public_updates():
    rng, role = np.random.default_rng(2), ROLES[0]
    method = STUDY.method(role.n_rows)
    state = method.init(STUDY.problem, PublicSizes(np.array([role.n_rows]), N_FEATURES))
    listener = Listener()
    for round in range(1, 6):
        consensus, gradient = rng.standard_normal((N_FEATURES, 1)), rng.standard_normal((1, N_FEATURES, 1))
        point = method.parameters(state, consensus, round=round)[0, :, 0]
        state, uploads = method.advance(state, gradient, consensus, round=round, problem=STUDY.problem)
        heard = listener.hear(consensus, uploads[0])
        np.testing.assert_allclose(heard[0], point, atol=1e-10)
        np.testing.assert_allclose(heard[1], gradient[0, :, 0], atol=1e-10)


def test_all_pairs_of_worlds_come_alike():
    pairs = [(world_of(number, 0), world_of(number, 1)) for number in range(40)]
    assert {pair: pairs.count(pair) for pair in pairs} == dict.fromkeys([(0, 0), (0, 1), (1, 0), (1, 1)], 10)


# --- what guesses prove -------------------------------------------------------------------------------------


def test_limits_are_clopper_pearson():
    for wrong, n in [(0, 50), (7, 50), (49, 50), (50, 50), (700, 4300)]:
        with case(wrong, n):
            limit = binomtest(wrong, n, alternative="less").proportion_ci(0.995, method="exact").high
            assert float(error_limit(np.array(wrong), n, 0.99)) == pytest.approx(limit, rel=1e-9)


def test_the_lower_limit_holds_and_is_not_idle():
    rng, n = np.random.default_rng(3), 2000
    worlds = np.repeat([0, 1], n)
    found = [
        lower_bound(rng.standard_normal(2 * n) + MU * worlds, worlds, mu=MU, delta=DELTA, confidence=0.99).mu
        for _ in range(300)
    ]
    assert max(found) <= MU  # at most 1 in 100; in truth 1 in 10,000, since both limits must fail together
    assert np.mean(found) > 0.9 * MU
    possible, chance = chance_of_mu(n, mu=MU, confidence=0.99)
    assert chance.sum() == pytest.approx(1.0, abs=1e-10)
    assert np.mean(found) == pytest.approx(float(possible @ chance), abs=0.02)


def test_guesses_of_a_coin_prove_nothing():
    rng, worlds = np.random.default_rng(4), np.repeat([0, 1], 500)
    bound = lower_bound(rng.standard_normal(1000), worlds, mu=MU, delta=DELTA, confidence=0.99)
    assert (bound.mu, bound.epsilon) == (0.0, 0.0)


def test_four_thousand_trials_find_nine_tenths_mostly_and_ten_thousand_surely():
    def misses(n):
        possible, chance = chance_of_mu(n, mu=MU, confidence=0.99)
        return float(chance[possible < needed].sum())

    needed = mu_from_epsilon(0.9 * exact_epsilon(MU, DELTA), DELTA)
    assert 0.05 < misses(4300) < 0.15
    assert misses(Plan().trials) < 1e-4


# --- gates --------------------------------------------------------------------------------------------------


def imagined(n: int, seed: int) -> Seen:
    """What sound code would show, from seeded noise."""
    rng = np.random.default_rng(seed)
    worlds = np.array([[world_of(k, i) for i in (0, 1)] for k in range(n)]).reshape(n, 2)
    noise = np.rint(rng.standard_normal((n, 2, N_ROUNDS, N_FEATURES)) * noise_steps(MU)) / noise_steps(MU)
    direction = np.zeros(N_FEATURES)
    direction[0] = 1.0
    scores = (noise @ direction).sum(axis=2) / N_ROUNDS**0.5 + MU * SHARPNESS * worlds
    none = np.array([0])
    return Seen(
        worlds,
        noise,
        scores,
        np.zeros((n, 2, N_ROUNDS)),
        np.ones((n, 2)),
        none,
        np.array([9]),
        none,
        none,
        (),
    )


def gates(seen: Seen, false_alarm: float = 1e-6) -> dict[str, Gate]:
    numbers = {"mu": MU, "delta": DELTA, "confidence": 0.99}
    bound = lower_bound(seen.scores, seen.worlds, **numbers)
    return {gate.name: gate for gate in judge(seen, bound, **numbers, false_alarm=false_alarm)}


def red(seen: Seen) -> set[str]:
    return {name for name, gate in gates(seen).items() if gate.red}


def test_false_alarms_are_as_rare_as_said():
    alarms = [any(gate.red for gate in gates(imagined(60, seed), 0.4).values()) for seed in range(80)]
    assert 0.2 < np.mean(alarms) < 0.5


SOUND = imagined(400, 1)


def lagged(noise):
    out = noise.copy()
    out[:, :, 1:] += 0.2 * noise[:, :, :-1]
    return out / np.sqrt(np.square(out).mean(axis=(0, 3), keepdims=True))


def test_each_gate_can_turn_red():
    for change, name in [
        ({"residuals": 0.95 * SOUND.residuals}, "noise: variance"),
        ({"residuals": 1.05 * SOUND.residuals}, "noise: variance"),
        ({"residuals": SOUND.residuals * np.array([0.85, 1.0, 1.0])[:, None]}, "noise: variance by round"),
        ({"residuals": SOUND.residuals + 0.3 * (np.arange(N_FEATURES) == 5)}, "noise: mean"),
        ({"residuals": np.sign(SOUND.residuals)}, "noise: shape"),
        ({"residuals": lagged(SOUND.residuals)}, "noise: from round to round"),
        (
            {"residuals": 0.98 * SOUND.residuals + 0.2 * SOUND.residuals[:, ::-1]},
            "noise: from agent to agent",
        ),
        ({"residuals": np.concatenate([SOUND.residuals[:-1], SOUND.residuals[:1]])}, "noise: never twice"),
        ({"residuals": np.full_like(SOUND.residuals, np.nan)}, "noise: variance"),
        ({"scores": SOUND.scores + 0.5}, "score, world 0: mean"),
        ({"scores": SOUND.scores - 0.5}, "score, world 1: mean"),
        ({"scores": 1.5 * SOUND.scores}, "score, world 0: variance"),
        ({"scores": 2.0 * SOUND.scores - MU}, "score, world 1: variance"),
        ({"scores": SOUND.scores + 3.0 * (SOUND.worlds - 0.5)}, "ε not above the promise"),
        ({"off_grid": np.full_like(SOUND.off_grid, 0.2)}, "answers are whole numbers"),
        ({"off_grid": np.full_like(SOUND.off_grid, np.nan)}, "answers are whole numbers"),
        ({"repeated": np.arange(800).reshape(400, 2)}, "repeated requests"),
        ({"unrecorded": np.array([1])}, "recorded before sent"),
        ({"misspent": np.array([1])}, "ledger's sums"),
        ({"overrun": np.array([1])}, "nothing beyond the cap"),
        ({"refusals": ("release-failed",)}, "requests are answered"),
    ]:
        with case(change, name):
            assert red(SOUND) == set()
            assert name in red(replace(SOUND, **change))


def test_an_attack_that_finds_little_is_red_only_with_enough_trials():
    few, many = imagined(400, 2), imagined(10_000, 2)
    assert gates(few)["the audit has power"].passed is None
    assert gates(few)["the audit has power"].false_alarm == 0.0
    assert gates(many)["the audit has power"].passed is True
    blunt = replace(many, scores=many.scores - 0.5 * many.worlds)
    assert gates(blunt)["the audit has power"].red


def test_numpys_false_is_red():
    """``np.False_ is False`` is false, and a gate that is asked so would be green."""
    gate = Gate("x", 1.0, None, 0.0, np.bool_(False), 0.0, "")
    assert gate.red
    for each in gates(SOUND).values():
        assert each.passed is None or type(each.passed) is bool


def test_nothing_but_refusals_is_red():
    nobody = Seen.joined([imagined(0, 1)])
    assert red(replace(nobody, refusals=("budget-cap",))) == {"requests are answered"}


# --- runs ---------------------------------------------------------------------------------------------------


def test_workers_play_every_study_once_and_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "memory_folder", lambda: str(tmp_path))
    heard = []
    plan = Plan(trials=50, workers=2, false_alarm=1e-7, confidence=1.0 - 1e-7)
    audit = run_audit(plan, watch=heard.append)
    assert audit.passed
    assert sorted(heard) == heard
    assert heard[-1] == audit.n_studies == 50
    assert audit.seen.worlds.tolist() == [[world_of(k, 0), world_of(k, 1)] for k in range(50)]
    assert len(np.unique(audit.seen.residuals[..., 0])) == 50 * 2 * N_ROUNDS
    assert list(tmp_path.iterdir()) == []
    assert multiprocessing.active_children() == []


def test_an_audit_can_be_stopped():
    audit = run_audit(Plan(trials=1000, workers=1), stop=iter([False, True]).__next__)
    assert audit.n_studies == PER_LEDGER
    with pytest.raises(KeyboardInterrupt):
        run_audit(Plan(trials=1000, workers=1), stop=lambda: True)


def test_a_refused_study_is_told_and_does_not_stop_the_others(monkeypatch):
    sound = run_module.play

    def with_a_study_too_many(batch: Batch) -> Seen:
        return replace(sound(batch), refusals=("budget-cap",))

    monkeypatch.setattr(run_module, "play", with_a_study_too_many)
    audit = run_audit(Plan(trials=40, workers=1))
    assert not audit.passed
    assert "budget-cap" in next(gate.sentence for gate in audit.gates if gate.red)


def test_what_is_not_a_number_is_null_in_json(monkeypatch):
    sound = run_module.play

    def without_noise(batch: Batch) -> Seen:
        seen = sound(batch)
        return replace(seen, residuals=np.full_like(seen.residuals, np.nan))

    monkeypatch.setattr(run_module, "play", without_noise)
    audit = run_audit(Plan(trials=40, workers=1))
    assert not audit.passed
    assert json.loads(json.dumps(audit.as_json(), allow_nan=False))["passed"] is False


def test_a_batch_reads_the_ledger_and_restarts_agents(tmp_path):
    seen = play(Batch("test", 0, 11, MU, DELTA), tmp_path)
    assert seen.looks.sum() == 2 * 2 * N_ROUNDS
    assert seen.repeated.all()
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_cannot_be():
    for wrong in [
        {"trials": 0},
        {"trials": 39},
        {"trials": 1e4},
        {"mu": 0.0},
        {"mu": float("nan")},
        {"mu": 11.0},
        {"delta": 0.0},
        {"delta": 1.0},
        {"workers": 0},
        {"confidence": 1.0},
        {"false_alarm": 0.0},
    ]:
        with case(wrong), pytest.raises(StudyError, match=next(iter(wrong))):
            Plan(**wrong)
