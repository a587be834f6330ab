"""The rules of axe-core in a real browser."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

AXE = """
(async () => {
  const found = await axe.run(document, {resultTypes: ["violations"]});
  return found.violations.map(v => v.id + ": " + v.nodes.slice(0, 4).map(n => n.html.slice(0, 160)).join(" ;; "));
})()
"""


@pytest.fixture(scope="session")
def axe():
    package = importlib.util.find_spec("axe_playwright_python")  # its script alone is used, not the package
    if package is None:
        pytest.skip("axe-core is not installed: make docs installs it")
    return Path(package.origin).with_name("axe.min.js").read_text(encoding="utf-8")


def violations(browser, axe):
    """Rules that the open page violates, each with some elements."""
    browser.js(f"{axe}; true")
    return browser.js(AXE)
