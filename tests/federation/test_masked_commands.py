"""Secure aggregation by commands: offers, the roster, one hash that owners compare, a run of real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpadmm.federation.local import SECURE_AGGREGATION
from dpadmm.studies.reading import read_study
from dpadmm.trusted.ledger import read_ledger
from federation.test_commands import SITES, STUDY, Land, wait_for

DRAFT = "max_rows_per_site = 100\n" + STUDY.replace("quorum = 2", "quorum = 3").replace(
    "epsilon = 3.0", 'epsilon = 3.0\naggregation = "secure"\nmin_honest_sites = 2'
)


@pytest.fixture
def land(tmp_path: Path) -> Iterator[Land]:
    made = Land(tmp_path)
    (tmp_path / "draft.toml").write_text(DRAFT)
    for name in SITES:
        with (tmp_path / name / "site.toml").open("a") as out:
            out.write(SECURE_AGGREGATION.format(epsilon=8.0))
    yield made
    made.end()


def sentence(text: str) -> str:
    """One sentence for a mistake, without a traceback."""
    assert text.startswith("dpadmm: ")
    assert len(text.strip().splitlines()) == 1
    return text


def test_from_offers_to_the_model(land: Land) -> None:
    """One test for all: starting the processes is what takes time."""
    _offers_and_mistakes(land)
    _roster_and_mistakes(land)
    _one_hash(land)
    agreed = read_study(land.folder / "agreed.toml")
    for name in SITES:
        land.start_agent(name)
    wait_for(lambda: all((land.folder / name / "status.json").exists() for name in SITES))
    told = land.refused("server", "propose", "agreed.toml", "--folder", "hub", "--sites", "east,west")
    assert "was proposed to east, north, west; its sites are fixed: omit --sites" in sentence(told)
    assert "no roster" in sentence(land.refused("server", "run", "draft.toml", "--folder", "hub"))
    assert land.start("server", "run", "agreed.toml", "--folder", "hub", "--no-page").wait(90) == 0
    seen = json.loads(land.said("server", "status", "agreed.toml", "--folder", "hub", "--json"))
    assert (seen["min_honest_sites"], seen["aborted_rounds"], seen["rounds_done"]) == (
        2,
        [],
        agreed.training.planned_rounds,
    )
    assert "collude" in land.said("server", "status", "--folder", "hub")
    land.said("server", "export", "-o", "m.dpadmm", "--folder", "hub")
    land.said("verify", "m.privacy.json")
    report = json.loads((land.folder / "m.privacy.json").read_text())
    assert report["epsilon"] == pytest.approx(3.0, rel=1e-6)
    assert report["epsilon_if_others_collude"] > 4.0
    for name in SITES:
        account = read_ledger(land.folder / name / "ledger").accounts[agreed.hash]
        assert len(account.rounds) == agreed.training.planned_rounds


def _offers_and_mistakes(land: Land) -> None:
    (land.folder / "small.toml").write_text(DRAFT.replace("max_rows_per_site = 100", "max_rows_per_site = 59"))
    told = sentence(land.refused("site", "accept", "small.toml", "--site", "east/site.toml"))
    assert "your table has 60 rows, but the draft allows 59 (max_rows_per_site); ask the study coordinators" in told
    site = land.folder / "east" / "site.toml"
    allowed = site.read_text()
    site.write_text(allowed.replace("allow = true", "allow = false"))
    told = sentence(land.refused("site", "accept", "draft.toml", "--site", "east/site.toml"))
    assert "secure aggregation is not allowed" in told
    site.write_text(allowed)
    told = land.refused("site", "accept", "study.toml", "--site", "east/site.toml", "-o", "offer.json")
    assert "--output is for drafts of studies with secure aggregation" in sentence(told)
    for name in SITES:
        words = ("site", "accept", "draft.toml", "--site", f"{name}/site.toml", "-o", f"{name}.offer.json")
        said = land.said(*words)
        assert f"{name}.offer.json" in said
        (key,) = (land.folder / name / "keys").iterdir()
        assert key.stat().st_mode & 0o777 == 0o600
    told = land.refused("site", "accept", "draft.toml", "--site", "east/site.toml", "-o", "east.offer.json")
    assert "east.offer.json already exists" in sentence(told)


def _roster_and_mistakes(land: Land) -> None:
    offers = [("--offer", f"{name}.offer.json") for name in SITES]
    every = [word for offer in offers for word in offer]
    roster = ("server", "propose", "draft.toml", "--folder", "hub")
    land.said("site", "accept", "draft.toml", "--site", "east/site.toml", "-o", "again.json")
    told = land.refused(*roster, *every, "--offer", "again.json", "-o", "x.toml")
    assert "there are two offers of east" in sentence(told)
    stolen = json.loads((land.folder / "west.offer.json").read_text())
    stolen["name"] = "south"
    (land.folder / "stolen.json").write_text(json.dumps(stolen))
    told = land.refused(*roster, *every, "--offer", "stolen.json", "-o", "x.toml")
    assert "two entries have the same key (south and west)" in sentence(told)
    (land.folder / "other.toml").write_text(DRAFT.replace("max_rows_per_site = 100", "max_rows_per_site = 101"))
    told = land.refused("server", "propose", "other.toml", "--folder", "hub", *every, "-o", "x.toml")
    assert "the offer of east was made for another draft" in sentence(told)
    told = land.refused(*roster, *offers[0], *offers[1], "-o", "x.toml")
    assert "quorum = 3, but only 2 sites" in sentence(told)
    (land.folder / "broken.json").write_text("{}")
    assert "not an offer" in sentence(land.refused(*roster, "--offer", "broken.json", "-o", "x.toml"))
    for wrong, text in (
        ("min_honest_sites = 3", "min_honest_sites = 3, but a round may have only 3 sites"),
        ("min_honest_sites = 1", "min_honest_sites"),
    ):
        (land.folder / "h.toml").write_text(DRAFT.replace("min_honest_sites = 2", wrong))
        assert text in sentence(land.refused("site", "accept", "h.toml", "--site", "east/site.toml"))
    for words in (("draft.toml", *every), ("study.toml", "-o", "x.toml")):
        told = land.refused("server", "propose", *words, "--folder", "hub")
        assert "--offer and --output belong together" in sentence(told)
    assert not (land.folder / "x.toml").exists()
    said = land.said(*roster, *every, "-o", "agreed.toml")
    assert read_study(land.folder / "agreed.toml").hash in said.replace("\n", "")
    assert "exists" in sentence(land.refused(*roster, *every, "-o", "agreed.toml"))
    told = land.refused("server", "propose", "agreed.toml", "--folder", "hub", *every, "-o", "x.toml")
    assert "has a roster already" in sentence(told)


def _one_hash(land: Land) -> None:
    """Owners compare it by telephone; a study with another key in its roster has another."""
    agreed = read_study(land.folder / "agreed.toml")
    east = ("--site", "east/site.toml")
    text = (land.folder / "agreed.toml").read_text()
    (land.folder / "swapped.toml").write_text(text.replace(agreed.roster[1].key, "ab" * 32))
    told = land.refused("site", "accept", "swapped.toml", *east, "--hash", agreed.hash)
    assert "the hash differs from --hash" in sentence(told)
    mine = {item.name: item.key for item in agreed.roster}["east"]
    (land.folder / "without.toml").write_text(text.replace(mine, "ab" * 32))
    theirs = ("--hash", read_study(land.folder / "without.toml").hash)
    assert "roster" in sentence(land.refused("site", "accept", "without.toml", *east, *theirs))
    for words in (("accept", "agreed.toml"),):
        assert "--hash HASH" in sentence(land.refused("site", *words, *east))
    theirs = ("--hash", agreed.hash)
    key = land.folder / "east" / "keys" / mine
    key.chmod(0o644)
    assert "chmod 600" in sentence(land.refused("site", "accept", "agreed.toml", *east, *theirs))
    key.chmod(0o600)
    moved = key.rename(land.folder / "kept")
    assert "keys" in sentence(land.refused("site", "accept", "agreed.toml", *east, *theirs))
    moved.rename(key)
    for name in SITES:
        words = ("site", "accept", "agreed.toml", "--site", f"{name}/site.toml", "--hash")
        assert "Accepted: " in land.said(*words, agreed.hash.upper())
