"""The paper's experiments on a few synthetic rows: real results for the reports, in seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from quick_workers import quick_workers

from dpadmm.data import Dataset, synthetic
from reproduction.grid import grid_from
from reproduction.results import Results, read_results
from reproduction.runner import run_grid

EPSILONS, DELTAS = [0.05, 0.1], [1e-3, 1e-4]


def _agents(regularizer: str) -> list[dict[str, Any]]:
    return [
        {"method": "dp_admm", "regularizer": regularizer, "n_agents": [2, 8], "round_epsilon": [0.05, 0.1]},
        {"method": "centralized", "regularizer": regularizer},
    ]


def _objective(regularizer: str) -> list[dict[str, Any]]:
    return [
        {"method": "dp_admm", "regularizer": regularizer, "round_epsilon": EPSILONS, "delta": DELTAS},
    ]


def _methods(regularizer: str, others: list[dict[str, Any]]) -> list[dict[str, Any]]:
    budgets = [{"round_epsilon": EPSILONS}, {"round_epsilon": 0.1, "delta": DELTAS}]
    kinds: list[dict[str, Any]] = [
        {"method": "dp_admm"},
        {"method": "dp_sgd", "learning_rate": 0.1},
        {"method": "dp_sgd", "learning_rate": 4.0, "average": "tail"},
    ]
    private = [{**kind, **budget} for kind in kinds for budget in budgets]
    return [{**block, "regularizer": regularizer} for block in (*private, {"method": "centralized"}, *others)]


PAPER_SHAPED: dict[str, Any] = {
    "title": "The paper's experiments, small <b>&</b> synthetic",
    "data": "synthetic",
    "repeats": 2,
    "shared": {"n_agents": 4, "n_rounds": 100, "metrics_every": 30, "delta": 1e-3, "alpha": 1e-6,
               "weight_radius": 89.0},
    "experiments": {
        "fig1": {"title": "Agents, L1", "runs": _agents("l1")},
        "fig2": {"title": "Convergence, L1", "runs": _objective("l1")},
        "fig3": {"title": "Methods, L1", "runs": _methods("l1", [
            {"method": "admm", "split_regularizer": True},
            {"method": ["admm_pvp", "admm_dvp"], "round_epsilon": 0.1, "repeats": 1},
        ])},
        "fig4": {"title": "Agents, L2", "runs": _agents("l2")},
        "fig6": {"title": "Convergence, L2", "runs": _objective("l2")},
        "fig7": {"title": "Methods, L2", "runs": _methods("l2", [
            {"method": "admm"},
            {"method": ["admm_pvp", "admm_dvp"], "round_epsilon": [0.05, 0.1]},
        ])},
        "table3": {"title": "Times", "runs": [
            {"method": ["dp_admm", "admm_pvp"], "round_epsilon": 0.05, "timed": True, "repeats": 2,
             "metrics_every": 100},
            {"method": "admm", "timed": True, "repeats": 2, "metrics_every": 100},
        ]},
        "bounds": {"title": "Bounds", "runs": [
            {"method": "dp_admm", "regularizer": ["l1", "l2"], "round_epsilon": 0.1},
            {"method": "centralized", "regularizer": ["l1", "l2"]},
        ]},
        "choices": {"title": "Choices", "runs": [
            {"method": "dp_admm", "round_epsilon": 0.1, "weight_radius": [5.0, 89.0],
             "alpha": [1e-6, 1e-3]},
            {"method": ["output_perturbation", "dp_admm"], "epsilon": 1.0},
        ]},
        "schedule": {"title": "Schedules", "runs": [
            {"method": "dp_admm", "regularizer": ["l1", "l2"], "round_epsilon": 0.1},
            {"method": "dp_admm", "regularizer": ["l1", "l2"], "round_epsilon": 0.1, "schedule": "constant",
             "step_size": [0.5, 2.0]},
        ]},
        "lambda": {"title": "Cross-validation", "runs": [
            {"method": "centralized", "regularizer": ["l1", "l2"], "alpha": [1e-6, 1e-3]},
        ]},
    },
}  # fmt: skip

COMPARISON: dict[str, Any] = {
    "title": "",
    "data": "synthetic",
    "repeats": 2,
    "shared": {"n_rounds": 5, "metrics_every": 5},
    "experiments": {
        "comparison": {
            "title": "comparison",
            "runs": [
                {"method": ["dp_admm", "dp_sgd"], "epsilon": [0.5, 2.0], "n_agents": [2, 4]},
                {"method": "centralized"},
            ],
        }
    },
}


def rows() -> Dataset:
    return synthetic("binary", seed=0, n_rows=400, n_features=4)


def make_results(grid: dict[str, Any], folder: Path) -> Results:
    """Run a grid with the runner, and read its results file."""
    path = folder / "results.parquet"
    with quick_workers():
        run_grid(grid_from(grid), rows(), path, command="python -m reproduction run --grid small.toml")
    return read_results(path)


def modified(results: Results, column: str, change: Any, **equals: Any) -> Results:
    """Return the results with a column changed in the matching lines: ``change(values) -> values``."""
    matching = results.select(**equals).frame.index
    frame = results.frame.copy()
    frame[column] = frame[column].astype(float)
    frame.loc[matching, column] = change(frame.loc[matching, column])
    return replace(results, frame=frame)
