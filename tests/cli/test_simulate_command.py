"""``dpadmm simulate``: files, run folder, one sentence for every error, interruption at any time."""

from __future__ import annotations

import csv
import errno
import json
import os
import pty
import re
import signal
import subprocess
import time
import tomllib
from collections.abc import Callable
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import mixed_tables
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from looping import case
from scipy.sparse import csr_array

import dpadmm
from dpadmm.models.file import load_model
from dpadmm.parameters.fields import parameters
from dpadmm.training.run_folder import to_toml

pytestmark = pytest.mark.usefixtures("sketched")  # the figure of `run_folder` is drawn before

N_ROWS = 60
FEATURES = [f"x{j}" for j in range(3)]


def make_table(rows: int = N_ROWS) -> dict[str, list]:
    """Rows of norm ≤ 1 with the label of a line through the origin, three owners."""
    rng = np.random.default_rng(0)
    features = rng.uniform(-1.0, 1.0, (rows, 3)) / np.sqrt(3.0)
    columns: dict[str, list] = dict(zip(FEATURES, features.T.tolist(), strict=True))
    columns["label"] = ["yes" if row[0] > row[1] else "no" for row in features]
    columns["owner"] = [("north", "south", "west")[i % 3] for i in range(rows)]
    columns["level"] = [("low", "middle", "high")[int(3 * (row[0] + 0.58) / 1.16)] for row in features]
    columns["price"] = (features @ [0.5, -0.5, 0.2]).tolist()
    return columns


def write_csv(path: Path, columns: dict[str, list]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def only(*names: str) -> dict[str, list]:
    table = make_table()
    return {name: table[name] for name in (*FEATURES, *names)}


@pytest.fixture
def rows_csv(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "rows.csv", only("label"))


BINARY = ["--label", "label", "--classes", "no,yes"]
QUICK = ["-e", "2", "-n", "3", "-t", "4", "--seed", "7"]


# --- bad input ---------------------------------------------------------------------------------------------

Make = Callable[[Path], list]
"""folder -> words of the command line that differ from a good one."""


def _cell(column: str, value: object) -> Make:
    def make(folder: Path) -> list:
        table = only("label")
        table[column][4] = value
        return ["--data", write_csv(folder / "bad.csv", table), *BINARY]

    return make


def _file(name: str, content: bytes) -> Make:
    def make(folder: Path) -> list:
        (folder / name).write_bytes(content)
        return ["--data", folder / name, *BINARY]

    return make


def _npz(**arrays: object) -> Make:
    def make(folder: Path) -> list:
        np.savez(folder / "bad.npz", **arrays)
        return ["--data", folder / "bad.npz"]

    return make


def _toml(text: str) -> Make:
    def make(folder: Path) -> list:
        (folder / "bad.toml").write_text(text)
        return ["--config", folder / "bad.toml"]

    return make


def _lonely_owner(folder: Path) -> list:
    table = only("label", "owner")
    table["owner"][4] = "east"
    return ["--data", write_csv(folder / "lonely.csv", table), *BINARY, "--by", "owner"]


def _unreadable(folder: Path) -> list:
    (folder / "rows.parquet").write_bytes(b"PAR1 but not really")
    return ["--data", folder / "rows.parquet", *BINARY]


def _directory(folder: Path) -> list:
    (folder / "d.csv").mkdir()
    return ["--data", folder / "d.csv", *BINARY]


def _config_directory(folder: Path) -> list:
    return ["--config", folder]


def _config_bytes(folder: Path) -> list:
    (folder / "bad.toml").write_bytes(b"\xff\xfe")
    return ["--config", folder / "bad.toml"]


def _words(*words: str) -> Make:
    return lambda folder: list(words)


EYE = np.eye(4) / 2
BAD = {
    # the file
    "NaN": (_cell("x1", "nan"), "row 5.*x1|x1.*row 5"),
    "infinity": (_cell("x1", "inf"), "row 5.*x1|x1.*row 5"),
    "empty cell": (_cell("x1", ""), "row 5.*x1|x1.*row 5"),
    "text cell": (_cell("x1", "many"), "row 5.*x1|x1.*row 5"),
    "label outside the classes": (_cell("label", "maybe"), "row 5: label 'maybe' is not one of"),
    "missing label": (_cell("label", ""), "row 5: the label is missing"),
    "long row": (_cell("x1", 1.5), r"row 5 has L2 norm 1\.5.* > 1 .*--clip-rows"),
    "empty file": (_file("empty.csv", b""), "empty.csv is empty"),
    "header only": (_file("head.csv", b"x0,label\n"), "head.csv has no rows"),
    "no features": (_file("bare.csv", b"label\nno\nyes\n"), "no feature"),
    "ragged": (_file("ragged.csv", b"a,label\n1,no\n1,2,yes\n"), "ragged.csv"),
    "unknown ending": (_file("rows.sav", b"1"), r"unknown ending '\.sav'.*CSV"),
    "no Excel file": (_file("rows.xls", b"1"), r"rows\.xls cannot be read as XLS: it is no Excel .*\.csv$"),
    "not parquet": (_unreadable, "rows.parquet"),
    "directory": (_directory, "is a directory"),
    "no such file": (_words("--data", "nowhere.csv"), "nowhere.csv does not exist"),
    "no such data set": (_words("--data", "adlut"), "no data set and no file 'adlut'.*adult, synthetic"),
    "no data": (_words(), "no data given"),
    "no label given": (lambda folder: ["--data", _cell("x0", 0.1)(folder)[1]], "label"),
    "unknown label": (lambda folder: [*_cell("x0", 0.1)(folder), "--label", "labl"], "did you mean 'label'"),
    "unknown owner": (lambda folder: [*_cell("x0", 0.1)(folder), "--by", "ownr"], "no column 'ownr'"),
    "agent with one row": (_lonely_owner, "agent east has one row"),
    "npz without labels": (_npz(features=EYE), "labels"),
    "npz with few labels": (_npz(features=EYE, labels=np.ones(3)), "4 rows|3 labels"),
    "npz with a cube": (_npz(features=np.zeros((2, 2, 2)), labels=np.ones(2)), "matrix|dimension"),
    "npz with a label table": (_npz(features=EYE, labels=np.ones((4, 2))), r"\(4, 2\)"),
    "npz with text": (_npz(features=np.full((2, 2), "a"), labels=np.ones(2)), "numeric"),
    "npz with NaN": (_npz(features=np.array([[0.1], [np.nan]]), labels=np.array([1, -1])), "row 2"),
    "npz with objects": (_npz(features=np.array([{}, {}]), labels=np.ones(2)), "bad.npz"),
    # the settings
    "more agents than rows": (_words("--data", "synthetic", "-n", "99999"), "99999 agents cannot share"),
    "one row each": (_words("--data", "synthetic", "-n", "16000"), "has one row"),
    "epsilon 0": (_words("--data", "synthetic", "-e", "0"), "epsilon must be a positive number .*, not 0.0"),
    "epsilon negative": (_words("--data", "synthetic", "--epsilon=-1"), "epsilon must be a positive .*, not -1.0"),
    "epsilon NaN": (_words("--data", "synthetic", "-e", "nan"), "epsilon must be a positive number .*, not nan"),
    "epsilon text": (_words("--data", "synthetic", "-e", "much"), "epsilon must be a number, .*'much'"),
    "epsilon for others": (_words("--data", "synthetic", "-e", "1,2"), "epsilon has 2 values for 3 agents"),
    "delta 0": (_words("--data", "synthetic", "--delta", "0"), r"delta must be a number in \(0, 1\)"),
    "delta 1": (_words("--data", "synthetic", "--delta", "1"), r"delta must be a number in \(0, 1\)"),
    "delta negative": (_words("--data", "synthetic", "--delta=-0.1"), "delta must"),
    "unknown loss": (_words("--data", "synthetic", "--loss", "logstic"), "did you mean 'logistic'"),
    "unknown regularizer": (
        _words("--data", "synthetic", "--regularizer", "l3"),
        "known are elastic_net, l1, l2, none",
    ),
    "unknown method": (_words("--data", "synthetic", "--method", "dp_adm"), "did you mean 'dp_admm'"),
    "two budgets": (
        _words("--data", "synthetic", "--round-epsilon", "0.1"),
        "exactly one of epsilon .*; epsilon and round_epsilon given",
    ),
    "budget without privacy": (_words("--data", "synthetic", "--method", "centralized"), "not private"),
    "all rows for testing": (_words("--data", "synthetic", "--test-rows", "20000"), "leaves no training rows"),
    "half a test row": (_words("--data", "synthetic", "--test-rows", "1.5"), "test_rows must be a whole"),
    "no rounds": (_words("--data", "synthetic", "-t", "0"), "n_rounds must be a whole number of at least 1"),
    "no repeats": (_words("--data", "synthetic", "--repeats", "0"), "repeats must be a whole number"),
    "participation": (_words("--data", "synthetic", "--participation", "1.5"), "participation must be"),
    "tolerance": (_words("--data", "synthetic", "--stop-tolerance", "2"), "stop_tolerance must be a number in"),
    "l1 ratio": (
        _words("--data", "synthetic", "--regularizer", "elastic_net", "--set", "regularizer.l1_ratio=2"),
        "l1_ratio",
    ),
    "owner of a named set": (_words("--data", "synthetic", "--by", "x"), "by applies to data files"),
    "groups without owner": (_words("--data", "synthetic", "--partition", "groups"), "--by COLUMN"),
    "owner and partition": (_words("--data", "a.csv", "--by", "x", "--partition", "equal"), "leave one of"),
    "classes of a regression": (
        _words("--data", "a.csv", "--loss", "squared", "--classes", "a,b"),
        "a regression has no classes",
    ),
    "softmax without classes": (_words("--data", "a.csv", "--loss", "softmax"), "needs its classes"),
    # the TOML file
    "no config": (_words("--config", "nowhere.toml"), "nowhere.toml: there is no such file"),
    "config is a directory": (_config_directory, "cannot be read as a text file"),
    "config is no text": (_config_bytes, "cannot be read as a text file"),
    "broken TOML": (_toml('data = "synthetic\n'), "bad.toml: not valid TOML"),
    "unknown name": (_toml('data = "synthetic"\nagnets = 3'), "'agnets'.*did you mean 'n_agents'"),
    "unknown table": (_toml("[privacy]\nepsilon = 1"), "unknown setting 'privacy'"),
    "said twice": (_toml("agents = 3\nn-agents = 4"), "n_agents is set twice"),
    "text for a number": (_toml('data = "synthetic"\nmethod.rho = "big"'), "rho must be a positive number, not 'big'"),
    "number for text": (_toml("data = 3"), "data must be text, not 3"),
    "number for a name": (_toml('data = "synthetic"\nregularizer = 3'), "regularizer must be a name, a mapping"),
    "truth for a number": (_toml('data = "synthetic"\ndelta = true'), "delta must be a number.* True"),
    "truth for a count": (_toml('data = "synthetic"\nmetrics_every = true'), "metrics_every must be a whole"),
    "number for truth": (_toml('data = "synthetic"\nintercept = 1'), "intercept must be true or false"),
    "list for a number": (_toml('data = "synthetic"\nmethod.rho = [1]'), "rho must be a positive number"),
    "list for a name": (_toml('data = "synthetic"\nloss = ["hinge"]'), "loss must be a name, a mapping or an object"),
    "fraction for a count": (_toml('data = "synthetic"\nmetrics_every = 1.5'), "must be a whole number"),
    "date for a number": (_toml('data = "synthetic"\nmethod.rho = 2020-01-01'), "rho must be a positive number"),
    "infinity in TOML": (_toml('data = "synthetic"\nmethod.rho = inf'), "rho must be a positive number, not inf"),
    "text for repeats": (_toml('data = "synthetic"\nrepeats = "2"'), "repeats must be a whole number"),
    "number for classes": (_toml('data = "a.csv"\nclasses = 3'), "classes must be a list"),
    "lists for classes": (_toml('data = "a.csv"\nclasses = [["a"], ["b"]]'), "classes must be a list"),
    "home of nobody": (_toml('data = "~nosuchuser/a.csv"\nlabel = "y"'), "begins with '~nosuchuser'"),
    "NUL in a path": (_toml('data = "a\\u0000.csv"'), "data must be text"),
}  # fmt: skip


def test_invalid_input_is_one_sentence_and_leaves_no_file(cli, tmp_path_factory: pytest.TempPathFactory):
    for name, (make, complaint) in BAD.items():
        with case(name), pytest.MonkeyPatch.context() as monkeypatch:
            tmp_path = tmp_path_factory.mktemp("case")
            inputs, work = tmp_path / "inputs", tmp_path / "work"
            inputs.mkdir()
            work.mkdir()
            monkeypatch.chdir(work)
            words = make(inputs)
            answer = cli("simulate", *QUICK, "-o", "out", *words)
            refused(answer, complaint)
            assert list(work.iterdir()) == []


@pytest.mark.parametrize(("repeats", "named"), [("1", ""), ("2", "run 1 of 2: ")])
def test_a_diverging_run_is_one_sentence_and_leaves_no_file(cli, tmp_path, repeats, named):
    words = ["-d", "synthetic", "--method", "dp_sgd", "--set", "method.learning_rate=1e100", "--alpha", "1"]
    answer = cli("simulate", *words, "-e", "1", "-t", "9", "--repeats", repeats, "-o", tmp_path / "out")
    refused(answer, rf"^dpadmm: {named}dp_sgd diverged in round 4 of 9: .*; use a smaller learning_rate")
    assert list(tmp_path.iterdir()) == []


def refused(answer, complaint: str, code: int = 2) -> None:
    __tracebackhide__ = True
    assert answer.code == code, answer.out
    assert answer.out == ""
    assert re.fullmatch(r"dpadmm: [^\n]+\n", answer.err), answer.err
    assert re.search(complaint, answer.err), answer.err
    assert "Traceback" not in answer.err


def test_invalid_budgets(cli, tmp_path_factory: pytest.TempPathFactory):
    for words, complaint in [
        ([], "exactly one of epsilon .*none given"),
        (["--round-epsilon", "1.5"], "exact"),
        (["--round-epsilon", "0"], "round_epsilon must be a positive number"),
        (["--noise-multiplier=-1"], "noise_multiplier must be a number of at least 0"),
        (
            ["--round-epsilon", "0.1", "--noise-multiplier", "1"],
            "round_epsilon and noise_multiplier given",
        ),
    ]:
        with case(words, complaint):
            tmp_path = tmp_path_factory.mktemp("case")
            refused(cli("simulate", "-d", "synthetic", "-t", "3", "-o", tmp_path / "out", *words), complaint)
            assert not (tmp_path / "out").exists()


def test_a_round_epsilon_above_1_works_when_calibrated_exactly(cli):
    words = ["-d", "synthetic", "-t", "3", "--round-epsilon", "1.5", "--calibration", "exact", "--json"]
    assert cli("simulate", *words).succeeded().json["runs"]["1"]["privacy"]["private"]


def test_an_owner_with_one_training_row_is_refused(cli, tmp_path_factory: pytest.TempPathFactory):
    for repeats, seed in product([1, 4], range(6)):
        with case(repeats, seed):
            tmp_path = tmp_path_factory.mktemp("case")
            words = [*_lonely_owner(tmp_path), "-e", "1", "-t", "2", "--seed", seed, "--repeats", repeats]
            refused(cli("simulate", *words, "-o", tmp_path / "out"), "agent east has one row")
            assert not (tmp_path / "out").exists()


def test_an_invalid_split_of_a_later_repeat_is_found_before_the_first_run(cli, tmp_path):
    """With two of 60 rows and a fifth held out, most seeds leave the owner too few rows, but not all."""
    table = only("label", "owner")
    table["owner"][4] = table["owner"][5] = "east"
    words = ["--data", write_csv(tmp_path / "few.csv", table), *BINARY, "--by", "owner", "-e", "1", "-t", "2"]
    good = next(s for s in range(50) if cli("simulate", *words, "--seed", s).code == 0)
    answer = cli("simulate", *words, "--seed", good, "--repeats", 30, "-o", tmp_path / "out")
    refused(answer, "agent east has 2 rows, [01] of them for training")
    assert not (tmp_path / "out").exists()


# --- the output folder -------------------------------------------------------------------------------------


def test_output_folders_that_cannot_be_used(cli, tmp_path, rows_csv):
    words = ["simulate", "--data", rows_csv, *BINARY, *QUICK, "-o"]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    refused(cli(*words, tmp_path / "full"), "full is not empty; .*--overwrite")
    refused(cli(*words, rows_csv), r"rows\.csv is a file")
    refused(cli(*words, rows_csv / "below"), "cannot be created")
    refused(cli(*words, tmp_path / ("x" * 300)), "name too long")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]


def test_an_output_folder_without_permission(cli, tmp_path, rows_csv, monkeypatch):
    # os.access says yes to root whatever the permissions are
    monkeypatch.setattr("dpadmm.training.run_folder.os.access", lambda path, mode: False)
    refused(cli("simulate", "--data", rows_csv, *BINARY, *QUICK, "-o", tmp_path / "o"), "cannot be written to")


def test_overwrite_replaces_the_run_and_keeps_other_files(cli, tmp_path, rows_csv):
    words = ["simulate", "--data", rows_csv, *BINARY, *QUICK, "-o", tmp_path / "out"]
    cli(*words, "--repeats", "2").succeeded()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    cli(*words, "--overwrite", "--metrics-every", "0").succeeded()
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "mine.txt",
        "settings.toml",
        "trace.csv",
        "summary.json",
        "model-1.npz",
        "model-1.privacy.json",
    }


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_is_one_sentence_and_leaves_no_partial_file(cli, tmp_path, rows_csv, monkeypatch, call):
    words = ["simulate", "--data", rows_csv, *BINARY, *QUICK, "-o", tmp_path / "out"]
    cli(*words).succeeded()
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    refused(cli(*words, "--overwrite", "--seed", "8"), "No space left on device", code=75)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


# --- good paths --------------------------------------------------------------------------------------------


def numbers(answer) -> dict:
    """Return the measures that a repeated run must reproduce: all except the time."""
    measures = answer.json["measures"]
    return {name: values for name, values in measures.items() if name != "seconds"}


def test_every_format_gives_the_same_numbers(cli, tmp_path):
    table = only("label")
    matrix = np.array([table[name] for name in FEATURES]).T
    signs = [1 if label == "yes" else -1 for label in table["label"]]
    write_csv(tmp_path / "rows.csv", table)
    pa.parquet.write_table(pa.table(table), tmp_path / "rows.parquet")
    np.savez(tmp_path / "rows.npz", features=matrix, labels=signs)
    np.savez(
        tmp_path / "sparse.npz",
        **{part: getattr(csr_array(matrix), part) for part in ("data", "indices", "indptr", "shape")},
        labels=signs,
    )
    named = {"rows.csv": BINARY, "rows.parquet": BINARY, "rows.npz": [], "sparse.npz": []}
    found = {
        name: numbers(cli("simulate", "-d", tmp_path / name, *words, *QUICK, "--json").succeeded())
        for name, words in named.items()
    }
    assert found["rows.csv"] == found["rows.parquet"] == found["rows.npz"]
    for name, values in found["rows.csv"].items():
        assert found["sparse.npz"][name]["mean"] == pytest.approx(values["mean"], rel=1e-9)


def test_owners_are_agents(cli, tmp_path):
    path = write_csv(tmp_path / "rows.csv", only("label", "owner"))
    words = ["simulate", "-d", path, *BINARY, "--by", "owner", "-e", "1,2,4", "-t", "3"]
    run = cli(*words, "--json").succeeded().json["runs"]["1"]
    assert (run["agents"], run["features"]) == (3, 3)
    assert [agent["epsilon"] for agent in run["privacy"]["agents"]] == pytest.approx([1.0, 2.0, 4.0], rel=1e-6)
    assert "1.0000 to 4.0000" in cli(*words).succeeded().out


def test_softmax(cli, tmp_path):
    path = write_csv(tmp_path / "rows.csv", only("level"))
    words = ["--label", "level", "--classes", "low, middle, high", "--loss", "softmax"]
    cli("simulate", "-d", path, *words, *QUICK, "-o", tmp_path / "out").succeeded()
    model = load_model(tmp_path / "out" / "model-1.npz")
    assert model.classes == ("low", "middle", "high")
    assert set(model.predict(np.eye(3))) <= set(model.classes)
    assert model.predict_proba(np.eye(3)).sum(axis=1) == pytest.approx(np.ones(3))


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_regression(cli, tmp_path, loss):
    path = write_csv(tmp_path / "rows.csv", only("price"))
    words = ["simulate", "-d", path, "--label", "price", "--loss", loss, *QUICK, "--intercept"]
    text = cli(*words, "-o", tmp_path / "out").succeeded().out
    assert "test RMS error, global model" in text
    assert "%" not in text
    assert load_model(tmp_path / "out" / "model-1.npz").predict(np.eye(3)).dtype == float


def test_clip_rows_accepts_large_norms(cli, tmp_path):
    words = _cell("x1", 1.5)(tmp_path)
    assert cli("simulate", *words, *QUICK, "--clip-rows").succeeded().err == ""


def test_centralized(cli, tmp_path, rows_csv):
    words = ["simulate", "-d", rows_csv, *BINARY, "--method", "centralized", "--seed", "1"]
    text = cli(*words, "-o", tmp_path / "out").succeeded().out
    assert "rounds" not in text.replace("seconds in rounds", "")
    assert any(line.split() == ["privacy", "none"] for line in text.splitlines())
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["runs"]["1"]["privacy"]["epsilon"] is None
    assert summary["runs"]["1"]["measures"]["train_error_global"] < 0.1


def test_values_that_are_not_finite_are_null(cli, tmp_path):
    table = {"a": [0.1, 0.2, 0.3, 0.4], "y": [1e308, -1e308, 1e308, -1e308]}
    path = write_csv(tmp_path / "huge.csv", table)
    words = ["-d", path, "--label", "y", "--loss", "squared", "--noise-multiplier", "1", "-n", "2", "-t", "2"]
    with np.errstate(all="ignore"):
        answer = cli("simulate", *words, "--test-rows", "0", "-o", tmp_path / "out", "--json").succeeded()
    assert answer.json["measures"]["train_loss_global"]["mean"] is None


CHOSEN = {
    "method": {"name": "dp_admm", "rho": 0.3, "weight_radius": 4.0, "schedule": "constant", "step_size": 0.5},
    "n_agents": 4,
    "partition": "unequal",
    "partition_spread": 0.1,
    "loss": {"name": "smoothed_hinge", "width": 0.5},
    "regularizer": {"name": "elastic_net", "l1_ratio": 0.25},
    "alpha": 0.002,
    "intercept": True,
    "clip_rows": True,
    "round_epsilon": [0.5, 0.25, 0.5, 0.75],
    "delta": 0.001,
    "calibration": "exact",
    "n_rounds": 5,
    "participation": 0.75,
    "average": "tail",
    "stop_tolerance": 1e-9,
    "test_rows": 10.0,
    "metrics_every": 2,
    "seed": 11,
}
"""A value other than the default for every setting but the budgets not chosen."""

OTHER = {
    "method": {"name": "centralized"},
    "n_agents": 5,
    "partition": "equal",
    "loss": {"name": "smoothed_hinge", "width": 2.0},
    "regularizer": "l1",
    "epsilon": 3.0,
    "calibration": "paper",
    "average": "all",
    "seed": 3,
}


def test_options_override_the_toml_file(cli, tmp_path, rows_csv):
    left_out = {each.name for each in parameters(dpadmm.Settings)} - set(CHOSEN)
    assert left_out == {"epsilon", "noise_multiplier", "aggregation", "min_honest_sites", "aborted_rounds"}
    about = {"data": str(rows_csv), "label": "label", "classes": ["no", "yes"], "repeats": 2}
    (tmp_path / "chosen.toml").write_text(to_toml({**about, **CHOSEN, "output": str(tmp_path / "a")}))
    from_file = cli("simulate", "-c", tmp_path / "chosen.toml", "--json").succeeded()
    other = {**about, **OTHER, "repeats": 1, "classes": ["yes", "no"], "output": str(tmp_path / "nowhere")}
    (tmp_path / "other.toml").write_text(to_toml(other))
    words = ["--repeats", 2, "--classes", "no,yes", "--output", tmp_path / "b"]
    for name, value in CHOSEN.items():
        if isinstance(value, dict):
            words += [f"--{name}", value["name"]]
            words += [word for key in value if key != "name" for word in ("--set", f"{name}.{key}={value[key]}")]
        elif isinstance(value, bool):
            words += [f"--{name.replace('_', '-')}"]
        else:
            words += [
                f"--{name.replace('_', '-')}",
                ",".join(map(str, value)) if isinstance(value, list) else value,
            ]
    from_line = cli("simulate", "-c", tmp_path / "other.toml", *words, "--json").succeeded()
    for answer in (from_file, from_line):
        used = answer.json["settings"]
        assert {name: used.get(name) for name in CHOSEN} == CHOSEN
    assert numbers(from_file) == numbers(from_line)
    assert len(numbers(from_file)["train_loss_global"]["values"]) == 2
    assert (tmp_path / "a").is_dir()
    assert (tmp_path / "b").is_dir()
    assert not (tmp_path / "nowhere").exists()


def test_parameters_in_the_file_are_kept_unless_the_choice_changes(cli, tmp_path):
    (tmp_path / "s.toml").write_text(
        'data = "synthetic"\nepsilon = 1.0\nn_rounds = 2\n[method]\nname = "dp_admm"\nrho = 0.3\n'
    )
    for words, expected in [
        ([], {"rho": 0.3, "weight_radius": 10.0}),
        (["--method", "dp_admm"], {"rho": 0.3, "weight_radius": 10.0}),
        (["--set", "method.weight_radius=4"], {"rho": 0.3, "weight_radius": 4.0}),
        (["--method", "dp_sgd", "--set", "method.sampling=0.5"], {"name": "dp_sgd", "sampling": 0.5}),
    ]:
        with case(words):
            used = cli("simulate", "-c", tmp_path / "s.toml", *words, "--json").succeeded().json["settings"]
            assert used["method"].items() >= expected.items()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--loss logistic --set loss.delta=0.3", "loss: delta is a parameter of huber, not of logistic; remove it"),
        ("--set loss.gradient_bound=1", "gradient_bound is a parameter of squared, poisson, not of logistic"),
        ("--set regularizer.l1_ratio=0.5", "l1_ratio is a parameter of elastic_net, not of l2"),
        ("--loss huber --set loss.dleta=1", "huber has no parameter 'dleta'; did you mean 'delta'? Parameters: delta"),
    ],
)
def test_a_parameter_of_another_choice_is_refused(cli, tmp_path, words, message):
    answer = cli("simulate", "-d", "synthetic", "-e", "1", "-o", tmp_path / "out", *words.split())
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert answer.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
    compared = cli("compare", "-d", "synthetic", "-e", "1", "--methods", "dp_admm", *words.split())
    assert (compared.code, message in compared.err) == (2, True)


def test_bad_assignments_are_reported_at_once(cli):
    words = ["--set", "method.rho", "--set", "method.step-size=1", "--set", "method.step_size=2", "--set", "rho=1"]
    answer = cli("simulate", "-d", "synthetic", "-e", "1", *words)
    assert answer.code == 2
    assert "--set requires NAME=VALUE, such as loss.delta=0.5, not 'method.rho'" in answer.err
    assert "--set: method.step_size is set twice" in answer.err
    answer = cli("simulate", "-d", "synthetic", "-e", "1", "--set", "rho=1", "--set", "method.roh=1")
    assert "options: unknown setting 'rho'; did you mean 'method.rho'?" in answer.err
    answer = cli("simulate", "-d", "synthetic", "-e", "1", "--method", "dp_sgd", "--set", "method.mechanism=pure")
    assert "method: mechanism is a parameter of admm_dvp" in answer.err


def test_parameters_of_a_choice_are_listed(cli):
    answer = cli("simulate", "--method", "dp_admm", "--set", "method.?").succeeded()
    assert all(name in answer.out for name in ("method.rho", "method.weight_radius", "ADMM penalty parameter"))
    assert "learning_rate" not in answer.out
    assert "loss.delta" in cli("simulate", "--set", "loss.?").succeeded().out
    assert "regularizer.?" in cli("simulate", "--set", "model.?").err


def test_dashes_short_names_and_negated_options(cli, tmp_path, rows_csv):
    text = f"data = '{rows_csv}'\nlabel = 'label'\nclasses = 'no,yes'\nagents = 3\nrounds = 2\n"
    (tmp_path / "s.toml").write_text(text + "round-epsilon = 0.5\nclip-rows = true\nintercept = true\n")
    used = cli("simulate", "-c", tmp_path / "s.toml", "--no-intercept", "--json").succeeded().json["settings"]
    assert (used["n_agents"], used["n_rounds"], used["intercept"], used["clip_rows"]) == (3, 2, False, True)
    pooled = cli("simulate", "-c", tmp_path / "s.toml", "--method", "centralized", "--json").succeeded()
    assert "round_epsilon" not in pooled.json["settings"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Two repeats of a run, with special characters in names."""
    folder = tmp_path_factory.mktemp("run")
    path = write_csv(folder / "r [b]öws 😀.csv", only("label"))
    words = ["simulate", "--data", str(path), *BINARY, "-e", "2", "-n", "3", "-t", "4", "--repeats", "2"]
    from dpadmm.cli import app

    app([*words, "-o", str(folder / "out")], standalone_mode=False)
    return folder / "out"


def test_the_folder_is_complete_and_readable(run_folder):
    assert {path.name for path in run_folder.iterdir()} == {
        *("settings.toml", "trace.csv", "summary.json", "model-1.npz", "model-2.npz"),
        *("convergence.png", "convergence.svg", "model-1.privacy.json", "model-2.privacy.json"),
    }
    with (run_folder / "trace.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["round"]) for row in rows] == [(f"{r}", f"{k}") for r in (1, 2) for k in (1, 2, 3, 4)]
    assert int(rows[4]["seed"]) == int(rows[0]["seed"]) + 1
    assert all(0.0 < float(row["train_loss_global"]) < 2.0 for row in rows)

    def refuse(name: str) -> None:
        raise AssertionError(name)

    summary = json.loads((run_folder / "summary.json").read_text(), parse_constant=refuse)
    assert list(summary["runs"]) == ["1", "2"]
    last = summary["runs"]["2"]["measures"]
    assert float(rows[-1]["train_loss_global"]) == last["train_loss_global"]
    assert summary["measures"]["train_loss_global"]["values"][1] == last["train_loss_global"]
    for k in (1, 2):
        model = load_model(run_folder / f"model-{k}.npz")
        assert set(model.predict(np.eye(3))) <= {"no", "yes"}
        assert model.privacy["epsilon"] == pytest.approx(2.0, rel=1e-6)
    assert (run_folder / "convergence.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert ElementTree.parse(run_folder / "convergence.svg").getroot().tag.endswith("svg")


def test_the_written_settings_run_again_to_the_same_numbers(cli, run_folder, tmp_path):
    settings = tomllib.loads((run_folder / "settings.toml").read_text())
    assert settings["repeats"] == 2
    cli("simulate", "-c", run_folder / "settings.toml", "-o", tmp_path / "again").succeeded()
    for k in (1, 2):
        first, again = (load_model(folder / f"model-{k}.npz") for folder in (run_folder, tmp_path / "again"))
        assert np.array_equal(first.weights, again.weights)
    assert _without_time(tmp_path / "again") == _without_time(run_folder)
    assert tomllib.loads((tmp_path / "again" / "settings.toml").read_text()) == settings


def _without_time(folder: Path) -> list[dict[str, str]]:
    with (folder / "trace.csv").open() as file:
        return [{name: v for name, v in row.items() if name != "seconds"} for row in csv.DictReader(file)]


def test_a_missing_seed_is_drawn_and_written(cli, rows_csv):
    words = ["simulate", "-d", rows_csv, *BINARY, "-e", "2", "-n", "3", "-t", "2", "--json"]
    first, second = (cli(*words).succeeded().json["settings"]["seed"] for _ in range(2))
    assert first != second


# --- on the screen -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "words",
    [
        ["-e", "2"],
        ["-e", "0.5,1,2", "--repeats", "3"],
        [
            "--round-epsilon",
            "0.01",
            "--loss",
            "smoothed_hinge",
            "--regularizer",
            "elastic_net",
            "--repeats",
            "2",
        ],
        ["--noise-multiplier", "0"],
        ["--noise-multiplier", "123456.789"],
        ["--method", "centralized"],
    ],
)
def test_readable_at_any_width(cli, rows_csv, words, columns):
    answer = cli("simulate", "-d", rows_csv, *BINARY, "-n", "3", "-t", "3", "--seed", "1", *words, columns=columns)
    lines = answer.succeeded().out.splitlines()
    assert answer.err == ""
    assert max(map(len, lines)) <= columns
    assert "…" not in answer.out
    for name in ("training loss, global model", "test error, global model"):
        assert any(name in line and line.strip()[-1] in "0123456789%" for line in lines)


def test_names_are_printed_unchanged(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv(Path("[red]rows.csv"), only("label"))
    out = "a-long-name-" * 8
    text = cli("simulate", "-d", "[red]rows.csv", *BINARY, *QUICK, "-o", f"[b]/{out}").succeeded().out
    assert text.startswith("[red]rows.csv: 48 training rows × 3 features, 3 agents of 16 rows\n")
    assert text.endswith(f"Written to [b]/{out}\n")


def test_json_only_on_standard_output(process, rows_csv, tmp_path):
    words = ["simulate", "-d", rows_csv, *BINARY, *QUICK, "--json", "-o", tmp_path / "out"]
    answer = process(*words).succeeded()
    assert answer.err == ""
    assert answer.json == json.loads((tmp_path / "out" / "summary.json").read_text())


# --- interruption ------------------------------------------------------------------------------------------

LONG = ["simulate", "-d", "synthetic", "-e", "1", "--seed", "1"]


def _wait(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_ctrl_c_keeps_the_completed_rounds(command, tmp_path):
    """The progress bar on a terminal shows when rounds have begun."""
    screen, theirs = pty.openpty()
    with subprocess.Popen(
        [*command, *LONG, "-t", "1000000", "-o", "out"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
    ) as started:
        os.close(theirs)
        shown = b""
        while not re.search(rb"[1-9]\d*/1000000", shown):
            shown += os.read(screen, 4096)
        started.send_signal(signal.SIGINT)
        shown += _rest(screen)
        out = started.stdout.read().decode()
        assert started.wait(60) == 130
    assert b"training" in shown
    assert b"Traceback" not in shown
    last = shown.decode().strip().splitlines()[-1]
    assert "dpadmm: interrupted in run 1 of 1 after " in last
    assert last.endswith("what was done is in out")
    assert "training loss, global model" in out
    with (tmp_path / "out" / "trace.csv").open() as file:
        rounds = [int(row["round"]) for row in csv.DictReader(file)]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())["runs"]["1"]
    assert rounds == list(range(1, len(rounds) + 1))
    assert summary["interrupted"]
    assert summary["rounds"] == len(rounds)
    assert 0.0 < summary["privacy"]["epsilon"] < 1.0
    assert [agent["releases"][0]["released"] for agent in summary["privacy"]["agents"]] == [summary["rounds"]]
    assert np.isfinite(load_model(tmp_path / "out" / "model-1.npz").weights).all()


def _rest(screen: int) -> bytes:
    text = b""
    while True:
        try:
            part = os.read(screen, 4096)
        except OSError:  # Linux: the other end is closed
            return text
        if not part:
            return text
        text += part


def test_ctrl_c_in_the_middle_of_a_round_waits_for_its_end(cli, tmp_path, rows_csv, monkeypatch):
    """A second one does not wait."""
    from dpadmm.methods import DpAdmm

    original, presses = DpAdmm.step, {3: 1}

    def step(self, state, now):
        for _ in range(presses.get(now.number, 0)):
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, state, now)

    monkeypatch.setattr(DpAdmm, "step", step)
    words = ["simulate", "-d", rows_csv, *BINARY, *QUICK]
    for done in (3, 2):
        answer = cli(*words)
        assert answer.code == 130
        assert answer.err == f"dpadmm: interrupted in run 1 of 1 after {done} rounds\n"
        presses = {3: 2}


def test_an_interrupted_run_is_kept_but_not_mixed_into_the_mean(cli, tmp_path, rows_csv, monkeypatch):
    from dpadmm.methods import DpAdmm

    original, calls = DpAdmm.step, 0

    def step(self, *args, **more):
        nonlocal calls
        calls += 1
        if calls == 11:
            raise KeyboardInterrupt
        return original(self, *args, **more)

    monkeypatch.setattr(DpAdmm, "step", step)
    words = ["simulate", "-d", rows_csv, *BINARY, *QUICK, "--repeats", "5", "-o", tmp_path / "out"]
    answer = cli(*words)
    assert answer.code == 130
    assert "interrupted in run 3 of 5 after 2 rounds" in answer.err
    assert "mean ± standard deviation of 2 runs" in " ".join(answer.out.split())
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [run["rounds"] for run in summary["runs"].values()] == [4, 4, 2]
    assert len(summary["measures"]["train_loss_global"]["values"]) == 2
    assert load_model(tmp_path / "out" / "model-3.npz").weights.shape == (3, 1)


def test_ctrl_c_while_data_is_read(command, tmp_path):
    """A named pipe that sends nothing represents a large file."""
    os.mkfifo(tmp_path / "slow.csv")
    with subprocess.Popen(
        [*command, "simulate", "-d", "slow.csv", *BINARY, *QUICK, "-o", "out"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        sender: list[int] = []

        def opened() -> bool:
            try:
                sender.append(os.open(tmp_path / "slow.csv", os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                return False
            return True

        _wait(opened)
        time.sleep(0.2)
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=60)
        os.close(sender[0])
    assert (started.returncode, out, err) == (130, "", "dpadmm: interrupted\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("moment", ["before round 1 of run 1", "before round 1 of run 2", "between", "writing"])
def test_ctrl_c_at_awkward_moments(cli, tmp_path, rows_csv, monkeypatch, moment):
    """After any interruption, finished runs are shown and complete in the folder."""
    import dpadmm.cli.simulate as module
    from dpadmm.methods import DpAdmm

    calls = 0

    def interrupt_at(owner: object, name: str, when: int) -> None:
        original = getattr(owner, name)

        def wrapper(*args: object, **more: object) -> object:
            nonlocal calls
            calls += 1
            if calls == when:
                raise KeyboardInterrupt
            return original(*args, **more)

        monkeypatch.setattr(owner, name, wrapper)

    if moment.startswith("in"):
        interrupt_at(DpAdmm, "step", 1 if moment.endswith("1") else 5)
    elif moment == "between":
        interrupt_at(module, "prepare", 2)
    else:
        interrupt_at(module.run_folder, "write_run", 1)
    words = ["simulate", "-d", rows_csv, *BINARY, *QUICK, "--repeats", "3", "-o", tmp_path / "out"]
    answer = cli(*words)
    assert answer.code == 130
    if moment == "in round 1 of run 1":
        assert (answer.out, answer.err) == ("", "dpadmm: interrupted\n")
        assert not (tmp_path / "out").exists()
        return
    assert "interrupted in run 1 of 3 after 4 rounds; what was done is in" in answer.err
    assert list(json.loads((tmp_path / "out" / "summary.json").read_text())["runs"]) == ["1"]
    assert load_model(tmp_path / "out" / "model-1.npz").weights.shape == (3, 1)


def test_a_killed_run_leaves_complete_files(command, tmp_path, rows_csv):
    words = ["simulate", "-d", rows_csv, *BINARY, *QUICK, "--repeats", "1000", "-o", tmp_path / "out"]
    with subprocess.Popen([*command, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        _wait(lambda: (tmp_path / "out" / "model-3.npz").exists())
        started.kill()
        assert started.wait(60) == -signal.SIGKILL
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    with (tmp_path / "out" / "trace.csv").open() as file:
        rows = list(csv.DictReader(file))
    models = sorted((tmp_path / "out").glob("model-*.npz"))
    assert len(models) >= 3
    assert all(np.isfinite(load_model(path).weights).all() for path in models)
    assert {path.stem.removeprefix("model-") for path in models} <= set(summary["runs"])
    assert len(rows) % 4 == 0
    assert {row["run"] for row in rows} >= {"1", "2", "3"}
    assert tomllib.loads((tmp_path / "out" / "settings.toml").read_text())["seed"] == 7


def test_the_accountant_of_a_total_is_named(cli):
    for words, shown, not_shown in [
        (["--method", "admm_dvp"], "total ε, Rényi bound of objective perturbation", "moments bound"),
        (["--method", "admm_dvp", "--set", "method.mechanism=pure"], "optimal composition of pure ε", "multiplier"),
        (["--method", "dp_sgd", "--set", "method.sampling=0.5"], "privacy loss distribution (PLD)", "moments bound"),
        (["--method", "admm_pvp"], "total ε, exact", "∞"),
    ]:
        with case(words, shown, not_shown):
            answer = cli("simulate", "-d", "synthetic", "-e", 1, "-t", 2, "-n", 3, "--seed", 1, *words).succeeded()
            assert shown in answer.out
            assert not_shown not in answer.out
            assert "nan" not in answer.out


@pytest.mark.parametrize("method", ["admm_pvp", "admm_dvp"])
def test_a_method_that_does_not_apply_is_an_error_with_a_reason(cli, method):
    answer = cli("simulate", "-d", "synthetic", "-e", 1, "--method", method, "--regularizer", "l1")
    assert answer.code == 2
    assert answer.err.startswith(f"dpadmm: {method} does not apply: ")
    assert "use the l2 regularizer" in answer.err


# --- of a study --------------------------------------------------------------------------------------------


def test_a_study_is_simulated_and_its_folder_runs_again_to_the_same_numbers(cli, tmp_path):
    table = mixed_tables.write_csv(tmp_path / "rows.csv", mixed_tables.make_cells(300))
    study = tmp_path / "study.toml"
    study.write_text(mixed_tables.to_toml(mixed_tables.make_study("squared", method="auto")))
    words = ["simulate", study, "-d", table, "--by", "site", "--seed", "3", "--repeats", "2"]
    text = " ".join(cli(*words, "-o", tmp_path / "out").succeeded().out.split())
    assert "an error of 1 is 50 of price" in text
    assert "3 agents" in text
    settings = tomllib.loads((tmp_path / "out" / "settings.toml").read_text())
    assert settings["study"] == str(study)
    assert "epsilon" not in settings
    cli("simulate", "--config", tmp_path / "out" / "settings.toml", "-o", tmp_path / "again").succeeded()
    for name in ("model-1.npz", "model-2.npz"):
        one, two = (load_model(tmp_path / folder / name) for folder in ("out", "again"))
        assert np.array_equal(one.weights, two.weights)
        assert one.predict_table(table).std() > 0.0  # it takes the table's own columns
    cli("verify", tmp_path / "out" / "model-1.privacy.json").succeeded()


def test_options_that_the_study_sets_are_refused(cli, tmp_path):
    study = tmp_path / "study.toml"
    study.write_text(mixed_tables.to_toml(mixed_tables.make_study()))
    for words, complaint in [
        (["-d", "rows.csv", "-e", "1"], "epsilon is set by the study"),
        (["-d", "rows.csv", "--label", "price"], "the study sets label; leave --label out"),
        ([], "a study requires rows: add --data TABLE"),
    ]:
        with case(words):
            refused(cli("simulate", study, *words), complaint)
