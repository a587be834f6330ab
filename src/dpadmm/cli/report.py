"""``dpadmm report``: one page about a results file, for people."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dpadmm._base.errors import DataError
from dpadmm._base.files import atomic_file
from dpadmm.cli.screen import say_path
from dpadmm.experiments.results import read_results


def report(
    results: Annotated[
        Path,
        typer.Argument(
            help="A results file of reproduce or compare, or the folder it is in.", show_default=False
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="The file to write: .html, or .md with its figures in a folder beside."
        ),
    ] = Path("report.html"),
) -> None:
    """One page of claims, figures, tables, settings and privacy: self-contained HTML, or Markdown."""
    _check_output(output)
    from dpadmm.paper.report import report_html, write_markdown  # matplotlib takes its time

    lines = read_results(results)
    if output.suffix == ".md":
        write_markdown(lines, output, source=str(results))
    else:
        page = report_html(lines, source=str(results)).encode()
        with atomic_file(output) as out:
            out.write(page)
    say_path(Console(), f"Report: {output}")


def _check_output(output: Path) -> None:
    """Refuse, before anything is drawn, a place that cannot take the report."""
    if output.suffix not in (".html", ".htm", ".md") and not output.is_dir():
        raise DataError(f"{output} must end in .html or .md, which says what kind of page to write")
    if output.is_dir():
        raise DataError(f"{output} is a folder; give a file, such as -o {output / 'report.html'}")
    nearest = next(path for path in output.absolute().parents if path.exists())
    if not nearest.is_dir():
        raise DataError(f"{output} cannot be made, since {nearest} is a file; choose another name")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise DataError(f"{output} cannot be written to; choose another name")
