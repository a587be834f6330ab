"""The state of a study at a site: derived in one place from the owner's decision, the ledger, and an obstacle.

``agent status``, ``agent health``, ``agent leave`` and the messages to the server follow from this state.
"""

from __future__ import annotations

from enum import StrEnum


class StudyState(StrEnum):
    """An accepted study is active or blocked until it is closed; a closed study never opens again."""

    ACTIVE = "active"
    BLOCKED = "blocked"
    """Accepted, but requests are refused or ignored: an alarm, unless an alarm of the whole site covers it."""
    FINISHED = "finished"
    """All rounds are over."""
    ENDED = "ended"
    """The server ended the study before its last round."""
    LEFT = "left"
    CHARGED = "charged"
    """A restore of the ledger charged the whole reservation and closed the study."""
    DECLINED = "declined"

    @property
    def is_closed(self) -> bool:
        return self in _CLOSED.values()


_CLOSED = {
    "finish": StudyState.FINISHED,
    "end": StudyState.ENDED,
    "close": StudyState.LEFT,
    "restore": StudyState.CHARGED,
}
"""The state that follows from the kind of record that closed a study in the ledger."""


def study_state(decision: str, ending: str, obstacle: str | None) -> StudyState:
    """Return the state of a study.

    Parameters
    ----------
    decision : str
        The owner's decision: accepted, declined or left.
    ending : str
        The kind of record that closed the study in the ledger; empty if it is open or unknown there.
    obstacle : str or None
        Code of the reason why requests are not answered now.
    """
    if ending:
        return _CLOSED[ending]
    if decision != "accepted":
        return StudyState(decision)
    return StudyState.ACTIVE if obstacle is None else StudyState.BLOCKED


CLOSED_TEXT = {
    StudyState.FINISHED: "Finished: all rounds are over",
    StudyState.ENDED: "Ended by the server",
    StudyState.LEFT: "Left",
    StudyState.CHARGED: "Closed by a restore of the ledger, which charged its whole budget",
}
