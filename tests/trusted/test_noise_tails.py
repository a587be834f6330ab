"""Far tails of the discrete Gaussian, where no sample of it ever comes: every coin is scripted.

``y = ±(kσ + u)`` takes one trial of exp(−1/2) for each step of k, then k(k − 1)/2 trials of exp(−1), k of
exp(−u/σ) and one of exp(−u²/(2σ²)); all have to go well. Here each draw has its bound checked and its value
put in, so it is seen which draws decide, and what. A trial is: toss a coin of x, and one of 1/j, for
j = 1, 2, …; it goes well if the first j that fails is odd.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from guards import STUDY, consensus, guarded, rows, tiny
from looping import case
from questions import gradient_question

from dpadmm._base.arrays import Integers
from dpadmm.optim.losses import Logistic
from dpadmm.optim.problem import make_rows
from dpadmm.site.agent import Agent
from dpadmm.training import oracles
from dpadmm.training.oracles import ExactNoise
from dpadmm.trusted import discrete_gaussian as exact_noise
from dpadmm.trusted.discrete_gaussian import REACH, Grid, quantise, release_sum

SCALE = 5
Step = tuple[int, ...]
"""The numbers drawn for one j: those of the coin, and last the one below j."""

KINDS = ("half", "one", "share", "last")


def bounds(kind: str, scale: int = SCALE) -> tuple[int, ...]:
    """Of the numbers that one coin is tossed with."""
    return {"half": (2,), "one": (), "share": (scale,), "last": (scale, scale, 2)}[kind]


def heads(kind: str, u: int, numbers: tuple[int, ...]) -> bool:
    """Whether a coin comes up: with probability 1/2, 1, u/σ, u²/(2σ²)."""
    if kind == "half":
        return numbers == (0,)
    if kind == "one":
        return True
    return all(number < u for number in numbers[:2]) and (kind == "share" or numbers[2] == 0)


def steps(kind: str, u: int, j: int, scale: int = SCALE) -> Iterator[tuple[Step, bool]]:
    """All that can be drawn for one j, and whether the trial goes on after it."""
    for draw in np.ndindex(*bounds(kind, scale), j):
        yield tuple(draw), heads(kind, u, tuple(draw[:-1])) and draw[-1] == 0


def chance(kind: str, u: int, scale: int = SCALE) -> Fraction:
    """x of a trial of exp(−x)."""
    share = Fraction(u, scale)
    return {"half": Fraction(1, 2), "one": Fraction(1), "share": share, "last": share**2 / 2}[kind]


@cache
def endings(kind: str, u: int, longest: int) -> list[tuple[list[Step], bool]]:
    """Trials that end at j = 1, 2, …, with numbers on both sides of what decides; whether they went well."""
    before: list[Step] = []
    out = []
    near = {0, u - 1, u, SCALE - 1}
    for j in range(1, longest + 1):
        passed = None
        for draw, on in steps(kind, u, j):
            passed = draw if on and passed is None else passed
            if not on and set(draw[: len(draw[:-1]) - (kind == "last")]) <= near and draw[-1] in (0, 1, j - 1):
                out.append(([*before, draw], j % 2 == 1))
        if passed is None:
            break
        before.append(passed)
    return out


@cache
def shortest(kind: str, u: int, well: bool) -> list[Step]:
    return next(path for path, decision in endings(kind, u, 4) if decision is well)


@dataclass(eq=False)
class Attempt:
    """What is drawn for one attempt, trial by trial; by default everything goes well up to ±(kσ + u)."""

    k: int
    u: int
    negative: bool = False
    trials: dict[tuple[str, int], list[Step]] = field(default_factory=dict)

    def path(self, kind: str, turn: int) -> list[Step]:
        well = turn < self.k if kind == "half" else True
        return self.trials.get((kind, turn)) or shortest(kind, self.u, well)

    def well(self, kind: str, turn: int) -> bool:
        return len(self.path(kind, turn)) % 2 == 1


Calls = list[tuple[int, list[int]]]


def script(attempts: list[Attempt], scale: int = SCALE) -> tuple[Calls, list[int]]:
    """The draws that several attempts make together, and what must come of them."""
    calls: Calls = [(scale, [each.u for each in attempts])]

    def trial(kind: str, turn: int, who: list[Attempt]) -> list[Attempt]:
        running, j = who, 1
        while running:
            for place, bound in enumerate((*bounds(kind, scale), j)):
                calls.append((bound, [each.path(kind, turn)[j - 1][place] for each in running]))
            running, j = [each for each in running if len(each.path(kind, turn)) > j], j + 1
        return [each for each in who if each.well(kind, turn)]

    going, turn = attempts, 0
    while going:
        going, turn = trial("half", turn, going), turn + 1
    alive = [each for each in attempts if each.k < REACH]
    for kind, times in (("one", lambda k: k * (k - 1) // 2), ("share", lambda k: k), ("last", lambda _: 1)):
        turn = 0
        while due := [each for each in alive if times(each.k) > turn]:
            kept = trial(kind, turn, due)
            alive, turn = [each for each in alive if each in kept or each not in due], turn + 1
    calls.append((2, [0 if each.negative else 1 for each in alive]))
    sizes = [(each.k * scale + each.u, each.negative) for each in alive]
    return calls, [-size if negative else size for size, negative in sizes if size or not negative]


class Scripted:
    """In place of ``_below``: the next numbers of the script, for exactly the bound that it says."""

    def __init__(self, calls: Calls) -> None:
        self.calls, self.at = calls, 0

    def __call__(self, bound: int, count: int) -> Integers:
        if count == 0:
            return np.zeros(0, np.int64)
        assert self.at < len(self.calls), f"{count} more numbers below {bound} were drawn"
        expected, values = self.calls[self.at]
        assert (bound, count) == (expected, len(values)), f"draw {self.at} is another"
        self.at += 1
        return np.array(values, np.int64)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``drawn(attempts)``: what the sampler keeps of them; it must draw what the script says, and no more."""

    def dry(_: int) -> bytes:
        raise AssertionError("bytes were drawn past the script")

    def run(*attempts: Attempt) -> list[int]:
        calls, expected = script(list(attempts))
        source = Scripted(calls)
        monkeypatch.setattr(exact_noise, "_below", source)
        kept: list[int] = exact_noise._attempts(SCALE, len(attempts)).tolist()
        assert kept == expected
        assert source.at == len(calls) - (not calls[-1][1])  # of nobody the sign is asked
        return kept

    monkeypatch.setattr(os, "urandom", dry)
    return run


# --- what a trial decides ----------------------------------------------------------------------------------


def test_a_trial_of_these_coins_goes_well_with_probability_exp_of_minus_x() -> None:
    """Of the model of a trial that all below is compared with: all draws counted, in exact fractions."""
    for u, kind in product(range(SCALE), KINDS):
        with case(u, kind):
            x, going, well, most = chance(kind, u), Fraction(1), Fraction(0), 9
            for j in range(1, most + 1):
                decisions = [on for _, on in steps(kind, u, j)]
                on = Fraction(sum(decisions), len(decisions))
                assert on == x / j
                well += going * (1 - on) * (j % 2)
                going *= on
            exp, term = Fraction(0), Fraction(1)
            for j in range(40):
                exp, term = exp + term, term * -x / (j + 1)
            assert abs(well - exp) <= going


def test_all_trials_together_are_a_gaussian() -> None:
    """exp of −(kσ + u)²/(2σ²), up to a constant, is what the numbers of trials add up to."""
    for k in range(REACH):
        for u in range(SCALE):
            exponent = (
                k * chance("half", u) + k * (k - 1) // 2 * chance("one", u) + k * chance("share", u) + chance("last", u)
            )
            assert exponent == Fraction((k * SCALE + u) ** 2, 2 * SCALE**2)


# --- the sampler, draw by draw -----------------------------------------------------------------------------


@pytest.mark.parametrize("k", [*range(13), 20, 40, REACH - 1])
def test_every_size_is_reached_and_with_the_trials_of_its_own(drawn: Any, k: int) -> None:
    for u in range(SCALE) if k < 9 else (0, SCALE - 1):
        assert drawn(Attempt(k, u)) == [k * SCALE + u]
        assert drawn(Attempt(k, u, negative=True)) == ([-(k * SCALE + u)] if k or u else [])


@pytest.mark.parametrize("k", [REACH, REACH + 1, REACH + 30])
def test_beyond_the_reach_nothing_is_kept_and_below_everything(drawn: Any, k: int) -> None:
    assert drawn(Attempt(k, 3)) == []
    assert drawn(Attempt(k, 3), Attempt(REACH - 1, 3), Attempt(2, 1)) == [SCALE * (REACH - 1) + 3, 11]


def trials_of(k: int) -> list[tuple[str, int]]:
    """All trials of an attempt at k, but those that find k."""
    return [*(("one", i) for i in range(k * (k - 1) // 2)), *(("share", i) for i in range(k)), ("last", 0)]


@pytest.mark.parametrize("k", range(9))
def test_every_trial_decides_by_itself_in_every_way_it_can_end(drawn: Any, k: int) -> None:
    u = 2
    for i, (kind, turn) in enumerate(trials_of(k)):
        for path, well in endings(kind, u, 3 if kind == "last" or i % 4 else 5):
            assert drawn(Attempt(k, u, trials={(kind, turn): path})) == ([k * SCALE + u] if well else [])


@pytest.mark.parametrize("k", [13, 30, REACH - 1])
def test_far_out_one_trial_that_fails_is_enough_wherever_it_is(drawn: Any, k: int) -> None:
    every = trials_of(k)
    for kind, turn in {*every[:: len(every) // 6], every[-1], every[-2], every[k * (k - 1) // 2 - 1]}:
        assert drawn(Attempt(k, 4, trials={(kind, turn): shortest(kind, 4, False)})) == []
        long = [path for path, _ in endings(kind, 4, 7) if len(path) == 7][-1]
        assert drawn(Attempt(k, 4, trials={(kind, turn): long})) == [k * SCALE + 4]


@pytest.mark.parametrize("k", range(9))
def test_k_counts_the_trials_that_went_well(drawn: Any, k: int) -> None:
    for turn in range(k + 1):
        for path, well in endings("half", 1, 6):
            if well is (turn < k):
                assert drawn(Attempt(k, 1, trials={("half", turn): path})) == [k * SCALE + 1]


def test_attempts_do_not_touch_each_other(drawn: Any) -> None:
    rng = np.random.default_rng(3)
    for _ in range(30):
        attempts = []
        for _ in range(rng.integers(2, 9)):
            k, u = int(rng.choice([0, 0, 1, 1, 2, 3, 7, 12])), int(rng.integers(SCALE))
            trials, own = {}, trials_of(k)
            if rng.random() < 0.4:
                kind, turn = own[rng.integers(len(own))]
                ways = [path for path, _ in endings(kind, u, 5)]
                trials = {(kind, turn): ways[rng.integers(len(ways))]}
            attempts.append(Attempt(k, u, bool(rng.integers(2)), trials))
        drawn(*attempts)


# --- from an attempt to an upload --------------------------------------------------------------------------


def test_draws_are_what_was_kept_and_nothing_is_cut_off() -> None:
    """The first attempts keep one number less than wanted, so a second lot is needed."""
    for sizes in [[7, 8, 9], [0, 12, 63], [30]]:
        with case(sizes), pytest.MonkeyPatch.context() as monkeypatch:
            count = len(sizes)
            lost = {("last", 0): shortest("last", 4, False)}
            first = [Attempt(k, 4, negative=True) for k in sizes[:-1]]
            first = [Attempt(1, 4, trials=lost) for _ in range(2 * count + 16 - len(first))] + first
            second = [*(Attempt(1, 4, trials=lost) for _ in range(17)), Attempt(sizes[-1], 3)]
            calls = script(first)[0] + script(second)[0]
            monkeypatch.setattr(exact_noise, "_below", Scripted([call for call in calls if call[1]]))
            expected = [-(k * SCALE + 4) for k in sizes[:-1]] + [sizes[-1] * SCALE + 3]
            assert exact_noise.discrete_gaussian(SCALE, count).tolist() == expected


FAR = (6.5, -7.0, 11.0, -63.9, 0.5)


def far(scale: int, count: int) -> Integers:
    return np.resize([int(each * scale) for each in FAR], count).astype(np.int64)


def test_noise_far_out_reaches_the_upload_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for module in (exact_noise, oracles):
        monkeypatch.setattr(module, "discrete_gaussian", far)
    grid = Grid(1.0, 5, 9)
    total = np.linspace(-2.0, 2.0, 5)
    noise = far(grid.noise_scale(1e5), 5)
    assert (release_sum(total, grid, 1e5) - quantise(total, grid)).tolist() == noise.tolist()

    data = make_rows(np.zeros((9, 5)), np.ones(9), order=np.arange(9), offsets=np.array([0, 9]))
    wanted = gradient_question(data, Logistic(), np.zeros((1, 5, 1)), np.array([1e5]), 1)
    said = ExactNoise().answer(wanted)[0, :, 0] * grid.n_rows / grid.step
    np.testing.assert_allclose(said, noise, rtol=1e-12)

    features, labels = rows()
    with guarded(tmp_path / "zero", tiny(np.zeros_like(features), labels)) as guard:
        own = guard.enrol(STUDY).question(1).grid
        answer = guard.answer(STUDY.hash, 1, consensus(1))
        assert answer[:, 0].tolist() == far(own.noise_scale(STUDY.noise_multiplier), 3).tolist()
    with guarded(tmp_path / "agent", tiny(np.zeros_like(features), labels)) as guard:
        agent, calm = Agent(guard, STUDY), STUDY.method(own.n_rows)
        start = calm.init(STUDY.problem, data)
        sizes = np.zeros((1, *STUDY.shape))
        state = type(start)(sizes, sizes)
        gradient = exact_noise.as_mean(far(own.noise_scale(STUDY.noise_multiplier), 3)[:, None], own)[None]
        _, upload = calm.advance(state, gradient, consensus(1), round=1, problem=STUDY.problem)
        np.testing.assert_array_equal(agent.step(1, consensus(1)), upload[0])


# --- whole numbers below a bound, from bytes ---------------------------------------------------------------


@pytest.mark.parametrize("bound", [2, 3, 4, 5, 7, 8, 100, 2**20 - 1, 637_535_235, 2**55 + 1, 2**56 - 1])
def test_numbers_below_a_bound_are_the_low_bits_and_too_large_ones_are_drawn_again(
    monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    bits = (bound - 1).bit_length()
    edge = {0, 1, bound // 2, bound - 1, bound % 2**bits, 2**bits - 1, 2 ** (bits - 1)}
    low = sorted(edge) if bits > 8 else list(range(2**bits))
    high = (0xABCDEF0123456789 >> bits) << bits
    words, asked = [high | each for each in low], []
    later = [high | (each % bound) for each in (0, bound - 1, *range(len(low)))]

    def urandom(size: int) -> bytes:
        asked.append(size)
        source = words if len(asked) == 1 else later
        return np.array([source.pop(0) for _ in range(size // 8)], np.uint64).tobytes()

    again = iter([each & (2**bits - 1) for each in later])
    monkeypatch.setattr(os, "urandom", urandom)
    drawn = exact_noise._below(bound, len(low))
    assert drawn.tolist() == [each if each < bound else next(again) for each in low]
    over = sum(each >= bound for each in low)
    assert asked == [8 * len(low), *([8 * over] if over else [])]


def test_below_one_there_is_only_zero_and_no_bytes_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda size: pytest.fail("bytes were drawn"))
    zeros = exact_noise._below(1, 3)
    assert (zeros.tolist(), zeros.dtype) == ([0, 0, 0], np.int64)
