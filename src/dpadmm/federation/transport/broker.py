"""The built-in broker (nats-server): its configuration, start, adoption after a crash, reload and stop.

``broker.conf`` allows only mutual TLS 1.3. The e-mail address in a certificate is its user (``verify_and_map``).
Only listed users can connect, and each may use only the subjects of its name.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import IO

from dpadmm.errors import DPADMMError
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.private_files import exclusive_lock, write_private
from dpadmm.federation.protocol import SERVER, MissingPackagesError, subjects_of

_TIMEOUT = 10.0
_LISTEN = re.compile(r'^listen: ".*:([0-9]+)"$', re.MULTILINE)
_CHILDREN: list[subprocess.Popen[bytes]] = []
"""Brokers that this process started. They must be reaped even if another process ends them."""

_RELOADED, _NOT_RELOADED = "Reloaded server configuration", "Failed to reload"


class Broker:
    """The nats-server of a server's folder. It survives a killed server process, and the next one adopts it.

    Any process may create a ``Broker`` for the folder: ``server revoke`` reloads the broker of ``server run``.
    """

    def __init__(self, authority: Authority, *, port: int | None = None) -> None:
        self._authority, self.folder = authority, authority.folder
        self._requested_port = port
        self._port = port or authority.settings.port
        self._process: subprocess.Popen[bytes] | None = None
        self._config = authority.folder / "broker.conf"
        self._log = authority.folder / "broker.log"

    @property
    def url(self) -> str:
        """The address to which the server itself connects."""
        return self._authority.own_url(self._port)

    def start(self) -> None:
        """Start the broker, or adopt and reload a running one. Return when it accepts connections."""
        with self._lock():
            self._port = self._requested_port or self._authority.settings.port
            self._start()

    def reload(self) -> None:
        """Update the users of a running broker, which disconnects revoked and expired sites immediately.

        A broker that rejects the new configuration is replaced, so that no revoked site stays connected. The
        port does not change unless this ``Broker`` was created with another one.
        """
        with self._lock():
            self._find_port()
            self._write_config()
            if (pid := self._pid()) is not None and not self._reloaded(pid):
                self._stop()
                self._start()

    def refresh(self) -> bool:
        """Reload if approvals or certificates changed. Cheap enough to call every second."""
        self._find_port()
        written = self._config.read_text(encoding="utf-8") if self._config.exists() else ""
        changed = self._authority.renew_certificates() or written != self._current_config()
        if changed:
            self.reload()
        return changed

    def alive(self) -> bool:
        return self._pid() is not None

    @contextmanager
    def held_open(self) -> Iterator[None]:
        """Hold the broker open between studies; raise ``DPADMMError`` if another process holds it."""
        with self._keeper_lock() as lock:
            for _ in range(5):  # is_held() of other processes takes the lock for a moment
                if _locked(lock, fcntl.LOCK_EX):
                    yield
                    return
                time.sleep(0.1)
            raise DPADMMError("another process (dpadmm server start) already runs this folder's broker")

    def is_held(self) -> bool:
        """Return whether another process holds the broker open."""
        with self._keeper_lock() as lock:
            return not _locked(lock, fcntl.LOCK_SH)

    def _keeper_lock(self) -> IO[bytes]:
        path = self._authority.folder / "authority" / "keeper-lock"
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb")

    def stop(self) -> None:
        with self._lock():
            self._stop()

    def _start(self) -> None:
        program = nats_server()
        self._write_config()
        if (pid := self._pid()) is not None:
            if self._reloaded(pid) and self._responds():
                return
            self._stop()  # it hangs, or listens on another address
        (self._authority.folder / "broker.pid").unlink(missing_ok=True)
        size_before = self._log_size()
        self._process = process = subprocess.Popen(
            [program, "-c", str(self._config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._authority.folder,
            start_new_session=True,  # Ctrl-C reaches only the server process, which stops the broker
        )
        _CHILDREN.append(process)
        _wait(lambda: process.poll() is not None or (self._pid() is not None and self._responds()))
        if process.poll() is None and self._responds():
            return
        self._stop()
        raise DPADMMError(self._reason(self._log_since(size_before)))

    def _stop(self) -> None:
        pid = self._pid()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if pid is not None and self._pid() == pid:
                _signal(pid, number)
                _wait(lambda: self._pid() != pid)
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # in case it has not written its process ID yet; harmless if it has ended
            process.wait()
        (self._authority.folder / "broker.pid").unlink(missing_ok=True)

    def _reloaded(self, pid: int) -> bool:
        size_before = self._log_size()
        if not _signal(pid, signal.SIGHUP):
            return False
        line = re.compile(rf"^\[{pid}\] \S+ \S+ \[\w+\] ({_RELOADED}|{_NOT_RELOADED})", re.MULTILINE)
        _wait(lambda: line.search(self._log_since(size_before)) is not None)
        # match whole lines, because the log contains names of clients
        return line.findall(self._log_since(size_before)) == [_RELOADED]

    def _responds(self) -> bool:
        """Return whether this folder's broker listens on its port and accepts the server's certificate."""
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

    def _reason(self, log: str) -> str:
        address, port = self._authority.settings.listen, self._port
        if "listen for websocket connections" in log:
            port = self._authority.settings.websocket_port or port
        endpoint = f"{address}:{port}"
        if "address already in use" in log:
            return (
                f"the broker cannot listen on {endpoint}: port {port} is in use by another program; stop "
                "that program, or choose another port (--port, or server.toml)"
            )
        if "cannot assign requested address" in log:
            return f"this machine has no address {address}: change listen in server.toml"
        if "permission denied" in log:
            return (
                f"this user may not listen on {endpoint}: choose a port of 1024 or above, or allow CAP_NET_BIND_SERVICE"
            )
        return f"the broker did not start on {endpoint}: see {self._log}"

    def _pid(self) -> int | None:
        """Return the process ID of this folder's running broker, verified by its command line."""
        _CHILDREN[:] = [child for child in _CHILDREN if child.poll() is None]
        try:
            pid = int((self._authority.folder / "broker.pid").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        return pid if pid > 1 and str(self._config) in _command_line(pid) else None

    def _find_port(self) -> None:
        """Use the requested port, or that of the running broker, which another process may have chosen."""
        self._port = self._requested_port or self.running_port() or self._authority.settings.port

    def running_port(self) -> int | None:
        if not self._config.exists() or not (self.alive() or self.is_held()):
            return None
        match = _LISTEN.search(self._config.read_text(encoding="utf-8"))
        return int(match[1]) if match else None

    def _current_config(self) -> str:
        return broker_config(self._authority, port=self._port)

    def _write_config(self) -> None:
        self._authority.renew_certificates()
        write_private(self._config, self._current_config().encode())

    def _log_size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def _log_since(self, size_before: int) -> str:
        try:
            with self._log.open("rb") as log:
                log.seek(size_before if size_before <= self._log_size() else 0)  # nats-server may have rotated it
                return log.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def _lock(self) -> AbstractContextManager[None]:
        return exclusive_lock(self._authority.folder / "authority" / "broker-lock")


def nats_server() -> str:
    """Return the path of nats-server, in this Python environment or on the PATH."""
    own = Path(sysconfig.get_path("scripts")) / "nats-server"
    path = str(own) if own.exists() else shutil.which("nats-server")
    if path is None:
        raise MissingPackagesError
    return path


def _command_line(pid: int) -> list[str]:
    """Return the command line of a process; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    if Path("/proc/self").exists():
        return []
    command = ["ps", "-o", "command=", "-p", str(pid)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.strip().split(" -c ")


def _locked(lock: IO[bytes], kind: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
        return True
    return False


def _signal(pid: int, number: int) -> bool:
    with suppress(OSError):
        os.kill(pid, number)
        return True
    return False


def _wait(done: Callable[[], bool]) -> None:
    end = time.monotonic() + _TIMEOUT
    while not done() and time.monotonic() < end:
        time.sleep(0.02)


MAX_PAYLOAD = 8 * 2**20

_TEXT = """\
# Generated by dpadmm whenever sites are approved or revoked: changes here are lost. Certificate of the broker:
# {fingerprint}
listen: {listen}
pid_file: {pid}
log_file: {log}
logfile_size_limit: 10MB
logfile_max_num: 5

tls {{
  cert_file: {certificate}
  key_file: {key}
  ca_file: {ca}
  verify_and_map: true
  min_version: "1.3"
  handshake_first: true
  timeout: 5
}}

max_payload: {max_payload}
max_connections: 2000
max_subscriptions: 1000
max_control_line: 1KB
write_deadline: "10s"
ping_interval: "10s"
ping_max: 2
no_header_support: true
{websocket}
{users}
"""

_WEBSOCKET = """
websocket {{
  listen: {listen}
  handshake_timeout: "5s"
  tls {{
    cert_file: {certificate}
    key_file: {key}
    ca_file: {ca}
    verify_and_map: true
    min_version: "1.3"
    timeout: 5
  }}
}}
"""


def broker_config(authority: Authority, *, port: int | None = None, now: datetime | None = None) -> str:
    """Return the configuration of a folder's broker, with all sites that may connect."""
    folder, settings = authority.folder, authority.settings
    address = f"[{settings.listen}]" if ":" in settings.listen else settings.listen
    files = {
        "certificate": _quoted(folder / "broker.pem"),
        "key": _quoted(folder / "broker.key"),
        "ca": _quoted(folder / "authority" / "ca.pem"),
    }
    websocket = ""
    if settings.websocket_port is not None:
        websocket = _WEBSOCKET.format(listen=_quoted(f"{address}:{settings.websocket_port}"), **files)
    server = folder / "broker.pem"
    return _TEXT.format(
        listen=_quoted(f"{address}:{port or settings.port}"),
        pid=_quoted(folder / "broker.pid"),
        log=_quoted(folder / "broker.log"),
        **files,
        # a renewed certificate changes the configuration, so the broker reloads it
        fingerprint=sha256(server.read_bytes()).hexdigest() if server.exists() else "none",
        max_payload=MAX_PAYLOAD,
        websocket=websocket,
        users=users_config(authority, now=now),
    )


def users_config(authority: Authority, *, now: datetime | None = None) -> str:
    """Return the users and their subjects, the part of the configuration that all brokers of a cluster need."""
    names = {authority.server_user: SERVER} | {user.user: user.name for user in authority.users(now=now)}
    users = "\n".join(_user(user, name) for user, name in names.items())
    return f"authorization {{\n  timeout: 5\n  users: [\n{users}\n  ]\n}}"


def _user(user: str, name: str) -> str:
    publish, subscribe = map(_quoted, subjects_of(name))
    permissions = f"{{publish: [{publish}], subscribe: [{subscribe}]}}"
    return f"    {{user: {_quoted(user)}, permissions: {permissions}}}"


def _quoted(text: str | Path) -> str:
    return json.dumps(str(text), ensure_ascii=False)
