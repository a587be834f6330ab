"""The roster: names and public keys of the sites in a study with secure aggregation, part of its hash."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dpadmm.errors import StudyError
from dpadmm.parameters.fields import check_names

MAX_SITES = 1000
"""Limits the number of masks, one per pair of sites."""

_NAME, _KEY = re.compile("[a-z0-9][a-z0-9-]{0,39}"), re.compile("[0-9a-f]{64}")


class RosterEntry(NamedTuple):
    """Name of a site, and its X25519 public key for this study (64 hexadecimal digits)."""

    name: str
    key: str


def roster_from(table: object) -> tuple[RosterEntry, ...]:
    """Build the roster from ``[[roster]]`` of a study file."""
    if not isinstance(table, Sequence) or isinstance(table, str):
        raise StudyError("roster must be a list of tables, [[roster]] with name and key")
    entries = []
    for entry in table:
        if isinstance(entry, RosterEntry):
            entries.append(entry)
            continue
        if not isinstance(entry, Mapping) or set(entry) != {"name", "key"}:
            check_names(entry if isinstance(entry, Mapping) else {}, RosterEntry._fields, "roster")
            raise StudyError("roster: every entry needs exactly a name and a key")
        entries.append(RosterEntry(entry["name"], entry["key"]))
    check_roster(entries)
    return tuple(entries)


def check_roster(roster: Sequence[RosterEntry]) -> None:
    """Raise StudyError if a name or key is invalid or occurs twice."""
    if len(roster) > MAX_SITES:
        raise StudyError(f"roster: at most {MAX_SITES:,} sites are supported, not {len(roster):,}")
    for name, key in roster:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise StudyError(
                f"roster: {name!r:.60} is not a valid site name; use lowercase letters, digits and hyphens"
            )
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise StudyError(f"roster: the key of {name} must be 64 hexadecimal digits; copy it from the offer")
    for what, values in (("name", [entry.name for entry in roster]), ("key", [entry.key for entry in roster])):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            sites = twice if what == "name" else " and ".join(entry.name for entry in roster if entry.key == twice)
            remedy = "use one offer per site" if what == "name" else "each site must generate its own key"
            raise StudyError(f"roster: two entries have the same {what} ({sites}); {remedy}")


def roster_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``roster``."""
    entry = {"name": {"type": "string", "pattern": _NAME.pattern}, "key": {"type": "string", "pattern": _KEY.pattern}}
    about = "With secure aggregation: names of the sites, and their public keys for this study."
    properties = {"type": "object", "properties": entry, "required": ["name", "key"], "additionalProperties": False}
    return {"description": about, "type": "array", "maxItems": MAX_SITES, "items": properties}
