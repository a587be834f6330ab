"""A site's table in the encoding of a study: label, persons, warnings for the owner."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from dpadmm.data.schema import Category, Label, Number, Schema
from dpadmm.errors import DataError
from dpadmm.methods import StatisticsRelease
from dpadmm.sites.table import SiteRows
from dpadmm.studies.settings import Training
from dpadmm.studies.study import Study
from dpadmm.trusted.unit import PrivacyUnit

COLUMNS = Schema((Number("age", (0.0, 0.25)), Number("income", (0.0, 1.0)), Category("note", ("late", "x"))))


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, "late,0.5,7,0.3,yes", ",0.2,8,0.3,no", "x,0.1,7,0.2,no")
    return tmp_path


def write(folder, *rows):
    (folder / "table.csv").write_text("\n".join(["note,income,who,age,repaid", *rows, ""]))


def table(folder, *, label="repaid", person="who", name="table.csv"):
    return SiteRows(folder / "site.toml", folder / name, label, PrivacyUnit(2, person))


def archive(folder, *, label=None, person=None, **arrays):
    np.savez(folder / "table.npz", features=np.eye(3), **arrays)
    return table(folder, label=label, person=person, name="table.npz")


def a_study(**parts):
    training = {"epsilon": 0.2, "delta": 1e-6, "n_rounds": 5, "loss": parts.pop("loss", "logistic")}
    given = {"name": "loans", "features": ("age", "income"), "classes": ("no", "yes")}
    return Study(**{**given, "training": training, **parts})


def schema_study(column="repaid"):
    return a_study(features=(), classes=None, schema=COLUMNS, label=Label(column, classes=("no", "yes")))


def encoded(rows, study):
    protected = rows.encoded(study)
    return np.asarray(protected.features), protected.labels.tolist()


# The label


def test_without_classes_labels_are_minus_1_and_1(folder):
    write(folder, "x,0.5,a,0.3,1", "x,0.5,b,0.3,-1", "x,0.5,c,0.3,2", "x,0.5,d,0.3,-2")
    features, labels = encoded(table(folder), a_study(classes=None))
    assert labels == [1.0, -1.0, -1.0, -1.0]
    assert features.any(axis=1).tolist() == [True, True, False, False]  # 2 is no class


def test_a_numeric_label_is_not_changed(folder):
    write(folder, "x,0.5,a,0.3,0.25", "x,0.5,b,0.3,-7")
    _, labels = encoded(table(folder), a_study(classes=None, loss="squared"))
    assert labels == [0.25, -7.0]


def test_two_classes_need_the_logistic_loss(folder):
    with pytest.raises(DataError, match="for two classes, use the loss logistic"):
        table(folder).encoded(a_study(loss="softmax"))


def test_the_label_is_the_site_s_column_or_else_the_study_s(folder):
    for label, column in (("repaid", "outcome"), (None, "repaid")):
        _, labels = encoded(table(folder, label=label), schema_study(column))
        assert labels == [1.0, -1.0, -1.0]


def test_the_person_column_cannot_be_the_label(folder):
    with pytest.raises(DataError, match="'who' is the person column, but the study uses it as the label"):
        table(folder, label=None).encoded(schema_study("who"))
    study = schema_study("y")
    weighted = replace(study, label=replace(study.label, weight="who", weight_bound=1.0))
    with pytest.raises(DataError, match="'who' is the person column, but the study uses it as exposure or weight"):
        table(folder, label=None).encoded(weighted)


def test_weights_are_kept_with_the_rows_and_missing_ones_are_reported(folder):
    write(folder, "late,0.5,4,0.3,yes", ",0.2,-1,0.3,no", "x,0.1,2,0.2,no")
    plain = schema_study()
    weighted = replace(plain, label=replace(plain.label, weight="who", weight_bound=8.0))
    site = table(folder, person=None)
    rows = site.encoded(weighted)
    assert rows.row_weights[[0, 2]].tolist() == [0.5, 0.25]
    assert np.asarray(rows.features).any(axis=1).tolist() == [True, False, True]
    assert "1 of 3 rows have an unknown label or weight; they are replaced with zeros." in site.warnings(weighted)
    assert site.encoded(plain).row_weights is None
    assert not any("have no" in each for each in site.warnings(plain))
    write(folder, "late,0.5,4,0.3,yes", ",0.2,1,0.3,perhaps")
    assert "1 of 2 rows have an unknown label; they are replaced with zeros." in table(folder, person=None).warnings(
        plain
    )


@pytest.mark.parametrize(
    ("label", "labels", "parts", "complaint"),
    [
        (
            None,
            ["no", "hm", "yes"],
            {},
            ", column 'labels', row 2: label 'hm' is not one of the declared classes 'no', 'yes'",
        ),
        ("y", [1, -1, 0], {"classes": None}, ", column 'y', row 3: label 0 is not one of the declared classes -1, 1"),
        (
            None,
            [1.0, np.nan, 1.0],
            {"classes": None},
            ", column 'labels', row 2: the label is missing or not finite (nan)",
        ),
    ],
)
def test_a_label_of_an_archive_that_is_no_class_is_one_sentence(folder, label, labels, parts, complaint):
    site = archive(folder, label=label, **{label or "labels": np.array(labels)})
    with pytest.raises(DataError) as caught:
        site.encoded(a_study(features=("x1", "x2"), **parts))
    said = str(caught.value)
    assert said.startswith(f"{folder / 'table.npz'}{complaint}")
    assert said.endswith("; correct the row or leave it out")
    assert "declare the" not in said


def test_a_column_that_an_archive_does_not_have_is_one_sentence(folder):
    site = archive(folder, labels=np.array(["no", "yes", "no"]))
    with pytest.raises(DataError, match="has no column 'x4': its columns are called x1, x2 to x3"):
        site.encoded(a_study(features=("x1", "x4")))


@pytest.mark.parametrize("name", ["table.csv", "table.parquet"])
def test_whether_a_table_can_be_encoded_does_not_depend_on_its_cells(folder, name):
    """This includes studies with a list of features: missing numbers and unknown labels are accepted."""
    write(folder, "late,0.5,7,0.3,yes", ",,8,0.3,no", "x,0.1,7,0.2,perhaps")
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(folder / "table.csv"), folder / "table.parquet")
    features, labels = encoded(table(folder, name=name), a_study())
    np.testing.assert_allclose(features[:2], [[0.3, 0.5], [0.3, 0.0]], rtol=1e-6)
    assert not features[2].any()
    assert len(labels) == 3


def test_a_person_column_that_is_not_there_is_one_sentence(folder):
    with pytest.raises(DataError, match="no column 'whom'"):
        table(folder, person="whom").encoded(schema_study())


# Persons


def test_persons_are_counted_without_a_label_and_only_beside_one_that_is_there(folder):
    assert table(folder, label=None).persons().n_persons == 2
    with pytest.raises(DataError, match="did you mean 'repaid'"):
        table(folder, label="repayed").persons()


def test_persons_of_an_archive_are_those_that_the_owner_names(folder):
    labels, groups = np.array(["no", "yes", "no"]), np.array([7, 8, 7])
    for person, n_persons in (("groups", 2), (None, None)):
        site = archive(folder, person=person, labels=labels, groups=groups)
        assert site.persons().n_persons == n_persons
        features, _ = encoded(site, a_study(features=("x1", "x2")))
        assert features.tolist() == [[1, 0], [0, 1], [0, 0]]


# What the owner is told


def test_unusable_rows_are_reported_to_the_owner(folder):
    rows = ["late,0.5,a,0.20,no", "x,0.5,b,0.50,yes", "x,,c,0.10,no", "early,0.5,d,0.10,perhaps"]
    write(folder, *rows)
    assert table(folder).warnings(schema_study()) == [
        "1 of 4 rows have an unknown label; they are replaced with zeros.",
        "of 4 cells clamped in columns 'age' 1; the same units?",
        "of 4 cells unknown in columns 'note' 1; the same spelling?",
        "of 4 cells missing in columns 'income' 1",
    ]
    write(folder, rows[0])
    assert table(folder).warnings(schema_study()) == []
    write(folder, rows[3], rows[3])
    assert table(folder).warnings(schema_study())[1].startswith("NO row has a label of this study")


@pytest.mark.parametrize(
    ("persons", "said"),
    [
        (["a", ""], ["1 row has no id, and 0 ids are written in different ways"]),
        (["a", "A"], ["0 rows have no id, and 1 id is written in different ways"]),
        (["a", "b"], []),
    ],
)
def test_unusable_ids_are_reported_to_the_owner(folder, persons, said):
    write(folder, *(f"x,0.5,{person},0.3,no" for person in persons))
    remarks = table(folder).warnings(a_study())
    assert remarks == [f"{each}; such rows are replaced with zeros." for each in said]


def test_a_study_that_does_not_fit_the_table_is_an_error(folder):
    with pytest.raises(DataError, match="did you mean 'income'"):
        table(folder).warnings(a_study(features=("age", "incom")))


def test_tables_with_named_columns_are_surveyed_and_archives_are_not(folder):
    survey = table(folder).survey(a_study())
    assert (survey.rows, list(survey.columns)) == (3, ["age", "income"])
    site, study = archive(folder, labels=np.array(["no", "yes", "no"])), a_study(features=("x1", "x2"))
    assert site.survey(study) is None
    assert site.warnings(study) == []


def test_statistics_take_every_column_but_that_of_persons(folder):
    """The label is an ordinary column. Missing and unknown cells are counted in their bins."""
    training = Training(method=StatisticsRelease(bins=2), noise_multiplier=20.0)
    columns = (*COLUMNS.columns, Category("repaid", ("no", "yes")))
    study = Study(name="counts", schema=Schema(columns), training=training)
    rows = table(folder).encoded(study)
    assert study.encoding is not None
    counts = dict(
        zip(study.features, (rows.features.toarray().sum(axis=0) * study.encoding.scale).round(3), strict=True)
    )
    assert {name: counts[name] for name in ("note: (missing)", "repaid: yes", "repaid: no", "note: late")} == {
        "note: (missing)": 1.0,
        "repaid: yes": 1.0,
        "repaid: no": 2.0,
        "note: late": 1.0,
    }
    assert rows.labels.tolist() == [0.0, 0.0, 0.0]
    assert table(folder).survey(study).columns.keys() == {"age", "income", "note", "repaid"}
    with_person = Study(name="counts", schema=Schema((*columns, Category("who", ("7", "8")))), training=training)
    with pytest.raises(DataError, match="'who' cannot be a feature too"):
        table(folder).encoded(with_person)
