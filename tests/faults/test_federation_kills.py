"""kill -9 of agents, aggregator and broker at random moments: the run ends as if nothing had happened.

``make torture`` runs the long form: 200 kills.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from federations import NAMES, Federation, small_study

LONG = os.environ.get("DPADMM_TORTURE") == "1"
RUNS, KILLS = (20, 10) if LONG else (2, 4)


@pytest.mark.parametrize("run", range(RUNS))
def test_killed_at_random_moments_a_run_ends_as_if_nothing_had_happened(tmp_path: Path, run: int) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    more = {} if run % 2 else {"absences": False, "quorum": None, "deadline": None}
    study = small_study(150 if LONG else 60, **more)
    kills = 0
    with Federation(tmp_path, study) as all:
        all.accept()
        all.begin()
        all.start()
        all.serve()
        all.all_connected()
        while kills < KILLS:
            if all.aggregator.poll() is not None:
                break
            who = chance.choice(["broker", "aggregator", *NAMES])
            if who == "broker":
                all.kill_broker()
            elif who == "aggregator":
                all.kill_aggregator()
                all.serve()
            else:
                all.agents[who].kill()
                all.start(who)
            kills += 1
            time.sleep(chance.uniform(0.0, 1.5))
        assert all.finished(180) == 0, (seed, all.said)
        all.check()
    assert kills == KILLS, "the run was over before"
