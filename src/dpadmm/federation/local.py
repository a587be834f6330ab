"""Sites on this machine, each in its own process of the installed program: for the demo, tests and benchmarks."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dpadmm.accounting.calibration import mu_from_epsilon
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.joining import PendingJoin
from dpadmm.sites.site import Site, read_site
from dpadmm.studies.roster import RosterEntry
from dpadmm.studies.study import Study

SITE_TOML = """\
format = "dpadmm-site/2"
ledger = "ledger"

[data]
table = "{table}"
label = "{label}"

[person]
rows = 1

[limits]
epsilon = {epsilon!r}
delta = {delta!r}
methods = ["pgd", "newton", "dp_admm", "dp_sgd", "statistics", "evaluation"]
losses = ["logistic"]
max_rounds = {max_rounds}
min_rows = 20
"""

SECURE_AGGREGATION = """
[secure_aggregation]
allow = true
min_honest_sites = 2
min_withstood = 1
epsilon_if_others_collude = {epsilon!r}
"""


def new_site(folder: Path, study: Study, *, table: str, epsilon: float) -> Site:
    """Create the ``site.toml`` and the ledger of a site in a folder with a table, with limits for a study."""
    assert study.label is not None
    label, delta, rounds = study.label.column, float(study.training.delta), study.training.planned_rounds
    text = SITE_TOML.format(table=table, label=label, epsilon=float(epsilon), delta=delta, max_rounds=rounds)
    if study.training.min_honest_sites is not None:  # √h times the μ, with a margin of 1%
        mu = math.sqrt(study.training.min_honest_sites) * mu_from_epsilon(epsilon, delta)
        text += SECURE_AGGREGATION.format(epsilon=min(100.0, round(1.01 * float(exact_epsilon(mu, delta)), 4)))
    (folder / "site.toml").write_text(text, encoding="utf-8")
    site = read_site(folder / "site.toml")
    site.begin()
    return site


def invite(authority: Authority, site: Site, name: str, *, url: str | None = None) -> None:
    """Join with a token, without the join service between them. The site connects to ``url`` if given."""
    token, pending = authority.create_token(name), PendingJoin(site.path.parent)
    request = pending.request(name)
    invitation = authority.redeem(token.id, token.proof(request.public_key), request)
    pending.finish(invitation if url is None else replace(invitation, url=url))


def with_keys(draft: Study, sites: Mapping[str, Site]) -> Study:
    """Return the study of a draft. With secure aggregation, every site makes a key for its roster."""
    if draft.training.min_honest_sites is None:
        return draft
    return replace(draft, roster=tuple(RosterEntry(name, site.make_key().hex()) for name, site in sites.items()))


def program() -> list[str]:
    """Return the command that runs ``dpadmm``."""
    own = Path(sysconfig.get_path("scripts")) / "dpadmm"
    return [str(own)] if own.exists() else [sys.executable, "-c", "from dpadmm.cli import main; main()"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class SiteSubprocess:
    """A process that runs ``dpadmm site run``; call ``end``."""

    def __init__(self, site: Site, *, environment: dict[str, str] | None = None) -> None:
        self._is_terminating = False
        self._output = site.path.parent / "output.txt"
        with self._output.open("ab") as out:
            self.process = subprocess.Popen(
                [*program(), "site", "run", "--quiet", "--site", str(site.path)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C reaches only the parent, which ends it
            )

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace")

    def running(self) -> bool:
        return self.process.poll() is None

    def peak_memory(self) -> float | None:
        """Return the peak resident memory in MB, or None if the system does not report it."""
        with suppress(OSError, ValueError, StopIteration):
            lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines()
            return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024
        return None

    def kill(self) -> None:
        """Kill the process, like a power cut."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        """Send SIGTERM once: a second signal would interrupt the clean-up."""
        if self.running() and not self._is_terminating:
            self._is_terminating = True
            self.process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        """Terminate the process, kill it after 20 s, and return its exit code."""
        self.terminate()
        try:
            return self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.returncode
