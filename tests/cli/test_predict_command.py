"""``dpadmm predict`` and ``dpadmm evaluate``: predictions and metrics of tables."""

from __future__ import annotations

import csv
import dataclasses
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from looping import case

from conftest import Cli
from dpadmm.data import reader
from dpadmm.data.schema import Category, Label, Number, Schema
from dpadmm.models.file import load_model
from dpadmm.models.model import Model

CLASSES = ("good [red]", "bad")
SCHEMA = Schema((Number("x", (0.0, 10.0)), Category("c", ("a", "b"))))
MODEL = Model(
    np.array([[2.0], [1.0], [-1.0], [0.0]]), "binary", "logistic", classes=CLASSES,
    schema=SCHEMA, label=Label("z", classes=CLASSES), feature_names=SCHEMA.features,
)  # fmt: skip
ROWS = 'name,x,c,z\n007,1,a,bad\n"8, b",9,b,bad\n,,x,good [red]\n'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return MODEL.save(tmp_path / "m.dpadmm")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text(ROWS)
    return tmp_path / "t.csv"


def test_kept_columns_are_in_the_output(cli: Cli, tmp_path: Path, model: Path, table: Path) -> None:
    words = ["predict", model, "--data", table, "--keep", "name", "--keep", "z"]
    shown = cli(*words, "-o", tmp_path / "p.csv", columns=200).succeeded().out
    assert f"3 predictions: {tmp_path / 'p.csv'}" in shown
    text = pa.csv.ConvertOptions(column_types={"name": pa.string()}, strings_can_be_null=False)
    written = pa.csv.read_csv(tmp_path / "p.csv", convert_options=text)
    assert written.column_names == ["name", "z", "prediction", "probability good [red]", "probability bad"]
    assert written["name"].to_pylist() == ["007", "8, b", ""]
    cells = {"x": [1.0, 9.0, None], "c": ["a", "b", "x"]}
    assert written["prediction"].to_pylist() == MODEL.predict(cells).tolist()
    np.testing.assert_allclose(written["probability bad"].to_numpy(), MODEL.predict_proba(cells)[:, 1])

    cli(*words, "-o", tmp_path / "p.parquet").succeeded()
    again = pa.parquet.read_table(tmp_path / "p.parquet")
    assert again["prediction"].to_pylist() == written["prediction"].to_pylist()


def test_many_batches_are_written_in_order(
    cli: Cli, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BLOCK_BYTES", 200)
    rng = np.random.default_rng(0)
    cells = {"x": rng.uniform(0.0, 10.0, 300).round(3), "c": rng.choice(["a", "b"], 300)}
    pa.csv.write_csv(pa.table({"k": range(300), **cells}), tmp_path / "t.csv")
    assert len(list(MODEL.predict_batches(tmp_path / "t.csv"))) > 3
    for name in ("p.csv", "p.parquet"):
        out = tmp_path / name
        cli("predict", model, "-d", tmp_path / "t.csv", "-o", out, "--keep", "k", "-q").succeeded()
        written = pa.csv.read_csv(out) if name == "p.csv" else pa.parquet.read_table(out)
        assert [int(k) for k in written["k"].to_pylist()] == list(range(300))
        assert written["prediction"].to_pylist() == MODEL.predict(cells).tolist()


MISTAKES = {
    "no such model": (["{m}x"], "m.dpadmmx: there is no such file"),
    "no model": (["{t}"], "not a model file of dpadmm, or damaged"),
    "no such table": (["-d", "none.csv"], "none.csv: there is no such file"),
    "a table without a column": (["-d", "{folder}/short.csv"], "no column 'c'"),
    "an empty table": (["-d", "{folder}/empty.csv"], "empty.csv is empty"),
    "a table without rows": (["-d", "{folder}/head.csv"], "head.csv has no rows"),
    "a broken cell": (["-d", "{folder}/text.csv"], "column 'x'.*number"),
    "a broken cell, late": (["-d", "{folder}/late.csv"], "column 'x'.*number"),
    "unknown ending": (["-o", "{folder}/p.xlsx"], r"must be \.csv or \.parquet"),
    "a file that is there": (["-o", "{t}"], "exists; .*--overwrite"),
    "a column that is not there": (["--keep", "nam"], "no column 'nam': did you mean 'name'"),
    "a column of the model that is misspelt": (["--keep", "X"], "no column 'X': did you mean 'x'"),
    "a column called prediction": (["--keep", "prediction"], "cannot keep column"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_errors_are_one_sentence_and_leave_no_file(
    name: str, cli: Cli, tmp_path: Path, model: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BLOCK_BYTES", 4096)
    (tmp_path / "short.csv").write_text("x,d\n1,a\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "head.csv").write_text("x,c\n")
    (tmp_path / "text.csv").write_text("x,c\nmuch,a\n")
    (tmp_path / "late.csv").write_text("x,c\n" + "1,a\n" * 5000 + "much,a\n")
    change, pattern = MISTAKES[name]
    given = [each.format(m=model, t=table, folder=tmp_path) for each in change]
    words: dict[str, object] = {"-d": table, "-o": tmp_path / "p.csv"}
    source = given.pop(0) if not given[0].startswith("-") else model
    words |= dict(zip(given[::2], given[1::2], strict=True))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    answer = cli("predict", source, *(each for pair in words.items() for each in pair))
    assert answer.code == 2
    assert (answer.out, answer.err.count("\n")) == ("", 1)
    assert re.search(pattern, answer.err), answer.err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


# --- evaluate ----------------------------------------------------------------------------------------------


def test_metrics_are_shown_with_a_privacy_warning(cli: Cli, model: Path, table: Path) -> None:
    answer = cli("evaluate", model, "--data", table, columns=200).succeeded()
    assert re.search(r"on 3 rows of t\.csv", answer.out)
    assert re.search(r"accuracy +\d", answer.out)
    assert "good [red]" in answer.out  # and not in red
    assert "contain no noise and may reveal individual rows" in " ".join(answer.out.split())


def test_an_evaluation_fits_the_screen_and_shows_calibration(cli: Cli, tmp_path: Path) -> None:
    rng, names = np.random.default_rng(0), tuple(f"a class with quite a long name, {k}" for k in range(4))
    schema = Schema((Number("x", (0.0, 1.0)), Number("y", (0.0, 1.0))))
    for classes, top in [(names, "the most probable class"), (("no", "yes"), "yes")]:
        with case(classes):
            several = len(classes) > 2
            model = Model(
                rng.normal(size=(2, len(classes) if several else 1)), "multiclass" if several else "binary",
                "softmax" if several else "logistic", classes=classes, schema=schema,
                label=Label("z", classes=classes), feature_names=schema.features,
            )  # fmt: skip
            lines = [f'{x},{y},"{rng.choice(classes)}"' for x, y in rng.random((200, 2))]
            (tmp_path / "t.csv").write_text("\n".join(["x,y,z", *lines]))
            words = ["evaluate", model.save(tmp_path / f"{top}.dpadmm"), "-d", tmp_path / "t.csv"]
            text, found = cli(*words, columns=80).succeeded().out, cli(*words, "--json").succeeded().json
            assert max(map(len, text.splitlines())) <= 80
            assert "…" not in text
            for word in ("AUC", "log-loss", "Brier score", "calibration error", f"probability of {top}", *classes):
                assert word in text
            assert f"{found['calibration'][3]['predicted']:.1%}" in text
            assert [each["rows"] for each in found["calibration"]] == [20] * 10
            assert min(found[name] for name in ("log_loss", "brier", "calibration_error")) > 0.0
            assert "mean loss" not in text  # it is the log-loss


def test_a_class_that_is_never_predicted_is_reported(cli: Cli, tmp_path: Path, model: Path, table: Path) -> None:
    never = "Never predicted: bad. Either use the probabilities or train with class weights"
    assert never not in " ".join(cli("evaluate", model, "-d", table).succeeded().out.split())
    table.write_text("name,x,c,z\n1,0,b,bad\n2,0,b,good [red]\n")
    assert never in " ".join(cli("evaluate", model, "-d", table).succeeded().out.split())
    table.write_text("name,x,c,z\n1,0,b,good [red]\n2,0,b,good [red]\n")
    assert "Never predicted" not in cli("evaluate", model, "-d", table).succeeded().out


def test_metrics_as_json(cli: Cli, model: Path, table: Path) -> None:
    found = cli("evaluate", model, "-d", table, "--json").succeeded().json
    assert found["rows"] == 3
    assert found["classes"] == list(CLASSES)
    assert np.sum(found["confusion"]) == 3
    assert 0.0 <= found["auc"] <= 1.0
    assert sum(each["rows"] for each in found["calibration"]) == 3
    assert "contain no noise" in found["notes"][0]
    assert found["owner_only"]["columns"]["c"] == {"clamped": 0, "unknown": 1, "missing": 0}


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        (["--label", "name"], "is none of the classes good.* in row 1"),
        (["--label", "x"], "'x' is a feature of the model"),
        (["--label", "y"], "no column 'y'"),
    ],
)
def test_invalid_evaluations(
    cli: Cli, tmp_path: Path, model: Path, table: Path, words: list[str], pattern: str
) -> None:
    before = sorted(tmp_path.iterdir())
    answer = cli("evaluate", model, "-d", table, *words)
    assert answer.code == 2
    assert (answer.out, answer.err.count("\n")) == ("", 1)
    assert re.search(pattern, answer.err), answer.err
    assert sorted(tmp_path.iterdir()) == before


FORMULAS = ("=cmd|' /C calc'!A0", "+x", "-x", "@SUM(1)", "-1+2", "＝1")
NO_FORMULAS = ("a=b", "-1.5", "+3e-4", "-.5", "x", "'=1", "")


def as_csv(text: str) -> str:
    return f"'{text}" if text in FORMULAS else text


@pytest.mark.parametrize("formula", FORMULAS)
def test_classes_are_escaped_in_a_csv(cli: Cli, tmp_path: Path, formula: str) -> None:
    classes = (formula, "-1.5")
    label = Label("z", classes=classes)
    model = dataclasses.replace(MODEL, classes=classes, label=label).save(tmp_path / "m.dpadmm")
    (tmp_path / "t.csv").write_text("x,c\n1,a\n9,b\n")
    for suffix in (".csv", ".parquet"):
        cli("predict", model, "--data", tmp_path / "t.csv", "-o", tmp_path / f"p{suffix}").succeeded()
    expected = load_model(model).predict({"x": [1.0, 9.0], "c": ["a", "b"]}).tolist()
    assert pa.parquet.read_table(tmp_path / "p.parquet")["prediction"].to_pylist() == expected
    with (tmp_path / "p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["prediction"] for row in rows] == [as_csv(name) for name in expected]
    assert {"probability -1.5", f"probability {formula}"} <= set(rows[0])
    assert all(0.0 <= float(row["probability -1.5"]) <= 1.0 for row in rows)


def test_kept_columns_and_cells_are_escaped_in_a_csv(cli: Cli, tmp_path: Path, model: Path) -> None:
    texts = [*FORMULAS, *NO_FORMULAS, "\t=1", None]
    table = pa.table(
        {
            "x": [1.0] * len(texts),
            "c": ["a"] * len(texts),
            "=id": texts,
            "coded": pa.array(texts).dictionary_encode(),
            "number": list(range(-1, len(texts) - 1)),
        }
    )
    pa.parquet.write_table(table, tmp_path / "t.parquet")
    kept = [word for name in ("=id", "coded", "number") for word in ("--keep", name)]
    cli("predict", model, "--data", tmp_path / "t.parquet", *kept, "-o", tmp_path / "p.csv").succeeded()
    with (tmp_path / "p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for name in ("'=id", "coded"):
        assert [row[name] for row in rows] == [*map(as_csv, (*FORMULAS, *NO_FORMULAS)), "'\t=1", ""]
    assert [row["number"] for row in rows] == [str(k) for k in range(-1, len(texts) - 1)]
    cli("predict", model, "--data", tmp_path / "t.parquet", *kept, "-o", tmp_path / "p.parquet").succeeded()
    assert pa.parquet.read_table(tmp_path / "p.parquet")["=id"].to_pylist() == texts


def test_names_of_coefficients_are_escaped_in_a_csv(cli: Cli, tmp_path: Path) -> None:
    weights, classes = np.eye(2, 3), ("=a", "b", "-1")
    model = Model(weights, "multiclass", "softmax", classes=classes, feature_names=("@x", "y"))
    cli("explain", model.save(tmp_path / "m.dpadmm"), "--table", tmp_path / "t.csv").succeeded()
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["class"] for row in rows} == {"'=a", "b", "-1"}
    assert {"'@x", "y"} <= {row["column"] for row in rows}
    assert min(float(row["coefficient"]) for row in rows) < 0.0
