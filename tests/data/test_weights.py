"""Weights of rows: what a study may say, what cells become, and which are refused or silenced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from looping import case

from dpadmm.data.schema import Label, Number, Schema
from dpadmm.data.schema_file import label_as_json, label_from
from dpadmm.data.survey import survey_table
from dpadmm.data.table import encode_table
from dpadmm.errors import DataError, StudyError
from dpadmm.studies.json_schema import study_schema
from dpadmm.studies.reading import study_from, study_problems
from dpadmm.studies.study import Study

SCHEMA = Schema((Number("age", (0, 100)),))
BY_COLUMN = Label("ill", classes=("no", "yes"), weight="w", weight_bound=4.0)
BY_CLASS = Label("ill", classes=("no", "yes"), class_weight={"yes": 4.0, "no": 1.0})
BOTH = replace(BY_COLUMN, class_weight={"yes": 4.0, "no": 1.0})


def table(folder: Path, *rows: str) -> Path:
    path = folder / "t.csv"
    path.write_text("\n".join(["age,ill,w", *rows]) + "\n")
    return path


def study(label: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "format": "dpadmm-study/2",
        "name": "weighted",
        "columns": {"age": {"kind": "number", "bounds": [0, 100]}},
        "label": {"column": "ill", "classes": ["no", "yes"], **(label or {})},
        "privacy": {"epsilon": 1.0},
        **more,
    }


def test_weights_are_shares_of_the_bound_and_of_the_heaviest_class(tmp_path: Path) -> None:
    path = table(tmp_path, "50,no,2", "50,yes,1", "50,yes,9", "50,no,0", "50,yes,4")
    for label, weights in [
        (BY_COLUMN, [0.5, 0.25, 1.0, 0.0, 1.0]),
        (BY_CLASS, [0.25, 1.0, 1.0, 0.25, 1.0]),
        (BOTH, [0.125, 0.25, 1.0, 0.0, 1.0]),
    ]:
        with case(label):
            assert encode_table(path, SCHEMA, label).row_weights.tolist() == weights  # type: ignore[union-attr]
    found = encode_table(path, SCHEMA, BOTH)
    assert found.labels.tolist() == [-1.0, 1.0, 1.0, -1.0, 1.0]
    assert found.report.columns["w"].clamped == 1  # 9; 4 is the bound itself
    assert encode_table(path, SCHEMA, BOTH.unweighted).row_weights is None
    three = Label("ill", classes=("no", "perhaps", "yes"), class_weight={"no": 1, "perhaps": 2, "yes": 8})
    assert encode_table(path, SCHEMA, three).row_weights.tolist() == [0.125, 1.0, 1.0, 0.125, 1.0]  # type: ignore[union-attr]


@pytest.mark.filterwarnings("error")
def test_no_cell_is_so_large_that_an_agent_warns_of_it(tmp_path: Path) -> None:
    """A warning that a site has made an error would be a refusal that tells of a cell."""
    path = table(tmp_path, "50,no,1.7e308", "50,yes,5e-324")
    found = encode_table(path, SCHEMA, replace(BY_COLUMN, weight_bound=1e-310), invalid_as_missing=True)
    assert found.row_weights is not None
    assert found.row_weights[0] == 1.0 > found.row_weights[1] >= 0.0
    counts = Label("w", bounds=(0.0, 0.5), exposure="ill", exposure_bound=0.5, counts=True)
    path = table(tmp_path, "50,1.7e308,1.7e308", "50,5e-324,5e-324")
    assert encode_table(path, SCHEMA, counts, invalid_as_missing=True).labels[0] == 2.0**26  # all of both


def test_no_weight_at_all_is_named_to_owners_and_silent_at_agents(tmp_path: Path) -> None:
    """An agent's refusal would tell of a cell: rows of zeros say nothing, and leave m as it is."""
    for cell in ("-1", "", "nan", "inf", "-0.001"):
        with case(cell):
            path = table(tmp_path, "50,no,2", f"50,yes,{cell}", "50,no,1")
            with pytest.raises(DataError, match="the weight 'w' is missing, negative or infinite in row 2; correct"):
                encode_table(path, SCHEMA, BOTH)
            silent = encode_table(path, SCHEMA, BOTH, intercept=True, invalid_as_missing=True)
            assert (np.linalg.norm(silent.features, axis=1) > 0.0).tolist() == [True, False, True]  # type: ignore[arg-type]
            assert silent.row_weights is not None
            assert ((silent.row_weights >= 0.0) & (silent.row_weights <= 1.0)).all()
            assert silent.report.label.unknown == 1
            problems = survey_table(path, SCHEMA, BOTH).problems
            assert problems == [
                "the weight 'w' is missing, negative or infinite in row 2; correct the cells or leave the rows out"
            ]
    (problem,) = survey_table(table(tmp_path, "50,no,2", "50,yes,-1", "50,no,"), SCHEMA, BOTH).problems
    assert "infinite in 2 rows (2, 3); correct" in problem
    path = table(tmp_path, "50,no,2", "50,yes,heavy")
    with pytest.raises(DataError, match="'w'"):
        encode_table(path, SCHEMA, BOTH)
    assert encode_table(path, SCHEMA, BOTH, invalid_as_missing=True).report.label.unknown == 1


def test_a_survey_tells_of_missing_columns_and_of_weights_beyond_the_bound(tmp_path: Path) -> None:
    path = table(tmp_path, "50,no,2", "50,yes,9")
    found = survey_table(path, SCHEMA, BOTH)
    assert not found.problems
    assert [*found.warnings(SCHEMA)] == ["weights 'w': 50% are above their bound and clamped to it"]
    (problem,) = survey_table(path, SCHEMA, replace(BOTH, weight="wt")).problems
    assert problem == "the study's column of weights 'wt' is no column of t.csv; unused columns: 'w'"
    with pytest.raises(StudyError, match="wt"):
        encode_table(path, SCHEMA, replace(BOTH, weight="wt"))
    with pytest.raises(DataError, match=r"column 'age' cannot be a feature too: .* its exposure or weight"):
        encode_table(path, SCHEMA, replace(BOTH, weight="age"))


def test_a_label_says_what_is_wrong_with_its_weights() -> None:
    for more, words in [
        ({"weight_bound": 3.0}, "weight_bound needs weight: the column of weights"),
        ({"weight": "ill", "weight_bound": 3.0}, "weight must be the name of another column, not 'ill'"),
        ({"weight": " ", "weight_bound": 3.0}, "weight must be the name of another column"),
        ({"weight": "w"}, "weight_bound must be the largest weight, a public number above 0, not None"),
        ({"weight": "w", "weight_bound": 0.0}, "a public number above 0, not 0.0"),
        ({"weight": "w", "weight_bound": -1.0}, "a public number above 0, not -1.0"),
        ({"weight": "w", "weight_bound": float("inf")}, "must be finite numbers"),
        ({"class_weight": {"yes": 2.0}}, "for every class, and for 'no' it is missing"),
        ({"class_weight": {"yes": 2.0, "no": 0.0}}, "above 0 for every class, and for 'no' it is 0.0"),
        ({"class_weight": {"yes": 2.0, "no": "1"}}, "must be finite numbers"),
        ({"class_weight": {"yes": 2.0, "no": 1, "maybe": 1}}, "names 'maybe', which is none of its classes no, yes"),
        ({"class_weight": "balanced"}, "must be a table of classes and numbers"),
        ({"classes": None, "bounds": (0, 1), "class_weight": {"1": 2.0}}, "this label is a number; leave it out"),
    ]:
        with case(more), pytest.raises(StudyError, match=words):
            Label(**{"column": "ill", "classes": ("no", "yes"), **more})
    with pytest.raises(StudyError, match="name of another column, not 't'"):
        Label("y", bounds=(0, 5), exposure="t", exposure_bound=1.0, weight="t", weight_bound=1.0)


def test_a_study_keeps_its_weights_in_its_hash_and_others_keep_theirs() -> None:
    plain, more = study_from(study()), {"weight": "w", "weight_bound": 4, "class_weight": {"yes": 3, "no": 1}}
    weighted = study_from(study(more))
    assert len({plain.hash, weighted.hash, study_from(study({**more, "weight_bound": 5})).hash}) == 3
    swapped = study_from(study({**more, "class_weight": {"no": 1.0, "yes": 3.0}}))
    assert swapped.hash == weighted.hash
    again = study_from(weighted.as_json())
    assert (again.hash, again.label) == (weighted.hash, weighted.label)
    assert set(plain.as_json()["label"]) == {"column", "classes", "bounds"}  # as it was
    assert label_from(label_as_json(BOTH)) == BOTH
    assert weighted.problem.weighted
    assert not plain.problem.weighted


def test_a_study_says_what_weights_do_not_go_with() -> None:
    weight = {"weight": "w", "weight_bound": 4.0}
    numbers = {"classes": None, "bounds": [0, 1], **weight}
    for made, words in [
        (study({"weight": "age", "weight_bound": 1}), "'age' is the label's weight; remove it from"),
        (
            study(
                {key: value for key, value in numbers.items() if value is not None} | {"classes": None},
                loss={"name": "squared"},
                method={"name": "auto", "inference": True},
                training={"intercept": False},
            ),
            "requires intercept = true",
        ),
        (
            study(weight, kind="evaluation", evaluation={"weights": [0.1, 0.2]}, training={"intercept": True}),
            "weights apply to training only; remove them for kind = 'evaluation'",
        ),
    ]:
        with case(words):
            with pytest.raises(StudyError, match=words):
                study_from(made)
            assert len(study_problems(made)) == 1
    found = study_problems(study({"class_weight": {"yes": 3.0}, "weight_bund": 3}))
    assert "did you mean 'weight_bound'" in found[0]
    known = study_schema()["properties"]["label"]["properties"]
    assert {"weight", "weight_bound", "class_weight"} <= set(known)
    assert Study(name="x", features=("a",), training={"epsilon": 1.0}).label is None
