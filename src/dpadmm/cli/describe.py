"""``dpadmm describe``: private statistics of a table, before any model."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text
from typer import Argument, Option

from dpadmm.cli import owner_report
from dpadmm.cli.console import (
    TABLE_KINDS,
    AsJson,
    Quiet,
    Row,
    check_free,
    echo,
    echo_json,
    echo_path,
    show_table,
    waiting,
    write,
    write_json,
)
from dpadmm.cli.train import EXPERIMENT, NO_LEDGER, privacy_report_path
from dpadmm.errors import StudyError
from dpadmm.methods import StatisticsRelease
from dpadmm.models.description import ColumnSummary, Description, TwoWay, description_of, load_description
from dpadmm.studies.checks import study_warnings
from dpadmm.studies.reading import read_study
from dpadmm.training.train import encode, run_study

FIGURE = "statistics"
MOST_VALUES, MOST_ACROSS = 12, 7


def describe(
    study_file: Path = Argument(
        ..., help='A study of kind = "statistics", or a file of its results (.json) to show.', metavar="STUDY"
    ),
    data: Path | None = Option(None, "--data", "-d", help=f"Table: {TABLE_KINDS}.", metavar="TABLE"),
    by: str | None = Option(None, help="The column with the agent of each row."),
    agents: int | None = Option(
        None, "--agents", "-n", help="Number of agents; the rows are split at random.", show_default="1", min=1
    ),
    output: Path = Option(
        Path("statistics.json"), "--output", "-o", help="The results' file; the privacy statement is written beside it."
    ),
    figure: Path | None = Option(None, help="Folder for a figure (png, svg).", metavar="FOLDER"),
    seed: int | None = Option(
        None, "--seed", help="For experiments only: reproducible, simulated noise without any protection.", min=0
    ),
    overwrite: bool = Option(False, "--overwrite", help="Replace existing results."),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Release private statistics of a table: counts, means, quantiles, tables.

    Bins and bounds are those of the study's columns. Counts agree with each
    other, and standard errors count the privacy noise.
    """
    silent = quiet or as_json
    if study_file.suffix.lower() == ".json":
        if data is not None or by is not None or agents is not None or seed is not None:
            raise StudyError(f"{study_file} has results already: --data, --by, --agents and --seed are for a study")
        found = load_description(study_file)
    else:
        found = _released(study_file, data, by, agents, output, seed, overwrite, silent=silent)
    if figure is not None:
        from dpadmm.figures.description import description_figure  # matplotlib takes its time
        from dpadmm.figures.style import save_figure

        pictures = save_figure(description_figure(found), figure / FIGURE)
    if as_json:
        echo_json(found.as_json())
    elif not quiet:
        show(found)
        if data is not None:
            exact = seed is None
            echo(NO_LEDGER if exact else EXPERIMENT, style=None if exact else "bold")
            echo_path(f"Results:   {output}", f"Statement: {privacy_report_path(output)}")
        if figure is not None:
            echo_path(f"Figure:    {' and '.join(map(str, pictures))}")


def _released(
    study_file: Path,
    data: Path | None,
    by: str | None,
    agents: int | None,
    output: Path,
    seed: int | None,
    overwrite: bool,
    *,
    silent: bool,
) -> Description:
    study = read_study(study_file)
    if study.kind != StatisticsRelease.name:
        raise StudyError(f'{study_file}: describe is for studies that say kind = "statistics"; train is for this one')
    if data is None:
        raise StudyError("say which table to describe: --data TABLE")
    if by is not None and agents is not None:
        raise StudyError("--by and --agents cannot be combined: --by defines the agents")
    check_free(output, privacy_report_path(output), overwrite=overwrite)
    with waiting(f"reading {data}", quiet=silent):
        rows = encode(study, data, by=by)
    result = run_study(study, rows, n_agents=agents or 1, seed=seed)
    found = description_of(result, all_count=True)
    write_json(output, found.as_json())
    write(privacy_report_path(output), result.statement.as_bytes())
    if not silent:
        echo(*(f"Warning: {each}." for each in study_warnings(study, found.released.n_rows)))
        owner_report.show(rows.report, data)
    return found


def show(found: Description) -> None:
    """The tables of a description, and the sentence beside them."""
    rows = f"{found.released.n_rows:,} rows"
    if not found.all_count:
        rows += f", of which about {found.total.value:,.0f} ± {found.total.noise_se:,.0f} count"
    echo(f"{found.study.name}: {rows}", style="bold")
    numbers = [each for each in found.columns.values() if each.mean is not None]
    if numbers:
        headings = ("number", "missing", "mean", "± se", "sd", "25%", "median", "75%")
        show_table(headings, [_number(each) for each in numbers], fold=[0], padding=(0, 1, 0, 0))
        if any(getattr(each.bins.column, "transform", "none") == "log" for each in numbers):
            echo("Of columns marked ln: mean and sd of the logarithm.")
    others = [each for each in found.columns.values() if each.mean is None]
    if others:
        lines: list[Row] = []
        for each in others:
            lines += [*_values(each, found.total.value), ()]
        show_table(("column and value", "rows", "± noise", "share"), lines[:-1], fold=[0])
    for table in found.tables:
        _show_two_way(table)
    echo(found.sentence)


def _number(each: ColumnSummary) -> Row:
    assert each.mean is not None
    assert each.quantiles is not None
    log = getattr(each.bins.column, "transform", "none") == "log"
    told = [each.quantiles[level].value for level in (0.25, 0.5, 0.75)]
    sd = "hidden" if each.sd is None else f"{each.sd.value:.3g}"
    cells = [f"{each.missing:,.0f}", f"{each.mean.value:.4g}", f"{each.mean.se:.2g}", sd, *(f"{x:.4g}" for x in told)]
    return (f"{each.name}{' (ln)' * log}", *cells)


def _values(each: ColumnSummary, total: float) -> list[Row]:
    """A line for every value, for the most frequent ones where there are many."""
    pairs = list(zip(each.bins.labels, each.counts.tolist(), strict=True))
    shown = pairs if len(pairs) <= MOST_VALUES else sorted(pairs[:-1], key=lambda pair: -pair[1])[: MOST_VALUES - 1]
    lines: list[Row] = [(Text(each.name, style="bold"), "", "", "")]
    lines += [
        (f"  {label}", f"{count:,.0f}", f"{each.noise_se:,.0f}", f"{count / total:.1%}") for label, count in shown
    ]
    if len(shown) < len(pairs):
        lines.append((f"  and {len(pairs) - len(shown)} more values", "", "", ""))
    return lines


def _show_two_way(table: TwoWay) -> None:
    one, other = table.pair
    if len(other.labels) > MOST_ACROSS or len(one.labels) > 3 * MOST_VALUES:
        echo(f"{one.name} × {other.name}: {table.counts.size:,} cells, in the file (± {table.noise_se:,.0f}).")
        return
    lines: list[Row] = [
        (label, *(f"{count:,.0f}" for count in row)) for label, row in zip(one.labels, table.counts, strict=True)
    ]
    fold = range(len(other.labels) + 1)
    headings = (f"{one.name} × {other.name}", *other.labels)
    show_table(headings, lines, fold=fold, padding=(0, 1, 0, 0))
    echo(f"Each cell ± {table.noise_se:,.0f} (noise).")
