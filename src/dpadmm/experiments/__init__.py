"""Grids of runs: a grid in one file -> runs -> one tidy results file."""

from dpadmm.experiments.grid import Cell, Experiment, ExperimentGrid, grid_from, read_grid

__all__ = ["Cell", "Experiment", "ExperimentGrid", "grid_from", "read_grid"]
