"""Does the time of an answer tell neighbours apart? ``python benchmarks/timing.py``, a minute.

Five guards over the same 400 × 104 rows but for one: as it is (twice, to compare), subnormal, of length 1, of
zeros. Answers are asked in random turns; AUC 0.5 means that times say nothing (standard error about 0.01).
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from scipy.stats import mannwhitneyu

from dpadmm.studies.study import Study
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import Ledger
from dpadmm.trusted.policy import Policy
from dpadmm.trusted.private_rows import CheckedRows, protect
from dpadmm.trusted.unit import ONE_ROW

M, D, ROUNDS = 400, 104, 1500
WORLDS = ("as it is", "as it is, again", "subnormal", "of length 1", "of zeros")


def rows(world: str) -> CheckedRows:
    rng = np.random.default_rng(0)
    features = rng.random((M, D)) / np.sqrt(D)
    labels = np.where(rng.random(M) < 0.5, 1.0, -1.0)
    if not world.startswith("as it is"):
        features[7] = 5e-324 if world == "subnormal" else 0.0
        features[7, 0] = 1.0 if world == "of length 1" else features[7, 0]
    return CheckedRows(protect(features, labels, ONE_ROW))


def main() -> None:
    policy = Policy(1e3, 1e-5, frozenset({"dp_admm"}), frozenset({"logistic"}), 10**6, 2)
    training = {"noise_multiplier": 5.0, "n_rounds": ROUNDS}
    study = Study(name="timing", features=tuple(f"x{i}" for i in range(D)), classes=(-1, 1), training=training)
    times: dict[str, list[float]] = {world: [] for world in WORLDS}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as held:
        guards = {}
        for world in WORLDS:
            ledger = held.enter_context(Ledger.open(Path(folder, world), cap=policy.cap, create=True))
            own = rows(world)
            guards[world] = Guard(policy, ledger, lambda study, own=own: own)
            guards[world].enrol(study)
        order, point = np.random.default_rng(1), np.full((D, 1), 3.0)
        for k in range(1, ROUNDS + 1):
            for world in order.permutation(WORLDS).tolist():
                started = time.perf_counter()
                guards[world].answer(study.hash, k, point)
                times[world].append(time.perf_counter() - started)
    for world in WORLDS:
        auc = mannwhitneyu(times[world], times[WORLDS[0]]).statistic / ROUNDS**2
        print(f"row 8 {world:<16} median {np.median(times[world]) * 1e3:.3f} ms, AUC {auc:.3f}")


if __name__ == "__main__":
    main()
