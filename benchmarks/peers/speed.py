"""``make bench-peers``: a round beside other libraries on the same rows, and what a round of any size takes.

Writes ``docs/explanation/performance.md``, in a few minutes. Every contender runs in a process of its own, one after
the other, beside reads of the same matrix in that process; other libraries have environments of their own in
``.peers``. What was measured is kept until the page is written, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from dpadmm import Logistic, Rows, load_adult, make_rows
from dpadmm.files.atomic import atomic_file
from dpadmm.losses import Softmax
from dpadmm.matrices.coded import CodedRows
from dpadmm.matrices.features import layout, row_entries

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from run import environment  # noqa: E402
from steps import AGENTS, CONTENDERS, IDLE, LEAST, one, second  # noqa: E402

from bench import coded_rows, matrix, round_of  # noqa: E402

ROWS = 40_000
PROMISES = (
    ("coded", None, "at most", 1.0, "a round with coded rows, in reads"),
    ("script", "coded", "at least", 10.0, "the NumPy script, in rounds with coded rows"),
    ("opacus", "coded", "at least", 15.0, "a step of Opacus, in rounds with coded rows"),
)


class Kept:
    """Measurements of one commit, by name, until the page that they are for is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=HERE, check=False)
        self._commit = commit.stdout.strip()

    def get(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        path = self._folder / f"{name}.json"
        if path.exists():
            before: dict[str, Any] = json.loads(path.read_text())
            if before["commit"] == self._commit:
                return before
        found = measure() | {"commit": self._commit}
        with atomic_file(path, durable=False) as file:
            file.write(json.dumps(found).encode())
        return found

    def clear(self) -> None:
        shutil.rmtree(self._folder)


def contend(name: str, rows: Path, environments: Path, turns: int) -> dict[str, Any]:
    """Median seconds of a step of a contender, and of a read of the matrix before and beside it."""
    peer = CONTENDERS[name].environment
    python = environment(peer, environments) if peer else sys.executable
    ours = {} if peer else {"PYTHONPATH": str(HERE.parent)}
    made = subprocess.run(
        [python, HERE / "steps.py", name, rows, str(turns)],
        check=True, stdout=subprocess.PIPE, text=True, env=os.environ | ours, timeout=600,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return found


def beside_peers(kept: Kept, environments: Path, turns: int) -> dict[str, dict[str, Any]]:
    """What was measured of every contender on rows of Adult; one that cannot run is told of and left out."""
    found = {}
    with tempfile.TemporaryDirectory() as place:
        rows, adult = Path(place, "rows.npz"), load_adult()
        np.savez(rows, features=adult.features[:ROWS].toarray(), labels=adult.labels[:ROWS])
        for name, contender in CONTENDERS.items():
            try:
                each = kept.get(name, lambda name=name: contend(name, rows, environments, turns))
            except (subprocess.SubprocessError, OSError) as error:
                print(f"{contender.title} could not be measured: {error}", file=sys.stderr, flush=True)
                continue
            found[name] = each
            print(f"{contender.title:<34} {1e3 * each['step']:8.2f} ms   read {1e3 * each['read']:.2f} ms beside it, "
                  f"{1e3 * each['before']:.2f} ms before", flush=True)  # fmt: skip
    return found


@dataclass(frozen=True)
class Size:
    """A round's size: how rows are stored, how many (m), columns (d), outputs (p), agents (n)."""

    kind: str
    n_rows: int
    n_features: int
    n_outputs: int
    n_agents: int

    def rows(self) -> Rows:
        features: np.ndarray | CodedRows
        if self.kind == "coded":
            features = coded_rows(self.n_rows)
        else:
            features = matrix(self.n_rows, self.n_features, np.dtype(self.kind).type)[0]
        rng = np.random.default_rng(1)
        labels = (
            rng.integers(0, self.n_outputs, self.n_rows) if self.n_outputs > 1 else rng.choice([-1, 1], self.n_rows)
        )
        offsets = np.linspace(0, self.n_rows, self.n_agents + 1).astype(np.int64)
        return make_rows(features, labels.astype(float), offsets=offsets)

    def measure(self, turns: int) -> dict[str, Any]:
        """Amounts of work in a round, and its seconds."""
        rows = self.rows()
        entries = int(row_entries(rows.features).sum())
        stored = sum(part.nbytes for part in layout(rows.features)[1])
        state = self.n_agents * self.n_features * self.n_outputs
        step = one(round_of(rows, Softmax(self.n_outputs) if self.n_outputs > 1 else Logistic()))
        seconds = []
        for _ in range(turns):
            time.sleep(0.02)
            seconds.append(second(step))
        looked_up = self.kind == "coded"
        flops = 4.0 * entries * self.n_outputs
        slopes = self.n_rows * self.n_outputs
        work = [1.0, stored, 0.0 if looked_up else flops, flops if looked_up else 0.0, slopes, state]
        return {"work": work, "seconds": statistics.median(seconds)}


TERMS = (
    ("a start", "1", 1e6, "µs"),
    ("a byte of rows", "bytes", 1e9, "ns"),
    ("a multiplication or addition, dense rows", "flops", 1e9, "ns"),
    ("the same with a look-up, coded rows", "flops", 1e9, "ns"),
    ("a slope", "m·p", 1e9, "ns"),
    ("a number in an agent's state", "n·d·p", 1e9, "ns"),
)
KNOWN = [
    Size("float64", 10_000, 50, 1, 10),
    Size("float64", 100_000, 50, 1, 10),
    Size("float64", 40_000, 200, 1, 100),
    Size("float64", 1_000_000, 20, 1, 100),
    Size("float64", 40_000, 104, 1, 5_000),
    Size("float64", 20_000, 50, 10, 10),
    Size("float32", 100_000, 100, 1, 100),
    Size("float32", 1_000_000, 50, 1, 100),
    Size("coded", 40_000, 104, 1, 10),
    Size("coded", 400_000, 104, 1, 100),
    Size("coded", 40_000, 104, 10, 100),
    Size("coded", 40_000, 104, 3, 5_000),
]
"""Sizes that the costs are fitted to."""
ASKED = [
    Size("float64", 40_000, 104, 1, 100),
    Size("float64", 300_000, 30, 1, 1_000),
    Size("float64", 2_000_000, 50, 1, 10),
    Size("float32", 400_000, 50, 1, 20),
    Size("float64", 40_000, 60, 4, 100),
    Size("coded", 40_000, 104, 1, 100),
    Size("coded", 1_000_000, 104, 1, 1_000),
    Size("coded", 100_000, 104, 5, 50),
]
"""Sizes that are predicted."""


def cost_model(kept: Kept, turns: int) -> tuple[np.ndarray, list[tuple[Size, list[float], float, float]]]:
    """Seconds for one of each kind of work; and of sizes that had no say: work, predicted and measured seconds."""
    found = {}
    for k, size in enumerate([*KNOWN, *ASKED]):
        found[size] = kept.get(f"size-{k}", lambda size=size: size.measure(turns))
        print(f"{size}: {1e3 * found[size]['seconds']:.2f} ms", flush=True)
    work, seconds = (np.array([found[size][what] for size in KNOWN]) for what in ("work", "seconds"))
    costs = nnls(work / seconds[:, None], np.ones(len(KNOWN)))[0]
    asked = [(size, found[size]["work"], found[size]["seconds"]) for size in ASKED]
    return costs, [(size, todo, float(np.dot(todo, costs)), took) for size, todo, took in asked]


def machine() -> str:
    """The processor, as far as it tells, and its cores."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model or platform.machine()}, {cores} core{'s' * (cores != 1)}"


def page(found: dict[str, dict[str, Any]], costs: np.ndarray, asked: list[Any], turns: int, load: float) -> str:
    reads = {name: each["step"] / each["read"] for name, each in found.items()}
    beside = [
        f"| {CONTENDERS[name].title} | {1e3 * each['step']:.2f} | {1e3 * each['read']:.2f} | {reads[name]:.2f} | "
        + (f"{reads[name] / reads['coded']:.1f} |" if "coded" in reads else "– |")
        for name, each in found.items()
    ]
    promised = []
    for name, unit, word, limit, what in PROMISES:
        if name in reads and (unit is None or unit in reads):
            seen = reads[name] / (reads[unit] if unit else 1.0)
            fine = seen <= limit if word == "at most" else seen >= limit
            promised.append(f"| {what} | {word} {limit:g} | {seen:.2f} | {'yes' if fine else 'no'} |")
    versions = sorted({(CONTENDERS[name].package, each["version"]) for name, each in found.items()})
    before = [each["read"] / each["before"] for each in found.values()]
    absent = [each.title for name, each in CONTENDERS.items() if name not in found]
    terms = [
        f"| {what} | {amount} | {cost * scale:{',.0f' if cost * scale >= 100.0 else '.3g'}} {unit} |"
        for (what, amount, scale, unit), cost in zip(TERMS, costs, strict=True)
    ]
    sizes = [
        f"| {size.n_rows:,} | {size.kind} | {size.n_features} | {size.n_outputs} | {size.n_agents:,} "
        f"| {work[1] / 1e6:,.1f} | {(work[2] + work[3]) / 1e6:,.1f} "
        f"| {1e3 * told:.2f} | {1e3 * took:.2f} | {took / told:.2f} |"
        for size, work, told, took in asked
    ]
    off = [max(told, took) / min(told, took) for *_, told, took in asked]
    least, newline = min([turns, *(each["turns"] for each in found.values())]), "\n"
    idle = ", ".join(f"`{name}={value}`" for name, value in IDLE.items())
    return f"""# Performance

Written by `make bench-peers` on {time.strftime("%Y-%m-%d")} ({machine()}).
Times are medians of at least {least} runs. They depend on the machine, the ratios less so. `make bench` checks the
other limits and reports those that are missed.

A *read* is the sum of all entries of the dense float64 matrix with all cores: a lower bound for any method
that uses every entry. A *round* is a complete DP-ADMM round: clipped gradients of all rows, noise, updates,
consensus.

## UCI Adult, {ROWS:,} rows, 104 columns, {AGENTS} agents

Every line is a separate process that alternated between a read and a step, with all cores and with idle threads
that sleep ({idle}).
The reads are measured in alternation, so that a slow phase of the machine affects both.

| | ms | read of the same rows, ms | reads | coded rounds |
|---|---|---|---|---|
{newline.join(beside)}

The steps of torch and scikit-learn are not private. Those of Opacus and diffprivlib are private for a curator who sees
the rows of all agents; diffprivlib adds its noise once, not in every iteration. torch and Opacus compute in float32.
{f"Not measured in this run: {'; '.join(absent)}.{newline}" if absent else ""}
Alternating reads took {min(before):.2f} to {max(before):.2f} times as long as reads before the library was
loaded, and the load of the machine was {load:.1f} at the start of the script. On an idle machine these are near 1
and 0. Larger values make the times on this page less reliable.

Versions: {", ".join(f"{name} {number}" for name, number in versions)}.

| target | limit | measured | met |
|---|---|---|---|
{newline.join(promised)}

## Time of a round

With m rows, d columns, p outputs (1, or the number of classes) and n agents, the time of a round is modelled as a
sum of amounts multiplied by costs:

| unit | amount | cost |
|---|---|---|
{newline.join(terms)}

*bytes* are those of the stored rows: 8·m·d for float64, 4·m·d for float32; a coded row has 8 (or 4) bytes for every
number and for its factor, and 1 for every category (2 beyond 256 columns), here 64. *flops* are 4·p for every stored
entry, d in a row or as many as there are numbers and categories: a multiplication and an addition for the score, and
again for the gradient. The costs were fitted to {len(KNOWN)} sizes by non-negative least squares of relative errors. A
cost of 0 means that the other amounts explain the times.

Predicted and measured times for {len(asked)} other sizes differ by a factor of at most {max(off):.2f}, with a median of
{statistics.median(off):.2f}:

| m | stored | d | p | n | bytes, M | flops, M | predicted ms | measured ms | measured / predicted |
|---|---|---|---|---|---|---|---|---|---|
{newline.join(sizes)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/explanation/performance.md"))
    parser.add_argument("--environments", type=Path, default=Path(".peers"))
    parser.add_argument("--turns", type=int, default=15, help=f"of which medians are taken; at least {LEAST}")
    parser.add_argument("--kept", type=Path, default=Path("runs/performance"), help="where measurements are kept")
    chosen = parser.parse_args()
    if chosen.turns < LEAST:
        parser.error(f"--turns must be at least {LEAST}: medians of fewer say little")
    kept, load = Kept(chosen.kept), os.getloadavg()[0]
    if load > 0.5:
        print(f"the machine is busy (load {load:.1f}): times on the page will be worth little", file=sys.stderr)
    found = beside_peers(kept, chosen.environments.absolute(), chosen.turns)
    if not found:
        sys.exit("no contender could be measured, see above; nothing is written")
    costs, asked = cost_model(kept, chosen.turns)
    text = page(found, costs, asked, chosen.turns, load)
    with atomic_file(chosen.output, durable=False) as file:
        file.write(text.encode())
    print(f"\n{text}\n{chosen.output} is written")
    if len(found) < len(CONTENDERS):
        sys.exit("some contenders could not be measured, see above; what was measured is kept: run it again")
    kept.clear()


if __name__ == "__main__":
    main()
