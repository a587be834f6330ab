"""From private statistics to a table for a paper: the example runs and its output is correct."""

from __future__ import annotations

import io
import json
import runpy
import subprocess
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from examples.test_tutorial import run_here

SCRIPT = Path(__file__).parents[2] / "examples" / "paper_table.py"


def test_example_creates_table_forest_plot_and_privacy_sentence(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out:
        patch.setattr(subprocess, "run", run_here)
        runpy.run_path(str(SCRIPT))["main"](tmp_path, 9_000)
    shown = out.getvalue()
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "| age | per unit | 1.0" in table
    assert "95% CI" in table
    assert "This result is (2, 1e-05)-differentially private" in table
    assert table in shown
    for name in ("coefficients.png", "statistics.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"
    auc = json.loads((tmp_path / "evaluation.json").read_text())["metrics"]["auc"]
    assert auc["value"] == pytest.approx(0.67, abs=5.0 * auc["se"])
    assert f"{auc['value']:.3f}" in shown
