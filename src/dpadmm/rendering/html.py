"""HTML fragments of renderings: escaped text in plain tables, without scripts or fixed colors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from dpadmm.parameters.text import printable

_STYLES: Mapping[str, str] = {
    "bold": "font-weight:bold",
    "dim": "opacity:0.75",
    "good": "font-weight:bold",
    "warning": "font-weight:bold",
    "bad": "font-weight:bold;text-decoration:underline",
}
_RULE = "border-bottom:1px solid currentColor"


def block_html(parts: Iterable[str]) -> str:
    """Return the parts in one element."""
    return f'<div style="max-width:60em">{"".join(parts)}</div>'


def paragraph_html(text: str, style: str) -> str:
    """Return a paragraph."""
    css = f"margin:0.3em 0;{_STYLES.get(style, '')}"
    return f'<p style="{css}">{_escaped(text)}</p>'


def table_html(
    headings: Sequence[str],
    rows: Sequence[Sequence[tuple[str, str]]],
    alignments: Sequence[str],
    title: str,
    caption: str,
) -> str:
    """Return a table. Cells are pairs of text and style; an empty row draws a rule above the next row."""
    parts = [paragraph_html(title, "bold")] if title else []
    parts.append('<table style="border-collapse:collapse;color:inherit;margin:0.5em 0">')
    if any(headings):
        cells = (
            f'<th scope="col" style="text-align:{align};vertical-align:bottom;padding:0.2em 0.8em 0.2em 0">'
            f"{_escaped(heading)}</th>"
            for heading, align in zip(headings, alignments, strict=False)
        )
        parts.append(f'<thead><tr style="{_RULE}">{"".join(cells)}</tr></thead>')
    parts.append("<tbody>")
    for i, row in enumerate(rows):
        if row:
            ends_section = i + 1 < len(rows) and not rows[i + 1]
            parts.append(f"<tr{f' style={chr(34)}{_RULE}{chr(34)}' if ends_section else ''}>")
            parts += [_cell_html(*cell, align) for cell, align in zip(row, alignments, strict=False)]
            parts.append("</tr>")
    parts.append("</tbody></table>")
    return "".join(parts) + (paragraph_html(caption, "dim") if caption else "")


def _cell_html(text: str, style: str, align: str) -> str:
    css = f"text-align:{align};padding:0.1em 0.8em 0.1em 0;{_STYLES.get(style, '')}"
    return f'<td style="{css}">{_escaped(text)}</td>'


def _escaped(text: str) -> str:
    return escape(printable(text))
