"""The sites of a study with secure aggregation: names and public keys, which are part of its hash."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dpadmm.errors import StudyError
from dpadmm.parameters.fields import check_names

MOST_SITES = 1000
"""Every pair of sites shares a mask."""

_NAME, _KEY = re.compile("[a-z0-9][a-z0-9-]{0,39}"), re.compile("[0-9a-f]{64}")


class RosterEntry(NamedTuple):
    """A site, and its X25519 public key for this study in 64 hexadecimal digits."""

    name: str
    key: str


def roster_from(table: object) -> tuple[RosterEntry, ...]:
    """The ``[[roster]]`` of a study's file."""
    if not isinstance(table, Sequence) or isinstance(table, str):
        raise StudyError("roster must be a list of tables, [[roster]] with name and key")
    entries = []
    for each in table:
        if isinstance(each, RosterEntry):
            entries.append(each)
            continue
        if not isinstance(each, Mapping) or set(each) != {"name", "key"}:
            check_names(each if isinstance(each, Mapping) else {}, RosterEntry._fields, "roster")
            raise StudyError("roster: every site has a name and a key, and nothing else")
        entries.append(RosterEntry(each["name"], each["key"]))
    check_roster(entries)
    return tuple(entries)


def check_roster(roster: Sequence[RosterEntry]) -> None:
    """Refuse names or keys that are none, or that two sites share."""
    if len(roster) > MOST_SITES:
        raise StudyError(f"roster: at most {MOST_SITES:,} sites can take part, not {len(roster):,}")
    for name, key in roster:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise StudyError(f"roster: {name!r:.60} is not the name of a site: lowercase letters, digits and hyphens")
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise StudyError(f"roster: the key of {name} must be 64 hexadecimal digits, as its offer has them")
    for what, values in (("name", [each.name for each in roster]), ("key", [each.key for each in roster])):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            who = twice if what == "name" else " and ".join(each.name for each in roster if each.key == twice)
            cure = "use one offer of each site" if what == "name" else "every site makes a key of its own"
            raise StudyError(f"roster: two entries have the same {what} ({who}); {cure}")


def roster_schema() -> dict[str, Any]:
    """JSON Schema of ``roster``."""
    entry = {"name": {"type": "string", "pattern": _NAME.pattern}, "key": {"type": "string", "pattern": _KEY.pattern}}
    about = "With secure_aggregation: the sites that take part, and their public keys for this study."
    properties = {"type": "object", "properties": entry, "required": ["name", "key"], "additionalProperties": False}
    return {"description": about, "type": "array", "maxItems": MOST_SITES, "items": properties}
