"""One real browser for all tests here, and a page for it to show."""

from __future__ import annotations

import pytest
from axe_rules import axe
from browsers import browser
from page_visits import page, run

__all__ = ["axe", "browser", "left_empty", "page", "run"]


@pytest.fixture
def left_empty(browser):
    """The browser is left with an empty page, which asks for nothing."""
    yield
    browser.open("about:blank", width=390)
