"""Bugs of a private agent or its ledger, each put into the shipped code.

``mutant(monkeypatch)`` puts one in; ``MUTANTS`` says which gates of the audit must turn red, in which games. To see it:
``python tests/audit/mutants.py``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import count
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from dpadmm.audit import AuditPlan, run_audit
from dpadmm.audit.game import GAMES, PGD
from dpadmm.errors import RefusalError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.methods import dp_admm
from dpadmm.methods.dp_admm import AdmmState, DpAdmm
from dpadmm.queries import newton as newton
from dpadmm.queries import problem
from dpadmm.queries.moments import Moments
from dpadmm.queries.newton import NewtonQuery
from dpadmm.sites import agent as agent_module
from dpadmm.sites.agent import Agent
from dpadmm.trusted import discrete_gaussian as exact_noise
from dpadmm.trusted import guard, policy
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import Ledger
from dpadmm.trusted.masking import Mask, Masks
from dpadmm.trusted.private_rows import CheckedRows

SHORT = AuditPlan(trials=40, mu=4.75, workers=1, confidence=1.0 - 1e-7, false_alarm=1e-7)
"""Few trials, hardly a false alarm, and little noise, beside which a row more or less is easily seen."""

Patch = pytest.MonkeyPatch


def noise_halved(patch: Patch) -> None:
    sound = exact_noise.discrete_gaussian
    patch.setattr(exact_noise, "discrete_gaussian", lambda scale, count: sound(scale // 2, count))


def factor_2_missing(patch: Patch) -> None:
    sound = exact_noise.mean_sensitivity
    patch.setattr(exact_noise, "mean_sensitivity", lambda c1, m: sound(c1, m) / 2.0)


def variance_for_deviation(patch: Patch) -> None:
    sound = exact_noise.Lattice.noise_scale
    patch.setattr(exact_noise.Lattice, "noise_scale", lambda self, z, shares=1: sound(self, z**2, shares))


def noise_reused(patch: Patch) -> None:
    """The same noise in every round of a study."""
    drawn: dict[tuple[int, str], Any] = {}
    now = _watch(patch)

    def once(scale: int, count: int) -> Any:
        first, noise = drawn.setdefault((now.guard, now.study), (scale, exact_noise.discrete_gaussian(scale, count)))
        return np.rint(noise[:count] * (scale / first)).astype(np.int64)

    _draw_with(patch, once)


def seed_shared(patch: Patch) -> None:
    """Noise from a seed that both agents know: the study and the round."""
    now = _watch(patch)

    def seeded(scale: int, count: int) -> Any:
        seed = int.from_bytes(sha256(f"{now.study} {now.round}".encode()).digest()[:8])
        return np.rint(np.random.default_rng(seed).normal(0.0, scale, count)).astype(np.int64)

    _draw_with(patch, seeded)


def dual_from_clean_primal(patch: Patch) -> None:
    sound = dp_admm.next_dual

    def next_dual(state: AdmmState, consensus: Floats, rho: float) -> Floats:
        return sound(AdmmState(_clean(state), state.dual), consensus, rho)

    patch.setattr(dp_admm, "next_dual", next_dual)
    _keep_clean(patch)


def gradient_at_clean_primal(patch: Patch) -> None:
    patch.setattr(DpAdmm, "parameters", lambda self, state, consensus, round: _clean(state))
    _keep_clean(patch)


def noise_on_the_wire_only(patch: Patch) -> None:
    """The upload has noise, but the state of the agent has none."""
    _keep_clean(patch, noise_in_state=False)


def clipping_off(patch: Patch) -> None:
    patch.setattr(exact_noise.Lattice, "row_bound", 1e100)


def one_row_too_many(patch: Patch) -> None:
    """The mean is divided by m + 1."""
    sound = agent_module.as_mean
    patch.setattr(agent_module, "as_mean", lambda upload, grid: sound(upload, replace(grid, n_rows=grid.n_rows + 1)))


def one_row_too_few(patch: Patch) -> None:
    """The noise is that of m − 1 rows."""
    sound = CheckedRows.total

    def total(self: CheckedRows, *asked: Any) -> Integers:
        return np.rint(sound(self, *asked) * ((self.n_rows - 1) / self.n_rows)).astype(np.int64)

    patch.setattr(CheckedRows, "total", total)


def fresh_noise_on_retransmission(patch: Patch) -> None:
    spend = Ledger.spend

    def lenient(self: Ledger, *arguments: Any, **named: Any) -> None:
        try:
            spend(self, *arguments, **named)
        except RefusalError as refusal:
            if refusal.code != "round-old":
                raise

    patch.setattr(Ledger, "replay", lambda self, study, round, *, digest: None)
    patch.setattr(Ledger, "spend", lenient)


def spend_after_send(patch: Patch) -> None:
    """The record is written at the next use of the ledger."""
    spend, late = Ledger.spend, dict[int, Callable[[], None]]()

    def spend_later(self: Ledger, *arguments: Any, **named: Any) -> None:
        late[id(self)] = lambda: spend(self, *arguments, **named)

    def first_the_late(sound: Callable[..., Any]) -> Callable[..., Any]:
        def use(self: Ledger, *arguments: Any, **named: Any) -> Any:
            late.pop(id(self), lambda: None)()
            return sound(self, *arguments, **named)

        return use

    for name in ("replay", "transcript", "status", "reserve", "close"):
        patch.setattr(Ledger, name, first_the_late(getattr(Ledger, name)))
    patch.setattr(Ledger, "spend", spend_later)


def price_too_low(patch: Patch) -> None:
    sound = policy.Policy.release_cost
    patch.setattr(policy.Policy, "release_cost", lambda self, release: sound(self, release) / 2.0)


def cap_ignored(patch: Patch) -> None:
    patch.setattr(policy, "fits", lambda *arguments: True)
    patch.setattr("dpadmm.trusted.ledger.fits", lambda *arguments: True)


# --- statistics other than the paper's gradient, and rounds that differ -------------------------------------


def moments_not_clipped(patch: Patch) -> None:
    sound = Moments._sum
    patch.setattr(
        Moments, "_sum", lambda self, features, labels, bound, *more: sound(self, features, labels, 1e100, *more)
    )


def moments_sensitivity_halved(patch: Patch) -> None:
    """Noise for rows of norm 1, and rows of norm 2."""
    sound = exact_noise.Lattice.noise_scale

    def noise_scale(self: exact_noise.Lattice, z: float, shares: int = 1) -> int:
        return sound(self, z, shares) // (2 if self.row_norm == Moments.row_norm else 1)

    patch.setattr(exact_noise.Lattice, "noise_scale", noise_scale)


def norm_before_shaping(patch: Patch) -> None:
    """Preconditioned rows are clipped by their original norms."""
    patch.setattr(problem.Rows, "with_transformed_norms", lambda self, shape: self)


def shape_kept(patch: Patch) -> None:
    """Rows keep the norms of the first preconditioner."""
    patch.setattr("dpadmm.queries.preconditioner.Preconditioner.same", lambda self, other: True)


def clip_after_the_sum(patch: Patch) -> None:
    """The sum of m rows is clipped to m times the bound of a row."""

    def total(self: CheckedRows, what: Any, parameters: Floats, grid: exact_noise.Lattice) -> Integers:
        out = what.sums(self._rows, parameters[None], bound=1e100)[0]
        return exact_noise.quantise(out * min(1.0, self.n_rows * grid.row_bound / np.linalg.norm(out)), grid)

    patch.setattr(CheckedRows, "total", total)


def moments_at_the_gradients_price(patch: Patch) -> None:
    sound = policy.Policy.release_cost

    def price(self: policy.Policy, release: Any) -> float:
        return sound(self, replace(release, noise_multiplier=_z_of_gradients()))

    patch.setattr(policy.Policy, "release_cost", price)


def first_round_with_later_noise(patch: Patch) -> None:
    """The charge is that of the agreed noise."""
    sound = guard.with_noise

    def release(total: Integers, grid: Any, z: float, **more: Any) -> Any:
        return sound(total, grid, _z_of_gradients() if grid.row_norm == Moments.row_norm else z, **more)

    patch.setattr(guard, "with_noise", release)


def silent_labels_counted(patch: Patch) -> None:
    """The sum includes y² of rows of zeros."""
    sound = Moments._sum

    def with_silent(self: Moments, features: Any, labels: Floats, bound: float, factors: Any = 1.0) -> Floats:
        out = sound(self, features, labels, bound, factors)
        out[-1] += 0.5 * np.sum(np.clip(labels[~features.any(axis=1)], -1.0, 1.0) ** 2)
        return out

    patch.setattr(Moments, "_sum", with_silent)


# --- the Newton pair of counts; what would be shortened to 1 in the end is not -----------------------------


def counts_at_full_length(patch: Patch) -> None:
    """Gradient and Hessian have norm 1 each, so √2 together."""
    patch.setattr(newton, "COUNT_SHARES", (1.0, 1.0))
    clipping_off(patch)


def means_capped_too_late(patch: Patch) -> None:
    """The bound is a quarter above the agreed one. With a much larger one, sums would be refused."""
    _rewritten(patch, "(cap / np.maximum(row_sums(planned * rates), cap))",
               "(1.25 * cap / np.maximum(row_sums(planned * rates), 1.25 * cap))")  # fmt: skip


def counts_not_clipped(patch: Patch) -> None:
    _rewritten(patch, "np.maximum(sizes, clip)", "(0.0 * sizes + clip)")


def intervals_capped_one_by_one(patch: Patch) -> None:
    """The norm of a person with p intervals is p times as large."""
    _rewritten(patch, "(cap / np.maximum(row_sums(planned * rates), cap))[:, None]",
               "cap / np.maximum(planned * rates, cap)")  # fmt: skip


def constant_of_silent_rows(patch: Patch) -> None:
    """Rows of zeros keep the constant, so their count and exposure contribute."""
    _rewritten(patch, "rows[:, d:]", "np.full((len(rows), 1), 0.28)")


def _rewritten(patch: Patch, old: str, new: str) -> None:
    """The sum over counts with other words in it, and rows that nothing shortens afterwards."""
    source = dedent(inspect.getsource(NewtonQuery._sum_of_counts))
    assert source.count(old) == 1
    found: dict[str, Any] = {}
    exec(source.replace(old, new), vars(newton), found)
    patch.setattr(NewtonQuery, "_sum_of_counts", found["_sum_of_counts"])
    clipping_off(patch)


# --- secure aggregation -------------------------------------------------------------------------------------


def shares_too_small(patch: Patch) -> None:
    """The noise is σ/h instead of σ/√h."""
    sound = exact_noise.Lattice.noise_scale
    patch.setattr(exact_noise.Lattice, "noise_scale", lambda self, z, shares=1: sound(self, z, shares**2))


def one_share_left_out(patch: Patch) -> None:
    """Every second site adds no noise."""
    turn = count()

    def draw(scale: int, size: int) -> Any:
        noise = exact_noise.discrete_gaussian(scale, size)
        return noise * (next(turn) % 2 == 0)

    _draw_with(patch, draw)


def masks_for_noise(patch: Patch) -> None:
    """No noise under the mask."""
    _draw_with(patch, lambda scale, size: np.zeros(size, np.int64))


def masks_left_out(patch: Patch) -> None:
    patch.setattr(Mask, "numbers", lambda self, size: np.zeros(size, np.int64))


def masks_of_all_rounds_the_same(patch: Patch) -> None:
    sound = Masks.for_round
    patch.setattr(Masks, "for_round", lambda self, round, request, members: sound(self, 1, "00" * 32, members))


def masks_of_all_studies_the_same(patch: Patch) -> None:
    """The requests differ as well, because they contain the name of the study."""
    sound = Masks.for_round

    def over(self: Masks, round: int, request: str, members: bytes) -> Mask:
        self._study = bytes(32)
        return sound(self, round, "00" * 32, members)

    patch.setattr(Masks, "for_round", over)


def sign_flipped(patch: Patch) -> None:
    sound = Mask.numbers
    patch.setattr(Mask, "numbers", lambda self, size: sound(self, size) * (1 - 2 * (self.masks.me % 2)))


def second_members_answered(patch: Patch) -> None:
    """The same noisy sum is sent with another mask."""
    sound, bare = Guard.mask, dict[tuple[int, str, int], Any]()

    def masked(self: Guard, study: str, round: int, request: str, members: bytes) -> Any:
        ready, mask = self._pending.get(study), self._with_masks(study)[1].for_round(round, request, members)
        if ready is not None:
            bare[id(self), study, round] = np.frombuffer(ready.numbers, "<i8")
        try:
            return sound(self, study, round, request, members)
        except RefusalError as refusal:
            if refusal.code != "round-forked":
                raise
            numbers = bare[id(self), study, round]
            return numbers + mask.numbers(numbers.size)

    patch.setattr(Guard, "mask", masked)


def quorum_not_checked(patch: Patch) -> None:
    patch.setattr(policy.Terms, "quorum", 1)


def shares_not_charged(patch: Patch) -> None:
    """The ledger charges a share as if it were the whole noise."""
    sound = Ledger.reserve
    patch.setattr(Ledger, "reserve", lambda self, *words, shares, **more: sound(self, *words, **more))


def collusion_cap_ignored(patch: Patch) -> None:
    patch.setattr(policy.Policy, "collusion_cap", 1e9)


def _z_of_gradients() -> float:
    return PGD.rounds[-1].noise_multiplier(SHORT.mu)


@dataclass(frozen=True)
class Mutant:
    """A bug, and the gates that must fail, by game."""

    name: str
    inject: Callable[[Patch], None]
    red: tuple[str, ...]
    games: tuple[str, ...] = ("pgd", "dp_admm")
    trials: int = SHORT.trials
    """Small changes need more trials."""


ADMM, AUTO_ONLY, COALITION, ALONE = ("dp_admm",), ("pgd",), ("pgd_coalition",), ("pgd_alone",)
MASKED = (*COALITION, *ALONE)
COUNTS = ("newton_counts", "newton_times")
MUTANTS = (
    Mutant("noise halved", noise_halved, ("noise: variance", "noise: shape")),
    Mutant("factor 2 missing", factor_2_missing, ("noise: variance", "noise: shape")),
    Mutant("σ² passed as σ", variance_for_deviation, ("noise: variance",)),
    Mutant("noise reused across rounds", noise_reused, ("noise: never twice", "noise: from round to round")),
    Mutant("dual from the clean primal", dual_from_clean_primal, ("noise: from round to round",), ADMM),
    Mutant("gradient at the clean primal", gradient_at_clean_primal, ("noise: from round to round",), ADMM),
    Mutant("noise on the wire only", noise_on_the_wire_only, ("noise: from round to round",), ADMM),
    Mutant("seed shared between agents", seed_shared, ("noise: never twice", "noise: from agent to agent")),
    Mutant("clipping off", clipping_off, ("noise: mean", "score, world 0: mean", "score, world 1: mean")),
    Mutant("m off by one: the mean", one_row_too_many, ("noise: mean", "answers are whole numbers")),
    Mutant("m off by one: the sum", one_row_too_few, ("noise: mean",)),
    Mutant("fresh noise on retransmission", fresh_noise_on_retransmission, ("repeated requests",)),
    Mutant("ledger spend after send", spend_after_send, ("recorded before sent",)),
    Mutant("price too low", price_too_low, ("ledger's sums",)),
    Mutant("cap ignored", cap_ignored, ("nothing beyond the cap",)),
    Mutant("moments not clipped", moments_not_clipped, ("noise: mean",), AUTO_ONLY),
    Mutant(
        "moments' sensitivity halved", moments_sensitivity_halved,
        ("noise: variance by round", "noise: variance", "noise: shape"), AUTO_ONLY,
    ),
    Mutant("norm before shaping", norm_before_shaping, ("noise: mean", "noise: variance by round"), AUTO_ONLY),
    Mutant("shape kept for later rounds", shape_kept, ("noise: mean",), AUTO_ONLY, 4 * SHORT.trials),
    Mutant("clip after the sum", clip_after_the_sum, ("noise: mean", "score, world 1: mean")),
    Mutant("moments at the gradient's price", moments_at_the_gradients_price, ("ledger's sums",), AUTO_ONLY),
    Mutant(
        "round 1 with the later noise", first_round_with_later_noise,
        ("noise: variance by round", "noise: variance"), AUTO_ONLY,
    ),
    Mutant("y² of silent rows counted", silent_labels_counted, ("noise: mean",), AUTO_ONLY),
    Mutant("pair of counts √2 long", counts_at_full_length, ("noise: mean",), COUNTS),
    Mutant("means of counts capped too late", means_capped_too_late, ("noise: mean",), COUNTS),
    Mutant("counts above their means not clipped", counts_not_clipped, ("noise: mean",), COUNTS[:1]),
    Mutant("intervals capped one by one", intervals_capped_one_by_one, ("noise: mean",), COUNTS[1:]),
    Mutant("constant of silent rows", constant_of_silent_rows, ("noise: mean",), COUNTS),
    Mutant("shares of σ/h", shares_too_small, ("noise: variance", "noise: shape"), MASKED),
    Mutant("one share left out", one_share_left_out, ("noise: variance", "noise: shape"), COALITION),
    Mutant("no noise under masks", masks_for_noise, ("noise: variance", "noise: never twice"), MASKED),
    Mutant(
        "shares of all rounds the same", noise_reused, ("noise: never twice", "noise: from round to round"), MASKED
    ),
    Mutant("shares of two sites the same", seed_shared, ("noise: variance",), COALITION),
    Mutant("masks left out", masks_left_out, ("masked answers",), MASKED),
    Mutant("masks of all rounds the same", masks_of_all_rounds_the_same, ("masked answers",), MASKED),
    Mutant("masks of all studies the same", masks_of_all_studies_the_same, ("masked answers",), MASKED),
    Mutant("sign of a mask flipped", sign_flipped, ("noise: variance",), MASKED),
    Mutant("masked for two sets of members", second_members_answered, ("repeated requests",), MASKED),
    Mutant("quorum not checked", quorum_not_checked, ("repeated requests",), MASKED),
    Mutant("masked answers recorded after they were sent", spend_after_send, ("recorded before sent",), MASKED),
    Mutant("shares at the price of all noise", shares_not_charged, ("ledger's sums",), MASKED),
    Mutant("cap for all others together ignored", collusion_cap_ignored, ("nothing beyond the cap",), ALONE),
)  # fmt: skip


def red_gates(mutant: Mutant, game: str) -> set[str]:
    """Return the gates that fail with a bug in an audit of a game."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.inject(patch)
        audit = run_audit(replace(SHORT, games=(game,), trials=mutant.trials))
        return {gate.name for gate in audit.gates if gate.failed}


# --- what several bugs need ---------------------------------------------------------------------------------


class _Now:
    """The current request of a guard, and the integers without noise of all requests."""

    guard: int = 0
    study: str = ""
    round: int = 0

    def __init__(self) -> None:
        self.clean: dict[tuple[int, str, int], Any] = {}


def _watch(patch: Patch) -> _Now:
    now, release = _Now(), guard.with_noise

    def telling(sound: Callable[..., Any]) -> Callable[..., Any]:
        def act(self: Guard, study: str, round: int, *arguments: Any) -> Any:
            now.guard, now.study, now.round = id(self), study, round
            return sound(self, study, round, *arguments)

        return act

    def release_and_tell(total: Integers, grid: Any, z: float, **more: Any) -> Any:
        now.clean[now.guard, now.study, now.round] = total
        return release(total, grid, z, **more)

    for name in ("answer", "prepare"):
        patch.setattr(Guard, name, telling(getattr(Guard, name)))
    patch.setattr(guard, "with_noise", release_and_tell)
    return now


def _draw_with(patch: Patch, draw: Callable[[int, int], Any]) -> None:
    release = exact_noise.with_noise
    patch.setattr(guard, "with_noise", lambda total, grid, z, **more: release(total, grid, z, draw=draw, **more))


@dataclass(frozen=True)
class _WithClean(AdmmState):
    clean: Floats


def _clean(state: AdmmState) -> Floats:
    return state.clean if isinstance(state, _WithClean) else state.released


def _keep_clean(patch: Patch, *, noise_in_state: bool = True) -> None:
    """Agents also return their model without the noise of this round."""
    now, advanced = _watch(patch), Agent._advanced

    def both(self: Agent, state: Any, round: int, answer: Any, consensus: Floats) -> Any:
        clean = now.clean[id(self._guard), self._study.hash, round]
        noisy_state, upload = advanced(self, state, round, answer, consensus)
        clean_state, _ = advanced(self, state, round, clean, consensus)
        if not noise_in_state:
            return clean_state, upload
        return _WithClean(noisy_state.released, noisy_state.dual, clean_state.released), upload

    patch.setattr(Agent, "_advanced", both)


if __name__ == "__main__":
    missed = 0
    for mutant in (Mutant("none", lambda patch: None, (), tuple(GAMES)), *MUTANTS):
        for game in mutant.games:
            red = red_gates(mutant, game)
            caught = set(mutant.red) <= red and (bool(red) == bool(mutant.red))
            missed += not caught
            word = "ok    " if caught else "MISSED"
            sys.stdout.write(f"{word}  {game:14} {mutant.name:44} {', '.join(sorted(red))}\n")
            sys.stdout.flush()
    sys.exit(missed > 0)
