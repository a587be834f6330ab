"""The server's page in a real browser: login, a run to its end, a line that breaks, strings that are not ours."""

from __future__ import annotations

import pytest
from axe_rules import violations
from contrast import CONTRAST
from live_run import LiveRun
from page_views import seconds, show, sites, text, wait
from page_visits import serving
from prefix_proxy import PREFIX, prefix_proxy

SHIFTS = """
window.shifted = [];
new Promise(painted => requestAnimationFrame(() => requestAnimationFrame(painted))).then(() =>
new PerformanceObserver(list => {
  for (const entry of list.getEntries())
    shifted.push([entry.value, ...entry.sources.map(({ node }) => node?.className || node?.nodeName)]);
}).observe({ type: "layout-shift" }));
"""


pytestmark = pytest.mark.usefixtures("left_empty")


def test_a_run_from_waiting_to_finished(browser, page, run):
    show(browser, page)
    assert browser.js(text("name")) == "Income above 50,000"
    assert browser.js(text("hash")) == "0123456789ab"
    assert browser.js(text("state-words")) == "Waiting for sites: 0 of 10 present, 7 needed"
    assert sites(browser)["site-03"] == ["– silent", "0 of 100", "0.000 of 1", "never"]
    assert "41.7000 in round 1 (moments), 65.5000 from round 2 on" in browser.js(text("facts"))
    browser.js(SHIFTS)

    run.arrive()
    run.play(40)
    wait(browser, text("state-words"), "Running: round 41 of 100")
    assert browser.js("document.getElementById('bar').ariaValueNow") == "40"
    assert browser.js("document.title") == "40/100 · Income above 50,000"
    assert browser.js(text("deadline")) in seconds(17, 27)
    assert browser.js(text("left")) in seconds(32, 42)
    assert sites(browser)["site-03"] == ["✓ present", "40 of 100", "0.632 of 1", "just now"]
    wait(browser, text("readout"), f"Latest, round 40: {run.changes()[-1]:.3g}")
    wait(browser, text("spoken") + ".includes('Running: round 41 of 100.')")

    run.turn(2, "missing", ago=95)
    run.play(10)
    wait(browser, text("rounds"), "50 of 100")
    assert sites(browser)["site-03"] == ["○ missing", "40 of 100", "0.632 of 1", "1 min ago"]
    assert sites(browser)["site-04"][1] == "50 of 100"
    assert browser.js(text("present")) == "9 of 10"
    assert browser.js(text("count-warnings")) == "1"
    wait(browser, text("spoken"), "site-03 is missing.")

    run.turn(2, "present")
    run.turn(4, "refused", code="budget-cap")
    run.play(50)
    wait(browser, text("state-words"), "Finished: 100 of 100 rounds")
    assert sites(browser)["site-03"] == ["✓ present", "90 of 100", "0.948 of 1", "just now"]
    assert sites(browser)["site-05"][0] == "✗ refused budget-cap"
    assert not browser.js("document.getElementById('left-figure').checkVisibility()")
    assert browser.js("document.title") == "finished · Income above 50,000"
    assert browser.js("shifted") == []
    assert browser.problems() == []
    own = {address.removeprefix(page.home).partition("/")[0] for address in browser.requests()}
    assert own == {"login", "", "static", "snapshot"}


def test_a_stall_is_the_headline_with_its_alarms_and_without_a_time_left(browser, page, run):
    run.arrive()
    run.play(40)
    show(browser, page)
    assert browser.js("document.getElementById('alarms').checkVisibility()") is False
    green = browser.js("getComputedStyle(document.querySelector('#line .dot')).backgroundColor")
    run.stall(2, 6)
    wait(browser, text("state-words"), "Stalled in round 41 of 100: site-03 silent, site-07 silent")
    assert browser.js(text("since")).startswith("since ")
    assert browser.js("document.getElementById('state').dataset.state") == "stalled"
    assert (browser.js(text("line-words")), browser.js("document.getElementById('line').dataset.line")) == (
        "Stalled",
        "alarm",
    )
    assert browser.js("getComputedStyle(document.querySelector('#line .dot')).backgroundColor") != green
    assert [browser.js(text(name)) for name in ("left", "ends", "deadline")] == ["–", "", "–"]
    assert sites(browser)["site-03"][0] == "– silent"
    assert browser.js("document.title") == "stalled · Income above 50,000"
    cells = (
        "[...document.querySelectorAll('#alarm-rows li')].map(row => [...row.lastChild.children].map(e => e.innerText))"
    )
    (stalled, what), (cloned, todo, command) = browser.js(cells)
    assert stalled.startswith("Error, stalled: Stalled in round 41 of 100: site-03 silent, site-07 silent, since 20")
    assert what == "Call these sites."
    assert cloned.startswith("Warning, site-cloned: two agents")
    assert todo.endswith("must be revoked:")
    assert command == run.alarms[1]["command"]
    run.resume()
    wait(browser, text("line-words"), "Live")
    assert browser.js(text("state-words")) == "Running: round 41 of 100"
    assert browser.js("document.getElementById('alarms').checkVisibility()") is False
    assert browser.problems() == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1440])
def test_a_stalled_run_fits_and_reads(browser, dark, width):
    run = LiveRun(n_sites=8)
    run.arrive()
    run.play(40)
    run.stall(0, 1, 2, 3, 4, 5)
    with serving(run) as page:
        browser.open(page.url, width=width, dark=dark)
        wait(browser, text("line-words"), "Stalled")
        assert browser.js(text("state-words")).endswith("site-05 silent, 1 more")
        assert browser.js("document.scrollingElement.scrollWidth <= innerWidth")
        assert browser.js(CONTRAST) == []
        assert browser.problems() == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1440])
def test_page_fits_and_is_readable(browser, dark, width):
    run = LiveRun(n_sites=50, n_rounds=1000)
    run.arrive()
    run.turn(1, "late")
    run.turn(2, "missing")
    run.turn(3, "refused", code="request-malformed")
    run.turn(4, "revoked")
    run.turn(5, "connected")
    run.sites[6]["name"] = "a" * 40
    run.say("x" * 300, "error")
    run.play(640)
    with serving(run) as page:
        show(browser, page, width=width, dark=dark)
        assert browser.js("document.scrollingElement.scrollWidth <= innerWidth")
        assert browser.js("[...document.querySelectorAll('.scroll')].every(b => b.scrollWidth <= b.clientWidth)")
        assert browser.js(CONTRAST) == []
        assert browser.problems() == []


@pytest.mark.parametrize("width", [320, 1440])
def test_secure_aggregation_has_members_aborted_rounds_and_both_epsilons(browser, width):
    run = LiveRun(n_sites=3, min_honest_sites=2)
    pairs = "[...document.querySelectorAll('#facts div')].map(fact => [...fact.children].map(cell => cell.textContent))"
    facts = f"Object.fromEntries({pairs})"
    with serving(run) as page:
        show(browser, page, width=width)
        assert browser.js(facts)["Aborted rounds"] == "none"
        run.arrive()
        run.turn(1, "excluded")
        run.play(40)
        wait(browser, text("rounds"), "40 of 100")
        seen = browser.js(facts)
        assert seen["Aborted rounds"] == "3 (missing), 7 (garbled)"
        assert seen["Members of the round"] == "site-01, site-03"
        assert seen["Planned ε alone, if all others collude"] == "2.4"
        assert sites(browser)["site-01"][2] == "0.632 of 1; 1.516 alone"
        assert sites(browser)["site-02"][0] == "⊗ excluded"
        assert browser.js("document.scrollingElement.scrollWidth <= innerWidth")
        assert browser.js("[...document.querySelectorAll('.scroll')].every(b => b.scrollWidth <= b.clientWidth)")
        assert browser.js(CONTRAST) == []
        assert browser.problems() == []


def test_strings_of_others_are_text(browser, page, run):
    evil = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
    run.name = evil
    run.sites[0]["name"] = evil
    run.sites[1].update(name="constructor", state="__proto__", code=evil)
    run.say(evil, "warning")
    run.say("level", evil)
    show(browser, page)
    assert browser.js(text("name")) == evil
    assert browser.js("document.querySelector('#site-rows th').textContent") == evil
    assert browser.js("document.querySelectorAll('#site-rows tr')[1].cells[1].textContent").endswith(evil)
    assert evil in browser.js("[...document.querySelectorAll('#event-rows .text')].map(node => node.textContent)")
    assert browser.js("document.images.length") == 0
    assert browser.js("[...document.scripts].every(script => script.src)")
    assert not browser.js("document.title").startswith("broken")
    # and if the page itself were wrong, the browser would not follow
    with pytest.raises(AssertionError, match="TrustedHTML"):
        browser.js("document.body.innerHTML = '<b>markup</b>'")


def test_the_code_leaves_the_address_and_the_session_survives_a_reload(browser, page):
    show(browser, page)
    assert browser.js("location.href") == page.home
    browser.js("window.old = true; setTimeout(() => location.reload())")
    wait(browser, "!window.old && document.getElementById('line-words')?.textContent", "Live")
    assert browser.js("location.href") == page.home
    assert browser.js("document.cookie") == ""  # scripts cannot read it


def test_a_used_link_and_no_link_say_what_to_do(browser, page):
    used = page.url
    browser.open(used, width=390)
    wait(browser, text("line-words"), "Live")
    browser.open("about:blank", width=390)
    browser.open(used, width=390)
    wait(browser, "document.querySelector('.command')?.textContent", "dpadmm server status --link")
    assert "was used before or has expired" in browser.js("document.body.innerText")
    browser.open(page.home, width=390)  # the session of the first visit continues
    wait(browser, text("line-words"), "Live")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_logging_out_shows_the_login_page(browser, axe, page, width, dark):
    show(browser, page, width=width, dark=dark)
    browser.js("document.getElementById('logout').click()")
    wait(browser, "location.pathname", "/login")
    wait(browser, "document.querySelector('h1')?.textContent", "dpadmm: log in")
    assert violations(browser, axe) == []
    assert browser.js(CONTRAST) == []
    assert browser.js("document.scrollingElement.scrollWidth <= innerWidth")
    browser.open(page.home, width=width, dark=dark)
    assert browser.js("document.querySelector('.command').textContent") == "dpadmm server status --link"


def test_it_works_behind_the_prefix_of_a_proxy(browser, page, run):
    run.arrive()
    with prefix_proxy(page.port) as home:
        browser.open(home, width=1440)
        assert browser.js("document.querySelector('.command').textContent") == "dpadmm server status --link"
        browser.open(home + page.url.removeprefix(page.home), width=1440)
        wait(browser, text("line-words"), "Live")
        assert browser.js("location.href") == home
        assert browser.problems() == []
        assert all(address.startswith(home) for address in browser.requests())
        browser.js("document.getElementById('logout').click()")
        wait(browser, "location.pathname", f"{PREFIX}/login")


def states_of_a_server():
    empty, joined, stalled, finished = LiveRun(n_sites=0, has_study=False), *(LiveRun(n_sites=8) for _ in range(3))
    for run in (joined, stalled, finished):
        run.arrive()
    joined.has_study = False
    stalled.play(40)
    stalled.stall(0, 1, 2, 3)
    stalled.others = OTHERS
    finished.play(100)
    return {"empty": empty, "joined": joined, "stalled": stalled, "finished": finished}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("state", ["empty", "joined", "stalled", "finished"])
def test_every_state_fits_reads_and_has_no_violation(browser, axe, state, width, dark):
    with serving(states_of_a_server()[state]) as page:
        browser.open(page.url, width=width, dark=dark)
        wait(browser, text("state-words") + " !== 'Connecting to the server'")
        browser.js("scrollTo(0, document.body.scrollHeight)")
        assert violations(browser, axe) == []
        assert browser.js(CONTRAST) == []
        assert browser.js("document.scrollingElement.scrollWidth <= innerWidth")
        assert browser.problems() == []


def test_an_empty_server_says_what_to_do_next(browser):
    run = LiveRun(n_sites=2, has_study=False)
    with serving(run) as page:
        show(browser, page)
        assert browser.js(text("next")) == "To propose one to the sites: dpadmm server propose STUDY"
        assert sites(browser)["site-01"][:2] == ["– silent", "–"]
        run.sites[0].update(state="connected", last_seen=None)
        wait(browser, text("present"), "1 of 2")
        run.has_study = True
        wait(browser, text("state-words"), "Waiting for sites: 0 of 2 present, 1 needed")
        assert not browser.js("document.getElementById('next').checkVisibility()")


def test_a_site_outside_the_study_and_one_of_a_study_that_does_not_run(browser, page, run):
    run.arrive()
    run.play(100)
    run.more_sites = [{"name": "z", "state": "revoked", "last_seen": None}]
    show(browser, page)
    assert sites(browser)["z"][:3] == ["⊘ revoked", "not in this study", ""]
    told = run()
    told["study"]["served"] = False
    told["sites"][0]["state"] = "silent"
    with serving(lambda requested: told) as other:
        show(browser, other)
        shown = sites(browser)
        assert (shown["site-01"][0], shown["site-02"][0]) == ("– silent", "◔ connected")
        assert shown["site-01"][1:3] == ["100 of 100", "0.999 of 1"]
        assert browser.js(text("present")) == "9 of 11"


def test_it_comes_back_after_a_restart(browser, run, tmp_path):
    run.arrive()
    run.play(10)
    with serving(run, tmp_path) as page:
        show(browser, page)
    wait(browser, text("line-words"), "Connection lost")
    assert browser.js("document.getElementById('lost').checkVisibility()")
    assert browser.js(text("rounds")) == "10 of 100"
    browser.js("page.receivedAt -= 60_000; showTimes()")  # a minute later
    assert browser.js(text("deadline")) in seconds(17, 27)  # no countdown without news
    wait(browser, text("spoken") + ".includes('Connection lost.')")
    run.play(5)
    with serving(run, tmp_path, port=page.port):
        wait(browser, text("line-words"), "Live")
        assert browser.js(text("rounds")) == "15 of 100"
        assert not browser.js("document.getElementById('lost').checkVisibility()")
        run.play(85)
        wait(browser, text("state-words"), "Finished: 100 of 100 rounds")
    wait(browser, text("line-words"), "Ended")  # a run that is done needs no alarm
    assert "has stopped" in browser.js(text("lost"))
    for session in (tmp_path / "web" / "sessions").iterdir():
        session.unlink()
    with serving(run, tmp_path, port=page.port):
        wait(browser, text("line-words"), "Logged out")


def test_a_state_that_cannot_be_read_keeps_the_last(browser, run):
    state = {"broken": False}

    def snapshot(requested):
        return run() if not state["broken"] else 1 / 0

    with serving(snapshot) as page:
        show(browser, page)
        state["broken"] = True
        wait(browser, text("line-words"), "No update")
        assert browser.js(text("name")) == run.name
        state["broken"] = False
        wait(browser, text("line-words"), "Live")


def test_sites_and_events_are_filtered(browser, page, run):
    run.arrive()
    run.turn(2, "missing")
    run.turn(7, "late")
    run.play(3)
    show(browser, page)
    chips = "[...document.querySelectorAll('#site-filter button')]"
    browser.js(f"{chips}.find(chip => chip.innerText === '○ Missing 1').click()")
    assert list(sites(browser)) == ["site-03"]
    run.turn(3, "missing")
    wait(browser, text("present"), "7 of 10")
    assert list(sites(browser)) == ["site-03", "site-04"]
    browser.js("document.querySelector('[data-only=warnings]').click()")
    shown = "[...document.querySelectorAll('#event-rows li')].filter(line => line.checkVisibility())"
    assert browser.js(f"{shown}.map(line => line.lastChild.textContent)") == [
        "site-04 is missing",
        "site-08 is late",
        "site-03 is missing",
    ]
    assert browser.js("document.querySelector('[data-only=warnings]').ariaPressed") == "true"


def test_the_keyboard_reaches_everything_and_shows_where_it_is(browser, page, run):
    run.arrive()
    show(browser, page)
    reached = []
    while browser.press("Tab") or browser.js("document.activeElement !== document.body"):
        assert browser.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        reached.append(
            browser.js("document.activeElement.id || document.activeElement.innerText.split('\\n')[0].trim()")
        )
    for part in ("copy", "plot", "All 10", "Values as a table", "What the states mean", "logout"):
        assert part in reached


OTHERS = [
    {
        "name": "Readmission",
        "hash": "ab" * 32,
        "state": "finished",
        "rounds_done": 200,
        "n_rounds": 200,
        "epsilon": 0.98,
        "planned_epsilon": 1.0,
        "sites_present": None,
        "n_sites": 5,
        "seconds_left": None,
        "begun_at": "2025-11-02T09:15:00+00:00",
        "last_round_at": "2025-11-03T10:15:00+00:00",
    },
    {
        "name": "<b>Stay</b>",
        "hash": "cd" * 32,
        "state": "stalled",
        "rounds_done": 17,
        "n_rounds": 300,
        "epsilon": None,
        "planned_epsilon": 2.0,
        "sites_present": 1,
        "n_sites": 4,
        "seconds_left": None,
        "begun_at": "2026-11-02T09:15:00+00:00",
        "last_round_at": None,
    },
]


def test_several_studies_of_an_aggregator_are_listed_with_their_dates(browser, page, run):
    run.arrive()
    show(browser, page)
    assert browser.js("document.getElementById('studies').hidden") is True
    run.others = OTHERS
    wait(browser, "document.getElementById('studies').hidden", False)
    cells = "[...document.querySelectorAll('#study-rows tr')].map(row => [...row.cells].map(cell => cell.textContent))"
    own, readmission, stay = browser.js(cells)
    assert own[:5] == ["Income above 50,000 (shown here)", "◌ waiting", "0 of 100", "0.000 of 1", "10 of 10"]
    assert readmission[:5] == ["Readmission", "✓ finished", "200 of 200", "0.980 of 1", "– of 5"]
    assert readmission[5].startswith("2 Nov 2025, ")
    assert readmission[6].startswith("3 Nov 2025, ")
    assert stay[:5] == ["<b>Stay</b>", "▲ stalled", "17 of 300", "– of 2", "1 of 4"]
    assert stay[6] == "–"
    assert browser.js("document.querySelector('#study-rows a').getAttribute('href')") == f"?study={'ab' * 8}"
    for width in (390, 1440):
        show(browser, page, width=width)
        wide = "document.documentElement.scrollWidth <= innerWidth && [...document.querySelectorAll('.studies td')]"
        assert browser.js(wide + ".every(each => each.getBoundingClientRect().right <= innerWidth)") is True
    assert browser.problems() == []


def test_times_have_their_dates(browser, page, run):
    run.arrive()
    run.events[0]["at"] = "2026-03-02T09:15:00.000+00:00"
    run.play(40)
    show(browser, page)
    assert browser.js("document.querySelector('#event-rows time').textContent")[:6] in ("2 Mar ", "2 Mar,")
    assert "Began2 Mar" in browser.js(text("facts"))
    assert browser.js(text("ends")).startswith("until ")
    assert browser.js(text("as-of") + ".includes(', ')") is True


def test_three_sites_leave_no_half_of_the_screen_empty(browser):
    run = LiveRun(n_sites=3)
    run.arrive()
    run.play(40)
    with serving(run) as page:
        show(browser, page)
        height = "document.querySelector('.{}').getBoundingClientRect().height"
        tall = {name: browser.js(height.format(name)) for name in ("chart", "sites", "events", "about")}
        assert tall["sites"] == tall["chart"]
        assert tall["events"] == tall["about"]


def test_paper_shows_everything(browser, page, run):
    """All sites and events, whatever is chosen on the screen; what is folded away; the whole hash."""
    run.arrive()
    run.turn(2, "missing")
    run.play(40)
    for k in range(60):
        run.say(f"event {k}")
    show(browser, page, dark=True)
    chip = "[...document.querySelectorAll('#site-filter button')].find(each => each.textContent.includes('Missing'))"
    browser.js(f"{chip}.click(); document.querySelector('[data-only=warnings]').click()")
    assert len(sites(browser)) == 1
    browser._ask("Emulation.setEmulatedMedia", media="print")
    browser.js("dispatchEvent(new Event('beforeprint'))")
    assert len(sites(browser)) == run.n_sites
    shown = "[...document.querySelectorAll('{}')].filter(each => each.checkVisibility()).length"
    assert browser.js(shown.format("#event-rows li")) == len(run.events)
    wait(browser, shown.format("#values-rows tr"), 25)
    assert browser.js(shown.format(".words dd")) == 10
    assert browser.js(text("hash")) == run()["study"]["study"]["hash"]
    inside = (
        "[...document.querySelectorAll('.scroll, .values')].every(each => each.scrollHeight <= each.clientHeight + 1)"
    )
    assert browser.js(inside) is True, "nothing is scrolled on paper"
    assert browser.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.js("dispatchEvent(new Event('afterprint'))")
    browser._ask("Emulation.setEmulatedMedia", media="")
    assert len(sites(browser)) == 1
    assert browser.js("document.querySelectorAll('details[open]').length") == 0
    assert browser.js(text("hash")) == "0123456789ab"
    assert browser.pdf().count(b"/Type /Page\n") >= 2
