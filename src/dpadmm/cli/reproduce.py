"""``dpadmm reproduce``: the paper's figures and tables, from a grid through runs to pictures.

Three stages that know only each other's files: grid (TOML), results (Parquet), figures and tables.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from dpadmm._base.errors import StudyError
from dpadmm.cli.grid_run import RESULTS, check_results_folder, data_of, run_with_progress
from dpadmm.cli.screen import say, say_path, table
from dpadmm.experiments.grid import read_grid
from dpadmm.experiments.results import REFUSED, Results
from dpadmm.paper import paper_grid


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="fig1 fig2 fig3 fig4 fig6 fig7 table3 bounds choices schedule lambda, or all.",
            show_default="all",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for results, figures, tables.")
    ] = Path("runs/paper"),
    grid_file: Annotated[
        Path | None, typer.Option("--grid", help="Your own grid (TOML) in place of the paper's.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Processes, one core each.", show_default="all cores")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option("--repeats", help="Random splits of each run.", show_default="10")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start again where the folder has other results.")
    ] = False,
    no_figures: Annotated[bool, typer.Option("--no-figures", help="Stop after the results file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Run the paper's experiments and draw its figures and tables.

    After an interruption, run the same command again: finished runs are in the results file and are not
    repeated. A larger --repeats extends a folder and runs only what is missing.
    """
    if repeats is not None and repeats < 1:
        raise StudyError(f"repeats must be a whole number of at least 1, not {repeats}")
    grid = read_grid(grid_file, repeats=repeats) if grid_file else paper_grid(repeats=repeats)
    chosen = None if not names or "all" in names else grid.known(names)
    check_results_folder(output, overwrite=overwrite)
    results = run_with_progress(
        grid, data_of(grid), output, names=chosen, workers=workers, overwrite=overwrite, quiet=as_json
    )
    _refuse_nothing(results, chosen)
    written = [] if no_figures else _draw(results, output)
    shown = summary(results, chosen)
    if as_json:
        files = [str(path) for path in (output / RESULTS, *written)]
        typer.echo(json.dumps({"experiments": shown, "files": files}, indent=2, allow_nan=False))
    else:
        _show(shown, output, written)


def summary(results: Results, names: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """Per experiment: title, runs, how many a method refused, and the time they took (s)."""
    out = {}
    for name in names or results.experiments:
        last = results.select(name).last()
        out[name] = {
            "title": results.grid["experiments"][name]["title"],
            "runs": len(last),
            "refused": int(np.sum(last.column("status") == REFUSED)),
            "seconds": float(np.nansum(last.column("wall_seconds").astype(float))),
        }
    return out


def _refuse_nothing(results: Results, names: list[str] | None) -> None:
    """Raise an error if every run was refused."""
    lines = [results.select(name).last() for name in names or results.experiments]
    if lines and all((each.column("status") == REFUSED).all() for each in lines):
        reasons = dict.fromkeys(reason for each in lines for reason in each.column("reason"))
        raise StudyError(f"none of these runs could be made; {'; '.join(map(str, reasons))}")


def _draw(results: Results, folder: Path) -> list[Path]:
    from dpadmm.paper.report import write_all  # matplotlib takes its time

    return write_all(results, folder)


def _show(shown: dict[str, dict[str, Any]], output: Path, written: list[Path]) -> None:
    console = Console()
    out = table("", "what", "runs", "refused", "time")
    out.columns[1].justify = "left"
    for name, about in shown.items():
        minutes, seconds = divmod(round(about["seconds"]), 60)
        refused = str(about["refused"]) if about["refused"] else ""
        out.add_row(name, about["title"], str(about["runs"]), refused, f"{minutes}:{seconds:02d}")
    console.print(out)
    say(
        console,
        "A run that belongs to several experiments was made once and is counted in each. Refused runs are of "
        "methods that do not apply. Time is summed over the cores.",
        style="dim",
    )
    say_path(console, f"Results: {output / RESULTS}")
    if written:
        say_path(console, f"Figures, tables and claims: {output} ({len(written)} files)")
        say_path(console, f"One page of all: dpadmm report {output} -o {output / 'report.html'}")
