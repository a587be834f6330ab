"""The fixture ``browser``: one real browser for tests of pages."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from chromium import NAMES, Browser, chromium, find_chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        reason = f"none of {', '.join(NAMES)} is on the PATH"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}; CI must test pages in a browser")
        pytest.skip(reason)
    with chromium(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened
