"""The runner with real worker processes:

the file does not depend on the workers, and finished cells are not repeated.
"""

from __future__ import annotations

import copy
import os
import signal

import pytest
from grids import N_CELLS, SMALL, small_rows, without_times
from quick_workers import quick_workers

from dpadmm.engine.workers import WorkerDiedError
from dpadmm.errors import DataError
from reproduction.grid import grid_from
from reproduction.results import read_results
from reproduction.runner import Store, run_grid


def psutil_children() -> list:
    psutil = pytest.importorskip("psutil")
    found = psutil.Process().children(recursive=True)
    return [child for child in found if "spawn_main" in " ".join(child.cmdline())]


@pytest.fixture(scope="module")
def single_run(tmp_path_factory):
    """All cells in one run by one worker: the file and its contents."""
    path = tmp_path_factory.mktemp("straight") / "results.parquet"
    seen = []
    with quick_workers():
        results = run_grid(grid_from(SMALL), small_rows(), path, workers=1, watch=seen.append)
    assert [progress.done for progress in seen] == list(range(N_CELLS + 1))
    assert {progress.total for progress in seen} == {N_CELLS}
    return path, results


def test_lines_have_the_order_of_the_grid(single_run):
    path, results = single_run
    grid = grid_from(SMALL)
    assert results.cells == [cell.key for cell in grid.cells()]
    assert results.experiments == ["agents", "times", "again"]
    assert results.grid == grid.as_json
    assert results.meta["grid_digest"] == grid.digest
    refused = results.select(status="refused")
    assert refused.frame["round_epsilon"].tolist() == [5.0]
    assert results.select(timed=True).frame["round"].tolist() == [1, 3, 6]
    assert [item.name for item in path.parent.iterdir()] == ["results.parquet"]
    assert read_results(path).to_table().equals(results.to_table())


def test_two_workers_in_two_runs_give_the_same_file_without_repetition(single_run, tmp_path):
    path = tmp_path / "results.parquet"
    grid = grid_from(SMALL)
    with quick_workers():
        first = run_grid(grid, small_rows(), path, names=["again"], workers=2)
        whole = run_grid(grid, small_rows(), path, workers=2)
    assert first.cells == [cell.key for cell in grid.cells() if cell.key in {c.key for c in grid.cells(["again"])}]
    assert without_times(whole).equals(without_times(single_run[1]))
    for name in ("seconds", "wall_seconds"):  # equal to the last bit: not run again
        values = whole.select("again").to_table()[name].to_pylist()
        assert values == first.to_table()[name].to_pylist()
    stamp = path.stat().st_mtime_ns
    run_grid(grid, small_rows(), path)
    assert path.stat().st_mtime_ns == stamp  # no missing cells, so nothing is written


def test_stopping_keeps_finished_cells_and_ends_workers(single_run, tmp_path):
    done = []
    results = run_grid(
        grid_from(SMALL),
        small_rows(),
        tmp_path / "results.parquet",
        names=["agents"],
        workers=2,
        watch=done.append,
        stop=lambda: bool(done) and done[-1].done >= 3,
    )
    assert 3 <= len(results.cells) < 10
    assert len(results.cells) == done[-1].done
    wanted = set(results.cells)
    same = single_run[1].select(cell=list(wanted))
    assert without_times(same).equals(without_times(results))
    assert psutil_children() == []


def test_dead_worker_is_reported_in_one_sentence(tmp_path):
    path = tmp_path / "results.parquet"

    def kill(progress):
        if progress.done == 2:
            os.kill(psutil_children()[0].pid, signal.SIGKILL)

    with pytest.raises(WorkerDiedError, match=r"ended by SIGKILL.*run the same command again") as died:
        run_grid(grid_from(SMALL), small_rows(), path, names=["agents"], workers=1, watch=kill)
    assert "\n" not in str(died.value)
    assert len(read_results(path).cells) in (2, 3)  # it may finish its next cell before the signal comes
    assert psutil_children() == []


@pytest.mark.usefixtures("workers_forked")
def test_other_grids_data_and_versions_are_refused(single_run, tmp_path, monkeypatch):
    path = tmp_path / "results.parquet"
    path.write_bytes(single_run[0].read_bytes())
    grid, rows = grid_from(SMALL), small_rows()
    other = copy.deepcopy(SMALL)
    other["shared"]["rho"] = 0.2
    for says, args in (
        ("another grid", (grid_from(other), rows)),
        ("other data", (grid, rows.take(range(300)))),
    ):
        with pytest.raises(DataError, match=f"belongs to {says} .*; choose another output folder, or give --over"):
            run_grid(*args, path)
    monkeypatch.setattr("dpadmm.__version__", "99.0")
    with pytest.raises(DataError, match=r"another version of dpadmm \(.*, not 99.0\); choose another"):
        run_grid(grid, rows, path)
    monkeypatch.undo()
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="damaged or not a results file; choose another output folder"):
        run_grid(grid, rows, path)
    assert len(run_grid(grid, rows, path, names=["times"], overwrite=True).cells) == 1


def test_one_process_per_folder(single_run, tmp_path):
    path = tmp_path / "results.parquet"
    path.write_bytes(single_run[0].read_bytes())
    grid, rows = grid_from(SMALL), small_rows()
    with (
        Store(grid, rows, path),
        pytest.raises(DataError, match="another dpadmm is working in"),
    ):
        run_grid(grid, rows, path)
    assert len(run_grid(grid, rows, path).cells) == N_CELLS


def test_leftovers_of_a_killed_writer_are_removed_at_the_next_start(single_run, tmp_path):
    path = tmp_path / "results.parquet"
    path.write_bytes(single_run[0].read_bytes())
    (tmp_path / ".results.parquet.4711.part").write_bytes(b"half a file")
    run_grid(grid_from(SMALL), small_rows(), path)
    assert [item.name for item in tmp_path.iterdir()] == ["results.parquet"]


@pytest.mark.usefixtures("workers_forked")
def test_additional_repeats_extend_a_file_and_run_only_missing_cells(single_run, tmp_path):
    path, more = tmp_path / "results.parquet", grid_from(SMALL, repeats=3)
    path.write_bytes(single_run[0].read_bytes())
    seen = []
    longer = run_grid(more, small_rows(), path, workers=1, watch=seen.append)
    assert seen[0].done == N_CELLS
    assert longer.grid == more.as_json
    # with the old times: not run again
    assert longer.select(cell=single_run[1].cells).to_table().equals(single_run[1].to_table())
    whole = run_grid(more, small_rows(), tmp_path / "whole" / "results.parquet", workers=1)
    assert without_times(longer).equals(without_times(whole))
    with pytest.raises(DataError, match=r"belongs to another grid \(repeats = 3, not 2\)"):
        run_grid(grid_from(SMALL), small_rows(), path)


def test_additional_repeats_of_another_grid_are_refused_with_the_difference(single_run, tmp_path):
    path = tmp_path / "results.parquet"
    path.write_bytes(single_run[0].read_bytes())
    other = copy.deepcopy(SMALL)
    other["shared"]["rho"] = 0.2
    with pytest.raises(DataError, match=r"belongs to another grid \(.*rho"):
        run_grid(grid_from(other, repeats=3), small_rows(), path)
