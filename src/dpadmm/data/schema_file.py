"""Schemas as plain values: the ``[columns]`` and ``[label]`` of a study file, and back."""

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
"""Words that a column may also have: ``public = false`` until someone has confirmed its values, and
``allow = true`` where a column looks like an identifier or like the label and is neither."""

RELEASED = "released"
"""What else a column may have: the hash of the statistics study whose private release told its center and scale."""

ASK = "known before the outcome?"
"""What a draft says in place of ``allow = true`` of a column that alone tells the label, to be answered."""

MOST_COLUMNS = 100_000


def _label_of(table: Mapping[str, Any]) -> Label | None:
    """The label of a study's table; studies of the kind statistics have none."""
    return None if table.get("kind") == "statistics" else label_from(table.get("label"))


def rows_from(table: Mapping[str, Any]) -> tuple[Label | None, Schema]:
    """The label and the schema of a study's table; refused while any of their values is not confirmed."""
    label = _label_of(table)
    pairs = table.get("interactions", ())
    schema = schema_from(table["columns"], table.get("row_norm"), pairs, label=label.column if label else None)
    if names := [who for who, _ in unconfirmed(table)]:
        rows, also = table.get("public_rows"), ""
        if isinstance(rows, Mapping) and rows.get("public", True) is False:
            also = f"; and that anyone may see the public rows, {rows.get('file', 'wherever they are')}"
        raise StudyError(
            f"it is not confirmed yet that these values, read off a table, are public: {first_of(names)}{also}; "
            "correct them where needed and say public = true, by hand or with dpadmm study confirm"
        )
    if waiting := doubted(table):
        raise StudyError(waiting[0])
    return label, schema


def unconfirmed(table: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """What says ``public = false``: the label and columns, in words, and all that is said about them."""
    every = [(f"column {each['name']!r}", each) for each in _listed_columns(table["columns"])]
    if (label := table.get("label")) is not None:
        every.insert(0, (f"the label {label['column']!r}", label))
    return [(who, about) for who, about in every if about.get("public", True) is False]


def confirmed(table: Mapping[str, Any]) -> dict[str, Any]:
    """The same study's table when everything is confirmed."""
    columns = [{**each, "public": True} for each in _listed_columns(table["columns"])]
    label = {"label": {**table["label"], "public": True}} if "label" in table else {}
    return {**table, **label, "columns": columns}


def doubted(table: Mapping[str, Any]) -> list[str]:
    """A sentence for every column whose question is not answered."""
    return [
        f"column {each['name']!r}: is it known before the outcome? A table's label could be told from it "
        "alone; say allow = true if it is, and leave the column out if not"
        for each in _listed_columns(table["columns"])
        if each.get("allow") == ASK
    ]


def problems(table: Mapping[str, Any]) -> list[str]:
    """A sentence for everything that is wrong with the label and with each column, not only the first."""
    found, label = [], None
    try:
        label = getattr(_label_of(table), "column", None)
    except StudyError as error:
        found.append(str(error))
    try:
        columns = _listed_columns(table["columns"])
    except StudyError as error:
        return [*found, str(error)]
    good = []
    for each in columns:
        try:
            good.append(_column(each, label))
        except StudyError as error:
            found.append(str(error))
    try:
        # what is wrong with a column is said once
        Schema(tuple(good), table.get("row_norm"), () if found else table.get("interactions", ()))
    except StudyError as error:
        if good or not columns:
            found.append(str(error))
    return found


def schema_from(
    columns: object, row_norm: object = None, interactions: object = (), *, label: str | None = None
) -> Schema:
    """A schema from tables of columns, by name (as in TOML, in the file's order) or in a list."""
    made = tuple(_column(each, label) for each in _listed_columns(columns))
    return Schema(made, row_norm, interactions)  # type: ignore[arg-type]  # they are checked there


def schema_as_json(schema: Schema, *, label: str | None = None) -> dict[str, Any]:
    """The columns in order, R where it was declared, and pairs of columns; ``schema_from`` takes it back."""
    columns = [_as_json(each) for each in schema.columns]
    for column in columns:
        if is_identifier(column["name"]) or (label is not None and is_label_like(column["name"], label)):
            column["allow"] = True  # whoever made it a column said so
    pairs = {"interactions": [list(each) for each in schema.interactions]} if schema.interactions else {}
    return {"columns": columns, "row_norm": schema.row_norm, **pairs}


def label_from(table: object) -> Label:
    """A label from its table."""
    if not isinstance(table, Mapping):
        raise StudyError("[label] must be a table with column, and with classes or bounds")
    allowed = [each.name for each in fields_in_file(Label)]
    _known(table, [*allowed, "public"], "[label]")
    if "column" not in table:
        raise StudyError("[label]: column is missing: the name of the column to predict")
    _check_mark("[label]", "public", table)
    return Label(**_tupled(table, allowed))  # its class weights are copied there


def label_as_json(label: Label) -> dict[str, Any]:
    """The label's column, and its classes or bounds; what only counts have, where they do: hashes of others stay."""
    written = {each.name: getattr(label, each.name) for each in fields_in_file(type(label))}
    return _listed(
        {name: value for name, value in written.items() if value is not None or name in ("classes", "bounds")}
    )


def is_identifier(name: str) -> bool:
    """Whether a column's name says that it names persons or records.

    Examples
    --------
    >>> [name for name in ("patient_id", "email", "idle", "PatientID", "valid") if is_identifier(name)]
    ['patient_id', 'email', 'PatientID']
    """
    return bool(IDENTIFIER.fullmatch(name) or re.fullmatch(r".*[a-z](?:ID|Id|UUID)", name))


def is_label_like(name: str, label: str) -> bool:
    """Whether a column's name is that of the label, or begins with it."""
    return bool(re.match(rf"{re.escape(label)}(?:[_\s.-]|$)", name, re.IGNORECASE))


def _column(table: object, label: str | None) -> Column:
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str) or not table["name"].strip():
        raise StudyError("every column needs a table with its name and kind")
    name = table["name"]
    kind = table.get("kind")
    if kind == "text":
        raise StudyError(f"column {name!r}: text cannot be learnt from; make it a category with public values")
    if not isinstance(kind, str) or kind not in KINDS:
        raise StudyError(f"column {name!r}: kind must be one of {', '.join(KINDS)}, not {kind!r}")
    _check_marks(name, table, label)
    allowed = [each.name for each in fields_in_file(KINDS[kind])]
    _known(table, [*allowed, "kind", *MARKS, RELEASED], f"column {name!r}")
    for each in fields_in_file(KINDS[kind]):
        if each.default is MISSING and each.name not in table:
            raise StudyError(f"column {name!r}: {each.name} is missing, which a {kind} needs from public knowledge")
    return KINDS[kind](**_tupled(table, allowed))


def _check_marks(name: str, table: Mapping[str, Any], label: str | None) -> None:
    if table.get("allow") == ASK:
        table = {**table, "allow": True}  # the answer is still to come: see ``doubted``
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
            f"column {name!r} looks like an identifier, from which nothing can be learnt but persons; "
            "leave it out, or say allow = true if it is none"
        )
    if label is not None and is_label_like(name, label):
        raise StudyError(
            f"column {name!r} looks like the label {label!r} itself, which would let the model read the "
            "answer; leave it out, or say allow = true if it is another thing"
        )


def _check_mark(where: str, mark: str, table: Mapping[str, Any]) -> None:
    if not isinstance(table.get(mark, True), bool):
        raise StudyError(f"{where}: {mark} must be true or false, not {table[mark]!r:.60}")


def _known(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for name in table:
        if name not in known:
            raise StudyError(f"{where}: unknown name {name!r}; {nearest(name, known)}")


def _listed_columns(columns: object) -> list[Any]:
    """Tables of columns in a list, each with its name."""
    if isinstance(columns, Mapping):
        columns = [{**_table(name, about), "name": name} for name, about in columns.items()]
    if not isinstance(columns, Sequence) or isinstance(columns, str):
        raise StudyError("[columns] must have a table for every column, such as [columns.age]")
    if len(columns) > MOST_COLUMNS:
        raise StudyError(f"a study may have at most {MOST_COLUMNS:,} columns, not {len(columns):,}")
    return list(columns)


def _table(name: object, about: object) -> Mapping[str, Any]:
    if not isinstance(about, Mapping):
        raise StudyError(f"column {name!r} must be a table with its kind, not {about!r:.60}")
    if "name" in about:
        raise StudyError(f"column {name!r} has its name in the brackets; leave name = {about['name']!r:.60} out")
    return about


def _as_json(column: Column) -> dict[str, Any]:
    said = {each.name: getattr(column, each.name) for each in fields_in_file(type(column))}
    return _listed({"kind": column.kind, **{name: value for name, value in said.items() if name != "knots" or value}})


def fields_in_file(made: type[Column] | type[Label]) -> list[Field[Any]]:
    """What a file may say of a column or a label."""
    return [each for each in fields(made) if each.metadata.get("file", True)]


def _tupled(table: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in table.items() if k in names}


def _listed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
