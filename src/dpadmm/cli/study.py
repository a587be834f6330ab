"""``dpadmm study``: draft the public contract of a run, check it, and see what it asks of every agent."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from dpadmm._base.errors import StudyError
from dpadmm._base.files import atomic_file
from dpadmm._base.toml import read_toml
from dpadmm.cli.columns import columns_table, counts_of, show_survey, surveyed
from dpadmm.cli.drafts import draft_in_words, drafted, without
from dpadmm.cli.problems import show_problems
from dpadmm.cli.screen import rounded_up, say, say_path, table
from dpadmm.privacy.accounting import exact_epsilon
from dpadmm.privacy.composition import tally_paper_epsilon
from dpadmm.privacy.plan import gaussian
from dpadmm.study.study import Study, confirmations, read_study, study_problems

study_app = typer.Typer(help="A study: the public contract of a run.", no_args_is_help=True)

StudyFile = Annotated[
    Path, typer.Argument(help="The study's TOML file.", show_default=False, metavar="STUDY")
]
Json = Annotated[bool, typer.Option("--json", help="Plain JSON on standard output.")]


@study_app.command("new")
def new(
    file: Annotated[Path, typer.Argument(help="The file to write.", show_default=False, metavar="FILE")],
    from_table: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="TABLE", help="A public or dummy table (.csv, .parquet). Never private rows."
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option("--label", metavar="COLUMN", help="The column to predict.")
    ] = None,
    dictionary: Annotated[
        Path | None,
        typer.Option(
            "--from-dictionary",
            metavar="DICT.csv",
            help="A data dictionary: a line for every column, with name, kind, low, high, values (a|b|c), "
            "description.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="COLUMN", help="A column that says whose a row is: left out."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="TEXT", help="The study's name.")] = None,
) -> None:
    """Write a study with comments, to be changed: an example, or drafted for your columns.

    What was read off a table is marked public = false; the study is refused until you have looked at each
    value and said true. A dictionary is public, and needs no confirmation.
    """
    console = Console()
    if from_table is None and dictionary is None:
        if label is not None or name is not None or by is not None:
            raise StudyError(
                "--label, --by and --name are for drafts: give --from TABLE or --from-dictionary too"
            )
        write_template("study", file)
        say_path(console, f"Written: {file}")
        say(console, "Change it to what you want to ask; then see what it means:")
        say_path(console, f"  dpadmm study show {file}")
        return
    from dpadmm.study.drafting import study_text

    _check_new(file)
    draft = without(drafted(from_table, dictionary, label), by)
    text = study_text(draft, name or f"{draft.label['column']}, by {Path(draft.source).stem}")
    with atomic_file(file) as out:
        out.write(text.encode())
    say_path(console, f"Written: {file}")
    for sentence in draft_in_words(draft):
        say(console, sentence)
    say_path(console, f"  dpadmm study check {file}")


@study_app.command("check")
def check(
    study_file: StudyFile,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="TABLE", help="Also count on your table what would be clamped."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell every problem of a study in a line, not only the first. Exit code 2 if there is one.

    With a table, on its owner's machine: whether it has the columns, and how many cells would be clamped,
    unknown or missing. Those counts are for the owner's eyes only.
    """
    said = read_toml(study_file)
    problems, waiting, survey = study_problems(said), confirmations(said), None
    if not problems and data is not None:
        study = read_study(study_file)
        survey = surveyed(study, data, study.label)
        problems = survey.problems
    if as_json:
        counts = counts_of(survey) if survey else None
        typer.echo(json.dumps({"problems": problems, "table": counts}, indent=2, allow_nan=False))
    else:
        console = Console()
        if survey and survey.rows:
            show_survey(console, read_study(study_file), survey)
        show_problems(console, problems, waiting, place="the table" if survey else "the study")
        if not problems:
            _say_fine(console, read_study(study_file))
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise StudyError(f"{study_file}: {count}")


@study_app.command("schema")
def schema(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The file to write; else it is shown.")
    ] = None,
) -> None:
    """Write the JSON Schema of study files, with which editors complete and check them.

    Editors find it by the first line of a study: #:schema ./study.schema.json
    """
    from dpadmm.study.json_schema import study_schema

    text = json.dumps(study_schema(), indent=2, ensure_ascii=False) + "\n"
    if out is None:
        typer.echo(text, nl=False)
        return
    with atomic_file(out) as file:
        file.write(text.encode())
    say_path(Console(), f"Written: {out}")


@study_app.command("show")
def show(study_file: StudyFile, as_json: Json = False) -> None:
    """Check a study, and show its hash, its columns, its model, its noise and what it costs."""
    study = read_study(study_file)
    if as_json:
        typer.echo(json.dumps(figures(study), indent=2, allow_nan=False))
        return
    console = Console()
    say(console, study.name, style="bold")
    say_path(console, f"Hash, which every agent pins:\n{study.hash}")
    if study.schema is not None:
        console.print(columns_table(study.schema))
    out = table("", "")
    for words, value in _facts(study):
        out.add_row(words, Text(value))  # as it is: names of columns may look like markup
    out.show_header = False
    out.columns[1].justify = "left"
    out.columns[1].overflow = "fold"
    console.print(out)
    for sentence in in_words(study):
        say(console, sentence)


def figures(study: Study) -> dict[str, Any]:
    """All about a study, for programs."""
    terms = study.terms
    mu_squared, paper = terms.plan.mu_squared(), tally_paper_epsilon(terms.plan.tally(), terms.delta)
    return {
        "hash": study.hash,
        "study": study.as_json(),
        "shape": list(study.shape),
        "lipschitz": float(study.problem.loss.lipschitz),
        "noise_multiplier": study.noise_multiplier,
        "n_rounds": terms.plan.n_rounds,
        "plan": terms.plan.as_json(),
        "delta": terms.delta,
        "epsilon_exact": exact_epsilon(math.sqrt(mu_squared), terms.delta),
        "epsilon_paper": None if math.isnan(paper) else paper,
        "mu_squared": float(mu_squared),
    }


def in_words(study: Study) -> list[str]:
    """What is asked of an agent."""
    terms, (d, p) = study.terms, study.shape
    often = "at most once in each of" if study.absences else "once in each of"
    numbers = f"{d * p} numbers" if d * p > 1 else "one number"
    asked = ", and ".join(
        f"{often} {n} rounds the sum of the {gaussian(release).statistic} over all its rows"
        for release, n in terms.plan.tally()
    )
    return [
        f"Asked of an agent: {asked}, with noise, at public numbers that are sent to it ({numbers}). Nothing "
        "else about the rows is asked for.",
        "The ε is for each person with one row at one agent, against everyone who sees all messages of this "
        "study. With k rows μ is k times as large; every owner's own limits and ledger decide.",
    ]


def _facts(study: Study) -> list[tuple[str, str]]:
    settings, numbers = study.settings, figures(study)
    origin = ", ".join(f"{name}: {text}" for name, text in sorted(study.provenance.items()))
    return [
        *_rows_in_words(study),
        ("model", f"{settings.loss.name} loss, {settings.regularizer.name} regularizer"),
        (
            "weights",
            f"{study.shape[0]} × {study.shape[1]}{', one for a constant' if settings.intercept else ''}",
        ),
        ("method", settings.method.name),
        ("rounds", f"{settings.n_rounds}{_absences(study)}"),
        ("bound of a row's gradient c1", f"{numbers['lipschitz']:g}"),
        ("noise multiplier z", f"{numbers['noise_multiplier']:.4f}"),
        ("δ", f"{numbers['delta']:g}"),
        ("total ε, exact", rounded_up(numbers["epsilon_exact"])),
        ("total ε, paper's moments bound", rounded_up(numbers["epsilon_paper"])),
        ("constants", origin or "all of them the defaults"),
    ]


def _absences(study: Study) -> str:
    if not study.absences:
        return ""
    quorum = "" if study.quorum is None else f"; {study.quorum} sites make a round"
    deadline = "" if study.deadline is None else f", after {study.deadline:g} seconds"
    return f", some may be missed{quorum}{deadline}"


def _rows_in_words(study: Study) -> list[tuple[str, str]]:
    """What the rows are made of."""
    names = ", ".join(study.features[:12])
    more = f" and {len(study.features) - 12} more" if len(study.features) > 12 else ""
    classes = "a number" if study.classes is None else ", ".join(map(str, study.classes))
    if study.schema is None or study.label is None:
        if study.classes is None and study.problem.loss.task == "binary":
            classes = "-1, 1"
        return [("columns", f"{len(study.features)}: {names}{more}"), ("label", classes)]
    if study.label.bounds is not None:
        classes = f"a number from {study.label.bounds[0]:g} to {study.label.bounds[1]:g}"
    declared = " (declared)" if study.schema.row_norm is not None else ", the square root of columns"
    return [
        ("label", f"{study.label.column}: {classes}"),
        ("columns", f"{len(study.schema.columns)}, which make {len(study.features)} features"),
        ("features", f"{names}{more}"),
        ("rows are divided by R", f"{study.schema.scale:.4g}{declared}"),
    ]


def _say_fine(console: Console, study: Study) -> None:
    columns = len(study.schema.columns) if study.schema else len(study.features)
    say(console, f"No problem found: {columns} columns, {len(study.features)} features. Hash of the study:")
    say_path(console, study.hash)


def _check_new(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise StudyError(f"{path} exists and is left as it is; choose another name")


def write_template(kind: str, path: Path) -> None:
    """The packaged example of a study or a site, to a file that must be new."""
    _check_new(path)
    with atomic_file(path) as out:
        out.write(files(f"dpadmm.{kind}").joinpath("templates", f"{kind}.toml").read_bytes())
