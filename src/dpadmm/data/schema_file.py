"""Schemas as plain values: the ``[columns]`` and ``[label]`` of a study file, and back."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from dpadmm.data.schema import KINDS, Column, Label, Schema
from dpadmm.errors import StudyError

IDENTIFIER = re.compile(
    r"(?:.*[_\s.-])?(?:id|uuid|guid|ssn|iban|email|e-mail|phone|telephone|passport|surname|firstname|lastname)s?",
    re.IGNORECASE,
)
MARKS = ("public", "allow")
"""Words that a column may also have: ``public = false`` until someone has confirmed its values, and
``allow = true`` where a column looks like an identifier or like the label and is neither."""

MOST_COLUMNS = 100_000


def schema_from(columns: object, row_norm: object = None, *, label: str | None = None) -> Schema:
    """A schema from tables of columns, by name (as in TOML, in the file's order) or in a list."""
    if isinstance(columns, Mapping):
        columns = [{"name": name, **_table(name, about)} for name, about in columns.items()]
    if not isinstance(columns, Sequence) or isinstance(columns, str):
        raise StudyError("[columns] must have a table for every column, such as [columns.age]")
    if len(columns) > MOST_COLUMNS:
        raise StudyError(f"a study may have at most {MOST_COLUMNS:,} columns, not {len(columns):,}")
    made = tuple(_column(each, label) for each in columns)
    return Schema(made, row_norm)  # type: ignore[arg-type]  # it is checked there


def schema_as_json(schema: Schema) -> dict[str, Any]:
    """The columns in order, and R where it was declared."""
    return {"columns": [_as_json(each) for each in schema.columns], "row_norm": schema.row_norm}


def label_from(table: object) -> Label:
    """A label from its table."""
    if not isinstance(table, Mapping):
        raise StudyError("[label] must be a table with column, and with classes or bounds")
    _known(table, ["column", "classes", "bounds"], "[label]")
    if "column" not in table:
        raise StudyError("[label]: column is missing: the name of the column to predict")
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    return Label(**given)


def label_as_json(label: Label) -> dict[str, Any]:
    """The label's column, and its classes or bounds."""
    return _listed({each.name: getattr(label, each.name) for each in fields(label)})


def _column(table: object, label: str | None) -> Column:
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str) or not table["name"].strip():
        raise StudyError("every column needs a table with its name and kind")
    name = table["name"]
    if len(name) > 200 or not name.isprintable():
        raise StudyError(f"the name of a column must be text on one line, not {name[:40]!r}")
    kind = table.get("kind")
    if kind == "text":
        raise StudyError(
            f"column {name!r}: text cannot be learnt from; make it a category with public values"
        )
    if kind not in KINDS:
        raise StudyError(f"column {name!r}: kind must be one of {', '.join(KINDS)}, not {kind!r}")
    _check_marks(name, table, label)
    allowed = [each.name for each in fields(KINDS[kind])]
    _known(table, [*allowed, "kind", *MARKS], f"column {name!r}")
    for each in fields(KINDS[kind]):
        if each.default is MISSING and each.name not in table:
            raise StudyError(
                f"column {name!r}: {each.name} is missing, which a {kind} needs from public knowledge"
            )
    given: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in table.items() if k in allowed
    }
    return KINDS[kind](**given)


def _check_marks(name: str, table: Mapping[str, Any], label: str | None) -> None:
    for mark in MARKS:
        if not isinstance(table.get(mark, True), bool):
            raise StudyError(f"column {name!r}: {mark} must be true or false, not {table[mark]!r}")
    if not table.get("public", True):
        raise StudyError(
            f"column {name!r}: are these values public? They were read off a table; "
            "correct them where needed and say public = true"
        )
    if table.get("allow", False):
        return
    if IDENTIFIER.fullmatch(name):
        raise StudyError(
            f"column {name!r} looks like an identifier, from which nothing can be learnt but persons; "
            "leave it out, or say allow = true if it is none"
        )
    if label is not None and (name == label or re.match(rf"{re.escape(label)}[_\s.-]", name, re.IGNORECASE)):
        raise StudyError(
            f"column {name!r} looks like the label {label!r} itself, which would make a model that knows "
            "nothing; leave it out, or say allow = true if it is another thing"
        )


def _known(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for name in table:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise StudyError(f"{where}: unknown name {name!r}; {hint}")


def _table(name: object, about: object) -> Mapping[str, Any]:
    if not isinstance(about, Mapping):
        raise StudyError(f"column {name!r} must be a table with its kind, not {about!r:.60}")
    return about


def _as_json(column: Column) -> dict[str, Any]:
    return _listed(
        {"kind": column.kind, **{each.name: getattr(column, each.name) for each in fields(column)}}
    )


def _listed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
