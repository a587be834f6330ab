"""Counts and exposures: encoding, refusals and silent rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from looping import case

from dpadmm.data import encode_labels
from dpadmm.data.schema import Label, Number, Schema
from dpadmm.data.schema_file import label_as_json, label_from
from dpadmm.data.survey import survey_table
from dpadmm.data.table import encode_table
from dpadmm.errors import DataError, StudyError
from dpadmm.losses.poisson import coded, decoded

SCHEMA = Schema((Number("age", (0, 100)),))
VISITS = Label("visits", bounds=(0, 10), exposure="years", exposure_bound=4.0, counts=True)
DEATHS = Label("visits", exposure="years", times=(1.0, 4.0), counts=True)


def table(folder: Path, *rows: str) -> Path:
    path = folder / "t.csv"
    path.write_text("\n".join(["age,visits,years", *rows]) + "\n")
    return path


def test_labels_store_counts_and_exposures_to_1e_8() -> None:
    rng = np.random.default_rng(0)
    counts, exposures = rng.integers(1001, size=5000) / 1000.0, 10.0 ** rng.uniform(-5.0, 0.0, 5000)
    again = decoded(coded(counts, exposures))
    assert np.abs(again[0] - counts).max() < 1e-8
    assert np.abs(again[1] - exposures).max() < 1e-8
    assert (decoded(coded(counts, 1e-12))[1] > 0.0).all()  # never none, which would have no logarithm
    assert decoded(np.array([-3.5, 1e300]))[0].tolist() == [0.0, 1.0]


def test_cells_are_divided_by_the_maximum_and_late_events_are_censored(tmp_path: Path) -> None:
    path = table(tmp_path, "50,3,2", "50,25,9", "50,0,4")
    counts, exposures = decoded(encode_table(path, SCHEMA, VISITS).labels)
    np.testing.assert_allclose(counts, [0.3, 1.0, 0.0], atol=1e-8)
    np.testing.assert_allclose(exposures, [0.5, 1.0, 1.0], atol=1e-8)
    path = table(tmp_path, "50,1,2", "50,1,9", "50,0,9", "50,1,4")
    events, times = decoded(encode_table(path, SCHEMA, DEATHS).labels)
    assert events.tolist() == [1.0, 0.0, 0.0, 1.0]
    np.testing.assert_allclose(times, [0.5, 1.0, 1.0, 1.0], atol=1e-8)
    assert DEATHS.cuts == (0.25,)


def test_invalid_cells_are_named_to_owners_and_silent_at_agents(tmp_path: Path) -> None:
    """A refusal by an agent would reveal a cell. Rows of zeros reveal nothing and leave m unchanged."""
    for label, row, words in [
        (VISITS, "50,-1,2", "the label 'visits' is negative in row 2"),
        (VISITS, "50,1,0", "the exposure 'years' is missing, 0 or negative in row 2"),
        (VISITS, "50,1,-3", "the exposure 'years' is missing, 0 or negative in row 2"),
        (VISITS, "50,1,", "the exposure 'years' is missing, 0 or negative in row 2"),
        (VISITS, "50,,2", "missing in row 2"),
        (DEATHS, "50,2,2", "is neither 1 .an event. nor 0 in row 2"),
    ]:
        with case(row, words):
            path = table(tmp_path, "50,1,2", row, "50,0,1")
            with pytest.raises(DataError, match=words):
                encode_table(path, SCHEMA, label)
            silent = encode_table(path, SCHEMA, label, intercept=True, invalid_as_missing=True)
            assert (np.linalg.norm(silent.features, axis=1) > 0.0).tolist() == [True, False, True]  # type: ignore[arg-type]
            assert silent.report.label.unknown == 1
            assert len(survey_table(path, SCHEMA, label).problems) == 1
    assert not survey_table(table(tmp_path, "50,1,2"), SCHEMA, VISITS).problems
    found = survey_table(table(tmp_path, "50,1,2"), SCHEMA, replace(VISITS, exposure="yeers")).problems
    assert "did you mean 'years'" in found[0]


def test_label_reports_invalid_exposure_and_times() -> None:
    good: dict[str, Any] = {"column": "y", "bounds": (0, 5)}
    for more, words in [
        ({"exposure_bound": 3.0}, "need exposure: the column"),
        ({"times": (1, 2)}, "need exposure: the column"),
        ({"exposure": "y", "exposure_bound": 3.0}, "must be the name of another column"),
        ({"exposure": "t"}, "exposure_bound must be the largest exposure, above 0, not None"),
        ({"exposure": "t", "exposure_bound": 0.0}, "above 0, not 0.0"),
        ({"exposure": "t", "exposure_bound": float("inf")}, "finite numbers"),
        ({"exposure": "t", "times": (1, 2)}, "the label is 1 or 0, up to the last time"),
        ({"exposure": "t", "times": (2, 1), "bounds": None}, "times that rise from above 0"),
        ({"exposure": "t", "times": (0, 1), "bounds": None}, "times that rise from above 0"),
        ({"exposure": "t", "times": (1, 2), "bounds": None, "exposure_bound": 3.0}, "up to the last time"),
    ]:
        with case(more), pytest.raises(StudyError, match=words):
            Label(**{**good, **more})


def test_labels_round_trip() -> None:
    for label in (VISITS, DEATHS):
        assert replace(label_from(label_as_json(label)), counts=True) == label.normalized()
    assert label_as_json(Label("y", bounds=(0, 5))) == {"column": "y", "classes": None, "bounds": [0.0, 5.0]}


def test_plain_counts_must_be_divided_by_the_maximum() -> None:
    assert decoded(encode_labels([0, 0.25, 1], task="count"))[0].tolist() == [0.0, 0.25, 1.0]
    for bad in (-1, 3):
        with case(bad), pytest.raises(DataError, match=r"row 2: label .* is not between 0 and 1: divide counts"):
            encode_labels([0, bad], task="count")
