"""What an owner decided about studies: a file for each, beside the ``site.toml``, with the date.

A running agent looks here for what was accepted and left since it started; nobody else can write here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from dpadmm.errors import DataError, DpadmmError
from dpadmm.federation.private_files import check_unchanged_by_others
from dpadmm.files import atomic_file
from dpadmm.study import Study, study_from

FORMAT = "dpadmm-decision/1"
MOST_BYTES = 2**26
DECISIONS = ("accepted", "declined", "left")
STATUS = "status.json"
"""Beside the ``site.toml``: what an agent that runs has taken notice of."""


class Decision(NamedTuple):
    """What the owner said of a study, and when."""

    decision: str
    at: str
    study: Study


def decide(folder: Path, study: Study, decision: str) -> Decision:
    """Record a decision; the newest counts."""
    assert decision in DECISIONS
    made = Decision(decision, datetime.now(UTC).isoformat(timespec="seconds"), study)
    table = {"format": FORMAT, "decision": decision, "at": made.at, "study": study.as_json()}
    place = folder / "studies"
    place.mkdir(mode=0o700, exist_ok=True)
    with atomic_file(place / f"{study.hash}.json") as out:
        out.write(json.dumps(table, indent=2).encode() + b"\n")
    return made


def decisions(folder: Path, on_problem: Callable[[DpadmmError], None] | None = None) -> list[Decision]:
    """All decisions, in the order of their dates; files that are none are told, or refused.

    Whoever can write here can accept studies, up to the owner's limits; so nobody else may.
    """
    found = []
    for path in sorted((folder / "studies").glob("*.json")):
        try:
            for place in (folder, path.parent, path):
                check_unchanged_by_others(place)
            found.append(_decision(path))
        except DpadmmError as problem:
            if on_problem is None:
                raise
            on_problem(problem)
    return sorted(found, key=lambda each: (each.at, each.study.hash))


def _decision(path: Path) -> Decision:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError("it is too large")
        table: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if table["format"] != FORMAT or table["decision"] not in DECISIONS:
            raise ValueError("its format is unknown")
        study = study_from(table["study"], str(path))
        if f"{study.hash}.json" != path.name:
            raise ValueError("its name is not the hash of its study")
        return Decision(table["decision"], str(table["at"]), study)
    except DpadmmError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as problem:
        raise DataError(f"{path}: is no decision about a study ({problem}); move it away") from None
