"""The dialect of a text file: separator, decimal mark and encoding.

A dialect is detected from the suffix and the first line, never from rows: a cell of one person must not change how the
cells of others are read. In a file separated by semicolons, ``1,5`` and ``1.5`` are the same number, cell by cell.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dpadmm.errors import DataError

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""Separators that are detected, with their names in messages."""

_ALIASES = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "bar": "|"}
_UTF8 = ("utf-8", "utf-8-sig", "ascii")
_DECIMAL_COMMA = r"^(\s*[+-]?[0-9]*),([0-9]+(?:[eE][+-]?[0-9]+)?\s*)$"


@dataclass(frozen=True)
class Dialect:
    """Separator, decimal mark and encoding of a text file; None if it is to be detected."""

    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        separator, decimal = self.separator, self.decimal
        if separator is not None and (len(separator) != 1 or separator.isalnum() or separator in '"\r\n. '):
            names = ", ".join(("comma", "semicolon", "tab", "bar"))
            raise DataError(f"--separator must be {names} or one other character, not {separator!r:.40}")
        if decimal not in (None, ".", ","):
            raise DataError(f"--decimal must be . or , and not {decimal!r:.40}")
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise DataError(
                    f"--encoding must be the name of an encoding, such as utf-8, cp1252 or utf-16, not "
                    f"{self.encoding!r:.40}"
                ) from None

    @classmethod
    def of(cls, separator: str | None = None, decimal: str | None = None, encoding: str | None = None) -> Dialect:
        """Return a dialect from options of the command line, where ``tab`` is a tab."""
        return cls(_ALIASES.get(separator or "", separator), decimal, encoding)

    @property
    def is_utf8(self) -> bool:
        return self.encoding is None or codecs.lookup(self.encoding).name in _UTF8

    @property
    def has_decimal_comma(self) -> bool:
        """Whether ``1,5`` is a number."""
        return self.decimal == ","

    def with_encoding(self, first_bytes: bytes) -> Dialect:
        """Return the dialect with the encoding of a file that begins with these bytes."""
        if self.encoding is not None:
            return self
        is_utf16 = first_bytes[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        return replace(self, encoding="utf-16" if is_utf16 else "utf-8")

    def with_separator(self, first_line: str, usual: str) -> Dialect:
        """Return the dialect with the separator and decimal mark of a file with this first line.

        ``usual`` is the separator of files with this suffix. Another one is used only if ``usual`` does not occur.
        """
        separator = self.separator or usual
        if self.separator is None:
            line = "".join(first_line.split('"')[::2])  # without names in quotation marks
            if usual not in line:
                separator = max(SEPARATORS, key=lambda each: (line.count(each), each == usual))
                separator = separator if separator in line else usual
        return replace(self, separator=separator, decimal=self.decimal or ("," if separator == ";" else "."))

    def names_in(self, first_line: str) -> list[str]:
        """Return the column names in the first line of a file."""
        return next(iter(csv.reader([first_line], delimiter=self.separator or ",", strict=True)), [])

    def notes(self, usual: str) -> list[str]:
        """Return notes about everything that differs from a CSV in UTF-8 with a decimal point."""
        parts = []
        if self.separator != usual and self.separator is not None:
            parts.append(f"columns are separated by {SEPARATORS.get(self.separator, repr(self.separator))}")
        if self.has_decimal_comma:
            parts.append("1,5 and 1.5 are the same number")
        if not self.is_utf8:
            parts.append(f"the encoding is {self.encoding}")
        return [f"Detected: {'; '.join(parts)}."] if parts else []

    def with_points(self, cells: Any) -> Any:
        """Return text cells with a decimal point in numbers that have a decimal comma."""
        if pa.types.is_dictionary(cells.type):
            return pa.DictionaryArray.from_arrays(cells.indices, self.with_points(cells.dictionary))
        content = cells.buffers()[2]
        if content is None or b"," not in memoryview(content).tobytes():
            return cells
        return pc.replace_substring_regex(cells, _DECIMAL_COMMA, r"\1.\2")


def notes_on_index(names: Sequence[str]) -> list[str]:
    """Return a note if the first column is ignored."""
    if len(without_index(names)) == len(names):
        return []
    shown = f"named {names[0]!r}" if names[0] else "without a name"
    return [f"The first column, {shown}, is ignored: it is the index of a data frame."]


def without_index(names: Sequence[str]) -> list[str]:
    """Return the names without the index that pandas writes as the first column of a file.

    Examples
    --------
    >>> without_index(["", "age"]), without_index(["Unnamed: 0", "age"]), without_index(["age", ""])
    (['age'], ['age'], ['age', ''])
    """
    is_index = len(names) > 1 and names[0].strip() in ("", "Unnamed: 0")
    return [name for name in names[is_index:] if name != "__index_level_0__"]
