"""Release plans: rounds that differ, rounds that release nothing, and noise of unknown cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from looping import case

from dpadmm.accounting.composition import tally_epsilon, tally_paper_epsilon, total_epsilon
from dpadmm.accounting.events import PureRelease, Release, SampledRelease, UnpricedRelease
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.release_plan import ReleasePlan, gaussian
from dpadmm.engine.noise import Noise
from dpadmm.errors import StudyError
from dpadmm.queries import QUERIES, make_query

RELEASES = st.sampled_from([None, Release(5.0), Release(20.0), Release(20.0, statistic="moments")])


@given(st.lists(RELEASES, max_size=30), st.data())
def test_a_plan_is_the_list_of_its_rounds(releases: list[Release | None], data: st.DataObject) -> None:
    plan = ReleasePlan.of(releases)
    assert plan.n_rounds == len(releases)
    assert plan.n_releases == sum(each is not None for each in releases)
    assert [plan.at(k) for k in range(1, len(releases) + 1)] == releases
    taken = data.draw(st.lists(st.sampled_from(range(1, len(releases) + 1)), unique=True) if releases else st.just([]))
    wanted = {each: 0 for each in releases if each is not None}
    for k in taken:
        if (each := releases[k - 1]) is not None:
            wanted[each] += 1
    assert dict(plan.tally(taken)) == wanted
    assert plan.mu_squared() == sum(Fraction((1 / each.noise_multiplier) ** 2) for each in releases if each)
    assert ReleasePlan.from_list(plan.to_list()) == plan
    assert sum(run["rounds"] for run in plan.to_list()) == plan.n_rounds


def test_a_round_that_is_not_planned_is_refused() -> None:
    for round in [0, -1, 4]:
        with case(round), pytest.raises(StudyError, match=f"has 3 rounds, but no round {round}"):
            ReleasePlan.constant(Release(5.0), 3).at(round)


def test_a_plan_is_stored_by_runs_of_equal_rounds() -> None:
    plan = ReleasePlan.of([Release(5.0), Release(5.0), None, Release(20.0, statistic="moments")])
    assert plan.to_list() == [
        {"statistic": "gradient", "noise_multiplier": 5.0, "rounds": 2},
        {"statistic": None, "noise_multiplier": None, "rounds": 1},
        {"statistic": "moments", "noise_multiplier": 20.0, "rounds": 1},
    ]
    assert ReleasePlan.from_list(
        [{"statistic": "gradient", "noise_multiplier": 5, "rounds": 2}]
    ) == ReleasePlan.constant(Release(5.0), 2)
    assert ReleasePlan.constant(Release(5.0), 0) == ReleasePlan.of([])


def test_equal_noise_is_described_once() -> None:
    five, twenty = Release(5.0), Release(20.0, statistic="moments")
    assert ReleasePlan.of([five, five]).describe_noise() == "5.0000"
    assert ReleasePlan.of([five, five, twenty, twenty, five]).describe_noise() == (
        "5.0000 in rounds 1 to 2 (gradient), 20.0000 in rounds 3 to 4 (moments), 5.0000 in round 5 (gradient)"
    )


def test_a_run_of_no_rounds_is_refused() -> None:
    for rounds in [0, -1, 1.5]:
        with (
            case(rounds),
            pytest.raises(StudyError, match="rounds of a release must be a whole number of at least 1"),
        ):
            ReleasePlan(((Release(5.0), rounds),))  # type: ignore[arg-type]


def test_rounds_that_differ_add_up_exactly() -> None:
    tally = ReleasePlan.of([Release(2.0), None, Release(4.0), Release(4.0), Release(2.0)]).tally()
    assert tally_epsilon(tally, 1e-5) == exact_epsilon(math.sqrt(2 / 4 + 2 / 16), 1e-5)
    assert math.isnan(tally_paper_epsilon(tally, 1e-5))
    assert tally_epsilon(ReleasePlan.of([None, None]).tally(), 1e-5) == 0.0


def test_kinds_that_are_mixed_share_delta() -> None:
    pure, sampled = PureRelease(0.05), SampledRelease(3.0, 0.1)
    mixed = ((Release(20.0), 10), (pure, 3), (sampled, 5))
    parts = exact_epsilon(math.sqrt(10) / 20, 1e-5 / 3)
    parts += total_epsilon(pure, 3, 1e-5 / 3) + total_epsilon(sampled, 5, 1e-5 / 3)
    assert parts <= tally_epsilon(mixed, 1e-5) <= parts * (1 + 1e-12)
    assert tally_epsilon(((pure, 3),), 1e-5) == total_epsilon(pure, 3, 1e-5)


def test_a_release_of_unknown_cost_has_no_epsilon() -> None:
    assert tally_epsilon(((Release(20.0), 5), (UnpricedRelease("Mine"), 1)), 1e-5) == math.inf
    assert tally_epsilon(((Release(20.0), 5), (UnpricedRelease("Mine"), 0)), 1e-5) < math.inf


def test_only_single_gaussian_releases_can_be_deployed() -> None:
    for other in [Release(0.0), Release(5.0, count=2), PureRelease(1.0)]:
        with case(other), pytest.raises(StudyError, match="one sum with Gaussian noise per round"):
            gaussian(other)


def test_a_stored_plan_with_odd_values_is_refused() -> None:
    for change in [{"rounds": True}, {"rounds": 1.0}, {"noise_multiplier": "5"}, {"noise_multiplier": True}]:
        with case(change), pytest.raises(StudyError, match="must be numbers"):
            ReleasePlan.from_list([{"statistic": "gradient", "noise_multiplier": 5.0, "rounds": 2} | change])


def test_the_list_of_statistics_is_closed() -> None:
    from dpadmm.losses import Logistic
    from dpadmm.queries.problem import Problem
    from dpadmm.regularizers import L2

    problem = Problem(Logistic(), L2(), 0.1)
    with pytest.raises(StudyError, match="unknown statistic 'rows'; choose one of gradient"):
        make_query("rows", problem, 3)
    for name in QUERIES:
        assert make_query(name, problem, 3).name == name


@dataclass(frozen=True)
class EverySecond:
    """DP-ADMM whose agents release in odd rounds only."""

    inner: object

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def plan(self, agent: int, n_rounds: int) -> ReleasePlan:
        release = self.inner.plan(agent, 1).at(1)  # type: ignore[attr-defined]
        return ReleasePlan.of([release if k % 2 else None for k in range(1, n_rounds + 1)])

    def plans(self, n_agents: int, n_rounds: int) -> list[ReleasePlan]:
        return [self.plan(agent, n_rounds) for agent in range(n_agents)]


def test_a_method_that_releases_in_every_second_round_is_charged_for_those() -> None:
    from cohorts import cohort

    from dpadmm.engine.loop import train
    from dpadmm.engine.noise import SimulatedNoise
    from dpadmm.losses import Logistic
    from dpadmm.methods import DpSgd
    from dpadmm.models.run import Result
    from dpadmm.queries.problem import Problem
    from dpadmm.regularizers import L2
    from dpadmm.studies.settings import Settings

    problem, rows = Problem(Logistic(), L2(), 0.1), cohort(Logistic())
    n = rows.n_agents
    method = EverySecond(DpSgd(0.1, noise_multiplier=np.full(n, 5.0)))
    noise = SimulatedNoise(1, n, (rows.n_features, 1))
    outcome = train(method, problem, rows, n_rounds=9, noise=noise)  # type: ignore[arg-type]
    settings = Settings(method="dp_sgd", noise_multiplier=5.0, n_rounds=9)
    report = Result(settings, problem, rows, method, noise, outcome).privacy  # type: ignore[arg-type]
    assert report.n_releases.tolist() == [5] * n
    assert report.epsilon == exact_epsilon(math.sqrt(5) / 5.0, settings.delta)


class Correlated(Noise):
    """The same noise in every round, which must not be accounted as independent."""

    kind = "simulated"

    def __init__(self, inner: object) -> None:
        self._inner = inner

    def draw(self, round: int, stream: int = 0, shape: tuple[int, ...] | None = None) -> object:
        return self._inner.draw(1, stream, shape)  # type: ignore[attr-defined]

    def answer(self, asked: object) -> object:
        from dpadmm.engine.noise import with_normals

        return with_normals(asked, self, asked.rows.n_rows)  # type: ignore[arg-type, attr-defined]


def test_noise_of_unknown_cost_leaves_a_run_without_epsilon() -> None:
    from dpadmm.engine.noise import SimulatedNoise
    from dpadmm.studies.settings import Settings
    from dpadmm.training.preparation import as_dataset, prepare
    from dpadmm.training.simulate import run_prepared as run

    settings = Settings(epsilon=1.0, n_rounds=3, n_agents=4, seed=1)
    prepared = prepare(as_dataset("synthetic", settings), settings)
    rows = prepared.rows
    noise = Correlated(SimulatedNoise(1, rows.n_agents, (rows.n_features, 1)))
    report = run(prepared, settings, noise=noise).privacy
    assert report.epsilon == math.inf
    assert not report.private
    assert report.accountant == "none: Correlated has no known privacy cost"
    assert report.to_dict()["epsilon"] is None
    assert report.to_dict()["guarantee"] == "None: the noise source has no known privacy cost."


def test_every_round_is_charged_for_its_release() -> None:
    """The plan follows from the releases of a method, so both always agree."""
    from dpadmm import simulate
    from dpadmm.methods import DpAdmm, DpSgd

    class Loud(DpAdmm):
        def release(self, round: int) -> tuple[str, np.ndarray]:
            return "gradient", self.noise_multiplier * (0.05 if round == 1 else 1.0)

    result = simulate("synthetic", method=Loud(), epsilon=1.0, n_rounds=10, n_agents=2, seed=1)
    z = result.method.noise_multiplier[0]
    assert result.privacy.epsilon == pytest.approx(exact_epsilon(math.sqrt(400 + 9) / z, 1e-5))
    sampled = simulate("synthetic", method=DpSgd(sampling=0.5), epsilon=1.0, n_rounds=3, n_agents=2, seed=1)
    ((release, count),) = sampled.privacy.agents[0].planned
    assert (type(release), release.sampling, count) == (SampledRelease, 0.5, 3)


def test_rounds_beyond_the_plan_are_refused_and_not_forgotten() -> None:
    from cohorts import cohort

    from dpadmm.engine.noise import ExactNoise
    from dpadmm.losses import Logistic
    from dpadmm.models.run import run
    from dpadmm.studies.settings import Training

    plan = ReleasePlan.constant(Release(5.0), 3)
    for rounds in ([4], [0], [-1, 1], range(1, 5)):
        with pytest.raises(StudyError, match="the plan has 3 rounds, and a round outside of it"):
            plan.tally(rounds)
    assert plan.tally([]) == ((Release(5.0), 0),)
    training = Training(method="dp_admm", epsilon=1.0, n_rounds=3)
    rows = cohort(Logistic())
    with pytest.raises(StudyError, match="at most 3, the number of planned rounds"):
        run(training, training.problem(2), rows, ExactNoise(), n_rounds=4)
    assert run(training, training.problem(2), rows, ExactNoise(), n_rounds=2).privacy.n_releases.tolist() == [2] * 4


def test_agents_with_the_same_noise_share_a_plan_and_others_do_not() -> None:
    from dpadmm.methods import DpSgd

    method = DpSgd(0.1, noise_multiplier=np.array([5.0, 3.0, 5.0, 4.0]))
    plans = method.plans(4, 9)
    assert plans == [method.plan(agent, 9) for agent in range(4)]
    assert plans[0] is plans[2]
    assert len(set(plans)) == 3
