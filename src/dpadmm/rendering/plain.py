"""Plain text of renderings, for strings such as ``Model.summary()``."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from dpadmm.parameters.text import printable

WIDTH = 100


def wrap_text(text: str) -> str:
    """Return escaped text, wrapped at ``WIDTH`` characters."""
    return textwrap.fill(printable(text), WIDTH, break_long_words=False, break_on_hyphens=False)


def grid_text(
    headings: Sequence[str], rows: Sequence[Sequence[str]], alignments: Sequence[str], title: str = ""
) -> str:
    """Return aligned columns below their headings. An empty row draws a rule."""
    lines = [[printable(text) for text in row] for row in rows]
    head = [[printable(text) for text in headings]] if any(headings) else []
    widths = [max(map(len, column)) for column in zip(*filter(None, [*head, *lines]), strict=True)]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))

    def line(texts: Sequence[str]) -> str:
        cells = zip(texts, widths, alignments, strict=False)
        return "  ".join(f"{text:{'>' if align == 'right' else '<'}{width}}" for text, width, align in cells).rstrip()

    out = [printable(title)] if title else []
    out += [line(head[0]), rule] if head else []
    return "\n".join([*out, *(line(row) if row else rule for row in lines)])
