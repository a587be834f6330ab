"""kill -9 of sites, server and broker at random moments: the run has the same result as without kills.

``make torture`` runs the long version: 200 kills of each kind over repeated runs.
"""

from __future__ import annotations

import os
import random
import time
from itertools import count
from pathlib import Path

import pytest
from federations import NAMES, Federation, small_study, wait_for

LONG = os.environ.get("DPADMM_TORTURE") == "1"
KILLS, IN_A_RUN = (200, 10) if LONG else (3, 3)
WAITS_FOR_ALL = {"allow_missed_rounds": False, "quorum": None, "deadline": None}


def killed_run(all: Federation, chance: random.Random) -> int:
    """Run with kills until the study ends. Return the number of kills."""
    all.accept()
    all.begin()
    all.start()
    all.serve()
    wait_for(lambda: all.rounds_done > 0)
    for kills in range(IN_A_RUN):
        assert all.aggregator is not None
        if all.aggregator.poll() is not None:
            return kills
        who = chance.choice(["broker", "aggregator", *NAMES])
        if who == "broker":
            all.kill_broker()
        elif who == "aggregator":
            all.kill_aggregator()
            time.sleep(chance.choice([0.0, 0.5]))
            all.serve()
        else:
            all.agents[who].kill()
            all.start(who)
        time.sleep(chance.choice([0.0, chance.uniform(0.0, 1.0)]))  # or two at the same time
    return IN_A_RUN


MASKED = {**WAITS_FOR_ALL, "max_rows_per_site": 60}
KINDS = {"all": WAITS_FOR_ALL, "quorum": {"quorum": 2, "deadline": 0.5}, "masked": MASKED}


@pytest.mark.parametrize("more", KINDS.values(), ids=KINDS)
def test_run_with_random_kills_has_the_same_result(tmp_path: Path, more: dict[str, object]) -> None:
    kills = 0
    for run in count():
        seed = random.randrange(2**32)
        (tmp_path / str(run)).mkdir()
        with Federation(tmp_path / str(run), small_study(150, **more)) as all:
            kills += killed_run(all, random.Random(seed))
            assert all.finished(180) == 0, (seed, all.output)
            found = all.check()
        with (tmp_path / "kills.txt").open("a") as out:
            out.write(f"run {run}, seed {seed}, {kills} kills, {found}\n")
        if kills >= KILLS:
            break
