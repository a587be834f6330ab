"""A grid that is killed, interrupted or out of disk space: no finished cell is lost, and no process is left."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
from grids import SMALL, small_rows, without_times
from quick_workers import quick_workers

from reproduction.grid import grid_from
from reproduction.results import Results, read_results
from reproduction.runner import run_grid

ROOT = Path(__file__).parents[2]
EXPERIMENTS = {name: about for name, about in SMALL["experiments"].items() if name != "times"}
GRID = {**SMALL, "repeats": 4, "experiments": EXPERIMENTS}
SCRIPT = """
import json, sys
from pathlib import Path
from reproduction import runner
from reproduction.grid import grid_from
from reproduction.runner import run_grid
from grids import small_rows

if __name__ == "__main__":
    runner.WRITE_EVERY = 0.0
    grid = grid_from(json.loads(sys.argv[1]), repeats=int(sys.argv[3]))

    def say(progress):
        print(progress.done, flush=True)
        sys.stdin.readline()  # a test may hold the grid: a cell for each line it writes

    run_grid(grid, small_rows(), Path(sys.argv[2]), workers=int(sys.argv[4]), watch=say)
"""


def uninterrupted(path: Path, *, repeats: int = 4, **options) -> Results:
    """Run the grid without any fault."""
    with quick_workers():
        return run_grid(grid_from(GRID, repeats=repeats), small_rows(), path, workers=1, **options)


def start(path: Path, *, repeats: int = 4, workers: int = 1, **options) -> subprocess.Popen:
    script = path.parent.parent / "script.py"
    script.write_text(f"import sys\nsys.path[:0] = {[str(ROOT), str(ROOT / 'tests' / 'support')]!r}\n{SCRIPT}")
    words = [sys.executable, str(script), json.dumps(GRID), str(path), str(repeats), str(workers)]
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **options)


def test_grid_killed_three_times_gives_the_same_file_and_leaves_no_process(tmp_path):
    grid, path = grid_from(GRID), tmp_path / "out" / "results.parquet"
    path.parent.mkdir()
    n_cells, finished, rng = len(grid.cells()), 0, random.Random()
    for workers in (2, 1, 1):
        process = start(path, workers=workers, stdin=subprocess.PIPE)
        try:
            most = rng.randint(2, 5)  # 15 cells are fewer than the grid has, at any speed
            process.stdin.write("\n" * most)
            process.stdin.flush()
            until = finished + rng.randint(1, most)
            for line in process.stdout:
                if int(line) >= until:
                    break
            time.sleep(rng.uniform(0.0, 0.1))
            family = psutil.Process(process.pid).children(recursive=True)
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
        _, alive = psutil.wait_procs(family, timeout=20)
        assert alive == []
        n_finished = len(read_results(path).cells) if path.exists() else 0
        assert n_finished >= finished
        finished = n_finished
    assert 0 < finished < n_cells
    before = read_results(path)
    process = start(path)
    counts = [int(line) for line in process.stdout]
    process.stdout.close()
    assert process.wait() == 0
    assert counts == list(range(finished, n_cells + 1))  # finished cells were not run again
    whole = read_results(path)
    assert whole.select(cell=before.cells).to_table().equals(before.to_table())
    straight = uninterrupted(tmp_path / "straight.parquet")
    assert without_times(whole).equals(without_times(straight))
    assert [item.name for item in path.parent.iterdir()] == ["results.parquet"]


def test_killed_extension_gives_the_same_file(tmp_path):
    path = tmp_path / "out" / "results.parquet"
    before = uninterrupted(path)
    process = start(path, repeats=6)
    try:
        counts = (int(line) for line in process.stdout)
        assert next(counts) == len(before.cells)
        assert next(done for done in counts if done >= len(before.cells) + 3)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    finished = read_results(path)
    assert finished.select(cell=before.cells).to_table().equals(before.to_table())
    seen = []
    whole = uninterrupted(path, repeats=6, watch=seen.append)
    assert seen[0].done == len(finished.cells)
    assert whole.select(cell=finished.cells).to_table().equals(finished.to_table())
    straight = uninterrupted(tmp_path / "straight" / "results.parquet", repeats=6)
    assert without_times(whole).equals(without_times(straight))


def test_full_disk_keeps_written_results_and_prints_one_sentence(tmp_path):
    path = tmp_path / "out" / "results.parquet"
    path.parent.mkdir()
    first = uninterrupted(path, names=["again"])
    room = path.stat().st_size + 300

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    process = start(path, stderr=subprocess.PIPE, preexec_fn=little_room)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "cannot be written (File too large); make room or choose another folder" in err.splitlines()[-1]
    finished = read_results(path)
    assert finished.select(cell=first.cells).to_table().equals(first.to_table())
    assert [item.name for item in path.parent.iterdir()] == ["results.parquet"]


def test_ctrl_c_keeps_finished_cells_and_prints_how_to_resume(tmp_path):
    (tmp_path / "grid.toml").write_text(
        'data = "synthetic"\nrepeats = 200\n[shared]\nn_rounds = 20\n'
        '[experiments.a]\n[[experiments.a.runs]]\nmethod = "dp_admm"\nepsilon = 1.0\n'
    )
    files = ["--grid", str(tmp_path / "grid.toml"), "-o", str(tmp_path / "out")]
    process = subprocess.Popen(
        [sys.executable, "-m", "reproduction", "run", *files, "--no-figures", "--workers", "1"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    path = tmp_path / "out" / "results.parquet"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        family = psutil.Process(process.pid).children(recursive=True)
        if path.exists():
            break
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to the whole process group
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert err.count("\n") == 1
    done = len(read_results(path).cells)
    assert err.startswith(f"dpadmm: interrupted with {done} of 200 runs finished; run the same command again")
    assert 0 < done < 200
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []
