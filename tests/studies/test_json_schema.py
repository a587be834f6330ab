"""The JSON Schema of study files: made from the classes, and never stricter than reading."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
from looping import case

from dpadmm.data.schema_file import KINDS
from dpadmm.errors import StudyError
from dpadmm.studies.json_schema import study_schema
from dpadmm.studies.reading import study_from
from dpadmm.studies.settings import CHOICES, Training, nested_parameters
from dpadmm.studies.study import TABLES

TEMPLATE = tomllib.loads(files("dpadmm.studies").joinpath("templates", "study.toml").read_text(encoding="utf-8"))
PLAIN = {"format": "dpadmm-study/2", "name": "x", "features": ["a", "b"], "privacy": {"epsilon": 1.0}}
CHECK = jsonschema.Draft202012Validator(study_schema())


def changed(table: Any, *path: Any, **values: Any) -> Any:
    """A copy with other values at a path; ... takes one away."""
    if path:
        return {**table, path[0]: changed(table[path[0]], *path[1:], **values)}
    return {name: value for name, value in {**table, **values}.items() if value is not ...}


GOOD = {
    "template": TEMPLATE,
    "as json": study_from(TEMPLATE).as_json(),
    "features": PLAIN,
    "features as json": study_from(PLAIN).as_json(),
    "true": changed(TEMPLATE, "columns", "age", public=True, allow=False),
    "whole epsilon": changed(TEMPLATE, "privacy", epsilon=1),
    "numbers as classes": changed(TEMPLATE, "label", classes=[0, 1]),
    "numbers as values": changed(TEMPLATE, "columns", "purpose", values=[1, 2, "3"]),
    "bins": changed(TEMPLATE, "columns", "age", bins=[30, 50.5]),
    "no bins": changed(TEMPLATE, "columns", "age", bins=[]),
    "row norm": changed(TEMPLATE, row_norm=2),
    "ordinal": changed(TEMPLATE, "columns", purpose={"kind": "ordinal", "values": ["a", "b"]}),
    "plain": changed(TEMPLATE, "columns", purpose={"kind": "plain"}),
    "odd names": changed(TEMPLATE, columns={'a"b. ü': {"kind": "boolean"}}),
    "regression": changed(TEMPLATE, label={"column": "y", "bounds": [0, 1.5]}, loss={"name": "huber", "delta": 1}),
    "softmax": changed(PLAIN, classes=[1.5, "b", 3], loss={"name": "softmax"}),
    "classes of a number": changed(PLAIN, classes=None, loss={"name": "squared"}),
    "none": changed(PLAIN, method={"name": "dp_sgd", "learning_rate": None}),
    "adjacency": changed(PLAIN, adjacency="replace-one"),
    "provenance": changed(PLAIN, provenance={"method": {"rho": "assumed"}}),
    "public rows": changed(TEMPLATE, public_rows={"file": "sample.csv", "sha256": "0" * 64, "public": True}),
}
BAD = {
    "unknown key": changed(TEMPLATE, colums={}),
    "unknown setting": changed(TEMPLATE, "training", rounds=3),
    "unknown entry": changed(TEMPLATE, "columns", "age", bound=[0, 1]),
    "unknown kind": changed(TEMPLATE, "columns", "age", kind="text"),
    "no bounds": changed(TEMPLATE, "columns", "age", bounds=...),
    "one bound": changed(TEMPLATE, "columns", "age", bounds=[0]),
    "bounds of text": changed(TEMPLATE, "columns", "age", bounds=["0", "1"]),
    "values of a number": changed(TEMPLATE, "columns", "age", values=["a"]),
    "values that are numbers": changed(TEMPLATE, "columns", "purpose", values=[1.5]),
    "values twice": changed(TEMPLATE, "columns", "purpose", values=["a", "a"]),
    "transform": changed(TEMPLATE, "columns", "age", transform="sqrt"),
    "unconfirmed": changed(TEMPLATE, "columns", "age", public=False),
    "unconfirmed label": changed(TEMPLATE, "label", public=False),
    "a question": changed(TEMPLATE, "columns", "age", allow="known before the outcome?"),
    "no label": changed(TEMPLATE, label=...),
    "no column of the label": changed(TEMPLATE, "label", column=...),
    "both": changed(TEMPLATE, features=["a"]),
    "neither": changed(PLAIN, features=...),
    "no columns": changed(TEMPLATE, columns={}),
    "no name": changed(PLAIN, name=...),
    "loss": changed(PLAIN, loss={"name": "logistik"}),
    "a loss without a name": changed(PLAIN, loss={"delta": 1.0}),
    "another's parameter": changed(PLAIN, loss={"name": "huber", "width": 1.0}),
    "text for a number": changed(PLAIN, "privacy", delta="small"),
    "budgets of several agents": changed(PLAIN, "privacy", epsilon=[1.0, 2.0]),
    "a number below its least": changed(PLAIN, "privacy", delta=0),
    "true for a number": changed(PLAIN, method={"name": "dp_admm", "rho": True}),
    "format": changed(PLAIN, format="dpadmm-study/1"),
    "origin": changed(PLAIN, provenance={"method": {"rho": "tuned"}}),
    "origin of what": changed(PLAIN, provenance={"epsilon": "public"}),
    "row norm": changed(TEMPLATE, row_norm=0),
    "allow_missed_rounds": changed(PLAIN, allow_missed_rounds="no"),
    "unconfirmed public rows": changed(TEMPLATE, public_rows={"sha256": "0" * 64, "public": False}),
    "a line break": changed(TEMPLATE, "columns", "purpose", values=["a\nb"]),
    "a control character in a name": changed(TEMPLATE, "columns", **{"a\x1b": {"kind": "boolean"}}),
    "a reversed name": changed(TEMPLATE, "label", column="a\u202eb"),
    "a long name": changed(TEMPLATE, name="a" * 201),
    "public rows by their file": changed(TEMPLATE, public_rows={"file": "sample.csv"}),
}
ONLY_READING = {
    "inverted bounds": changed(TEMPLATE, "columns", "age", bounds=[1, 0]),
    "an identifier": changed(TEMPLATE, "columns", patient_id={"kind": "boolean"}),
    "the label": changed(TEMPLATE, "columns", repaid={"kind": "boolean"}),
    "a tag character": changed(PLAIN, name="a\U000e0041"),
    "no budget": changed(PLAIN, privacy={}),
    "a method that solves": changed(PLAIN, method={"name": "admm_pvp"}),
}


def test_it_is_a_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(study_schema())


def test_it_accepts_what_reading_accepts() -> None:
    for name in GOOD:
        with case(name):
            study_from(GOOD[name])
            CHECK.validate(GOOD[name])


def test_it_refuses_what_reading_refuses() -> None:
    for name in BAD:
        with case(name):
            assert not CHECK.is_valid(BAD[name])
            with pytest.raises(StudyError):
                study_from(BAD[name])


def test_it_is_laxer_where_json_schema_has_no_words() -> None:
    for name in ONLY_READING:
        with case(name):
            CHECK.validate(ONLY_READING[name])
            with pytest.raises(StudyError):
                study_from(ONLY_READING[name])


def test_defaults_and_words_come_from_the_classes() -> None:
    properties = study_schema()["properties"]
    known = nested_parameters(Training)
    for table, names in TABLES.items():
        said = properties[table]["properties"]
        assert sorted(said) == sorted(names)
        assert all(each.get("default") == known[name].default for name, each in said.items())
    assert properties["training"]["properties"]["alpha"]["description"].startswith("λ/n")
    for what, classes in CHOICES.items():
        assert [each["properties"]["name"]["const"] for each in properties[what]["oneOf"]] == list(classes)
    kinds = study_schema()["$defs"]["column"]["oneOf"]
    assert [each["properties"]["kind"]["const"] for each in kinds] == list(KINDS)
