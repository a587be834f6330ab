"""``python -m reproduction run`` and ``report``: the paper's experiments, figures, tables and claims.

Three stages that share only files: grid (TOML), results (Parquet), figures and tables.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, Typer

from dpadmm.cli import InterruptedRunError, run_app
from dpadmm.cli.console import AsJson, CtrlC, echo_json, echo_path, progress_bar, show
from dpadmm.cli.simulate_options import open_dataset
from dpadmm.data import Dataset
from dpadmm.errors import DataError, StudyError
from dpadmm.methods.prior import Prior
from dpadmm.rendering import Column, Rendering, Table
from dpadmm.training.run_folder import check_folder, write_text
from reproduction import paper_grid
from reproduction.grid import ExperimentGrid, read_grid
from reproduction.results import REFUSED, Results, read_results
from reproduction.runner import Progress, run_grid

app = Typer(
    name="reproduction",
    help="The paper's experiments: run a grid of experiments, then write figures, tables, claims and one page.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
PROGRAM = ("python", "-m", "reproduction")
RESULTS = "results.parquet"
Workers = Annotated[int | None, Option(help="Processes, one core each.", show_default="all cores")]
Scheduler = Annotated[
    str | None,
    Option(help="Run on the workers of this Dask scheduler, such as tcp://10.0.0.5:8786.", show_default=False),
]
Restart = Annotated[bool, Option("--overwrite", help="Replace other results in the folder.")]


@app.command()
def run(
    names: list[str] | None = Argument(
        None, help="fig1 fig2 fig3 fig4 fig6 fig7 table3 bounds choices schedule lambda, or all.", show_default="all"
    ),
    output: Path = Option(Path("runs/paper"), "--output", "-o", help="Folder for results, figures, tables."),
    grid_file: Path | None = Option(None, "--grid", help="Grid file (TOML) instead of the paper's."),
    workers: Workers = None,
    scheduler: Scheduler = None,
    repeats: int | None = Option(None, help="Random splits per run.", show_default="10"),
    overwrite: Restart = False,
    no_figures: bool = Option(False, "--no-figures", help="Write the results file only."),
    as_json: AsJson = False,
) -> None:
    """Run the paper's experiments and draw its figures and tables.

    After an interruption, run the same command again: finished runs are in the results file and are not
    repeated. A larger --repeats extends a folder and runs only what is missing.
    """
    if repeats is not None and repeats < 1:
        raise StudyError(f"repeats must be a whole number of at least 1, not {repeats}")
    grid = read_grid(grid_file, repeats=repeats) if grid_file else paper_grid(repeats=repeats)
    chosen = None if not names or "all" in names else grid.validated(names)
    check_results_folder(output, overwrite=overwrite)
    results = run_with_progress(
        grid,
        data_of(grid),
        output,
        names=chosen,
        workers=workers,
        scheduler=scheduler,
        overwrite=overwrite,
        quiet=as_json,
    )
    lines = [results.select(name).last() for name in chosen or results.experiments]
    if lines and all((line.frame["status"] == REFUSED).all() for line in lines):
        reasons = dict.fromkeys(reason for refused in lines for reason in refused.frame["reason"])
        raise StudyError(f"all of these runs were refused; {'; '.join(map(str, reasons))}")
    written = []
    if not no_figures:
        from reproduction.report import write_all  # importing matplotlib is slow

        written = write_all(results, output)
    shown = summary(results, chosen)
    if as_json:
        files = [str(path) for path in (output / RESULTS, *written)]
        echo_json({"experiments": shown, "files": files})
    else:
        _show(shown, output, written)


def summary(results: Results, names: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """Return title, number of runs, number of refused runs and total time (s) of each experiment."""
    out = {}
    for name in names or results.experiments:
        last = results.select(name).last()
        out[name] = {
            "title": results.grid["experiments"][name]["title"],
            "runs": len(last),
            "refused": int((last.frame["status"] == REFUSED).sum()),
            "seconds": float(last.frame["wall_seconds"].sum()),
        }
    return out


def _show(shown: dict[str, dict[str, Any]], output: Path, written: list[Path]) -> None:
    rows = []
    for name, about in shown.items():
        minutes, seconds = divmod(round(about["seconds"]), 60)
        rows.append((name, about["title"], about["runs"], about["refused"] or "", f"{minutes}:{seconds:02d}"))
    columns = [Column("", ""), Column("", "experiment")]
    columns += [Column("", title, align="right") for title in ("runs", "refused", "time")]
    note = (
        "Runs shared by several experiments were executed once and are counted in each. Refused: the method "
        "does not apply. Time is summed over cores."
    )
    files = [f"Results: {output / RESULTS}"]
    if written:
        files.append(f"Figures, tables and claims: {output} ({len(written)} files)")
        files.append(f"HTML report: python -m reproduction report {output} -o {output / 'report.html'}")
    show(Rendering(body=[Table(columns, rows)], notes=[note], next_steps=files))


def check_results_folder(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder with other files before the first run."""
    check_folder(folder, overwrite=True)
    if overwrite or (folder / RESULTS).exists() or not folder.is_dir():
        return
    if any(not path.name.startswith(".") for path in folder.iterdir()):
        raise DataError(
            f"{folder} is not empty and has no {RESULTS} to resume from; choose another output folder, "
            "or give --overwrite"
        )


def data_of(grid: ExperimentGrid) -> Dataset:
    cells = grid.cells()
    tasks = {cell.settings.loss.task for cell in cells}
    if len(tasks) > 1:
        raise StudyError(
            f"a grid has one kind of labels, but these losses need {' and '.join(sorted(tasks))}; make two"
        )
    return open_dataset(grid.data, cells[0].settings)


def run_with_progress(
    grid: ExperimentGrid,
    dataset: Dataset,
    folder: Path,
    *,
    names: Sequence[str] | None = None,
    prior: Prior | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    is_kept: bool = True,
) -> Results:
    """Run the missing cells with a progress bar. After Ctrl-C, finished cells stay in the folder."""
    if workers is not None and workers < 1:
        raise StudyError(f"workers must be a whole number of at least 1, not {workers}")
    if workers is not None and scheduler is not None:
        raise StudyError("a scheduler's cluster has its own workers; leave out --workers or --scheduler")
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
            prior=prior,
            workers=workers,
            scheduler=scheduler,
            overwrite=overwrite,
            command=shlex.join([*PROGRAM, *sys.argv[1:]]),
            watch=watch,
            stop=lambda: ctrl_c.pressed,
        )
    if far.done < far.total:
        again = f"; run the same command again to resume; finished runs are in {folder}" if is_kept else ""
        raise InterruptedRunError(f"interrupted with {far.done} of {far.total} runs finished{again}")
    return results


@app.command()
def report(
    results: Path = Argument(..., help="A results file, or its folder."),
    output: Path = Option(
        Path("report.html"),
        "--output",
        "-o",
        help="The file to write: .html, or .md with its figures in a folder next to it.",
    ),
) -> None:
    """Write one page of claims, figures, tables, settings and privacy: self-contained HTML, or Markdown."""
    _check_output(output)
    from reproduction.report import report_html, write_markdown  # importing matplotlib is slow

    lines = read_results(results)
    if output.suffix == ".md":
        write_markdown(lines, output, source=str(results))
    else:
        write_text(output, report_html(lines, source=str(results)))
    echo_path(f"Report: {output}")


def _check_output(output: Path) -> None:
    """Refuse an invalid output path before figures are drawn."""
    if output.is_dir():
        raise DataError(f"{output} is a folder; give a file, such as -o {output / 'report.html'}")
    if output.suffix not in (".html", ".htm", ".md"):
        raise DataError(f"{output} must end in .html or .md, the two kinds of page")
    check_folder(output.parent, overwrite=True)


if __name__ == "__main__":
    run_app(app)
