"""One real browser for all tests here, and a live page for it to show."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from page_visits import page, run

__all__ = ["browser", "left_empty", "page", "run"]

_spec = importlib.util.spec_from_file_location("chromium", Path(__file__).with_name("chromium.py"))
driver = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(driver)


@pytest.fixture(scope="session")  # before the results: without a browser they need not be made
def browser(tmp_path_factory):
    program = driver.find_chromium()
    if program is None:
        reason = f"none of {', '.join(driver.NAMES)} is on the PATH"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}; CI must test pages in a browser")
        pytest.skip(reason)
    with driver.chromium(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def left_empty(browser):
    """The browser is left with an empty page, which asks for nothing."""
    yield
    browser.open("about:blank", width=390)
