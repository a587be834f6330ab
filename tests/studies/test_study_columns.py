"""Studies of tables: columns with public bounds and values, and their label."""

from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from looping import case

from dpadmm.data.schema import KINDS, Boolean, Category, Column, Label, Number, Ordinal, Plain, Schema
from dpadmm.errors import StudyError
from dpadmm.sites.site import read_site
from dpadmm.studies.reading import study_from
from dpadmm.studies.study import Study
from dpadmm.training.train import train

TOML = """
format = "dpadmm-study/2"
name = "readmission"

[label]
column = "readmitted"
classes = ["no", "yes"]

[columns.age]
kind = "number"
bounds = [0, 120]

[columns.ward]
kind = "category"
values = ["surgery", "medicine", 3]

[columns.smoker]
kind = "boolean"
missing = "indicator"

[method]
name = "dp_admm"
[privacy]
epsilon = 1.0
delta = 1e-6
"""


def parsed(text: str = TOML, **changes: Any) -> Study:
    return study_from({**tomllib.loads(text), **changes})


def test_features_follow_from_the_columns_in_their_order() -> None:
    study = parsed()
    assert study.features == (
        "age", "ward=surgery", "ward=medicine", "ward=3", "ward=other", "smoker", "smoker missing",
    )  # fmt: skip
    assert (study.classes, study.shape) == (("no", "yes"), (7, 1))
    again = study_from(study.as_json())
    assert (again.schema, again.label, again.hash) == (study.schema, study.label.normalized(), study.hash)


def test_every_public_value_is_in_the_hash() -> None:
    for old, new in [
        ("[0, 120]", "[0, 121]"),
        ('"medicine", 3', '"medicine", 4'),
        ("columns.age", "columns.years"),
        ('missing = "indicator"', 'missing = "middle"'),
        ('"no", "yes"', '"yes", "no"'),
        ('"readmitted"', '"died"'),
        ('name = "readmission"', 'name = "readmission"\nrow_norm = 1.5'),
    ]:
        with case(old, new):
            assert parsed(TOML.replace(old, new)).hash != parsed().hash


def test_the_order_of_columns_is_in_the_hash_and_whole_numbers_are_numbers() -> None:
    table = tomllib.loads(TOML)
    turned = dict(reversed(table["columns"].items()))
    assert parsed(columns=turned).hash != parsed().hash
    assert parsed(TOML.replace("[0, 120]", "[0.0, 120.0]")).hash == parsed().hash


def test_a_mistake_is_one_sentence() -> None:
    for old, new, words in [
        ("bounds = [0, 120]", "", "column 'age': bounds is missing"),
        ("[0, 120]", "[120, 0]", "bounds must rise"),
        ("bounds", "bound", "unknown name 'bound'; did you mean 'bounds'"),
        ('"number"', '"numbr"', "kind must be one of"),
        ('"number"', '"text"', "a model cannot use text"),
        ("columns.age", "columns.patient_id", "looks like an identifier"),
        ("columns.age", "columns.readmitted", "looks like the label 'readmitted' itself"),
        ("columns.age", "columns.readmitted_on", "looks like the label"),
        (
            "bounds = [0, 120]",
            "bounds = [0, 120]\npublic = false",
            "these values were inferred from a table and are not confirmed as public: column 'age'; correct",
        ),
        ("bounds = [0, 120]", "bounds = [0, 120]\npublic = 'yes'", "public must be true or false"),
        ('classes = ["no", "yes"]', "", "either classes"),
        ('classes = ["no", "yes"]', 'classes = ["no"]', "list of 2"),
        ('classes = ["no", "yes"]', "bounds = [0, 1]", "the logistic loss requires classes under [label]"),
        ('column = "readmitted"', "", "column is missing"),
        ("[label]", "[labels]", "unknown setting 'labels'"),
        ('name = "readmission"', 'name = "x"\nfeatures = ["age"]', "give either"),
        ('name = "readmission"', 'name = "x"\nrow_norm = -1', "row_norm must be a positive number"),
        ('name = "readmission"', 'name = "x"\nadjacency = "add-remove"', 'adjacency must be "replace-one"'),
    ]:
        with case(old, new, words):
            assert old in TOML
            with pytest.raises(StudyError, match="study: ") as refused:
                parsed(TOML.replace(old, new, 1))
            assert words in str(refused.value)
            assert "\n" not in str(refused.value)


def test_what_looks_like_an_identifier_may_be_allowed() -> None:
    allowed = TOML.replace("columns.age", "columns.grid_id").replace("[0, 120]", "[0, 120]\nallow = true")
    study = parsed(allowed)
    assert study.features[0] == "grid_id"
    assert study_from(study.as_json()).hash == study.hash


def test_softmax_is_for_three_classes_or_more() -> None:
    with pytest.raises(StudyError, match="use the logistic loss for two"):
        parsed(loss={"name": "softmax"})


def test_a_site_encodes_its_table_by_the_study_s_schema(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(
        "who,smoker,age,ward,outcome\n1,yes,60,surgery,no\n1,no,60,3,yes\n2,,240,attic,yes\n"
    )
    (tmp_path / "site.toml").write_text(
        'format = "dpadmm-site/2"\nledger = "ledger"\n[data]\ntable = "table.csv"\nlabel = "outcome"\n'
        '[person]\ncolumn = "who"\nrows = 1\n[limits]\nepsilon = 1.0\ndelta = 1e-6\nmethods = ["dp_admm"]\n'
        'losses = ["logistic"]\nmax_rounds = 100\nmin_rows = 2\n'
    )
    site = read_site(tmp_path / "site.toml")
    rows = site.open_rows(parsed())
    found = np.asarray(rows._rows.features) * np.sqrt(3)
    # the second row is one too many of its person: silent, and not dropped
    wanted = [[0, 1, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 1, 0, 1]]
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert rows._rows.labels.tolist() == [-1.0, 1.0, 1.0]
    site.begin()
    with site.guard() as guard:
        assert guard.enrol(parsed()).rows.n_rows == 3


MADE: dict[str, Column] = {
    "number": Number("age", (1, 120), center=2.0, scale=1.5),
    "category": Category("ward", ("surgery", "medicine")),
    "ordinal": Ordinal("grade", ("low", "high")),
    "boolean": Boolean("smoker"),
    "plain": Plain("score"),
}
OTHER_FIELDS: dict[str, dict[str, Any]] = {
    "number": {
        "name": "years", "bounds": (1, 121), "missing": "indicator", "transform": "log", "bins": (30.0,),
        "center": 3.0, "scale": 2.0, "knots": (30.0,),
    },
    "category": {"name": "unit", "values": ("medicine", "surgery"), "unseen": ("other",)},
    "ordinal": {"name": "level", "values": ("high", "low"), "missing": "indicator"},
    "boolean": {"name": "smokes", "missing": "indicator"},
    "plain": {"name": "points"},
}  # fmt: skip


def of_columns(columns: dict[str, Column], label: Label | None = None, norm: float | None = None, **more: Any) -> Study:
    label = label or Label("ill", classes=("no", "yes"))
    training = {"epsilon": 1.0, "delta": 1e-6, "loss": "squared" if label.bounds else "logistic"}
    return Study(name="s", schema=Schema(tuple(columns.values()), norm, **more), label=label, training=training)


def test_every_field_of_every_kind_of_column_and_label_is_in_the_hash() -> None:
    """What a cell becomes is agreed on: no field may be left out of what the hash is of, or of the JSON."""
    changed = {"": of_columns(MADE), "row_norm": of_columns(MADE, norm=1.5)}
    for kind, made in MADE.items():
        assert OTHER_FIELDS[kind].keys() == {each.name for each in fields(made)}
        for name, value in OTHER_FIELDS[kind].items():
            beside = {"center": None, "scale": None} if name in ("bins", "knots") else {}  # these have none
            changed[f"{kind} {name}"] = of_columns({**MADE, kind: replace(made, **beside, **{name: value})})
    for pairs in ((("age", "ward"),), (("ward", "age"),), (("age", "ward"), ("ward", "smoker"))):
        changed[f"interactions {pairs}"] = of_columns(MADE, interactions=pairs)
    changed["bounds alone"] = of_columns({**MADE, "number": replace(MADE["number"], center=None, scale=None)})
    own = {"column", "classes", "bounds", "plain", "counts", "exposure", "exposure_bound", "times"}
    assert {each.name for each in fields(Label)} == own | {
        "weight",
        "weight_bound",
        "class_weight",
        "drop_missing_labels",
    }
    for more in (
        *({"weight": name, "weight_bound": bound} for name in "wv" for bound in (1.0, 2.0)),
        *({"class_weight": {"no": 1.0, "yes": each}} for each in (1.0, 2.0)),
    ):
        changed[f"weights {more}"] = of_columns(MADE, Label("ill", classes=("no", "yes"), **more))  # type: ignore[arg-type]
    for label in (
        Label("ill", bounds=(0.0, 1.0)),
        *(Label("ill", bounds=(0.0, 1.0), exposure=name, exposure_bound=b) for name in "tu" for b in (1.0, 2.0)),
        *(Label("ill", exposure="t", times=times) for times in ((1.0,), (1.0, 2.0), (1.0, 3.0))),
    ):
        counts = of_columns(MADE).training.with_changes(
            loss="poisson", intercept=True, method={"name": "auto", "inference": True}
        )
        changed[f"{label}"] = replace(of_columns(MADE, Label("ill", bounds=(0, 1))), label=label, training=counts)
    for bounds in ((0.0, 1.0), (0.0, 2.0)):
        changed[f"label {bounds}"] = of_columns(MADE, Label("ill", bounds=bounds))
    changed["label classes"] = of_columns(MADE, Label("ill", classes=("yes", "no")))
    changed["drop_missing_labels"] = of_columns(MADE, Label("ill", classes=("no", "yes"), drop_missing_labels=True))
    changed["label column"] = of_columns(MADE, Label("sick", classes=("no", "yes")))
    assert MADE.keys() == KINDS.keys()
    assert len({study.hash for study in changed.values()}) == len(changed)
    for study in changed.values():
        again = study_from(study.as_json())
        assert (again.schema, again.label, again.hash) == (study.schema, study.label.normalized(), study.hash)


def test_a_study_made_in_python_has_the_values_of_its_file(tmp_path: Path) -> None:
    bounds = [0, 5]
    columns = (Number("a", bounds=[0, 1], knots=[0.5]), Category("c", values=(1, 2)))  # type: ignore[arg-type]
    label = Label("y", bounds=bounds)  # type: ignore[arg-type]
    training = {"loss": "squared", "epsilon": 1.0, "n_rounds": 4}
    study = Study(name="lists", schema=Schema(columns), label=label, training=training)
    bounds[1] = 500  # after the study was made
    assert study.label == Label("y", bounds=(0.0, 5.0))
    assert study.schema is not None
    assert study.schema.columns == (Number("a", (0.0, 1.0), knots=(0.5,)), Category("c", ("1", "2")))
    (tmp_path / "t.csv").write_text("a,c,y\n0.5,1,2\n1,2,3\n0,1,4\n")
    assert train(study, tmp_path / "t.csv", seed=1).study.hash == study.hash
