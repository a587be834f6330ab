"""Synthetic results of the paper's experiments: only the numbers that a rule reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from reproduction.results import MEASURES, SCHEMA, Results, to_frame

SEEDS = (1, 2, 3)
ROUNDS = (1, 10, 25, 50, 75, 100)
SETTINGS = {
    "loss": "logistic", "regularizer": "l2", "n_agents": 4, "n_rounds": 100, "delta": 1e-3, "alpha": 1e-6,
    "weight_radius": 89.0, "calibration": "paper", "schedule": "theorem", "participation": 1.0,
    "status": "done", "timed": False,
}  # fmt: skip
PRIVATE = ("dp_admm", "admm_pvp", "admm_dvp", "dp_sgd")
Value = float | Callable[[int], float]


def runs(
    experiment: str, method: str, level: Value = 1.0, *, seeds: Sequence[int] = SEEDS, **columns: Any
) -> list[dict[str, Any]]:
    """Return lines of one setting. Every measure is ``level`` (or a function of the round), except ``columns``."""
    lines = []
    budget = {"round_epsilon": 0.1} if method in PRIVATE and "epsilon" not in columns else {}
    name = f"{experiment} {method} {sorted(columns.items(), key=str)}"
    for seed in seeds:
        for k in ROUNDS:
            values = {**SETTINGS, **budget, **dict.fromkeys(MEASURES, level), **columns}
            values = {key: value(k) if callable(value) else value for key, value in values.items()}
            same = {"experiment": experiment, "cell": f"{name} {seed}", "method": method, "seed": seed}
            lines.append({**values, **same, "round": k})
    return lines


def results_of(*groups: list[dict[str, Any]], data: dict[str, Any] | None = None) -> Results:
    """Return results of these lines, each in its experiment."""
    lines = [line for group in groups for line in group]
    experiments: dict[str, dict[str, Any]] = {}
    for line in lines:
        about = experiments.setdefault(line["experiment"], {"title": line["experiment"], "cells": []})
        if line["cell"] not in about["cells"]:
            about["cells"].append(line["cell"])
    rows = [{name: value for name, value in line.items() if name in SCHEMA.names} for line in lines]
    meta = {"data": data or {"name": "made up", "rows": 1, "features": 1}}
    frame = to_frame(pa.Table.from_pylist(rows, schema=SCHEMA))
    return Results(frame, {"title": "", "experiments": experiments}, meta)
