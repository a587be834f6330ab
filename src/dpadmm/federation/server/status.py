"""Studies in a server's folder: journals, status of each study, and alarms of the server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.errors import StudyError
from dpadmm.federation.health import (
    STATUS,
    Alarm,
    ServerStatus,
    Status,
    days_left,
    is_live,
    read_status,
    server_alarms,
    study_alarms,
)
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.server.journal import Journal
from dpadmm.federation.server.sums import snapshot_of_journal
from dpadmm.federation.states import FAILURES, StudyState, headline, study_state

SHORT_HASH = 16
"""Characters of a study's hash that name it in commands, and its folder."""


def journal_of(folder: Path, study: str) -> Path:
    return folder / "studies" / study[:SHORT_HASH] / "journal.sqlite"


def journals(folder: Path) -> list[Path]:
    return sorted((folder / "studies").glob("*/journal.sqlite"))


def status_of(authority: Authority, journal: Path) -> Status:
    """Return the status of a study, from the process that serves it or else from its journal."""
    with Journal.open(journal, read_only=True) as opened:
        status = snapshot_of_journal(opened)
    live = read_status(journal.with_name(STATUS), ServerStatus)
    served, expires = is_live(live), {site.name: site.expires for site in authority.sites()}
    if live is not None:
        last = live.pop("snapshot")
        last_seen = {site["name"]: site["last_seen"] for site in last["sites"]}
        for site in status["sites"]:
            site["last_seen"] = last_seen.get(site["name"])
        status |= last if served else _unserved(status, live["at"], last["error"])
    elif _is_proposed(status["state"], status["rounds_done"]):
        status |= {"state": str(StudyState.PROPOSED), "failing": False}
        status |= {"headline": headline(status)}
    if not served:
        broker = read_status(authority.folder / STATUS, ServerStatus)
        replies = broker.get("decisions", {}) if broker is not None and is_live(broker) else {}
        for site in status["sites"]:
            site["decision"] = replies.get(status["study"]["hash"], {}).get(site["name"])
    for site in status["sites"]:
        site["certificate_days_left"] = days_left(expires[site["name"]]) if site["name"] in expires else None
    return status | {"served": served, "live": live}


def _is_proposed(state: str, rounds_done: int) -> bool:
    """Return whether a study that has no status of a server was never run."""
    return state == StudyState.INTERRUPTED and rounds_done == 0


def _unserved(status: Status, at: str, error: str | None) -> Status:
    """Return the changes to the status of a study whose server stopped at ``at``, with or without an error."""
    if status["state"] in (StudyState.FINISHED, StudyState.ENDED):
        return {}
    state = study_state(finished=False, ended=False, error=error or "", served=False, stalled=False, started=False)
    changes = {"state": str(state), "failing": state in FAILURES, "error": error, "since": at}
    return changes | {"headline": headline(status | changes)}


def overview(folder: Path) -> list[Status]:
    """Return a summary of each study in a server's folder, the latest first."""
    return sorted(map(_summary, journals(folder)), key=lambda summary: str(summary["begun_at"]), reverse=True)


@lru_cache(maxsize=1000)
def _planned_epsilon(mu_squared: float, delta: float) -> float:
    return float(exact_epsilon(mu_squared**0.5, delta))


def _summary(journal: Path) -> Status:
    live = read_status(journal.with_name(STATUS), ServerStatus)
    last = {} if live is None else live["snapshot"]
    current = last if is_live(live) else {}
    with Journal.open(journal, read_only=True) as opened:
        study, done, (begun_at, last_round_at) = opened.study, opened.rounds_done, opened.dates()
        n_sites, ended = len(opened.members), opened.ended_at is not None
    n_rounds = study.training.planned_rounds
    finished, error = done == n_rounds, last.get("error") or ""
    state = study_state(finished=finished, ended=ended, error=error, served=False, stalled=False, started=done > 0)
    planned = _planned_epsilon(float(study.terms.plan.mu_squared()), float(study.training.delta))
    if live is None and _is_proposed(state, done):
        state = StudyState.PROPOSED
    return {
        "name": study.name,
        "hash": study.hash,
        "state": current.get("state", str(state)),
        "rounds_done": done,
        "n_rounds": n_rounds,
        "sites_present": sum(site["state"] == "present" for site in current["sites"]) if current else None,
        "n_sites": n_sites,
        "begun_at": begun_at,
        "last_round_at": last_round_at,
        "served": bool(current),
        "seconds_left": current.get("seconds_left"),
        "median_seconds": last.get("median_seconds"),
        "epsilon": max((site["epsilon"] for site in last["sites"]), default=None) if last else None,
        "planned_epsilon": planned,
    }


def page_addresses(folder: Path) -> list[str]:
    """Return the addresses of the status page of the running ``server start``, or else of a running ``server run``."""
    for path in (folder / STATUS, *(journal.with_name(STATUS) for journal in journals(folder))):
        status = read_status(path, ServerStatus)
        if status is not None and is_live(status) and status.get("pages"):
            return list(status["pages"])
    raise StudyError("no status page is running; to start it: dpadmm server start")


def certificates_of(authority: Authority) -> dict[str, datetime]:
    """Return the expiry dates of all certificates in use, by name."""
    sites = {site.name: site.expires for site in authority.sites() if not site.revoked}
    return sites | {"the authority": authority.certificate.not_valid_after_utc, **authority.own_certificates()}


def alarms_of(authority: Authority, studies: Sequence[Status]) -> list[Alarm]:
    """Return all alarms of these studies, with their names, and of the server's folder."""
    named = [
        alarm._replace(text=f"{status['study']['name']}: {alarm.text}")
        for status in studies
        for alarm in study_alarms(status, authority.folder)
    ]
    return [*named, *server_alarms(authority.folder, certificates_of(authority), studies=bool(studies))]
