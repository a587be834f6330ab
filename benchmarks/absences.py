"""What a site that goes away costs: ``python benchmarks/absences.py [--rounds 200 1000] [--seeds 20]``.

Three sites with 500 rows each (8 features, logistic loss), ε = 1 in all. The third is gone after a quarter of the
rounds, for good or until three quarters; beside it, the same study with the other two alone, and with all three.
Losses are over all 1,500 rows, means over seeds with their standard errors; a deployment uses the same lines
(tests/faults/test_federation_owners.py compares both, bit by bit). Exit code 1 if a loss is more than 2% above that of
the two.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

from dpadmm import simulate

N_ROWS, N_FEATURES = 1_500, 8
MOST = 1.02


def made_up() -> tuple[Any, Any, Any]:
    """Features, labels and owners."""
    rng, weights = np.random.default_rng(0), np.linspace(-4.0, 4.0, N_FEATURES)
    features = rng.normal(size=(N_ROWS, N_FEATURES)) / np.sqrt(N_FEATURES) / 2.0
    labels = np.where(rng.random(N_ROWS) < 1.0 / (1.0 + np.exp(-4.0 * features @ weights)), 1.0, -1.0)
    return features, labels, np.arange(N_ROWS) % 3


def losses(method: str, n_rounds: int, absence: tuple[int, int] | None, n_sites: int, seeds: int) -> Any:
    features, labels, owners = made_up()
    kept = owners < n_sites
    options: dict[str, Any] = {"method": method, "epsilon": 1.0, "n_rounds": n_rounds, "test_rows": 0}
    if absence is not None:
        there = np.ones((n_rounds, 3), dtype=bool)
        there[slice(*absence), 2] = False
        options["participation"] = there
    found = []
    for seed in range(seeds):
        data = features[kept], labels[kept]
        model = simulate(data, groups=owners[kept], clip_rows=True, seed=seed, **options).model
        found.append(np.logaddexp(0.0, -labels * (features @ model.weights)[:, 0]).mean())
    return np.array(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, nargs="+", default=[200, 1_000])
    parser.add_argument("--methods", nargs="+", default=["dp_admm", "auto"])
    parser.add_argument("--seeds", type=int, default=20)
    chosen = parser.parse_args()
    print(f"{'method':8} {'rounds':>6}  {'':26} {'loss':>7} {'±':>7}  of the two alone")
    worst = 0.0
    for method in chosen.methods:
        for t in chosen.rounds:
            cases = {
                "two members from the start": (None, 2),
                "one of three gone at 1/4": ((t // 4, t), 3),
                "and back at 3/4": ((t // 4, 3 * t // 4), 3),
                "three, nobody gone": (None, 3),
            }
            alone = float("nan")
            for name, (absence, n_sites) in cases.items():
                found = losses(method, t, absence, n_sites, chosen.seeds)
                mean, error = found.mean(), found.std(ddof=1) / np.sqrt(len(found))
                alone = mean if n_sites == 2 else alone
                worst = max(worst, mean / alone if absence else 0.0)
                print(f"{method:8} {t:6}  {name:26} {mean:7.4f} {error:7.4f}  {mean / alone:6.3f}", flush=True)
    return int(worst > MOST)


if __name__ == "__main__":
    sys.exit(main())
