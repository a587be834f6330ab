"""Every string of a study is printable text of at most 200 characters: all of its JSON Schema, all of its classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from looping import case

from dpadmm.data.schema import Boolean, Category, Label, Number, Ordinal, Plain, Schema
from dpadmm.errors import StudyError
from dpadmm.parameters.text import printable, text_problems
from dpadmm.studies.json_schema import study_schema
from dpadmm.studies.public_rows import PublicRows
from dpadmm.studies.reading import study_from, study_problems
from dpadmm.studies.roster import RosterEntry
from dpadmm.studies.study import FORMAT, Study

HOSTILE = {
    "clear the screen": "a\x1b[2J",
    "line break": "a\nb",
    "carriage return": "a\rb",
    "C1 control": "a\x9b2J",
    "bidirectional override": "a\u202eb",
    "zero width": "a\u200bb",
    "line separator": "a\u2028b",
    "tag": "a\U000e0041",
    "201 characters": "a" * 201,
}
ANY_NAME, FIRST = object(), 0
Place = tuple[Any, ...]
"""Keys and ``FIRST`` for the first item of a list; ``ANY_NAME`` is the name itself of an entry of a table."""


def places(schema: Any, where: Place = ()) -> Iterator[Place]:
    """Every place of a JSON Schema where a document may have a string."""
    if "$ref" in schema:
        *_, name = schema["$ref"].split("/")
        schema = study_schema()["$defs"][name]
    for either in ("anyOf", "oneOf"):
        for each in schema.get(either, ()):
            yield from places(each, where)
    listed = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else [])]
    if schema.get("type") == "string" or any(isinstance(each, str) for each in listed):
        yield where
    for name, each in schema.get("properties", {}).items():
        if isinstance(each, dict):
            yield from places(each, (*where, name))
    if isinstance(free := schema.get("additionalProperties"), dict):
        yield (*where, ANY_NAME)
        yield from places(free, (*where, "some name"))
    items = schema.get("items", False)
    for each in [*([items] if isinstance(items, dict) else []), *schema.get("prefixItems", ())]:
        yield from places(each, (*where, FIRST))


def document(place: Place, text: str) -> Any:
    """The smallest document with a text at a place."""
    if not place:
        return text
    step, *rest = place
    if step is ANY_NAME:
        return {text: {}}
    return [document(tuple(rest), text)] if step is FIRST else {step: document(tuple(rest), text)}


PLACES = set(places(study_schema()))


def test_the_walk_finds_the_strings_of_a_study() -> None:
    assert {
        ("name",),
        ("label", "column"),
        ("label", "exposure"),
        ("label", "weight"),
        ("label", "classes", FIRST),
        ("label", "class_weight", ANY_NAME),
        ("columns", ANY_NAME),
        ("columns", FIRST, "name"),
        ("columns", "some name", "values", FIRST),
        ("interactions", FIRST, FIRST),
        ("features", FIRST),
        ("classes", FIRST),
        ("roster", FIRST, "name"),
        ("public_rows", "file"),
        ("statistics", "tables", FIRST, FIRST),
        ("provenance", "method", "rho"),
        ("method", "name"),
    } <= PLACES


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_string_of_a_study_file_can_have_it(text: str) -> None:
    for place in PLACES - {("format",)}:
        table = {"format": FORMAT, **document(place, text)}
        with case(place):
            (found,) = [each for each in study_problems(table) if "printable text" in each]
            where = found.partition(" must be printable text of at most 200 characters, not ")[0]
            assert where.startswith("a name in" if ANY_NAME in place else str(place[0]))
            assert found.isprintable()
            with pytest.raises(StudyError, match="must be printable text of at most 200 characters") as refused:
                study_from(table)
            assert str(refused.value).isprintable()


def test_a_format_is_echoed_escaped() -> None:
    with pytest.raises(StudyError, match="format must be") as refused:
        study_from({"format": "\x1b[2J"})
    assert str(refused.value).isprintable()


def variants(value: Any, text: str) -> Iterator[Callable[[], Any]]:
    """Makers of copies of a value, each with another one of its strings replaced."""
    if isinstance(value, str):
        yield lambda: text
    elif isinstance(value, Mapping):
        for key in value:
            yield lambda key=key: {**{k: v for k, v in value.items() if k != key}, text: value[key]}
            yield from _inner(value[key], text, lambda new, key=key: {**value, key: new})
    elif isinstance(value, tuple):
        for i, each in enumerate(value):
            yield from _inner(each, text, lambda new, i=i: (*value[:i], new, *value[i + 1 :]))
    elif is_dataclass(value):
        for each in fields(value):
            if each.init and each.name != "file":  # the path of a file of this machine
                yield from _inner(
                    getattr(value, each.name), text, lambda new, name=each.name: replace(value, **{name: new})
                )


def _inner(value: Any, text: str, put: Callable[[Any], Any]) -> Iterator[Callable[[], Any]]:
    for make in variants(value, text):
        yield lambda make=make: put(make())


TRAINING = {"epsilon": 1.0, "intercept": True}
COLUMNS = Schema(
    (
        Number("age", (0.0, 120.0)),
        Category("sex", ("f", "m"), unseen=("m",)),
        Ordinal("stage", ("I", "II")),
        Boolean("smoker"),
        Plain("score"),
    ),
    interactions=(("age", "sex"),),
)
MASKED = {"epsilon": 1.0, "aggregation": "secure", "min_honest_sites": 2}
STUDIES = {
    "features": Study(name="x", features=("a", "b"), classes=("no", "yes"), training=TRAINING),
    "columns": Study(
        name="x",
        schema=COLUMNS,
        label=Label("ill", classes=("no", "yes"), weight="survey", weight_bound=2.0, class_weight={"no": 1, "yes": 2}),
        training={**TRAINING, "method": {"name": "dp_admm", "rho": 0.2}},
        provenance={"method": {"rho": "assumed"}},
    ),
    "counts": Study(
        name="x",
        schema=COLUMNS,
        label=Label("visits", bounds=(0, 9), exposure="years", exposure_bound=3.0),
        training={**TRAINING, "loss": "poisson"},
        public_rows=PublicRows("0" * 64),
    ),
    "sites": Study(
        name="x",
        features=("a",),
        training=MASKED,
        max_rows_per_site=10,
        roster=tuple(RosterEntry(name, 64 * name) for name in "abc"),
    ),
    "statistics": study_from(
        {
            "format": FORMAT,
            "kind": "statistics",
            "name": "x",
            "columns": {"sex": {"kind": "category", "values": ["f", "m"]}, "smoker": {"kind": "boolean"}},
            "statistics": {"tables": [["sex", "smoker"]]},
            "privacy": {"epsilon": 1.0},
        }
    ),
}


def refused(make: Callable[[], Any]) -> bool:
    try:
        make()
    except StudyError:
        return True
    return False


@pytest.mark.parametrize("name", STUDIES)
def test_no_string_of_a_study_in_python_can_have_it(name: str) -> None:
    for what, text in HOSTILE.items():
        made = list(variants(STUDIES[name], text))
        assert len(made) > 5
        for i, make in enumerate(made):
            with case(what, i):
                assert refused(make) or repr(make()) == repr(STUDIES[name])  # classes are taken from the label


def test_the_limit_is_200_characters() -> None:
    assert study_from({"format": FORMAT, "name": "a" * 200, "features": ["b" * 200], "privacy": {"epsilon": 1.0}})


def test_deep_documents_are_walked() -> None:
    deep: Any = "\x1b"
    for _ in range(100_000):
        deep = [deep]
    assert len(text_problems({"x": deep})) == 1


def test_escaped_text_can_be_read_and_is_printable() -> None:
    assert printable("größe ε 年龄") == "größe ε 年龄"
    for text in HOSTILE.values():
        assert printable(text).isprintable()
    assert printable("a\x1b[2J\u202e\udc80") == "a\\x1b[2J\\u202e\\udc80"
