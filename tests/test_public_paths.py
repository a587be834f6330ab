"""Every documented function with a path argument accepts a str, a Path and any other os.PathLike[str]."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import isclass, isfunction, signature
from pathlib import Path
from typing import Any

import pytest
from looping import case

import dpadmm
from dpadmm import DataError
from dpadmm.files.atomic import StrPath

ROOT = Path(__file__).parents[1]
IMPORT = re.compile(r"(?m)^from (dpadmm\.[\w.]+) import (.+)$")
PATHS = re.compile(r"Path|\bTable\b")  # a Table is a path, a database or a data frame
FILE_WORDS = {"path", "file", "folder", "directory"}
STUDY = """
format = "dpadmm-study/2"
name = "small"
columns.age = {kind = "number", bounds = [0, 100]}
label = {column = "ill", classes = ["no", "yes"]}
privacy = {epsilon = 1.0, delta = 1e-6}
training = {n_rounds = 2}
"""
SITE = """
format = "dpadmm-site/2"
ledger = "ledger"
data = {table = "t.csv", label = "ill"}
person = {rows = 1}
[limits]
epsilon = 1.0
delta = 1e-6
methods = ["dp_admm"]
losses = ["logistic"]
max_rounds = 50
min_rows = 3
"""


STATISTICS = """format = "dpadmm-study/2"
kind = "statistics"
name = "paths"
[columns.age]
kind = "number"
bounds = [20, 70]
[privacy]
epsilon = 10.0
delta = 1e-5
"""


class OtherPath:
    """A path type that is neither str nor Path, without the path in its repr."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return os.fspath(self._path)


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions, constructors and methods of the public names, and functions that the documentation imports."""
    for name in dpadmm.__all__:
        value = getattr(dpadmm, name)
        if isclass(value):
            yield name, value.__init__
            members = {item: getattr(value, item) for item in dir(value) if not item.startswith("_")}
            yield from ((f"{name}.{attribute}", member) for attribute, member in members.items() if callable(member))
        elif isfunction(value):
            yield name, value
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*/*.md")):
        for module, names in IMPORT.findall(page.read_text("utf-8")):
            for name in names.split(", "):
                value = getattr(import_module(module), name)
                if isfunction(value):
                    yield name, value


def path_arguments() -> dict[tuple[str, str], str]:
    """Annotations of path arguments, by function and argument."""
    found = {}
    for name, function in public_functions():
        try:
            arguments = signature(function).parameters
        except ValueError:  # a built-in method
            continue
        for argument, parameter in arguments.items():
            if PATHS.search(str(parameter.annotation)) or FILE_WORDS & {*argument.split("_")}:
                found[name, argument] = str(parameter.annotation)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paths")
    rows = "".join(f"{20 + i % 50},{'no' if i % 3 else 'yes'}\n" for i in range(60))
    (folder / "t.csv").write_text(f"age,ill\n{rows}")
    (folder / "public.csv").write_text(f"age,ill\n{rows}70,yes\n")
    (folder / "new.csv").write_text("age\n30\n60\n")
    (folder / "study.toml").write_text(STUDY)
    (folder / "site.toml").write_text(SITE)
    (folder / "statistics.toml").write_text(STATISTICS)
    dpadmm.train(folder / "study.toml", folder / "t.csv", seed=1).model.save(folder / "m.dpadmm")
    described = dpadmm.describe(folder / "statistics.toml", folder / "t.csv", seed=1)
    (folder / "s.json").write_text(json.dumps(described.to_dict()))
    return folder


def calls(folder: Path, given: Callable[[str], StrPath]) -> dict[tuple[str, str], Callable[[], object]]:
    """Return a call for each path argument. ``given`` converts a file name to a path."""
    study, table = folder / "study.toml", folder / "t.csv"
    few: dict[str, Any] = {"repeats": 2, "epsilons": [], "rounds": []}
    model = dpadmm.load_model(folder / "m.dpadmm")
    read_site = import_module("dpadmm.sites.site").read_site

    def load_adult() -> None:  # the original files are not in the repository
        with pytest.raises(DataError, match=re.escape(f"{folder / 'adult.data'} cannot be read")):
            dpadmm.load_adult(given(""), download=False)

    return {
        ("Model.predict_batches", "table"): lambda: [*model.predict_batches(given("new.csv"), keep=["age"])],
        ("Model.predict_table", "table"): lambda: model.predict_table(given("new.csv")),
        ("Model.save", "path"): lambda: model.save(given("again.dpadmm")).stat(),
        ("Model.to_onnx", "path"): lambda: model.to_onnx(given("m.onnx")).stat(),
        ("describe", "data"): lambda: dpadmm.describe(folder / "statistics.toml", given("t.csv"), seed=1),
        ("describe", "study"): lambda: dpadmm.describe(given("statistics.toml"), table, seed=1),
        ("draft_study", "table"): lambda: dpadmm.draft_study(given("t.csv"), "ill"),
        ("evaluate", "data"): lambda: dpadmm.evaluate(model, given("t.csv")),
        ("plan", "public"): lambda: dpadmm.plan(study, 100, public=given("public.csv"), **few),
        ("plan", "statistics"): lambda: dpadmm.plan(study, 100, public=False, statistics=given("s.json"), **few),
        ("plan", "study"): lambda: dpadmm.plan(given("study.toml"), 100, **few),
        ("load_adult", "path"): load_adult,
        ("load_model", "path"): lambda: dpadmm.load_model(given("m.dpadmm")),
        ("read_site", "path"): lambda: read_site(given("site.toml")).table.stat(),
        ("read_study", "path"): lambda: dpadmm.read_study(given("study.toml")),
        ("read_table", "path"): lambda: dpadmm.read_table(
            given("t.csv"), task="binary", label="ill", classes=("no", "yes")
        ),
        ("simulate", "data"): lambda: dpadmm.simulate(given("study.toml"), table, n_agents=2, seed=1),
        ("simulate", "public"): lambda: dpadmm.simulate(study, table, public=given("public.csv"), n_agents=2, seed=1),
        ("simulate", "table"): lambda: dpadmm.simulate(study, given("t.csv"), n_agents=2, seed=1),
        ("train", "data"): lambda: dpadmm.train(study, given("t.csv"), seed=1),
        ("train", "public"): lambda: dpadmm.train(study, table, public=given("public.csv"), seed=1),
        ("train", "study"): lambda: dpadmm.train(given("study.toml"), table, seed=1),
    }


@pytest.mark.parametrize("kind", [str, Path, OtherPath])
def test_every_path_argument_accepts_each_kind_of_path(folder: Path, kind: Callable[[Path], StrPath]) -> None:
    given = calls(folder, lambda name: kind(folder / name))
    assert given.keys() == path_arguments().keys()
    for arguments, call in given.items():
        with case(arguments):
            call()


def test_path_arguments_use_the_alias() -> None:
    assert {
        argument: found for argument, found in path_arguments().items() if not re.search(r"StrPath|\bTable\b", found)
    } == {}


def test_messages_contain_the_path(folder: Path) -> None:
    for call, name in [
        (dpadmm.load_model, "none.dpadmm"),
        (dpadmm.read_study, "none.toml"),
        (lambda path: dpadmm.read_table(path, task="binary"), "none.csv"),
        (lambda path: dpadmm.train(folder / "study.toml", path), "none.csv"),
        (lambda path: dpadmm.train(folder / "study.toml", folder / "t.csv", public=path), "none.csv"),
        (lambda path: dpadmm.train(folder / "study.toml", path, public=folder / "t.csv"), "t.csv"),
        (lambda path: [*dpadmm.load_model(folder / "m.dpadmm").predict_batches(path, keep=["no"])], "t.csv"),
    ]:
        with case(name), pytest.raises(dpadmm.DPADMMError, match=re.escape(str(folder / name))):
            call(OtherPath(folder / name))
