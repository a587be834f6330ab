"""``dpadmm describe``: private statistics of a table, before any model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer import Argument, Option

from dpadmm.cli import owner_report
from dpadmm.cli.console import (
    EXPERIMENT,
    NO_LEDGER,
    TABLE_KINDS,
    AsJson,
    Decimal,
    Encoding,
    Quiet,
    Separator,
    check_free,
    opened_table,
    privacy_report_path,
    show,
    waiting,
    write,
    write_json,
)
from dpadmm.errors import StudyError
from dpadmm.methods import StatisticsRelease
from dpadmm.models.description import Description, description_of, load_description
from dpadmm.rendering import Rendering
from dpadmm.studies.checks import study_warnings
from dpadmm.studies.reading import read_study
from dpadmm.training.train import encode, run_study

FIGURE = "statistics"


def describe(
    study_file: Path = Argument(
        ..., help='A study of kind = "statistics", or a file of its results (.json) to show.', metavar="STUDY"
    ),
    data: Path | None = Option(None, "--data", "-d", help=f"Table: {TABLE_KINDS}.", metavar="TABLE"),
    by: str | None = Option(None, help="Column that identifies the owner of each row."),
    agents: int | None = Option(
        None, "--agents", "-n", help="Number of agents; rows are assigned at random.", show_default="1", min=1
    ),
    output: Path = Option(
        Path("statistics.json"), "--output", "-o", help="Results file. The privacy report is written next to it."
    ),
    figure: Path | None = Option(None, help="Folder for a figure (.png and .svg).", metavar="FOLDER"),
    seed: int | None = Option(
        None, "--seed", help="Use reproducible noise without privacy protection, for experiments.", min=0
    ),
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    overwrite: bool = Option(False, "--overwrite", help="Replace existing results."),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Release private statistics of a table: counts, means, quantiles, tables.

    Bins and bounds are those of the study's columns. Counts are consistent
    with each other, and standard errors include the privacy noise.
    """
    silent, extra, files = quiet or as_json, Rendering(), list[str]()
    if study_file.suffix.lower() == ".json":
        if data is not None or by is not None or agents is not None or seed is not None:
            raise StudyError(f"{study_file} already has results; --data, --by, --agents and --seed need a study")
        description = load_description(study_file)
    else:
        table = None if data is None else opened_table(data, separator, decimal, encoding)
        description, extra = _release(study_file, table, by, agents, output, seed, overwrite, silent=silent)
        files = [f"Results:        {output}", f"Privacy report: {privacy_report_path(output)}"]
    if figure is not None:
        from dpadmm.figures.description import description_figure  # slow: imports matplotlib
        from dpadmm.figures.style import save_figure

        pictures = save_figure(description_figure(description), figure / FIGURE)
        files.append(f"Figure:         {' and '.join(map(str, pictures))}")
    if as_json:
        return show(description, as_json=True)
    rendering = description.rendering()
    rendering = rendering.extend(*extra.body, notes=extra.notes, warnings=extra.warnings, next_steps=files)
    return show(rendering, quiet=quiet)


def _release(
    study_file: Path,
    data: Any,
    by: str | None,
    agents: int | None,
    output: Path,
    seed: int | None,
    overwrite: bool,
    *,
    silent: bool,
) -> tuple[Description, Rendering]:
    """Run the study, write its files, and return the result with the counts for the owner of the table."""
    study = read_study(study_file)
    if study.kind != StatisticsRelease.name:
        raise StudyError(f'{study_file}: describe needs kind = "statistics"; use dpadmm train for this study')
    if data is None:
        raise StudyError("--data is required: name the table to describe")
    if by is not None and agents is not None:
        raise StudyError("--by and --agents cannot be combined: --by defines the agents")
    check_free(output, privacy_report_path(output), overwrite=overwrite)
    with waiting("reading the table", quiet=silent):
        rows = encode(study, data, by=by)
    result = run_study(study, rows, n_agents=agents or 1, seed=seed)
    description = description_of(result, all_count=True)
    write_json(output, description.to_dict())
    write(privacy_report_path(output), result.privacy.to_bytes())
    warnings = [f"{text}." for text in study_warnings(study, description.released.n_rows)]
    notes = [NO_LEDGER if seed is None else EXPERIMENT]
    return description, owner_report.describe(rows.report, data).extend(warnings=warnings, notes=notes)
