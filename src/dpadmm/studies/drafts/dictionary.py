"""Drafts of studies from a data dictionary. A data dictionary is public, so its values need no confirmation.

It is a CSV file with one line for each column of the table:

=============  =====================================================================================
name           column name
kind           number, category, ordinal or boolean; columns of other kinds (text, date, id) are left out
low, high      bounds of a number
values         values of a category or an ordinal, in order, separated by |
description    becomes a comment
role           optional: ``label`` for the column to predict (or use ``--label``), ``out`` to leave it out
transform      optional: log
missing        optional: indicator
=============  =====================================================================================
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpadmm.data.reader import column_names, repeated
from dpadmm.data.schema import OTHERS
from dpadmm.data.schema_file import is_identifier, is_label_like
from dpadmm.errors import DataError
from dpadmm.parameters.suggestions import listed, near_name, unknown_name
from dpadmm.studies.drafts.draft import Draft, DraftColumn, check_name

HEADINGS = ("name", "kind", "low", "high", "values", "description", "role", "transform", "missing")
OTHER_WORDS = {
    "variable": "name", "field": "name", "column": "name", "type": "kind", "min": "low", "minimum": "low",
    "max": "high", "maximum": "high", "levels": "values", "categories": "values", "label": "description"
}  # fmt: skip
KINDS = {
    "number": "number", "numeric": "number", "integer": "number", "int": "number", "float": "number",
    "real": "number", "decimal": "number", "category": "category", "categorical": "category",
    "factor": "category", "enum": "category", "ordinal": "ordinal", "boolean": "boolean", "bool": "boolean",
    "binary": "boolean"
}  # fmt: skip
MAX_LINES = 100_000


def draft_from_dictionary(path: Path, label: str | None = None) -> Draft:
    """Read a data dictionary.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "dictionary.csv")
    ...     _ = path.write_text("name,kind,low,high,values\\nage,number,0,120,\\nill,category,,,no|yes\\n")
    ...     draft = draft_from_dictionary(path, "ill")
    >>> draft.columns[0].about, draft.label
    ({'kind': 'number', 'bounds': (0, 120)}, {'column': 'ill', 'classes': ('no', 'yes')})
    """
    lines = _lines(path)
    names = [each["name"] for each in lines]
    label = label or next((each["name"] for each in lines if each["role"].lower() == "label"), None)
    if label is None:
        raise DataError(f"{path}: no label; name the column to predict with --label COLUMN, or with the role label")
    if label not in names:
        raise unknown_name("column", label, names, path)
    columns = tuple(_column(each, label, path) for each in lines if each["name"] != label)
    target = _label(next(each for each in lines if each["name"] == label), path)
    return Draft(columns, target, path.name)


def columns_from_dictionary(path: Path) -> tuple[DraftColumn, ...]:
    """Return all columns of a data dictionary, for a statistics study, which has no label."""
    return tuple(_column(each, None, path) for each in _lines(path))


def _lines(path: Path) -> list[dict[str, str]]:
    if path.suffix.lower() != ".csv":
        raise DataError(f"{path}: a data dictionary must be a .csv file")
    found = [name.strip().lower() for name in column_names(path)]
    given = [OTHER_WORDS.get(name, name) if OTHER_WORDS.get(name) not in found else name for name in found]
    for heading in ("name", "kind"):
        if given.count(heading) != 1:
            near = near_name(heading, found)
            hint = f"did you mean {near!r}?" if near else f"it has {listed(found)}"
            raise DataError(f"{path}: a data dictionary requires exactly one column {heading!r}; {hint}")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.reader(file, strict=True) if any(cell.strip() for cell in row)][1:]
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as CSV in UTF-8: {error}") from None
    if not 0 < len(rows) <= MAX_LINES:
        raise DataError(f"{path}: a data dictionary has 1 to {MAX_LINES:,} lines after its header, not {len(rows):,}")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(given):
            raise DataError(f"{path}, line {number}: {len(row)} cells, but {len(given)} headings")
    blank = dict.fromkeys(HEADINGS, "")
    lines = [{**blank, **{k: v.strip() for k, v in zip(given, row, strict=True)}} for row in rows]
    for each in lines:
        check_name(each["name"], path)
    if twice := repeated([each["name"] for each in lines]):
        raise DataError(f"{path}: column {twice[0]!r} is listed twice")
    return lines


def _column(line: Mapping[str, str], label: str | None, path: Path) -> DraftColumn:
    name, kind = line["name"], KINDS.get(line["kind"].lower())
    note = " ".join(line["description"].split())
    why = ""
    if line["role"].lower() == "out":
        why = "role out in the dictionary"
    elif kind is None:
        why = f"kind {line['kind']!r} is not supported" if line["kind"] else "kind is missing"
    elif is_identifier(name):
        why = "looks like an identifier"
    elif label is not None and is_label_like(name, label):
        why = f"looks like the label {label!r} itself"
    if why:
        return DraftColumn(name, None, why)
    about: dict[str, Any] = {"kind": kind}
    if kind == "number":
        about["bounds"] = _bounds(line, path)
    elif kind in ("category", "ordinal"):
        values = _values(line, path)
        about["values"] = values if kind == "ordinal" else tuple(each for each in values if each not in OTHERS)
    about |= {each: line[each].lower() for each in ("transform", "missing") if line[each]}
    return DraftColumn(name, about, note)


def _label(line: Mapping[str, str], path: Path) -> dict[str, Any]:
    name, kind = line["name"], KINDS.get(line["kind"].lower())
    if kind == "number":
        return {"column": name, "bounds": _bounds(line, path)}
    if line["values"]:
        return {"column": name, "classes": _values(line, path)}
    raise DataError(
        f"{path}: the label {name!r} requires values (classes, negative first, separated by |), "
        "or kind number with low and high"
    )


def _bounds(line: Mapping[str, str], path: Path) -> tuple[float, float]:
    found = []
    for heading in ("low", "high"):
        try:
            value = float(line[heading])
        except ValueError:
            cell = repr(line[heading]) if line[heading] else "an empty cell"
            raise DataError(f"{path}: column {line['name']!r} requires a number as {heading}, not {cell}") from None
        found.append(int(value) if value.is_integer() and abs(value) < 1e15 else value)
    return found[0], found[1]


def _values(line: Mapping[str, str], path: Path) -> tuple[str, ...]:
    values = tuple(value.strip() for value in line["values"].split("|") if value.strip())
    if not values:
        raise DataError(f"{path}: column {line['name']!r} of kind {line['kind']} requires values, separated by |")
    return values
