"""The owner's decisions about studies.

Each decision is a dated file in ``studies``, next to ``site.toml``. If the site's process runs, it holds the ledger and
applies new decisions. Otherwise a decision is applied immediately.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from dpadmm.errors import DataError, DPADMMError, RefusalError, StudyError
from dpadmm.federation.health import STATUS, now_text, read_status
from dpadmm.federation.identity.private_files import check_unchanged_by_others
from dpadmm.files.atomic import atomic_file
from dpadmm.sites.site import Site
from dpadmm.studies.reading import study_from
from dpadmm.studies.study import Study
from dpadmm.trusted.guard import PrivateRows
from dpadmm.trusted.ledger import MARK, LedgerState, read_ledger

FORMAT = "dpadmm-decision/1"
MAX_BYTES = 2**26
DECISIONS = ("accepted", "declined", "left")


class Decision(NamedTuple):
    """A decision of the owner about a study: ``kind`` is one of ``DECISIONS``."""

    kind: str
    at: str
    study: Study


def decide(folder: Path, study: Study, decision: str) -> None:
    """Record a decision. It replaces an earlier one about the same study."""
    assert decision in DECISIONS
    table = {"format": FORMAT, "decision": decision, "at": now_text(), "study": study.as_json()}
    directory = folder / "studies"
    directory.mkdir(mode=0o700, exist_ok=True)
    with atomic_file(directory / f"{study.hash}.json") as out:
        out.write(json.dumps(table, indent=2).encode() + b"\n")


def decisions(folder: Path, on_problem: Callable[[DPADMMError], None] | None = None) -> list[Decision]:
    """Return all decisions by date. ``on_problem`` receives the errors of unusable files, which otherwise raise.

    Write access to these files allows accepting studies, so files that other users can change are refused.
    """
    result = []
    for path in sorted((folder / "studies").glob("*.json")):
        try:
            for protected in (folder, path.parent, path):
                check_unchanged_by_others(protected)
            result.append(_decision(path))
        except DPADMMError as problem:
            if on_problem is None:
                raise
            on_problem(problem)
    return sorted(result, key=lambda decision: (decision.at, decision.study.hash))


def _decision(path: Path) -> Decision:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError("too large")
        table: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if table["format"] != FORMAT or table["decision"] not in DECISIONS:
            raise ValueError("unknown format")
        study = study_from(table["study"], str(path))
        if f"{study.hash}.json" != path.name:
            raise ValueError("the file name is not the hash of the study")
        return Decision(table["decision"], str(table["at"]), study)
    except DPADMMError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as problem:
        raise DataError(f"{path}: not a decision about a study ({problem}); move the file away") from None


PROCESS_TIMEOUT = 15.0
"""Seconds to wait until the site's running process applies a decision."""


def accept(site: Site, study: Study, rows: PrivateRows | None = None) -> LedgerState:
    """Enrol a study, through the site's process if it runs, and return the new state of the ledger.

    ``rows`` are the encoded rows, if the caller has them.
    """
    try:
        with site.guard(rows=rows) as guard:
            guard.enrol(study)
    except RefusalError as refusal:
        if refusal.code != "ledger-locked":
            raise
        if rows is None:
            site.dry_run(study, read_ledger(site.ledger))  # raises the refusal of the running process
        decide(site.path.parent, study, "accepted")
        return _wait_for_process(site, lambda state: study.hash in state.accounts)
    decide(site.path.parent, study, "accepted")
    return read_ledger(site.ledger)


def decline(site: Site, study: Study) -> tuple[LedgerState, bool]:
    """Decline a study, or leave it if it is enrolled: it gets no answers, and its reservation is released.

    Returns the new state of the ledger, and whether it changed.
    """
    kinds = {decision.study.hash: decision.kind for decision in decisions(site.path.parent)}
    before, state = kinds.get(study.hash), read_ledger(site.ledger)
    if study.hash not in state.accounts:
        if before == "declined":
            return state, False
        decide(site.path.parent, study, "declined")
        if before == "accepted":  # the running process may be about to enrol it
            state = _wait_for_process(site, lambda _: _is_declined(site, study.hash))
        if study.hash not in state.accounts:
            return state, True
    elif state.accounts[study.hash].closed:
        return state, False
    return leave(site, study.hash, study), True


def leave(site: Site, hash: str, study: Study | None = None) -> LedgerState:
    """Leave a study, through the site's process if it runs, and return the new state of the ledger."""
    recorded = [decision.study for decision in decisions(site.path.parent) if decision.study.hash == hash]
    accepted = [study] if study is not None else recorded
    try:
        with site.guard() as guard:
            guard.leave(hash)
    except RefusalError as refusal:
        if refusal.code != "ledger-locked" or not accepted:
            raise
        decide(site.path.parent, accepted[0], "left")
        return _wait_for_process(site, lambda state: state.accounts[hash].closed)
    for study in accepted:
        decide(site.path.parent, study, "left")
    return read_ledger(site.ledger)


def close_unknown(folder: Path, state: LedgerState) -> None:
    """Close accepted studies that a restored ledger does not contain. The restore charged their whole budget."""
    for decision in decisions(folder):
        if decision.kind == "accepted" and decision.study.hash not in state.accounts:
            decide(folder, decision.study, "left")


def _is_declined(site: Site, hash: str) -> bool:
    """Return whether the site's process, if it runs, has applied the decision to decline a study."""
    with (site.ledger / MARK).open("rb") as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True  # no process holds the ledger, and the next one reads the decision
        except BlockingIOError:
            pass
    with suppress(StudyError):
        status = read_status(site.path.parent / STATUS)
        return status is not None and any(
            study["hash"] == hash and study["state"] == "declined" for study in status["studies"]
        )
    return False


def _wait_for_process(site: Site, done: Callable[[LedgerState], bool]) -> LedgerState:
    end = time.monotonic() + PROCESS_TIMEOUT
    while True:
        state = read_ledger(site.ledger)
        if done(state):
            return read_ledger(site.ledger)
        if time.monotonic() > end:
            raise StudyError(
                "the decision is recorded, but the site's running process did not apply it in time; see "
                f"{site.path.parent / 'site.log'}. If you changed site.toml, restart dpadmm site run, which reads "
                "limits only at the start"
            )
        time.sleep(0.2)
