"""What the server's page shows in a browser."""

from __future__ import annotations

import time


def evaluate(browser, expression):
    try:
        return browser.js(expression)
    except AssertionError as error:  # between two pages
        return str(error)


def wait(browser, expression, wanted=True):
    """Wait until the page shows the value."""
    deadline = time.monotonic() + 20
    while (seen := evaluate(browser, expression)) != wanted:
        assert time.monotonic() < deadline, f"{expression} is {seen!r}, not {wanted!r}"
        time.sleep(0.03)


def text(name):
    return f"document.getElementById('{name}').textContent"


def seconds(least, most):
    return [f"{n} s" for n in range(least, most + 1)]


def sites(browser):
    """Return the visible text of each site's cells, by site."""
    rows = "[...document.querySelectorAll('#site-rows tr')].filter(row => row.checkVisibility())"
    cells = f"{rows}.map(row => [...row.cells].map(cell => cell.textContent.trim().replace(/\\s+/g, ' ')))"
    return {name: rest for name, *rest in browser.js(cells)}


def show(browser, page, *, width=1440, dark=False):
    """Open the page, with a new link unless this browser has a session, as a reload does."""
    browser.open(page.url, width=width, dark=dark)
    wait(browser, text("line-words"), "Live")
