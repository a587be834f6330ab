"""No command prints control or format characters, or interprets markup, of names in files of others."""

from __future__ import annotations

import ast
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import small_study, write_rows
from looping import case
from mixed_tables import to_toml
from printed import printed

from dpadmm.cli import console
from dpadmm.errors import DataError
from dpadmm.federation.logs import make_log
from dpadmm.models.file import load_model, save_model
from dpadmm.rendering import Column, Rendering, Table
from dpadmm.trusted.ledger import Ledger

HOSTILE = "\x1b[2J\u202e\u200b"
SHOWN = r"\x1b[2J\u202e\u200b"
MARKUP = "[red]x[/red] [/] :smile:"

QUERIES = """
format = "dpadmm-study/2"
kind = "statistics"
name = "counts"
[columns.age]
kind = "number"
bounds = [0, 100]
[columns.sick]
kind = "category"
values = ["no", "yes"]
[training]
n_rounds = 1
[privacy]
epsilon = 3.0
"""


@pytest.fixture(scope="module")
def files(once) -> Path:
    """Create a valid study, table, model, privacy report, statistics, ledger and site."""

    def make(folder: Path) -> None:
        from dpadmm.data.table import encode_table
        from dpadmm.federation.local import new_site
        from dpadmm.models.model import model_of
        from dpadmm.training.train import run_study

        study = small_study(5)
        (folder / "study.toml").write_text(to_toml(study))
        (folder / "statistics.toml").write_text(QUERIES)
        write_rows(folder / "table.csv", 1, 200)
        result = run_study(study, encode_table(folder / "table.csv", study.schema, study.label), seed=1)
        save_model(model_of(result), folder / "m.dpadmm")
        (folder / "m.privacy.json").write_bytes(result.privacy.to_bytes())
        with Ledger.open(folder / "ledger", cap=4.0, create=True) as ledger:
            ledger.reserve("a1" * 32, 1.0, about={"name": f"ledger {HOSTILE}"})
        (folder / "site").mkdir()
        shutil.copy(folder / "table.csv", folder / "site" / "table.csv")
        new_site(folder / "site", study, table="table.csv", epsilon=3.0)

    return once("untrusted text", make)


@pytest.fixture
def hostile(files: Path, tmp_path: Path) -> Path:
    """Create the same files in a folder with a hostile name."""
    shutil.copytree(files, tmp_path / f"folder {HOSTILE}")
    return tmp_path / f"folder {HOSTILE}"


PATHS: dict[str, Callable[[Path], Sequence[object]]] = {
    "study new": lambda f: ("study", "new", f / "new.toml", "--from", f / "table.csv", "--label", "sick"),
    "study new again": lambda f: ("study", "new", f / "study.toml"),
    "study check": lambda f: ("study", "check", f / "missing.toml"),
    "study confirm": lambda f: ("study", "confirm", f / "study.toml", "no such column"),
    "study schema": lambda f: ("study", "schema", "-o", f / "schema.json"),
    "study show": lambda f: ("study", "show", f / "table.csv"),
    "train": lambda f: ("train", f / "study.toml", "-d", f / "table.csv", "-o", f / "new.dpadmm"),
    "predict": lambda f: ("predict", f / "m.dpadmm", "-d", f / "table.csv", "-o", f / "p.csv"),
    "predict without a model": lambda f: ("predict", f / "table.csv", "-d", f / "table.csv", "-o", f / "p.csv"),
    "evaluate": lambda f: ("evaluate", f / "m.dpadmm", "-d", f / f"table{HOSTILE}.csv"),
    "explain": lambda f: ("explain", f / "m.dpadmm", "--table", f / "t.csv"),
    "describe": lambda f: ("describe", f / "statistics.toml", "-d", f / "table.csv", "-o", f / "s.json"),
    "plan": lambda f: ("plan", f / "missing.toml", "--rows", 100),
    "compare": lambda f: ("compare", "--data", f / "missing.csv", "-e", 1),
    "simulate": lambda f: ("simulate", "--data", f / "missing.csv", "--epsilon", 1),
    "verify": lambda f: ("verify", f / "m.privacy.json"),
    "site budget": lambda f: ("site", "budget", "--ledger", f / "ledger"),
    "site budget missing": lambda f: ("site", "budget", "--ledger", f / "missing"),
    "site export": lambda f: ("site", "export", "--ledger", f / "ledger", "-o", f / "export.json"),
    "site export study": lambda f: ("site", "export", HOSTILE, "--ledger", f / "ledger", "-o", f / "s.json"),
    "site join": lambda f: ("site", "join", "--manual", "ward", "--site", f / "another site"),
    "site check": lambda f: ("site", "check", "--site", f / "site" / "site.toml"),
    "site review": lambda f: ("site", "review", f / "study.toml", "--site", f / "missing.toml"),
    "site health": lambda f: ("site", "status", "--health", "--site", f / "missing.toml"),
    "site status": lambda f: ("site", "status", "--site", f / "missing.toml"),
    "server init": lambda f: ("server", "init", f / "hub", "--host", "127.0.0.1"),
    "server status": lambda f: ("server", "status", "--folder", f / "missing"),
    "server invite": lambda f: ("server", "invite", "ward", "--manual", f / "missing.json", "--folder", f / "missing"),
    "an option": lambda f: ("train", f / "study.toml", f"--{HOSTILE}"),
    "a command": lambda f: (HOSTILE,),
}


def is_clean(answer: Any) -> bool:
    return all(map(str.isprintable, (answer.out + answer.err).split("\n")))


@pytest.mark.parametrize("name", PATHS)
def test_a_hostile_path_is_escaped(cli, hostile, name):
    answer = cli(*PATHS[name](hostile), columns=1000)
    assert SHOWN in answer.out + answer.err
    assert is_clean(answer)


STUDY_COMMANDS: dict[str, Callable[[Path], Sequence[object]]] = {
    "study check": lambda f: ("study", "check", f / "study.toml"),
    "study confirm": lambda f: ("study", "confirm", f / "study.toml"),
    "study show": lambda f: ("study", "show", f / "study.toml"),
    "plan": lambda f: ("plan", f / "study.toml", "--rows", 100),
    "train": PATHS["train"],
    "compare": lambda f: ("compare", f / "study.toml", "--data", f / "table.csv"),
    "simulate": lambda f: ("simulate", f / "study.toml", "--data", f / "table.csv"),
    "site review": lambda f: ("site", "review", f / "study.toml", "--site", f / "site" / "site.toml"),
    "server run": lambda f: ("server", "run", f / "study.toml", "--folder", f / "hub"),
    "server propose": lambda f: ("server", "propose", f / "study.toml", "--folder", f / "hub"),
}


@pytest.mark.parametrize("name", STUDY_COMMANDS)
def test_a_hostile_study_is_rejected_without_its_characters(cli, hostile, name):
    if name.startswith("server"):
        cli(*PATHS["server init"](hostile)).succeeded()
    text = (hostile / "study.toml").read_text()
    (hostile / "study.toml").write_text(text.replace('"sick"', json.dumps(f"sick{HOSTILE}")))
    answer = cli(*STUDY_COMMANDS[name](hostile), columns=1000)
    assert answer.code == 2
    if name != "study confirm":  # which refers to study check
        assert (
            r"label.column must be printable text of at most 200 characters, not 'sick\x1b[2J"
            in answer.err + answer.out
        )
    assert is_clean(answer)


MODEL_COMMANDS: dict[str, Callable[[Path], Sequence[object]]] = {
    "predict": PATHS["predict"],
    "evaluate": lambda f: ("evaluate", f / "m.dpadmm", "-d", f / "table.csv"),
    "explain": lambda f: ("explain", f / "m.dpadmm"),
}


def rewritten(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Write the model file with other JSON."""
    with np.load(path) as archive:
        arrays = dict(archive)
    about = json.loads(str(arrays.pop("about")))
    change(about)
    with path.open("wb") as out:
        np.savez(out, about=np.array(json.dumps(about)), **arrays)


HOSTILE_MODELS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "feature_names[0]": lambda about: about.update(feature_names=[HOSTILE, "bmi"]),
    "classes[1]": lambda about: about.update(classes=["no", HOSTILE]),
    "privacy.guarantee": lambda about: about["privacy"].update(guarantee=HOSTILE),
    "privacy.min_honest_sites": lambda about: about["privacy"].update(min_honest_sites=HOSTILE),
    "a name in privacy": lambda about: about["privacy"].update({HOSTILE: 1}),
    "label.column": lambda about: about["label"].update(column=HOSTILE),
    "study.name": lambda about: about["study"].update(name=HOSTILE),
    "version": lambda about: about.update(version="1" * 1001),
}


@pytest.mark.parametrize("place", HOSTILE_MODELS)
def test_a_hostile_model_is_rejected_without_its_characters(cli, hostile, place):
    rewritten(hostile / "m.dpadmm", HOSTILE_MODELS[place])
    for name, words in MODEL_COMMANDS.items():
        with case(name):
            answer = cli(*words(hostile), columns=1000)
            assert answer.code == 2
            assert f"{place} must be printable text of at most 1000 characters, not '" in answer.err
            assert is_clean(answer)


def test_a_model_that_could_not_be_read_is_not_written(files, tmp_path):
    model = replace(load_model(files / "m.dpadmm"), feature_names=("age", "b\nmi"), schema=None, label=None)
    with pytest.raises(DataError, match=r"was not written: feature_names\[1\] must be printable text"):
        save_model(model, tmp_path / "m.dpadmm")
    assert not list(tmp_path.iterdir())


def test_hostile_statistics_are_rejected_without_their_characters(cli, hostile):
    cli(*PATHS["describe"](hostile)).succeeded()
    table = json.loads((hostile / "s.json").read_text())
    (hostile / "s.json").write_text(json.dumps({**table, "privacy": {**table["privacy"], "method": HOSTILE}}))
    answer = cli("describe", hostile / "s.json", columns=1000)
    assert answer.code == 2
    assert "privacy.method must be printable text" in answer.err
    assert is_clean(answer)


def test_a_hostile_privacy_report_is_rejected_without_its_characters(cli, hostile):
    text = (hostile / "m.privacy.json").read_text()
    (hostile / "m.privacy.json").write_text(text.replace('"small"', json.dumps(f"small{HOSTILE}")))
    answer = cli("verify", hostile / "m.privacy.json", columns=1000)
    assert answer.code == 2
    assert is_clean(answer)


TABLE_COMMANDS: dict[str, Callable[[Path], Sequence[object]]] = {
    "study new": PATHS["study new"],
    "study check": lambda f: ("study", "check", f / "study.toml", "--data", f / "table.csv"),
    "train": PATHS["train"],
    "train by": lambda f: (*PATHS["train"](f), "--by", "site"),
    "evaluate": MODEL_COMMANDS["evaluate"],
    "predict": lambda f: (*PATHS["predict"](f), "--keep", f"site{HOSTILE}"),
    "describe": PATHS["describe"],
}


@pytest.mark.parametrize("name", TABLE_COMMANDS)
def test_hostile_tables_print_no_control_characters(cli, hostile, name):
    for old, new in [("bmi", f"bmi{HOSTILE}"), ("yes", f"yes{HOSTILE}"), ("bmi,sick", "bmi,sick,site")]:
        lines = (hostile / "table.csv").read_text().splitlines()
        lines = [lines[0].replace(old, new), *(line.replace(old, new) for line in lines[1:])]
        if new.endswith("site"):
            lines[1:] = [f"{line},a{HOSTILE}" for line in lines[1:]]
        (hostile / "table.csv").write_text("\n".join(lines) + "\n")
        with case(old):
            assert is_clean(cli(*TABLE_COMMANDS[name](hostile), columns=1000))


def test_markup_in_names_is_printed_as_it_is(cli, hostile):
    study = (hostile / "study.toml").read_text()
    renamed = study.replace('"bmi"', json.dumps(MARKUP)).replace('"yes"', json.dumps(MARKUP))
    (hostile / "study.toml").write_text(renamed.replace('"small"', json.dumps(MARKUP)))
    table = (hostile / "table.csv").read_text()
    (hostile / "table.csv").write_text(table.replace("bmi", MARKUP).replace("yes", MARKUP))
    for words in (STUDY_COMMANDS["study show"], (lambda f: (*PATHS["train"](f), "--overwrite", "-o", f / "m.dpadmm"))):
        assert MARKUP in cli(*words(hostile), columns=300).succeeded().out
    for words in (MODEL_COMMANDS["evaluate"], MODEL_COMMANDS["explain"]):
        assert MARKUP in cli(*words(hostile), columns=300).succeeded().out


def test_tables_and_sentences_are_escaped_once_for_all_commands():
    def speak() -> None:
        console.echo(HOSTILE, f"{MARKUP}\n")
        console.echo_path(HOSTILE)
        columns, rows = [Column("", HOSTILE), Column("", MARKUP)], [(HOSTILE, "a\nb"), (HOSTILE, MARKUP)]
        console.show(Rendering(body=[Table(columns, rows, title=f"title {HOSTILE}", caption=f"caption {HOSTILE}")]))

    out = printed(200, speak)
    assert out.count(SHOWN) == 7
    assert out.count(MARKUP) == 3
    assert r"a\nb" in out
    assert all(map(str.isprintable, out.split("\n")))


def test_log_lines_are_escaped(tmp_path):
    for name, as_json in (("text", False), ("json", True)):
        log = make_log(f"test-{name}", terminal=False, file=tmp_path / name, as_json=as_json)
        log.warning(f"from {HOSTILE}\n2026-01-01 INFO all is well")
        for handler in log.handlers:
            handler.close()
        logging.getLogger(f"dpadmm.test-{name}").handlers.clear()
        line = (tmp_path / name).read_text().removesuffix("\n")
        assert line.isprintable()
        assert (HOSTILE in json.loads(line)["text"]) if as_json else (SHOWN in line)


def test_commands_print_through_the_console_module_alone():
    """Each call of ``typer.echo`` prints escaped text, JSON, or text of this package."""
    printed_elsewhere = {}
    for path in sorted(Path(console.__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        names = [ast.unparse(node.func) for node in calls]
        assert "print" not in names
        if path.name != "console.py":
            assert "Console" not in names
            echoed = [ast.unparse(node.args[0]) for node in calls if ast.unparse(node.func) == "typer.echo"]
            printed_elsewhere[path.stem] = [text for text in echoed if "printable(" not in text]
    assert {name: found for name, found in printed_elsewhere.items() if found} == {
        "__init__": ["dpadmm.__version__"],
        "server": ["token.text if len(tokens) == 1 else f'{token.name} {token.text}'", "users_config(authority)"],
        "doctor": ["dpadmm.__version__"],
        "study": ["text"],
    }
