"""The status page of a simulated run, and visits to it over real sockets."""

from __future__ import annotations

import http.client
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from live_run import LiveRun

from dpadmm.federation.web.hosting import Listener, hosted
from dpadmm.federation.web.server_app import StatusPage
from dpadmm.federation.web.sessions import new_link


@dataclass
class OpenPage:
    """A page that is being served; its folder has the links and sessions."""

    port: int
    folder: Path

    @property
    def home(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def url(self) -> str:
        """The page with a new one-time link."""
        return self.home + new_link(self.folder)


@contextmanager
def serving(
    snapshot: Callable[[str], dict[str, Any]], folder: Path | None = None, *, port: int = 0
) -> Iterator[OpenPage]:
    with tempfile.TemporaryDirectory() as own:
        page = StatusPage(folder or Path(own), snapshot)
        with hosted(page.routes(), Listener("127.0.0.1", port)) as (listener,):
            yield OpenPage(listener.port, folder or Path(own))


@pytest.fixture
def run():
    return LiveRun()


@pytest.fixture
def page(run):
    with serving(run) as page:
        yield page


def ask(page, path, *, method="GET", host=None, headers=None, body=None):
    """(status, headers, body) of one request."""
    with closing(http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)) as connection:
        connection.request(method, path, body, headers={"Host": host or f"127.0.0.1:{page.port}", **(headers or {})})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


def log_in(page, code=None):
    """The cookie of a new session."""
    code = code or new_link(page.folder).removeprefix("login#")
    status, headers, _ = ask(page, "/login", method="POST", body=f"code={code}")
    assert status == 303
    return {"Cookie": headers["Set-Cookie"].partition(";")[0]}


def visitor(printed):
    """The path of a page -> its JSON, in a session of the link that a command printed."""
    found = re.search(r"http://127\.0\.0\.1:(\d+)/login#(\S+)", printed)
    page = OpenPage(int(found[1]), Path())
    cookie = log_in(page, found[2])
    return lambda path: json.loads(ask(page, path, headers=cookie)[2])
