"""The aggregator's own nats-server: started, found again after a crash, reloaded, stopped."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sysconfig
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from dpadmm.errors import DpadmmError
from dpadmm.federation.broker_config import broker_config
from dpadmm.federation.certificates import Authority
from dpadmm.federation.packages import MissingPackages
from dpadmm.federation.private_files import one_at_a_time, write_private

__all__ = ["Broker", "broker_config"]

_PATIENCE = 10.0
_LISTEN = re.compile(r'^listen: ".*:([0-9]+)"$', re.MULTILINE)
_CHILDREN: list[subprocess.Popen[bytes]] = []
"""Brokers that this process started, kept until they ended: whoever ends them, they are let go."""

_RELOADED, _NOT_RELOADED = "Reloaded server configuration", "Failed to reload"


class Broker:
    """The nats-server of an aggregator's folder; it outlives a killed aggregator, and the next one adopts it.

    Any process may hold a ``Broker`` of the folder: ``aggregator revoke`` reloads what ``serve`` started.
    """

    def __init__(self, authority: Authority, *, port: int | None = None) -> None:
        self._authority = authority
        self._asked = port
        self._port = port or authority.settings.port
        self._process: subprocess.Popen[bytes] | None = None
        self._config = authority.folder / "broker.conf"
        self._log = authority.folder / "broker.log"

    @property
    def url(self) -> str:
        """Where the aggregator itself connects to."""
        return self._authority.own_url(self._port)

    def start(self) -> None:
        """Adopt and reload the broker of this folder if one runs, else start one; then it answers."""
        with self._alone():
            self._port = self._asked or self._authority.settings.port
            self._start()

    def reload(self) -> None:
        """Tell the broker who may connect now: a revoked or expired site's connections are closed at once.

        A broker that does not take the new configuration is replaced, so that nobody stays in by its failure.
        Where none runs, the next start reads it. It stays at its port, unless this ``Broker`` has another.
        """
        with self._alone():
            self._port = self._asked or self._found_port() or self._authority.settings.port
            self._write_config()
            pid = self._pid()
            if pid is not None and not self._reloaded(pid):
                self._stop()
                self._start()

    def refresh(self) -> bool:
        """Reload if there is a reason (approved, revoked, expired, renewed): cheap, for every few seconds."""
        self._port = self._asked or self._found_port() or self._authority.settings.port
        renewed = self._authority.renew_own()
        if (
            not renewed
            and self._config.exists()
            and self._config.read_text(encoding="utf-8") == self._wanted()
        ):
            return False
        self.reload()
        return True

    def alive(self) -> bool:
        """Does the broker of this folder run?"""
        return self._pid() is not None

    def stop(self) -> None:
        """End the broker of this folder, if it runs."""
        with self._alone():
            self._stop()

    def _start(self) -> None:
        program = nats_server()
        self._write_config()
        pid = self._pid()
        if pid is not None:
            if self._reloaded(pid) and self._answers():
                return
            self._stop()  # it hangs, or has another address than asked for
        (self._authority.folder / "broker.pid").unlink(missing_ok=True)
        seen = self._log_size()
        self._process = subprocess.Popen(
            [program, "-c", str(self._config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._authority.folder,
            start_new_session=True,  # Ctrl-C is for the aggregator, which then stops the broker in order
        )
        process = self._process
        _CHILDREN.append(process)
        _wait(lambda: process.poll() is not None or (self._pid() is not None and self._answers()))
        if process.poll() is None and self._answers():
            return
        self._stop()
        raise DpadmmError(self._why(self._log_since(seen)))

    def _stop(self) -> None:
        pid = self._pid()
        for each in (signal.SIGTERM, signal.SIGKILL):
            if pid is not None and self._pid() == pid:
                _signal(pid, each)
                _wait(lambda: self._pid() != pid)
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # before it wrote its number nobody else could end it; ended, this does nothing
            process.wait()
        (self._authority.folder / "broker.pid").unlink(missing_ok=True)

    def _reloaded(self, pid: int) -> bool:
        seen = self._log_size()
        if not _signal(pid, signal.SIGHUP):
            return False
        line = re.compile(rf"^\[{pid}\] \S+ \S+ \[\w+\] ({_RELOADED}|{_NOT_RELOADED})", re.MULTILINE)
        _wait(lambda: line.search(self._log_since(seen)) is not None)
        return line.findall(self._log_since(seen)) == [_RELOADED]  # whole lines: clients' names are in it too

    def _answers(self) -> bool:
        """Does our broker listen there: of our authority, and content with the aggregator's certificate?"""
        host = self._authority.settings.own_host
        try:
            context = self._authority.client_context()
            with (
                socket.create_connection((host, self._port), timeout=2) as plain,
                context.wrap_socket(plain, server_hostname=host) as secured,
            ):
                return secured.recv(5) == b"INFO "
        except (OSError, ssl.SSLError):
            return False

    def _why(self, said: str) -> str:
        where = f"{self._authority.settings.listen}:{self._port}"
        if "address already in use" in said:
            return (
                f"port {self._port} is in use by another program, so the broker cannot listen at {where}: "
                f"end that program, or choose another port (--port, or aggregator.toml)"
            )
        if "cannot assign requested address" in said:
            address = self._authority.settings.listen
            return f"this machine has no address {address}: correct listen in aggregator.toml"
        if "permission denied" in said:
            return f"the system does not let this user listen at {where}: choose a port of 1024 or above"
        return f"the broker did not start at {where}: {self._log} says why"

    def _pid(self) -> int | None:
        """The number of this folder's running broker: by its own note, and by what that process is."""
        _CHILDREN[:] = [child for child in _CHILDREN if child.poll() is None]
        try:
            pid = int((self._authority.folder / "broker.pid").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return pid if pid > 1 and str(self._config) in _words(pid) else None

    def _found_port(self) -> int | None:
        """The port of the running broker, which another process may have chosen."""
        if not self.alive():
            return None
        found = _LISTEN.search(self._config.read_text(encoding="utf-8"))
        return int(found[1]) if found else None

    def _wanted(self) -> str:
        return broker_config(self._authority, port=self._port)

    def _write_config(self) -> None:
        self._authority.renew_own()
        write_private(self._config, self._wanted().encode())

    def _log_size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def _log_since(self, seen: int) -> str:
        try:
            with self._log.open("rb") as log:
                log.seek(seen if seen <= self._log_size() else 0)  # shorter: nats-server began a new one
                return log.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def _alone(self) -> AbstractContextManager[None]:
        return one_at_a_time(self._authority.folder / "authority" / "broker-lock")


def nats_server() -> str:
    """The nats-server of this installation, else of the machine."""
    own = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(own) if own.exists() else shutil.which("nats-server")
    if found is None:
        raise MissingPackages
    return found


def _words(pid: int) -> list[str]:
    """The command line of a process; none where it ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    except OSError:
        pass
    if Path("/proc/self").exists():
        return []
    shown = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip().split(" -c ")


def _signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def _wait(done: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE
    while not done() and time.monotonic() < end:
        time.sleep(0.02)
