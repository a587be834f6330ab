"""A command loads what it needs and no more; the list of commands says what the commands say themselves."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from dpadmm.cli import COMMANDS, app, loaded
from dpadmm.federation.demo import SITE_TOML

HEAVY = ("matplotlib", "numba", "sklearn", "scipy.stats", "scipy.optimize", "dp_accounting")
RUN = """
import json, sys
from dpadmm.cli import main
sys.argv = ["dpadmm", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    code = end.code
print(json.dumps([code or 0, sorted(sys.modules)]), file=sys.stderr)
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
        [sys.executable, "-c", program, *words], cwd=cwd, capture_output=True, encoding="utf-8", check=False
    )
    *said, last = done.stderr.splitlines()
    code, modules = json.loads(last)
    assert code == 0, said
    return set(modules)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("here")
    rows = "\n".join(f"{20 + k},{'no' if k % 2 else 'yes'}" for k in range(24))
    (folder / "table.csv").write_text(f"age,ill\n{rows}\n")
    (folder / "site.toml").write_text(SITE)
    (folder / "study.toml").write_text(STUDY)
    modules_after(RUN, "agent", "begin", "site.toml", cwd=folder)
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["privacy", "--epsilon", "1", "--delta", "1e-6", "--rounds", "50"],
        ["study", "check", "study.toml"],
        ["agent", "check", "site.toml", "--study", "study.toml"],
        ["agent", "review", "study.toml", "--site", "site.toml"],
        ["agent", "enrol", "study.toml", "--site", "site.toml"],
        ["ledger", "show", "ledger"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_command_loads_no_compiler_and_no_figures(here, words):
    found = modules_after(RUN, *words, cwd=here)
    assert not found.intersection(HEAVY)
    reads_a_table = words[0] == "agent"
    assert ("pyarrow" in found) == reads_a_table
    assert ("numpy" in found) == (words != ["--help"])


def test_an_agent_is_imported_without_readers_compiler_or_solvers():
    found = modules_after(
        "import json, sys, dpadmm.site.site, dpadmm.site.agent, dpadmm.trusted.guard\n"
        "print(json.dumps([0, sorted(sys.modules)]), file=sys.stderr)"
    )
    assert "dpadmm.trusted.guard" in found
    assert not found.intersection([*HEAVY, "pyarrow", "scipy.linalg", "typer", "rich"])


def test_an_agent_that_runs_loads_no_other_command_and_no_statement():
    found = modules_after(
        "import json, sys, dpadmm.cli.agent, dpadmm.federation.site.process, dpadmm.site.table\n"
        "print(json.dumps([0, sorted(sys.modules)]), file=sys.stderr)"
    )
    commands = {f"dpadmm.cli.{name}" for name in ("study", "ledger", "columns", "drafts", "problems")}
    assert not found.intersection([*HEAVY, *commands, "dpadmm.privacy.statement", "pandas"])


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_says(name):
    own = inspect.cleandoc(loaded(name).help).split("\n\n")[0]
    assert COMMANDS[name] == " ".join(own.split())


@pytest.mark.parametrize("width", ["60", "80", "120"])
def test_the_list_of_commands_is_drawn_as_typer_draws_it(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", width)
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="dpadmm")
    TyperGroup.format_help(group, context, context.make_formatter())
    wanted = capsys.readouterr().out
    group.format_help(context, context.make_formatter())
    assert capsys.readouterr().out == wanted


def test_the_list_of_commands_needs_no_renderer_of_markdown():
    assert "rich.markdown" not in modules_after(RUN, "--help")
