"""All messages of the sites of a study with secure aggregation: one row changes the sum and nothing else.

Real guards run a whole study, with restarts and all kinds of refusals, with the same noise and keys. For neighbouring
tables of one site, its masked answers differ by the contribution of the row, and nothing else differs. Masked answers
and their sums look uniform until all members have answered.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from guards import STUDY, D, M, guarded, memory_folder, private, rows
from looping import case
from masked_sites import ALL, KEYS, MASKED, MASKING, OWNER, ROSTER, N, masked_study, site, unmasked
from neighbours import Outbound, allowed_steps, steps_between, watched
from scipy.stats import chisquare

from dpadmm.accounting.events import Release
from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.trusted.discrete_gaussian import Lattice
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.masking import Masks, bitmap_of

HASH = MASKED.hash
ROUNDS = {1: range(N), 2: (0, 1, 3, 4), 3: (1, 2, 3, 4), 4: (0, 2, 3, 4)}
"""Members; site 0, whose row is another one, misses a round."""
ROWS: dict[str, list[float]] = {
    "plain": [0.1, -0.4, 0.3],
    "huge": [1e150, -1e150, 1e150],
    "subnormal": [5e-324, -1e-320, 2e-308],
    "zeros": [0.0, 0.0, 0.0],
}


def table(i: int, neighbour: str | None) -> tuple[Any, Any]:
    features, labels = rows(seed=i)
    if i == 0 and neighbour == "opposite":
        features[2] *= -1.0
    elif i == 0 and neighbour:
        features[2], labels[2] = ROWS[neighbour], -labels[2]
    return features, labels


def point(round: int) -> Any:
    return np.array([[0.3], [-40.0], [1e154]]) * (round - 1)


def run_study(folder: Path, neighbour: str | None) -> tuple[Outbound, dict[tuple[int, int], Any]]:
    """Return all messages except masked answers, and the masked answers by round and site."""
    seen, answers = Outbound(), dict[tuple[int, int], Any]()
    with watched(seen, seed=1):
        for part in ((1, 2), (2, 3, 4), ()):
            with ExitStack() as held:
                opened = [lambda _, i=i: private(*table(i, neighbour)) for i in range(N)]
                guards = [held.enter_context(site(folder / str(i), i, MASKED, OWNER, opened[i])) for i in range(N)]
                for round in part:
                    requests = [guards[i].prepare(HASH, round, point(round), b"memo") for i in range(N)]
                    seen.messages += requests
                    for i in ROUNDS[round]:
                        answer = guards[i].mask(HASH, round, requests[i], bitmap_of(ROUNDS[round], N))
                        assert np.array_equal(answers.setdefault((round, i), answer), answer)
                send_refused_requests(seen, guards[0])
        with guarded(folder / "0", opened[0], OWNER, key=KEYS[0]) as guard:
            guard.enrol(MASKED)
            seen.ask(guard.leave, HASH)
            seen.ask(guard.prepare, HASH, 5, point(5))
    return seen, answers


def send_refused_requests(seen: Outbound, guard: Guard) -> None:
    """Send all kinds of invalid requests and record the messages of the refusals."""
    request = guard.prepare(HASH, 1, point(1), b"memo")
    before = len(seen.uploads)
    for round, asked, members in (
        *((1, request, bitmap_of(few, N)) for few in ((0, 1), (1, 2, 3, 4), (0, 1, 2, 3))),
        (1, request, b""),
        (1, request, ALL + b"\0"),
        (1, "0" * 64, ALL),
        (3, request, ALL),
        (9, request, ALL),
        (10**6, request, ALL),
        (1, "nothing", ALL),
    ):
        seen.ask(guard.mask, HASH, round, asked, members)
    for round, where in ((1, np.nan), (0, 0.0), (10**6, 0.0)):
        seen.ask(guard.prepare, HASH, round, np.full((D, 1), where))
    seen.ask(guard.answer, HASH, 1, point(1))
    seen.ask(guard.prepare, STUDY.hash, 1, point(1))
    for other in (
        masked_study(roster=ROSTER[1:]),
        masked_study(max_rows_per_site=M - 1),
        masked_study(quorum=3),
        masked_study(terms={"plan": ReleasePlan.constant(Release(0.5), 9)}),
    ):
        seen.ask(lambda other=other: guard.enrol(other).terms)
    assert len(seen.uploads) == before


def test_replacing_a_row_changes_only_its_sites_masked_answers_by_its_contribution() -> None:
    grid = Lattice(1.0, D, MASKING.max_rows_per_site)
    with memory_folder() as folder:
        one, answers = run_study(folder, None)
    for neighbour in (*ROWS, "opposite"):
        with case(neighbour), memory_folder() as folder:
            other, moved = run_study(folder, neighbour)
            assert other.messages == one.messages
            assert moved.keys() == answers.keys()
            for (round, i), answer in answers.items():
                steps = steps_between(moved[round, i], answer)  # modulo 2^64, where masks are the same
                assert (steps <= allowed_steps(grid)) if i == 0 else steps == 0.0
            for round, members in ROUNDS.items():
                sums = [sum(item[round, i] for i in members) for item in (moved, answers)]
                assert np.abs(sums).max() < N * grid.max_upload(grid.noise_scale(20.0, MASKING.min_honest_sites))
                assert np.array_equal(
                    sums[0] - sums[1], moved[round, 0] - answers[round, 0] if 0 in members else 0 * sums[0]
                )
            assert steps_between(moved[1, 0], answers[1, 0]) > 0.0


# --- what is seen of masked answers -------------------------------------------------------------------------

WIDE, MANY = 64, 40
MEMBERS, COLLUDING = (0, 1, 2, 4), (2,)


def uniform(numbers: Any) -> bool:
    """Return whether each of the eight bytes of the numbers is uniform; false alarms have probability 1e-6."""
    places = numbers.astype("<i8").reshape(-1).view(np.uint8).reshape(-1, 8).T
    return min(chisquare(np.bincount(place, minlength=256)).pvalue for place in places) > 1e-6 / 8


def test_masked_answers_and_partial_sums_look_uniform() -> None:
    """This also holds for an observer with the streams of a colluding member.

    The full sum is as small as sums and noise.
    """
    study = wide_study()
    bitmap, seen, bare = bitmap_of(MEMBERS, N), [], []
    with memory_folder() as folder, ExitStack() as held:
        opened = {i: (lambda _, i=i: private(*rows(i, d=WIDE))) for i in MEMBERS}
        guards = {i: held.enter_context(site(folder / str(i), i, study, OWNER, opened[i])) for i in MEMBERS}
        spies = [Masks(study.hash, KEYS[i], [key for _, key in ROSTER]) for i in COLLUDING]
        for round in range(1, MANY + 1):
            (request,) = {guard.prepare(study.hash, round, np.zeros((WIDE, 1))) for guard in guards.values()}
            masked = {i: guard.mask(study.hash, round, request, bitmap).ravel() for i, guard in guards.items()}
            bare.append([unmasked(guards[i], round, request, bitmap, masked[i]) for i in MEMBERS])
            streams = sum(spy.for_round(round, request, bitmap).numbers(WIDE) for spy in spies)
            seen.append([*masked.values(), streams])
    answers = np.array(seen)  # (rounds, members and known streams, numbers)
    min_honest_sites = [k for k, i in enumerate(MEMBERS) if i not in COLLUDING]
    for size in range(1, len(min_honest_sites)):
        for some in combinations(min_honest_sites, size):
            with case(some):
                assert uniform(answers[:, some].sum(axis=1))
                assert uniform(answers[:, [*some, -1]].sum(axis=1))
                assert uniform(np.diff(answers[:, [*some, -1]].sum(axis=1), axis=0)[::2])  # two rounds
    whole = answers[:, [*min_honest_sites, -1]].sum(axis=1)
    np.testing.assert_array_equal(whole, np.array(bare)[:, min_honest_sites].sum(axis=1))
    assert not uniform(whole)
    assert not uniform(np.array(bare))


def wide_study() -> Any:
    training = STUDY.training.with_changes(n_rounds=MANY, noise_multiplier=50.0)
    terms = replace(STUDY, features=tuple(f"x{j}" for j in range(WIDE)), training=training).terms
    return masked_study("wide", {"plan": terms.plan, "statistics": terms.statistics})
