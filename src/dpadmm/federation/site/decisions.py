"""The owner's decisions about studies.

Each decision is a dated file beside the ``site.toml``. A running agent, which holds the ledger, acts on new
decisions; if none runs, the decision takes effect at once.
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
from dpadmm.studies.study import Study, study_from
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
    """Record a decision, which replaces an earlier one about the same study."""
    assert decision in DECISIONS
    table = {"format": FORMAT, "decision": decision, "at": now_text(), "study": study.as_json()}
    place = folder / "studies"
    place.mkdir(mode=0o700, exist_ok=True)
    with atomic_file(place / f"{study.hash}.json") as out:
        out.write(json.dumps(table, indent=2).encode() + b"\n")


def decisions(folder: Path, on_problem: Callable[[DPADMMError], None] | None = None) -> list[Decision]:
    """All decisions by date; ``on_problem`` receives unusable files, which otherwise raise.

    Whoever can write these files can accept studies, so files that others may change are refused.
    """
    found = []
    for path in sorted((folder / "studies").glob("*.json")):
        try:
            for place in (folder, path.parent, path):
                check_unchanged_by_others(place)
            found.append(_decision(path))
        except DPADMMError as problem:
            if on_problem is None:
                raise
            on_problem(problem)
    return sorted(found, key=lambda each: (each.at, each.study.hash))


def _decision(path: Path) -> Decision:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError("it is too large")
        table: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if table["format"] != FORMAT or table["decision"] not in DECISIONS:
            raise ValueError("its format is unknown")
        study = study_from(table["study"], str(path))
        if f"{study.hash}.json" != path.name:
            raise ValueError("its name is not the hash of its study")
        return Decision(table["decision"], str(table["at"]), study)
    except DPADMMError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as problem:
        raise DataError(f"{path}: not a decision about a study ({problem}); move the file away") from None


AGENT_TIMEOUT = 15.0
"""Seconds to wait for a running agent."""


def accept(site: Site, study: Study, rows: PrivateRows | None = None) -> LedgerState:
    """Enrol a study, by the running agent if there is one; returns the new state of the ledger.

    ``rows`` are the rows in the encoding of the study, if they have been encoded before.
    """
    try:
        with site.guard(rows=rows) as guard:
            guard.enrol(study)
    except RefusalError as refusal:
        if refusal.code != "ledger-locked":
            raise
        if rows is None:
            site.rehearse(study, read_ledger(site.ledger))  # raises what the agent would refuse
        decide(site.path.parent, study, "accepted")
        return _wait_for_agent(site, lambda state: study.hash in state.accounts)
    decide(site.path.parent, study, "accepted")
    return read_ledger(site.ledger)


def decline(site: Site, study: Study) -> tuple[LedgerState, bool]:
    """Decline a study: it gets no answers, and its reservation is released.

    Returns the new state of the ledger, and whether anything changed. An enrolled study is left.
    """
    made = {each.study.hash: each.kind for each in decisions(site.path.parent)}
    before, state = made.get(study.hash), read_ledger(site.ledger)
    if study.hash not in state.accounts:
        if before == "declined":
            return state, False
        decide(site.path.parent, study, "declined")
        if before == "accepted":  # a running agent may be about to enrol it
            state = _wait_for_agent(site, lambda _: _agent_knows(site, study.hash))
        if study.hash not in state.accounts:
            return state, True
    elif state.accounts[study.hash].closed:
        return state, False
    return leave(site, study.hash, study), True


def leave(site: Site, hash: str, study: Study | None = None) -> LedgerState:
    """Leave a study, by the running agent if there is one; returns the new state of the ledger."""
    known = [made.study for made in decisions(site.path.parent) if made.study.hash == hash]
    accepted = [study] if study is not None else known
    try:
        with site.guard() as guard:
            guard.leave(hash)
    except RefusalError as refusal:
        if refusal.code != "ledger-locked" or not accepted:
            raise
        decide(site.path.parent, accepted[0], "left")
        return _wait_for_agent(site, lambda state: state.accounts[hash].closed)
    for study in accepted:
        decide(site.path.parent, study, "left")
    return read_ledger(site.ledger)


def close_unknown(folder: Path, state: LedgerState) -> None:
    """Close accepted studies that a restored ledger does not have: their budget is charged, as if it was spent."""
    for made in decisions(folder):
        if made.kind == "accepted" and made.study.hash not in state.accounts:
            decide(folder, made.study, "left")


def _agent_knows(site: Site, hash: str) -> bool:
    """Whether the process that answers for the site, if any, knows that a study is declined."""
    with (site.ledger / MARK).open("rb") as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True  # no process holds the ledger; the next one reads the decision
        except BlockingIOError:
            pass
    with suppress(StudyError):
        seen = read_status(site.path.parent / STATUS)
        return seen is not None and any(
            each["hash"] == hash and each["state"] == "declined" for each in seen["studies"]
        )
    return False


def _wait_for_agent(site: Site, done: Callable[[LedgerState], bool]) -> LedgerState:
    end = time.monotonic() + AGENT_TIMEOUT
    while True:
        state = read_ledger(site.ledger)
        if done(state):
            return read_ledger(site.ledger)
        if time.monotonic() > end:
            raise StudyError(
                "the decision is recorded, but the process that holds the ledger did not act on it in time; "
                f"see {site.path.parent / 'agent.log'}. If you changed site.toml, restart the agent, which "
                "reads its limits at the start"
            )
        time.sleep(0.2)
