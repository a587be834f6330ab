"""Shared by ``reproduce`` and ``compare``: run a grid into a folder and show progress."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from dpadmm._base.errors import DataError, StudyError
from dpadmm.cli.data_options import open_dataset
from dpadmm.cli.screen import CtrlC, Interrupted, progress_bar
from dpadmm.data import Dataset
from dpadmm.experiments.grid import Grid
from dpadmm.experiments.results import Results
from dpadmm.experiments.runner import Progress, run_grid
from dpadmm.reporting.run_folder import check_folder

RESULTS = "results.parquet"


def check_results_folder(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder with other files before anything is computed."""
    check_folder(folder, overwrite=True)
    mine = (folder / RESULTS).exists()
    if (
        not overwrite
        and not mine
        and folder.is_dir()
        and any(not p.name.startswith(".") for p in folder.iterdir())
    ):
        raise DataError(
            f"{folder} is not empty and has no {RESULTS} to go on with; choose another output folder, "
            "or give --overwrite"
        )


def data_of(grid: Grid) -> Dataset:
    """The data set of a grid."""
    cells = grid.cells()
    tasks = {cell.settings.loss.task for cell in cells}
    if len(tasks) > 1:
        raise StudyError(
            f"a grid has one kind of labels, but these losses need {' and '.join(sorted(tasks))}; make two"
        )
    return open_dataset(grid.data, cells[0].settings)


def run_with_progress(
    grid: Grid,
    dataset: Dataset,
    folder: Path,
    *,
    names: Sequence[str] | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    kept: bool = True,
) -> Results:
    """Run the missing cells with a progress bar; after Ctrl-C, finished cells stay in the folder."""
    if workers is not None and workers < 1:
        raise StudyError(f"workers must be a whole number of at least 1, not {workers}")
    with progress_bar(quiet=quiet) as bar, CtrlC() as ctrl_c:
        task = bar.add_task("running", total=None)
        far = Progress(0, 0)

        def watch(progress: Progress) -> None:
            nonlocal far
            far = progress
            bar.update(task, total=progress.total, completed=progress.done)

        results = run_grid(
            grid,
            dataset,
            folder / RESULTS,
            names=names,
            workers=workers,
            overwrite=overwrite,
            command=shlex.join(["dpadmm", *sys.argv[1:]]),
            watch=watch,
            stop=lambda: ctrl_c.pressed,
        )
    if far.done < far.total:
        again = f"; run the same command again to go on, what is finished is in {folder}" if kept else ""
        raise Interrupted(f"interrupted with {far.done} of {far.total} runs finished{again}")
    return results
