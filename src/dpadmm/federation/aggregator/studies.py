"""The coordinator of a study, by what its sites trust, and its status from the journal alone."""

from __future__ import annotations

from logging import Logger
from typing import Any

from dpadmm.federation.aggregator.coordinator import Coordinator, Uploads
from dpadmm.federation.aggregator.journal import Journal
from dpadmm.federation.aggregator.sums import Sums


def coordinator_of(journal: Journal, log: Logger | None = None) -> Coordinator:
    """The coordinator of a study: what sites send is summed under masks, if the study says so."""
    kind = Uploads if journal.study.terms.masking is None else Sums
    return kind(journal, log)


def snapshot_of_journal(journal: Journal) -> dict[str, Any]:
    """A snapshot from the journal alone, of a run that may be active in another process."""
    run = coordinator_of(journal)
    for member in run.members.values():
        if member.answered and member.state == "unseen":
            member.state = "present" if member.answered[-1] == run.rounds_done else "absent"
    return run.snapshot() | {"round": 0 if run.done else run.rounds_done + 1}
