"""Mutants that no test can or needs to kill, each with a reason."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

from mutation.mutants import Mutant

_FIELDS = {"file", "where", "operator", "old", "new", "occurrence", "why"}


@dataclass(frozen=True)
class Reason:
    """A pattern of mutants with a reason.

    Missing fields match everything: ``old`` alone matches all mutants of a line.
    """

    file: str
    where: str
    why: str
    operator: str | None = None
    old: str | None = None
    new: str | None = None
    occurrence: int | None = None

    def covers(self, mutant: Mutant) -> bool:
        pairs = (
            (self.file, mutant.file),
            (self.where, mutant.where),
            (self.operator, mutant.operator),
            (self.old, mutant.old),
            (self.new, mutant.new),
            (self.occurrence, mutant.occurrence),
        )
        return all(expected is None or expected == found for expected, found in pairs)

    def __str__(self) -> str:
        change = f"{self.old} => {self.new}" if self.new is not None else self.old or "every line"
        return f"{self.file}::{self.where}: {change}"


def read_reasons(path: Path) -> list[Reason]:
    if not path.exists():
        return []
    with path.open("rb") as file:
        entries = tomllib.load(file).get("mutant", [])
    for entry in entries:
        name = f"{path.name}, {entry.get('file')}::{entry.get('where')}"
        unknown = sorted(set(entry) - _FIELDS)
        if unknown:
            raise ValueError(f"{name}: {unknown[0]} is not known; known are {', '.join(sorted(_FIELDS))}")
        if not all(isinstance(entry.get(key), str) and entry[key].strip() for key in ("file", "where", "why")):
            raise ValueError(f"{name}: a reason needs file, where, and a sentence in why")
    return [Reason(**entry) for entry in entries]


def as_entry(mutant: Mutant) -> str:
    """Return an entry for this mutant alone, to be pasted and completed."""
    fields = {key: getattr(mutant, key) for key in ("file", "where", "operator", "old", "new")}
    lines = ["[[mutant]]", *(f"{key} = {_quoted(value)}" for key, value in fields.items())]
    if mutant.occurrence > 1:
        lines.append(f"occurrence = {mutant.occurrence}")
    return "\n".join([*lines, 'why = ""'])


def _quoted(text: str) -> str:
    return f"'{text}'" if "'" not in text else json.dumps(text, ensure_ascii=False)
