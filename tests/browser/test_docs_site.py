"""The built documentation in a real browser: narrow, wide, dark, by keyboard, and by axe-core's rules."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from axe_rules import violations

SITE = Path(__file__).parents[2] / "docs" / "_build" / "html"
PAGES = [
    "index",
    "tutorials/first-model",
    "reference/cli/site",
    "reference/study",
    "reference/api/dpadmm.DPADMMClassifier",
]


@pytest.fixture(scope="module", autouse=True)
def _built():
    if not (SITE / "index.html").exists():
        reason = "the site is not built: make docs"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_and_loads_nothing_from_elsewhere(browser, name, width, dark):
    browser.open(SITE / f"{name}.html", width=width, dark=dark)
    assert browser.js("document.scrollingElement.scrollWidth <= innerWidth")
    assert browser.js("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    assert [address for address in browser.requests() if not address.startswith("file:")] == []
    assert browser.js("[...document.images].every(i => i.alt && (i.naturalWidth || i.offsetParent === null))")


@pytest.mark.parametrize("name", [*PAGES, "explanation/epsilon", "boards/faq"])
def test_a_telephone_cuts_no_title_and_no_words(browser, name):
    """Outputs and wide tables scroll in boxes of their own; everything else is broken into lines."""
    browser.open(SITE / f"{name}.html", width=390)
    words = "[...document.querySelectorAll('.bd-article :is(h1, h2, h3, p, li, dd)')]"
    assert browser.js(f"{words}.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)") == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(browser, axe, name, width, dark):
    browser.open(SITE / f"{name}.html", width=width, dark=dark)
    assert violations(browser, axe) == []


def test_the_keyboard_skips_to_the_content_and_reaches_the_search(browser):
    browser.open(SITE / "reference" / "cli" / "site.html", width=1440)
    browser.press("Tab")
    assert browser.js("document.activeElement.textContent.trim()") == "Skip to main content"
    browser.js("new Promise(r => setTimeout(r, 600))")  # it slides in
    assert browser.js("document.activeElement.getBoundingClientRect().top >= 0")
    reached = None
    for _ in range(15):
        browser.press("Tab")
        assert browser.js("getComputedStyle(document.activeElement).outlineStyle") != "none"
        reached = browser.js("document.activeElement.getAttribute('aria-label') || ''")
        if reached == "Search":
            break
    assert reached == "Search"
    browser.press("Enter")
    assert browser.js("document.activeElement.type") == "search"


def test_the_search_finds_what_a_board_asks(browser):
    browser.open(f"{(SITE / 'search.html').as_uri()}?q=second%20study", width=1440)
    first = "document.querySelector('ul.search li a')?.getAttribute('href')"
    wait = f"new Promise(r => {{const t = setInterval(() => {first} && (clearInterval(t), r({first})), 50);}})"
    assert browser.js(wait).startswith("boards/faq.html")
    # By an index entry, which outweighs all words of other pages; the others share a few scores
    scores = "Search._performSearch(...Search._parseQuery('second study')).map(([page, , , , score]) => [page, score])"
    *_, (second, lower), (first, score) = browser.js(scores)
    assert (first, second != first) == ("boards/faq", True)
    assert score > 2 * lower


def test_the_search_finds_a_refusal(browser):
    browser.open(f"{(SITE / 'search.html').as_uri()}?q=ledger", width=1440)
    shown = "document.querySelectorAll('ul.search li').length"
    assert (
        browser.js(f"new Promise(r => {{const t = setInterval(() => {shown} && (clearInterval(t), r({shown})), 50);}})")
        > 3
    )


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("install", "install"),
        ("csv", "how-to/read-from-a-database"),
        ("excel", "how-to/read-from-a-database"),
        ("pandas", "tutorials/data-frames"),
        ("choose epsilon", "tutorials/choosing-epsilon"),
        ("cite", "project/cite"),
        ("quickstart", "quickstart"),
        ("client", "reference/glossary"),
        ("server", "how-to/lead-a-study"),
        ("hospital", "tutorials/first-model"),
        ("intervals", "how-to/report-results"),
    ],
)
def test_first_search_result(browser, query, page):
    browser.open(f"{(SITE / 'search.html').as_uri()}?q={query.replace(' ', '%20')}", width=1440)
    browser.js("new Promise(r => {const t = setInterval(() => Search._index && (clearInterval(t), r(1)), 50);})")
    assert browser.js(f"Search._performSearch(...Search._parseQuery('{query}')).at(-1)[0]") == page
