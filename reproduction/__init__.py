"""The experiments of the DP-ADMM paper: grid of runs, figures, tables and claims."""

from __future__ import annotations

import tomllib
from importlib.resources import files

from reproduction.grid import ExperimentGrid, grid_from


def paper_grid(*, repeats: int | None = None) -> ExperimentGrid:
    """Return the runs of the paper's Section VI, and additional runs that test its open questions."""
    text = files("reproduction").joinpath("grid.toml").read_text(encoding="utf-8")
    return grid_from(tomllib.loads(text), "grid.toml", repeats=repeats)
