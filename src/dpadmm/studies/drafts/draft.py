"""The draft of a study: unconfirmed columns and label, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dpadmm.data.schema_file import ASK
from dpadmm.errors import DataError
from dpadmm.parameters.suggestions import unknown_name
from dpadmm.studies.public_rows import PublicRows


@dataclass(frozen=True)
class DraftColumn:
    """A column of a draft: its entries in the study file, or None and the reason for leaving it out."""

    name: str
    about: dict[str, Any] | None
    comment: str = ""

    def with_question(self, question: str) -> DraftColumn:
        """Return the column with a question that must be answered before the study is valid."""
        more = f" ({self.comment})" if self.comment else ""
        return DraftColumn(self.name, {**(self.about or {}), "allow": ASK}, f"{question}{more}")

    @property
    def has_question(self) -> bool:
        return self.about is not None and self.about.get("allow") == ASK


@dataclass(frozen=True)
class Question:
    """An ambiguous column: what the table shows, and the kind that the draft assumes."""

    column: str
    text: str
    assumed: str
    is_label: bool = False

    @property
    def choices(self) -> tuple[str, ...]:
        """The possible kinds."""
        return ("classes", "counts", "number") if self.is_label else ("category", "number")


@dataclass(frozen=True)
class Draft:
    """Columns and label of a draft; ``confirm`` is true if their values were inferred from the data.

    The rows of that table become the study's public rows. If they cannot, ``not_public`` is the reason.
    """

    columns: tuple[DraftColumn, ...]
    label: dict[str, Any]
    source: str
    confirm: bool = False
    comments: tuple[str, ...] = ()
    public_rows: PublicRows | None = None
    not_public: str = ""
    loss: str = ""
    """Name of the loss; empty for the usual one of the label."""
    row_norm: float | None = None
    questions: tuple[Question, ...] = ()
    notes: tuple[str, ...] = ()
    """How the table was read."""

    def __post_init__(self) -> None:
        if not any(column.about for column in self.columns):
            raise DataError(f"{self.source}: no usable column except the label; add columns to the table")

    def without(self, by: str) -> Draft:
        """Return the draft without the column that identifies the data owner."""
        names = [column.name for column in self.columns]
        if by not in names:
            raise unknown_name("column", by, names, self.source)
        left_out = DraftColumn(by, None, "identifies the data owner")
        return replace(self, columns=tuple(left_out if column.name == by else column for column in self.columns))

    def without_public_rows(self) -> Draft:
        """Return the draft of a table with synthetic rows, which are no public rows."""
        return replace(self, public_rows=None, not_public="they are synthetic")


def check_name(name: str, where: object) -> None:
    """Raise DataError if a study file cannot represent this column name."""
    if not name.strip() or not name.isprintable() or len(name) > 200:
        raise DataError(
            f"{where}: a column name must be printable text of at most 200 characters, not {name[:40]!r}; rename it"
        )
