"""Tutorial tables: the forecast of ``plan`` from the public sample agrees with the result of ``train``."""

from __future__ import annotations

import runpy
from math import hypot, sqrt
from pathlib import Path

import numpy as np
import pytest

from conftest import Cli
from dpadmm.planning.costs import with_rounds_for
from dpadmm.planning.forecast import forecast_settings
from dpadmm.planning.measures import figures
from dpadmm.planning.scenarios import public_scenario
from dpadmm.studies.reading import read_study
from dpadmm.training.train import encode, prior_from, run_study

MAKE_TABLES = Path(__file__).parents[2] / "docs" / "data" / "make_tables.py"
DRAWS = 10
MEASURES = ("accuracy", "auc", "log_loss")


@pytest.fixture(scope="module")
def tables():
    return runpy.run_path(str(MAKE_TABLES))


def differences(cli: Cli, folder: Path) -> dict[str, float]:
    """Return forecast minus result in standard errors, which include sampling, noise and test rows."""
    study_file = folder / "study.toml"
    cli("study", "new", study_file, "--from", folder / "sample.csv", "--label", "ill", "--by", "hospital").succeeded()
    cli("study", "confirm", study_file, "--all").succeeded()
    study = read_study(study_file)
    rows, test = encode(study, folder / "patients.csv", by="hospital"), encode(study, folder / "test.csv")
    study = with_rounds_for(study, np.bincount(rows.groups))
    scenario = public_scenario(study, folder / "sample.csv", repeats=5, seed=1)
    forecast = forecast_settings(study, study.training, scenario, np.bincount(rows.groups), seed=1)
    weights = run_study(study, rows, seed=1, prior=prior_from(study, folder / "sample.csv")).weights
    result = figures(study.problem.loss, test.labels, test.features @ weights, np.zeros(1))
    found = {name: (forecast[name], *result[name][:2]) for name in MEASURES}
    return {name: (own.mean - mean) / hypot(own.spread, sqrt(error)) for name, (own, mean, error) in found.items()}


def test_results_are_within_two_standard_errors_of_their_forecasts(cli: Cli, tables, tmp_path: Path) -> None:
    """At least nine of ten draws, as expected for 95%, and the one on the pages."""
    found = []
    for draw in range(DRAWS):
        folder = tmp_path / str(draw)
        folder.mkdir()
        tables["write_tables"](folder, draw=draw)
        found.append(differences(cli, folder))
    for name in MEASURES:
        errors = np.array([item[name] for item in found])
        assert np.count_nonzero(np.abs(errors) <= 2.0) >= DRAWS - 1, (name, errors)
        assert abs(errors[0]) <= 2.0, name


def test_tutorial_study_is_recommended(cli: Cli, tables, tmp_path: Path) -> None:
    tables["write_tables"](tmp_path)
    study = tmp_path / "study.toml"
    cli("study", "new", study, "--from", tmp_path / "sample.csv", "--label", "ill", "--by", "hospital").succeeded()
    cli("study", "confirm", study, "--all").succeeded()
    rows = tables["SIZES"]["patients"] // 5
    call = ["plan", study, "--agents", 5, "--rows", rows, "--repeats", 3, "--epsilon", 1, "--rounds", 25, "--json"]
    found = cli(*call).succeeded().json
    assert found["verdict"] == "recommended", found["reason"]
