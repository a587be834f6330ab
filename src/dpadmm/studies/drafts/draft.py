"""A draft of a study: columns and label as plain values, before anybody has confirmed them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpadmm.data.schema_file import ASK
from dpadmm.errors import DataError
from dpadmm.parameters.suggestions import unknown_name
from dpadmm.studies.public_rows import PublicRows


@dataclass(frozen=True)
class DraftColumn:
    """A column of a draft: plain values as in a study file, or None and why it is left out."""

    name: str
    about: dict[str, Any] | None
    comment: str = ""

    def doubted(self, doubt: str) -> DraftColumn:
        """The column with a question that someone has to answer before it is used."""
        more = f" ({self.comment})" if self.comment else ""
        return DraftColumn(self.name, {**(self.about or {}), "allow": ASK}, f"{doubt}{more}")

    @property
    def is_doubted(self) -> bool:
        return self.about is not None and self.about.get("allow") == ASK


@dataclass(frozen=True)
class Draft:
    """Columns and label of a study to be; ``confirm`` where their values were read off a table.

    That table's rows are the study's public rows, unless ``not_public`` says why not.
    """

    columns: tuple[DraftColumn, ...]
    label: dict[str, Any]
    source: str
    confirm: bool = False
    comments: tuple[str, ...] = ()
    public_rows: PublicRows | None = None
    not_public: str = ""

    def __post_init__(self) -> None:
        if not any(each.about for each in self.columns):
            raise DataError(f"{self.source}: no column is left to learn from beside the label")

    def without(self, by: str) -> Draft:
        """The draft without the column that says who owns a row."""
        names = [each.name for each in self.columns]
        if by not in names:
            raise unknown_name("column", by, names, self.source)
        left_out = DraftColumn(by, None, "says who owns a row")
        return replace(self, columns=tuple(left_out if each.name == by else each for each in self.columns))

    def made_up(self) -> Draft:
        """The draft from a table whose rows are dummies, from which nothing is to be learnt."""
        return replace(self, public_rows=None, not_public="they are made up")


def check_name(name: str, path: Path) -> None:
    """Refuse a name that no study can write."""
    if not name.strip() or not name.isprintable() or len(name) > 200:
        raise DataError(f"{path}: the name of a column must be text on one line, not {name[:40]!r}")
