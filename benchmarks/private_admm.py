"""All private ADMM methods on Adult at equal exact total ε, and decentralised ADMM on several graphs.

    NUMBA_NUM_THREADS=1 python benchmarks/private_admm.py run   # about 20 minutes of a free core; run again to continue
    python benchmarks/private_admm.py report   # tables and figures of the splits that are complete

``run`` appends one line per run to ``runs/private_admm/results.jsonl`` and skips the runs that are there. ``report``
writes the tables into ``RESULTS.md`` and the page on private ADMM, and the figures. Splits come first, so an
interrupted comparison has all methods on the same splits.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dpadmm import simulate
from dpadmm.baselines import METHOD_TITLES, ONE_MODEL, AdmmGraph
from dpadmm.data import Dataset
from dpadmm.data.datasets.adult import load_adult
from dpadmm.figures.style import GREY, kinds, new_figure, save_figure, steps
from dpadmm.matrices.arrays import Floats

RESULTS = Path("runs/private_admm/results.jsonl")
PAGES = (Path("benchmarks/RESULTS.md"), Path("docs/explanation/private-admm.md"))
FIGURES = Path("docs/explanation/private-admm-figures")
EPSILONS = (0.277, 0.634, 1.02)
DELTA, N_AGENTS, N_ROUNDS, N_SPLITS, ALPHA = 1e-3, 100, 50, 10, 1e-6
RADIUS = {"weight_radius": 89.0}
"""c_w of the paper, for methods with its step sizes."""

METHODS: dict[str, dict[str, Any]] = {
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
    "dp_admm, 12 rounds": {"name": "dp_admm", **RADIUS, "n_rounds": 12},
    "admm_fixed_point": {"name": "admm_fixed_point"},
    "admm_graph": {"name": "admm_graph"},
}
PAPER_ROUNDS = 100
FAST = ("dp_admm", "dp_sgd", "admm_minibatch", "admm_asynchronous")
SLOW = ("admm_pvp", "admm_dvp")
AT_PAPER_ROUNDS = {
    f"{name}, {PAPER_ROUNDS} rounds": {**METHODS[name], "n_rounds": PAPER_ROUNDS} for name in (*FAST, *SLOW)
}
"""The same with the paper's number of rounds: fast methods on all splits, slow ones on the first few."""
FEW_SPLITS = 2
GRAPHS = ("ring", "grid", "regular", "complete", "star")
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


LONG = f", {PAPER_ROUNDS} rounds"
MIN_SPLITS = 3
"""Fewer splits decide nothing."""
CLAIMS = (
    Claim("Huang et al.", "DP-ADMM is more accurate than PVP", "dp_admm", "admm_pvp"),
    Claim("Huang et al.", "DP-ADMM is more accurate than DVP", "dp_admm", "admm_dvp"),
    Claim("Huang et al.", f"the same for PVP{LONG}", f"dp_admm{LONG}", f"admm_pvp{LONG}"),
    Claim("Huang et al.", f"the same for DVP{LONG}", f"dp_admm{LONG}", f"admm_dvp{LONG}"),
    Claim("Huang et al.", "DP-ADMM with 100 rounds is more accurate than PVP with 50", f"dp_admm{LONG}", "admm_pvp"),
    Claim("Zhang, Zhu 2017", "DVP outperforms PVP", "admm_dvp", "admm_pvp"),
    Claim("Zhang, Zhu 2017", f"the same{LONG}", f"admm_dvp{LONG}", f"admm_pvp{LONG}"),
    Claim("Zhang, Khalili, Liu 2018", "a growing penalty is more accurate than DVP", "admm_penalty", "admm_dvp"),
    Claim("Zhang, Khalili, Liu 2018", "recycling is more accurate than DVP", "admm_recycled", "admm_dvp"),
    Claim("stochastic ADMM", "samples are more accurate than all rows", "admm_minibatch", "dp_admm"),
    Claim("local updates", "four local steps are more accurate than one", "admm_local_steps", "dp_admm"),
    Claim(
        "Guo, Gong 2018",
        "in the time of 12 synchronous rounds, late answers are more accurate",
        "admm_asynchronous",
        "dp_admm, 12 rounds",
    ),
    Claim("this project", "relaxation 0.25 is more accurate than ADMM's 0.5", "admm_fixed_point", "admm_pvp"),
    Claim("this project", "auto is more accurate than every ADMM method", "auto", "best ADMM"),
)


def jobs() -> Iterator[dict[str, Any]]:
    """Yield the runs in order: those of few splits after the first of all splits."""
    for split in range(1, N_SPLITS + 1):
        for epsilon in EPSILONS:
            for entry in (*METHODS, *(f"{name}, {PAPER_ROUNDS} rounds" for name in FAST)):
                yield {"experiment": "methods", "entry": entry, "epsilon": epsilon, "split": split}
        yield {"experiment": "methods", "entry": "centralized", "epsilon": None, "split": split}
        if split == FEW_SPLITS + 2:
            yield from few()


def few() -> Iterator[dict[str, Any]]:
    """Yield the runs of few splits."""
    for split in range(1, FEW_SPLITS + 1):
        for graph in GRAPHS:
            for epsilon in (None, EPSILONS[-1]) if split == 1 else EPSILONS[-1:]:
                yield {"experiment": "graphs", "entry": graph, "epsilon": epsilon, "split": split}
        for epsilon in EPSILONS:
            for name in SLOW:
                entry = f"{name}, {PAPER_ROUNDS} rounds"
                yield {"experiment": "methods", "entry": entry, "epsilon": epsilon, "split": split}


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
        method = dict((METHODS | AT_PAPER_ROUNDS).get(job["entry"], {"name": job["entry"]}))
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


def report() -> None:
    """Write the tables into the pages, and the figures."""
    results = read_results()
    methods = [each for each in results if each["experiment"] == "methods"]
    graphs = [each for each in results if each["experiment"] == "graphs"]
    splits = complete_splits(methods)
    methods = [each for each in methods if each["split"] in splits]
    few_splits = len({each["split"] for each in methods if each["entry"] in (f"{SLOW[0]}, {PAPER_ROUNDS} rounds",)})
    tables = {
        "splits": f"Splits: {len(splits)}; {few_splits} for PVP and DVP with {PAPER_ROUNDS} rounds. "
        f"{len({each['split'] for each in graphs})} for graphs with noise.\n",
        "methods": methods_table(methods),
        "claims": claims_table(methods),
        "graphs": graphs_table(graphs),
    }
    for page in PAGES:
        text = page.read_text()
        for name, table in tables.items():
            text = re.sub(
                rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m, t=table: f"{m[1]}\n{t}\n{m[2]}", text, flags=re.S
            )
        page.write_text(text)
    FIGURES.mkdir(parents=True, exist_ok=True)
    save_figure(methods_figure(methods), FIGURES / "methods", kinds=("png",))
    save_figure(graphs_figure(graphs), FIGURES / "graphs", kinds=("png",))


def complete_splits(lines: list[dict[str, Any]]) -> list[int]:
    """Return the splits on which every method has run at every ε."""
    done = {(each["entry"], each["epsilon"], each["split"]) for each in lines}
    wanted = [(entry, epsilon) for entry in METHODS for epsilon in EPSILONS]
    return [s for s in range(1, N_SPLITS + 1) if all((*each, s) in done for each in [*wanted, ("centralized", None)])]


def errors(lines: list[dict[str, Any]], entry: str, epsilon: float | None, name: str = "test_error") -> Floats:
    """Return a measure of the runs of an entry, in percent for errors, by split."""
    own = [each for each in lines if each["entry"] == entry and each["epsilon"] == epsilon]
    factor = 1.0 if name == "seconds" else 100.0
    return factor * np.array([each[name] for each in sorted(own, key=lambda each: each["split"])])


def title(entry: str) -> str:
    """Return the display name of an entry."""
    name, _, more = entry.partition(", ")
    return METHOD_TITLES[name] + (f", {more}" if more else "")


def best_admm(lines: list[dict[str, Any]], epsilon: float) -> str:
    """Return the ADMM method with the smallest mean error at ε."""
    names = [*(entry for entry in METHODS if "admm" in entry), *(f"{name}{LONG}" for name in FAST if "admm" in name)]
    return min(names, key=lambda entry: float(errors(lines, entry, epsilon).mean()))


def paired(lines: list[dict[str, Any]], one: str, other: str, epsilon: float) -> Floats:
    """Return the differences of two entries' errors on the splits that both have."""
    own = []
    for name in (one, other):
        runs = [each for each in lines if (each["entry"], each["epsilon"]) == (name, epsilon)]
        own.append({each["split"]: each["test_error"] for each in runs})
    return 100.0 * np.array([own[0][split] - own[1][split] for split in sorted(own[0].keys() & own[1].keys())])


def methods_table(lines: list[dict[str, Any]]) -> str:
    """Return errors of the global model (mean, standard deviation), of local models, and seconds."""
    optimum = errors(lines, "centralized", None)
    heads = [*(f"ε = {epsilon:g}" for epsilon in EPSILONS), f"local models, ε = {EPSILONS[-1]:g}", "CPU seconds"]
    rows = [["method", *heads], ["---"] * (len(heads) + 1)]
    for entry, method in (METHODS | AT_PAPER_ROUNDS).items():
        cells = [errors(lines, entry, epsilon) for epsilon in EPSILONS]
        local = errors(lines, entry, EPSILONS[-1], "local_test_error").mean()
        seconds = np.median(np.concatenate([errors(lines, entry, epsilon, "seconds") for epsilon in EPSILONS]))
        own_local = method["name"] not in ONE_MODEL
        shown = [f"{each.mean():.1f} ± {each.std(ddof=1):.1f}" for each in cells]
        rows.append([title(entry), *shown, f"{local:.1f}" if own_local else "–", f"{seconds:.1f}"])
    rows.append(["optimum, no privacy", f"{optimum.mean():.1f} ± {optimum.std(ddof=1):.1f}", "", "", "–", ""])
    return markdown(rows)


def claims_table(lines: list[dict[str, Any]]) -> str:
    """Return each claim with the difference of errors (worse − better) in points, and whether it holds."""
    rows = [["source", "claim", *(f"ε = {epsilon:g}" for epsilon in EPSILONS), "holds"], ["---"] * 6]
    for claim in CLAIMS:
        cells, holds = [], []
        for epsilon in EPSILONS:
            worse = best_admm(lines, epsilon) if claim.worse == "best ADMM" else claim.worse
            gain = paired(lines, worse, claim.better, epsilon)
            error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else np.inf
            cells.append(f"{gain.mean():+.2f} ± {error:.2f}")
            holds.append(1 if gain.mean() >= 2.0 * error else -1 if gain.mean() <= -2.0 * error else 0)
        where = ", ".join(f"{epsilon:g}" for epsilon, each in zip(EPSILONS, holds, strict=True) if each == 1)
        partly = f"at {where}" if where else "no"
        verdict = "yes" if min(holds) == 1 else "no, the opposite" if max(holds) == -1 else partly
        verdict = verdict if len(gain) >= MIN_SPLITS else "too few splits"
        rows.append([claim.source, claim.statement, *cells, verdict])
    return markdown(rows)


def graphs_table(lines: list[dict[str, Any]]) -> str:
    """Return the mean error of all agents' models by round, and the number of messages."""
    rounds = (10, 20, N_ROUNDS)
    heads = [f"{noise}, round {k}" for noise in ("no noise", f"ε = {EPSILONS[-1]:g}") for k in rounds]
    rows = [["graph", "messages per round", *heads], ["---"] * 8]
    for graph in GRAPHS:
        cells = []
        for epsilon in (None, EPSILONS[-1]):
            curve = graph_curve(lines, graph, epsilon)
            cells += [f"{100.0 * curve[k]:.1f}" for k in rounds]
        messages = next(each["messages"] for each in lines if each["entry"] == graph)
        rows.append([graph, f"{messages:,}", *cells])
    return markdown(rows)


def graph_curve(lines: list[dict[str, Any]], graph: str, epsilon: float | None) -> dict[int, float]:
    """Return the agents' mean test error by round, averaged over the splits."""
    own = [each for each in lines if each["entry"] == graph and each["epsilon"] == epsilon]
    means = np.mean([each["test_error_local"] for each in own], axis=0)
    return dict(zip(map(int, own[0]["round"]), means.tolist(), strict=True))


def markdown(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def methods_figure(lines: list[dict[str, Any]]) -> Figure:
    """Draw the mean error of every method at every ε, best first."""
    names = [*METHODS, *(f"{name}, {PAPER_ROUNDS} rounds" for name in FAST)]
    order = sorted(names, key=lambda entry: float(np.mean([errors(lines, entry, e).mean() for e in EPSILONS])))
    drawing = new_figure(6.4, 5.4)
    axes = drawing.subplots()
    for k, (look, epsilon) in enumerate(zip(steps(len(EPSILONS)), EPSILONS, strict=True)):
        cells = [errors(lines, entry, epsilon) for entry in order]
        axes.errorbar(
            [each.mean() for each in cells], np.arange(len(order)) + 0.22 * (k - 1),
            xerr=[each.std(ddof=1) for each in cells], color=look.color, marker=look.marker, linestyle="none",
            markersize=4, linewidth=0.9, label=f"ε = {epsilon:g}",
        )  # fmt: skip
    optimum = float(errors(lines, "centralized", None).mean())
    axes.axvline(optimum, color=GREY, linestyle=":", label="optimum, no privacy")
    axes.set_yticks(range(len(order)), [title(entry) for entry in order])
    axes.invert_yaxis()
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set(xlabel="test error of the global model, %")
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    return drawing


def graphs_figure(lines: list[dict[str, Any]]) -> Figure:
    """Draw the error of the agents' models by round, without and with noise."""
    drawing = new_figure(7.2, 3.2)
    looks = kinds(list(GRAPHS))
    for axes, epsilon in zip(drawing.subplots(1, 2), (None, EPSILONS[-1]), strict=True):
        for graph in GRAPHS:
            curve, look = graph_curve(lines, graph, epsilon), looks[graph]
            axes.plot(
                curve.keys(), [100.0 * each for each in curve.values()], color=look.color, linestyle=look.dash,
                label=graph, linewidth=1.4,
            )  # fmt: skip
        axes.set(xlabel="round", ylabel="test error of the agents, %")
        axes.set_title("without noise" if epsilon is None else f"ε = {epsilon:g}", fontsize=10)
        axes.legend(frameon=False, fontsize=8)
    return drawing


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=["run", "report"])
    if parser.parse_args().action == "run":
        run_all()
    else:
        report()


if __name__ == "__main__":
    main()
