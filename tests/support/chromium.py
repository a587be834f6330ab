"""A real headless Chromium, controlled through a pipe, without a port or another package."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from select import select
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
TIME_LIMIT = 60.0


def find_chromium() -> str | None:
    """Return the browser on the PATH, if any."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of one browser process. ``events`` are all events that it sent."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = to_browser, from_browser
        self._buffer = b""
        self._id = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def open(self, page: Path | str, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Show a file or an address at a width in CSS pixels and wait until it has loaded."""
        self.events.clear()
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._ask("Emulation.setEmulatedMedia", media="", features=scheme)
        self._ask("Page.navigate", url=page if isinstance(page, str) else page.absolute().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._read()

    def js(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def problems(self) -> list[str]:
        """Return console errors, exceptions and browser messages since the page was opened."""
        bad = []
        for event in self.events:
            method, about = event["method"], event["params"]
            if (
                method == "Runtime.exceptionThrown"
                or (method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"))
                or (method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"))
            ):
                bad.append(json.dumps(about)[:300])
        return bad

    def requests(self) -> list[str]:
        """Return the addresses that the page requested, except itself and embedded resources."""
        asked = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [address for address in asked[1:] if not address.startswith("data:")]

    def press(self, key: str) -> None:
        """Press a key, such as Tab."""
        for kind in ("keyDown", "keyUp"):
            code = {"Tab": 9, "Enter": 13, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}[key]
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self._ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def pdf(self) -> bytes:
        """Return the page as printed."""
        answer = self._ask("Page.printToPDF", preferCSSPageSize=True, printBackground=False)
        return base64.b64decode(answer["data"])

    def screenshot(self, *, whole: bool = False) -> bytes:
        """The page as PNG."""
        return base64.b64decode(self._ask("Page.captureScreenshot", captureBeyondViewport=whole)["data"])

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._id += 1
        call = {"id": self._id, "method": method, "params": params}
        if self._session:
            call["sessionId"] = self._session
        os.write(self._out, json.dumps(call).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") == self._id:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result

    def _read(self) -> dict[str, Any]:
        """Return the next message. Events are stored."""
        end = time.monotonic() + TIME_LIMIT
        while b"\0" not in self._buffer:
            ready, _, _ = select([self._in], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._in, 1 << 20) if ready else b""
            if not part:
                raise TimeoutError("the browser does not answer" if not ready else "the browser has ended")
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        read: dict[str, Any] = json.loads(message)
        if "method" in read:
            self.events.append(read)
        return read


@contextlib.contextmanager
def chromium(program: str, profile: Path) -> Iterator[Browser]:
    """Start a browser with a fresh profile, and end only its process."""
    read_here, write_there = os.pipe()
    read_there, write_here = os.pipe()

    def give_pipes() -> None:  # the browser reads from 3 and writes to 4
        there, back = os.dup(read_there), os.dup(write_there)
        os.dup2(there, 3)
        os.dup2(back, 4)

    # its pipes must have numbers 3 and 4, so move our own first
    read_there, write_there = (_above(fd) for fd in (read_there, write_there))
    with (profile / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=give_pipes,
            pass_fds=(3, 4),
            start_new_session=True,
        )
    os.close(read_there)
    os.close(write_there)
    try:
        yield Browser(write_here, read_here)
    finally:
        os.close(write_here)
        os.close(read_here)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def _above(fd: int, least: int = 10) -> int:
    """Duplicate the pipe to a number that is not in use."""
    import fcntl

    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    os.close(fd)
    return moved
