"""The JSON Schema of study files, made from the classes that read them: for editors, to complete and check.

It may accept what reading refuses (bounds that fall, say), and never refuses what reading accepts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING
from typing import Any

from dpadmm.data.schema import KINDS, ROW_NORMS, Label
from dpadmm.data.schema_file import MOST_COLUMNS, RELEASED
from dpadmm.matrices.clipping import INTERCEPT
from dpadmm.methods import KINDS as RELEASES
from dpadmm.methods import StatisticsRelease
from dpadmm.parameters.fields import Parameter, parameters
from dpadmm.parameters.text import MAX_TEXT, PATTERN
from dpadmm.studies.public_rows import PublicRows
from dpadmm.studies.roster import roster_schema
from dpadmm.studies.settings import REGISTRIES
from dpadmm.studies.study import ADJACENCY, FORMAT, TABLES, TRAINING, Study, origins, table_parameters

PUBLIC = {
    "const": True,
    "description": "Whether the values are public knowledge; false until someone has looked at them.",
}
ALLOW = {
    "type": "boolean",
    "description": "true where the name looks like an identifier or like the label, and it is neither; or "
    "where the column alone tells the label, and is known before the outcome.",
}


HASH = {
    "type": "string",
    "pattern": "^[0-9a-f]{64}$",
    "description": "The hash of the statistics study from whose private release center and scale come.",
}


def study_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a study file."""
    named = {"type": "object", "additionalProperties": {"$ref": "#/$defs/column"}, "minProperties": 1}
    listed = {"type": "array", "items": {"$ref": "#/$defs/listed_column"}, "minItems": 1}
    about = {each.name: each.json_schema() for each in parameters(Study) if each.help}
    properties: dict[str, Any] = {
        "format": {"const": FORMAT},
        "kind": {"enum": [TRAINING, *RELEASES], "description": "What the study is for; training, if it does not say."},
        **about,
        "adjacency": {"const": ADJACENCY},
        "label": _object({**_properties(parameters(Label)), "public": PUBLIC}, ["column"]),
        "columns": {"anyOf": [{**named, "maxProperties": MOST_COLUMNS}, {**listed, "maxItems": MOST_COLUMNS}]},
        "interactions": {
            "type": "array",
            "items": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
            "description": "Pairs of columns: the effect of each may depend on the other.",
        },
        "row_norm": {"type": ["number", "null"], "minimum": ROW_NORMS[0], "maximum": ROW_NORMS[1]},
        **{name: _choice(registry.classes) for name, registry in REGISTRIES.items()},
        **{name: _object(_properties(table_parameters(name))) for name in (*TABLES, *RELEASES)},
        "provenance": _object(_properties(origins())),
        "public_rows": _object({**_properties(parameters(PublicRows)), "public": PUBLIC}, ["sha256"]),
        "intercept_value": {"const": INTERCEPT},
        "roster": roster_schema(),
    }
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A study of dpadmm",
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
    """The same JSON Schema, in which every string and every free name is limited as in a study."""
    if isinstance(schema, list):
        return [_with_text_limits(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    limits = {"maxLength": MAX_TEXT, "pattern": PATTERN}
    out = {key: _with_text_limits(each) for key, each in schema.items()}
    if schema.get("type") == "string":
        out = limits | out
    if isinstance(schema.get("additionalProperties"), dict):
        out["propertyNames"] = limits
    return out


def _choice(classes: Mapping[str, type]) -> dict[str, Any]:
    """A table with the name of one of these classes, and its parameters."""
    return {
        "oneOf": [
            _object({"name": {"const": name}, **_properties(parameters(made))}, ["name"])
            for name, made in classes.items()
        ]
    }


def _column(kind: str, *, named: bool) -> dict[str, Any]:
    """One kind of column; its name is the key of its table, or an entry where columns are in a list."""
    entries = [each for each in parameters(KINDS[kind]) if not (named and each.name == "name")]
    needed = [each.name for each in entries if each.default is MISSING]
    properties = {"kind": {"const": kind}, **_properties(entries), "public": PUBLIC, "allow": ALLOW, RELEASED: HASH}
    first_sentence = " ".join((KINDS[kind].__doc__ or "").partition("\n\n")[0].split())
    return {"description": first_sentence, **_object(properties, ["kind", *needed])}


def _properties(known: Iterable[Parameter]) -> dict[str, Any]:
    return {each.name: each.json_schema() for each in known}


def _object(properties: Mapping[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": dict(properties), "additionalProperties": False, **needed}
