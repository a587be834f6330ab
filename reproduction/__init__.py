"""Everything about the DP-ADMM paper: its grid of runs, figures, tables and claims."""

from __future__ import annotations

import tomllib
from importlib.resources import files

from reproduction.grid import ExperimentGrid, grid_from


def paper_grid(*, repeats: int | None = None) -> ExperimentGrid:
    """The runs of the paper's Section VI, and those that check what it leaves out."""
    text = files("reproduction").joinpath("grid.toml").read_text(encoding="utf-8")
    return grid_from(tomllib.loads(text), "grid.toml", repeats=repeats)
