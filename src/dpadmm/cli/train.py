"""``dpadmm train``: a study on a table, all agents in this process, with the noise of deployed agents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dpadmm.cli import owner_report
from dpadmm.cli.ledger import rounded_up
from dpadmm.cli.screen import Interrupted, number_range, progress, say, say_path, table
from dpadmm.cli.waiting import waiting
from dpadmm.data.encoded import EncodedTable, encode_table
from dpadmm.errors import StudyError
from dpadmm.files import atomic_file
from dpadmm.model import model_of
from dpadmm.study import Study, read_study
from dpadmm.study_run import StudyResult, run_study

SUFFIX = ".dpadmm"
ADDS_UP = (
    "No ledger was kept: whatever else is released from the same rows, another training included, adds up."
)
EXPERIMENT = "The noise is simulated from a seed: an experiment that can be repeated and protects nobody."


def train(
    study_file: Annotated[
        Path, typer.Argument(help="The study's TOML file.", show_default=False, metavar="STUDY")
    ],
    data: Annotated[
        Path,
        typer.Option("--data", "-d", help="Table: .csv or .parquet.", show_default=False, metavar="TABLE"),
    ],
    by: Annotated[
        str | None,
        typer.Option("--by", help="Column that says which agent a row is of.", show_default=False),
    ] = None,
    agents: Annotated[
        int | None,
        typer.Option("--agents", "-n", help="Deal the rows to so many agents.", show_default="1", min=1),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The model's file; its statement goes beside it.")
    ] = Path("model.dpadmm"),
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            help="For experiments only: simulated noise that can be repeated and protects nobody.",
            show_default="exact noise from the operating system",
            min=0,
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Plain JSON on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
) -> None:
    """Train a study's model on a table, all agents in this process.

    The noise is exact and fresh for every run. Ctrl-C ends the training after
    the round: the model of the rounds done is kept, and charged for all.
    """
    if by is not None and agents is not None:
        raise StudyError("--by says which agent a row is of, so --agents cannot be chosen; leave one out")
    study = read_study(study_file)
    statement = statement_path(output)
    for path in (output, statement):
        _check_free(path, overwrite=overwrite)
    silent = quiet or as_json
    with waiting(f"reading {data}", quiet=silent):
        rows = encode(study, data, by=by)
    with progress(study.settings.n_rounds, "training", quiet=silent) as advance:
        result = run_study(study, rows, n_agents=agents or 1, seed=seed, observers=[advance])
    if not result.outcome.rounds:
        raise KeyboardInterrupt
    with atomic_file(statement) as out:
        out.write(result.statement.as_bytes())
    model_of(result).save(output)
    if as_json:
        typer.echo(json.dumps(_plain(result, rows, data, output), indent=2, allow_nan=False))
    elif not quiet:
        _show(result, rows, data, output)
    if result.interrupted:
        raise Interrupted(
            f"interrupted after {result.outcome.rounds} of {study.settings.n_rounds} rounds; their model is "
            f"in {output}, and charged for all {study.settings.n_rounds}, since whoever ends a run may have "
            "seen why"
        )


def encode(study: Study, data: Path, *, by: str | None = None) -> EncodedTable:
    """The table in the encoding of the study, which must say what its columns are."""
    if study.schema is None:
        raise StudyError(
            "the study has a plain list of features; to train on a table it needs [columns] with public "
            "bounds and values, and a [label] (dpadmm study new drafts them)"
        )
    return encode_table(data, study.schema, study.label, by=by, intercept=study.settings.intercept)


def statement_path(model: Path) -> Path:
    """``m.dpadmm`` -> ``m.statement.json``."""
    return model.with_name(f"{model.name.removesuffix(SUFFIX)}.statement.json")


def _check_free(path: Path, *, overwrite: bool) -> None:
    """Before any ε is spent: there will be a place for what it is spent on."""
    if path.is_dir():
        raise StudyError(f"{path} is a folder; name a file")
    if path.exists() and not overwrite:
        raise StudyError(f"{path} exists; choose another name with -o, or say --overwrite")
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise StudyError(f"{path} cannot be written, since {folder} is not a folder")


def _plain(result: StudyResult, rows: EncodedTable, data: Path, output: Path) -> dict[str, Any]:
    worst = result.statement.as_json()["worst"]
    return {
        "study": {"name": result.study.name, "hash": result.study.hash},
        "model": str(output),
        "statement": str(statement_path(output)),
        "noise": "exact" if result.privacy.exact_noise else "simulated",
        "epsilon": worst["epsilon"][repr(float(result.privacy.delta))],
        "epsilon_paper": worst["epsilon_paper"],
        "delta": result.privacy.delta,
        "agents": dict(zip(_names(result), result.n_rows, strict=True)),
        "rows": sum(result.n_rows),
        "rounds": result.outcome.rounds,
        "interrupted": result.interrupted,
        "owner_only": owner_report.as_json(rows.report, data),
    }


def _names(result: StudyResult) -> list[str]:
    return list(result.names) or [str(i + 1) for i in range(len(result.n_rows))]


def _show(result: StudyResult, rows: EncodedTable, data: Path, output: Path) -> None:
    console, plain = Console(), _plain(result, rows, data, output)
    study, count = result.study, len(result.n_rows)
    who = f"{count} agents of {number_range(result.n_rows, ',d')} rows" if count > 1 else "one agent"
    say(console, f"{study.name}: {sum(result.n_rows):,} rows × {len(study.features)} features, {who}")
    model = f"{study.settings.loss} loss, {study.settings.regularizer} regularizer"
    say(console, f"{study.settings.method}, {model}, {result.outcome.rounds} rounds")
    out = table("what was given away, per person with one row", "")
    out.add_row("total ε, exact", rounded_up(plain["epsilon"]))
    if plain["epsilon_paper"] is not None:
        out.add_row("total ε, paper's moments bound", rounded_up(plain["epsilon_paper"]))
    out.add_row("δ", f"{result.privacy.delta:g}")
    out.add_row("noise multiplier z", number_range(result.privacy.noise_multiplier))
    console.print(out)
    owner_report.show(console, rows.report, data)
    if not result.privacy.exact_noise:
        say(console, EXPERIMENT, style="bold")
    else:
        say(console, ADDS_UP)
    say_path(console, f"Model:     {output}")
    say_path(console, f"Statement: {statement_path(output)}")
