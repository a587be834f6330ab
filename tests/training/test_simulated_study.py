"""A study simulated on a table: its settings and encoding, measures, simulated noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from looping import case
from mixed_tables import make_cells, make_study, to_toml, write_csv

from dpadmm import DataError, Study, StudyError, simulate, train
from dpadmm.studies.public_rows import PublicRows

N_ROWS = 600


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "rows.csv", make_cells(N_ROWS))


@pytest.mark.parametrize("method", ["auto", "dp_admm"])
@pytest.mark.parametrize("loss", ["logistic", "softmax", "squared"])
def test_without_test_rows_it_is_training_with_the_same_seed(table: Path, method: str, loss: str) -> None:
    study = make_study(loss, method=method)
    trained = train(study, table, seed=7)
    simulated = simulate(study, table, n_agents=1, test_rows=0, seed=7)
    np.testing.assert_allclose(simulated.weights, trained.weights, rtol=1e-6, atol=1e-9)  # rows in another order
    assert simulated.privacy.to_bytes() == trained.privacy.to_bytes()
    assert simulated.model.predict_table(table).shape == (N_ROWS,)  # by its own columns
    assert len(simulated.trace) == study.training.planned_rounds


def test_the_file_of_a_study_owners_and_rows_encoded_before(tmp_path: Path, table: Path) -> None:
    study = make_study(method="auto", n_rounds=None)
    (tmp_path / "study.toml").write_text(to_toml(study).replace("n_rounds = 25\n", ""))
    first = simulate(tmp_path / "study.toml", str(table), by="site", seed=1)
    assert first.names == ("a", "b", "c")
    assert first.study.training.n_rounds == first.outcome.rounds  # chosen by the rows' number, and kept
    assert "test_error_global" in first.trace.columns
    again = simulate(study, first.dataset, partition="groups", seed=1)
    np.testing.assert_array_equal(again.weights, first.weights)


def test_public_rows_of_the_study_are_the_start_as_in_training(tmp_path: Path, table: Path) -> None:
    public = write_csv(tmp_path / "public.csv", make_cells(100, seed=9))
    plain = make_study(method="auto")
    study = replace(plain, public_rows=PublicRows.of(public))
    trained = train(study, table, seed=7)
    simulated = simulate(study, table, n_agents=1, test_rows=0, seed=7)
    np.testing.assert_allclose(simulated.weights, trained.weights, rtol=1e-6, atol=1e-9)
    assert simulated.study.hash == trained.study.hash
    without = simulate(study, table, public=False, n_agents=1, test_rows=0, seed=7)
    np.testing.assert_array_equal(without.weights, simulate(plain, table, n_agents=1, test_rows=0, seed=7).weights)
    assert not np.allclose(without.weights, simulated.weights)
    with pytest.raises(DataError, match="is also the public table"):
        simulate(study, public)
    frame = pd.read_csv(public)
    with pytest.raises(DataError, match="has the same rows as the public table"):  # a frame has no bytes to compare
        train(study, frame)
    assert train(study, frame, public=False, seed=7).rows.n_agents == 1
    with pytest.raises(StudyError, match="cannot be combined"):
        simulate(study, table, warm_start=without.weights)


def test_a_study_of_plain_features_clips_rows() -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(200, 2)), rng.choice(["no", "yes"], 200)
    study = Study(name="two", features=("a", "b"), classes=("no", "yes"), training={"epsilon": 1.0})
    result = simulate(study, (features, labels), n_agents=2, seed=1)
    assert result.settings.clip_rows
    assert result.model.feature_names == ("a", "b")


def test_settings_of_the_study_cannot_be_overridden(table: Path) -> None:
    study = make_study()
    for words, options, complaint in [
        ((study, table), {"epsilon": 1.0}, "epsilon is set by the study; leave it out here"),
        ((study, table), {"method": "auto"}, "method is set by the study"),
        ((study, table), {"clip_rows": True}, "clip_rows is set by the study"),
        ((study, table), {"classes": ("no", "yes")}, "classes are set by the study"),
        ((study, table), {"agents": 3}, "unknown setting 'agents'; did you mean 'n_agents'"),
        ((study,), {}, "a study needs rows"),
        ((3, table), {}, "the first argument must be a study or its path, not int"),
        ((study, (np.eye(2), ["ill", "well"])), {}, "the rows have 2 features, but the study has 40"),
        (("synthetic",), {"by": "site", "epsilon": 1.0}, "by needs a study and its table"),
    ]:
        with case(words, options), pytest.raises((StudyError, DataError), match=complaint):
            simulate(*words, **options)


def test_a_data_frame_gives_the_same_model_as_its_file(table: Path) -> None:
    import pandas as pd

    for run in (train, simulate):
        with case(run):
            models = [run(make_study(), rows, seed=1).model for rows in (table, pd.read_csv(table))]
            np.testing.assert_array_equal(models[0].weights, models[1].weights)
            with pytest.raises(DataError, match=r"the path of a file, a data frame, an Arrow table or .*, not a int"):
                run(make_study(), 7)
