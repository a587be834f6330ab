"""``python -m reproduction`` in this process, and results of small grids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsers import browser
from paper_runs import COMPARISON, PAPER_SHAPED, make_results

from dpadmm.cli import run_app
from reproduction.__main__ import app
from reproduction.results import read_results

__all__ = ["browser"]

Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture
def reproduction(in_process: Callable[..., Any]) -> Any:
    """``reproduction("run", "--grid", path)`` runs the program in this process."""
    return in_process(lambda: run_app(app), "reproduction")


@pytest.fixture(scope="session")
def paper_results(once: Once) -> Any:
    """Results of the paper's experiments on a few synthetic rows, produced by the runner."""
    return read_results(once("paper", lambda folder: make_results(PAPER_SHAPED, folder)))


@pytest.fixture(scope="session")
def paper_page(paper_results: Any, once: Once) -> str:
    """The report on those results."""
    from reproduction.report import report_html

    def make(folder: Path) -> None:
        (folder / "report.html").write_text(report_html(paper_results, source="runs/small"), encoding="utf-8")

    return (once("paper page", make) / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def comparison_folder(once: Once) -> Path:
    """A folder with results outside the paper's experiments: two methods, budgets, agents."""
    return once("comparison", lambda folder: make_results(COMPARISON, folder))


@pytest.fixture(scope="session")
def comparison_results(comparison_folder: Path) -> Any:
    """Those results."""
    return read_results(comparison_folder)
