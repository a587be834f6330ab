"""Bugs in secure aggregation, each put into the shipped code: a check fails for each."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guards import D, Z, memory_folder
from masked_sites import ALL, HONEST, KEYS, MASKED, MASKING, OWNER, POINT, ROSTER, N, masked_study, site, sites

from audit.mutants import Patch, spend_after_send
from dpadmm.errors import RefusalError
from dpadmm.matrices.arrays import Integers
from dpadmm.trusted import discrete_gaussian as exact_noise
from dpadmm.trusted.discrete_gaussian import Lattice
from dpadmm.trusted.ledger import Ledger, read_ledger
from dpadmm.trusted.masking import Mask, Masks, bitmap_of, members_of
from dpadmm.trusted.policy import Terms

HASH, OTHER = MASKED.hash, masked_study("another").hash
Story = tuple[str, int, str, tuple[int, ...]]
TOLD: Story = (HASH, 1, "11" * 32, tuple(range(4)))


def opened(*stories: Story) -> bool:
    """Return whether the masks of sites cancel, for their studies, rounds, requests and members."""
    total = np.zeros(3, np.int64)
    for key, (study, round, request, members) in zip(KEYS, stories, strict=False):
        masks = Masks(study, key, [public for _, public in ROSTER])
        total += masks.for_round(round, request, bitmap_of(members, N)).numbers(3)
    return not total.any()


def answered(folder: Path, members: bytes, *then: bytes) -> bool:
    """Return whether a site answers the last of several sets of members in a round."""
    with site(folder) as guard:
        for each in (members, *then):
            request = guard.prepare(HASH, 1, POINT)
            try:
                guard.mask(HASH, 1, request, each)
            except RefusalError:
                return False
    return True


def sound_noise(folder: Path) -> bool:
    """Shares of ``min_honest_sites`` sites have at least the variance of a release."""
    drawn: list[int] = []
    with pytest.MonkeyPatch.context() as patch, site(folder) as guard:
        patch.setattr(exact_noise, "discrete_gaussian", lambda scale, n: drawn.append(scale) or np.zeros(n, np.int64))
        guard.prepare(HASH, 1, POINT)
    grid = Lattice(1.0, D, MASKING.max_rows_per_site)
    whole = Z * grid.sensitivity / grid.step
    return 1.0 <= HONEST * (drawn[0] / whole) ** 2 < 1.001


def sums_agree(folder: Path) -> bool:
    """The masked answers of the members add up to their prepared answers."""
    with sites(folder) as guards:
        (request,) = {guard.prepare(HASH, 1, POINT) for guard in guards.values()}
        bare = [np.frombuffer(guard._pending[HASH].numbers, "<i8") for guard in guards.values()]
        told: list[Integers] = [guard.mask(HASH, 1, request, ALL) for guard in guards.values()]
    return np.array_equal(np.sum(told, axis=0).ravel(), np.sum(bare, axis=0))


def recorded_before_sent(folder: Path) -> bool:
    with site(folder) as guard:
        guard.mask(HASH, 1, guard.prepare(HASH, 1, POINT), ALL)
        return 1 in read_ledger(folder).accounts[HASH].rounds


def collusion_charged(folder: Path) -> bool:
    with site(folder) as guard:
        guard.mask(HASH, 1, guard.prepare(HASH, 1, POINT), ALL)
    return read_ledger(folder).collusion_spent == HONEST * Fraction(OWNER.release_cost(MASKED.terms.plan.at(1)))


PATH = ((0, 1, 2), (0, 1, 2), (0, 1, 2, 3), (2, 3))
"""Members as sites 0 to 3 are told them: every two that share a stream are told of each other."""

CHECKS: dict[str, Callable[[Path], bool]] = {
    "the sum opens": lambda _: opened(*[TOLD] * 4),
    "answers add up": sums_agree,
    "one U for all": lambda _: not opened(*((*TOLD[:3], members) for members in PATH)),
    "one point for all": lambda _: not opened(*[TOLD] * 3, (*TOLD[:2], "22" * 32, TOLD[3])),
    "one round for all": lambda _: not opened(*[TOLD] * 3, (HASH, 2, *TOLD[2:])),
    "one study for all": lambda _: not opened(*[TOLD] * 3, (OTHER, *TOLD[1:])),
    "the share of the noise": sound_noise,
    "a quorum is enough": lambda folder: answered(folder, bitmap_of(range(MASKING.quorum), N)),
    "fewer than a quorum": lambda folder: not answered(folder, bitmap_of(range(MASKING.quorum - 1), N)),
    "members with me": lambda folder: not answered(folder, bitmap_of(range(1, N), N)),
    "the same members again": lambda folder: answered(folder, ALL, ALL),
    "a second U": lambda folder: not answered(folder, ALL, bitmap_of(range(4), N)),
    "recorded before sent": recorded_before_sent,
    "charged if all others collude": collusion_charged,
}


def failed(inject: Callable[[Patch], None]) -> set[str]:
    """Return the checks that fail with a bug."""
    with memory_folder() as folder, pytest.MonkeyPatch.context() as patch:
        inject(patch)
        return {name for k, (name, holds) in enumerate(CHECKS.items()) if not holds(folder / str(k))}


def context_without(what: str) -> Callable[[Patch], None]:
    def inject(patch: Patch) -> None:
        over, init = Masks.for_round, Masks.__init__

        def shorter(self: Masks, round: int, request: str, members: bytes) -> Mask:
            in_context = {"round": round, "request": request, "members": members}
            dummies = {"round": 1, "request": "00" * 32, "members": ALL}
            mask = over(self, **{**in_context, **({what: dummies[what]} if what in dummies else {})})
            return mask._replace(members=members_of(members, N))

        patch.setattr(Masks, "for_round", shorter)
        if what == "study":
            patch.setattr(Masks, "__init__", lambda self, study, *more: init(self, "00" * 32, *more))

    return inject


def sign_flipped(patch: Patch) -> None:
    """Both sites of a pair add their mask."""

    def added(self: Mask, size: int) -> Integers:
        pairs = [self._replace(members=(j,)) for j in self.members]
        return np.sum([sound(each, size) * (1 if each.members[0] > self.masks.me else -1) for each in pairs], axis=0)

    sound = Mask.numbers
    patch.setattr(Mask, "numbers", added)


def share_by_h(patch: Patch) -> None:
    """The noise is σ/h instead of σ/√h."""
    sound = Lattice.noise_scale
    patch.setattr(Lattice, "noise_scale", lambda self, z, shares=1: sound(self, z, shares**2))


def second_answer(patch: Patch) -> None:
    """A second set of members in a round also gets an answer."""
    sound = Ledger.replay

    def replay(self: Ledger, *asked: Any, **named: Any) -> Any:
        try:
            return sound(self, *asked, **named)
        except RefusalError as refused:
            if refused.code == "round-forked":
                return bytes(8 * D)
            raise

    patch.setattr(Ledger, "replay", replay)


def one_share_charged(patch: Patch) -> None:
    sound = Ledger.reserve
    patch.setattr(Ledger, "reserve", lambda self, *asked, shares, **named: sound(self, *asked, **named))


def any_members(patch: Patch) -> None:
    patch.setattr(Terms, "quorum", 0)


def masked_with_others_only(patch: Patch) -> None:
    """The site does not check that it is one of the members."""

    sound = Masks.for_round

    def over(self: Masks, *asked: Any) -> Mask:
        mask = sound(self, *asked)
        return mask._replace(members=tuple({*mask.members, self.me}))

    patch.setattr(Masks, "for_round", over)


MUTANTS: dict[str, tuple[Callable[[Patch], None], set[str]]] = {
    "U left out of the context": (context_without("members"), {"one U for all", "a second U"}),
    "point left out of the context": (context_without("request"), {"one point for all"}),
    "round left out of the context": (context_without("round"), {"one round for all"}),
    "study left out of the context": (context_without("study"), {"one study for all"}),
    "sign flipped": (sign_flipped, {"the sum opens", "answers add up"}),
    "σ/h for σ/√h": (share_by_h, {"the share of the noise"}),
    "quorum unchecked": (any_members, {"fewer than a quorum"}),
    "a stranger to the round answers": (masked_with_others_only, {"members with me"}),
    "spend after send": (spend_after_send, {"recorded before sent"}),
    "second U answered": (second_answer, {"a second U"}),
    "one share charged": (one_share_charged, {"charged if all others collude"}),
}


def test_the_shipped_code_passes_every_check() -> None:
    assert failed(lambda patch: None) == set()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_check_fails_for_each_bug(name: str) -> None:
    inject, red = MUTANTS[name]
    assert red <= failed(inject)


def test_every_check_finds_a_bug_or_guards_the_others() -> None:
    found = set().union(*(red for _, red in MUTANTS.values()))
    assert CHECKS.keys() - found == {"a quorum is enough", "the same members again"}
