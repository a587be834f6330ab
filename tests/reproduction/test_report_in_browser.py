"""The report in a real browser: wide, narrow, dark, by keyboard and printed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from contrast import CONTRAST

from reproduction.report import report_html


@pytest.fixture(scope="module")
def page(paper_page, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(paper_page, encoding="utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1440])
def test_page_fits_and_is_readable(browser, page, width, dark):
    browser.open(page, width=width, dark=dark)
    assert browser.js("document.scrollingElement.scrollWidth <= innerWidth")
    assert browser.js("getComputedStyle(document.body).backgroundColor === 'rgb(255, 255, 255)'") is not dark
    assert browser.js(CONTRAST) == []
    assert browser.problems() == []
    assert browser.requests() == []


def test_pictures_are_drawn_and_described(browser, page):
    browser.open(page, width=1440)
    images = browser.js("[...document.images].map(i => [i.complete, i.naturalWidth, i.alt.length])")
    assert len(images) == 14
    assert all(complete and width > 300 and words > 80 for complete, width, words in images)


def test_headings_and_landmarks(browser, page):
    browser.open(page, width=1440)
    levels = browser.js("[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert browser.js("['header','nav','main','footer'].every(n => document.querySelectorAll(n).length === 1)")
    assert browser.js("document.documentElement.lang") == "en"


def test_page_is_usable_by_keyboard_with_visible_focus(browser, page):
    browser.open(page, width=390)
    browser.press("Tab")
    assert browser.js("document.activeElement.className") == "skip"
    assert browser.js("document.activeElement.getBoundingClientRect().left") >= 0
    browser.press("Enter")
    assert browser.js("location.hash") == "#main"
    browser.press("Tab")
    assert browser.js("document.activeElement.closest('main') !== null")
    assert browser.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_wide_content_scrolls_in_its_own_box(browser, page):
    browser.open(page, width=390)
    wide = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth)"
    boxes = browser.js(f"{wide}.map(box => box.tabIndex)")
    assert boxes
    assert set(boxes) == {0}


def test_page_can_be_printed(browser, page):
    browser.open(page, width=1440)
    printed = browser.pdf()
    assert printed.startswith(b"%PDF-")
    assert printed.rstrip().endswith(b"%%EOF")
    assert b"/MediaBox [0 0 594" in printed or b"/MediaBox [0 0 595" in printed  # A4


def test_comparison_fits(browser, comparison_results, tmp_path):
    path = tmp_path / "comparison.html"
    path.write_text(report_html(comparison_results), encoding="utf-8")
    browser.open(path, width=390)
    assert browser.js("document.scrollingElement.scrollWidth <= innerWidth")
    assert browser.problems() == []
