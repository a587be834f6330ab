"""A site with rows on real Dask workers that are killed, read changed files, or have another version."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clusters import STUDY, InProcessClient, kill_workers, three_files, two_workers, uploads
from dask import config
from federations import Federation, small_study, write_rows
from guards import refusal
from looping import case

from dpadmm.data import cluster as dask
from dpadmm.errors import DataError, StudyError
from dpadmm.sites import cluster as on_cluster
from dpadmm.sites.agent import Agent
from dpadmm.sites.site import read_site


@pytest.fixture(scope="module")
def workers() -> Any:
    with two_workers() as cluster:
        yield cluster


def test_answers_are_identical_on_any_number_of_workers_and_after_one_dies(
    workers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(on_cluster, "Cluster", InProcessClient)
        here = three_files(tmp_path / "here", "nowhere")
        expected, digest = uploads(here), here.open_rows(STUDY).digest()
    assert len(set(expected)) == 3
    site = three_files(tmp_path / "two", workers.scheduler_address)
    sound, sums = dask.Cluster.gather, []

    def gather(self: Any, futures: Any, timeout: float | None = None) -> Any:
        """Where the sums of a round have a deadline: those of the second are asked for, and then a worker dies."""
        sums.extend([timeout] if timeout else [])
        if timeout and len(sums) == 2:
            kill_workers(workers, 1)
        return sound(self, futures, timeout)

    monkeypatch.setattr(dask.Cluster, "gather", gather)
    assert uploads(site) == expected
    assert len(sums) == 3
    monkeypatch.undo()
    workers.scale(1)
    while len(workers.scheduler_info["workers"]) != 1:
        time.sleep(0.05)
    alone = three_files(tmp_path / "one", workers.scheduler_address)
    assert uploads(alone) == expected
    assert alone.open_rows(STUDY).digest() == digest
    workers.scale(2)


def test_deployed_study_with_a_site_on_a_cluster_equals_the_run_in_one_process(workers: Any, tmp_path: Path) -> None:
    study = small_study(12, allow_missed_rounds=False, quorum=None, deadline=None)
    # little noise, so that a missing file would be visible
    study = replace(study, training=study.training.with_changes(epsilon=30.0))
    workers.wait_for_workers(2, timeout=60)
    with Federation(tmp_path, study, limit=30.0) as all:
        path, parts = all.sites["c"].path, tmp_path / "c" / "parts"
        parts.mkdir()
        for seed, n_rows in ((8, 200), (9, 400)):
            write_rows(parts / f"{seed}.csv", seed, n_rows)
        on_workers = f'table = "parts"\nscheduler = "{workers.scheduler_address}"'
        path.write_text(path.read_text().replace('table = "table.csv"', on_workers))
        all.sites["c"] = read_site(path)
        all.accept()
        all.begin()
        all.start()
        all.serve()
        all.after_round(3)
        held = [task for task in workers.scheduler.tasks.values() if task.state == "memory"]
        holders = {worker.address for task in held for worker in task.who_has}
        owners = [worker for worker in workers.workers.values() if worker.worker_address in holders]
        assert len(held) >= 2  # both files
        os.kill(owners[0].pid, signal.SIGKILL)
        assert all.finished() == 0, all.output
        all.sites["c"] = replace(all.sites["c"], scheduler=None)  # the folder as one table, in this process
        assert all.check() is not None


def test_changed_file_is_refused_when_it_is_read_again(
    workers: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = three_files(tmp_path / "a", workers.scheduler_address)
    with site.guard(create=True) as guard:
        agent = Agent(guard, STUDY)
        consensus = np.zeros(STUDY.broadcast_shape)
        agent.step(1, consensus)
        file = tmp_path / "a" / "rows" / "part-002.csv"
        file.write_text(file.read_text().replace("north", "south", 1))
        agent.step(2, consensus)  # for the rows in memory
        kill_workers(workers, 2)
        with caplog.at_level(logging.ERROR):
            assert refusal(agent.step, 3, consensus).code == "release-failed"
        assert "is not what it was when the study was enrolled" in caplog.text
        assert len(guard.transcript(STUDY.hash)) == 2
    with site.guard() as guard:
        assert refusal(Agent, guard, STUDY).code == "data-changed"


def test_other_versions_and_unreachable_clusters_are_refused(workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask, "TIMEOUT_SECONDS", 1.0)
    with pytest.raises(DataError, match=r"no Dask scheduler answers at .*; start one"):
        dask.Cluster("tcp://127.0.0.1:9")
    for address in ("nonsense", "no://such:1", "127.0.0.1", "tcp://127.0.0.1", "tcp://h:8786x", "tcp://h:99999", ""):
        with case(address), pytest.raises(DataError, match="is not the address of a Dask scheduler, such as"):
            dask.Cluster(address)
    with pytest.raises(DataError, match=r"tls:// needs certificates \(there is none\): set ca-file, and cert"):
        dask.Cluster("tls://127.0.0.1:9")  # checked first: a client would wait, and print a traceback
    files = {f"distributed.comm.tls.{name}": "no-such-file.pem" for name in ("ca-file", "client.cert", "client.key")}
    with config.set(files), pytest.raises(DataError, match=r"tls:// needs certificates \(.*No such file"):
        dask.Cluster("tls://127.0.0.1:9")
    monkeypatch.setattr(dask, "TIMEOUT_SECONDS", 30.0)
    monkeypatch.setattr(dask, "VERSION", "99.0")
    with pytest.raises(StudyError, match=r"workers need dpadmm 99.0, and tcp://.* has 0.*; install the same version"):
        dask.Cluster(workers.scheduler_address)
    with pytest.raises(StudyError, match=r"need dpadmm 98.0, and a worker has 99.0"):
        dask._call("98.0", len, "")  # on a worker that was started later
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(DataError, match=r"needs Dask; install it with: pip install 'dpadmm\[dask\]'"):
        dask.Cluster(workers.scheduler_address)
