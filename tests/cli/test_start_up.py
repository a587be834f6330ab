"""Commands import only the modules they need. The list of commands has the help of each command."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from looping import case

from dpadmm.cli import COMMANDS, load_command
from dpadmm.data.schema import Category, Label, Schema
from dpadmm.federation.local import SITE_TOML
from dpadmm.models.file import save_model
from dpadmm.models.model import Model

HEAVY = ("matplotlib", "numba", "sklearn", "scipy.stats", "scipy.optimize", "dp_accounting")
WEB = ("starlette", "uvicorn", "prometheus_client")
RUN = """
import json, sys
from dpadmm.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["dpadmm", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
"""
SITE = SITE_TOML.format(table="table.csv", label="ill", epsilon=2.0, delta=1e-5, max_rounds=100)
STUDY = """
format = "dpadmm-study/2"
name = "flu"
[label]
column = "ill"
classes = ["no", "yes"]
[columns.age]
kind = "number"
bounds = [0, 100]
[method]
name = "dp_admm"
[training]
n_rounds = 20
[privacy]
epsilon = 0.3
delta = 1e-6
"""


def modules_after(program: str, *words: str, cwd: Path | None = None) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nprint(*sys.modules, file=sys.stderr)", *words],
        cwd=cwd, capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_commands_load_no_compiler_and_no_figures(tmp_path):
    """Commands with the same imports run in one process."""
    rows = "\n".join(f"{20 + k},{'no' if k % 2 else 'yes'}" for k in range(24))
    (tmp_path / "table.csv").write_text(f"age,ill\n{rows}\n")
    (tmp_path / "site.toml").write_text(SITE)
    (tmp_path / "study.toml").write_text(STUDY)
    for several, loads in [
        (["--help"], set()),
        (
            [
                "site join --manual ward",
                "site check --study study.toml",
                "site review study.toml --site site.toml",
                "site accept study.toml --site site.toml",
            ],
            {"numpy", "pyarrow"},
        ),
        (
            ["privacy --epsilon 1 --delta 1e-6 --rounds 50", "study check study.toml", "site budget --ledger ledger"],
            {"numpy"},
        ),
    ]:
        with case(several):
            found = modules_after(RUN, json.dumps([words.split() for words in several]), cwd=tmp_path)
            assert not found.intersection(HEAVY)
            assert found.intersection(["numpy", "pyarrow"]) == loads


def test_evaluate_and_explain_load_neither_pandas_nor_training(tmp_path):
    schema = Schema((Category("age", ("old", "young")),))
    weights, label = np.ones((len(schema.features), 1)), Label("ill", classes=("no", "yes"))
    model = Model(weights, "binary", "logistic", classes=label.classes, schema=schema, label=label,
                  feature_names=schema.features)  # fmt: skip
    save_model(model, tmp_path / "m.dpadmm")
    (tmp_path / "table.csv").write_text("age,ill\nold,no\nyoung,yes\n")
    start = RUN.replace("import main", "import start as main")
    for words in ("evaluate m.dpadmm -d table.csv", "explain m.dpadmm"):
        with case(words):
            found = modules_after(start, json.dumps([words.split()]), cwd=tmp_path)
            assert "dpadmm.models.model" in found
            unused = {"pandas", "pyarrow.parquet", "dpadmm.methods", "dpadmm.engine.loop", "dpadmm.studies"}
            unused |= {"scipy.special", "rich.progress"} if words.startswith("explain") else set()
            assert not found.intersection([*HEAVY, *unused])


def test_an_agent_is_imported_without_readers_compiler_or_solvers():
    found = modules_after("import sys, dpadmm.sites.site, dpadmm.sites.agent, dpadmm.trusted.guard")
    assert "dpadmm.trusted.guard" in found
    assert not found.intersection([*HEAVY, "pyarrow", "scipy.linalg", "typer", "rich"])


def test_an_agent_that_runs_loads_no_other_command_and_no_privacy_report():
    found = modules_after("import sys, dpadmm.cli.site, dpadmm.federation.site.process, dpadmm.sites.table")
    commands = {f"dpadmm.cli.{name}" for name in ("study", "server", "columns", "drafts", "problems")}
    unused = {"dpadmm.accounting.report", "pandas", "pyarrow.parquet", "rich.progress"}
    assert not found.intersection([*HEAVY, *WEB, *commands, *unused])


def test_a_run_of_a_study_without_a_page_loads_no_web_framework():
    assert not modules_after("import sys, dpadmm.cli.server, dpadmm.federation.server.process").intersection(WEB)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_help_of_each_command(name):
    own = inspect.cleandoc(load_command(name).help).split("\n\n")[0]
    assert COMMANDS[name] == " ".join(own.split())
