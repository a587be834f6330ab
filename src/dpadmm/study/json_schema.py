"""The JSON Schema of study files, made from the classes that read them: for editors, to complete and check.

It may accept what reading refuses (bounds that fall, say), and never refuses what reading accepts.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dpadmm.data.schema import KINDS, MOST_VALUES, ROW_NORMS, Label
from dpadmm.data.schema_file import MOST_COLUMNS, fields_in_file
from dpadmm.optim.features import INTERCEPT
from dpadmm.optim.losses import LOSSES
from dpadmm.optim.regularizers import REGULARIZERS
from dpadmm.study.settings import Settings
from dpadmm.study.study import ADJACENCY, FORMAT, KEYS, METHODS, TRAINING, Study
from dpadmm.study.values import CONSTANTS, PROVENANCE

PUBLIC = {
    "const": True,
    "description": "Whether the values are public knowledge; false until someone has looked at them.",
}
ALLOW = {
    "type": "boolean",
    "description": "true where the name looks like an identifier or like the label, and it is neither; or "
    "where the column alone tells the label, and is known before the outcome.",
}
CHOICES: Mapping[str, Sequence[str]] = {
    "method": METHODS,
    "loss": list(LOSSES),
    "regularizer": list(REGULARIZERS),
}


def study_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a study file."""
    named = {"type": "object", "additionalProperties": {"$ref": "#/$defs/column"}, "minProperties": 1}
    listed = {"type": "array", "items": {"$ref": "#/$defs/listed_column"}, "minItems": 1}
    made: dict[str, Any] = {
        "format": {"const": FORMAT},
        "name": {"type": "string", "minLength": 1, "maxLength": 200},
        "adjacency": {"const": ADJACENCY},
        "label": _label(),
        "columns": {
            "anyOf": [{**named, "maxProperties": MOST_COLUMNS}, {**listed, "maxItems": MOST_COLUMNS}]
        },
        "row_norm": {"type": ["number", "null"], "minimum": ROW_NORMS[0], "maximum": ROW_NORMS[1]},
        "features": {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
        "classes": {"type": ["array", "null"], "items": {"type": ["string", "number", "boolean"]}},
        "training": _training(),
        "provenance": _object({name: {"enum": list(PROVENANCE)} for name in CONSTANTS}),
        "absences": {"type": "boolean"},
        "intercept_value": {"const": INTERCEPT},
        "quorum": {"type": "integer", "minimum": 1, "maximum": 10**6},
        "deadline": {"type": "number", "minimum": 0.1, "maximum": 1e7},
    }
    about = _described(Study)
    properties = {name: _with_description(made[name], about.get(name, "")) for name in KEYS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A study of dpadmm",
        **_object(properties, ["format", "name", "training"]),
        "oneOf": [{"required": ["columns", "label"]}, {"required": ["features"]}],
        "$defs": {
            "column": {"oneOf": [_column(kind, named=True) for kind in KINDS]},
            "listed_column": {"oneOf": [_column(kind, named=False) for kind in KINDS]},
        },
    }


def _column(kind: str, *, named: bool) -> dict[str, Any]:
    """One kind of column; its name is the key of its table, or an entry where columns are in a list."""
    made = KINDS[kind]
    hints = get_type_hints(made)
    entries = [each for each in fields_in_file(made) if not (named and each.name == "name")]
    properties = {each.name: _with_default(_type(hints[each.name]), each) for each in entries}
    needed = [each.name for each in entries if each.default is MISSING]
    described = {"description": _first_sentence(made)}
    return described | _object(
        {"kind": {"const": kind}, **properties, "public": PUBLIC, "allow": ALLOW}, ["kind", *needed]
    )


def _label() -> dict[str, Any]:
    hints = get_type_hints(Label)
    properties = {each.name: _type(hints[each.name]) for each in fields_in_file(Label)}
    return _object({**properties, "public": PUBLIC}, ["column"])


def _training() -> dict[str, Any]:
    hints, about = get_type_hints(Settings), _described(Settings)
    properties = {}
    for each in fields(Settings):
        if each.name in TRAINING:
            made = {"enum": [*CHOICES[each.name], None]} if each.name in CHOICES else _one(hints[each.name])
            properties[each.name] = _with_description(_with_default(made, each), about.get(each.name, ""))
    return _object(properties)


def _one(hint: Any) -> dict[str, Any]:
    """The same value for all agents: no list; None (in JSON) stands for the default."""
    if get_origin(hint) is Literal:
        return {"enum": [*get_args(hint), None]}
    kinds = [each for each in _members(hint) if get_origin(each) is None and each is not NoneType]
    return {"type": [*(_NAMES[each] for each in kinds), "null"]}


_NAMES: Mapping[Any, str] = {
    str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null",
}  # fmt: skip


def _type(hint: Any) -> dict[str, Any]:
    """The JSON Schema of values that a field of this type is made from."""
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    if get_origin(hint) in (Union, UnionType):
        found = [_type(each) for each in get_args(hint)]
        return {"anyOf": found}
    if get_origin(hint) is tuple:
        inner, *rest = get_args(hint)
        if rest == [Ellipsis]:
            whole = inner in (str, str | int)  # numbers are names of values too
            items = {"type": ["string", "integer"]} if whole else _type(inner)
            return {"type": "array", "items": items, "maxItems": MOST_VALUES, "uniqueItems": True}
        return {"type": "array", "items": _type(inner), "minItems": 1 + len(rest), "maxItems": 1 + len(rest)}
    return {"type": _NAMES[hint]}


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _object(properties: Mapping[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": dict(properties), "additionalProperties": False, **needed}


def _with_default(made: dict[str, Any], each: Field[Any]) -> dict[str, Any]:
    if each.default is MISSING or each.default is None:
        return made
    return {**made, "default": list(each.default) if isinstance(each.default, tuple) else each.default}


def _with_description(made: dict[str, Any], text: str) -> dict[str, Any]:
    return {**made, "description": text} if text else made


def _first_sentence(made: type) -> str:
    return " ".join((inspect.getdoc(made) or "").partition("\n\n")[0].split())


def _described(made: type) -> dict[str, str]:
    """What a class's docstring says of its attributes."""
    text = (inspect.getdoc(made) or "").partition("Attributes\n----------\n")[2].partition("\n\n")[0]
    found: dict[str, str] = {}
    for names, body in re.findall(r"^(\w[\w, ]*) : .*\n((?:    .*\n?)*)", text, re.MULTILINE):
        found |= dict.fromkeys(names.split(", "), " ".join(body.split()))
    return found
