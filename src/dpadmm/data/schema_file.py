"""Convert schemas and labels to and from the ``[columns]`` and ``[label]`` of a study file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from dpadmm.data.schema import KINDS, Column, Label, Schema
from dpadmm.errors import StudyError
from dpadmm.parameters.fields import nearest
from dpadmm.parameters.suggestions import first_of

IDENTIFIER = re.compile(
    r"(?:.*[_\s.-])?(?:id|uuid|guid|ssn|iban|email|e-mail|phone|telephone|passport|surname|firstname|lastname)s?",
    re.IGNORECASE,
)
MARKS = ("public", "allow")
"""Further keys of a column: ``public = false`` until its values are confirmed, and ``allow = true`` if its name looks
like an identifier or the label and it is neither."""

RELEASED = "released"
"""Further key of a column: the hash of the statistics study that released its center and scale."""

ASK = "known before the outcome?"
"""Value of ``allow`` in a draft for a column that determines the label, until the question is answered."""

MAX_COLUMNS = 100_000


def _label_of(table: Mapping[str, Any]) -> Label | None:
    """Return the label of a study's table, or None for a statistics study."""
    return None if table.get("kind") == "statistics" else label_from(table.get("label"))


def rows_from(table: Mapping[str, Any]) -> tuple[Label | None, Schema]:
    """Return label and schema of a study's table. Raise StudyError if values are unconfirmed."""
    label = _label_of(table)
    pairs = table.get("interactions", ())
    schema = schema_from(table["columns"], table.get("row_norm"), pairs, label=label.column if label else None)
    if names := [name for name, _ in unconfirmed(table)]:
        rows, also = table.get("public_rows"), ""
        if isinstance(rows, Mapping) and rows.get("public", True) is False:
            also = f"; nor are the public rows ({rows.get('file', 'without a file')})"
        raise StudyError(
            f"these values were inferred from a table and are not confirmed as public: {first_of(names)}{also}; "
            "correct them if needed and set public = true, by hand or with dpadmm study confirm"
        )
    if messages := suspicious_columns(table):
        raise StudyError(messages[0])
    return label, schema


def unconfirmed(table: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the label and the columns with ``public = false``: a description and the table of each."""
    entries = [(f"column {column['name']!r}", column) for column in _listed_columns(table["columns"])]
    if (label := table.get("label")) is not None:
        entries.insert(0, (f"the label {label['column']!r}", label))
    return [(name, entry) for name, entry in entries if entry.get("public", True) is False]


def confirmed(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of the same study with all values confirmed."""
    columns = [{**column, "public": True} for column in _listed_columns(table["columns"])]
    label = {"label": {**table["label"], "public": True}} if "label" in table else {}
    return {**table, **label, "columns": columns}


def suspicious_columns(table: Mapping[str, Any]) -> list[str]:
    """Return a message for each column that determines the label and has no answer yet."""
    return [
        f"column {column['name']!r}: is it known before the outcome? In a table, it alone determined the label. Set "
        "allow = true if it is, and leave the column out if not"
        for column in _listed_columns(table["columns"])
        if column.get("allow") == ASK
    ]


def problems(table: Mapping[str, Any]) -> list[str]:
    """Return a message for each problem of the label and the columns."""
    messages, label = [], None
    try:
        declared = _label_of(table)
        label = declared.column if declared else None
    except StudyError as error:
        messages.append(str(error))
    try:
        columns = _listed_columns(table["columns"])
    except StudyError as error:
        return [*messages, str(error)]
    valid = []
    for column in columns:
        try:
            valid.append(_column(column, label))
        except StudyError as error:
            messages.append(str(error))
    try:
        # Interactions with an invalid column would be reported twice
        Schema(tuple(valid), table.get("row_norm"), () if messages else table.get("interactions", ()))
    except StudyError as error:
        if valid or not columns:
            messages.append(str(error))
    return messages


def schema_from(
    columns: object, row_norm: object = None, interactions: object = (), *, label: str | None = None
) -> Schema:
    """Return a schema from tables of columns, by name (as in TOML, in the order of the file) or in a list."""
    typed = tuple(_column(column, label) for column in _listed_columns(columns))
    return Schema(typed, row_norm, interactions).normalized()  # type: ignore[arg-type]  # checked by Schema


def schema_as_json(schema: Schema, *, label: str | None = None) -> dict[str, Any]:
    """Return columns in order, row_norm and interactions as JSON values, for :func:`schema_from`."""
    schema = schema.normalized()
    columns = [_as_json(column) for column in schema.columns]
    for column in columns:
        if is_identifier(column["name"]) or (label is not None and is_label_like(column["name"], label)):
            column["allow"] = True  # otherwise it could not be in the schema
    pairs = {"interactions": [list(pair) for pair in schema.interactions]} if schema.interactions else {}
    return {"columns": columns, "row_norm": schema.row_norm, **pairs}


def label_from(table: object) -> Label:
    """Return a label from its table."""
    if not isinstance(table, Mapping):
        raise StudyError("[label] must be a table with column, and with classes or bounds")
    allowed = [field.name for field in fields_in_file(Label)]
    _check_known(table, [*allowed, "public"], "[label]")
    if "column" not in table:
        raise StudyError("[label]: column is missing: the name of the column to predict")
    _check_mark("[label]", "public", table)
    return Label(**_with_tuples(table, allowed)).normalized()


def label_as_json(label: Label) -> dict[str, Any]:
    """Return the label as JSON values. Unset entries are omitted, except ``classes`` and ``bounds``."""
    label = label.normalized()
    values = {field.name: getattr(label, field.name) for field in fields_in_file(Label)}
    return _with_lists(
        {name: value for name, value in values.items() if value not in (None, False) or name in ("classes", "bounds")}
    )


def is_identifier(name: str) -> bool:
    """Return whether the name of a column is that of an identifier of persons or records.

    Examples
    --------
    >>> [name for name in ("patient_id", "email", "idle", "PatientID", "valid") if is_identifier(name)]
    ['patient_id', 'email', 'PatientID']
    """
    return bool(IDENTIFIER.fullmatch(name) or re.fullmatch(r".*[a-z](?:ID|Id|UUID)", name))


def is_label_like(name: str, label: str) -> bool:
    """Return whether the name of a column is that of the label, or begins with it."""
    return bool(re.match(rf"{re.escape(label)}(?:[_\s.-]|$)", name, re.IGNORECASE))


def _column(table: object, label: str | None) -> Column:
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str) or not table["name"].strip():
        raise StudyError("every column needs a table with its name and kind")
    name = table["name"]
    kind = table.get("kind")
    if kind == "text":
        raise StudyError(f"column {name!r}: a model cannot use text; declare it as a category with public values")
    if not isinstance(kind, str) or kind not in KINDS:
        raise StudyError(f"column {name!r}: kind must be one of {', '.join(KINDS)}, not {kind!r}")
    _check_marks(name, table, label)
    allowed = [field.name for field in fields_in_file(KINDS[kind])]
    _check_known(table, [*allowed, "kind", *MARKS, RELEASED], f"column {name!r}")
    for field in fields_in_file(KINDS[kind]):
        if field.default is MISSING and field.name not in table:
            raise StudyError(f"column {name!r}: {field.name} is missing, which a {kind} needs from public knowledge")
    return KINDS[kind](**_with_tuples(table, allowed)).normalized()


def _check_marks(name: str, table: Mapping[str, Any], label: str | None) -> None:
    if table.get("allow") == ASK:
        table = {**table, "allow": True}  # see ``suspicious_columns``
    for mark in MARKS:
        _check_mark(f"column {name!r}", mark, table)
    if not re.fullmatch("[0-9a-f]{64}", str(table.get(RELEASED, "0" * 64))):
        raise StudyError(
            f"column {name!r}: {RELEASED} must be the hash of a statistics study, not {table[RELEASED]!r:.60}"
        )
    if table.get("allow", False):
        return
    if is_identifier(name):
        raise StudyError(
            f"column {name!r} looks like an identifier, which a model should not use; leave it out, or set allow = "
            "true if it is not an identifier"
        )
    if label is not None and is_label_like(name, label):
        raise StudyError(
            f"column {name!r} looks like the label {label!r} itself; leave it out, or set allow = true if it is not"
        )


def _check_mark(where: str, mark: str, table: Mapping[str, Any]) -> None:
    if not isinstance(table.get(mark, True), bool):
        raise StudyError(f"{where}: {mark} must be true or false, not {table[mark]!r:.60}")


def _check_known(table: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    for name in table:
        if name not in names:
            raise StudyError(f"{where}: unknown name {name!r}; {nearest(name, names)}")


def _listed_columns(columns: object) -> list[Any]:
    """Return the tables of columns in a list, each with its name."""
    if isinstance(columns, Mapping):
        columns = [{**_table(name, entry), "name": name} for name, entry in columns.items()]
    if not isinstance(columns, Sequence) or isinstance(columns, str):
        raise StudyError("[columns] must have a table for every column, such as [columns.age]")
    if len(columns) > MAX_COLUMNS:
        raise StudyError(f"a study may have at most {MAX_COLUMNS:,} columns, not {len(columns):,}")
    return list(columns)


def _table(name: object, entry: object) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise StudyError(f"column {name!r} must be a table with its kind, not {entry!r:.60}")
    if "name" in entry:
        raise StudyError(f"column {name!r} has its name in the brackets; leave name = {entry['name']!r:.60} out")
    return entry


def _as_json(column: Column) -> dict[str, Any]:
    values = {field.name: getattr(column, field.name) for field in fields_in_file(type(column))}
    return _with_lists(
        {"kind": column.kind, **{name: value for name, value in values.items() if name != "knots" or value}}
    )


def fields_in_file(kind: type[Column] | type[Label]) -> list[Field[Any]]:
    """Return the fields of a column or a label that a study file may have."""
    return [field for field in fields(kind) if field.metadata.get("file", True)]


def _with_tuples(table: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in table.items() if k in names}


def _with_lists(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
