"""``make bench-peers``: a round beside other libraries on the same rows, and what a round of any size takes.

Writes ``docs/performance.md``. All times of a table are of one run, in turns; ratios are what counts. Other
libraries have environments of their own in ``.peers``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls
from sklearn.linear_model import LogisticRegression

from dpadmm import Logistic, Rows, load_adult, make_rows
from dpadmm._base.features import layout, row_entries
from dpadmm.optim.losses import Softmax

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from run import PEERS, environment  # noqa: E402

from bench import _sum, coded_rows, matrix, researchers_script, round_of  # noqa: E402

AGENTS = 100
ENVIRONMENTS = {"torch": "opacus", "opacus": "opacus", "diffprivlib": "diffprivlib"}


def timed(task: Callable[[], object]) -> Callable[[], float]:
    def seconds() -> float:
        started = time.perf_counter()
        task()
        return time.perf_counter() - started

    return seconds


def solver_step(features: np.ndarray, labels: np.ndarray) -> Callable[[], float]:
    """Seconds of an iteration of scikit-learn's lbfgs, which sees all rows and protects nobody."""

    def seconds() -> float:
        started = time.perf_counter()
        model = LogisticRegression(fit_intercept=False, C=1.0, max_iter=1000, tol=1e-6).fit(features, labels)
        return (time.perf_counter() - started) / int(np.max(model.n_iter_))

    return seconds


def peer_step(name: str, rows: Path, folder: Path, held: ExitStack) -> Callable[[], float]:
    """Another process that does a step and says how long it took, whenever it is asked."""
    command = [environment(ENVIRONMENTS[name], folder), HERE / "steps.py", name, rows]
    passive = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}  # threads that spin would slow others
    process = subprocess.Popen(command, env=passive, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    held.callback(process.wait, timeout=60)
    held.callback(process.stdin.close)
    if process.stdout.readline().strip() != "ready":
        sys.exit(f"{name} could not be started; see above")

    def seconds() -> float:
        process.stdin.write("\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    return seconds


def in_turns(tasks: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """Least seconds of every task, of the second of two calls: threads of others that spin spoil medians."""

    def second(task: Callable[[], float]) -> float:
        time.sleep(0.05)
        task()
        return task()

    times = [[second(task) for task in tasks.values()] for _ in range(repeats + 1)][1:]
    return dict(zip(tasks, np.min(times, axis=0).tolist(), strict=True))


def beside_peers(folder: Path, repeats: int) -> dict[str, float]:
    """Seconds of a round on 40,000 rows of Adult, and of a step of other libraries, by name."""
    adult = load_adult()
    coded, labels = adult.features[:40_000], adult.labels[:40_000]
    dense, offsets = coded.toarray(), np.linspace(0, 40_000, AGENTS + 1).astype(np.int64)
    with tempfile.TemporaryDirectory() as place, ExitStack() as held:
        np.savez(Path(place, "rows.npz"), features=dense, labels=labels)
        tasks = {
            "read of the dense matrix": timed(lambda: _sum(dense.reshape(-1))),
            "dpadmm, coded rows": timed(round_of(make_rows(coded, labels, offsets=offsets))),
            "dpadmm, dense rows": timed(round_of(make_rows(dense, labels, offsets=offsets))),
            "NumPy script": timed(researchers_script(dense, labels, AGENTS)),
            "scikit-learn, lbfgs iteration": solver_step(dense, labels),
        }
        for name in ENVIRONMENTS:
            tasks[f"{name}, full-batch step"] = peer_step(name, Path(place, "rows.npz"), folder, held)
        return in_turns(tasks, repeats)


@dataclass(frozen=True)
class Size:
    """A round's size: how rows are stored, how many, columns, outputs, agents."""

    kind: str
    n_rows: int
    n_features: int
    n_outputs: int
    n_agents: int

    def rows(self) -> Rows:
        features = coded_rows(self.n_rows) if self.kind == "coded" else matrix(self.n_rows, self.n_features)[0]
        if self.kind == "float32":
            features = features.astype(np.float32)
        rng = np.random.default_rng(1)
        labels = (
            rng.integers(0, self.n_outputs, self.n_rows) if self.n_outputs > 1 else rng.choice([-1, 1], self.n_rows)
        )
        offsets = np.linspace(0, self.n_rows, self.n_agents + 1).astype(np.int64)
        return make_rows(features, labels.astype(float), offsets=offsets)

    def work(self, rows: Rows) -> list[float]:
        """What a round has to do: a start, bytes of rows, products, slopes, numbers of agents."""
        entries = int(row_entries(rows.features).sum())
        stored = sum(part.nbytes for part in layout(rows.features)[1])
        numbers = self.n_agents * self.n_features * self.n_outputs
        return [1.0, stored, 2.0 * entries * self.n_outputs, self.n_rows * self.n_outputs, numbers]


TERMS = ("ms to start", "ns a byte of rows", "ns a product or sum", "ns a slope", "ns a number of an agent's state")
KNOWN = [
    Size("dense", 10_000, 50, 1, 10),
    Size("dense", 100_000, 50, 1, 10),
    Size("dense", 40_000, 200, 1, 100),
    Size("dense", 1_000_000, 20, 1, 100),
    Size("dense", 40_000, 104, 1, 5_000),
    Size("dense", 20_000, 50, 10, 10),
    Size("float32", 100_000, 100, 1, 100),
    Size("coded", 40_000, 104, 1, 10),
    Size("coded", 400_000, 104, 1, 100),
    Size("coded", 40_000, 104, 10, 100),
]
"""Sizes that the costs are fitted to."""
ASKED = [
    Size("dense", 40_000, 104, 1, 100),
    Size("dense", 300_000, 30, 1, 1_000),
    Size("dense", 2_000_000, 50, 1, 10),
    Size("float32", 400_000, 50, 1, 20),
    Size("dense", 40_000, 60, 4, 100),
    Size("coded", 40_000, 104, 1, 100),
    Size("coded", 1_000_000, 104, 1, 1_000),
    Size("coded", 100_000, 104, 5, 50),
]
"""Sizes that are predicted."""


def measured(size: Size, repeats: int) -> tuple[list[float], float]:
    rows = size.rows()
    one_round = timed(round_of(rows, Softmax(size.n_outputs) if size.n_outputs > 1 else Logistic()))
    return size.work(rows), in_turns({"": one_round}, repeats)[""]


def cost_model(repeats: int) -> tuple[np.ndarray, list[tuple[Size, float, float]]]:
    """Seconds for one of each kind of work; and predicted and measured seconds of sizes that had no say."""
    work, seconds = zip(*(measured(size, repeats) for size in KNOWN), strict=True)
    relative = np.array(work) / np.array(seconds)[:, None]
    costs = nnls(relative, np.ones(len(KNOWN)))[0]
    found = []
    for size in ASKED:
        todo, took = measured(size, repeats)
        found.append((size, float(np.dot(todo, costs)), took))
    return costs, found


def page(seconds: dict[str, float], costs: np.ndarray, found: list[tuple[Size, float, float]]) -> str:
    read, coded = seconds["read of the dense matrix"], seconds["dpadmm, coded rows"]
    peers = ", ".join(sorted({each for name in PEERS.values() for each in name if "numpy" not in each}))
    terms = ", ".join(
        f"{cost * (1e3 if k == 0 else 1e9):.3g} {what}" for k, (what, cost) in enumerate(zip(TERMS, costs, strict=True))
    )
    beside = [f"| {name} | {1e3 * s:.2f} | {s / read:.2f} | {s / coded:.1f} |" for name, s in seconds.items()]
    sizes = [
        f"| {size.n_rows:,} | {size.kind} | {size.n_features} | {size.n_outputs} | {size.n_agents:,} "
        f"| {1e3 * told:.2f} | {1e3 * took:.2f} | {took / told:.2f} |"
        for size, told, took in found
    ]
    return f"""# Performance

Written by `make bench-peers`, on a machine of two cores; minima, in turns. Ratios of one run are what counts;
`make bench` checks the promises and says which are missed. A *read* is the sum of all entries of the dense float64
matrix with all cores. A *round* is all of one DP-ADMM round: every row's gradient clipped, noise, updates, consensus.
Peers: {peers}.

## UCI Adult, 40,000 rows, 104 columns, {AGENTS} agents

| | ms | reads | coded rounds |
|---|---|---|---|
{chr(10).join(beside)}

A step of torch and an iteration of lbfgs protect nobody; Opacus and diffprivlib see the rows of all agents.

## What a round takes

A round's time is about a sum: {terms}.
Products and sums are two for every stored entry and output, slopes one for every row and output, numbers of agents'
state n·d·p. The costs were fitted to {len(KNOWN)} sizes; these are others:

| rows | stored | columns | outputs | agents | predicted ms | measured ms | measured / predicted |
|---|---|---|---|---|---|---|---|
{chr(10).join(sizes)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/performance.md"))
    parser.add_argument("--environments", type=Path, default=Path(".peers"))
    parser.add_argument("--repeats", type=int, default=15)
    chosen = parser.parse_args()
    seconds = beside_peers(chosen.environments.absolute(), chosen.repeats)
    costs, found = cost_model(chosen.repeats)
    text = page(seconds, costs, found)
    chosen.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
