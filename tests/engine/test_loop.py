"""The round loop: observers, stopping, interruption, averages and participation."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from cohorts import SIZES, cohort
from looping import case

from dpadmm.engine.loop import (
    Averages,
    Outcome,
    PlannedParticipation,
    RandomParticipation,
    RoundView,
    StopWhenStill,
    train,
)
from dpadmm.engine.method import PATIENCE
from dpadmm.engine.metrics import Metrics, TestRows, error
from dpadmm.engine.noise import SimulatedNoise
from dpadmm.errors import DivergenceError, StudyError
from dpadmm.losses import Hinge, Logistic
from dpadmm.matrices.arrays import Floats
from dpadmm.methods import DpAdmm, DpSgd
from dpadmm.methods.theory import Constant
from dpadmm.queries.problem import Problem, Rows
from dpadmm.regularizers import L2

N = len(SIZES)
PROBLEM = Problem(Logistic(), L2(), 0.01)
ROWS = cohort(Logistic())
RHO, ETA = 0.2, 0.8


def run(n_rounds: int = 7, *, z: float = 1.0, seed: int = 1, rows: Rows = ROWS, **options: Any) -> Outcome:
    method = DpAdmm(RHO, step_sizes=Constant(ETA, N), noise_multiplier=np.full(N, z))
    return train(method, PROBLEM, rows, n_rounds=n_rounds, noise=SimulatedNoise(seed, N, (5, 1)), **options)


def watched(n_rounds: int = 7, **options: Any) -> tuple[list[RoundView], Outcome]:
    seen: list[RoundView] = []
    outcome = run(n_rounds, observers=[seen.append], **options)
    return seen, outcome


# --- divergence --------------------------------------------------------------------------------------------


def runaway(n_rounds: int = 400, **options: Any) -> Outcome:
    """Steps 1,000 times too long for the L2 term, so that each overshoots."""
    problem = Problem(Logistic(), L2(), 1.0)
    method = DpSgd(1e3, noise_multiplier=np.full(N, 1.0))
    return train(method, problem, ROWS, n_rounds=n_rounds, noise=SimulatedNoise(1, N, (5, 1)), **options)


def test_a_diverging_run_raises_an_error_with_round_and_hint() -> None:
    seen: list[RoundView] = []
    with pytest.raises(DivergenceError, match=r"^dp_sgd diverged in round \d+ of 400: .*use a smaller l") as caught:
        runaway(observers=[seen.append])
    assert caught.value.round == len(seen) + 1
    assert all(np.isfinite(view.consensus).all() for view in seen)
    again = pickle.loads(pickle.dumps(caught.value))  # estimators may run in other processes
    assert (str(again), again.round) == (str(caught.value), caught.value.round)
    assert runaway(caught.value.round - 1).rounds == len(seen)


def test_an_overflowing_mean_is_divergence() -> None:
    problem = Problem(Logistic(), L2(), 0.0)
    method = DpSgd(1e8, noise_multiplier=np.full(N, 1e300))
    seen: list[RoundView] = []
    with pytest.raises(DivergenceError, match="diverged in round"):
        train(method, problem, ROWS, n_rounds=500, noise=SimulatedNoise(1, N, (5, 1)), observers=[seen.append])
    np.testing.assert_array_less(np.abs(seen[-1].consensus), 1e308)


# --- observers and stopping --------------------------------------------------------------------------------


def test_observers_see_every_round() -> None:
    seen, outcome = watched(7)
    assert [view.round for view in seen] == [1, 2, 3, 4, 5, 6, 7]
    assert {view.n_rounds for view in seen} == {7}
    assert (np.diff([view.seconds for view in seen]) > 0.0).all()
    np.testing.assert_array_equal(seen[-1].consensus, outcome.consensus)
    np.testing.assert_array_equal(seen[-1].released, outcome.released)
    assert outcome.rounds == 7
    assert outcome.n_attended.tolist() == [7] * N
    assert not outcome.interrupted
    assert outcome.seconds == seen[-1].seconds


def test_a_view_is_not_overwritten_by_later_rounds() -> None:
    seen, _ = watched(5)
    again, _ = watched(3)
    np.testing.assert_array_equal(seen[2].consensus, again[2].consensus)
    np.testing.assert_array_equal(seen[2].released, again[2].released)


def test_observers_do_not_change_the_run() -> None:
    np.testing.assert_array_equal(watched(7)[1].consensus, run(7).consensus)


def test_the_stop_rule_sees_public_values_and_ends_the_run() -> None:
    asked: list[tuple[int, Floats, Floats]] = []

    def stop(k: int, consensus: Floats, before: Floats) -> bool:
        asked.append((k, consensus, before))
        return k == 4

    seen, outcome = watched(7, stop=stop)
    assert (outcome.rounds, len(seen), outcome.n_attended.tolist()) == (4, 4, [4] * N)
    assert not outcome.interrupted
    np.testing.assert_array_equal(asked[0][2], np.zeros((5, 1)))
    for (_, now, _), (_, _, before) in pairwise(asked):
        np.testing.assert_array_equal(now, before)


def test_stop_when_still_stops_a_converged_run() -> None:
    outcome = run(5000, z=0.0, stop=StopWhenStill(1e-6))
    assert 10 < outcome.rounds < 5000
    assert np.linalg.norm(PROBLEM.gradient(ROWS, outcome.consensus)) < 1e-4


@pytest.mark.parametrize("when", [1, 3, 7])
def test_ctrl_c_keeps_the_completed_rounds(when: int) -> None:
    def press(view: RoundView) -> None:
        if view.round == when:
            raise KeyboardInterrupt

    stopped, whole = run(7, observers=[press], keep_interrupted=True), run(when)
    assert (stopped.rounds, stopped.interrupted) == (when, True)
    assert stopped.n_attended.tolist() == [when] * N
    np.testing.assert_array_equal(stopped.consensus, whole.consensus)
    np.testing.assert_array_equal(stopped.released, whole.released)
    np.testing.assert_array_equal(stopped.weights("all"), whole.weights("all"))


def test_ctrl_c_in_a_library_call_is_raised() -> None:
    def press(view: RoundView) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(7, observers=[press])


def test_a_warm_start_begins_at_public_weights() -> None:
    seen: list[RoundView] = []
    start = np.full((5, 1), 0.25)
    whole = run(4, observers=[seen.append])
    again = run(4, warm_start=whole.consensus)
    assert np.linalg.norm(again.consensus - whole.consensus) < np.linalg.norm(whole.consensus)
    assert not np.array_equal(run(1, warm_start=start).consensus, run(1).consensus)
    np.testing.assert_array_equal(run(1, warm_start=np.zeros((5, 1))).consensus, run(1).consensus)
    for bad in (np.zeros((5, 2)), np.full((5, 1), np.nan)):
        with pytest.raises(StudyError, match="warm_start must be finite weights of shape"):
            run(1, warm_start=bad)


def test_observers_see_the_whole_state() -> None:
    seen: list[RoundView] = []
    outcome = run(3, observers=[seen.append])
    assert seen[-1].state is outcome.state
    assert seen[-1].uploads is not None
    np.testing.assert_array_equal(seen[-1].uploads.mean(axis=0), outcome.consensus)
    assert [each.active for each in seen] == [None] * 3


def test_ctrl_c_before_the_first_round_leaves_zeros() -> None:
    def press(round: int) -> None:
        raise KeyboardInterrupt

    outcome = run(7, participation=press, keep_interrupted=True)
    assert (outcome.rounds, outcome.interrupted, outcome.n_attended.tolist()) == (0, True, [0] * N)
    for average in ("last", "all", "tail"):
        np.testing.assert_array_equal(outcome.weights(average), np.zeros((5, 1)))


def test_other_errors_of_observers_are_not_swallowed() -> None:
    def broken(view: RoundView) -> None:
        raise RuntimeError("broken observer")

    with pytest.raises(RuntimeError, match="broken observer"):
        run(3, observers=[broken])


# --- averages ----------------------------------------------------------------------------------------------


def test_averages_are_the_means_the_theorems_define() -> None:
    for n_rounds in [1, 2, 7, 8]:
        with case(n_rounds):
            averages = Averages(with_released=True)
            seen, outcome = watched(n_rounds, averages=averages)
            consensus = np.array([view.consensus for view in seen])
            released = np.array([np.zeros_like(seen[0].released), *(view.released for view in seen)])
            np.testing.assert_allclose(averages.consensus, consensus.mean(axis=0), atol=1e-14)
            np.testing.assert_allclose(averages.released, released[1:].mean(axis=0), atol=1e-14)  # k = 1..t
            np.testing.assert_allclose(averages.released_before, released[:-1].mean(axis=0), atol=1e-14)  # 0..t−1
            np.testing.assert_allclose(outcome.weights("all"), consensus.mean(axis=0), atol=1e-14)
            np.testing.assert_allclose(outcome.weights("tail"), consensus[n_rounds // 2 :].mean(axis=0), atol=1e-14)
            np.testing.assert_array_equal(outcome.weights("last"), consensus[-1])
            assert outcome.averages is averages


def test_a_run_stopped_before_its_tail_averages_all() -> None:
    outcome = run(100, stop=lambda k, now, before: k == 5)
    np.testing.assert_array_equal(outcome.weights("tail"), outcome.weights("all"))


def test_unknown_average_is_named() -> None:
    with pytest.raises(StudyError, match="average must be one of last, all, tail, not 'median'"):
        run(1).weights("median")  # type: ignore[arg-type]


# --- participation -----------------------------------------------------------------------------------------


def test_an_absent_agents_upload_stays_in_the_mean_and_it_is_not_charged() -> None:
    mask = np.array([[1, 1, 0, 1], [1, 0, 0, 1], [0, 0, 1, 0], [1, 1, 1, 1], [0, 1, 0, 0]], dtype=bool)
    seen, outcome = watched(5, participation=PlannedParticipation(mask))
    assert outcome.n_attended.tolist() == mask.sum(axis=0).tolist()
    before = np.zeros((N, 5, 1))
    for view, present in zip(seen, mask, strict=True):
        np.testing.assert_array_equal(view.released[~present], before[~present])
        assert (view.released[present] != before[present]).any(axis=(1, 2)).all()
        before = view.released
    # agent 2 has said nothing in round 1, so it does not count
    first = seen[0].released
    np.testing.assert_allclose(seen[0].consensus, first[mask[0]].mean(axis=0), atol=1e-15)
    assert not first[2].any()


def test_an_absent_agent_leaves_the_mean_and_the_other_duals_sum_to_zero() -> None:
    mask = np.ones((PATIENCE + 12, N), dtype=bool)
    mask[5 : PATIENCE + 8, 1] = False  # it answers in round 5 last, and is back in round PATIENCE + 9
    others, means, duals = [0, *range(2, N)], {}, {}

    def watch(view: RoundView) -> None:
        uploads = [view.uploads[others], view.uploads]
        means[view.round] = [bool(np.allclose(view.consensus, each.mean(axis=0), atol=1e-14)) for each in uploads]
        duals[view.round] = [abs(view.state.dual[who].sum(axis=0)).max() for who in (others, slice(None), [1])]

    run(len(mask), participation=PlannedParticipation(mask), observers=[watch])
    left = range(PATIENCE + 5, PATIENCE + 9)
    assert [k for k, (without, _) in means.items() if without] == list(left)
    assert [k for k, (_, with_it) in means.items() if not with_it] == list(left)
    assert duals[left[2]][0] < 1e-12 < 1e-3 < duals[left[2]][2], "its own dual is not the others' to close"
    assert duals[len(mask)][1] < 1e-12, "when it is back, all sum to zero again"


def test_full_participation_equals_no_plan() -> None:
    plan = PlannedParticipation(np.ones((7, N), dtype=bool))
    np.testing.assert_array_equal(run(7, participation=plan).consensus, run(7).consensus)


def test_random_participation_has_its_chance_and_its_seed() -> None:
    who = RandomParticipation(0.3, 50, seed=4)
    rounds = [who(k) for k in range(1, 401)]
    share = np.mean([len(present) / 50 for present in rounds])
    assert share == pytest.approx(0.3, abs=0.02)
    assert len({tuple(present) for present in rounds}) == 400
    again, other = RandomParticipation(0.3, 50, seed=4), RandomParticipation(0.3, 50, seed=5)
    assert all(np.array_equal(again(k), rounds[k - 1]) for k in (1, 77, 400))
    assert not all(np.array_equal(other(k), rounds[k - 1]) for k in range(1, 10))


def test_at_least_one_agent_participates() -> None:
    who = RandomParticipation(1e-9, 5, seed=0)
    rounds = [who(k) for k in range(1, 200)]
    assert {len(present) for present in rounds} == {1}
    assert {int(present[0]) for present in rounds} == {0, 1, 2, 3, 4}


# --- measures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [PROBLEM, Problem(Hinge(), L2(), 0.01)], ids=["smooth", "hinge"])
def test_measures_are_the_papers(problem: Problem) -> None:
    rng = np.random.default_rng(0)
    index, labels = rng.permutation(len(ROWS.labels))[:30], rng.choice([-1.0, 1.0], 30)
    held = ROWS.features[index]
    test = TestRows(ROWS.features, labels, index)
    averages = Averages(with_released=True)
    metrics = Metrics(problem, ROWS, averages, RHO, test, every=3)
    seen: list[RoundView] = []
    method = DpAdmm(RHO, step_sizes=Constant(ETA, N), noise_multiplier=np.ones(N))
    noise = SimulatedNoise(1, N, (5, 1))
    train(method, problem, ROWS, n_rounds=8, noise=noise, averages=averages, observers=[metrics, seen.append])
    trace = metrics.trace
    assert trace.columns["round"].tolist() == [1, 3, 6, 8]
    released = np.array([np.zeros((N, 5, 1)), *(view.released for view in seen)])
    local = (released[1:] if problem.smooth else released[:-1]).mean(axis=0)
    centre = np.mean([view.consensus for view in seen], axis=0)
    augmented = sum(
        problem.objectives(ROWS.agent(i), local[i : i + 1])[0] + RHO * np.linalg.norm(local[i] - centre)
        for i in range(N)
    )
    last, view = trace.last(), seen[-1]
    assert last["augmented_objective"] == pytest.approx(augmented, rel=1e-12)
    own = [problem.losses(ROWS.agent(i), view.released[i : i + 1])[0] for i in range(N)]
    assert last["train_loss_local"] == pytest.approx(np.mean(own), rel=1e-12)
    bare = Problem(problem.loss, L2(), 0.0)
    assert last["train_loss_global"] == pytest.approx(bare.objective(ROWS, view.consensus), rel=1e-12)
    scores = held @ view.consensus
    assert last["test_error_global"] == pytest.approx(np.mean((scores[:, 0] > 0) != (labels > 0)))
    assert last["test_loss_global"] == pytest.approx(problem.loss.value(labels, scores).mean())
    errors = [error(problem.loss, labels, held @ w) for w in view.released]
    assert last["test_error_local"] == pytest.approx(np.mean(errors))
