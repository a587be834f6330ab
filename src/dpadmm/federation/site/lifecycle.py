"""The site's participation in a study: one state, derived from the owner's decision, the ledger, and an obstacle.

``site status`` and ``site leave`` and the messages to the server follow from this state.
"""

from __future__ import annotations

from enum import StrEnum


class Participation(StrEnum):
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


_CLOSED = {
    "finish": Participation.FINISHED,
    "end": Participation.ENDED,
    "close": Participation.LEFT,
    "restore": Participation.CHARGED,
}
"""The state that follows from the kind of record that closed a study in the ledger."""


def participation(decision: str, ending: str, obstacle: str | None) -> Participation:
    """Return the site's participation in a study.

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
        return Participation(decision)
    return Participation.ACTIVE if obstacle is None else Participation.BLOCKED


CLOSED_TEXT = {
    Participation.FINISHED: "Finished: all rounds are over",
    Participation.ENDED: "Ended by the server",
    Participation.LEFT: "Left",
    Participation.CHARGED: "Closed by a restore of the ledger, which charged its whole budget",
}
