"""The owner's page in a real browser: decisions by mouse and keyboard, the budget, and every state of a site."""

from __future__ import annotations

import pytest
from axe_rules import violations
from contrast import CONTRAST
from page_views import text, wait
from site_pages import DECLINED, PROPOSED, TOO_MUCH, make_site, release, serving_site, use

from dpadmm.federation.site.decisions import decisions
from dpadmm.trusted.ledger import read_ledger

pytestmark = pytest.mark.usefixtures("left_empty")

BUTTON = "[...document.querySelectorAll('button')].find(each => each.getAttribute('aria-label') === {!r})"
BLOCKED = {
    "name": "heart failure",
    "state": "blocked",
    "reason": "data-changed",
    "last_round": 20,
    "n_rounds": 60,
    "asked_at": "2026-03-02T09:15:00+00:00",
    "deadline_at": None,
}


@pytest.fixture
def site(tmp_path):
    site = make_site(tmp_path / "site")
    use(site)
    return site


@pytest.fixture
def page(site):
    with serving_site(site) as page:
        yield page


def show(browser, page, *, width=1440, dark=False, line="Live"):
    browser.open(page.url, width=width, dark=dark)
    wait(browser, text("line-words"), line)


def click(browser, label):
    browser.js(BUTTON.format(label) + ".click()")
    wait(browser, "document.getElementById('dialog').open")


def confirm(browser):
    browser.js("document.getElementById('dialog-confirm').click()")


def listed(browser, name):
    return browser.js(f"[...document.querySelectorAll('#{name} h3')].map(each => each.textContent)")


def test_accept_and_decline(browser, page, site):
    show(browser, page)
    assert browser.js("location.href") == page.home
    assert sorted(listed(browser, "proposal-rows")) == ["length of stay", "readmission"]
    assert browser.js(f"{BUTTON.format('Accept length of stay')} === undefined"), "it is beyond the limits"
    assert "Not within your limits: exceeds the owner's total ε" in browser.js(text("proposal-rows"))
    click(browser, "Accept readmission")
    assert browser.js(text("dialog-title")) == "Accept readmission?"
    browser.js("document.querySelector('dialog [value=cancel]').click()")
    wait(browser, "document.getElementById('dialog').open", False)
    assert PROPOSED.hash not in read_ledger(site.ledger).accounts
    click(browser, "Accept readmission")
    confirm(browser)
    wait(browser, text("spoken") + ".startsWith('Accepted: readmission.')")
    assert PROPOSED.hash in read_ledger(site.ledger).accounts
    wait(browser, f"{BUTTON.format('Leave readmission')} !== undefined")
    click(browser, "Decline length of stay")
    confirm(browser)
    wait(browser, text("spoken"), "Declined: length of stay.")
    wait(browser, "document.getElementById('no-proposals').checkVisibility()")
    assert {each.study.hash: each.kind for each in decisions(site.path.parent)}[TOO_MUCH.hash] == "declined"
    assert browser.problems() == []
    own = {address.removeprefix(page.home).partition("/")[0] for address in browser.requests()}
    assert own == {"login", "", "static", "snapshot", "studies"}


def test_a_refusal_of_the_site_stays_on_the_page(browser, page, site):
    show(browser, page)
    click(browser, "Accept <b>falls</b>")
    (site.path.parent / "table.csv").write_text("age,bmi,sick\n")
    confirm(browser)
    wait(browser, text("lost") + ".startsWith('Not done: ')")
    assert browser.js("document.getElementById('lost').checkVisibility()")
    assert DECLINED.hash not in read_ledger(site.ledger).accounts


def test_the_keyboard_decides(browser, page, site):
    """Tab reaches every button in order and shows where it is; the dialog starts at Cancel and returns the focus."""
    show(browser, page)
    reached = []
    while browser.press("Tab") or browser.js("document.activeElement !== document.body"):
        assert browser.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        label = "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim()"
        reached.append(browser.js(label))
    for part in ("Skip to the content", "Accept readmission", "Values as a table", "Leave heart failure", "Log out"):
        assert part in reached
    browser.js(f"{BUTTON.format('Leave heart failure')}.focus()")
    browser.press("Enter")
    wait(browser, "document.getElementById('dialog').open")
    assert browser.js("document.activeElement.textContent") == "Cancel"
    browser.press("Enter")
    wait(browser, "document.getElementById('dialog').open", False)
    assert browser.js("document.activeElement.getAttribute('aria-label')") == "Leave heart failure"
    browser.press("Enter")
    wait(browser, "document.getElementById('dialog').open")
    browser.press("Tab")
    browser.press("Enter")
    wait(browser, text("spoken"), "Left: heart failure.")


def test_the_budget_follows_the_releases(browser, page, site):
    show(browser, page)
    spent = site.policy.epsilon_of(read_ledger(site.ledger).spent)
    assert abs(float(browser.js(text("spent")).removeprefix("ε ")) - spent) < 0.0011
    drawn = browser.js("document.querySelector('#history .spent').getAttribute('d')")
    assert "NaN" not in drawn
    release(site, 40, 21)
    wait(browser, "document.querySelector('#release-rows td:nth-child(3)').textContent", "40")
    assert browser.js("document.querySelector('#history .spent').getAttribute('d')") != drawn
    more = site.policy.epsilon_of(read_ledger(site.ledger).spent)
    assert more > spent
    assert float(browser.js(text("spent")).removeprefix("ε ")) >= more
    rows = "document.querySelectorAll('#history-rows tr').length"
    assert browser.js(rows) > 40


def states_of_a_site(site, state):
    """What the process of the site reports in a state, and the words of the page's line."""
    blocked = BLOCKED | {"hash": next(iter(read_ledger(site.ledger).accounts), "")}
    return {
        "empty": ({}, "Live"),
        "running": ({}, "Live"),
        "stalled": ({"connected": False, "studies": [blocked], "problems": ["a problem"]}, "Not connected"),
        "finished": ({}, "Live"),
    }[state]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("state", ["empty", "running", "stalled", "finished"])
def test_every_state_fits_reads_and_has_no_violation(browser, axe, tmp_path, state, width, dark):
    site = make_site(tmp_path / "site")
    if state != "empty":
        use(site, rounds=60 if state == "finished" else 20)
    status, line = states_of_a_site(site, state)
    with serving_site(site, **status) as page:
        show(browser, page, width=width, dark=dark, line=line)
        assert violations(browser, axe) == []
        assert browser.js(CONTRAST) == []
        assert browser.js("document.scrollingElement.scrollWidth <= innerWidth")
        if state == "running":
            click(browser, "Accept readmission")
            assert violations(browser, axe) == []
        assert browser.problems() == []


def test_a_session_that_ended_says_so(browser, page, site):
    show(browser, page)
    for session in (site.path.parent / "web" / "sessions").iterdir():
        session.unlink()
    wait(browser, text("line-words"), "Logged out")
    assert "dpadmm site status --link" in browser.js(text("lost"))
