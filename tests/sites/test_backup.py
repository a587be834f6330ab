"""Backups of a ledger: a restore never charges less than was spent."""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from federations import small_study, write_rows
from looping import case

from dpadmm.errors import DataError, DPADMMError, RefusalError, StudyError
from dpadmm.federation.local import SECURE_AGGREGATION, new_site
from dpadmm.sites.agent import Agent
from dpadmm.sites.backup import back_up, restore
from dpadmm.sites.site import Site, read_site
from dpadmm.studies.study import Study
from dpadmm.trusted.ledger import DATABASE, LINE, MARK, SCHEMA, read_ledger
from dpadmm.trusted.policy import MaskingLimits

FIRST, SECOND = small_study(20, name="first"), small_study(20, name="second")
LIMIT = 9.0


@pytest.fixture
def site(tmp_path: Path) -> Site:
    write_rows(tmp_path / "table.csv", seed=0)
    return new_site(tmp_path, FIRST, table="table.csv", epsilon=LIMIT)


def released(site: Site, study: Study, *rounds: int) -> Fraction:
    """Answer rounds, and return all releases in the ledger."""
    with site.guard() as guard:
        agent = Agent(guard, study)
        start = study.method(1).start(study.shape)
        for round in rounds:
            agent.step(round, start)
    return read_ledger(site.ledger).spent


@contextmanager
def unchanged(site: Site) -> Iterator[None]:
    before = {path: path.read_bytes() for path in site.ledger.parent.rglob("*") if path.is_file()}
    yield
    assert {path: path.read_bytes() for path in site.ledger.parent.rglob("*") if path.is_file()} == before


def refused(site: Site, study: Study) -> str:
    with pytest.raises(RefusalError) as error, site.guard() as guard:
        guard.enrol(study)
    return error.value.code


def test_after_a_lost_disk_open_studies_are_charged_in_full_and_all_else_is_taken_for_spent(
    site: Site, tmp_path: Path
) -> None:
    released(site, FIRST, 1, 2)
    state = back_up(site.ledger, tmp_path / "copy")
    assert state.fingerprint == read_ledger(site.ledger).fingerprint
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o600
    spent = released(site, FIRST, 3, 4, 5)
    spent = released(site, SECOND, 1, 2, 3)
    shutil.rmtree(site.ledger)
    done = restore(site, tmp_path / "copy", None)
    after = read_ledger(site.ledger)
    assert after.fingerprint == done.state.fingerprint
    assert (done.closed, done.complete, done.kept) == ((FIRST.hash,), False, None)
    assert after.spent >= spent
    assert Fraction(site.policy.cap) <= after.spent <= Fraction(site.policy.cap) * (1 + Fraction(1, 10**9))
    assert after.accounts[FIRST.hash].spent == Fraction(after.accounts[FIRST.hash].reservation.mu_squared)
    assert (refused(site, FIRST), refused(site, SECOND)) == ("study-changed", "budget-cap")
    assert site.ledger.stat().st_mode & 0o777 == 0o700
    assert not list(site.ledger.parent.glob("*restoring*"))


def test_named_studies_since_the_backup_are_charged_alone(site: Site, tmp_path: Path) -> None:
    released(site, FIRST, 1)
    back_up(site.ledger, tmp_path / "copy")
    spent = released(site, SECOND, 1, 2)
    shutil.rmtree(site.ledger)
    with pytest.raises(StudyError, match="'second': accepted here, but not in the backup: name it"):
        restore(site, tmp_path / "copy", [], {FIRST.hash: "first", SECOND.hash: "second"})
    with pytest.raises(StudyError, match="'first': already in the backup"):
        restore(site, tmp_path / "copy", [FIRST, SECOND])
    assert not site.ledger.exists(), "nothing is half done"
    done = restore(site, tmp_path / "copy", [SECOND], {FIRST.hash: "first", SECOND.hash: "second"})
    costs = [site.policy.cost(study.terms.plan) for study in (FIRST, SECOND)]
    assert float(done.state.spent) == pytest.approx(sum(costs))
    assert done.state.spent >= spent
    assert done.state.promised < Fraction(site.policy.cap), "the rest is left"


def test_the_loss_under_collusion_is_charged_too(site: Site, tmp_path: Path) -> None:
    with site.path.open("a") as out:
        out.write(SECURE_AGGREGATION.format(epsilon=20.0))
    site = read_site(site.path)
    assert site.policy.collusion_cap > 2 * site.policy.cap
    released(site, FIRST, 1)
    back_up(site.ledger, tmp_path / "copy")
    shutil.rmtree(site.ledger)
    state = restore(site, tmp_path / "copy", None).state
    assert (state.cap, state.collusion_cap) == (site.policy.cap, site.policy.collusion_cap)
    assert Fraction(site.policy.cap) <= state.spent <= Fraction(site.policy.cap) * (1 + Fraction(1, 10**9))
    assert (
        Fraction(site.policy.collusion_cap)
        <= state.collusion_spent
        <= Fraction(site.policy.collusion_cap) + state.spent
    )
    assert sorted(path.stat().st_mode & 0o777 for path in site.ledger.iterdir()) == [0o600, 0o600]


def test_with_nothing_enrolled_since_no_more_than_the_open_studies_is_charged(site: Site, tmp_path: Path) -> None:
    released(site, FIRST, 1)
    back_up(site.ledger, tmp_path / "copy")
    shutil.rmtree(site.ledger)
    done = restore(site, tmp_path / "copy", [])
    assert done.lost == 0
    assert float(done.state.spent) == pytest.approx(site.policy.cost(FIRST.terms.plan))


def test_a_ledger_that_was_put_back_by_a_snapshot_is_charged_where_it_is(site: Site) -> None:
    released(site, FIRST, 1)
    before = read_ledger(site.ledger)
    done = restore(site, None, [])
    assert done.closed == (FIRST.hash,)
    assert done.state.seq == before.seq + 1
    assert done.state.restores == 1
    assert refused(site, FIRST) == "study-changed"


def test_an_intact_ledger_and_one_in_use_are_left_alone(site: Site, tmp_path: Path) -> None:
    back_up(site.ledger, tmp_path / "copy")
    released(site, FIRST, 1)
    with unchanged(site), pytest.raises(RefusalError, match="is intact, and no backup is newer") as error:
        restore(site, tmp_path / "copy", None)
    assert error.value.code == "ledger-exists"
    with site.guard():
        for copy in (tmp_path / "copy", None):
            with pytest.raises(RefusalError) as error:
                restore(site, copy, None)
            assert error.value.code == "ledger-locked"
        back_up(site.ledger, tmp_path / "beside a running agent")
    with unchanged(site), pytest.raises(DataError, match="exists; choose another name"):
        back_up(site.ledger, tmp_path / "copy")


def damage(site: Site) -> None:
    data = bytearray((site.ledger / DATABASE).read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    (site.ledger / DATABASE).write_bytes(data)


def test_a_remaining_mark_proves_that_a_copy_is_complete(site: Site, tmp_path: Path) -> None:
    spent = released(site, FIRST, 1, 2)
    back_up(site.ledger, tmp_path / "copy")
    damage(site)
    done = restore(site, tmp_path / "copy", None)
    assert (done.complete, done.lost, done.closed) == (True, 0, ())
    assert done.kept is not None
    assert (done.kept / MARK).exists(), "the damaged one is kept"
    assert released(site, FIRST, 3) > spent, "and the study goes on"
    damage(site)
    done = restore(site, tmp_path / "copy", None)  # which lacks a round by now, as the mark shows
    assert not done.complete
    assert done.closed == (FIRST.hash,)


def test_a_mark_that_is_damaged_itself_proves_nothing(tmp_path: Path) -> None:
    """It may have lost records that the copy lacks, so these are charged."""
    harms = {
        "a line less": lambda marks: marks[:-LINE],
        "a byte less": lambda marks: marks[:-1],
        "zeros behind it": lambda marks: marks + bytes(LINE),
        "empty": lambda _: b"",
    }
    for number, (name, harm) in enumerate(harms.items()):
        with case(name):
            folder = tmp_path / str(number)
            folder.mkdir()
            write_rows(folder / "table.csv", seed=0)
            here = new_site(folder, FIRST, table="table.csv", epsilon=LIMIT)
            released(here, FIRST, 1)
            back_up(here.ledger, folder / "copy")
            damage(here)
            (here.ledger / MARK).write_bytes(harm((here.ledger / MARK).read_bytes()))
            done = restore(here, folder / "copy", None)
            assert not done.complete
            assert done.closed == (FIRST.hash,)


def limits(site: Site, **changed: object) -> Site:
    """The same site with other limits."""
    text = site.path.read_text()
    for name, value in changed.items():
        text = re.sub(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.MULTILINE)
    site.path.write_text(text)
    return read_site(site.path)


def test_limits_that_were_lowered_since_do_not_lower_the_charge(site: Site, tmp_path: Path) -> None:
    limits(site, rows=3)
    site = limits(site, epsilon=4 * LIMIT)
    released(site, FIRST, *range(1, 21))  # all rounds: no part of its reservation can make up for the second study
    back_up(site.ledger, tmp_path / "copy")
    spent = released(site, SECOND, *range(1, 21))
    cap = read_ledger(site.ledger).cap
    for since in (None, [SECOND]):
        shutil.rmtree(site.ledger)
        lowered = limits(site, epsilon=LIMIT, rows=1)
        state = restore(lowered, tmp_path / "copy", since).state
        assert state.spent >= (spent if since else cap)


CHANGES = {
    "before the copy, with no study until after it": (False, [SECOND]),
    "after the copy, and the owner set the highest values again": (True, [SECOND]),
    "after the copy, and the owner does not know the studies": (True, None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_limits_that_were_higher_for_a_time_are_charged_for(site: Site, tmp_path: Path, change: str) -> None:
    after, since = CHANGES[change]
    if after:
        back_up(site.ledger, tmp_path / "copy")
    site = limits(site, epsilon=4 * LIMIT, rows=3)
    if not after:
        with site.guard():
            pass
        back_up(site.ledger, tmp_path / "copy")
    spent = released(site, SECOND, *range(1, 21))
    lowered = limits(site, epsilon=LIMIT, rows=1)
    with lowered.guard():
        book = read_ledger(site.ledger)
        assert (book.rows_per_person, book.max_rows_per_person) == (1, 3)
        assert book.max_cap == site.policy.cap > book.cap == lowered.policy.cap
    shutil.rmtree(site.ledger)
    state = restore(lowered, tmp_path / "copy", since).state
    if after:  # the copy cannot have the higher values; the owner finds the mistake, and charges again
        assert state.spent < spent
        state = restore(limits(site, epsilon=4 * LIMIT, rows=3), None, since).state
    assert state.spent >= (spent if since else Fraction(site.policy.cap))
    assert (state.max_cap, state.max_rows_per_person) == (site.policy.cap, 3)


def test_the_loss_under_collusion_is_charged_if_nothing_else_is_left(site: Site, tmp_path: Path) -> None:
    """The copy promised the whole μ², but not the whole limit under collusion."""
    site = replace(site, policy=replace(site.policy, masking=MaskingLimits(20.0, 2, 1)))
    policy = site.policy
    assert policy.collusion_cap > 2.0 * policy.cap
    with site.open_ledger() as ledger:
        ledger.reserve("ab" * 32, policy.cap, about={})
    back_up(site.ledger, tmp_path / "copy")
    shutil.rmtree(site.ledger)
    lowered = replace(site, policy=replace(policy, masking=MaskingLimits(10.0, 2, 1)))
    assert lowered.policy.collusion_cap < policy.collusion_cap
    state = restore(lowered, tmp_path / "copy", None).state
    assert state.collusion_spent >= Fraction(policy.collusion_cap)
    assert state.spent >= Fraction(policy.cap)


def test_the_mark_overrides_the_claim_that_nothing_was_enrolled(site: Site, tmp_path: Path) -> None:
    back_up(site.ledger, tmp_path / "copy")  # nothing is open in it
    released(site, FIRST, 1)
    damage(site)
    with unchanged(site), pytest.raises(StudyError, match="records that are not in the backup"):
        restore(site, tmp_path / "copy", [])
    assert restore(site, tmp_path / "copy", [FIRST]).state.spent > 0


def test_a_copy_of_another_ledger_or_without_records_is_refused(site: Site, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    write_rows(tmp_path / "other" / "table.csv", seed=0)
    other = new_site(tmp_path / "other", FIRST, table="table.csv", epsilon=LIMIT)
    released(other, SECOND, 1)
    back_up(other.ledger, tmp_path / "copy")
    released(site, FIRST, 1)
    damage(site)
    with unchanged(site), pytest.raises(DataError, match="the backup is of another ledger"):
        restore(site, tmp_path / "copy", None)
    with closing(sqlite3.connect(tmp_path / "empty")) as database:
        database.execute(SCHEMA)
        database.commit()
    shutil.rmtree(site.ledger)
    with pytest.raises(DataError, match="a ledger backup without any record"):
        restore(site, tmp_path / "empty", None)
    assert not site.ledger.exists()


def test_whatever_happens_between_copy_and_loss_no_less_is_charged_than_was_spent(tmp_path: Path) -> None:
    chance = random.Random(5)
    for number in range(6):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_rows(folder / "table.csv", seed=0)
        site = new_site(folder, FIRST, table="table.csv", epsilon=LIMIT)
        studies, last = [FIRST, SECOND], {FIRST.hash: 0, SECOND.hash: 0}
        copy_at, enrolled_since = chance.randrange(8), list[Study]()
        copied: set[str] = set()
        for step in range(8):
            if step == copy_at:
                copied = set(back_up(site.ledger, folder / "copy").accounts)
            study = chance.choice(studies)
            last[study.hash] += chance.randint(1, 2)
            released(site, study, last[study.hash])
        book = read_ledger(site.ledger)
        enrolled_since = [study for study in studies if study.hash in set(book.accounts) - copied]
        shutil.rmtree(site.ledger)
        since = chance.choice([None, enrolled_since])
        with case(number, copy_at, since):
            assert restore(site, folder / "copy", since).state.spent >= book.spent


def test_invalid_copies_are_one_sentence_and_change_nothing(site: Site, tmp_path: Path) -> None:
    released(site, FIRST, 1)
    back_up(site.ledger, tmp_path / "copy")
    shutil.rmtree(site.ledger)
    whole = (tmp_path / "copy").read_bytes()
    (tmp_path / "text").write_bytes(b"hello")
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "changed").write_bytes(whole)
    with closing(sqlite3.connect(tmp_path / "changed", isolation_level=None)) as database:
        database.execute("UPDATE records SET mu_squared = mu_squared / 2 WHERE kind = 'spend'")
    (tmp_path / "other").touch()
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as database:
        database.execute("CREATE TABLE t (a)")
    for name in ("text", "cut", "changed", "other", "other.sqlite", "nowhere"):
        with case(name), pytest.raises((DPADMMError, OSError)) as error:
            restore(site, tmp_path / name, None)
        assert "\n" not in str(error.value)
        assert not site.ledger.exists()
        assert not list(tmp_path.glob("*restoring*"))
    (tmp_path / "ledger").mkdir()
    assert restore(site, tmp_path / "copy", []).state.restores == 1, "an empty folder is no ledger"
