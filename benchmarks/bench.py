"""``make bench``: the speed promises as ratios taken in one run, since machines are noisy.

A *read* is the sum of all entries of the same matrix with all cores: the least any method could take that
looks at every row once. A *round* is everything of one DP-ADMM round: gradient, noise, updates, consensus. ``python
benchmarks/bench.py one_round agents`` runs some groups only.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numba
import numpy as np
from scipy.sparse import csr_array

import before
from dpadmm import Logistic, Problem, Rows, kernels, make_rows, simulate
from dpadmm.data import Dataset
from dpadmm.engine.noise import SimulatedNoise
from dpadmm.losses import Loss, Softmax
from dpadmm.matrices.arrays import aligned_empty
from dpadmm.matrices.coded import CodedRows
from dpadmm.matrices.features import layout
from dpadmm.methods import DpAdmm, Pgd, Round, RoundResult
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.methods.dp_admm import consensus_step
from dpadmm.methods.theory import constants_of, theorem_schedule
from dpadmm.regularizers import L2
from dpadmm.sites.agent import Agent
from dpadmm.studies.study import Study
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import Ledger
from dpadmm.trusted.policy import Policy
from dpadmm.trusted.private_rows import CheckedRows, protect
from dpadmm.trusted.unit import ONE_ROW
from peers.steps import read as _sum
from tables import NARROW, WIDE, ratios, write

REPEATS = 60


def matrix(n_rows: int, n_features: int, dtype: type = np.float64) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    features = rng.random((n_rows, n_features), dtype=dtype)
    features /= dtype(np.sqrt(n_features))
    return features, np.where(rng.random(n_rows) < 0.5, 1.0, -1.0)


def interleaved(*tasks: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """Least seconds of every task, taken in turns so that a slow moment hits all of them."""
    times = np.empty((repeats, len(tasks)))
    for task in tasks:
        task()
    for k in range(repeats):
        for i, task in enumerate(tasks):
            started = time.perf_counter()
            task()
            times[k, i] = time.perf_counter() - started
    return [float(t) for t in times.min(axis=0)]


def round_of(rows: Rows, loss: Loss | None = None) -> Callable[[], object]:
    """A closure that does one more private round each time it is called."""
    problem = Problem(loss or Logistic(), L2(), 1e-6)
    shape = (rows.n_features, problem.loss.n_outputs)
    z = np.full(rows.n_agents, 75.0)
    constants = constants_of(
        problem, n_features=rows.n_features, n_rows=rows.n_rows, noise_multiplier=z, weight_radius=89.0
    )
    method = DpAdmm(0.1, step_sizes=theorem_schedule(constants), noise_multiplier=z)
    noise = SimulatedNoise(0, rows.n_agents, shape)
    held = {"state": method.init(problem, rows), "consensus": np.zeros(shape), "round": 0}

    def one_round() -> None:
        held["round"] += 1
        held["state"], uploads = method.step(
            held["state"],
            Round(number=held["round"], problem=problem, rows=rows, consensus=held["consensus"], noise=noise),
        )
        held["consensus"] = consensus_step(uploads)

    return one_round


def server_round_of(rows: Rows) -> Callable[[], object]:
    """The same for ``auto``, after its first round."""
    problem, shape = Problem(Logistic(), L2(), 1e-6), (rows.n_features, 1)
    planned = np.full(rows.n_agents, 25)
    method = Pgd().build(problem, rows, PrivacyBudget(planned=planned, n_rounds=25, epsilon=1.0))
    state, noise = method.init(problem, rows), SimulatedNoise(0, rows.n_agents, shape)
    held = {"broadcast": method.start(shape), "round": 0}

    def one_round() -> None:
        k = held["round"] = held["round"] + 1
        _, sent = method.step(state, Round(k, problem, rows, held["broadcast"], noise))
        held["broadcast"] = method.aggregate(RoundResult(sent, held["broadcast"], k, problem, rows.n_rows))

    one_round()
    return one_round


def researchers_script(features: np.ndarray, labels: np.ndarray, n_agents: int) -> Callable[[], object]:
    """The same round as somebody would write it in NumPy: a loop over agents."""
    rng, d = np.random.default_rng(0), features.shape[1]
    rows = list(zip(np.array_split(features, n_agents), np.array_split(labels, n_agents), strict=True))
    held = {"w": np.zeros((n_agents, d)), "dual": np.zeros((n_agents, d)), "consensus": np.zeros(d)}

    def one_round() -> None:
        w, dual, consensus, uploads = held["w"], held["dual"], held["consensus"], np.zeros((n_agents, d))
        for i, (x, y) in enumerate(rows):
            dual[i] -= 0.1 * (w[i] - consensus)
            slope = -y / (1.0 + np.exp(y * (x @ w[i])))
            slope *= np.minimum(1.0, 1.0 / (np.abs(slope) * np.linalg.norm(x, axis=1)))
            noisy = x.T @ slope / len(y) + rng.normal(0.0, 75.0 * 2.0 / len(y), d)
            w[i] = (-noisy - 1e-6 * w[i] + dual[i] + 0.1 * consensus + 5.0 * w[i]) / 5.1
            uploads[i] = w[i] - dual[i] / 0.1
        held["consensus"] = uploads.mean(axis=0)

    return one_round


def report(what: str, value: float, limit: str, holds: bool) -> bool:
    print(f"{'ok  ' if holds else 'MISS'}  {what:<66} {value:8.2f}   ({limit})", flush=True)
    return holds


def at_most(what: str, value: float, limit: float) -> bool:
    return report(what, value, f"at most {limit:g}", value <= limit)


def coded_rows(n_rows: int = 40_000) -> CodedRows:
    """Rows of 6 numbers and 8 categories, 104 columns, as UCI Adult has: a few values are frequent."""
    rng, sizes = np.random.default_rng(0), np.array([7, 16, 7, 14, 6, 5, 2, 41])
    values, codes = np.empty((n_rows, 7)), np.empty((n_rows, len(sizes)), np.uint8)
    for start in range(0, n_rows, 40_000):
        part = slice(start, min(start + 40_000, n_rows))
        frequent = rng.geometric(0.5, codes[part].shape) - 1
        codes[part] = 6 + np.cumsum(sizes) - sizes + np.minimum(frequent, sizes - 1)
        values[part, :6] = rng.random((len(frequent), 6)) * 0.2
    values[:, 6] = 0.3
    return CodedRows(values, codes, np.arange(6), 104)


COPIES = 4
"""Of a matrix, 33 MB each, that take turns: one alone is in the last-level cache in part, more or less by luck."""


def laid_out(features: Any, offset: int = 0) -> Any:
    """A copy; of dense rows, so many bytes into a cache line: 0 as ``simulate`` makes it, 16 as NumPy does."""
    if not isinstance(features, np.ndarray):
        return features.copy()
    out = aligned_empty((features.nbytes + offset,), np.uint8)[offset:].view(features.dtype).reshape(features.shape)
    out[:] = features
    return out


def in_turns(turns: int = 15, **tasks: list[Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each task, right after it was done once, as rounds and reads follow each other.

    Of every task there are variants on other copies of the same rows; the next is taken each time, so that what is
    large comes from memory. ``benchmarks/peers/steps.py`` measures the same way.
    """
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(turns):
        for name, variants in tasks.items():
            variants[2 * turn % len(variants)]()
            task = variants[(2 * turn + 1) % len(variants)]
            started = time.perf_counter()
            task()
            times[name].append(time.perf_counter() - started)
    return {name: float(np.median(each)) for name, each in times.items()}


def one_round() -> bool:
    """Rows as UCI Adult's, however stored, beside a read of the dense matrix and beside a script."""
    short, offsets = coded_rows(), np.linspace(0, 40_000, 101).astype(np.int64)
    dense, labels = short.toarray(), np.where(np.random.default_rng(1).random(40_000) < 0.5, 1.0, -1.0)
    stored = {"coded": short, "full": dense, "single": dense.astype(np.float32), "sparse": csr_array(dense)}
    copies = [laid_out(dense) for _ in range(COPIES)]
    tasks: dict[str, list[Callable[[], object]]] = {
        "read": [partial(_sum, each.reshape(-1)) for each in copies],
        **{
            name: [round_of(make_rows(laid_out(each), labels, offsets=offsets)) for _ in range(COPIES)]
            for name, each in stored.items()
        },
        "script": [researchers_script(each, labels, 100) for each in copies],
    }
    for variants in tasks.values():
        for task in variants:
            task()
    took = in_turns(**tasks)
    read, coded, full, single = (took[name] for name in ("read", "coded", "full", "single"))
    print(f"      40,000 rows of 6 numbers and 8 categories, 104 columns, n = 100, in ms: read of the dense matrix "
          f"{read * 1e3:.2f}; round, coded {coded * 1e3:.2f}, float64 {full * 1e3:.2f}, float32 {single * 1e3:.2f}, "
          f"CSR {took['sparse'] * 1e3:.2f}; NumPy script {took['script'] * 1e3:.2f}")  # fmt: skip
    fine = at_most("coded round / read of the dense matrix", coded / read, 1)
    fine &= at_most("dense round / read", full / read, 1.9)
    fine &= at_most("float32 round / float64 round", single / full, 0.75)
    report("CSR round / read of the dense matrix", took["sparse"] / read, "for information", True)
    report("NumPy script / dense round", took["script"] / full, "for information", True)
    ratio = took["script"] / coded
    return report("NumPy script / coded round", ratio, "at least 10", ratio >= 10) and fine


def classes() -> bool:
    """Softmax with 10 classes, and CSR rows, beside the kernels of before coded rows (benchmarks/before.py).

    Those read dense rows where NumPy had put them; ours, where ``simulate`` puts them now.
    """
    short, offsets = coded_rows(), np.linspace(0, 40_000, 101).astype(np.int64)
    dense, labels = short.toarray(), np.random.default_rng(1).integers(0, 10, 40_000).astype(float)
    points, loss = np.random.default_rng(2).normal(size=(100, 104, 10)), Softmax(10)
    kinds = (laid_out(dense, 16), laid_out(dense), short)
    placed, long, coded = (make_rows(each, labels, offsets=offsets) for each in kinds)
    then, now, now_coded = interleaved(
        lambda: before.gradient(placed, points, loss),
        *(partial(kernels.gradient, each, points, loss) for each in (long, coded)),
        repeats=20,
    )
    print(f"      softmax with 10 classes, ms a gradient: before {then * 1e3:.2f}, dense {now * 1e3:.2f}, "
          f"coded {now_coded * 1e3:.2f}")  # fmt: skip
    fine = report("softmax with 10 classes, before / dense", then / now, "at least 3", then >= 3 * now)
    fine &= report("softmax with 10 classes, before / coded", then / now_coded, "at least 5", then >= 5 * now_coded)
    sparse, point = (
        make_rows(csr_array(dense), np.where(labels < 5, 1.0, -1.0), offsets=offsets),
        points[:, :, :1].copy(),
    )
    then, now = interleaved(
        *(partial(each, sparse, point, Logistic()) for each in (before.gradient, kernels.gradient)), repeats=20
    )
    return at_most("CSR now / before", now / then, 1.05) and fine


def whole_run() -> bool:
    """Everything of ``simulate`` but measurements."""
    short = coded_rows()
    labels = np.where(np.random.default_rng(1).random(40_000) < 0.5, 1.0, -1.0)
    copies = [laid_out(short.toarray()).reshape(-1) for _ in range(COPIES)]
    data = Dataset("bench", short, labels, (-1, 1))
    settings = {
        "method": "dp_admm",
        "n_rounds": 100,
        "n_agents": 100,
        "epsilon": 1.0,
        "test_rows": 0,
        "metrics_every": 0,
    }
    read, run = interleaved(
        lambda: [_sum(copies[k % COPIES]) for k in range(100)], lambda: simulate(data, seed=1, **settings), repeats=5
    )
    print(f"      100 reads {read * 1e3:.0f} ms, 100 rounds of simulate {run * 1e3:.0f} ms")
    return at_most("100 rounds of simulate, coded / 100 reads of the dense matrix", run / read, 1.5)


def linear(largest: int = 9) -> bool:
    """float32, 100 columns, 10 agents; the fixed cost of a round is what 10,000 entries take."""
    sizes, seconds = [10**k for k in (4, *range(6, largest + 1))], []
    features, labels = matrix(sizes[-1] // 100, 100, np.float32)
    for entries in sizes:
        n = entries // 100
        rows = make_rows(features[:n], labels[:n], offsets=np.linspace(0, n, 11).astype(np.int64))
        seconds += interleaved(round_of(rows), repeats=max(5, min(200, 10**8 // entries)))
    per_entry = (np.array(seconds[1:]) - seconds[0]) / sizes[1:] * 1e9
    shown = ", ".join(f"{n:.0e}: {t:.3f}" for n, t in zip(sizes[1:], per_entry, strict=True))
    print(f"      fixed cost of a round {seconds[0] * 1e6:.0f} µs; ns per entry by number of entries: {shown}")
    return at_most("most / least time per entry", per_entry.max() / per_entry.min(), 1.5)


def agents(n_rows: int = 2_000_000) -> bool:
    """From one agent to 20 rows for each, on the same rows of 50 numbers."""
    features, labels = matrix(n_rows, 50)
    counts, fine = (1, 100, 10_000, n_rows // 20), True
    dealt = [make_rows(features, labels, offsets=np.linspace(0, n_rows, n + 1).astype(np.int64)) for n in counts]
    for name, closure, limit in (("server-side (auto)", server_round_of, 1.5), ("dp_admm", round_of, 3)):
        times = interleaved(*map(closure, dealt), repeats=7)
        shown = ", ".join(f"{n:,}: {t * 1e3:.1f}" for n, t in zip(counts, times, strict=True))
        print(f"      {n_rows:,} × 50, ms per {name} round by number of agents: {shown}")
        fine &= at_most(f"{name} round, slowest / n = 1", max(times) / times[0], limit)
    return fine


def million_agents(kind: str, n_agents: int) -> None:
    """In a process of its own: bytes of the rows, seconds in all and in rounds, and the peak of memory, as JSON."""
    n = 20 * n_agents
    features = coded_rows(n) if kind == "coded" else matrix(n, 50, np.float32)[0]
    labels, started = np.where(np.arange(n) % 3, 1.0, -1.0), time.perf_counter()
    size = sum(each.nbytes for each in layout(features)[1]) + labels.nbytes
    result = simulate(Dataset("many", features, labels, (-1, 1)), n_agents=n_agents, method="auto", epsilon=1.0,
                      n_rounds=5, test_rows=0, metrics_every=0, seed=1)  # fmt: skip
    result.privacy.to_dict()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps([size, time.perf_counter() - started, result.outcome.seconds, peak]))


def million(n_agents: int = 10**6) -> bool:
    """Agents of 20 rows in one process; rows count with their labels."""
    fine = True
    for kind, what in (("float32", "float32 rows of 50 numbers"), ("coded", "coded rows")):
        code = f"import sys; sys.path.insert(0, 'benchmarks'); import bench; bench.million_agents('{kind}', {n_agents})"
        answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        size, seconds, rounds, peak = json.loads(answer.stdout.splitlines()[-1])
        print(f"      {n_agents:,} agents with 20 {what} each, {size / 2**20:.0f} MB: auto with 5 rounds and its "
              f"report {seconds:.1f} s, rounds {rounds:.1f} s; peak {peak / 2**20:.0f} MB")  # fmt: skip
        fine &= at_most(f"memory at the peak / {what}", peak / size, 1.5)
    return fine


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
    """A deployed agent, with guard, exact noise and ledger on disk: 100 rounds, and its start after 12,000."""
    rows, names = protect(*matrix(400, 104), ONE_ROW), tuple(f"x{i}" for i in range(104))
    policy = Policy(1e3, 1e-5, frozenset({"dp_admm"}), frozenset({"logistic"}), 12_000, 2)

    def agent_of(ledger: Ledger, n_rounds: int) -> Agent:
        training = {"method": "dp_admm", "epsilon": 1.0, "n_rounds": n_rounds}
        study = Study(name="bench", features=names, training=training, classes=(-1, 1))
        return Agent(Guard(policy, ledger, lambda s: CheckedRows(rows)), study)

    def rounds(folder: Path, n_rounds: int) -> tuple[float, float]:
        with TimedLedger.open(folder, cap=policy.cap, create=True) as ledger:
            agent, consensus, started = agent_of(ledger, n_rounds), np.zeros((104, 1)), time.perf_counter()
            for round in range(1, n_rounds + 1):
                consensus = agent.step(round, consensus)
            return time.perf_counter() - started, ledger.seconds

    starts = []
    with tempfile.TemporaryDirectory(dir=".") as name:
        totals, ledgers = zip(*(rounds(Path(name, str(k)), 100) for k in range(6)), strict=True)
        rounds(Path(name, "long"), 12_000)
        for _ in range(5):
            started = time.perf_counter()
            with Ledger.open(Path(name, "long"), cap=policy.cap) as ledger:
                agent_of(ledger, 12_000)
                starts.append(time.perf_counter() - started)
    total, ledger_ms = np.median(totals[1:]), np.median(ledgers[1:]) / 100 * 1e3
    fine = report("seconds for 100 rounds of a deployed agent, d = 104", total, "at most 1.5", total <= 1.5)
    fine &= at_most("seconds to start with a ledger of 12,000 rounds", float(np.median(starts)), 1)
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


SITE = """format = "dpadmm-site/2"
ledger = "ledger"
[data]
table = "table.csv"
label = "y"
[person]
rows = 1
[limits]
epsilon = 10.0
delta = 1e-5
methods = ["pgd"]
losses = ["logistic"]
max_rounds = 1000
min_rows = 100
"""


def enrolment(megabytes: float = 600.0) -> bool:
    """A site with a CSV of a million rows and 65 columns: ``site accept``, as a process; 65 s and 1,046 MB once."""
    command = Path(sys.executable).with_name("dpadmm")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table, parquet = write(WIDE, folder, megabytes)
        parquet.unlink()
        with open(table) as lines, open(folder / "sample.csv", "w") as sample:
            sample.writelines(islice(lines, 3000))
        (folder / "site.toml").write_text(SITE)
        for asked in (
            "study new study.toml --from sample.csv --label y --dummy",
            "study confirm study.toml --all",
            "site join --manual bench",
        ):
            subprocess.run([command, *asked.split()], cwd=folder, check=True, capture_output=True)
        text = (folder / "study.toml").read_text()
        (folder / "study.toml").write_text(text.replace("\n# n_rounds = ", "\nn_rounds = "))  # sites need it
        begun = subprocess.Popen([command, "site", "accept", "study.toml", "--site", "site.toml"], cwd=folder,
                                 stdout=subprocess.DEVNULL)  # fmt: skip
        _, status, used = os.wait4(begun.pid, 0)
        if status != 0:
            raise SystemExit("dpadmm site accept failed")
    seconds = used.ru_utime + used.ru_stime
    fine = at_most("CPU seconds to accept a study with a CSV of 10⁶ rows and 65 columns", seconds, 65 / 3)
    return at_most("  MB at its peak", used.ru_maxrss / 1024, 600) and fine


def tables() -> bool:
    """A table is encoded while it is read: see benchmarks/tables.py."""
    fine = True
    for what, clock, cores in [*ratios(NARROW, 100), *ratios(WIDE, 200)]:
        promised = "the same reader" in what and ("csv" in what or "65" in what)
        limit = "at most 2" if promised else "no promise of its own"
        fine = report(what, clock, limit, clock <= 2 or not promised) and fine
        report("  the same in work of all cores", cores, "for information", True)
    return fine


def main() -> None:
    print(f"{numba.get_num_threads()} threads")
    groups = (memory, enrolment, million, one_round, classes, whole_run, agents, guarded, tables, linear)
    results = [task() for task in groups if task.__name__ in sys.argv[1:] or not sys.argv[1:]]
    print(f"{sum(results)} of {len(results)} groups within their limits")


if __name__ == "__main__":
    main()
