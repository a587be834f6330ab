"""Normal operation of the guard. Attacks and crashes are in tests/faults."""

from __future__ import annotations

import ast
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from guards import (
    POLICY,
    ROUNDS,
    STUDY,
    D,
    M,
    TinyRows,
    Z,
    consensus,
    guarded,
    own,
    play,
    private,
    refusal,
    rows,
    study,
)
from looping import case

import dpadmm
from dpadmm.accounting.events import Release
from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.queries import Query
from dpadmm.sites.agent import Agent
from dpadmm.trusted import discrete_gaussian as exact_noise
from dpadmm.trusted.discrete_gaussian import Lattice, discrete_gaussian
from dpadmm.trusted.ledger import read_ledger
from dpadmm.trusted.private_rows import CheckedRows
from dpadmm.trusted.unit import PrivacyUnit

SOURCE = Path(dpadmm.__file__).parent
TRUSTED = ("guard", "policy", "unit", "ledger", "discrete_gaussian", "masking")
ACCOUNTING = ("sensitivity", "release_plan", "events")
PARTS = ("parameters.checks", *(f"trusted.{name}" for name in TRUSTED), *(f"accounting.{name}" for name in ACCOUNTING))


def path_of(part: str) -> Path:
    return SOURCE / f"{part.replace('.', '/')}.py"


def code_lines(path: Path) -> int:
    """Return the lines with code: no blank lines, comments or docstrings."""
    text = path.read_text(encoding="utf-8")
    described: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            described.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in described
        for number, line in enumerate(text.splitlines(), 1)
    )


def oracle(mu: float) -> float:
    """Return ε at δ = 1e-5, computed by another library."""
    return float(get_epsilon_gaussian(1.0 / mu, 1e-5))


def imported(path: Path) -> set[str]:
    """Return the names of all modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def test_trusted_core_has_less_than_1180_lines_of_code() -> None:
    assert sum(code_lines(path_of(name)) for name in (*PARTS, "queries.gradient")) < 1180


def test_guard_imports_trusted_core_only() -> None:
    outside = {
        "dpadmm.matrices.arrays",
        "dpadmm.errors",
        "dpadmm.accounting.gaussian",
        "dpadmm.accounting.calibration",
        "dpadmm.queries",
    }
    read = {f"dpadmm.{name}" for name in PARTS} | outside
    for name in PARTS:
        modules = imported(path_of(name))
        assert not {module.split(".")[0] for module in modules} & {"numba", "nats", "scipy", "pickle"}
        assert {module for module in modules if module.startswith("dpadmm")} <= read


def test_answer_is_the_sum_of_gradients_plus_noise(tmp_path: Path) -> None:
    features, labels = rows()
    with guarded(tmp_path, own(features, labels)) as guard:
        guard.enrol(STUDY)
        answers = [guard.answer(STUDY.hash, k, np.zeros((D, 1))) for k in range(1, ROUNDS + 1)]
    grid = Lattice(1.0, D, M)
    truth = -(features.T @ labels)[:, None] / 2 / grid.step
    residuals = (np.array(answers) - truth) / grid.noise_scale(Z)
    assert 0.4 < residuals.std() < 1.8  # 36 numbers: beyond 5 standard deviations
    assert len({answer.tobytes() for answer in answers}) == ROUNDS


def test_enrolment_reserves_all_rounds_and_each_answer_spends_one(tmp_path: Path) -> None:
    with guarded(tmp_path) as guard:
        agent = Agent(guard, STUDY)
        play(agent, 5)
        state = read_ledger(tmp_path)
        assert state.spent == 5 * Fraction((1 / Z) ** 2)
        assert float(state.promised) == ROUNDS * (1 / Z) ** 2
        guard.leave(STUDY.hash)
        assert read_ledger(tmp_path).promised == state.spent
        assert refusal(agent.step, 6, consensus(6)).code == "study-closed"


def test_rows_per_person_multiply_the_charge(tmp_path: Path) -> None:
    with guarded(tmp_path, policy=replace(POLICY, unit=PrivacyUnit(3), epsilon=3.0)) as guard:
        play(Agent(guard, STUDY), 1)
        assert read_ledger(tmp_path).spent == Fraction((3 / Z) ** 2)


def test_ledger_contains_the_pinned_terms_and_a_salted_digest_of_the_rows(tmp_path: Path) -> None:
    with guarded(tmp_path / "a") as one, guarded(tmp_path / "b") as two:
        one.enrol(STUDY)
        two.enrol(STUDY)
    (first,), (second,) = (read_ledger(tmp_path / name).accounts.values() for name in "ab")
    plan = [{"statistic": "gradient", "noise_multiplier": Z, "rounds": ROUNDS}]
    bounds = {"gradient": {"row_norm": 1.0, "n_features": D, "shape": [D, 1]}}
    pinned = {"name": STUDY.name, "method": "dp_admm", "loss": "logistic", "delta": STUDY.training.delta}
    pinned |= {"n_rows": M, "plan": plan, "statistics": bounds, "rows_per_person": 1}
    assert [len(bytes.fromhex(item.about["salt"])) for item in (first, second)] == [16, 16]
    assert {name: first.about[name] for name in pinned} == pinned
    assert first.about["rows"] != second.about["rows"]  # a guess of the rows cannot be checked without the salt


def test_policy_refusals_contain_the_limits(tmp_path_factory: pytest.TempPathFactory) -> None:
    for change, code, words in [
        ({"methods": frozenset({"dp_sgd"})}, "policy-method", "does not allow method dp_admm (allowed: dp_sgd)"),
        ({"methods": frozenset()}, "policy-method", "(allowed: none)"),
        ({"losses": frozenset({"huber"})}, "policy-loss", "does not allow loss logistic (allowed: huber)"),
        ({"max_rounds": ROUNDS - 1}, "policy-rounds", f"the study has {ROUNDS}, the owner allows {ROUNDS - 1}"),
        ({"min_rows": M + 1}, "policy-rows", f"the table has {M}, the owner requires {M + 1}"),
        (
            {"epsilon": 0.3},
            "budget-cap",
            f"requested {oracle(ROUNDS**0.5 / Z):.4f} (Σμ² 0.03), allowed 0.3000 (Σμ² ",
        ),
        (
            {"unit": PrivacyUnit(2)},
            "budget-cap",
            f"requested {oracle(2 * ROUNDS**0.5 / Z):.4f} (Σμ² 0.12), allowed 1.0000",
        ),
    ]:
        with case(change, code, words):
            tmp_path = tmp_path_factory.mktemp("case")
            policy = replace(POLICY, **change)
            with guarded(tmp_path, policy=policy) as guard:
                refused = refusal(guard.enrol, study(delta=1e-5))
                assert (refused.code, refusal(guard.answer, STUDY.hash, 1, np.zeros((D, 1))).code) == (
                    code,
                    "study-unknown",
                )
                assert words in str(refused)
            assert not read_ledger(tmp_path).accounts


def test_remaining_budget_excludes_reservations_of_other_studies(tmp_path: Path) -> None:
    with guarded(tmp_path, policy=replace(POLICY, epsilon=0.8)) as guard:
        guard.enrol(STUDY)
        refused = refusal(guard.enrol, replace(STUDY, name="another"))
        left = guard._policy.cap - ROUNDS * (1 / Z) ** 2
        assert f"left {oracle(left**0.5):.4f}" in str(refused)
        assert refused.code == "budget-cap"
        guard.leave(STUDY.hash)
        guard.enrol(replace(STUDY, name="another"))


def test_policy_with_the_budget_of_the_study_accepts_it(tmp_path: Path) -> None:
    for k, (epsilon, n_rounds) in enumerate([(1.0, 100), (0.3, 7), (2.5, 999), (0.01, 1)]):
        whole = replace(STUDY, training={"method": "dp_admm", "epsilon": epsilon, "delta": 1e-6, "n_rounds": n_rounds})
        with guarded(tmp_path / str(k), policy=replace(POLICY, epsilon=epsilon, delta=1e-6)) as guard:
            guard.enrol(whole)


def test_failure_reveals_nothing_about_the_rows(tmp_path: Path) -> None:
    class Talkative(TinyRows):
        def total(self, statistic: object, point: Floats, bound: float) -> Floats:
            raise ValueError(f"row 3 of patient Smith: {self.features[3]}")

    with guarded(tmp_path, lambda study: Talkative(*rows())) as guard:
        guard.enrol(STUDY)
        refused = refusal(guard.answer, STUDY.hash, 1, np.zeros((D, 1)))
    assert (refused.code, refused.wire()) == ("release-failed", "release-failed")
    assert (refused.__cause__, refused.__context__) == (None, None)
    assert not read_ledger(tmp_path).spent


def test_impossible_noise_is_refused_at_enrolment(tmp_path: Path) -> None:
    asked = SimpleNamespace(terms=STUDY.terms._replace(plan=ReleasePlan.constant(Release(1e10), ROUNDS)))
    with guarded(tmp_path) as guard:
        assert refusal(guard.enrol, asked).code == "study-unfit"
        assert not guard._ledger.status().accounts


class ArraySubclass(np.ndarray):
    """An array subclass, which could override any operation."""


def test_malformed_requests_are_refused_before_rows_are_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    for round, point, memo in [
        (1, np.zeros((D + 1, 1)), b""),
        (1, np.zeros((1, D)), b""),
        (1, np.zeros((D, 1)).view(ArraySubclass), b""),
        (1, np.zeros((D, 1), np.float32), b""),
        (0, np.zeros((D, 1)), b""),
        (True, np.zeros((D, 1)), b""),
        (1, np.zeros((D, 1)), bytearray()),
        (1, np.zeros((D, 1)), bytes(2**27 + 1)),
    ]:
        with case(round, point, memo):
            tmp_path = tmp_path_factory.mktemp("case")
            with guarded(tmp_path) as guard:
                guard.enrol(STUDY)
                assert refusal(guard.answer, STUDY.hash, round, point, memo).code == "request-malformed"
                assert guard.transcript(STUDY.hash) == []


def test_agent_accepts_only_rounds_and_finite_arrays_of_its_study(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    for round, broadcast in [
        (1, [[0.0]] * D),
        (1, np.zeros((D, 1)).view(ArraySubclass)),
        (1, np.zeros((D, 1), np.float32)),
        (1, np.zeros((1, D))),
        (1, np.full((D, 1), np.nan)),
        ("1", np.zeros((D, 1))),
        (1.0, np.zeros((D, 1))),
    ]:
        with case(round, broadcast):
            tmp_path = tmp_path_factory.mktemp("case")
            with guarded(tmp_path) as guard:
                agent = Agent(guard, STUDY)
                play(agent, 1)
                for again in (agent, Agent(guard, STUDY)):
                    refused = refusal(again.step, round, broadcast)
                    assert refused.code == "request-malformed"
                    assert "invalid request: " in str(refused)
                assert agent.last_round == len(guard.transcript(STUDY.hash)) == 1


def test_overflow_is_returned_without_warnings(tmp_path: Path) -> None:
    """pytest turns warnings into errors. An agent that failed on a broadcast could not be restarted either."""
    huge = np.full(STUDY.shape, 1.7e308)
    with guarded(tmp_path) as guard:
        agent = Agent(guard, STUDY)
        assert np.isfinite(agent.step(1, huge)).all()
        upload = agent.step(2, -huge)
        assert not np.isfinite(upload).any()
        again = Agent(guard, STUDY)
        assert again.last_round == 2
        np.testing.assert_array_equal(again.step(2, -huge), upload)


def test_transcript_is_read_at_start_and_for_repeats_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a study of T rounds would cost O(T²)."""
    with guarded(tmp_path) as guard:
        agent = Agent(guard, STUDY)
        with monkeypatch.context() as unreadable:
            unreadable.setattr(guard, "transcript", None)
            first = play(agent, 3)
        assert [agent.step(round, consensus(round)).tobytes() for round in first] == list(first.values())
        assert agent.last_round == 3


def test_memo_is_optional(tmp_path: Path) -> None:
    with guarded(tmp_path) as guard:
        guard.enrol(STUDY)
        answer = guard.answer(STUDY.hash, 1, np.zeros((D, 1)))
        ((round, stored, memo),) = guard.transcript(STUDY.hash)
        assert (round, stored.tobytes(), memo) == (1, answer.tobytes(), b"")


def test_memo_may_be_as_large_as_a_wide_consensus(tmp_path: Path) -> None:
    with guarded(tmp_path) as guard:
        guard.enrol(STUDY)
        guard.answer(STUDY.hash, 1, np.zeros((D, 1)), bytes(800_000))
        assert len(guard.transcript(STUDY.hash)[0][2]) == 800_000


def test_limits_are_inclusive() -> None:
    asked = study(noise_multiplier=4.0, n_rounds=8).terms  # costs 8/16
    POLICY.check(asked, POLICY.min_rows)
    assert refusal(POLICY.check, asked, POLICY.min_rows - 1).code == "policy-rows"
    policy = replace(POLICY)
    policy.__dict__["cap"] = 1.0
    half, more = Fraction(1, 2), Fraction(1, 2) + Fraction(1, 2**50)
    policy.check(asked, None, (half, half))
    assert refusal(policy.check, asked, None, (more, more)).code == "budget-cap"
    assert refusal(policy.check, asked, None, (half, more)).code == "policy-collusion"


def test_noise_scale_is_that_of_enrolment_in_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def counted(scale: int, count: int) -> Integers:
        asked.append((scale, count))
        return discrete_gaussian(scale, count)

    monkeypatch.setattr(exact_noise, "discrete_gaussian", counted)
    study = replace(
        STUDY, allow_missed_rounds=True, training=STUDY.training.with_changes(noise_multiplier=1e4, n_rounds=5000)
    )
    rounds = [1, 2, 3, 9, 13, 17, 33, 65, 101, 129, 257, 501, 1001, 1025, 4097, 5000]
    for half in (rounds[:8], rounds[8:]):  # also after a restart
        with guarded(tmp_path) as guard:
            scale = guard.enrol(study).query_at(1).grid.noise_scale(1e4)
            for round in half:
                guard.answer(study.hash, round, np.zeros((D, 1)))
    assert scale >= 1e4 * 2.0 / Lattice(1.0, D, M).step
    assert asked == [(scale, D)] * len(rounds)


def planned(*releases: Release | None) -> SimpleNamespace:
    """Return a study with this release in each round."""
    return SimpleNamespace(terms=STUDY.terms._replace(plan=ReleasePlan.of(releases)))


def test_different_rounds_are_reserved_and_charged_separately(tmp_path: Path) -> None:
    asked, point = planned(Release(40.0), None, Release(20.0), Release(40.0)), np.zeros((D, 1))
    k = 3
    with guarded(tmp_path, policy=replace(POLICY, unit=PrivacyUnit(k))) as guard:
        enrolled = guard.enrol(asked)
        prices = [Fraction((k / z) ** 2) for z in (40.0, 20.0, 40.0)]
        assert float(read_ledger(tmp_path).promised) == float(sum(prices))
        scales = {round: enrolled.query_at(round).grid.noise_scale(z) for round, z in ((1, 40.0), (3, 20.0))}
        assert scales[1] == pytest.approx(2 * scales[3], rel=1e-9)
        guard.answer(STUDY.hash, 1, point)
        assert read_ledger(tmp_path).spent == prices[0]


def test_round_without_a_release_is_refused(tmp_path: Path) -> None:
    with guarded(tmp_path) as guard:
        guard.enrol(planned(None, Release(40.0)))
        assert refusal(guard.answer, STUDY.hash, 1, np.zeros((D, 1))).code == "request-malformed"
        assert not read_ledger(tmp_path).spent


def test_noise_of_a_round_follows_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(
        exact_noise,
        "discrete_gaussian",
        lambda scale, count: drawn.append(scale) or np.zeros(count, np.int64),
    )
    with guarded(tmp_path) as guard:
        enrolled = guard.enrol(planned(Release(40.0), Release(20.0)))
        for round in (1, 2):
            guard.answer(STUDY.hash, round, np.zeros((D, 1)))
    grid = enrolled.query_at(1).grid
    assert drawn == [grid.noise_scale(40.0), grid.noise_scale(20.0)]


def test_grid_is_fixed_at_enrolment(tmp_path: Path) -> None:
    """Noise was checked, and budget reserved, for the rows at enrolment."""
    opened = TinyRows(*rows())
    with guarded(tmp_path, lambda study: opened) as guard:
        enrolled = guard.enrol(STUDY)
        with pytest.raises(TypeError):
            enrolled.queries[Release(Z)] = enrolled.query_at(1)._replace(shares=100)  # type: ignore[index]
        opened.labels = opened.labels[:2]
        assert enrolled.rows.n_rows == 2
        assert enrolled.query_at(1).grid == enrolled.query_at(2).grid == Lattice(1.0, D, M)


def test_policy_is_checked_before_rows_are_opened(tmp_path: Path) -> None:
    def never(study: object) -> TinyRows:
        raise AssertionError("rows were opened")

    with guarded(tmp_path, never, policy=replace(POLICY, methods=frozenset({"dp_sgd"}))) as guard:
        assert refusal(guard.enrol, STUDY).code == "policy-method"


AUTO = study(method="auto")
AUTO_POLICY = replace(POLICY, methods=frozenset({"pgd"}), epsilon=8.0)


class ObservedRows:
    """Rows that record which statistics were computed since enrolment."""

    def __init__(self, held: CheckedRows) -> None:
        self.held, self.looked = held, list[str]()
        self.unit, self.n_rows, self.n_features, self.n_parts = held.unit, held.n_rows, held.n_features, held.n_parts

    def digest(self) -> str:
        return self.held.digest()

    def total(self, statistic: Query, parameters: Floats, grid: Lattice) -> Integers:
        self.looked.append(statistic.name)
        return self.held.total(statistic, parameters, grid)


def with_parameters(**changes: float) -> Floats:
    """Return valid parameters of a preconditioned gradient, with changes: ``with_parameters(scale=0.0)``."""
    places = {"scale": 1, "direction": D + 2, "point": 2 * D}
    out = np.concatenate([np.ones(D), np.zeros(2 * D)])
    for name, value in changes.items():
        out[places[name]] = value
    return out


def test_preconditioner_or_point_out_of_bounds_is_refused_before_rows_are_read(tmp_path: Path) -> None:
    """The message does not depend on the rows, and nothing is charged. A valid request is then answered."""
    watched = ObservedRows(private(*rows()))
    bad = [{"scale": item} for item in (0.0, -1.0, 5e-324, 1e-10, 1.1e9, 1.7e308, np.nan, np.inf)]
    bad += [{part: item} for part in ("direction", "point") for item in (1.1e9, -1e10, 1.7e308, np.nan, -np.inf)]
    with guarded(tmp_path, lambda study: watched, policy=AUTO_POLICY) as guard:
        guard.enrol(AUTO)
        guard.answer(AUTO.hash, 1, np.zeros(0))
        spent, messages = read_ledger(tmp_path).spent, set()
        for value in bad:
            with case(value):
                refused = refusal(guard.answer, AUTO.hash, 2, with_parameters(**value))
                assert refused.code == "request-malformed"
                messages.add(str(refused))
        for other in (
            np.zeros(0),
            np.zeros((D, 1)),
            with_parameters()[:-1],
            with_parameters()[None],
            with_parameters().astype(np.float32),
        ):
            assert refusal(guard.answer, AUTO.hash, 2, other).code == "request-malformed"
        assert watched.looked == ["moments"]
        assert len(messages) == 1
        assert read_ledger(tmp_path).spent == spent
        guard.answer(AUTO.hash, 2, with_parameters(scale=1e9, direction=-1e9, point=1e9))
        assert watched.looked == ["moments", "preconditioned_gradient"]


def test_round_answers_one_preconditioner_and_point_only(tmp_path: Path) -> None:
    watched = ObservedRows(private(*rows()))
    with guarded(tmp_path, lambda study: watched, policy=AUTO_POLICY) as guard:
        guard.enrol(AUTO)
        assert refusal(guard.answer, AUTO.hash, 2, with_parameters()).code == "round-missed"
        first = guard.answer(AUTO.hash, 1, np.zeros(0), b"memo")
        assert np.array_equal(guard.answer(AUTO.hash, 1, np.zeros(0), b"memo"), first)
        assert refusal(guard.answer, AUTO.hash, 1, np.zeros(0)).code == "round-forked"
        assert refusal(guard.answer, AUTO.hash, 1, with_parameters()).code == "request-malformed"
        second = guard.answer(AUTO.hash, 2, with_parameters(point=0.5))
        assert second.shape == (D, 1)
        for item in ({"scale": 2.0}, {"direction": 1e-300}, {"point": -0.5}, {"point": np.nextafter(0.5, 1.0)}):
            other = with_parameters(**{"point": 0.5, **item})
            assert refusal(guard.answer, AUTO.hash, 2, other).code == "round-forked"
        assert np.array_equal(guard.answer(AUTO.hash, 2, with_parameters(point=0.5)), second)
        assert watched.looked == ["moments", "preconditioned_gradient"]
        past = guard.transcript(AUTO.hash)
    assert [round for round, _, _ in past] == [1, 2]
    assert np.array_equal(past[0][1], first)
    assert (past[0][2], past[1][2]) == (b"memo", b"")


def test_charges_of_pgd_rounds_add_up_to_the_plan(tmp_path: Path) -> None:
    with guarded(tmp_path, lambda study: private(*rows()), policy=AUTO_POLICY) as guard:
        guard.enrol(AUTO)
        guard.answer(AUTO.hash, 1, np.zeros(0))
        assert float(read_ledger(tmp_path).spent) == pytest.approx(0.15 * ROUNDS / Z**2, rel=1e-12)
        for round in range(2, ROUNDS):
            guard.answer(AUTO.hash, round, with_parameters(point=float(round)))
        guard.answer(AUTO.hash, ROUNDS, np.ones(3 * D + 2))
        state = read_ledger(tmp_path)
    assert float(state.spent) == float(state.accounts[AUTO.hash].reservation.mu_squared)
    assert float(state.spent) == pytest.approx(ROUNDS / Z**2, rel=1e-12)


def test_agent_refuses_a_broadcast_without_a_valid_preconditioner(tmp_path: Path) -> None:
    """A broadcast contains a clipping bound, by which rows are divided. It must be positive."""
    with guarded(tmp_path, own(*rows()), policy=AUTO_POLICY) as guard:
        agent = Agent(guard, AUTO)
        start = AUTO.method(M).start(AUTO.shape)
        assert agent.step(1, start).shape == (3 * D,)
        for clip in (0.0, -1.0, 1e-300, 1e300):
            broadcast = start.copy()
            broadcast[0] = clip
            assert refusal(agent.step, 2, broadcast).code == "request-malformed"
        for broadcast in (np.zeros(AUTO.shape), start[:-1], start * np.nan):
            assert refusal(agent.step, 2, broadcast).code == "request-malformed"
        assert agent.step(2, start).shape == (D, 1)
        assert np.array_equal(Agent(guard, AUTO).step(2, start), agent.step(2, start))


def test_study_without_training_has_no_loss_limit() -> None:
    """Its method is still checked."""
    names = {False: [], True: []}
    for nothing in names:
        terms = STUDY.terms._replace(loss="" if nothing else "logistic")
        names[nothing] = [limit.name for limit in POLICY.evaluate(terms, M, None)]
        refused = replace(POLICY, losses=frozenset({"huber"}))
        held = {limit.name: limit.holds for limit in refused.evaluate(terms, M, None)}
        assert held.get("loss", True) == nothing
    assert names[False] == ["method", "loss", "rounds", "rows"]
    assert names[True] == ["method", "rounds", "rows"]
