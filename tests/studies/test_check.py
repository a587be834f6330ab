"""Every problem of a study in one go."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
from looping import case

from dpadmm.errors import StudyError
from dpadmm.studies.drafts import confirmed_text
from dpadmm.studies.reading import confirmations, study_from, study_problems

MANY = """
format = "dpadmm-study/2"
name = "x"
colour = "red"
[label]
column = "ill"
classes = ["no"]
[columns.age]
kind = "number"
bounds = [120, 0]
[columns.patient_id]
kind = "boolean"
[columns.bmi]
kind = "number"
[columns.ward]
kind = "category"
values = ["a", "a\\nb"]
[columns.fine]
kind = "boolean"
[columns.sex]
kind = "category"
values = ["f"]
value = 3
[loss]
name = "logistik"
[training]
rounds = 5
[privacy]
epsilon = -1.0
[provenance]
colour = "public"
"""


def test_every_problem_is_a_sentence_with_its_column() -> None:
    found = study_problems(tomllib.loads(MANY))
    wanted = [
        r"columns.ward.values[1] must be printable text of at most 200 characters, not 'a\nb'",
        "unknown setting 'colour'",
        "column 'ill': values must be a list of 2",
        "column 'age': bounds must rise",
        "column 'patient_id' looks like an identifier",
        "column 'bmi': bounds is missing",
        "column 'sex': unknown name 'value'; did you mean 'values'",
        "did you mean 'logistic'",
        "privacy: epsilon must be a positive number",
        "training: unknown setting 'rounds'; did you mean 'n_rounds'",
        "provenance: unknown setting 'colour'",
    ]
    assert len(found) == len(wanted)
    for sentence, words in zip(found, wanted, strict=True):
        assert words in sentence
        assert "\n" not in sentence


DRAFTED = """
format = "dpadmm-study/2"
name = "x"
[label]
column = "ill"
classes = ["no", "yes"]
public = false
[columns.age]
kind = "number"
bounds = [0, 120]
center = 50
scale = 15.5
public = false
[columns.ward]
kind = "category"
values = ["a", "b"]
public = true
[columns.sex]
kind = "category"
values = ["f", "m"]
public = false
[privacy]
epsilon = 1.0
"""


def test_all_that_waits_to_be_confirmed_is_named_in_one_sentence() -> None:
    with pytest.raises(StudyError) as refused:
        study_from(tomllib.loads(DRAFTED))
    assert "the label 'ill', column 'age', column 'sex'; correct" in str(refused.value)
    assert [each[1:] for each in confirmations(tomllib.loads(DRAFTED))] == [
        ("ill", "label", "classes no, yes"),
        ("age", "numbers", "bounds 0, 120, center 50, scale 15.5"),
        ("sex", "categories", "values f, m"),
    ]
    assert study_problems(tomllib.loads(DRAFTED)) == []  # it waits, and nothing is wrong with it
    wrong = DRAFTED.replace("epsilon = 1.0", "epsilon = 1.0\nnoise_multiplier = 3.0")
    (problem,) = study_problems(tomllib.loads(wrong))
    assert "exactly one of epsilon" in problem
    confirmed = tomllib.loads(DRAFTED.replace("public = false", "public = true"))
    assert study_problems(confirmed) == []
    bare = tomllib.loads(DRAFTED.replace("public = false", "").replace("public = true", ""))
    assert study_from(confirmed).hash == study_from(bare).hash


def test_confirming_changes_the_marks_that_are_asked_for_and_no_other_byte() -> None:
    text = DRAFTED.replace("[columns.sex]", '# [label]\n  [ columns . "sex" ]  # [x]').replace("\n", "\r\n")
    text = text.replace("public = false", "public   =\tfalse# is it?")
    for places, marks in [
        ({("label",)}, (True, False, False)),
        ({("columns", "age"), ("columns", "sex")}, (False, True, True)),
        (set(), (False, False, False)),
    ]:
        found = confirmed_text(text, places)
        said = tomllib.loads(found)
        assert (said["label"]["public"], *(said["columns"][name]["public"] for name in ("age", "sex"))) == marks
        assert found.replace("=\ttrue# is it?", "=\tfalse# is it?") == text
    for other in [
        'format = "dpadmm-study/2"\n[columns]\nage = {kind = "boolean", public = false}\n',
        '[columns.age]\nvalues = [\n["a"]\n]\npublic = false\n',
        "[columns]\nage.public = false\n",
    ]:
        with case(other), pytest.raises(StudyError, match="by hand"):
            confirmed_text(other, {("columns", "age")})


def test_a_confirmed_line_loses_its_question_and_keeps_other_comments() -> None:
    text = DRAFTED.replace("public = false", "public = false  # confirm: public?")
    age, sex = ("columns", "age"), ("columns", "sex")
    one = confirmed_text(text, {age})
    assert one.count("public = true\n") == DRAFTED.count("public = true\n") + 1
    assert one.count("public = false  # confirm: public?\n") == 2
    assert confirmed_text(one, {("label",), sex}) == DRAFTED.replace("public = false", "public = true")
    for before, after in [
        ("false # confirm: public?  ", "true"),
        ("false", "true"),
        ("false  # asked the board", "true  # asked the board"),
        ("false  # confirm: public? yes, by the board", "true  # yes, by the board"),
        ("false  # textbook # confirm: public?", "true  # textbook"),
    ]:
        for end in ("\n", "\r\n"):
            with case(before, end):
                lines = f"[columns.age]  # confirm: public?{end}public = {{}}{end}kind = 'boolean'  # confirm: public?"
                assert confirmed_text(lines.format(before), {age}) == lines.format(after)


def test_whatever_is_no_study_has_a_problem_and_no_traceback() -> None:
    for table in [
        {},
        {"columns": 3},
        {"columns": {"a": 3}, "label": 3, "training": 3, "provenance": 3},
        {"columns": {}, "features": []},
        {"columns": [{"name": 3}, 4], "label": {}},
        {"columns": {"a": {"kind": "number", "name": "b"}}, "label": {"column": "y"}},
        {"training": {"epsilon": [1]}, "features": "a", "format": "dpadmm-study/2", "name": "x"},
        tomllib.loads(DRAFTED) | {"row_norm": "x"},
        {**tomllib.loads(DRAFTED), "columns": {}},
    ]:
        with case(table):
            assert study_problems(table)
            with pytest.raises(StudyError):
                study_from(table)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "dpadmm-study/1", "colour": 3}, [r'format must be "dpadmm-study/2"']),
        ({"loss": {"name": "logistic", "foo": 3}}, ["loss: logistic has no parameter 'foo', and no parameters at all"]),
        ({"loss": {"name": "logistic", "delta": 0.5}}, ["loss: delta is a parameter of huber, not of logistic"]),
        ({"method": {"name": "dp_sgd", "rho": 0.5}}, ["method: rho is a parameter of dp_admm, admm.* not of dp_sgd"]),
        (
            {"method": {"name": "admm_pvp", "weight_radius": 1.0}},
            ["method: the method admm_pvp runs in simulations only; use auto, pgd, newton, dp_admm or dp_sgd"],
        ),
        ({"loss": {"delta": 0.5}}, ["loss: name is missing; known are"]),
        ({"privacy": {"epsilon": 0.0}}, ["privacy: epsilon must be a positive number, not 0.0"]),
    ],
)
def test_a_problem_says_its_table_and_what_to_do(changes: dict[str, Any], words: list[str]) -> None:
    table = tomllib.loads(DRAFTED.replace("public = false", "public = true")) | changes
    found = study_problems(table)
    assert len(found) == len(words)
    for sentence, pattern in zip(found, words, strict=True):
        assert re.search(pattern, sentence), sentence


@pytest.mark.parametrize(
    ("section", "key", "place"),
    [
        ("training", "quorum", "'quorum' at the top of the file, before all sections"),
        ("privacy", "deadlin", "'deadline' at the top of the file, before all sections"),
        ("training", "delta", "'delta' under [privacy]"),
        ("privacy", "n_rounds", "'n_rounds' under [training]"),
    ],
)
def test_an_unknown_key_is_reported_with_the_section_it_belongs_to(section: str, key: str, place: str) -> None:
    table = {"format": "dpadmm-study/2", "name": "x", "features": ["a"], section: {key: 1}}
    assert f"{section}: unknown setting {key!r}; did you mean {place}?" in study_problems(table)
