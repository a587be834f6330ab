"""Suggestions for typos, and none for other words."""

from __future__ import annotations

from looping import case

from dpadmm import Settings
from dpadmm.parameters.suggestions import near_name, unknown_name
from dpadmm.studies.reading import KEYS as STUDY
from dpadmm.studies.settings import nested_parameters

SETTINGS = tuple(nested_parameters(Settings))
COLUMNS = (
    *("age", "sex", "income", "severity", "smoker", "blood_group", "stage", "diagnosis", "score", "hospital"),
    *("patient_id", "systolic_bp", "weight", "height"),
)
LOSSES = ("hinge", "huber", "logistic", "softmax", "squared", "smoothed_hinge")


def test_a_typo_suggests_the_intended_name():
    for written, known, meant in [
        ("epsilonn", SETTINGS, "epsilon"),
        ("eps", SETTINGS, "epsilon"),
        ("rounds", SETTINGS, "n_rounds"),
        ("agents", SETTINGS, "n_agents"),
        ("noise_multplier", SETTINGS, "noise_multiplier"),
        ("noise", SETTINGS, "noise_multiplier"),
        ("learning_rate", SETTINGS, "method.learning_rate"),
        ("alpa", SETTINGS, "alpha"),
        ("regulariser", SETTINGS, "regularizer"),
        ("weight_radius", SETTINGS, "method.weight_radius"),
        ("max_iter", SETTINGS, "n_rounds"),
        ("random_state", SETTINGS, "seed"),
        ("data_norm", STUDY, "row_norm"),
        ("Age", COLUMNS, "age"),
        ("agee", COLUMNS, "age"),
        ("sxe", COLUMNS, "sex"),
        ("incme", COLUMNS, "income"),
        ("Blood Group", COLUMNS, "blood_group"),
        ("diagnose", COLUMNS, "diagnosis"),
        ("hospitl", COLUMNS, "hospital"),
        ("patient", COLUMNS, "patient_id"),
        ("hieght", COLUMNS, "height"),
        ("logstic", LOSSES, "logistic"),
        ("soft-max", LOSSES, "softmax"),
    ]:
        with case(written, known, meant):
            assert near_name(written, known) == meant


def test_other_words_suggest_nothing():
    for written, known in [
        *((word, SETTINGS) for word in ("seeds_of_noise", "iterations", "batch_size", "momentum", "lr")),
        *((word, SETTINGS) for word in ("penalty", "workers", "patience", "x", "")),
        *((word, COLUMNS) for word in ("colour", "region", "zip", "temperature", "cost", "gender", "bmi")),
        *((word, COLUMNS) for word in ("insurance", "outcome", "label", "image", "a", "_", "年齢")),
        *((word, LOSSES) for word in ("poisson", "mae", "crossentropy", "exponential")),
    ]:
        with case(written, known):
            assert near_name(written, known) is None


def test_names_in_use_are_not_suggested():
    known = ["age", "ages", "sex"]
    assert str(unknown_name("column", "agee", known, "t.csv")) == "t.csv has no column 'agee': did you mean 'age'?"
    for used, words in [
        (["sex"], ": did you mean 'age'?"),
        (["age", "agee"], ": did you mean 'ages'?"),
        (["age", "ages"], "; unused columns: 'sex'"),
        (known, "; it has no unused column"),
        (["absent"], ": did you mean 'age'?"),
    ]:
        with case(used):
            assert (
                str(unknown_name("column", "agee", known, "t.csv", used=iter(used)))
                == f"t.csv has no column 'agee'{words}"
            )


def test_a_list_of_names_starts_with_the_closest():
    known = [*(f"x{i}" for i in range(20)), "outcome_30d", "readmitted"]
    listing = "'outcome_30d', 'readmitted', 'x0', 'x1', 'x2', 'x3', 'x4', 'x5'"
    error = unknown_name("column", "Outcome at day", known, "t.csv", role="label")
    assert str(error) == f"the study's label 'Outcome at day' is no column of t.csv: it has {listing} and 14 more"
    error = unknown_name("column", "Outcome at day", known, "t.csv", used=["x19"])
    assert str(error) == f"t.csv has no column 'Outcome at day'; unused columns: {listing} and 13 more"
