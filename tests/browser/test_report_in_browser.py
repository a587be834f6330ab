"""The report in a real browser: wide, narrow, dark, by keyboard and on paper."""

from __future__ import annotations

import importlib.util
import os
from itertools import pairwise
from pathlib import Path

import pytest

from dpadmm.reporting.html import report_html

_spec = importlib.util.spec_from_file_location("chromium", Path(__file__).with_name("chromium.py"))
driver = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(driver)

CONTRAST = """
(() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const light = rgb => {
    const [r, g, b] = rgb.map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const behind = element => {
    for (; element; element = element.parentElement) {
      const color = parse(getComputedStyle(element).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!own) continue;
    const a = light(parse(getComputedStyle(element).color).slice(0, 3)), b = light(behind(element));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) low.push([element.tagName, element.className, ratio, element.textContent.slice(0, 40)]);
  }
  return low;
})()
"""


@pytest.fixture(scope="session")  # before the results: without a browser they need not be made
def browser(tmp_path_factory):
    program = driver.find_chromium()
    if program is None:
        reason = f"none of {', '.join(driver.NAMES)} is on the PATH"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}; CI must test the report in a browser")
        pytest.skip(reason)
    with driver.chromium(program, tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture(scope="module")
def page(paper_page, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(paper_page, encoding="utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1440])
def test_it_fits_and_reads(browser, page, width, dark):
    browser.open(page, width=width, dark=dark)
    assert browser.js("document.scrollingElement.scrollWidth <= innerWidth")
    assert browser.js("getComputedStyle(document.body).backgroundColor === 'rgb(255, 255, 255)'") is not dark
    assert browser.js(CONTRAST) == []
    assert browser.problems() == []
    assert browser.requests() == []


def test_pictures_are_drawn_and_described(browser, page):
    browser.open(page, width=1440)
    images = browser.js("[...document.images].map(i => [i.complete, i.naturalWidth, i.alt.length])")
    assert len(images) == 12
    assert all(complete and width > 300 and words > 80 for complete, width, words in images)


def test_headings_and_landmarks(browser, page):
    browser.open(page, width=1440)
    levels = browser.js("[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert browser.js(
        "['header','nav','main','footer'].every(n => document.querySelectorAll(n).length === 1)"
    )
    assert browser.js("document.documentElement.lang") == "en"


def test_the_keyboard_reaches_the_content_and_shows_where_it_is(browser, page):
    browser.open(page, width=390)
    browser.press("Tab")
    assert browser.js("document.activeElement.className") == "skip"
    assert browser.js("document.activeElement.getBoundingClientRect().left") >= 0
    browser.press("Enter")
    assert browser.js("location.hash") == "#main"
    browser.press("Tab")
    assert browser.js("document.activeElement.closest('main') !== null")
    assert browser.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_what_is_wider_than_a_phone_scrolls_in_its_own_box(browser, page):
    browser.open(page, width=390)
    wide = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth)"
    boxes = browser.js(f"{wide}.map(box => box.tabIndex)")
    assert boxes
    assert set(boxes) == {0}


def test_it_prints(browser, page):
    browser.open(page, width=1440)
    printed = browser.pdf()
    assert printed.startswith(b"%PDF-")
    assert printed.rstrip().endswith(b"%%EOF")
    assert b"/MediaBox [0 0 594" in printed or b"/MediaBox [0 0 595" in printed  # A4


def test_a_comparison_fits_too(browser, comparison_results, tmp_path):
    path = tmp_path / "comparison.html"
    path.write_text(report_html(comparison_results), encoding="utf-8")
    browser.open(path, width=390)
    assert browser.js("document.scrollingElement.scrollWidth <= innerWidth")
    assert browser.problems() == []
