"""The run folder: TOML, JSON and CSV for any reader, and checks before a run."""

from __future__ import annotations

import csv
import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpadmm import simulate
from dpadmm.accounting.events import PureRelease
from dpadmm.accounting.verification import read_privacy_report
from dpadmm.engine.metrics import Trace
from dpadmm.errors import DataError
from dpadmm.files.atomic import atomic_file
from dpadmm.models.run import Result
from dpadmm.studies.settings import settings_from
from dpadmm.training.run_folder import (
    check_folder,
    end_values,
    finished,
    measures,
    remove_leftovers,
    summary,
    to_toml,
    used_settings,
    write_run,
)


@pytest.fixture(scope="module")
def result() -> Result:
    rng = np.random.default_rng(0)
    features = rng.uniform(-0.5, 0.5, (30, 3))
    labels = np.where(features[:, 0] > 0, 1, -1)
    return simulate((features, labels), epsilon=1.0, n_agents=3, n_rounds=4, metrics_every=2, seed=5)


def interrupted(result: Result, trace: Trace) -> Result:
    return replace(result, outcome=replace(result.outcome, interrupted=True), trace=trace)


values = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",))),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.lists(st.floats(allow_nan=False, allow_infinity=False)),
)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), values))
def test_toml_reads_back(table):
    assert tomllib.loads(to_toml(table)) == table


def test_toml_takes_numpy_values():
    table = {"a": np.float64(0.5), "b": np.arange(2), "c": np.bool_(True), "d": (1, 2)}
    assert tomllib.loads(to_toml(table)) == {"a": 0.5, "b": [0, 1], "c": True, "d": [1, 2]}


def test_used_settings_are_settings_again(result):
    assert settings_from(tomllib.loads(to_toml(used_settings(result)))) == result.settings


def test_everything_is_written_and_readable(result, tmp_path):
    write_run(tmp_path, {"1": result, "2": result}, how=used_settings(result), extra={"note": np.nan})
    with (tmp_path / "trace.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["round"], row["seed"]) for row in rows] == [
        (run, round_, "5") for run in "12" for round_ in "124"
    ]
    assert float(rows[0]["train_loss_global"]) == result.trace.columns["train_loss_global"][0]
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written["note"] is None
    assert written["runs"]["1"]["privacy"]["epsilon"] == pytest.approx(1.0, rel=1e-6)
    assert {path.name for path in tmp_path.glob("*.npz")} == {"model-1.npz", "model-2.npz"}
    assert not list(tmp_path.glob(".*"))


def test_only_new_models_are_written(result, tmp_path):
    write_run(tmp_path, {"1": result, "2": result}, how={}, new=["2"])
    assert [path.name for path in tmp_path.glob("*.npz")] == ["model-2.npz"]


def test_leftovers_of_an_earlier_run(tmp_path):
    kept = {"model-1.npz", "model-1.privacy.json", "mine.npz", "mine.svg", "mine.json"}
    for name in (*kept, "model-2.npz", "model-2.privacy.json", "convergence.svg"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path, ["1"])
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_privacy_report_for_every_run_with_gaussian_noise(result, tmp_path):
    write_run(tmp_path, {"1": result, "2": interrupted(result, result.trace)}, how={})
    first, second = (read_privacy_report(tmp_path / f"model-{name}.privacy.json") for name in "12")
    assert first.to_bytes() == second.to_bytes()
    (group,) = first.groups
    assert list(first.members(0).values()) == result.rows.n_rows.tolist()
    assert group.mu == pytest.approx(result.privacy.mu.max())
    assert first.noise == "simulated"
    pure = replace(result.method, noise_multiplier=np.ones(3))
    object.__setattr__(pure, "event", lambda query, noise_multiplier: PureRelease(0.1))
    write_run(tmp_path, {"1": replace(result, method=pure)}, how={})
    assert [path.name for path in tmp_path.glob("*.privacy.json")] == ["model-2.privacy.json"]


def test_a_run_without_measures_has_an_empty_trace_with_a_header(result, tmp_path):
    write_run(tmp_path, {"1": replace(result, trace=Trace({}))}, how={})
    assert (tmp_path / "trace.csv").read_text() == "run,seed,round\n"


def test_interrupted_runs_are_summarised(result):
    cut = interrupted(result, Trace({}))
    assert end_values([result, cut]) == end_values([result])
    assert end_values([]) == end_values([cut]) == {}
    assert finished([result, cut]) == [result]
    assert finished([cut]) == [cut]


def test_means_and_values_that_are_not_finite(result):
    bad = Trace({name: np.array([np.inf]) for name in result.trace.columns})
    with np.errstate(invalid="ignore"):
        found = measures([replace(result, trace=bad)])["train_loss_global"]
    assert found == {"mean": None, "std": None, "values": [None]}
    json.dumps(summary({"1": replace(result, trace=bad)}, {}), allow_nan=False)


def test_folders_are_checked_before_a_run(tmp_path):
    assert check_folder(tmp_path / "new" / "deep") == tmp_path / "new" / "deep"
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="not empty"):
        check_folder(tmp_path)
    assert check_folder(tmp_path, overwrite=True) == tmp_path
    with pytest.raises(DataError, match="is a file"):
        check_folder(tmp_path / "file", overwrite=True)
    with pytest.raises(DataError, match=r"cannot be created, because .*file is a file"):
        check_folder(tmp_path / "file" / "a" / "b")


def test_an_unfinished_file_leaves_the_old_one(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write() -> None:
        with atomic_file(path) as out:
            out.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert path.read_text() == "old"
    assert list(Path(tmp_path).iterdir()) == [path]
