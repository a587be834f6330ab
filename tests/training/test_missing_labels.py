"""Rows with missing labels: an error, or rows of zeros that still count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import dpadmm
from dpadmm import DataError, Study
from dpadmm.data.schema import Category, Label, Number, Schema
from dpadmm.data.schema_file import label_as_json, label_from
from dpadmm.data.table import encode_table
from dpadmm.queries import make_query
from dpadmm.queries.problem import make_rows
from dpadmm.studies.reading import study_from
from dpadmm.training.train import encode, prior_from
from dpadmm.trusted.discrete_gaussian import Lattice
from dpadmm.trusted.private_rows import CheckedRows, protect
from dpadmm.trusted.unit import ONE_ROW

SCHEMA = Schema((Number("age", (0, 100)), Category("sex", ("f", "m"))))
LABEL = Label("ill", classes=("no", "yes"), drop_missing_labels=True)
STUDY = Study(name="x", schema=SCHEMA, label=LABEL, training={"epsilon": 1.0, "delta": 1e-5, "intercept": True})
N = 200


def frame(*missing: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    cells = pd.DataFrame(
        {"age": rng.uniform(0, 100, N), "sex": rng.choice(["f", "m"], N), "ill": rng.choice(["no", "yes"], N)}
    )
    cells.loc[list(missing), "ill"] = None
    return cells


def test_the_setting_is_off_by_default_and_part_of_the_study() -> None:
    off = replace(STUDY, label=replace(LABEL, drop_missing_labels=False))
    with pytest.raises(DataError, match=r"the label 'ill' is missing in 2 rows \(2, 5\).*drop_missing_labels = true"):
        dpadmm.train(off, frame(1, 4))
    assert off.hash != STUDY.hash
    assert study_from(STUDY.as_json()).label == LABEL
    assert label_from({**label_as_json(LABEL)}) == LABEL
    assert "drop_missing_labels" not in label_as_json(off.label)  # type: ignore[arg-type]
    with pytest.raises(dpadmm.StudyError, match="drop_missing_labels must be true or false"):
        replace(LABEL, drop_missing_labels="yes")  # type: ignore[arg-type]


def test_another_class_is_an_error_in_any_case() -> None:
    table = frame(1)
    table.loc[3, "ill"] = "maybe"
    with pytest.raises(DataError, match="none of the classes no, yes in row 4"):
        dpadmm.train(STUDY, table)


def test_the_number_of_rows_does_not_depend_on_missing_labels() -> None:
    """m, the rows of every agent and the noise are those of all rows, so nothing shows which labels are missing."""
    whole, some = (dpadmm.train(STUDY, frame(*missing), n_agents=3, seed=1) for missing in ((), (1, 4, 100)))
    assert list(whole.n_rows) == list(some.n_rows)
    assert whole.privacy.to_dict()["epsilon"] == some.privacy.to_dict()["epsilon"]
    assert whole.training == some.training


def test_such_a_row_is_a_row_of_zeros_also_in_the_constant_column() -> None:
    encoded = encode(STUDY, frame(1, 4))
    sizes = np.linalg.norm(encoded.features.toarray(), axis=1)  # type: ignore[union-attr]
    assert np.flatnonzero(sizes == 0.0).tolist() == [1, 4]
    assert encoded.report.label.unknown == 2
    assert encode_table(
        frame(1, 4), SCHEMA, LABEL, intercept=True, invalid_as_missing=True
    ).features.values.tobytes() == (  # type: ignore[union-attr]
        encoded.features.values.tobytes()  # type: ignore[union-attr]
    )


def test_a_label_that_goes_missing_moves_a_sum_by_at_most_its_sensitivity() -> None:
    """Neighbours: one label is missing in one of the tables. Only its own row changes, to one without a gradient."""
    query = make_query("gradient", STUDY.problem, STUDY.shape[0])
    point = np.random.default_rng(1).normal(size=(STUDY.shape[0], 1))
    sums = []
    for missing in ((4,), (4, 7)):
        table = encode(STUDY, frame(*missing))
        rows = CheckedRows(protect(table.features, table.labels, ONE_ROW))
        assert rows.n_rows == N
        lattice = Lattice(query.row_norm, int(np.prod(query.shape)), N)
        sums.append(rows.total(query, point, lattice) * lattice.step)
    table = encode(STUDY, frame(4))
    twice = make_rows(table.features[np.array([7, 7])], table.labels[[7, 7]])
    gradient = 0.5 * query.sums(twice, point[None], bound=query.row_norm)[0]
    np.testing.assert_allclose(sums[0] - sums[1], gradient, atol=1e-6)
    assert np.linalg.norm(sums[0] - sums[1]) <= query.row_norm * (1.0 + 1e-6)


def test_public_rows_without_a_label_are_left_out() -> None:
    table = frame(1, 4)
    prior, expected = prior_from(STUDY, table), prior_from(STUDY, table.drop(index=[1, 4]))
    assert prior.n_rows == N - 2
    np.testing.assert_array_equal(prior.weights, expected.weights)
