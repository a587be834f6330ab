"""All private ADMM methods on Adult at equal exact total ε, and decentralised ADMM on several graphs.

    NUMBA_NUM_THREADS=1 python benchmarks/private_admm.py run     # about an hour; run again to continue
    python benchmarks/private_admm.py report                      # tables, claims and figures of the runs so far

``run`` appends one line per run to ``runs/private_admm/results.jsonl`` and skips the runs that are there. ``report``
prints the Markdown of ``RESULTS.md`` and writes the figures. Splits come first, so an interrupted comparison has all
methods on the same splits.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpadmm import simulate
from dpadmm.baselines import AdmmGraph
from dpadmm.data import Dataset
from dpadmm.data.datasets.adult import load_adult

RESULTS = Path("runs/private_admm/results.jsonl")
FIGURES = Path("docs/explanation/private-admm-figures")
EPSILONS = (0.277, 0.634, 1.02)
DELTA, N_AGENTS, N_ROUNDS, N_SPLITS, ALPHA = 1e-3, 100, 100, 10, 1e-6
RADIUS = {"weight_radius": 89.0}
"""c_w of the paper, for methods with its step sizes."""

METHODS: Mapping[str, dict[str, Any]] = {
    "auto": {"name": "auto"},
    "dp_admm": {"name": "dp_admm", **RADIUS},
    "dp_sgd": {"name": "dp_sgd"},
    "admm_pvp": {"name": "admm_pvp"},
    "admm_dvp": {"name": "admm_dvp"},
    "admm_penalty": {"name": "admm_penalty"},
    "admm_recycled": {"name": "admm_recycled"},
    "admm_minibatch": {"name": "admm_minibatch", **RADIUS},
    "admm_local_steps": {"name": "admm_local_steps", **RADIUS},
    "admm_asynchronous": {"name": "admm_asynchronous", **RADIUS},
    "dp_admm, 25 rounds": {"name": "dp_admm", **RADIUS, "n_rounds": 25},
    "admm_fixed_point": {"name": "admm_fixed_point"},
    "admm_graph": {"name": "admm_graph"},
}
GRAPHS = ("ring", "grid", "regular", "complete", "star")
GRAPH_SPLITS = 3
QUIET = 1e-6
"""Noise multiplier of runs without noise worth mentioning."""


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, as a comparison of two entries of ``METHODS``: ``better`` has the smaller test error.

    It holds if the mean difference over the splits is at least two standard errors at every ε.
    """

    source: str
    statement: str
    better: str
    worse: str


CLAIMS = (
    Claim("Huang et al.", "DP-ADMM is more accurate than PVP", "dp_admm", "admm_pvp"),
    Claim("Huang et al.", "DP-ADMM is more accurate than DVP", "dp_admm", "admm_dvp"),
    Claim("Zhang, Zhu 2017", "DVP outperforms PVP", "admm_dvp", "admm_pvp"),
    Claim("Zhang, Khalili, Liu 2018", "a growing penalty is more accurate than DVP", "admm_penalty", "admm_dvp"),
    Claim("Zhang, Khalili, Liu 2018", "recycling is more accurate than DVP", "admm_recycled", "admm_dvp"),
    Claim("stochastic ADMM", "samples are more accurate than all rows", "admm_minibatch", "dp_admm"),
    Claim("local updates", "four local steps are more accurate than one", "admm_local_steps", "dp_admm"),
    Claim(
        "Guo, Gong 2018",
        "in the time of 25 synchronous rounds, late answers are more accurate",
        "admm_asynchronous",
        "dp_admm, 25 rounds",
    ),
    Claim("this project", "relaxation 0.25 is more accurate than ADMM's 0.5", "admm_fixed_point", "admm_pvp"),
    Claim("this project", "auto is more accurate than every ADMM method", "auto", "best ADMM"),
)


def jobs() -> Iterator[dict[str, Any]]:
    """Yield the runs in order."""
    for split in range(1, N_SPLITS + 1):
        for epsilon in EPSILONS:
            for entry in METHODS:
                yield {"experiment": "methods", "entry": entry, "epsilon": epsilon, "split": split}
        yield {"experiment": "methods", "entry": "centralized", "epsilon": None, "split": split}
        if split == 1:
            for graph in GRAPHS:
                yield {"experiment": "graphs", "entry": graph, "epsilon": None, "split": split}
    for split in range(1, GRAPH_SPLITS + 1):
        for graph in GRAPHS:
            yield {"experiment": "graphs", "entry": graph, "epsilon": EPSILONS[-1], "split": split}


def run_one(job: dict[str, Any], data: Dataset) -> dict[str, Any]:
    """Return the measures of one run."""
    settings: dict[str, Any] = {
        "n_agents": N_AGENTS,
        "delta": DELTA,
        "alpha": ALPHA,
        "seed": job["split"],
        "test_rows": 5222,
    }
    if job["experiment"] == "graphs":
        settings |= {"method": {"name": "admm_graph", "graph": job["entry"]}, "metrics_every": 2, "n_rounds": N_ROUNDS}
        settings |= {"epsilon": job["epsilon"]} if job["epsilon"] else {"noise_multiplier": QUIET}
    else:
        method = dict(METHODS.get(job["entry"], {"name": job["entry"]}))
        rounds = method.pop("n_rounds", N_ROUNDS)
        settings |= {"method": method, "epsilon": job["epsilon"], "metrics_every": rounds}
        if method["name"] not in ("auto", "centralized"):
            settings |= {"n_rounds": rounds}
        if method["name"] == "auto":
            settings["alpha"] = None
            settings["metrics_every"] = 1000
    settings = {name: value for name, value in settings.items() if value is not None}
    started = time.process_time()
    result = simulate(data, **settings)
    seconds = time.process_time() - started
    last = result.trace.last()
    measures = {
        "test_error": float(last["test_error_global"]),
        "local_test_error": float(last["test_error_local"]),
        "exact_epsilon": float(result.privacy.epsilon) if job["epsilon"] else None,
        "seconds": seconds,
    }
    if job["experiment"] == "graphs":
        assert isinstance(result.method, AdmmGraph)
        measures |= {"messages": result.method.messages}
        for name in ("round", "test_error_local", "test_error_global"):
            measures[name] = np.asarray(result.trace.columns[name]).tolist()
    return job | measures


def key(job: Mapping[str, Any]) -> tuple[Any, ...]:
    return job["experiment"], job["entry"], job["epsilon"], job["split"]


def read_results() -> list[dict[str, Any]]:
    """Return the finished runs, without a line that was cut off."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def run_all() -> None:
    """Run what is missing."""
    done = {key(each) for each in read_results()}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    data = load_adult()
    for job in jobs():
        if key(job) not in done:
            line = run_one(job, data)
            with RESULTS.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(*key(job), f"{line['test_error']:.4f} {line['seconds']:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=["run", "report"])
    if parser.parse_args().action == "run":
        run_all()
    else:
        report()


if __name__ == "__main__":
    main()
