"""States of a study and of its sites at the server: one function for each, and one word for each state.

The page, ``status``, ``health``, alarms and events use these words (docs/reference/states.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from dpadmm.federation.protocol import WITHHELD

MAX_NAMED = 5
"""Sites that a headline names; it counts the others."""


CANNOT_CONTINUE = "the study cannot continue"
"""Beginning of the error of a study that too few sites can answer."""


def refusal_text(code: str) -> str:
    """Describe the refusal of a site. If the code withholds the reason, refer to the site's log."""
    return "refused; see the site's log" if code == WITHHELD else f"refused: {code}"


class StudyState(StrEnum):
    """State of a study."""

    PROPOSED = "proposed"
    WAITING = "waiting"
    RUNNING = "running"
    STALLED = "stalled"
    FINISHED = "finished"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    ENDED = "ended"


class SiteState(StrEnum):
    """State of a site in a study that is being served."""

    PRESENT = "present"
    LATE = "late"
    MISSING = "missing"
    CONNECTED = "connected"
    SILENT = "silent"
    REFUSED = "refused"
    EXCLUDED = "excluded"
    REVOKED = "revoked"


FAILURES = (StudyState.STALLED, StudyState.STOPPED, StudyState.INTERRUPTED)
"""States in which a study makes no progress until someone acts."""


def study_state(*, finished: bool, ended: bool, error: str, served: bool, stalled: bool, started: bool) -> StudyState:
    """Return the state of a study.

    Parameters
    ----------
    finished
        All rounds are closed.
    ended
        It was ended for good before its last round.
    error
        Error that ended the server, if one did.
    served
        A server runs the study.
    stalled
        The open round lacks answers that it needs.
    started
        Round 1 is open or closed.

    Examples
    --------
    >>> str(study_state(finished=False, ended=False, error="", served=True, stalled=True, started=True))
    'stalled'
    """
    if finished:
        return StudyState.FINISHED
    if ended:
        return StudyState.ENDED
    if error:
        return StudyState.STOPPED
    if not served:
        return StudyState.INTERRUPTED
    if stalled:
        return StudyState.STALLED
    return StudyState.RUNNING if started else StudyState.WAITING


def site_state(last: str, *, silent: bool) -> SiteState:
    """Return the state of a site from its last answer (``unseen`` without one) and its heartbeats."""
    if last in (SiteState.REFUSED, SiteState.EXCLUDED, SiteState.REVOKED):
        return SiteState(last)
    if silent:
        return SiteState.SILENT
    return SiteState.CONNECTED if last == "unseen" else SiteState(last)


def headline(status: Mapping[str, Any]) -> str:
    """Describe the state of a study in one line, from its snapshot."""
    state, done, total = status["state"], status["rounds_done"], status["study"]["n_rounds"]
    sites, where = status["sites"], f"after round {done} of {total}" if done else "before round 1"
    if state == StudyState.PROPOSED:
        return "Proposed: no server has run this study yet"
    if state == StudyState.WAITING:
        present = sum(site["state"] == SiteState.PRESENT for site in sites)
        return f"Waiting for sites: {present} of {len(sites)} present, {status['quorum']} needed"
    if state == StudyState.RUNNING:
        return f"Running: round {status['round']} of {total}"
    if state == StudyState.STALLED:
        return f"Stalled in round {status['round']} of {total}: {_stalling(status)}"
    if state == StudyState.FINISHED:
        return f"Finished: {done} of {total} rounds"
    if state == StudyState.ENDED:
        return f"Ended for good {where}"
    return f"Stopped {where}: {status['error']}" if state == StudyState.STOPPED else f"Interrupted {where}"


def _stalling(status: Mapping[str, Any]) -> str:
    states = {site["name"]: site["state"] for site in status["sites"]}
    named = [f"{name} {states[name]}" for name in status["stalled"][:MAX_NAMED]]
    more = len(status["stalled"]) - len(named)
    return ", ".join([*named, *([f"{more} more"] if more else [])])
