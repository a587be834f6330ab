"""The draft of a study: unconfirmed columns and label, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from dpadmm.data.schema_file import ASK
from dpadmm.errors import DataError
from dpadmm.files.atomic import StrPath, atomic_file
from dpadmm.parameters.suggestions import first_of, unknown_name
from dpadmm.rendering import Block, Column, Paragraph, Renderable, Rendering, Table
from dpadmm.studies.public_rows import PublicRows

if TYPE_CHECKING:
    from dpadmm.studies.study import Study


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
class Draft(Renderable):
    """Columns and label of a draft; ``is_inferred`` if their values were inferred from the data.

    The rows of that table become the study's public rows. If they cannot, ``not_public`` is the reason.
    """

    columns: tuple[DraftColumn, ...]
    label: dict[str, Any]
    source: str
    is_inferred: bool = False
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

    def without(self, by: str, reason: str = "identifies the data owner") -> Draft:
        """Return the draft without a column, by default the one that identifies the data owner."""
        names = [column.name for column in self.columns]
        if by not in names:
            raise unknown_name("column", by, names, self.source)
        left_out = DraftColumn(by, None, reason)
        return replace(self, columns=tuple(left_out if column.name == by else column for column in self.columns))

    def confirm(
        self, *, epsilon: float = 1.0, delta: float = 1e-5, name: str | None = None, allow: Sequence[str] = ()
    ) -> Study:
        """Return the study. The caller confirms that all values of the draft are public knowledge.

        Parameters
        ----------
        epsilon, delta : float
            Privacy budget.
        name : str, optional
            Title of the study.
        allow : sequence of str
            Columns that alone determine the label in the table, although they are known before the outcome.
            Without an answer for such a column, a StudyError is raised; see also :meth:`drop`.
        """
        from dpadmm.studies.drafts.text import confirmed_study

        return confirmed_study(self, name, epsilon=epsilon, delta=delta, allow=allow)

    def drop(self, *names: str) -> Draft:
        """Return the draft without these columns."""
        draft = self
        for name in names:
            draft = draft.without(name, "left out")
        return draft

    def save(self, path: StrPath, *, name: str | None = None) -> Path:
        """Write the text of a study file, in which every value waits for confirmation, and return its path."""
        from dpadmm.studies.drafts.text import default_name, study_text

        file = Path(path)
        text = study_text(self, name or default_name(self), file.parent)
        with atomic_file(file, replace=False) as out:
            out.write(text.encode())
        return file

    def rendering(self) -> Rendering:
        """Return a table of the columns with their inferred values, and one of those left out."""
        headings = (Column("column", "column", wrap=False), Column("kind", "kind", wrap=False))
        used = [
            (column.name, column.about["kind"], _values(column.about), shorten(column.comment, MAX_NOTE))
            for column in self.columns
            if column.about
        ]
        label = {key: value for key, value in self.label.items() if key != "column"}
        used.insert(0, (self.label["column"], "label", _values(label), "; ".join(self.comments)))
        body: list[Block] = [Table((*headings, Column("values", "inferred values"), Column("note", "note")), used)]
        omitted = [(column.name, column.comment) for column in self.columns if column.about is None]
        if omitted:
            body.append(Table((Column("", "left out", wrap=False), Column("", "reason")), omitted))
        chosen = [f"loss {self.loss}"] if self.loss else []
        chosen += [] if self.row_norm is None else [f"row_norm {self.row_norm:g}"]
        body += [Paragraph(f"Chosen from the table: {', '.join(chosen)}.")] if chosen else []
        return Rendering(
            title=f"Draft from {self.source}",
            body=body,
            notes=[*self.notes, CONFIRM],
            warnings=[f"column {column.name!r} {column.comment}" for column in self.columns if column.has_question],
        )

    def without_public_rows(self) -> Draft:
        """Return the draft of a table with synthetic rows, which are no public rows."""
        return replace(self, public_rows=None, not_public="they are synthetic")


MAX_NOTE = 200
"""Characters of a comment in a table."""

CONFIRM = (
    "All values were inferred from the table. They must be public knowledge, never taken from private rows. Review "
    "them, then confirm() returns the study."
)


def _values(about: Mapping[str, Any]) -> str:
    """Return the inferred values in one line."""
    shown = {key: value for key, value in about.items() if key not in ("kind", "allow", "unseen")}
    return ", ".join(f"{key} {_short(value)}" for key, value in shown.items())


def _short(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 2 and not any(isinstance(each, str) for each in value):
        return f"{value[0]:,} to {value[1]:,}"
    return first_of(list(map(str, value)), 6) if isinstance(value, tuple) else str(value)


def check_name(name: str, where: object) -> None:
    """Raise DataError if a study file cannot represent this column name."""
    if not name.strip() or not name.isprintable() or len(name) > 200:
        raise DataError(
            f"{where}: a column name must be printable text of at most 200 characters, not {name[:40]!r}; rename it"
        )
