"""The server's page over real sockets: who may look, what they receive, and metrics."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from itertools import product

import pytest
from live_run import LiveRun
from looping import case
from page_visits import ask, log_in, serving

from dpadmm.federation.web import sessions
from dpadmm.federation.web.sessions import MAX_SESSIONS, Sessions, metrics_token, new_link


@pytest.fixture(scope="module")
def calm():
    """A page for tests that leave its run as it is."""
    with serving(LiveRun()) as page:
        yield page


@pytest.fixture(scope="module")
def cookie(calm):
    return log_in(calm)


def code_of(page):
    return new_link(page.folder).removeprefix("login#")


def post(page, path, body="", **headers):
    return ask(page, path, method="POST", body=body, headers=headers)


def test_a_link_opens_one_session(calm):
    code = code_of(calm)
    status, headers, _ = post(calm, "/login", f"code={code}")
    assert (status, headers["Location"]) == (303, "./")  # relative: a proxy's prefix stays
    name, _, rest = headers["Set-Cookie"].partition("=")
    value, *attributes = rest.split("; ")
    assert name == f"dpadmm-{calm.port}"
    assert sorted(attributes) == ["HttpOnly", f"Max-Age={12 * 3600}", "SameSite=strict"]  # no path, for a prefix
    assert code not in headers["Set-Cookie"]
    assert ask(calm, "/", headers={"Cookie": f"{name}={value}"})[0] == 200
    status, headers, body = post(calm, "/login", f"code={code}")
    assert status == 403
    assert "Set-Cookie" not in headers
    assert "was used before or has expired" in body


def test_of_many_requests_with_one_link_one_logs_in(calm):
    code, found = code_of(calm), []
    threads = [
        threading.Thread(target=lambda: found.append(post(calm, "/login", f"code={code}")[0])) for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [303] + [403] * 11


def test_links_and_sessions_expire(calm):
    code, cookie = code_of(calm), log_in(calm)
    for kind, seconds in (("links", sessions.LINK_SECONDS), ("sessions", sessions.SESSION_SECONDS)):
        for path in (calm.folder / "web" / kind).iterdir():
            os.utime(path, (time.time() - seconds, time.time() - seconds))
    assert post(calm, "/login", f"code={code}")[0] == 403
    assert ask(calm, "/snapshot", headers=cookie)[0] == 403


def test_logging_out_ends_the_session_and_needs_its_csrf_token(calm):
    cookie = log_in(calm)
    csrf = re.search(r'name="csrf" content="(\w+)"', ask(calm, "/", headers=cookie)[2])[1]
    for headers in ({}, {"X-CSRF-Token": "0" * 64}, {"X-CSRF-Token": csrf, "Sec-Fetch-Site": "cross-site"}):
        assert post(calm, "/logout", **cookie, **headers)[0] == 403
    assert ask(calm, "/snapshot", headers=cookie)[0] == 200
    assert post(calm, "/logout", **cookie, **{"X-CSRF-Token": csrf})[0] == 204
    assert ask(calm, "/snapshot", headers=cookie)[0] == 403


def test_secrets_are_in_no_file_and_nobody_else_may_issue_them(calm, tmp_path):
    code, cookie = code_of(calm), log_in(calm)["Cookie"].partition("=")[2]
    files = [path for path in (calm.folder / "web").rglob("*") if path.is_file() and path.name != "metrics-token"]
    assert files
    for path in files:
        assert path.stat().st_mode & 0o777 == 0o600
        assert not {code, cookie} & {path.name, path.read_text()}
    new_link(tmp_path)
    (tmp_path / "web" / "links").chmod(0o777)
    with pytest.raises(ValueError, match="chmod go-w"):
        new_link(tmp_path)


def test_old_links_are_deleted(tmp_path):
    for _ in range(MAX_SESSIONS + 20):
        new_link(tmp_path)
    assert len(list((tmp_path / "web" / "links").iterdir())) == MAX_SESSIONS


def test_the_code_is_behind_the_number_sign_where_no_log_has_it(calm, caplog, capfd):
    """A browser sends nothing behind a #, so neither a proxy nor a history of requests has it."""
    assert re.fullmatch(r"login#[\w-]{32}", new_link(calm.folder))
    with caplog.at_level(logging.DEBUG):
        code = code_of(calm)
        post(calm, "/login", f"code={code}")
        post(calm, "/login", f"code={code}")
    assert code not in caplog.text + "".join(capfd.readouterr())


def test_without_a_session_there_is_a_sentence_and_nothing_else(calm, cookie):
    name, _, value = cookie["Cookie"].partition("=")
    wrong = [
        "",
        f"{name}=",
        f"{name}={value[:-1]}",
        f"{name}={value}x",
        f"dpadmm-1={value}",
        f"{name}=../links",
        "%;=,",
    ]
    for given, path in product([*wrong, "%;=,"], ["/", "/snapshot"]):
        with case(given, path):
            status, _, body = ask(calm, path, headers={"Cookie": given})
            assert status == 403
            assert "dpadmm server status --link" in body
            assert str(calm.folder) not in body
            assert LiveRun().name not in body


def test_the_page_has_no_inline_script_and_nothing_from_elsewhere(calm, cookie):
    for path in ("/", "/login"):
        body = ask(calm, path, headers=cookie)[2]
        assert "{{" not in body
        assert (
            re.findall(r"<script(?! src=\"static/\w+\.js\" defer></script>)[^>]*>|<style| style=| on\w+=", body) == []
        )
        for address in re.findall(r"""(?:src|href|action)=["']([^"']*)""", body):
            assert re.match(r"static/[a-z]+\.(css|js)$|#|data:,$|login$", address), address
        for name in re.findall(r"static/[a-z]+\.(?:css|js)", body):
            status, headers, text = ask(calm, f"/{name}")
            assert status == 200
            assert headers["Content-Type"].startswith("text/")
            assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_there_is_nothing_else(calm, cookie):
    paths = ["/favicon.ico", "/static/", "/static/login.html", "/static/../pages.py", "/static/%2e%2e%2fpages.py"]
    for path in [*paths, "/static/x.js", "/events", "/Snapshot", "/snapshot/", "//"]:
        with case(path):
            assert ask(calm, path, headers=cookie)[0] == 404
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"]:
        with case(method):
            assert ask(calm, "/snapshot", method=method, headers=cookie)[0] == 405


def test_scripts_get_the_whole_snapshot(page, run):
    run.arrive()
    run.play(3)
    status, headers, body = ask(page, "/snapshot", headers=log_in(page))
    assert (status, headers["Content-Type"]) == (200, "application/json")
    told = json.loads(body)
    assert abs(told.pop("at") - time.time()) < 60
    assert told == json.loads(json.dumps(run()))


def test_a_snapshot_that_fails_is_one_sentence(caplog):
    def snapshot(requested):
        raise RuntimeError("a secret of the run")

    with caplog.at_level(logging.WARNING), serving(snapshot) as page:
        status, _, body = ask(page, "/snapshot", headers=log_in(page))
        assert (status, body) == (500, "The server could not answer. Try again.\n")
    assert "secret" not in caplog.text


def test_metrics_need_their_token_or_a_session(calm, cookie):
    assert ask(calm, "/metrics")[0] == 401
    assert ask(calm, "/metrics", headers={"Authorization": "Bearer x"})[0] == 401
    token = metrics_token(calm.folder)
    assert (calm.folder / "web" / "metrics-token").stat().st_mode & 0o777 == 0o600
    for headers in (cookie, {"Authorization": f"Bearer {token}"}):
        assert ask(calm, "/metrics", headers=headers)[0] == 200
    assert ask(calm, "/healthz")[::2] == (200, "ok\n")


def test_the_cookie_is_for_https_only_behind_a_proxy_with_tls(calm):
    forwarded = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.1"}
    _, headers, _ = post(calm, "/login", f"code={code_of(calm)}", **forwarded)
    assert "; Secure" in headers["Set-Cookie"]


def test_sessions_survive_a_restart(run, tmp_path):
    with serving(run, tmp_path) as page:
        cookie, port = log_in(page), page.port
    with serving(run, tmp_path, port=port) as page:
        assert ask(page, "/snapshot", headers=cookie)[0] == 200
    assert Sessions(tmp_path, "command")
