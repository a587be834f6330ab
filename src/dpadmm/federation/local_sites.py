"""Sites of a federation on this machine, for demonstrations and tests: folders, certificates, processes.

Everything is done by what the commands ``dpadmm agent`` and ``dpadmm aggregator`` use, and agents are real
processes of the installed program.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import sysconfig
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dpadmm.federation.certificates import Authority
from dpadmm.federation.joining import join, make_request
from dpadmm.federation.site_studies import decide
from dpadmm.site import Site, read_site
from dpadmm.study import Study

SITE_TOML = """\
format = "dpadmm-site/1"
ledger = "ledger"

[data]
table = "{table}"
label = "{label}"

[person]
rows = 1

[limits]
epsilon = {epsilon!r}
delta = {delta!r}
methods = ["dp_admm", "dp_sgd"]
losses = ["logistic"]
max_rounds = {max_rounds}
min_rows = 20
"""


def new_site(folder: Path, study: Study, *, table: str, epsilon: float) -> Site:
    """A site in a folder that has a table: its ``site.toml`` with limits for a study, and its ledger."""
    assert study.label is not None
    settings = study.settings
    text = SITE_TOML.format(
        table=table,
        label=study.label.column,
        epsilon=float(epsilon),
        delta=float(settings.delta),
        max_rounds=settings.n_rounds,
    )
    (folder / "site.toml").write_text(text, encoding="utf-8")
    site = read_site(folder / "site.toml")
    site.begin()
    return site


def invited(authority: Authority, site: Site, name: str, *, url: str | None = None) -> None:
    """Key, request, approval and invitation; with ``url``, the site connects there."""
    folder = site.path.parent
    invitation = authority.approve(make_request(folder, name))
    join(folder, invitation if url is None else replace(invitation, url=url))


def accepted(site: Site, study: Study) -> None:
    """The owner says yes: the study is enrolled, and what it costs is reserved."""
    with site.guard() as guard:
        guard.enrol(study)
    decide(site.path.parent, study, "accepted")


def program() -> list[str]:
    """The installed command."""
    own = Path(sysconfig.get_path("scripts")) / "dpadmm"
    return [str(own)] if own.exists() else [sys.executable, "-c", "from dpadmm.cli import main; main()"]


def free_port() -> int:
    """A port that is free at this moment."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


class AgentProcess:
    """``dpadmm agent run`` of a site; ``end`` it, or it is killed when it is forgotten."""

    def __init__(self, site: Site, *, environment: dict[str, str] | None = None) -> None:
        self._asked = False
        self._output = site.path.parent / "output.txt"
        with self._output.open("ab") as out:
            self.process = subprocess.Popen(
                [*program(), "agent", "run", "--quiet", "--site", str(site.path)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C is for who started it, who then ends it
            )

    @property
    def said(self) -> str:
        """What it printed."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    def running(self) -> bool:
        return self.process.poll() is None

    def peak_memory(self) -> float | None:
        """Its largest resident memory so far, in MB; None where the system does not tell."""
        with suppress(OSError, ValueError, StopIteration):
            lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines()
            return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024
        return None

    def kill(self) -> None:
        """At once, as a power cut would."""
        self.process.kill()
        self.process.wait()

    def ask_to_end(self) -> None:
        """Once: a second signal would not let it end in order."""
        if self.running() and not self._asked:
            self._asked = True
            self.process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        """Ask it to end, insist after a while; its exit code."""
        self.ask_to_end()
        try:
            return self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.returncode
