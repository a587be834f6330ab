"""The parts of a rendering: paragraphs, facts and tables, with values for programs and texts for people."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, Literal

from dpadmm.parameters.text import printable
from dpadmm.rendering.formats import number
from dpadmm.rendering.html import block_html, paragraph_html, table_html
from dpadmm.rendering.plain import grid_text, wrap_text

Style = Literal["", "bold", "dim", "good", "warning", "bad"]
Format = str | Callable[[Any], str] | None
"""How a value is shown: a format specification such as ``".1%"``, a function, or None for the usual form."""


@dataclass(frozen=True)
class Cell:
    """A value with its text, for cells that differ from the format of their column.

    Without a text, the format of the column applies.
    """

    value: Any = None
    text: str | None = None
    style: Style = ""


Row = Sequence[Any]
"""Values or cells of a table. An empty row starts a section; missing cells at the end are empty."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Parameters
    ----------
    key : str
        Name in JSON. Empty for a column that is only shown.
    title : str, optional
        Heading. None for a column that is only in JSON.
    format
        Format of the values.
    align : {"left", "right"}, optional
        Default: right for numbers, else left.
    wrap : bool
        Whether long texts may be wrapped.
    """

    key: str = ""
    title: str | None = None
    format: Format = None
    align: Literal["left", "right"] | None = None
    wrap: bool = True


@dataclass(frozen=True)
class Table:
    """Rows of values under headings.

    Parameters
    ----------
    key : str
        Name of the list of rows in JSON. Empty for a table that is only shown.
    max_rows : int, optional
        Number of rows to show. JSON has all rows.
    by_first : bool
        Whether JSON has an object by the first column instead of a list.
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    key: str = ""
    title: str = ""
    caption: str = ""
    max_rows: int | None = None
    by_first: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the rows as JSON values, by the key of the table."""
        if not self.key:
            return {}
        rows = [
            {
                column.key: _json(_cell(value).value)
                for column, value in zip(self.columns, row, strict=False)
                if column.key
            }
            for row in self.rows
            if row
        ]
        return {self.key: {row.pop(self.columns[0].key): row for row in rows} if self.by_first else rows}

    @property
    def headings(self) -> tuple[str, ...]:
        """Headings of the columns that are shown."""
        return tuple(column.title for column in self.columns if column.title is not None)

    @property
    def alignments(self) -> tuple[str, ...]:
        """``left`` or ``right`` for each column that is shown."""
        shown = [(i, column) for i, column in enumerate(self.columns) if column.title is not None]
        return tuple(column.align or self._alignment(i) for i, column in shown)

    def _alignment(self, i: int) -> str:
        values = [_cell(row[i]).value for row in self.rows if len(row) > i]
        known = [value for value in values if value is not None and value != ""]
        return "right" if known and all(map(_is_number, known)) else "left"

    def shown_rows(self) -> list[tuple[Cell, ...]]:
        """Return the rows that are shown, as cells with texts. An empty row starts a section."""
        return [
            tuple(
                _with_text(_cell(row[i]) if i < len(row) else Cell(text=""), column.format)
                for i, column in enumerate(self.columns)
                if column.title is not None
            )
            if row
            else ()
            for row in self.rows[: self.max_rows]
        ]


@dataclass(frozen=True)
class Fact:
    """A named value.

    Parameters
    ----------
    key : str
        Name in JSON. Empty for a fact that is only shown.
    label : str, optional
        Name for people. None for a fact that is only in JSON.
    value
        The value, or a :class:`Cell`.
    format
        Format of the value.
    note : str
        Source or explanation, shown next to the value.
    """

    key: str
    label: str | None
    value: Any
    format: Format = None
    note: str = ""


@dataclass(frozen=True)
class Facts:
    """Named values, one per line. With a key, they are nested under it in JSON."""

    facts: Sequence[Fact]
    key: str = ""
    title: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as JSON values, by key."""
        values = {fact.key: _json(_cell(fact.value).value) for fact in self.facts if fact.key}
        return {self.key: values} if self.key else values

    def shown_rows(self) -> list[tuple[Cell, ...]]:
        """Return label, value and note of every fact that is shown; no notes if all are empty."""
        shown = [fact for fact in self.facts if fact.label is not None]
        n_columns = 3 if any(fact.note for fact in shown) else 2
        return [
            (Cell(text=fact.label), _with_text(_cell(fact.value), fact.format), Cell(text=fact.note))[:n_columns]
            for fact in shown
        ]


@dataclass(frozen=True)
class Paragraph:
    """A paragraph. With a key it is in JSON: ``value``, or the text if there is no value."""

    text: str
    style: Style = ""
    key: str = ""
    value: Any = None

    def to_dict(self) -> dict[str, Any]:
        """Return the paragraph as JSON values."""
        return {self.key: self.text if self.value is None else _json(self.value)} if self.key else {}


Block = Facts | Table | Paragraph


@dataclass(frozen=True)
class Rendering:
    """Description of a result, from which its terminal output, JSON and HTML come.

    Everything is shown in the order of the parameters, and escaped: no text needs to be trusted.

    Parameters
    ----------
    title : str
        First line.
    body : sequence of Facts, Table or Paragraph
        The content.
    notes, warnings : sequence of str
        Sentences after the content.
    verdict : Paragraph, optional
        The conclusion, if there is one.
    next_steps : sequence of str
        Paths and commands to copy, shown without wrapping.
    data : mapping
        Further values of the JSON, which are not shown.
    """

    title: str = ""
    body: Sequence[Block] = ()
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    verdict: Paragraph | None = None
    next_steps: Sequence[str] = ()
    data: Mapping[str, Any] = field(default_factory=dict)

    def extend(
        self,
        *body: Block,
        notes: Sequence[str] = (),
        warnings: Sequence[str] = (),
        next_steps: Sequence[str] = (),
        data: Mapping[str, Any] | None = None,
    ) -> Rendering:
        """Return a rendering with further content."""
        return replace(
            self,
            body=(*self.body, *body),
            notes=(*self.notes, *notes),
            warnings=(*self.warnings, *warnings),
            next_steps=(*self.next_steps, *next_steps),
            data={**self.data, **(data or {})},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return values for JSON: numbers, not formatted text. Infinity and NaN become None."""
        values: dict[str, Any] = {}
        for block in (*self.body, *([self.verdict] if self.verdict else [])):
            values |= block.to_dict()
        values |= {key: _json(value) for key, value in self.data.items()}
        return {**values, "notes": list(self.notes), "warnings": list(self.warnings)}

    def to_html(self) -> str:
        """Return an HTML fragment without scripts, readable on light and dark backgrounds."""
        parts = [paragraph_html(self.title, "bold")] if self.title else []
        for block in self.body:
            match block:
                case Paragraph():
                    parts.append(paragraph_html(block.text, block.style))
                case Facts():
                    align = ["left"] * 3
                    parts.append(table_html((), _texts(block.shown_rows()), align, block.title, ""))
                case Table():
                    rows = _texts(block.shown_rows())
                    parts.append(table_html(block.headings, rows, block.alignments, block.title, block.caption))
        parts += [paragraph_html(text, "dim") for text in self.notes]
        parts += [paragraph_html(f"Warning: {text}", "warning") for text in self.warnings]
        parts += [paragraph_html(self.verdict.text, self.verdict.style)] if self.verdict else []
        parts += [paragraph_html(text, "") for text in self.next_steps]
        return block_html(parts)

    def to_text(self) -> str:
        """Return plain text with wrapped paragraphs."""
        parts = [wrap_text(self.title)] if self.title else []
        for block in self.body:
            match block:
                case Paragraph():
                    parts.append(wrap_text(block.text))
                case Facts():
                    rows = [[text for text, _ in row] for row in _texts(block.shown_rows())]
                    parts.append(grid_text((), rows, ["left"] * 3, block.title))
                case Table():
                    rows = [[text for text, _ in row] for row in _texts(block.shown_rows())]
                    parts.append(grid_text(block.headings, rows, block.alignments, block.title))
                    parts += [wrap_text(block.caption)] if block.caption else []
        parts += [wrap_text(text) for text in self.notes]
        parts += [wrap_text(f"Warning: {text}") for text in self.warnings]
        parts += [wrap_text(self.verdict.text)] if self.verdict else []
        return "\n".join([*parts, *map(printable, self.next_steps)])


class Renderable(ABC):
    """Base class of results: notebooks show the HTML of their rendering."""

    @abstractmethod
    def rendering(self) -> Rendering:
        """Return the description of this result."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as values that JSON can store."""
        return self.rendering().to_dict()

    def _repr_html_(self) -> str:
        return self.rendering().to_html()


def _cell(value: Any) -> Cell:
    return value if isinstance(value, Cell) else Cell(value)


def _with_text(cell: Cell, form: Format) -> Cell:
    if cell.text is not None:
        return cell
    value = cell.value
    if value is None:
        text = "–"
    elif isinstance(form, str):
        text = format(value, form)
    else:
        text = number(value) if form is None else form(value)
    return replace(cell, text=text)


def _texts(rows: Sequence[Sequence[Cell]]) -> list[list[tuple[str, str]]]:
    return [[(cell.text or "", cell.style) for cell in row] for row in rows]


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _json(value: Any) -> Any:
    """Return a value that JSON can store: plain numbers, None for infinity and NaN, strings for other objects."""
    match value:
        case None | bool() | str():
            return value
        case Integral():
            return int(value)
        case Real():
            return float(value) if math.isfinite(value) else None
        case Mapping():
            return {str(key): _json(each) for key, each in value.items()}
        case list() | tuple():
            return [_json(each) for each in value]
        case _:
            return str(value)
