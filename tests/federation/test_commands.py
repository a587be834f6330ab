"""The whole way by commands, in real processes: an aggregator, three sites, a study, its model."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brokers import free_port

from dpadmm import load_model
from dpadmm.cli import main
from dpadmm.federation.local import SITE_TOML
from dpadmm.federation.site.decisions import decide
from dpadmm.studies.reading import read_study
from dpadmm.trusted.ledger import read_ledger

SITES, ROUNDS = ("east", "north", "west"), 8
PUBLIC = "age,smokes,ill\n" + "".join(f"{i + 20},{i % 3 == 0},{'yes' if i > 30 else 'no'}\n" for i in range(60))
STUDY = f"""
format = "dpadmm-study/2"
name = "three hospitals"
allow_missed_rounds = true
quorum = 2
deadline = 20
[label]
column = "ill"
classes = ["no", "yes"]
[columns.age]
kind = "number"
bounds = [0, 100]
[columns.smokes]
kind = "boolean"
[public_rows]
file = "public.csv"
sha256 = "{sha256(PUBLIC.encode()).hexdigest()}"
[method]
name = "auto"
[training]
n_rounds = {ROUNDS}
[privacy]
epsilon = 3.0
delta = 1e-5
"""
SITE = SITE_TOML.format(table="rows.csv", label="ill", epsilon=5.0, delta=1e-5, max_rounds=100)


class Land:
    """A folder with an aggregator and sites that have joined; agents are processes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.agents = folder, dict[str, subprocess.Popen[bytes]]()
        (folder / "study.toml").write_text(STUDY)
        (folder / "public.csv").write_text(PUBLIC)
        self.port = free_port()
        self.said("server", "init", "hub", "--host", "localhost", "--port", self.port)
        for seed, name in enumerate(SITES):
            home = folder / name
            home.mkdir()
            rng = np.random.default_rng(seed)
            age, smokes = rng.uniform(20, 90, 60), rng.random(60) < 0.4
            ill = rng.random(60) < 1 / (1 + np.exp(-(age - 55) / 8 - smokes))
            lines = zip(age.round(1), smokes, np.where(ill, "yes", "no"), strict=True)
            text = "\n".join(f"{a},{s},{b}" for a, s, b in lines)
            (home / "rows.csv").write_text(f"age,smokes,ill\n{text}\n")
            (home / "site.toml").write_text(SITE)
            self.said("site", "join", "--manual", name, "--site", f"{name}/site.toml")
            self.said("server", "invite", name, "--manual", f"{name}/network/request.json", "--folder", "hub")
            invitation = f"{name}.invitation.json"
            self.said("site", "join", "--invitation", invitation, "--site", f"{name}/site.toml", "--yes")

    def run(self, *words: object) -> tuple[object, str, str]:
        """A command in this process: starting dozens would take a minute."""
        out, err, before = io.StringIO(), io.StringIO(), sys.argv
        sys.argv = ["dpadmm", *map(str, words)]
        try:
            with chdir(self.folder), redirect_stdout(out), redirect_stderr(err):
                main()
        except SystemExit as end:
            return end.code or 0, out.getvalue(), err.getvalue()
        finally:
            sys.argv = before
        raise AssertionError("a command ends with its code")

    def said(self, *words: object) -> str:
        code, out, err = self.run(*words)
        assert code == 0, err
        return out

    def refused(self, *words: object) -> str:
        code, out, err = self.run(*words)
        assert code == (75 if "[ledger-locked]" in err else 2), out
        return err

    def start(self, *words: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "from dpadmm.cli import main; main()", *map(str, words)]
        with (self.folder / "outputs").open("ab") as out:
            return subprocess.Popen(command, cwd=self.folder, stdout=out, stderr=out)

    def start_agent(self, name: str) -> None:
        self.agents[name] = self.start("site", "run", "--site", f"{name}/site.toml")

    def status(self, name: str) -> dict[str, Any]:
        return json.loads(self.said("site", "status", "--site", f"{name}/site.toml", "--json"))

    def end(self) -> None:
        for agent in self.agents.values():
            if agent.poll() is None:
                agent.send_signal(signal.SIGTERM)
            agent.wait(20)


def wait_for(done: Any, seconds: float = 40.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture
def land(tmp_path: Path) -> Iterator[Land]:
    made = Land(tmp_path)
    yield made
    made.end()


def test_a_study_from_the_first_certificate_to_the_model(land: Land) -> None:
    """One test for all: starting the processes is what takes time."""
    _a_study(land)
    _secrets_are_nowhere(land)
    _leaving_while_the_agent_runs(land)
    _declining_is_kept_with_its_date(land)
    _declining_while_the_agent_runs(land)
    for words, text in MISTAKES:
        told = land.refused(*words)
        assert text in told
        assert len(told.strip().splitlines()) == 1


def _a_study(land: Land) -> None:
    agreed = read_study(land.folder / "study.toml")
    shown = land.said("site", "review", "study.toml", "--site", "east/site.toml")
    assert "Within your limits" in shown
    assert agreed.public_rows is not None
    start = f"used for initialisation at no privacy cost (sha256 {agreed.public_rows.sha256[:12]}…)"
    assert start in " ".join(shown.split())
    assert "Accepted: three hospitals" in land.said("site", "accept", "study.toml", "--site", "east/site.toml")
    land.agents["broker"] = land.start("server", "start", "--folder", "hub")
    for name in SITES:
        land.start_agent(name)
    wait_for(lambda: all((land.folder / name / "status.json").exists() for name in SITES))
    # the other two accept while their agents hold the ledgers
    for name in ("north", "west"):
        shown = land.said("site", "accept", "study.toml", "--site", f"{name}/site.toml")
        assert "Accepted: three hospitals" in shown
        assert agreed.hash in read_ledger(land.folder / name / "ledger").accounts

    serving = land.start("server", "run", "study.toml", "--folder", "hub", "--no-page")
    assert serving.wait(90) == 0
    (land.folder / "public.csv").unlink()  # from here on nobody needs it
    assert f"Finished: {ROUNDS} of {ROUNDS} rounds" in (land.folder / "outputs").read_text()
    seen = json.loads(land.said("server", "status", "--folder", "hub", "--json"))
    assert [(site["name"], site["answered"]) for site in seen["sites"]] == [(name, ROUNDS) for name in SITES]
    for name in SITES:
        account = read_ledger(land.folder / name / "ledger").accounts[agreed.hash]
        assert list(account.rounds) == list(range(1, ROUNDS + 1))
    wait_for(lambda: land.status("west")["studies"][0]["last_round"] == ROUNDS)

    assert seen["served"] is False
    shown = " ".join(land.said("server", "status", "--folder", "hub").split())
    assert f"noise multiplier z: {agreed.terms.plan.describe_noise()}" in shown
    assert "site last round rows" in shown
    assert all(f"{name} answered 60 {ROUNDS}" in shown for name in SITES)
    assert "present" not in shown  # nobody serves it any more
    land.said("server", "export", "-o", "m.dpadmm", "--folder", "hub")
    assert "--overwrite" in land.refused("server", "export", "-o", "m.dpadmm", "--folder", "hub")
    land.said("server", "export", "-o", "m.dpadmm", "--folder", "hub", "--overwrite")
    model = load_model(land.folder / "m.dpadmm")
    assert model.privacy["epsilon"] == pytest.approx(3.0, rel=1e-6)
    land.said("verify", "m.privacy.json")
    with np.load(land.folder / "m.transcript.npz", allow_pickle=False) as transcript:
        assert transcript["consensus"].shape == (ROUNDS + 1, *agreed.shape)
        assert np.array_equal(transcript["consensus"][-1], model.weights)
        assert transcript["site"].tolist() == list(SITES) * ROUNDS
    assert "accuracy" in land.said("evaluate", "m.dpadmm", "--data", "east/rows.csv")


def _secrets_are_nowhere(land: Land) -> None:
    logged = (land.folder / "east" / "site.log").read_text()
    key = (land.folder / "east" / "network" / "key.pem").read_text().splitlines()[1]
    first_row = (land.folder / "east" / "rows.csv").read_text().splitlines()[1]
    outputs = (land.folder / "outputs").read_text()
    assert key not in logged + outputs
    assert first_row not in logged + outputs
    for name in ("site.log", "ledger/ledger.sqlite", "network/key.pem"):
        assert os.stat(land.folder / "east" / name).st_mode & 0o077 == 0, name


def _leaving_while_the_agent_runs(land: Land) -> None:
    (land.folder / "second.toml").write_text(STUDY.replace("three hospitals", "second").replace("3.0", "1.0"))
    second = read_study(land.folder / "second.toml")
    site = ("--site", "north/site.toml")
    land.said("site", "accept", "second.toml", *site)
    wait_for(lambda: len(land.status("north")["studies"]) == 2)
    assert "second, after 0 rounds: Left." in land.said("site", "leave", "second", *site)
    assert read_ledger(land.folder / "north" / "ledger").accounts[second.hash].closed
    assert "cannot be reopened" in land.refused("site", "accept", "second.toml", *site)


def _declining_is_kept_with_its_date(land: Land) -> None:
    (land.folder / "third.toml").write_text(STUDY.replace("three hospitals", "third").replace("3.0", "1.0"))
    assert "Declined" in land.said("site", "decline", "third.toml", "--site", "west/site.toml")
    third = read_study(land.folder / "third.toml")
    kept = json.loads((land.folder / "west" / "studies" / f"{third.hash}.json").read_text())
    assert kept["decision"] == "declined"
    assert kept["at"][:2] == "20"
    assert third.hash not in read_ledger(land.folder / "west" / "ledger").accounts


def _declining_while_the_agent_runs(land: Land) -> None:
    """The agent holds the ledger; it must close the study there, and a study it never enrolled stays out."""
    site, ledger = ("--site", "west/site.toml"), land.folder / "west" / "ledger"
    third = read_study(land.folder / "third.toml")
    assert "Accepted: third" in land.said("site", "accept", "third.toml", *site)  # the newest decision counts
    wait_for(lambda: _states(land, "west").get(third.hash) == "active")
    told = " ".join(land.said("site", "decline", "third.toml", *site).split())
    assert "left because it was accepted" in told
    assert "Nothing was reserved" not in told
    assert read_ledger(ledger).accounts[third.hash].closed
    wait_for(lambda: _states(land, "west").get(third.hash) == "left")
    assert "cannot be reopened" in land.refused("site", "accept", "third.toml", *site)

    (land.folder / "fourth.toml").write_text(STUDY.replace("three hospitals", "fourth").replace("3.0", "90.0"))
    fourth = read_study(land.folder / "fourth.toml")
    decide(land.folder / "west", fourth, "accepted")  # beyond the limits: the agent cannot enrol it
    wait_for(lambda: _states(land, "west").get(fourth.hash) == "blocked")
    told = " ".join(land.said("site", "decline", "fourth.toml", *site).split())
    assert "Declined, and recorded with the date. Nothing was reserved." in told
    assert _states(land, "west")[fourth.hash] == "declined"
    assert fourth.hash not in read_ledger(ledger).accounts


def _states(land: Land, name: str) -> dict[str, str]:
    return {study["hash"]: study["state"] for study in land.status(name)["studies"]}


MISTAKES: list[tuple[tuple[str, ...], str]] = [
    (("server", "run", "study.toml", "--folder", "nowhere"), "nowhere"),
    (
        ("server", "status", "second.toml", "--folder", "hub"),
        "is not proposed yet; to propose it: dpadmm server propose",
    ),
    (
        ("server", "run", "second.toml", "--folder", "hub"),
        "public.csv: public rows not found; copy the table to this path",
    ),
    (("server", "status", "missing.toml", "--folder", "hub"), "missing.toml"),
    (("server", "propose", "second.toml", "--folder", "hub", "--sites", "east,south"), "south"),
    (("server", "propose", "study.toml", "--folder", "hub", "--sites", "east"), "its sites are fixed: omit --sites"),
    (("server", "revoke", "south", "--folder", "hub"), "south is not a site"),
    (("server", "init", "hub", "--host", "localhost"), "hub"),
    (("server", "invite", "west", "--manual", "east/network/request.json", "--folder", "hub"), "not from west"),
    (
        ("site", "join", "--invitation", "east.invitation.json", "--site", "west/site.toml", "--yes"),
        "request was for west",
    ),
    (("site", "join", "--invitation", "east.invitation.json", "--site", "east/site.toml"), "--yes"),
    (
        ("site", "join", "--invitation", "east.invitation.json", "--site", "east/site.toml", "--fingerprint", "AB:CD"),
        "the invitation is not from these study coordinators",
    ),
    (("site", "run", "--site", "west/site.toml"), "in use by another process"),
    (("site", "join", "--manual", "No Name", "--site", "west/site.toml"), "not a valid site name"),
]
