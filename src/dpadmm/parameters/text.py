"""Text from files and messages: which strings are accepted, and how a string is shown on a terminal.

Control and format characters could clear a terminal, reverse the order of letters or hide a part of a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

MAX_TEXT = 200
"""Characters of a string in a study."""

PATTERN = "^[^\\u0000-\\u001f\\u007f-\\u009f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufeff]*$"
"""The most common characters that are not printable, as a regular expression of a JSON Schema."""


def printable(text: str) -> str:
    """Escape every character that a terminal does not print, such as escape sequences and line breaks.

    Examples
    --------
    >>> print(printable("age \\x1b[2J\\n"), printable("größe ε"))
    age \\x1b[2J\\n größe ε
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


FORMULA = "[=+\\-@\t\r\n＝＋－＠]"  # spreadsheets also accept the wide forms
NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
"""Patterns of text that a spreadsheet may run as a formula, and of numbers, which it does not; for ``re`` and RE2."""


def csv_cell(text: str) -> str:
    """Prefix text that a spreadsheet would run as a formula with an apostrophe, as OWASP recommends.

    Examples
    --------
    >>> [csv_cell(text) for text in ("=1+1", "@sum", "-x", "-1.5e3", "a=b")]
    ["'=1+1", "'@sum", "'-x", '-1.5e3', 'a=b']
    """
    return f"'{text}" if re.match(FORMULA, text) and not re.fullmatch(NUMBER, text) else text


def text_problems(document: object, *, max_length: int = MAX_TEXT) -> list[str]:
    """Return a message for every string in nested tables and lists that is too long or not printable.

    Keys are checked, too.

    Examples
    --------
    >>> text_problems({"label": {"column": "ill\\x07"}, "classes": ["no", "yes"]})
    ["label.column must be printable text of at most 200 characters, not 'ill\\\\x07'"]
    """
    return [
        f"{where} must be printable text of at most {max_length} characters, not {text!r:.60}"
        for where, text in _texts(document)
        if len(text) > max_length or not text.isprintable()
    ]


def _texts(document: object) -> Iterator[tuple[str, str]]:
    """Yield every string of a document with its location. Iterative, since documents may be deeply nested."""
    waiting: list[tuple[str, object]] = [("", document)]
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, str):
            yield where, value
        elif isinstance(value, Mapping):
            yield from ((f"a name in {where or 'the file'}", str(key)) for key in value)
            dot = "." * bool(where)
            waiting += [(f"{where}{dot}{printable(str(key)[:60])}", value[key]) for key in reversed(value)]
        elif isinstance(value, list | tuple):
            waiting += [(f"{where}[{i}]", value[i]) for i in reversed(range(len(value)))]
