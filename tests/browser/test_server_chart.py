"""The server's page's chart: read by keyboard, inside its frame, whatever the values."""

from __future__ import annotations

import pytest
from page_views import show, text, wait

pytestmark = pytest.mark.usefixtures("left_empty")


def test_the_chart_is_read_by_keyboard(browser, page, run):
    run.arrive()
    run.play(60)
    show(browser, page, width=390)
    wait(browser, text("readout") + ".startsWith('Latest, round 60')")
    plot = "document.getElementById('plot')"
    browser.js(f"{plot}.focus()")
    values = run.changes()
    for key, round_ in (("ArrowLeft", 59), ("ArrowLeft", 58), ("ArrowRight", 59), ("Home", 1), ("End", 60)):
        browser.press(key)
        wait(browser, f"{plot}.ariaValueNow", str(round_))
        assert browser.js(f"{plot}.ariaValueText") == f"round {round_}: {float(f'{values[round_ - 1]:.3g}'):g}"
    assert browser.js(text("chart-summary")).startswith(f"From {values[0]:.3g} in round 1 to ")
    browser.js("document.getElementById('values').open = true")
    wait(browser, "document.querySelectorAll('#values-rows tr').length", 25)
    assert browser.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_the_curve_is_inside_its_frame(browser, page, run):
    run.n_rounds = 1000
    run.play(900)
    show(browser, page)
    wait(browser, text("readout") + ".startsWith('Latest, round 900')")
    inside = """
    (() => {
      const box = name => document.querySelector('#plot .' + name).getBBox();
      const frame = box('grid'), fits = box => box.width > 100 && box.height > 20
        && box.x >= frame.x - 1 && box.y >= frame.y - 1
        && box.x + box.width <= frame.x + frame.width + 1 && box.y + box.height <= frame.y + frame.height + 1;
      return fits(box('curve')) && fits(box('band'));
    })()"""
    assert browser.js(inside)


def test_any_curve_is_drawn(browser, page):
    show(browser, page)
    found = browser.js("""
    [[], [1], [0.3, 0.3, 0.3], [1e-90, 1e90], [5e-324, 1e300, 1], [9.99e-5, 1e-4], [1, 1.01, 0.99],
     [1e9, 2e9]].map(values => {
      chart.update(values.map((value, k) => [k + 1, value]), values.length);
      chart.draw();
      const drawn = [...document.querySelectorAll('#plot path')].map(path => path.getAttribute('d')).join();
      const ticks = [...document.querySelectorAll('#plot [text-anchor=end]')].map(tick => tick.textContent);
      const good = !/NaN|Infinity|undefined/.test(drawn) && ticks.length > 1 && ticks.length < 10;
      return [values, ticks, good && new Set(ticks).size === ticks.length];
    }).filter(([, , good]) => !good)""")
    assert found == []
    assert browser.problems() == []


def test_the_axis_ends_at_the_last_round(browser, page, run):
    run.arrive()
    labels = "[...document.querySelectorAll('#plot text')].map(each => each.textContent)"
    for rounds, last in [(1, "1"), (36, "37"), (60, "97")]:
        run.play(rounds)
        show(browser, page)
        wait(browser, f"{labels}.at(-2)", last)
        right = "document.querySelector('#plot .{}').getBoundingClientRect().right"
        if run.done > 1:
            assert abs(browser.js(right.format("curve")) - browser.js(right.format("grid"))) < 3
    assert browser.js(labels)[-7:] == ["1", "20", "40", "60", "80", "97", "round"]
