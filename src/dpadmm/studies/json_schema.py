"""The JSON Schema of study files, for completion and checks in editors.

It is generated from the classes that parse study files. It accepts every valid study, and also some invalid ones, such
as those with descending bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING
from typing import Any

from dpadmm.data.schema import KINDS, ROW_NORMS, Label
from dpadmm.data.schema_file import MAX_COLUMNS, RELEASED
from dpadmm.matrices.clipping import INTERCEPT
from dpadmm.methods import KINDS as RELEASES
from dpadmm.methods import StatisticsRelease
from dpadmm.parameters.fields import Parameter, parameters
from dpadmm.parameters.text import MAX_TEXT, PATTERN
from dpadmm.studies.checks import provenance_parameters
from dpadmm.studies.public_rows import PublicRows
from dpadmm.studies.reading import table_parameters
from dpadmm.studies.roster import roster_schema
from dpadmm.studies.settings import CHOICES
from dpadmm.studies.study import ADJACENCY, FORMAT, TABLES, TRAINING, Study

PUBLIC = {
    "const": True,
    "description": "Whether the values are confirmed as public knowledge. Drafts have false.",
}
ALLOW = {
    "type": "boolean",
    "description": "Set to true to keep a column that was rejected by mistake: its name resembles an identifier or the "
    "label, or it predicts the label almost perfectly although it is known before the outcome.",
}
HASH = {
    "type": "string",
    "pattern": "^[0-9a-f]{64}$",
    "description": "Hash of the statistics study whose private release provided center and scale.",
}


def study_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a study file."""
    named = {"type": "object", "additionalProperties": {"$ref": "#/$defs/column"}, "minProperties": 1}
    listed = {"type": "array", "items": {"$ref": "#/$defs/listed_column"}, "minItems": 1}
    top_level = {entry.name: entry.json_schema() for entry in parameters(Study) if entry.help}
    properties: dict[str, Any] = {
        "format": {"const": FORMAT},
        "kind": {"enum": [TRAINING, *RELEASES], "description": "Purpose of the study (default: training)."},
        **top_level,
        "adjacency": {"const": ADJACENCY},
        "label": _object({**_properties(parameters(Label)), "public": PUBLIC}, ["column"]),
        "columns": {"anyOf": [{**named, "maxProperties": MAX_COLUMNS}, {**listed, "maxItems": MAX_COLUMNS}]},
        "interactions": {
            "type": "array",
            "items": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
            "description": "Pairs of columns whose effects depend on each other.",
        },
        "row_norm": {"type": ["number", "null"], "minimum": ROW_NORMS[0], "maximum": ROW_NORMS[1]},
        **{name: _choice(classes) for name, classes in CHOICES.items()},
        **{name: _object(_properties(table_parameters(name))) for name in (*TABLES, *RELEASES)},
        "provenance": _provenance(),
        "public_rows": _object({**_properties(parameters(PublicRows)), "public": PUBLIC}, ["sha256"]),
        "intercept_value": {"const": INTERCEPT},
        "roster": roster_schema(),
    }
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dpadmm study",
        **_object(properties, ["format", "name"]),
        "oneOf": [
            {"required": ["columns", "label"]},
            {"required": ["features"]},
            {
                "required": ["columns", "kind"],
                "properties": {"kind": {"const": StatisticsRelease.name}, "label": False},
            },
        ],
        "$defs": {
            "column": {"oneOf": [_column(kind, named=True) for kind in KINDS]},
            "listed_column": {"oneOf": [_column(kind, named=False) for kind in KINDS]},
        },
    }
    return dict(_with_text_limits(schema))


def _with_text_limits(schema: Any) -> Any:
    """Return the schema with the text limits of studies on every string and free key."""
    if isinstance(schema, list):
        return [_with_text_limits(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    limits = {"maxLength": MAX_TEXT, "pattern": PATTERN}
    limited = {key: _with_text_limits(value) for key, value in schema.items()}
    if schema.get("type") == "string":
        limited = limits | limited
    if isinstance(schema.get("additionalProperties"), dict):
        limited["propertyNames"] = limits
    return limited


def _provenance() -> dict[str, Any]:
    """Return the schema of ``[provenance]``, with a table for the constants of each choice."""
    properties: dict[str, Any] = {}
    for entry in provenance_parameters():
        what, _, name = entry.name.rpartition(".")
        (properties.setdefault(what, _object({}))["properties"] if what else properties)[name] = entry.json_schema()
    return _object(properties)


def _choice(classes: Mapping[str, type]) -> dict[str, Any]:
    """Return the schema of a table with the name of one of these classes and its parameters."""
    return {
        "oneOf": [
            _object({"name": {"const": name}, **_properties(parameters(cls))}, ["name"])
            for name, cls in classes.items()
        ]
    }


def _column(kind: str, *, named: bool) -> dict[str, Any]:
    """Return the schema of one kind of column; if ``named``, the table's key is the column's name."""
    entries = [entry for entry in parameters(KINDS[kind]) if not (named and entry.name == "name")]
    required = [entry.name for entry in entries if entry.default is MISSING]
    properties = {"kind": {"const": kind}, **_properties(entries), "public": PUBLIC, "allow": ALLOW, RELEASED: HASH}
    first_sentence = " ".join((KINDS[kind].__doc__ or "").partition("\n\n")[0].split())
    return {"description": first_sentence, **_object(properties, ["kind", *required])}


def _properties(entries: Iterable[Parameter]) -> dict[str, Any]:
    return {entry.name: entry.json_schema() for entry in entries}


def _object(properties: Mapping[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": dict(properties), "additionalProperties": False, **needed}
