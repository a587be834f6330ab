"""``make bench``: the speed promises as ratios taken in one run, since machines are noisy.

A *read* is the sum of all entries of the same matrix with all cores: the least any method could take that
looks at every row once. A *round* is everything of one DP-ADMM round: gradient, noise, updates, consensus.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np

from dpadmm import Logistic, Problem, Rows, make_rows, simulate
from dpadmm._base.coded import CodedRows
from dpadmm.data import Dataset
from dpadmm.optim import kernels
from dpadmm.optim.losses import Softmax
from dpadmm.optim.regularizers import L2
from dpadmm.optim.theory import constants_of, theorem_schedule
from dpadmm.site.agent import Agent
from dpadmm.study.study import Study
from dpadmm.training.methods import DpAdmmRounds, Round
from dpadmm.training.methods.dp_admm import consensus_step
from dpadmm.training.oracles import SimulatedNoise
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import Ledger
from dpadmm.trusted.policy import Policy
from dpadmm.trusted.private_rows import CheckedRows, protect
from dpadmm.trusted.unit import ONE_ROW
from tables import ratios

REPEATS = 60


@numba.njit(parallel=True, fastmath=True, cache=True)
def _sum(entries):
    total = 0.0
    for i in numba.prange(entries.size):
        total += entries[i]
    return total


def matrix(n_rows: int, n_features: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    features = rng.random((n_rows, n_features), dtype=np.float64)
    features /= np.sqrt(n_features)
    return features, np.where(rng.random(n_rows) < 0.5, 1.0, -1.0)


def interleaved(*tasks: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """Median seconds of every task, taken in turns so that a slow moment hits all of them."""
    times = np.empty((repeats, len(tasks)))
    for task in tasks:
        task()
    for k in range(repeats):
        for i, task in enumerate(tasks):
            started = time.perf_counter()
            task()
            times[k, i] = time.perf_counter() - started
    return [float(t) for t in np.median(times, axis=0)]


def round_of(rows: Rows) -> Callable[[], object]:
    """A closure that does one more private round each time it is called."""
    problem = Problem(Logistic(), L2(), 1e-6)
    z = np.full(rows.n_agents, 75.0)
    constants = constants_of(
        problem, n_features=rows.n_features, n_rows=rows.n_rows, noise_multiplier=z, weight_radius=89.0
    )
    method = DpAdmmRounds(0.1, theorem_schedule(constants), z)
    noise = SimulatedNoise(0, rows.n_agents, (rows.n_features, 1))
    held = {"state": method.init(problem, rows), "consensus": np.zeros((rows.n_features, 1)), "round": 0}

    def one_round() -> None:
        held["round"] += 1
        held["state"], uploads = method.step(
            held["state"],
            Round(number=held["round"], problem=problem, rows=rows, consensus=held["consensus"], noise=noise),
        )
        held["consensus"] = consensus_step(uploads)

    return one_round


def equal_rows(n_rows: int, n_features: int, n_agents: int) -> tuple[Rows, np.ndarray]:
    features, labels = matrix(n_rows, n_features)
    offsets = np.linspace(0, n_rows, n_agents + 1).astype(np.int64)
    return make_rows(features, labels, offsets=offsets), features.reshape(-1)


def report(what: str, value: float, limit: str, holds: bool) -> bool:
    print(f"{'ok  ' if holds else 'MISS'}  {what:<66} {value:8.2f}   ({limit})", flush=True)
    return holds


def one_round() -> bool:
    rows, flat = equal_rows(40_000, 104, 100)
    points = np.random.default_rng(1).normal(size=(100, 104, 1))
    read, kernel, full = interleaved(
        lambda: _sum(flat), lambda: kernels.gradient(rows, points, Logistic()), round_of(rows)
    )
    (reference,) = interleaved(lambda: kernels.reference_gradient(rows, points, Logistic()), repeats=10)
    print(f"      40,000 × 104 float64, n = 100: read {read * 1e3:.2f} ms, kernel {kernel * 1e3:.2f} ms, "
          f"round {full * 1e3:.2f} ms, NumPy reference {reference * 1e3:.1f} ms")  # fmt: skip
    report("kernel / read", kernel / read, "no promise of its own", True)
    fine = report("round / read", full / read, "at most 1.5", full <= 1.5 * read)
    return report("NumPy reference / kernel", reference / kernel, "at least 3", reference >= 3 * kernel) and fine


def coded_rows(n_rows: int = 40_000) -> CodedRows:
    """Rows of 6 numbers and 8 categories, 104 columns, as UCI Adult has: a few values are frequent."""
    rng, sizes = np.random.default_rng(0), np.array([7, 16, 7, 14, 6, 5, 2, 41])
    frequent = rng.geometric(0.5, (n_rows, len(sizes))) - 1
    codes = 6 + np.cumsum(sizes) - sizes + np.minimum(frequent, sizes - 1)
    values = np.hstack([rng.random((n_rows, 6)) * 0.2, np.full((n_rows, 1), 0.3)])
    return CodedRows(values, codes.astype(np.uint8), np.arange(6), 104)


def coded() -> bool:
    """Rows with categories, beside the dense rows that they stand for."""
    short, offsets = coded_rows(), np.linspace(0, 40_000, 101).astype(np.int64)
    dense = short.toarray()
    labels = np.random.default_rng(1).integers(0, 10, 40_000).astype(float)
    binary, classes = (
        [make_rows(each, y, offsets=offsets) for each in (dense, short)]
        for y in (np.where(labels < 5, 1.0, -1.0), labels)
    )
    read, long, full = interleaved(lambda: _sum(dense.reshape(-1)), round_of(binary[0]), round_of(binary[1]))
    points = np.random.default_rng(2).normal(size=(100, 104, 10))
    many = [partial(kernels.gradient, rows, points, Softmax(10)) for rows in classes]
    of_dense, of_coded = interleaved(*many, repeats=20)
    print(f"      40,000 rows of 6 numbers and 8 categories, n = 100: read of the dense matrix {read * 1e3:.2f} ms, "
          f"dense round {long * 1e3:.2f} ms, coded round {full * 1e3:.2f} ms")  # fmt: skip
    fine = report("coded round / read of the dense matrix", full / read, "at most 1", full <= read)
    ratio = of_dense / of_coded
    return report("softmax with 10 classes, dense / coded kernel", ratio, "at least 2.5", ratio >= 2.5) and fine


def whole_run() -> bool:
    features, labels = matrix(40_000, 104)
    data = Dataset("bench", features, labels, (-1, 1))
    flat = features.reshape(-1)
    read, run = interleaved(
        lambda: [_sum(flat) for _ in range(100)],
        lambda: simulate(data, n_agents=100, epsilon=1.0, test_rows=0, metrics_every=0, seed=1),
        repeats=5,
    )
    return report("100 rounds of simulate / 100 reads", run / read, "at most 2.5", run <= 2.5 * read)


def linear() -> bool:
    sizes = (10**5, 10**6, 10**7, 10**8)
    seconds = []
    for entries in sizes:
        rows, _ = equal_rows(entries // 100, 100, 10)
        seconds += interleaved(round_of(rows), repeats=max(5, min(200, 10**8 // entries)))
    shown = ", ".join(f"{n:.0e} entries {t * 1e3:.2f}" for n, t in zip(sizes, seconds, strict=True))
    print(f"      ms per round, n = 10: {shown}")
    per_entry = np.diff(seconds) / np.diff(sizes) * 1e9
    fixed = seconds[0] - per_entry[0] * 1e-9 * sizes[0]
    print(f"      ns per further entry: {', '.join(f'{value:.2f}' for value in per_entry)}; "
          f"fixed cost of a round {fixed * 1e6:.0f} µs")  # fmt: skip
    plain = np.array(seconds) / sizes
    report("most / least time per entry, fixed cost included", plain.max() / plain.min(), "for information", True)
    spread = per_entry.max() / per_entry.min()
    return report(
        "most / least time per further entry, 1e5 to 1e8",
        spread,
        "at most 2.5: cache or memory",
        spread <= 2.5,
    )


def agents() -> bool:
    times = {}
    for n in (1, 10, 100, 1000, 2000):
        rows, _ = equal_rows(40_000, 104, n)
        (times[n],) = interleaved(round_of(rows))
    shown = ", ".join(f"{n}: {value * 1e3:.2f}" for n, value in times.items())
    print(f"      ms per round by number of agents: {shown}")
    spread = max(times.values()) / min(times.values())
    return report("slowest / fastest round, n = 1 to 2,000", spread, "at most 2", spread <= 2)


class TimedLedger(Ledger):
    """A ledger that knows how long it was at work."""

    seconds = 0.0

    def replay(self, *args: Any, **named: Any) -> bytes | None:
        return self._timed(super().replay, *args, **named)

    def spend(self, *args: Any, **named: Any) -> None:
        self._timed(super().spend, *args, **named)

    def _timed(self, task: Callable[..., Any], *args: Any, **named: Any) -> Any:
        started = time.perf_counter()
        try:
            return task(*args, **named)
        finally:
            self.seconds += time.perf_counter() - started


def guarded() -> bool:
    """100 rounds of a deployed agent: guard, exact noise, ledger on disk."""
    rows = protect(*matrix(400, 104), ONE_ROW)
    names, training = tuple(f"x{i}" for i in range(104)), {"method": "dp_admm", "epsilon": 1.0, "n_rounds": 100}
    policy = Policy(1e3, 1e-5, frozenset({"dp_admm"}), frozenset({"logistic"}), 100, 2)
    totals, ledgers = [], []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for k in range(6):
            study = Study(name=f"bench {k}", features=names, training=training, classes=(-1, 1))
            with TimedLedger.open(Path(folder, str(k)), cap=policy.cap, create=True) as ledger:
                agent = Agent(Guard(policy, ledger, lambda s: CheckedRows(rows)), study)
                consensus, started = np.zeros((104, 1)), time.perf_counter()
                for round in range(1, 101):
                    consensus = agent.step(round, consensus)
                totals.append(time.perf_counter() - started)
                ledgers.append(ledger.seconds)
    total, ledger_ms = np.median(totals[1:]), np.median(ledgers[1:]) / 100 * 1e3
    fine = report("seconds for 100 rounds of a deployed agent, d = 104", total, "at most 1.5", total <= 1.5)
    return report("ms a round in the ledger", ledger_ms, "at most 3", ledger_ms <= 3) and fine


def memory() -> bool:
    """Peak of a fresh process that holds 8e7 entries (640 MB) and simulates on them, with metrics."""
    # it must come before anything large: a child's peak on Linux begins at its parent's size
    code = (
        "import json, resource, sys; sys.path.insert(0, 'benchmarks'); import bench; "
        "x, y = bench.matrix(800_000, 100); "
        "bench.simulate((x, y), n_agents=100, epsilon=1.0, n_rounds=5, seed=1); "
        "print(json.dumps([x.nbytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    data, peak = json.loads(answer.stdout.splitlines()[-1])
    extra = (peak - 1.3 * data) / 2**20
    return report("MB beyond 1.3 × the data, at the peak", extra, "at most 300", extra <= 300)


def tables() -> bool:
    """A table is encoded while it is read: see benchmarks/tables.py."""
    fine = True
    for what, clock, cores in ratios(100):
        promised = "csv" in what
        limit = "at most 2" if promised else "no promise of its own"
        fine = report(what, clock, limit, clock <= 2 or not promised) and fine
        report("  the same in work of all cores", cores, "for information", True)
    return fine


def main() -> None:
    print(f"{numba.get_num_threads()} threads")
    results = [task() for task in (memory, one_round, coded, whole_run, linear, agents, guarded, tables)]
    print(f"{sum(results)} of {len(results)} groups within their limits")


if __name__ == "__main__":
    main()
