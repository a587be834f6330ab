"""The page of a site: what the owner sees, and decisions that have the effect of the commands."""

from __future__ import annotations

import json
import re
import socket
import time
from contextlib import closing
from dataclasses import replace

import pytest
from federations import small_study
from page_visits import ask, log_in
from site_pages import (
    DECLINED,
    OPEN,
    PROPOSED,
    TOO_MUCH,
    make_site,
    propose,
    release,
    serving_site,
    status_of_site,
    use,
)

from dpadmm.federation.site.decisions import decisions
from dpadmm.federation.site.proposals import proposals
from dpadmm.federation.web import site_data
from dpadmm.federation.web.hosting import Listener, hosted
from dpadmm.federation.web.site_app import SitePage
from dpadmm.federation.web.site_data import LEDGER_SECONDS, SiteData
from dpadmm.studies.roster import RosterEntry
from dpadmm.trusted.ledger import read_ledger


@pytest.fixture
def site(tmp_path):
    site = make_site(tmp_path / "site")
    use(site)
    return site


@pytest.fixture
def page(site):
    with serving_site(site) as page:
        yield page


@pytest.fixture
def session(page):
    """The headers of a session that may decide."""
    cookie = log_in(page)
    csrf = re.search(r'name="csrf" content="(\w+)"', ask(page, "/", headers=cookie)[2])[1]
    return cookie | {"X-CSRF-Token": csrf}


def send(page, session, study, decision, body="{}"):
    status, _, text = ask(page, f"/studies/{study}/{decision}", method="POST", body=body, headers=session)
    return status, json.loads(text) if text.startswith("{") else text


def shown(page, session):
    return json.loads(ask(page, "/snapshot", headers=session)[2])


def decided(site):
    return {decision.study.hash: decision.kind for decision in decisions(site.path.parent)}


def test_the_owner_sees_budget_studies_proposals_and_releases(site, page, session):
    told, state = shown(page, session), read_ledger(site.ledger)
    budget = told["budget"]
    assert budget["spent"] == pytest.approx(site.policy.epsilon_of(state.spent))
    assert budget["promised"] == pytest.approx(3.0, rel=1e-3)
    assert budget["limit"] == 8.0
    assert budget["promised"] < budget["left"] < 8.0
    assert budget["history"][-1][1:] == pytest.approx([budget["spent"], budget["promised"], 8.0])
    first, second = told["proposals"]
    assert {first["name"], second["name"]} == {"readmission", "length of stay"}
    obstacles = {proposal["name"]: proposal["obstacles"] for proposal in told["proposals"]}
    assert obstacles["readmission"] == []
    assert "exceeds the owner's total ε" in obstacles["length of stay"][0]
    states = {study["name"]: (study["state"], study["actions"]) for study in told["studies"]}
    assert states == {"heart failure": ("active", ["leave"]), "<b>falls</b>": ("declined", ["accept"])}
    assert [item["round"] for item in told["releases"]] == list(range(20, 0, -1))
    release(site, 21, 21)
    assert wait_for_round(page, session) == 21


def wait_for_round(page, session):
    time.sleep(LEDGER_SECONDS + 0.6)
    return shown(page, session)["releases"][0]["round"]


def test_accepting_reserves_and_declining_does_not(site, page, session):
    status, told = send(page, session, PROPOSED.hash, "accept")
    assert (status, told["message"][:22]) == (200, "Accepted: readmission.")
    assert PROPOSED.hash in read_ledger(site.ledger).accounts
    assert [proposal.study.hash for proposal in proposals(site.path.parent)] == [TOO_MUCH.hash]
    assert send(page, session, TOO_MUCH.hash, "decline") == (200, {"message": "Declined: length of stay."})
    assert TOO_MUCH.hash not in read_ledger(site.ledger).accounts
    assert send(page, session, DECLINED.hash, "accept")[0] == 200  # declined first, then accepted
    assert decided(site) == {
        OPEN.hash: "accepted",
        PROPOSED.hash: "accepted",
        DECLINED.hash: "accepted",
        TOO_MUCH.hash: "declined",
    }


def test_leaving_closes_the_study_for_good(site, page, session):
    before = read_ledger(site.ledger).spent
    assert send(page, session, OPEN.hash, "leave") == (200, {"message": "Left: heart failure."})
    state = read_ledger(site.ledger)
    assert state.accounts[OPEN.hash].closed
    assert state.spent == before
    status, told = send(page, session, OPEN.hash, "accept")
    assert (status, "cannot be reopened" in told["error"]) == (409, True)


def test_a_study_beyond_the_limits_is_refused_with_the_sentence_of_the_command(site, page, session):
    status, told = send(page, session, TOO_MUCH.hash, "accept")
    assert status == 409
    assert "exceeds the owner's total ε" in told["error"]
    assert TOO_MUCH.hash not in decided(site)


def test_no_decision_without_session_token_origin_or_a_valid_request(site, page, session):
    before = decided(site), read_ledger(site.ledger).seq
    cookie = {"Cookie": session["Cookie"]}
    csrf = {"X-CSRF-Token": session["X-CSRF-Token"]}
    for headers in ({}, cookie, csrf, cookie | {"X-CSRF-Token": "0" * 64}, session | {"Sec-Fetch-Site": "same-site"}):
        assert send(page, headers, PROPOSED.hash, "accept")[0] == 403
    other = log_in(page)  # a token belongs to its session
    assert send(page, other | csrf, PROPOSED.hash, "accept")[0] == 403
    assert send(page, session, "0" * 64, "accept")[0] == 409
    assert send(page, session, PROPOSED.hash[:12], "accept")[0] == 409
    assert send(page, session, PROPOSED.hash, "approve")[0] == 404
    assert send(page, session, PROPOSED.hash, "accept", body="[")[0] == 400
    assert send(page, session, PROPOSED.hash, "accept", body=" " * 2000)[0] == 413
    assert send(page, session, "..%2F..%2Fsite.toml", "accept")[0] in (404, 409)
    for method in ("GET", "PUT", "DELETE"):
        assert ask(page, f"/studies/{PROPOSED.hash}/accept", method=method, headers=session)[0] == 405
    assert (decided(site), read_ledger(site.ledger).seq) == before


def test_secure_aggregation_needs_the_hash_from_the_other_owners(site, page, session):
    masked = small_study(10, name="masked", max_rows_per_site=100, allow_missed_rounds=True, quorum=3)
    roster = tuple(RosterEntry(name, site.make_key().hex()) for name in ("a", "b", "c"))
    study = replace(masked, roster=roster)
    propose(site, masked, study)
    drafts = {proposal["hash"]: proposal for proposal in shown(page, session)["proposals"]}
    assert drafts[masked.hash]["is_draft"]
    assert drafts[study.hash]["needs_hash"]
    status, told = send(page, session, masked.hash, "accept")
    assert (status, "site accept" in told["error"]) == (409, True)
    for given in ("", study.hash[:12], masked.hash):
        status, told = send(page, session, study.hash, "accept", body=json.dumps({"hash": given}))
        assert (status, "the hash differs" in told["error"]) == (409, True)
    status, told = send(page, session, study.hash, "accept", body=json.dumps({"hash": f" {study.hash.upper()} "}))
    assert "the hash differs" not in json.dumps(told)


def test_everything_needs_a_session(page):
    for path in ("/", "/snapshot"):
        status, _, body = ask(page, path)
        assert status == 403
        assert "dpadmm site status --link" in body
        assert "heart failure" not in body
    assert ask(page, "/metrics")[0] == 401


def test_it_is_on_loopback_alone(page):
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.2", page.port))  # free: the page did not take every address


def test_a_damaged_ledger_is_a_problem_on_the_page(site):
    (site.ledger / "mark").write_bytes(b"damaged")
    with serving_site(site) as page:
        told = shown(page, log_in(page))
    assert "cannot be trusted" in told["problems"][0]


def test_snapshots_of_a_running_study_are_cheap(site, monkeypatch):
    """A page that is open must not slow the site's answers: no reading per release, and each ε computed once."""
    reads = []
    monkeypatch.setattr(site_data, "read_ledger", lambda folder: reads.append(1) or read_ledger(folder))
    monkeypatch.setattr(site_data, "LEDGER_SECONDS", 600.0)
    data = SiteData(site, status_of_site)
    for last in range(21, 41):
        release(site, last, last)
        data.snapshot()
    assert len(reads) == 1
    data.refresh()
    assert data.snapshot()["releases"][0]["round"] == 40
    assert len(reads) == 2
    data._cached_epsilon.cache_clear()
    data.snapshot(), data.snapshot()
    assert data._cached_epsilon.cache_info().misses < 10


def test_health_and_metrics(site):
    page = SitePage(site, lambda: {"connected": False})
    with hosted(page.routes(), Listener("127.0.0.1", 0)) as (listener,):
        assert ask(listener, "/healthz")[::2] == (503, "not connected\n")
    with serving_site(site) as page:
        assert ask(page, "/healthz")[::2] == (200, "ok\n")
        token = (site.path.parent / "web" / "metrics-token").read_text().strip()
        status, _, body = ask(page, "/metrics", headers={"Authorization": f"Bearer {token}"})
        assert (status, "dpadmm_connected 1.0\n" in body) == (200, True)
