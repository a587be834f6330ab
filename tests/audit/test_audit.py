"""Parts of an audit: independent formulas, statistical limits, rates of error."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from looping import case
from scipy.special import ndtr
from scipy.stats import binomtest

from dpadmm.accounting.calibration import mu_from_epsilon
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.audit import Audit, AuditPlan, games_of, run_audit
from dpadmm.audit import run as run_module
from dpadmm.audit.formulas import FORMULAS, N_FEATURES
from dpadmm.audit.game import DP_ADMM, GAMES, IDLE, MAX_ROWS_PER_SITE, N_USED, PGD, PGD_COALITION, Game
from dpadmm.audit.gates import (
    Gate,
    Guesses,
    LowerBound,
    all_guesses,
    chance_of_mu,
    error_limit,
    judge,
    lower_bound,
    sharpness,
    statistical_gates,
    threshold,
)
from dpadmm.audit.trials import PER_LEDGER, Batch, TrialOutcomes, play, world_of
from dpadmm.errors import StudyError
from dpadmm.queries import QUERIES
from dpadmm.queries.problem import PublicSizes, make_rows
from dpadmm.trusted.discrete_gaussian import Lattice

MU, DELTA = 2.0, 1e-5
STUDIES = {name: game.study("test", mu=MU, delta=DELTA) for name, game in GAMES.items()}

every_game = pytest.mark.parametrize("game", GAMES.values(), ids=GAMES)


def asked(game: Game, role: int, round: int):
    """Return the parameters of a role's query before its first answer."""
    decoder = game.decoder()
    for k in range(round + 1):
        parameters, _ = decoder.decode(game.roles[role].sent[k], np.zeros((N_FEATURES, 1)))
    return parameters


# --- what the audit knows for itself is what the code does --------------------------------------------------


def test_every_statistic_of_the_closed_list_is_attacked():
    """A new query needs an independent formula and a game."""
    assert {name.split(" of ")[0] for name in FORMULAS} == QUERIES.keys()
    assert {id(round.formula) for game in GAMES.values() for round in game.rounds} == set(map(id, FORMULAS.values()))
    assert {name for game in GAMES.values() for name in game.statistics} == QUERIES.keys()
    assert set(run_audit(AuditPlan(trials=40, workers=1)).statistics) == QUERIES.keys()


@every_game
def test_grid_and_noise_are_those_of_the_guard(game):
    terms = STUDIES[game.name].terms
    for k, round in enumerate(game.rounds, 1):
        formula, release = round.formula, terms.plan.at(k)
        statistic = terms.statistics[round.statistic]
        assert release.statistic == round.statistic
        assert release.noise_multiplier == pytest.approx(game.exposure * (z := round.noise_multiplier(MU)), rel=1e-14)
        assert (formula.size, formula.row_norm) == (np.prod(statistic.shape), statistic.row_norm)
        for role in game.roles:
            grid = Lattice(formula.row_norm, formula.size, MAX_ROWS_PER_SITE if game.coalition else role.n_rows)
            assert formula.grid_step == grid.step
            share = grid.noise_scale(release.noise_multiplier, game.shares)
            left = share * (game.coalition.min_honest_sites if game.coalition else 1) ** 0.5
            assert formula.noise_steps(z) <= left < formula.noise_steps(z) * (1.0 + 1e-5)
        assert z**2 != pytest.approx(z, rel=0.1)


@every_game
def test_a_study_has_the_stated_cost(game):
    plan = STUDIES[game.name].terms.plan
    assert plan.n_rounds == game.n_rounds
    assert game.exposure * float(plan.mu_squared()) ** 0.5 == pytest.approx(MU, rel=1e-14)
    assert sum(round.share for round in game.rounds) == pytest.approx(1.0, rel=1e-14)


def test_sums_are_those_of_the_statistics():
    rng = np.random.default_rng(1)
    for kind, formula in FORMULAS.items():
        game = next(game for game in GAMES.values() if formula in [round.formula for round in game.rounds])
        name = kind.split(" of ")[0]
        statistic = STUDIES[game.name].terms.statistics[name]
        for role, world, scale in product(game.roles, [0, 1], [0.0, 0.3, 10.0, 600.0]):
            with case(kind, role.name, world, scale):
                features, labels = role.rows(world)
                parameters = scale * rng.standard_normal(statistic.parameter_shape)
                if name == "preconditioned_gradient":
                    parameters[:N_FEATURES] = np.abs(parameters[:N_FEATURES]) + 0.1
                    parameters[N_FEATURES : 2 * N_FEATURES][N_USED:] = 0.0
                if game.label:
                    parameters[-1] = abs(parameters[-1]) + 0.01  # the cap
                if name == "calibration":
                    parameters[-2:] = np.abs(parameters[-2:]) + 0.01
                total = formula.total(features, labels, parameters.ravel())
                sums = statistic.sums(make_rows(features, labels), parameters[None], bound=statistic.row_norm)
                near = (
                    1e-8 if name == "preconditioned_gradient" else 1e-12
                )  # a wide shape is clipped shorter (decision 7)
                np.testing.assert_allclose(total, sums.ravel(), rtol=near, atol=1e-10)
                assert not total[IDLE].any()


@every_game
def test_worlds_differ_in_one_row_as_far_as_they_can(game):
    for i, role in enumerate(game.roles):
        (one, labels), (other, same) = role.rows(0), role.rows(1)
        np.testing.assert_array_equal(labels, same)
        assert np.flatnonzero((one != other).any(axis=1)).tolist() == [0]
        for k, round in enumerate(game.rounds):
            total = round.formula.total
            point = asked(game, i, k)
            for factor in (0.0, 1.0, 1.5) if game is DP_ADMM else (1.0,):
                apart = total(one, labels, factor * point) - total(other, labels, factor * point)
                assert np.linalg.norm(apart) == pytest.approx(2.0 * round.formula.row_norm * round.sharpness, rel=1e-12)
                if game is DP_ADMM:
                    assert np.abs(one[0] @ (factor * point) - labels[0]) > 5.0  # without clipping far more


def test_rows_of_auto_are_worth_clipping_in_every_way():
    far, near = PGD.roles
    assert np.linalg.norm(far.rows(0)[0], axis=1).max() == pytest.approx(1.0)
    assert (far.sent[1] != far.sent[2]).any()  # shapes differ between rounds
    features, labels = near.rows(0)
    assert labels[~features.any(axis=1)].all()
    assert not features.any(axis=1).all()  # silent rows, with labels
    for role, k in product((0, 1), (1, 2)):
        scale, direction, point = np.split(asked(PGD, role, k), 3)
        assert np.linalg.norm(scale[:9]) > 2.0
        assert direction.any()
        assert point.any()


def test_the_admm_decoder_inverts_the_public_updates():
    rng, role, study = np.random.default_rng(2), DP_ADMM.roles[0], STUDIES["dp_admm"]
    method = study.method(role.n_rows)
    state = method.init(study.problem, PublicSizes(np.array([role.n_rows]), N_FEATURES))
    decoder = DP_ADMM.decoder()
    for round in range(1, 6):
        consensus, gradient = rng.standard_normal((N_FEATURES, 1)), rng.standard_normal((1, N_FEATURES, 1))
        point = method.parameters(state, consensus, round=round)[0, :, 0]
        state, uploads = method.advance(state, gradient, consensus, round=round, problem=study.problem)
        heard = decoder.decode(consensus, uploads[0])
        np.testing.assert_allclose(heard[0], point, atol=1e-10)
        np.testing.assert_allclose(heard[1], gradient[0, :, 0], atol=1e-10)


def test_the_pgd_decoder_returns_the_query_parameters():
    study = STUDIES["pgd"]
    for i, role in enumerate(PGD.roles):
        method = study.method(role.n_rows)
        state = method.init(study.problem, PublicSizes(np.array([role.n_rows]), N_FEATURES))
        for k in range(PGD.n_rounds):
            parameters = method.parameters(state, role.sent[k], round=k + 1)[0]
            np.testing.assert_allclose(asked(PGD, i, k), parameters, rtol=1e-15)
            assert role.sent[k].shape == study.broadcast_shape


def test_all_pairs_of_worlds_are_equally_frequent():
    pairs = [(world_of(number, 0), world_of(number, 1)) for number in range(40)]
    assert {pair: pairs.count(pair) for pair in pairs} == dict.fromkeys([(0, 0), (0, 1), (1, 0), (1, 1)], 10)


# --- what guesses prove -------------------------------------------------------------------------------------


def test_limits_are_clopper_pearson():
    for wrong, n in [(0, 50), (7, 50), (49, 50), (50, 50), (700, 4300)]:
        with case(wrong, n):
            limit = binomtest(wrong, n, alternative="less").proportion_ci(0.995, method="exact").high
            assert float(error_limit(np.array(wrong), n, 0.99)) == pytest.approx(limit, rel=1e-9)


def guesses(scores, worlds) -> Guesses:
    return Guesses(scores - MU / 2.0, worlds, float(ndtr(-MU / 2.0)))


def test_the_lower_bound_holds_and_is_tight():
    rng, n = np.random.default_rng(3), 2000
    worlds = np.repeat([0, 1], n)
    found = [
        lower_bound(guesses(rng.standard_normal(2 * n) + MU * worlds, worlds), delta=DELTA, confidence=0.99).mu
        for _ in range(300)
    ]
    assert max(found) <= MU  # at most 1 in 100; in truth 1 in 10,000, since both limits must fail together
    assert np.mean(found) > 0.9 * MU
    possible, chance = chance_of_mu(n, rate=float(ndtr(-MU / 2.0)), confidence=0.99)
    assert chance.sum() == pytest.approx(1.0, abs=1e-10)
    assert np.mean(found) == pytest.approx(float(possible @ chance), abs=0.02)


def test_random_guesses_prove_nothing():
    rng, worlds = np.random.default_rng(4), np.repeat([0, 1], 500)
    bound = lower_bound(guesses(rng.standard_normal(1000), worlds), delta=DELTA, confidence=0.99)
    assert (bound.mu, bound.epsilon) == (0.0, 0.0)


def test_guesses_of_several_games_are_counted_together():
    several = [Guesses(np.array([-1.0, 1.0]), np.array([0, 1]), 0.1), Guesses(np.ones(6), np.zeros(6, int), 0.2)]
    together = Guesses.joined(several)
    assert together.rate == pytest.approx(0.175)
    assert together.worlds.tolist() == [0, 1, 0, 0, 0, 0, 0, 0]
    bound = lower_bound(together, delta=DELTA, confidence=0.99)
    assert (bound.alpha, bound.beta) == (pytest.approx(6 / 7), 0.0)


def test_four_thousand_trials_usually_suffice_and_ten_thousand_always():
    def misses(n):
        sharp = [game.parts[0] for game in GAMES.values() if sharpness(game.parts[0]) == 1.0]
        assert len(sharp) == len(GAMES) - 3  # two bins of a histogram are less far apart, and so are pairs of counts
        rates = [float(ndtr(-threshold(part, MU))) for part in sharp]
        possible, chance = chance_of_mu(n, rate=np.mean(rates), confidence=0.99)
        return float(chance[possible < needed].sum())

    needed = mu_from_epsilon(0.9 * exact_epsilon(MU, DELTA), DELTA)
    assert 0.05 < misses(4300) < 0.15
    assert misses(AuditPlan().trials) < 2e-4


# --- gates --------------------------------------------------------------------------------------------------


def imagined(n: int, seed: int, game: Game = PGD) -> TrialOutcomes:
    """Return outcomes of correct code, from seeded noise."""
    rng = np.random.default_rng(seed)
    worlds = np.array([[world_of(k, i) for i in (0, 1)] for k in range(n)]).reshape(n, 2)
    scale = np.concatenate(
        [np.full(each.formula.size, each.formula.noise_steps(each.noise_multiplier(MU))) for each in game.rounds]
    )
    noise = np.rint(rng.standard_normal((n, 2, scale.size)) * scale) / scale
    directions = [
        np.sqrt(each.share) * each.sharpness * noise[..., cut.start]
        for each, cut in zip(game.rounds, game.cuts, strict=True)
    ]
    scores = [
        sum(directions[k] for k in part.rounds) / (part.mu_share * part.sharpness) + 2.0 * threshold(part, MU) * worlds
        for part in game.parts
    ]
    none = np.array([0])
    return TrialOutcomes(
        worlds,
        noise,
        rng.uniform(-0.5, 0.5, noise.shape if game.coalition else (n, 2, 0)),
        np.stack(scores, axis=-1),
        np.zeros((n, 2, game.n_rounds)),
        np.ones((n, 2)),
        none,
        np.array([9]),
        none,
        none,
        (),
    )


def gates(seen: TrialOutcomes, false_alarm: float = 1e-6, game: Game = PGD) -> dict[str, Gate]:
    found = judge([(game, seen)], mu=MU, delta=DELTA, confidence=0.99, false_alarm=false_alarm)
    assert len({gate.name for gate in found}) == len(found)
    return {gate.name: gate for gate in found}


def red(seen: TrialOutcomes, game: Game = PGD) -> set[str]:
    return {name for name, gate in gates(seen, game=game).items() if gate.failed}


@every_game
def test_the_rate_of_false_alarms_is_as_stated(game):
    alarms = [any(g.failed for g in gates(imagined(60, seed, game), 0.4, game).values()) for seed in range(60)]
    assert 0.2 < np.mean(alarms) < 0.55


@every_game
def test_all_statistical_gates_share_the_rate_of_false_alarms(game):
    found = gates(imagined(60, 1, game), 0.4, game).values()
    shared = [gate for gate in found if gate.game == game.name and "ε" not in gate.name and "power" not in gate.name]
    assert len(shared) == statistical_gates(game)
    assert sum(gate.false_alarm for gate in shared) == pytest.approx(0.4)


SOUND = imagined(400, 1)
FIRST, *LATER, LAST = PGD.cuts


def at(cut, factor):
    """Return factors for the numbers of a round, 1 for the others."""
    out = np.ones(SOUND.residuals.shape[-1])
    out[cut] = factor
    return out


def lagged(noise):
    out = noise.copy()
    for before, after in pairwise(PGD.cuts):
        n = min(after.stop - after.start, N_FEATURES)
        out[..., after.start : after.start + n] += 0.3 * noise[..., before][..., :n]
    return out / np.sqrt(np.square(out).mean(axis=0, keepdims=True))


def scored(change, part=0):
    """Replace the scores of one part."""
    out = SOUND.scores.copy()
    out[..., part] = change(out[..., part])
    return {"scores": out}


def swapped(noise):
    """Repeat the noise of round 2 of the first study in round 3 of the last one."""
    out = noise.copy()
    out[-1][..., LATER[1]] = noise[0][..., LATER[0]]
    return out


def test_each_gate_can_fail():
    for change, name in [
        ({"residuals": 0.95 * SOUND.residuals}, "noise: variance"),
        ({"residuals": 1.05 * SOUND.residuals}, "noise: variance"),
        *(
            ({"residuals": SOUND.residuals * at(cut, 0.7 if cut == LAST else 0.9)}, "noise: variance by round")
            for cut in PGD.cuts
        ),
        *(
            ({"residuals": SOUND.residuals + 0.6 * (at(cut.start + 5, 2.0) - 1.0)}, "noise: mean")
            for cut in PGD.cuts[:-1]
        ),
        ({"residuals": np.sign(SOUND.residuals)}, "noise: shape"),
        ({"residuals": lagged(SOUND.residuals)}, "noise: from round to round"),
        (
            {"residuals": 0.98 * SOUND.residuals + 0.2 * SOUND.residuals[:, ::-1]},
            "noise: from agent to agent",
        ),
        ({"residuals": np.concatenate([SOUND.residuals[:-1], SOUND.residuals[:1]])}, "noise: never twice"),
        ({"residuals": swapped(SOUND.residuals)}, "noise: never twice"),
        ({"residuals": np.full_like(SOUND.residuals, np.nan)}, "noise: variance"),
        *(
            (scored(change, k), name.format(part.name))
            for k, part in enumerate(PGD.parts)
            for change, name in [
                (lambda scores: scores + 0.5, "{}, world 0: mean"),
                (lambda scores: scores - 0.5, "{}, world 1: mean"),
                (lambda scores: 1.5 * scores, "{}, world 0: variance"),
                (lambda scores, part=part: 2.0 * scores - 2.0 * threshold(part, MU), "{}, world 1: variance"),
                (lambda scores: scores + 3.0 * (SOUND.worlds - 0.5), "{}: ε" if k else "ε not above the guarantee"),
            ]
        ),
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


def test_informative_masked_answers_fail():
    sound = imagined(400, 3, PGD_COALITION)
    rounds, studies = sound.masked.copy(), sound.masked.copy()
    rounds[..., LATER[1]] = rounds[..., LATER[0]]
    studies[1] = studies[0]
    assert red(sound, PGD_COALITION) == set()
    for masked in (0.97 * sound.masked, rounds, np.concatenate([studies[:2]] * 200), np.full_like(studies, np.nan)):
        assert red(replace(sound, masked=masked), PGD_COALITION) == {"masked answers"}


def test_a_weak_attack_fails_only_with_enough_trials():
    few, many = imagined(400, 2), imagined(10_000, 3)
    assert gates(few)["the audit has power"].passed is None
    assert gates(few)["the audit has power"].false_alarm == 0.0
    assert gates(many)["the audit has power"].passed is True
    blunt = gates(replace(many, scores=many.scores - 0.5 * many.worlds[..., None]))
    assert blunt["the audit has power"].failed
    assert blunt["preconditioned_gradient: power"].failed
    assert "moments: power" not in blunt  # with so little of μ, 10,000 trials cannot tell


def test_a_false_of_numpy_fails():
    """``np.False_ is False`` is false, so such a test of a gate would pass."""
    gate = Gate("x", 1.0, None, 0.0, np.bool_(False), 0.0, "")
    assert gate.failed
    for each in gates(SOUND).values():
        assert each.passed is None or type(each.passed) is bool


def test_refusals_only_fail():
    nobody = TrialOutcomes.joined([imagined(0, 1)])
    assert red(replace(nobody, refusals=("budget-cap",))) == {"requests are answered"}


def test_games_are_judged_together_and_separately():
    sound, numbers = imagined(400, 5, DP_ADMM), {"mu": MU, "delta": DELTA, "confidence": 0.99, "false_alarm": 1e-6}
    loud = replace(SOUND, residuals=0.5 * SOUND.residuals, refusals=("round-old",))
    found = [(gate.game, gate.name) for gate in judge([(PGD, loud), (DP_ADMM, sound)], **numbers) if gate.failed]
    assert ("pgd", "noise: variance") in found
    assert {game for game, name in found if name != "requests are answered"} == {"pgd"}
    assert (None, "requests are answered") in found
    assert all_guesses([(PGD, loud), (DP_ADMM, sound)], MU).worlds.size == 2 * 2 * 400
    # What one agent's auto noise and another's of dp_admm share would show
    twin = replace(sound, residuals=sound.residuals.copy())
    cut, mine = DP_ADMM.cuts[0], PGD.cuts[1]
    scale = [
        game.rounds[k].formula.noise_steps(game.rounds[k].noise_multiplier(MU)) for game, k in ((PGD, 1), (DP_ADMM, 0))
    ]
    twin.residuals[0, 0, cut] = np.rint(SOUND.residuals[7, 1, mine] * scale[0]) / scale[1]
    together = judge([(PGD, SOUND), (DP_ADMM, twin)], **numbers)
    assert [gate.name for gate in together if gate.failed] == ["noise: never twice"]


# --- runs ---------------------------------------------------------------------------------------------------


def test_workers_play_every_study_once_and_clean_up(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "memory_folder", lambda: str(tmp_path))
    heard = []
    plan = AuditPlan(trials=91, workers=2, false_alarm=1e-7, confidence=1.0 - 1e-7)
    audit = run_audit(plan, watch=heard.append)
    assert audit.outcome == "inconclusive"
    assert sorted(heard) == heard
    assert heard[-1] == audit.n_studies == 91
    trials = plan.shared()
    assert sum(trials.values()) == 91
    assert audit.outcomes.keys() == GAMES.keys() == trials.keys()
    for name, seen in audit.outcomes.items():
        assert seen.worlds.tolist() == [[world_of(k, 0), world_of(k, 1)] for k in range(trials[name])]
        first = seen.residuals[..., [cut.start for cut in GAMES[name].cuts]]
        assert len(np.unique(first)) == trials[name] * 2 * GAMES[name].n_rounds
    assert list(tmp_path.iterdir()) == []
    assert multiprocessing.active_children() == []


def test_an_audit_can_be_stopped():
    audit = run_audit(AuditPlan(trials=1000, workers=1), stop=iter([False, True]).__next__)
    assert audit.n_studies == PER_LEDGER
    with pytest.raises(KeyboardInterrupt):
        run_audit(AuditPlan(trials=1000, workers=1), stop=lambda: True)


def test_a_refused_study_is_reported_and_does_not_stop_the_others(monkeypatch):
    sound = run_module.play

    def with_a_study_too_many(batch: Batch) -> TrialOutcomes:
        return replace(sound(batch), refusals=("budget-cap",))

    monkeypatch.setattr(run_module, "play", with_a_study_too_many)
    audit = run_audit(AuditPlan(trials=40, workers=1))
    assert audit.outcome == "failed"
    assert "budget-cap" in next(gate.sentence for gate in audit.gates if gate.failed)


def test_nan_is_null_in_json(monkeypatch):
    sound = run_module.play

    def without_noise(batch: Batch) -> TrialOutcomes:
        seen = sound(batch)
        return replace(seen, residuals=np.full_like(seen.residuals, np.nan))

    monkeypatch.setattr(run_module, "play", without_noise)
    audit = run_audit(AuditPlan(trials=40, workers=1))
    assert audit.outcome == "failed"
    assert json.loads(json.dumps(audit.as_json(), allow_nan=False))["outcome"] == "failed"


AUDIT = Audit(AuditPlan(), {}, LowerBound(0.5, 1.0, 0.5, 1.0, 0.0, 0.0), (), 0.0)


def test_one_failed_gate_is_worse_than_an_undecided_one():
    gate = gates(SOUND)["noise: variance"]
    for results, outcome in [
        ([True, True], "passed"),
        ([True, None], "inconclusive"),
        ([None, None], "inconclusive"),
        ([True, False], "failed"),
        ([None, False], "failed"),
    ]:
        with case(results):
            judged = tuple(replace(gate, passed=passed) for passed in results)
            assert replace(AUDIT, gates=judged).outcome == outcome


@pytest.mark.parametrize("name", GAMES)
def test_a_batch_reads_the_ledger_and_restarts_agents(tmp_path, name):
    seen = play(Batch(name, "test", 0, 11, MU, DELTA), tmp_path)
    assert seen.inspected.sum() == 2 * 2 * GAMES[name].n_rounds
    assert seen.repeated.all()
    assert list(tmp_path.iterdir()) == []


def test_games_are_chosen_by_method_and_aggregation():
    assert games_of("all", "all") == tuple(GAMES)
    newton = ("newton", "newton_counts", "newton_times")
    assert games_of("all", "plain") == ("pgd", "dp_admm", *newton, "statistics", "evaluation")
    assert games_of("pgd", "secure") == ("pgd_coalition", "pgd_alone")
    for words, says in [(("dp_sgd", "all"), "method must be"), (("all", "x"), "aggregation must be")]:
        with pytest.raises(StudyError, match=says):
            games_of(*words)
    with pytest.raises(StudyError, match="no studies of dp_admm with secure aggregation"):
        games_of("dp_admm", "secure")


def test_an_invalid_plan_is_refused():
    for wrong in [
        {"games": ()},
        {"games": ("pgd", "pgd")},
        {"games": ("dp_sgd",)},
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
            AuditPlan(**wrong)
