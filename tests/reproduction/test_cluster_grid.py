"""A grid on a Dask cluster produces the same file as local workers, whichever processes die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clusters import kill_workers, two_workers
from grids import N_CELLS, SMALL, small_rows, without_times
from quick_workers import quick_workers

from dpadmm.errors import DataError
from reproduction.grid import grid_from
from reproduction.results import Results, read_results
from reproduction.runner import Progress, run_grid

CLIENT = """
import json, sys
from pathlib import Path
from reproduction import runner
from reproduction.grid import grid_from
from grids import small_rows

runner.WRITE_EVERY = 0.0
say = lambda progress: print(progress.done, flush=True)
runner.run_grid(grid_from(json.loads(sys.argv[1])), small_rows(), Path(sys.argv[2]), scheduler=sys.argv[3], watch=say)
"""


@pytest.fixture(scope="module")
def workers() -> Any:
    with two_workers() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Results:
    with quick_workers():
        return run_grid(grid_from(SMALL), small_rows(), tmp_path_factory.mktemp("local") / "results.parquet", workers=2)


def test_file_equals_the_local_one_even_if_workers_die(workers: Any, local: Results, tmp_path: Path) -> None:
    """First one worker dies, whose cells another runs again; then both, with all copies of the rows."""
    deaths = {4: 1, 8: 2}

    def watch(progress: Progress) -> None:
        kill_workers(workers, deaths.pop(progress.done, 0))

    path = tmp_path / "results.parquet"
    found = run_grid(grid_from(SMALL), small_rows(), path, scheduler=workers.scheduler_address, watch=watch)
    assert not deaths
    assert found.cells == local.cells
    assert without_times(found).equals(without_times(local))


def test_empty_scheduler_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'' is not the address of a Dask scheduler"):
        run_grid(grid_from(SMALL), small_rows(), tmp_path / "results.parquet", scheduler="")


def test_killed_or_stopped_client_loses_no_finished_cell(workers: Any, local: Results, tmp_path: Path) -> None:
    path, address = tmp_path / "results.parquet", workers.scheduler_address
    paths = os.pathsep.join([*sys.path, str(Path(__file__).parents[1] / "support")])
    words = [sys.executable, "-c", CLIENT, json.dumps(SMALL), str(path), address]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}) as client:
        assert client.stdout is not None
        for line in client.stdout:
            if int(line) >= 3:
                client.send_signal(signal.SIGKILL)
                break
    before, seen = read_results(path), list[Progress]()
    assert 2 <= len(before.cells) < N_CELLS
    run = {"grid": grid_from(SMALL), "dataset": small_rows(), "path": path, "scheduler": address}
    again = run_grid(**run, watch=seen.append, stop=lambda: bool(seen) and seen[-1].done >= len(before.cells) + 2)
    assert seen[0].done == len(before.cells)
    assert len(before.cells) + 2 <= len(again.cells) < N_CELLS
    whole = run_grid(**run)
    assert without_times(whole).equals(without_times(local))
    assert whole.select(cell=again.cells).to_table().equals(again.to_table())  # with equal times: no cell was run again
    assert again.select(cell=before.cells).to_table().equals(before.to_table())


def test_command_accepts_a_scheduler(workers: Any, reproduction: Any, tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(
        'data = "synthetic"\nrepeats = 2\n[shared]\nn_rounds = 5\nn_agents = 3\n'
        '[[experiments.a.runs]]\nmethod = "dp_sgd"\nepsilon = 1.0\n'
    )
    words = ["run", "--grid", tmp_path / "grid.toml", "--no-figures", "--json"]
    answer = reproduction(*words, "-o", tmp_path / "out", "--scheduler", workers.scheduler_address)
    assert answer.succeeded().json["experiments"]["a"]["runs"] == 2
    for wrong, message in (
        (["--scheduler", "nonsense"], "'nonsense' is not the address of a Dask scheduler"),
        (["--scheduler", workers.scheduler_address, "--workers", "2"], "leave out --workers or --scheduler"),
    ):
        refused = reproduction(*words, "-o", tmp_path / "other", *wrong, columns=300)
        assert refused.code == 2
        assert message in refused.err
        assert not (tmp_path / "other").exists()
