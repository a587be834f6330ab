"""Options shared by commands, progress on stderr, and text and tables on stdout."""

from __future__ import annotations

import json
import signal
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text
from typer import Argument, Option

from dpadmm.cli import InterruptedRunError as InterruptedRunError
from dpadmm.errors import StudyError, TableError
from dpadmm.files.atomic import atomic_file
from dpadmm.parameters.text import printable
from dpadmm.rendering import Cell, Column, Facts, Paragraph, Renderable, Rendering, Table

if TYPE_CHECKING:
    from rich.progress import Progress

    from dpadmm.engine.loop import Observer, RoundView
    from dpadmm.federation.health import Alarm

Separator = Annotated[
    str | None,
    Option("--separator", help="Separator of a .csv or .tsv: , ; | or tab.", metavar="MARK", show_default="detected"),
]
Decimal = Annotated[
    str | None,
    Option("--decimal", help="Decimal mark of a .csv or .tsv: . or ,", metavar="MARK", show_default="detected"),
]
Encoding = Annotated[
    str | None,
    Option(
        "--encoding", help="Encoding of a .csv or .tsv, such as cp1252.", metavar="NAME", show_default="UTF-8 or UTF-16"
    ),
]
AsJson = Annotated[bool, Option("--json", help="Print JSON to standard output.")]
StudyFile = Annotated[Path, Argument(help="Study file (TOML).", metavar="STUDY")]
TABLE_KINDS = ".csv, .tsv (also .gz), .xlsx, .ods, .parquet, .arrow, a folder of these, or a .toml file for a database"
TableFile = Annotated[Path, Option("--data", "-d", help=f"Table: {TABLE_KINDS}.", metavar="TABLE")]
LogForm = Annotated[Literal["text", "json"], Option("--log", help="Format of log lines.")]
Metrics = Annotated[
    str | None,
    Option("--metrics", help="Serve Prometheus metrics at /metrics, on PORT (this machine only) or ADDRESS:PORT."),
]
Health = Annotated[bool, Option("--health", help="Health check: print alarms; exit code 1 if one is an error.")]
Live = Annotated[bool, Option("--live", help="Like --health, but check only that the process is alive.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Show no progress and no summary.")]
NoPublic = Annotated[bool, Option("--no-public", help="Ignore the study's public rows.")]


def opened_table(path: Path, separator: str | None, decimal: str | None, encoding: str | None) -> Any:
    """Return a table with the dialect that options give, or the path without options."""
    if separator is None and decimal is None and encoding is None:
        return path
    from dpadmm.data.dialect import Dialect
    from dpadmm.data.reader import open_table

    return open_table(path, Dialect.of(separator, decimal, encoding))


def chosen_public(public: Path | None, no_public: bool) -> Path | Literal[False] | None:
    """Return the table of public rows, False to ignore public rows, or None for the study's own."""
    if public is not None and no_public:
        raise StudyError("--public and --no-public cannot be combined")
    return False if no_public else public


def exit_with_health(alarms: Sequence[Alarm], *, only_live: bool) -> None:
    """Print the alarms, or only that the process does not run. Exit with code 1 if one of them is an error."""
    chosen = [alarm for alarm in alarms if not only_live or alarm.code == "not-running"]
    for alarm in chosen:
        echo_path(alarm.line)
    if any(alarm.level == "error" for alarm in chosen):
        raise typer.Exit(1)
    echo("healthy")


def alarms_json(alarms: Sequence[Alarm]) -> dict[str, Any]:
    healthy = not any(alarm.level == "error" for alarm in alarms)
    return {"healthy": healthy, "alarms": [alarm._asdict() for alarm in alarms]}


def echo_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


@contextmanager
def progress(total_rounds: int | None, text: str, *, quiet: bool) -> Iterator[Observer]:
    """Show a transient progress bar of rounds. None takes the total from the observed run.

    Ctrl-C takes effect at the end of a round, or immediately if pressed twice.
    """
    with progress_bar(quiet=quiet) as bar, announced_compilation(bar.console, quiet=bar.disable), CtrlC() as ctrl_c:
        task = bar.add_task(text, total=total_rounds)

        def advance(view: RoundView) -> None:
            bar.update(task, advance=1, total=view.n_rounds if total_rounds is None else total_rounds)
            if ctrl_c.pressed:
                raise KeyboardInterrupt

        yield advance


def progress_bar(*, quiet: bool) -> Progress:
    """Return a progress bar with counts and the remaining time, on stderr if that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)


@contextmanager
def announced_compilation(console: Console, *, quiet: bool = False) -> Iterator[None]:
    """Print a line when the compiler starts."""
    from dpadmm.kernels import compilation_listeners  # imports NumPy

    def announce() -> None:
        compilation_listeners.remove(announce)
        console.print("Compiling numerical code for this machine (once, about 10 seconds)", style="dim")

    if not quiet:
        compilation_listeners.append(announce)
    try:
        yield
    finally:
        if announce in compilation_listeners:
            compilation_listeners.remove(announce)


@contextmanager
def waiting(text: str, *, quiet: bool) -> Iterator[None]:
    """Show a spinner on stderr if that is a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with console.status(Text(printable(text))), announced_compilation(console):
        yield


class CtrlC:
    """Records the first Ctrl-C, which would be lost or do damage during a compilation."""

    def __init__(self) -> None:
        self.pressed = False
        self._previous_handler = signal.getsignal(signal.SIGINT)

    def __enter__(self) -> CtrlC:
        if self._previous_handler is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._record)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous_handler is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._previous_handler)

    def _record(self, number: int, frame: FrameType | None) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True


def echo(*lines: str, style: str | None = None, err: bool = False) -> None:
    """Print lines, wrapped at the width of the terminal and escaped by :func:`_plain_text`."""
    for text in lines:
        Console(stderr=err).print(_plain_text(text), style=style)


def echo_path(*lines: str) -> None:
    """Print lines without wrapping, so that paths and commands can be copied."""
    for text in lines:
        Console().print(_plain_text(text), soft_wrap=True)


NO_LEDGER = "Not recorded in a ledger. Further releases from the same rows, including another run, add to this ε."
EXPERIMENT = "Seeded noise: a reproducible experiment without privacy protection."


def privacy_report_path(output: Path) -> Path:
    """Return ``m.privacy.json`` for ``m.dpadmm`` or ``m.json``."""
    return output.with_name(f"{output.name.removesuffix('.json').removesuffix('.dpadmm')}.privacy.json")


def _plain_text(text: str, style: str = "") -> Text:
    """Return text for a terminal: markup is not interpreted, control and format characters are escaped.

    All output of commands passes through this function or through JSON, because it may contain names from untrusted
    files.
    """
    return Text(printable(text), style)


STYLES = {"bold": "bold", "dim": "dim", "good": "bold green", "warning": "bold yellow", "bad": "bold red"}
"""Styles of a rendering on a terminal."""


def show_problems(error: TableError) -> None:
    """Print one table of all problems of a table to standard error, without cells."""
    from dpadmm.data.problems import problems_table

    table = problems_table(error.problems)
    with redirect_stdout(sys.stderr):
        _print_table(table.columns, table.shown_rows(), table.alignments)


def show(result: Rendering | Renderable, *, as_json: bool = False, quiet: bool = False) -> None:
    """Print a result to standard output: for people, or as JSON."""
    if as_json:
        return echo_json(result.to_dict())
    if quiet:
        return None
    rendering = result.rendering() if isinstance(result, Renderable) else result
    if rendering.title:
        echo(rendering.title, style="bold")
    labels = [fact.label for block in rendering.body if isinstance(block, Facts) for fact in block.facts]
    label_width = max((len(label) for label in labels if label is not None), default=0)
    for block in rendering.body:
        match block:
            case Paragraph():
                _show_paragraph(block)
            case Facts():
                columns = [Column("", "", wrap=False), Column("", ""), Column("", "")]
                _print_table(columns, block.shown_rows(), ["left"] * 3, title=block.title, min_width=label_width)
            case Table():
                shown = [column for column in block.columns if column.title is not None]
                _print_table(
                    shown, block.shown_rows(), block.alignments, title=block.title, caption=block.caption or None
                )
    echo(*rendering.notes, style="dim")
    echo(*(f"Warning: {text}" for text in rendering.warnings), style=STYLES["warning"])
    if rendering.verdict is not None:
        _show_paragraph(rendering.verdict)
    return echo_path(*rendering.next_steps)


def _show_paragraph(paragraph: Paragraph) -> None:
    echo(paragraph.text, style=STYLES.get(paragraph.style))


def _print_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    alignments: Sequence[str],
    *,
    title: str = "",
    caption: str | None = None,
    min_width: int | None = None,
) -> None:
    """Print a table; without headings as an indented list. The first column has at least ``min_width`` characters."""
    from rich import box  # an agent prints no tables
    from rich.padding import Padding
    from rich.table import Table as RichTable

    if any(column.title for column in columns):
        out, indent = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption_justify="left"), 0
    else:
        out, indent = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False), 2
    if title:
        echo(title, style="bold")
    if caption:
        out.caption = _plain_text(caption, "table.caption")
    n_columns = max(map(len, rows), default=len(columns))
    headings = [printable(column.title or "") for column in columns[:n_columns]]
    cell_widths = [max((len(row[i].text or "") for row in rows if row), default=1) for i in range(n_columns)]
    fits = sum(map(max, cell_widths, map(len, headings))) + 2 * n_columns <= Console().width
    for column, heading, width, align in zip(columns, headings, cell_widths, alignments, strict=False):
        justify: Any = align
        is_whole = align == "right" or not column.wrap
        if is_whole and not fits:  # the heading wraps, the cells do not
            longest_word = max(map(len, heading.split()), default=1)
            heading = "\n".join(textwrap.wrap(heading, max(width, longest_word), break_on_hyphens=False))
        out.add_column(Text(heading), justify=justify, overflow="fold", no_wrap=is_whole)
    out.columns[0].min_width = min_width
    for row in rows:
        if row:
            out.add_row(*(_plain_text(cell.text or "", STYLES.get(cell.style, "")) for cell in row))
        else:
            out.add_section()
    Console().print(Padding(out, (0, 0, 0, indent), expand=False))


def write(path: Path, content: bytes) -> None:
    with atomic_file(path) as out:
        out.write(content)


def write_json(path: Path, value: Any) -> None:
    write(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def check_new(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise StudyError(f"{path} already exists; choose another name")


def check_free(*paths: Path, overwrite: bool) -> None:
    """Raise ``StudyError`` if a file cannot be written. Called before any ε is spent."""
    for path in paths:
        if path.is_dir():
            raise StudyError(f"{path} is a folder; give the name of a file")
        if path.exists() and not overwrite:
            raise StudyError(f"{path} already exists; choose another name with -o, or add --overwrite")
        folder = next(parent for parent in path.parents if parent.exists())
        if not folder.is_dir():
            raise StudyError(f"cannot write {path}: {folder} is not a folder")
