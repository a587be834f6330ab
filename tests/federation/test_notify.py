"""Events for the program of ``[notify]``: real programs that succeed, fail, hang, or cannot be started."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer
from typing import Any, get_args

import pytest
from federations import wait_for

from dpadmm.federation import notify
from dpadmm.federation.health import Alarm
from dpadmm.federation.notify import EventKind, Notifier, StudyNotice
from dpadmm.sites.notify_settings import NotifySettings

LOG = logging.getLogger("test.notify")
APPEND = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"
FIELDS = ("format", "kind", "at", "role", "site", "study", "study_name", "code", "level", "text")
EXAMPLES = Path(__file__).parents[2] / "examples" / "deployment"
DISK = Alarm("disk-small", "warning", "900 MB are free for /srv")
SILENT = Alarm("site-silent", "warning", "site-1 gave no sign of life since 2026-11-18T10:00:00+00:00")


def appending(target: Path, delay: float = 0.0) -> NotifySettings:
    return NotifySettings((sys.executable, "-c", APPEND, str(target)), delay)


def events(target: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in target.read_text().splitlines()] if target.exists() else []


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_event_has_all_fields_and_nothing_happens_without_a_command(tmp_path: Path) -> None:
    target = tmp_path / "events"
    with Notifier(appending(target), tmp_path, LOG, role="site", site="north") as notifier:
        notifier.send("study-proposed", "a text", study="ab" * 32)
        notifier.send("alarm-raised", "another", code="clock", level="warning", site="other")
    first, second = events(target)
    assert tuple(first) == tuple(second) == FIELDS
    about = {"format": "dpadmm-event/1", "role": "site"}
    empty = dict.fromkeys(("study_name", "code", "level"))
    assert {**first, "at": ""} == {
        **about, **empty, "kind": "study-proposed", "at": "", "site": "north", "study": "ab" * 32, "text": "a text",
    }  # fmt: skip
    assert (second["code"], second["level"], second["site"]) == ("clock", "warning", "other")
    with Notifier(None, tmp_path, LOG, role="server") as quiet:
        quiet.send("study-proposed", "a text")
        quiet.update(lambda: pytest.fail("nothing is computed"))
    assert not quiet._thread.is_alive()
    assert len(events(target)) == 2


def test_program_gets_a_small_environment_and_its_output_is_discarded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "secret")
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.delenv("TZ", raising=False)
    text = "import os, sys; print('out'); print('err', file=sys.stderr); "
    text += "open('seen', 'w').write(repr((sorted(os.environ), os.getcwd(), os.getsid(0) == os.getpid())))"
    settings = NotifySettings((sys.executable, "-c", text))
    with Notifier(settings, tmp_path, LOG, role="site") as notifier:
        notifier.send("study-finished", "done")
    names, folder, alone = eval((tmp_path / "seen").read_text())
    assert set(names) - {"LC_CTYPE"} == {"HOME", "LANG", "PATH"}
    assert (folder, alone) == (str(tmp_path), True)
    assert capfd.readouterr() == ("", "")


def test_alarms_are_raised_and_cleared_once_despite_changing_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "UPDATE_SECONDS", 0.0)
    target = tmp_path / "events"
    other = SILENT._replace(text=SILENT.text.replace("site-1", "site-2"))
    with Notifier(appending(target), tmp_path, LOG, role="server") as notifier:
        for alarms in (
            [],
            [DISK, SILENT],
            [SILENT, DISK._replace(text="850.5 MB are free for /srv")],
            [SILENT._replace(text=SILENT.text.replace("10:00:00", "10:00:07")), DISK._replace(level="error")],
            [other, DISK._replace(level="error")],
            [],
        ):
            notifier.update(lambda alarms=alarms: alarms)  # type: ignore[misc]
    found = [(event["kind"], event["code"], event["level"], event["text"]) for event in events(target)]
    assert found == [
        ("alarm-raised", *DISK[:3]),
        ("alarm-raised", *SILENT[:3]),
        ("alarm-raised", *DISK._replace(level="error")[:3]),
        ("alarm-raised", *other[:3]),
        ("alarm-cleared", *SILENT[:3]),
        ("alarm-cleared", *DISK._replace(level="error")[:3]),
        ("alarm-cleared", *other[:3]),
    ]


def test_alarm_is_reported_after_its_delay_and_cleared_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, target = 1000.0, tmp_path / "events"
    monkeypatch.setattr(notify, "monotonic", lambda: now)
    with Notifier(appending(target, delay=10.0), tmp_path, LOG, role="server") as notifier:

        def seen_at(second: float, *alarms: Alarm, final: bool = False) -> list[str]:
            nonlocal now
            now, before = 1000.0 + second, len(sent)
            notifier.update(lambda: alarms, final=final)
            return sent[before:]

        sent = list[str]()
        monkeypatch.setattr(notifier, "send", lambda kind, *_, **__: sent.append(kind))
        assert seen_at(0, DISK) == []
        assert seen_at(9.5, DISK) == []
        assert seen_at(11, DISK) == ["alarm-raised"]
        assert seen_at(11.5) == [], "it is too early to compare again"
        assert seen_at(13) == []
        assert seen_at(14, DISK) == [], "it flickered"
        assert seen_at(15, SILENT, DISK) == []
        assert seen_at(16, DISK) == []
        assert seen_at(26, SILENT, DISK) == [], "its time begins again"
        assert seen_at(26.1, SILENT, final=True) == ["alarm-cleared"]
        monkeypatch.undo()


def test_only_changes_of_studies_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "UPDATE_SECONDS", 0.0)
    target, about = tmp_path / "events", ("ab" * 32, "Adult")
    accepted, finished = StudyNotice("study-accepted", *about), StudyNotice("study-finished", *about)
    refused = StudyNotice("study-refused", *about, "north", "budget-cap")
    with Notifier(appending(target), tmp_path, LOG, role="server") as notifier:
        for notices in ([accepted, refused], [accepted, refused], [finished, refused], [finished]):
            notifier.update(tuple, lambda notices=notices: notices)  # type: ignore[misc]
        notifier.update(tuple, lambda: [StudyNotice("study-finished", "cd" * 32, "Old")])
        notifier.update(tuple, lambda: [refused._replace(code="data-changed")])
    found = [
        (event["kind"], event["study"], event["study_name"], event["site"], event["code"]) for event in events(target)
    ]
    assert found == [
        ("study-refused", *about, "north", "budget-cap"),
        ("study-finished", *about, None, None),
        ("study-refused", *about, "north", "data-changed"),
    ]
    assert events(target)[0]["text"] == "north: study 'Adult' refused (budget-cap)"
    assert events(target)[1]["text"] == "study 'Adult' finished"
    proposed = StudyNotice("study-proposed", "ab" * 32, None)
    texts = ["study abababababab proposed", "study 'Adult' accepted"]
    for role, sent in (("site", texts), ("server", texts[1:])):
        target.unlink()
        with Notifier(appending(target), tmp_path, LOG, role=role) as notifier:  # type: ignore[arg-type]
            for notice in (proposed, proposed, accepted):
                notifier.update(tuple, lambda notice=notice: [notice])  # type: ignore[misc]
        assert [event["text"] for event in events(target)] == sent


def test_failures_are_logged_once_and_never_raised(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "test.notify")
    flag = tmp_path / "works"
    text = f"import os, sys; sys.exit(0 if os.path.exists({str(flag)!r}) else 3)"

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records]

    with Notifier(NotifySettings((sys.executable, "-c", text)), tmp_path, LOG, role="site") as notifier:
        for _ in range(3):
            notifier.send("study-finished", "x")
        wait_for(notifier._events.empty)
    assert said() == ["notify: the program ended with exit code 3"]
    caplog.clear()
    with Notifier(NotifySettings(("/nowhere/notify",)), tmp_path, LOG, role="site") as notifier:
        for _ in range(3):
            notifier.send("study-finished", "x")

        def broken() -> list[Alarm]:
            raise OSError("the folder is gone")

        notifier.update(broken)
        notifier.update(broken, final=True)
    started = "notify: the program cannot be started (No such file or directory)"
    assert sorted(said()) == sorted(
        [
            "notify.command: /nowhere/notify is not an executable file, so no event is delivered; install it",
            "notify: alarms cannot be compared (OSError)",
            started,
        ]
    )


def blocked_on(fifo: Path, tmp_path: Path, **options: float) -> Notifier:
    """Return a program that writes the process ids of itself and a child. Both wait for a FIFO that is never opened."""
    text = "echo $$ >> pids; (exec cat fifo) & echo $! >> pids; cat fifo"
    return Notifier(NotifySettings(("/bin/sh", "-c", text)), tmp_path, LOG, role="site", **options)  # type: ignore[arg-type]


def test_hanging_program_is_killed_with_its_children(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "fifo")
    pids: Callable[[], list[int]] = lambda: [int(line) for line in (tmp_path / "pids").read_text().split()]  # noqa: E731
    with blocked_on(tmp_path / "fifo", tmp_path, time_limit=0.3) as notifier:
        notifier.send("study-finished", "x")
        wait_for(lambda: "did not end within 0.3 seconds and was killed" in caplog.text)
    assert len(pids()) == 2
    wait_for(lambda: not any(map(running, pids())))
    monkeypatch.setattr(notify, "CLOSE_SECONDS", 0.2)
    (tmp_path / "pids").unlink()
    with blocked_on(tmp_path / "fifo", tmp_path) as notifier:
        for _ in range(notify.MAX_WAITING + 10):
            notifier.send("study-finished", "x")
        wait_for(lambda: (tmp_path / "pids").exists() and len(pids()) == 2)
        assert all(map(running, pids()))
    assert not notifier._thread.is_alive()
    wait_for(lambda: not any(map(running, pids())))
    assert len(pids()) == 2, "no further program was started at the end"
    assert caplog.text.count("events arrive faster than it handles them; further events are dropped") == 1


def test_dropped_events_are_counted_after_recovery(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(tmp_path / "fifo")
    text = "[ -e open ] || { : > waiting; cat fifo; }; cat >> events"
    with Notifier(NotifySettings(("/bin/sh", "-c", text)), tmp_path, LOG, role="site") as notifier:
        notifier.send("study-finished", "first")
        wait_for((tmp_path / "waiting").exists)
        for _ in range(notify.MAX_WAITING + 7):
            notifier.send("study-finished", "x")
        (tmp_path / "open").touch()
        (tmp_path / "fifo").write_bytes(b"")
        wait_for(lambda: len(events(tmp_path / "events")) == 1 + notify.MAX_WAITING)
    assert caplog.text.count("notify: 7 events were dropped") == 1


class Hook(BaseHTTPRequestHandler):
    """Store what is posted."""

    received: list[tuple[str, str | None, dict[str, Any]]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append((self.path, self.headers["Authorization"], json.loads(body)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


class Smtp(StreamRequestHandler):
    """The part of SMTP that one mail needs."""

    received: list[str]

    def handle(self) -> None:
        self.wfile.write(b"220 ready\r\n")
        while line := self.rfile.readline():
            word = line[:4].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go\r\n")
                lines = list(iter(self.rfile.readline, b".\r\n"))
                self.received.append(b"".join(lines).decode())
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")


@pytest.mark.parametrize("name", ["mail", "webhook"])
def test_examples_deliver_an_event(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    received = list[Any]()
    base = {"mail": Smtp, "webhook": Hook}[name]
    handler = type("Handler", (base,), {"received": received})
    with (TCPServer if name == "mail" else HTTPServer)(("127.0.0.1", 0), handler) as server:
        port = server.server_address[1]
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        mail = f"[mail]\nhost = 127.0.0.1\nport = {port}\nfrom = a@example.org\nto = b@example.org, c@example.org\n"
        hook = f"[webhook]\nurl = http://127.0.0.1:{port}/hooks/1\ntoken = %secret\n"
        settings = tmp_path / "settings.ini"
        settings.write_text(mail + "security = none\n" if name == "mail" else hook)
        command = NotifySettings((sys.executable, str(EXAMPLES / f"notify_{name}.py"), str(settings)))
        with Notifier(command, tmp_path, LOG, role="site", site="north") as notifier:
            notifier.send("alarm-raised", "no connection", code="not-connected", level="error")
            wait_for(lambda: received or caplog.records)
        server.shutdown()
    assert caplog.text == ""
    (found,) = received
    if name == "webhook":
        path, word, event = found
        assert (path, word) == ("/hooks/1", "Bearer %secret")
        assert (tuple(event), event["code"], event["site"]) == (FIELDS, "not-connected", "north")
    else:
        assert "Subject: dpadmm north: alarm-raised not-connected" in found
        assert "To: b@example.org, c@example.org" in found
        assert "text: no connection" in found
        assert "study" not in found


def test_kinds_match_the_guide() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "notifications.md").read_text()
    assert all(f"| `{kind}` |" in page for kind in get_args(EventKind))
    assert all(f"| `{name}` |" in page for name in FIELDS)
