"""``dpadmm train``: from a study and a table to a model and its privacy report; one sentence for every error."""

from __future__ import annotations

import importlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import planned
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from looping import case
from mixed_tables import SCHEMA, make_cells, make_study, to_toml, write_csv

import dpadmm
from conftest import Cli, CommandResult
from dpadmm.accounting.verification import read_privacy_report
from dpadmm.data.schema import Number
from dpadmm.errors import StudyError
from dpadmm.models.file import load_model
from dpadmm.studies.reading import read_study
from dpadmm.training.train import agent_sizes, encode

N_ROWS = 900
QUICK = {"n_rounds": 8}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """20 columns of mixed kinds, 5% of the cells missing."""
    return write_csv(tmp_path / "rows.csv", make_cells(N_ROWS))


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "study.toml").write_text(to_toml(make_study(**QUICK)))
    return tmp_path / "study.toml"


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- the way through ---------------------------------------------------------------------------------------


def test_from_a_table_to_predictions(cli: Cli, tmp_path: Path, table: Path, study: Path) -> None:
    model, out = tmp_path / "m.dpadmm", tmp_path / "p.csv"
    shown = cli("train", study, "--data", table, "--by", "site", "-o", model).succeeded().out
    assert "900 rows × 40 features, 3 agents with 300 rows each" in shown
    assert re.search(r"total ε +2\.0000", shown)
    assert "must not be published" in " ".join(shown.split())
    assert "without privacy protection" not in shown
    assert str(model) in shown
    assert str(tmp_path / "m.privacy.json") in shown
    assert files(tmp_path) == ["m.dpadmm", "m.privacy.json", "rows.csv", "study.toml"]

    made = load_model(model)
    assert made.study_hash == read_study(study).hash
    report = read_privacy_report(tmp_path / "m.privacy.json")
    assert report.to_dict() == made.privacy
    assert (report.noise, report.study_hash) == ("exact-discrete-gaussian", made.study_hash)
    assert report.members(0) == {"a": 300, "b": 300, "c": 300}
    cli("verify", tmp_path / "m.privacy.json").succeeded()

    cli("predict", model, "--data", table, "-o", out, "--keep", "row name").succeeded()
    written = pa.csv.read_csv(out)
    assert written.column_names == ["row name", "prediction", "probability well", "probability ill"]
    assert written["row name"].to_pylist() == make_cells(N_ROWS)["row name"]
    right = np.mean(np.array(written["prediction"].to_pylist()) == np.array(make_cells(N_ROWS)["outcome"]))
    assert cli("evaluate", model, "--data", table, "--json").succeeded().json["accuracy"] == right


@pytest.mark.parametrize("seed", [[], ["--seed", "1"]], ids=["exact", "seeded"])
def test_a_diverging_run_is_one_sentence_and_leaves_no_file(
    cli: Cli, tmp_path: Path, table: Path, seed: list[str]
) -> None:
    steep = {"method": {"name": "dp_sgd", "learning_rate": 1e100}, "alpha": 1.0}
    study = make_study(**QUICK)
    study = replace(
        study,
        training=study.training.with_changes(**steep),
        provenance=dict.fromkeys(("method.learning_rate", "alpha"), "assumed"),
    )
    (tmp_path / "study.toml").write_text(to_toml(study))
    answer = cli("train", tmp_path / "study.toml", "--data", table, "-o", tmp_path / "m.dpadmm", "-q", *seed)
    assert (answer.code, answer.out) == (2, "")
    assert re.fullmatch(r"dpadmm: dp_sgd diverged in round 4 of 8: [^\n]+ a smaller l[^\n]+\n", answer.err)
    assert files(tmp_path) == ["rows.csv", "study.toml"]


def test_exact_noise_is_never_the_same_and_seeded_noise_is(cli: Cli, tmp_path: Path, table: Path, study: Path):
    def weights(*words: object) -> np.ndarray:
        cli("train", study, "-d", table, "-o", tmp_path / "m", "--overwrite", "-q", *words).succeeded()
        return load_model(tmp_path / "m").weights

    assert not np.array_equal(weights(), weights())
    first = weights("--seed", 3, "--agents", 4)
    np.testing.assert_array_equal(first, weights("--seed", 3, "--agents", 4))
    assert load_model(tmp_path / "m").privacy["noise"] == "simulated"
    answer = cli("train", study, "-d", table, "-o", tmp_path / "m2", "--seed", 3).succeeded()
    assert "without privacy protection" in " ".join(answer.out.split())


def test_chosen_rounds_are_reported_with_the_hash_of_the_study_as_run(cli: Cli, tmp_path: Path, table: Path):
    given = tmp_path / "study.toml"
    for left_out in (True, False):
        text = to_toml(make_study(method="auto", n_rounds=8))
        given.write_text(text.replace("n_rounds = 8\n", "").replace('"pgd"', '"auto"') if left_out else text)
        shown = cli("train", given, "-d", table, "-o", tmp_path / "m", "--overwrite").succeeded().out
        report = read_privacy_report(tmp_path / "m.privacy.json")
        assert (report.study_hash == read_study(given).hash) != left_out
        told = re.search(r"sets no n_rounds; \d+ were chosen.*as in the privacy report:\n(\w+)\n", shown, re.DOTALL)
        assert (told and told[1]) == (report.study_hash if left_out else None)


def test_json_for_machines(cli: Cli, tmp_path: Path, table: Path, study: Path) -> None:
    answer = cli("train", study, "-d", table, "--agents", 3, "-o", tmp_path / "m.dpadmm", "--json").succeeded()
    found = answer.json
    assert (found["rows"], found["agents"]) == (900, {f"agent {k}": 300 for k in (1, 2, 3)})
    assert found["noise"] == "exact"
    assert found["epsilon"] == pytest.approx(2.0, rel=1e-6)
    assert found["epsilon_paper"] > found["epsilon"]
    assert (found["rounds"], found["interrupted"]) == (8, False)
    missing = sum(tally["missing"] for tally in found["owner_only"]["columns"].values())
    assert missing == sum(value is None for c in SCHEMA.columns for value in make_cells(N_ROWS)[c.name])
    assert "must not be published" in found["owner_only"]["note"]
    assert answer.err == ""


def test_quiet_prints_nothing(cli: Cli, tmp_path: Path, table: Path, study: Path) -> None:
    answer = cli("train", study, "-d", table, "-o", tmp_path / "m", "--quiet").succeeded()
    assert (answer.out, answer.err) == ("", "")
    assert (tmp_path / "m.privacy.json").exists()


def test_other_losses_and_parquet(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> None:
    for loss in ["hinge", "softmax", "huber"]:
        with case(loss):
            tmp_path = tmp_path_factory.mktemp("case")
            table, study = tmp_path / "rows.parquet", tmp_path / "s.toml"
            pa.parquet.write_table(pa.table(make_cells(300)), table)
            study.write_text(to_toml(make_study(loss, **QUICK)))
            cli("train", study, "-d", table, "-o", tmp_path / "m", "-q").succeeded()
            out = tmp_path / "p.parquet"
            cli("predict", tmp_path / "m", "-d", table, "-o", out, "-q").succeeded()
            written = pa.parquet.read_table(out)
            expected = load_model(tmp_path / "m").predict_table(table)
            assert written["prediction"].to_pylist() == expected.tolist()
            assert len(written.column_names) == {"hinge": 1, "softmax": 4, "huber": 1}[loss]
            if loss == "huber":
                assert 0.0 < np.mean(expected) < 100.0
            figures = cli("evaluate", tmp_path / "m", "-d", table, "--json").succeeded().json
            assert ("rmse" in figures) == (loss == "huber")


def test_wrong_units_are_warned_about(cli: Cli, tmp_path: Path, study: Path) -> None:
    cells = make_cells(N_ROWS)
    cells["n0"] = [None if value is None else 100.0 * value for value in cells["n0"]]
    table = write_csv(tmp_path / "rows.csv", cells)
    answer = cli("train", study, "-d", table, "-o", tmp_path / "m", columns=200).succeeded()
    assert re.search(r"Warning: column 'n0': 9\d\.\d% of the cells were clamped", answer.out)
    assert "Warning: column 'n1'" not in answer.out
    for words in (["predict", tmp_path / "m", "-d", table, "-o", tmp_path / "p.csv"],
                  ["evaluate", tmp_path / "m", "-d", table]):  # fmt: skip
        assert "Warning: column 'n0'" in cli(*words, columns=200).succeeded().out


def test_a_large_budget_is_warned_about(cli: Cli, tmp_path: Path, table: Path) -> None:
    path = tmp_path / "large.toml"
    path.write_text(to_toml(make_study(method="auto", epsilon=30.0, delta=0.5, n_rounds=5)))
    out = cli("train", path, "-d", table, "-o", tmp_path / "m", columns=200).succeeded().out
    assert "Warning: ε = 30 gives weak protection" in out
    assert f"Warning: δ = 0.5 is not below 1/{N_ROWS:,}" in out
    assert "nan" not in out


@pytest.mark.parametrize("method", ["auto", "dp_admm"])
def test_public_rows_initialise_training_and_do_not_change_the_report(
    cli: Cli, tmp_path: Path, table: Path, method: str
) -> None:
    study, public = tmp_path / "s.toml", write_csv(tmp_path / "public.csv", make_cells(400, seed=1))
    study.write_text(to_toml(make_study(method=method, epsilon=0.3, **QUICK)))
    losses, weights, reports = [], [], []
    for name, words in (("alone", []), ("together", ["--public", public])):
        model = tmp_path / f"{name}.dpadmm"
        found = cli("train", study, "-d", table, "-o", model, "--seed", 3, "--json", *words).succeeded().json
        assert (found["rows"], found["rounds"]) == (N_ROWS, 8)  # of the private table
        losses.append(cli("evaluate", model, "-d", table, "--json").succeeded().json["loss"])
        weights.append(load_model(model).weights)
        reports.append((tmp_path / f"{name}.privacy.json").read_bytes())
    assert losses[1] < losses[0]
    assert reports[0] == reports[1]
    again = dpadmm.train(study, table, seed=3, public=public)
    np.testing.assert_array_equal(again.weights, weights[1])
    np.testing.assert_array_equal(dpadmm.train(study, table, seed=3).weights, weights[0])


@pytest.fixture
def started(tmp_path: Path, table: Path) -> Path:
    """A study with public rows."""
    public = write_csv(tmp_path / "sample.csv", make_cells(400, seed=1))
    text = to_toml(make_study(method="auto", epsilon=0.3, **QUICK))
    (tmp_path / "started.toml").write_text(f'{text}\n[public_rows]\nfile = "sample.csv"\nsha256 = "{digest(public)}"\n')
    return tmp_path / "started.toml"


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def test_the_study_s_public_rows_are_the_default_initialisation(
    cli: Cli, tmp_path: Path, table: Path, started: Path
) -> None:
    sample, bare = tmp_path / "sample.csv", tmp_path / "bare.toml"
    bare.write_text(to_toml(make_study(method="auto", epsilon=0.3, **QUICK)))
    other = write_csv(tmp_path / "other.csv", make_cells(300, seed=5))
    found: dict[str, Any] = {}
    for name, words in {
        "own": [started],
        "none": [started, "--no-public"],
        "other": [started, "--public", other],
        "bare": [bare],
        "bare, own": [bare, "--public", sample],
        "bare, other": [bare, "--public", other],
    }.items():
        answer = cli("train", *words, "-d", table, "-o", tmp_path / name, "--seed", 3, "--json").succeeded().json
        found[name] = answer["public_rows"], load_model(tmp_path / name)
    for name, same in [("own", "bare, own"), ("none", "bare"), ("other", "bare, other")]:
        assert np.array_equal(found[name][1].weights, found[same][1].weights)
        assert found[name][0] == found[same][0]
    assert found["own"][0] == {"file": str(sample), "rows": 400}
    assert found["none"][0] is None
    assert found["own"][1].study["public_rows"] == {"sha256": digest(sample)}
    assert found["none"][1].study_hash == found["other"][1].study_hash == found["bare"][1].study_hash
    for public, name in [(None, "own"), (False, "none"), (other, "other")]:
        again = dpadmm.train(started, table, seed=3, public=public)
        assert np.array_equal(again.weights, found[name][1].weights)
    shown = " ".join(cli("train", started, "-d", table, "-o", tmp_path / "m").succeeded().out.split())
    assert "Initialised from 400 public rows of sample.csv, down-weighted where the private data disagree." in shown


# --- mistakes ----------------------------------------------------------------------------------------------

Make = Callable[[Path], list[Any]]
"""folder -> words that differ from a good command line."""


def _cells(**changes: Callable[[list[Any]], list[Any]]) -> Make:
    def make(folder: Path) -> list[Any]:
        cells = make_cells(60)
        for name, change in changes.items():
            cells[name] = change(cells[name])
        return ["--data", write_csv(folder / "bad.csv", cells)]

    return make


def _public(change: Callable[[dict[str, list[Any]]], dict[str, list[Any]]]) -> Make:
    return lambda folder: ["--public", write_csv(folder / "public.csv", change(make_cells(60)))]


def _of_one_class(cells: dict[str, list[Any]]) -> dict[str, list[Any]]:
    well = [i for i, each in enumerate(cells["outcome"]) if each == "well"]
    return {name: [column[i] for i in well] for name, column in cells.items()}


def _started(change: Callable[[Path], object], *words: object) -> Make:
    """A study whose public rows change after it was written."""

    def make(folder: Path) -> list[Any]:
        public = write_csv(folder / "sample.csv", make_cells(60, seed=1))
        own = f'\n[public_rows]\nfile = "sample.csv"\nsha256 = "{digest(public)}"\n'
        (folder / "study.toml").write_text(to_toml(make_study(method="auto", **QUICK)) + own)
        change(public)
        return list(words)

    return make


def _study(change: Callable[[str], str]) -> Make:
    def make(folder: Path) -> list[Any]:
        (folder / "study.toml").write_text(change(to_toml(make_study(**QUICK))))
        return []

    return make


N0 = '[columns."n0"]'


def _swapped(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


def _plain_features(text: str) -> str:
    return 'format = "dpadmm-study/2"\nname = "s"\nfeatures = ["n0"]\n[privacy]\nepsilon = 1.0\ndelta = 1e-5\n'


MISTAKES: dict[str, tuple[Make, str]] = {
    "no such table": (lambda folder: ["--data", folder / "none.csv"], "none.csv: there is no such file"),
    "unknown column of agents": (lambda folder: ["--by", "sites"], "no column 'sites': did you mean 'site'"),
    "agents by a feature": (lambda folder: ["--by", "region0"], "'region0' cannot be a feature too"),
    "agents twice": (lambda folder: ["--by", "site", "--agents", 2], "--by and --agents cannot be combined"),
    "no agents": (lambda folder: ["--agents", 0], "agents"),
    "more agents than rows": (lambda folder: ["--agents", 901], "901 agents cannot share 900 rows"),
    "agents of one row": (lambda folder: ["--agents", 900], "one row; every agent needs at least 2"),
    "an agent of one row": (_cells(site=lambda each: ["z", *each[1:]]) , "agent z has one row"),
    "a row of nobody": (_cells(site=lambda each: [None, *each[1:]]), "column 'site' has a missing cell"),
    "text for a number": (_cells(n3=lambda each: ["much", *each[1:]]), "'n3'.*number"),
    "decimal commas": (_cells(n3=lambda each: ["1,5", *each[1:]]), "'n3'.*written with a point"),
    "an unknown class": (
        _cells(outcome=lambda each: [*each[:-1], "dead"]),
        "is none of the classes well, ill in row 60",
    ),
    "no such public table": (lambda folder: ["--public", folder / "none.csv"], "none.csv: there is no such file"),
    "public rows without a column": (
        _public(lambda cells: {name: each for name, each in cells.items() if name != "n2"}),
        "public.csv has no column 'n2'",
    ),
    "public rows of one class": (_public(_of_one_class), "the public rows must contain every class"),
    "public rows of an unknown class": (
        _public(lambda cells: {**cells, "outcome": ["odd"] * 60}), "public.csv.* is none of the classes",
    ),
    "no table of the study's public rows": (
        _started(Path.unlink), "sample.csv: public rows not found; copy the .* --no-public"
    ),
    "another table than the study's public rows": (
        _started(lambda path: path.write_text("n0\n1\n")), "sample.csv: not the table that .* --no-public"
    ),
    "rows that are the public ones": (
        _started(lambda path: shutil.copy(path, path.with_name("rows.csv"))), "rows.csv is also the public table"
    ),
    "public rows and none": (_started(str, "--no-public", "--public", "x.csv"), "cannot be combined"),
    "a folder for a model": (lambda folder: ["-o", folder], "is a folder; give the name of a file"),
    "a file for a folder": (lambda folder: ["-o", folder / "rows.csv" / "m"], "is not a folder"),
    "a model that is there": (lambda folder: ["-o", folder / "rows.csv"], "exists; .*--overwrite"),
    "a negative seed": (lambda folder: ["--seed", -1], "seed"),
    "an unknown word": (_study(lambda text: text + "\nrounds = 3\n"), "rounds"),
    "bounds the wrong way": (_study(_swapped("[-2.0, 2.0]", "[2.0, -2.0]")), "bounds must rise"),
    "unconfirmed values": (_study(_swapped(N0, f"{N0}\npublic = false")), "are not confirmed as public"),
    "only lists features": (_study(_plain_features), r"needs \[columns\]"),
    "no TOML": (_study(lambda text: "hello"), "study.toml"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_an_error_is_one_sentence_and_writes_no_file(
    name: str, cli: Cli, tmp_path: Path, table: Path, study: Path
) -> None:
    make, pattern = MISTAKES[name]
    given = make(tmp_path)
    words = ["train", study, *given]
    words += [] if "--data" in given else ["--data", table]
    words += ["--by", "site"] if "site" in name or name in ("an agent of one row", "a row of nobody") else []
    words += [] if "-o" in given else ["-o", tmp_path / "m.dpadmm"]
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    answer = cli(*words)
    assert answer.code == 2, answer
    assert answer.out == ""
    assert answer.err.startswith("dpadmm: ")
    assert answer.err.count("\n") == 1
    assert "Traceback" not in answer.err
    assert re.search(pattern, answer.err), answer.err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_existing_privacy_report_is_not_replaced(cli: Cli, tmp_path: Path, table: Path, study: Path) -> None:
    (tmp_path / "m.privacy.json").write_text("mine")
    answer = cli("train", study, "-d", table, "-o", tmp_path / "m.dpadmm")
    assert answer.code == 2
    assert "m.privacy.json already exists" in answer.err
    assert not (tmp_path / "m.dpadmm").exists()


def test_counts_of_clamped_cells_are_for_the_owner_only(cli: Cli, tmp_path: Path, table: Path) -> None:
    """A model contains no counts of clamped cells, which are for the owner only."""
    study = tmp_path / "s.toml"
    tight = replace(SCHEMA, columns=(Number("n0", (-0.1, 0.1)), *SCHEMA.columns[1:]))
    study.write_text(to_toml(make_study(schema=tight, **QUICK)))
    cli("train", study, "-d", table, "-o", tmp_path / "m", "-q").succeeded()
    model = load_model(tmp_path / "m")
    public = json.dumps([model.study, model.privacy])
    assert "clamped" not in public
    assert "missing" not in public.replace('"missing": "middle"', "").replace('"missing": "indicator"', "")


# --- Ctrl-C ------------------------------------------------------------------------------------------------


def test_ctrl_c_keeps_the_rounds_done_and_charges_all(
    command: list[str], tmp_path: Path, table: Path, study: Path
) -> None:
    study.write_text(to_toml(make_study(n_rounds=1_000_000, epsilon=5.0)))
    screen, theirs = pty.openpty()
    with subprocess.Popen(
        [*command, "train", study.name, "--data", table.name, "-o", "m.dpadmm"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    ) as started:
        os.close(theirs)
        shown = b""
        while not re.search(rb"[1-9]\d*/1000000", shown):
            shown += os.read(screen, 4096)
        started.send_signal(signal.SIGINT)
        try:
            while part := os.read(screen, 4096):
                shown += part
        except OSError:  # the other end is closed
            pass
        assert started.wait(60) == 130
    assert b"Traceback" not in shown
    last = shown.decode().strip().splitlines()[-1]
    done = re.search(r"interrupted after (\d+) of 1000000 rounds; the model is in m.dpadmm; all 1000000", last)
    assert done, last
    (group,) = read_privacy_report(tmp_path / "m.privacy.json").groups
    assert [(each.released, each.charged) for each in group.releases] == [(int(done[1]), 1_000_000)]
    assert np.isfinite(load_model(tmp_path / "m.dpadmm").weights).all()
    assert files(tmp_path) == ["m.dpadmm", "m.privacy.json", "rows.csv", "study.toml"]


def test_ctrl_c_before_the_first_round_leaves_nothing(
    cli: Cli, tmp_path: Path, table: Path, study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("dpadmm.cli.train"), "encode", interrupted)
    answer: CommandResult = cli("train", study, "-d", table, "-o", tmp_path / "m.dpadmm")
    assert (answer.code, answer.err) == (130, "dpadmm: interrupted\n")
    assert files(tmp_path) == ["rows.csv", "study.toml"]


def test_the_same_in_python(table: Path, study: Path) -> None:
    by_file, by_object = (dpadmm.train(each, table, n_agents=2, seed=3) for each in (study, read_study(study)))
    assert np.array_equal(by_file.weights, by_object.weights)
    assert by_file.privacy.to_dict()["agents"]
    assert len(by_file.model.predict_table(table)) == N_ROWS
    assert dpadmm.train(study, table).privacy.exact_noise


def test_intervals_for_more_columns_than_the_budget_allows_are_refused_before_anything_is_released(cli, tmp_path):
    names = [f"x{j}" for j in range(40)]
    rows = np.random.default_rng(2).random((500, 40)).round(2)
    lines = [",".join(["y", *names]), *(",".join(map(str, [j % 2, *row])) for j, row in enumerate(rows.tolist()))]
    table, path, model = tmp_path / "t.csv", tmp_path / "s.toml", tmp_path / "m.dpadmm"
    table.write_text("\n".join(lines) + "\n")
    head = ['format = "dpadmm-study/2"', 'name = "wide"', "[label]", 'column = "y"', 'classes = ["0", "1"]',
            "[privacy]", "epsilon = 0.5", "delta = 1e-6", "[method]", 'name = "auto"', "inference = true"]  # fmt: skip
    columns = [f'[columns.{name}]\nkind = "number"\nbounds = [0, 1]' for name in names]
    path.write_text("\n".join([*head, *columns]) + "\n")
    answer = cli("train", path, "--data", table, "-o", model)
    assert answer.code == 2
    assert "too much noise to estimate the covariance of 40 columns" in " ".join(answer.err.split())
    assert not model.exists()
    path.write_text("\n".join([*head, *columns[:1]]).replace("0.5", "9.0") + "\n")
    cli("train", path, "--data", table, "-o", model).succeeded()


def test_unlikely_intervals_are_a_warning_before_the_first_round(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, rows = tmp_path / "s.toml", planned.table(tmp_path / "rows.csv", 1000, seed=2)
    asking = planned.STUDY.replace('"dp_admm"', '"auto"\ninference = true').replace("n_rounds = 20\n", "")
    study.write_text(asking)
    call = ["train", study, "--data", rows, "--agents", 2, "--seed", 1, "--overwrite", "-o", tmp_path / "m.dpadmm"]
    warning = (
        r"Warning: Confidence intervals: unlikely at ε = 1 with 1,000 rows \(0 of [39] runs had them\); about [0-9,]+ "
    )
    public = ["--public", planned.table(tmp_path / "public.csv", 300, seed=1)]
    too_few = ["--public", planned.table(tmp_path / "few.csv", 20, seed=1)]
    for more in ([], public, too_few, ["--json"], ["--quiet"]):
        answer = cli(*call, *more).succeeded()
        assert re.match(warning, " ".join(answer.err.split())), more
        assert " ".join(answer.err.split()).endswith("Training spends ε in any case.")
        assert "Warning: Confidence" not in answer.out
    many = planned.table(tmp_path / "many.csv", 40_000, seed=2)
    for more in ([], public):
        assert cli(*call, *more, "--data", many).succeeded().err == ""
    with pytest.warns(UserWarning, match="^Confidence intervals: unlikely at ε = 1 with 1,000 rows"):
        dpadmm.train(study, rows, n_agents=2, seed=1)
    dpadmm.train(study, many, n_agents=2, seed=1)
    study.write_text(asking.replace("inference = true", ""))
    assert cli(*call).succeeded().err == ""
    study.write_text(asking)

    def spent(*_: Any, **__: Any) -> None:
        raise StudyError("the first round")

    monkeypatch.setattr(importlib.import_module("dpadmm.cli.train"), "run_study", spent)
    answer = cli(*call)
    assert answer.err.index("Warning: Confidence intervals: unlikely") < answer.err.index("the first round")


def test_rows_of_agents_are_those_that_are_trained_on(tmp_path: Path) -> None:
    path, rows = tmp_path / "s.toml", planned.table(tmp_path / "rows.csv", 103, seed=2)
    path.write_text(
        planned.STUDY.replace('[columns.region]\nkind = "category"\nvalues = ["north", "south", "west"]\n', "")
    )
    study, cells = read_study(path), pa.csv.read_csv(rows)
    owners = [each or "south" for each in cells["region"].to_pylist()]
    pa.csv.write_csv(cells.set_column(1, "region", [owners]), rows)
    shared, owned = encode(study, rows), encode(study, rows, by="region")
    assert agent_sizes(shared, 4).tolist() == [26, 26, 26, 25]
    assert tuple(agent_sizes(shared, 4)) == dpadmm.train(study, rows, seed=1, n_agents=4).n_rows
    assert tuple(agent_sizes(owned, 1)) == dpadmm.train(study, rows, seed=1, by="region").n_rows


def test_an_exposure_that_is_not_above_0_is_refused_before_anything_is_released(cli, tmp_path):
    table, path, model = tmp_path / "t.csv", tmp_path / "s.toml", tmp_path / "m.dpadmm"
    text = """format = "dpadmm-study/2"
name = "visits"
[label]
column = "visits"
bounds = [0, 10]
exposure = "years"
exposure_bound = 5
[columns.age]
kind = "number"
bounds = [20, 90]
[training]
intercept = true
[loss]
name = "poisson"
[privacy]
epsilon = 4.0
delta = 1e-6
"""
    path.write_text(text)
    for cell in ("0", "-2", ""):
        table.write_text("age,visits,years\n" + "50,1,2\n" * 50 + f"50,1,{cell}\n")
        for command in (("train", path, "--data", table, "-o", model), ("study", "check", path, "--data", table)):
            answer = cli(*command)
            assert answer.code == 2
            assert "the exposure 'years'" in " ".join((answer.out + answer.err).split())
        assert not model.exists()
    path.write_text(text.replace("exposure_bound = 5", "exposure_bound = 0"))
    answer = cli("train", path, "--data", table, "-o", model)
    assert (answer.code, model.exists()) == (2, False)
    assert "exposure_bound must be the largest exposure, above 0, not 0" in " ".join(answer.err.split())
