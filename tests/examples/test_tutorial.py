"""The tutorial runs as a script, and its output matches its text."""

from __future__ import annotations

import io
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from dpadmm.cli import main

SCRIPT = Path(__file__).parents[2] / "examples" / "tutorial.py"


def run_here(words: Sequence[str], *, cwd: Path, env: Mapping[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
    """Run a ``dpadmm`` command in this process, with the interface of ``subprocess.run``."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err), chdir(cwd):
        patch.setattr(sys, "argv", [*words])
        patch.setattr(os, "environ", {**env})
        with pytest.raises(SystemExit) as end:
            main()
    return subprocess.CompletedProcess(words, int(end.value.code or 0), out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def shown() -> str:
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out:
        patch.setattr(subprocess, "run", run_here)
        runpy.run_path(str(SCRIPT), run_name="__main__")["kept"].cleanup()  # as at the end of a process
    return out.getvalue()


def test_tutorial_leads_from_a_table_to_an_explained_model(shown: str) -> None:
    steps = [
        "study new",
        "study check",
        "study confirm",
        "study check",
        "plan",
        "train",
        "evaluate",
        "predict",
        "explain",
    ]
    assert [" ".join(re.findall(r"^[a-z]+", item)) for item in re.findall(r"\$ dpadmm (.+)", shown)] == [
        step.split()[0] for step in steps
    ]
    assert "20 columns, 5.0% of the cells are missing" in shown
    assert "study.toml: 17 unconfirmed values (the label, 8 numbers, 7 categories, the public rows)" in shown
    assert "No problems found: 20 columns" in shown
    assert re.search(r"total ε +1\.0000 +exact", shown)
    assert re.search(r"(Recommended|Inconclusive|Not recommended): forecast AUC 0\.8[0-9]+, .*the model from", shown)


def test_forecast_is_close_to_the_result(shown: str) -> None:
    found = re.search(r"forecast ([0-9.]+)%, reached ([0-9.]+)%, majority class ([0-9.]+)%", shown)
    assert found is not None
    forecast, reached, guess = map(float, found.groups())
    assert abs(forecast - reached) < 3.0
    assert reached > guess + 10.0


def test_fit_beyond_the_budget_is_refused(shown: str) -> None:
    assert re.search(r"refused: .*allowed ε = 1\.2", shown)
    assert re.search(r"accuracy [0-9.]+% at ε = 1\.0000; noise: exact-discrete-gaussian", shown)


def test_every_cell_has_a_notebook_marker() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    cells = re.split(r"(?m)^# %%", text)[1:]
    assert len(cells) >= 20
    for cell in cells:
        if cell.startswith(" [markdown]"):
            assert all(line.startswith("#") or not line for line in cell.splitlines()[1:]), cell
        else:
            compile(cell.partition("\n")[2], "cell", "exec")
