"""``dpadmm describe``, private evaluation, and drafts from their results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from looping import case

from conftest import Cli
from dpadmm.files.toml import read_toml
from dpadmm.models.model import Model
from dpadmm.studies.reading import read_study

DICTIONARY = """\
name,kind,low,high,values,description
age,number,18,100,,years
ward,category,,,surgery|medicine,
patient_id,text,,,,
ill,category,,,no|yes,
"""
TRAINED = ("age", "ward=surgery", "ward=medicine", "ward=other")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng, path = np.random.default_rng(4), tmp_path / "t.csv"
    lines = ["age,ward,ill,site"]
    for j in range(2000):
        age = rng.normal(60, 12)
        ill = "yes" if rng.random() < 1.0 / (1.0 + np.exp(-(age - 60) / 8)) else "no"
        lines.append(f"{age:.1f},{rng.choice(['surgery', 'medicine'])},{ill},{'ab'[j % 2]}")
    path.write_text("\n".join(lines) + "\n")
    (tmp_path / "dict.csv").write_text(DICTIONARY)
    return path


@pytest.fixture
def study(cli: Cli, table: Path) -> Path:
    path = table.with_name("s.toml")
    cli("study", "new", path, "--kind", "statistics", "--from-dictionary", table.with_name("dict.csv")).succeeded()
    path.write_text(path.read_text().replace('# tables = [["a", "b"]]', 'tables = [["ward", "ill"]]'))
    return path


@pytest.fixture
def model(table: Path) -> Path:
    columns = {name: about for name, about in COLUMNS.items() if name != "ill"}
    from dpadmm.studies.reading import study_from

    said = {"format": "dpadmm-study/2", "name": "m", "columns": columns, "label": LABEL, "privacy": {"epsilon": 1.0}}
    agreed = study_from(said)
    weights = np.array([[9.0], [0.5], [-0.5], [0.0]])
    made = Model(
        weights, "binary", "logistic", classes=("no", "yes"), schema=agreed.schema, label=agreed.label,
        feature_names=TRAINED, study=agreed.as_json(),
    )  # fmt: skip
    return made.save(table.with_name("m.dpadmm"))


COLUMNS = {
    "age": {"kind": "number", "bounds": [18, 100]},
    "ward": {"kind": "category", "values": ["surgery", "medicine"]},
    "ill": {"kind": "category", "values": ["no", "yes"]},
}
LABEL = {"column": "ill", "classes": ["no", "yes"]}


def test_a_dictionary_becomes_a_statistics_study_and_its_table_is_described(cli: Cli, table: Path, study: Path) -> None:
    agreed = read_study(study)
    assert agreed.kind == "statistics"
    assert agreed.schema is not None
    assert [each.name for each in agreed.schema.columns] == ["age", "ward", "ill"]
    shown = cli("study", "show", study).succeeded()
    assert "noise of a count, one site" in shown.out
    cli("study", "check", study, "--data", table).succeeded()
    out = table.with_name("r.json")
    answer = cli("describe", study, "--data", table, "-o", out, "--figure", table.parent).succeeded()
    assert max(len(line) for line in answer.out.splitlines() if str(table.parent) not in line) <= 80
    assert "This result is (1, 1e-05)-differentially private" in " ".join(answer.out.split())
    assert "ward × ill" in answer.out
    for name in ("r.json", "r.privacy.json", "statistics.png", "statistics.svg"):
        assert table.with_name(name).exists()
    cli("verify", table.with_name("r.privacy.json")).succeeded()
    told = json.loads(out.read_text())
    assert told["columns"][0]["mean"]["value"] == pytest.approx(60.0, abs=5.0 * told["columns"][0]["mean"]["se"])
    assert cli("describe", out, "--json").succeeded().json == told
    assert "ward × ill" in cli("describe", out).succeeded().out


def test_every_agent_in_one_process_adds_noise(cli: Cli, table: Path, study: Path) -> None:
    noise = []
    for words in ((), ("--by", "site"), ("--agents", "4")):
        out = table.with_name(f"{len(noise)}.json")
        answer = cli("describe", study, "--data", table, "-o", out, *words, "--json").succeeded()
        noise.append(answer.json["noise_of_a_count"])
        assert answer.json["rows"] == 2000
    assert noise[1] == pytest.approx(2**0.5 * noise[0])
    assert noise[2] == pytest.approx(2.0 * noise[0])


def test_errors_are_one_sentence_and_nothing_is_written(cli: Cli, table: Path, study: Path, model: Path) -> None:
    text, out = study.read_text(), table.with_name("r.json")

    def changed(old: str, new: str) -> Path:
        path = table.with_name(f"{len(list(table.parent.iterdir()))}.toml")
        assert old in text
        path.write_text(text.replace(old, new))
        return path

    data, dictionary = ("--data", table), table.with_name("dict.csv")
    bins = "bounds = [18, 100]\nbins = [10, 50]"
    plain = table.with_name("plain.toml")
    plain.write_text('format = "dpadmm-study/2"\nname = "p"\nfeatures = ["age"]\n[privacy]\nepsilon = 1.0\n')
    for words, sentence in (
        (("describe", changed('["ward", "ill"]', '["ward", "il"]'), *data), "has no column 'il': did you mean 'ill'?"),
        (("describe", changed('["ward", "ill"]', '["ward"]'), *data), "tables must be"),
        (("describe", changed("epsilon = 1.0", "epsilon = 0.02"), *data), "use an ε about"),
        (("describe", changed("bounds = [18, 100]", bins), *data), "bins must be edges that rise within the bounds"),
        (("describe", changed('kind = "statistics"', 'kind = "statistic"'), *data), "did you mean 'statistics'?"),
        (("describe", changed("[statistics]", "[evaluation]"), *data), "[evaluation] does not apply to kind"),
        (("describe", changed("[privacy]", "[loss]\nname = 'hinge'\n[privacy]"), *data), "[loss] does not apply"),
        (("describe", study), "--data is required: name the table to describe"),
        (("describe", plain, *data), 'describe needs kind = "statistics"'),
        (("describe", study, *data, "--by", "site", "--agents", "2"), "cannot be combined"),
        (("describe", dictionary.with_suffix(".json")), "dict.json"),
        (("train", study, *data), 'kind = "statistics" trains no model; use dpadmm describe'),
        (("plan", study, "--rows", "100", "--agents", "1"), "trains no model"),
        (("study", "new", "x.toml", "--kind", "statistics"), "--from-dictionary DICT.csv"),
        (("study", "new", "x.toml", "--kind", "counts"), "--kind must be training or statistics"),
        (
            ("study", "new", "x.toml", "--from-model", model, "--from", table),
            "--from and --from-model cannot be combined",
        ),
        (("evaluate", model, *data, "--delta", "1e-5"), "require --epsilon"),
        (("evaluate", model, *data, "--epsilon", "0.001"), "counts would have noise of"),
        (("explain", model, "--table", "t.xls"), "the table must be .md or .csv"),
    ):
        with case(sentence):
            answer = cli(*words, *(("-o", out) if words[0] == "describe" else ()))
            assert answer.code == 2
            assert sentence in " ".join(answer.err.split())
            assert not out.exists()


def test_an_existing_result_is_kept(cli: Cli, table: Path, study: Path) -> None:
    out = table.with_name("r.json")
    out.write_text("mine")
    answer = cli("describe", study, "--data", table, "-o", out)
    assert (answer.code, out.read_text()) == (2, "mine")


def test_results_are_input_of_drafts_and_plans(cli: Cli, table: Path, study: Path) -> None:
    out, draft = table.with_name("r.json"), table.with_name("d.toml")
    cli("describe", study, "--data", table, "-o", out).succeeded()
    assert "--label is required" in cli("study", "new", draft, "--from-statistics", out).err
    cli("study", "new", draft, "--from-statistics", out, "--label", "ill").succeeded()
    cli("study", "check", draft).succeeded()
    said = read_toml(draft)
    assert said["columns"]["age"]["released"] == read_study(study).hash
    assert said["columns"]["age"]["center"] == pytest.approx(60.0, abs=3.0)
    sizes = ("--rows", "2000", "--agents", "1")
    answer = cli("plan", draft, *sizes, "--statistics", out, "--repeats", "2", "--rounds", "5").succeeded()
    assert "cells drawn from the counts of private statistics" in " ".join(answer.out.split())


def test_a_model_is_evaluated_privately(cli: Cli, table: Path, model: Path) -> None:
    out = table.with_name("e.json")
    plain = cli("evaluate", model, "--data", table, "--json").succeeded().json
    answer = cli("evaluate", model, "--data", table, "--epsilon", "4", "--by", "site", "-o", out).succeeded()
    assert max(len(line) for line in answer.out.splitlines() if str(table.parent) not in line) <= 80
    assert "(4, 1e-05)-differentially private" in " ".join(answer.out.split())
    told = json.loads(out.read_text())["metrics"]
    for name in ("accuracy", "auc", "brier"):
        with case(name):
            assert told[name]["value"] == pytest.approx(plain[name], abs=5.0 * told[name]["noise_se"] + 0.01)
            assert 0.0 < told[name]["noise_se"] < told[name]["se"] < 0.1
            assert told[name]["high"] - told[name]["low"] == pytest.approx(3.92 * told[name]["se"], rel=1e-3)
    assert "95% interval" in answer.out
    cli("verify", out.with_name("e.privacy.json")).succeeded()
    # Counts without noise are on the owner's screen, and not in JSON, which may be published
    table.write_text(re.sub(r"(?m)^(\d+)", "999", table.read_text()))
    words = ("evaluate", model, "--data", table, "--epsilon", "4", "--by", "site")
    assert "of the cells were clamped" in " ".join(cli(*words).succeeded().out.split())
    assert "clamped" not in cli(*words, "--json").succeeded().out


def test_an_evaluation_study_for_sites_has_the_models_weights(cli: Cli, table: Path, model: Path) -> None:
    path = table.with_name("e.toml")
    cli("study", "new", path, "--from-model", model).succeeded()
    agreed = read_study(path)
    assert agreed.kind == "evaluation"
    assert agreed.training.method.weights == (9.0, 0.5, -0.5, 0.0)  # type: ignore[attr-defined]
    assert "kind" in cli("study", "show", path).succeeded().out
    masked = ("--aggregation", "secure", "--min-honest-sites", "3", "--max-rows-per-site", "500")
    cli("study", "new", table.with_name("m.toml"), "--from-model", model, *masked).succeeded()
    assert read_study(table.with_name("m.toml")).max_rows_per_site == 500
