"""Adult with 100 agents: which error, at the same (ε, δ), if one relies on whom? ``python -m benchmarks.peers.adult``

Prints a table: ``auto`` with local noise, ``auto`` with secure aggregation, and Opacus DP-SGD run by a curator who sees
all rows, beside the optimum without privacy. Opacus has an environment of its own in ``.peers``.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy import suite as accuracy
from benchmarks.accuracy.suite import Score, standard_error
from benchmarks.peers.run import HEAD, HERE, environment, save
from dpadmm import Settings, load_adult
from dpadmm.accounting import exact_epsilon
from dpadmm.accounting.calibration import total_noise_multiplier
from dpadmm.engine.noise import ExactNoise
from dpadmm.training.compare import PreparedRuns
from dpadmm.training.preparation import prepare
from dpadmm.training.simulate import run_prepared

AGENTS, DELTA, TEST_ROWS = 100, 1e-3, 5222
SECURE = {"method": "auto", "aggregation": "secure"}
OURS: dict[str, dict[str, Any]] = {
    "`auto`, plain aggregation": {"method": "auto"},
    "`auto`, secure aggregation, h = n/2": {**SECURE, "min_honest_sites": AGENTS // 2},
    "`auto`, secure aggregation, h = n": {**SECURE, "min_honest_sites": AGENTS},
    "no privacy": {"method": "centralized", "alpha": 1e-6},
}
TRUST = {
    "`auto`, plain aggregation": "none",
    "`auto`, secure aggregation, h = n/2": "50 of the 100 agents",
    "`auto`, secure aggregation, h = n": "all agents",
    "Opacus DP-SGD": "a curator who sees all rows",
    "no privacy": "everyone",
}
TRIED = "0.05:800:8,0.05:800:16,0.05:3200:4,0.05:3200:8,0.05:3200:16,0.05:10000:2,0.05:10000:4"
"""Shares of the rows, steps and learning rates of which Opacus' best counts, by the test rows; the best of 43 on one
split at ε = 0.634, with shares from 0.01 to 1, 50 to 10,000 steps and learning rates from 4 to 256."""


def ours(epsilons: list[float], splits: int) -> dict[str, dict[float, list[float]]]:
    """Test errors by contender and ε; with all agents honest, of the noise that deployed agents add."""
    bench, found = PreparedRuns(load_adult()), {name: {epsilon: [] for epsilon in epsilons} for name in OURS}
    shared = {"n_agents": AGENTS, "delta": DELTA, "test_rows": TEST_ROWS, "metrics_every": 10**6}
    for seed in range(1, splits + 1):
        for name, how in OURS.items():
            noise = ExactNoise() if how.get("min_honest_sites") == AGENTS else None
            for budget in epsilons if how["method"] == "auto" else [None]:
                settings = Settings(**shared, **how, epsilon=budget, seed=seed)
                result = run_prepared(bench.prepared(settings), settings, noise=noise)
                for epsilon in epsilons if budget is None else [budget]:
                    found[name][epsilon].append(result.trace.last()["test_error_global"])
        print(f"split {seed} of {splits}", flush=True)
    return found


def opacus(epsilons: list[float], splits: int, chosen: argparse.Namespace) -> dict[float, Score]:
    """Opacus by ε, on all splits with the setting that is best on the test rows of the first ones."""
    python, first = environment("opacus", chosen.environments.absolute()), min(splits, chosen.tuning_splits)

    def scores(seeds: range, tried: str, *at: float) -> dict[float, Score]:
        with tempfile.TemporaryDirectory() as folder:
            for seed in seeds:
                alone = Settings(method="centralized", n_agents=1, test_rows=TEST_ROWS, seed=seed)
                save(prepare(load_adult(), alone), Path(folder) / f"adult-1-{seed}.npz")
            script = [python, HERE / "opacus_lines.py", folder, ",".join(map(str, at)), str(DELTA), tried]
            lines = Path(folder) / "lines.csv"
            lines.write_text(f"{HEAD}\n{subprocess.run(script, check=True, text=True, stdout=subprocess.PIPE).stdout}")
            found = accuracy.scores(accuracy.read_lines(lines))
        return {place.epsilon: here["opacus_curator"] for place, here in found.items()}

    best = scores(range(1, first + 1), chosen.tried, *epsilons)
    for epsilon in epsilons if first < splits else []:
        print(f"Opacus at ε = {epsilon:g}: {best[epsilon].setting}", flush=True)
        rest = scores(range(first + 1, splits + 1), best[epsilon].setting, epsilon)[epsilon]
        best[epsilon] = replace(best[epsilon], errors=np.concatenate([best[epsilon].errors, rest.errors]))
    return best


def cell(errors: Sequence[float]) -> str:
    return f"{100 * np.mean(errors):.2f} ± {100 * standard_error(np.array(errors)):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", default="0.277,0.634,1.02")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--tuning-splits", type=int, default=3, help="splits that choose the settings of Opacus")
    parser.add_argument("--tried", default=TRIED, help="settings of Opacus: SHARE:STEPS:LEARNING_RATE, with commas")
    parser.add_argument("--environments", type=Path, default=Path(".peers"))
    chosen = parser.parse_args()
    epsilons = [float(each) for each in chosen.epsilon.split(",")]
    found = ours(epsilons, chosen.splits)
    peer = opacus(epsilons, chosen.splits, chosen)
    rows = {name: [cell(each[epsilon]) for epsilon in epsilons] for name, each in found.items()}
    rows["Opacus DP-SGD"] = [cell(peer[epsilon].errors) for epsilon in epsilons]
    print(f"\n| test error in percent at ε = | trust required | {' | '.join(f'{each:g}' for each in epsilons)} |")
    print(f"| --- | --- |{' --: |' * len(epsilons)}")
    for name, aggregation in TRUST.items():
        print(f"| {name} | {aggregation} | {' | '.join(rows[name])} |")
    for min_honest_sites in (AGENTS // 2, AGENTS):
        alone = [
            exact_epsilon(math.sqrt(min_honest_sites) / total_noise_multiplier(e, DELTA, 1), DELTA) for e in epsilons
        ]
        print(
            f"\nε with h = {min_honest_sites} if all others work together: "
            f"{', '.join(f'{each:.3g}' for each in alone)}.",
            end="",
        )
    print(f"\nOpacus' best share of rows:steps:learning rate: {', '.join(peer[e].setting for e in epsilons)}.")


if __name__ == "__main__":
    main()
