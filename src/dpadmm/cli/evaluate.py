"""``dpadmm evaluate``: how good a model is on a table that is public or one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpadmm.cli import owner_report
from dpadmm.cli.predict import ModelFile
from dpadmm.cli.screen import say, say_path, table
from dpadmm.cli.waiting import waiting
from dpadmm.evaluation import NOT_TO_PUBLISH, Evaluation
from dpadmm.evaluation import evaluate as measure
from dpadmm.model import Model
from dpadmm.model_loading import load_model

WORDS = {
    "accuracy": "accuracy",
    "most_frequent_class": "accuracy of always the most frequent class",
    "auc": "AUC",
    "calibration_error": "calibration error (ECE, 10 bins)",
    "rmse": "root mean square error",
    "mae": "mean absolute error",
    "r2": "R²",
    "loss": "mean loss, as in training",
}
RATES = ("accuracy", "most_frequent_class")
MOST_CLASSES = 8


def evaluate(
    model_file: ModelFile,
    data: Annotated[
        Path,
        typer.Option(
            "--data", "-d", help="Table with labels: .csv or .parquet.", show_default=False, metavar="TABLE"
        ),
    ],
    label: Annotated[
        str | None,
        typer.Option(
            "--label", help="Column of the label, if the table calls it otherwise.", show_default=False
        ),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure", help="Folder for a figure (png, svg).", show_default=False, metavar="FOLDER"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Plain JSON on standard output.")] = False,
) -> None:
    """Accuracy, loss, AUC, calibration and confusion matrix on a table with labels.

    Nothing of this has noise on it: the table must be public or your own.
    """
    model = load_model(model_file)
    with waiting(f"reading {data}", quiet=as_json):
        found = measure(model, data, label=label)
    if figure is not None:
        _draw(model, found, figure, data)
    if as_json:
        answer = {**found.as_json(), "owner_only": owner_report.as_json(found.report, data)}
        typer.echo(json.dumps(answer, indent=2, allow_nan=False))
        return
    _show(found, data, figure)


def _draw(model: Model, found: Evaluation, folder: Path, data: Path) -> None:
    from dpadmm.reporting.convergence import save_figure
    from dpadmm.reporting.evaluation import evaluation_figure

    save_figure(evaluation_figure(model, found, f"{data.name}, {found.n_rows:,} rows"), folder / "evaluation")


def _show(found: Evaluation, data: Path, figure: Path | None) -> None:
    console = Console()
    out = table("", "")
    out.columns[0].header = Text(f"on {found.n_rows:,} rows of {data.name}")
    for name, words in WORDS.items():
        if name in found.figures:
            value = found.figures[name]
            shown = "–" if value is None else f"{value:.1%}" if name in RATES else f"{value:.4g}"
            out.add_row(words, shown)
    console.print(out)
    if 0 < len(found.classes) <= MOST_CLASSES:
        console.print(_confusion(found))
    for sentence in owner_report.worries(found.report, data):
        say(console, f"Warning: {sentence}", style="bold")
    say(console, NOT_TO_PUBLISH)
    if figure is not None:
        say_path(console, f"Figure: {figure / 'evaluation.png'}")


def _confusion(found: Evaluation) -> Table:
    out = table("true class, rows predicted as", *("" for _ in found.classes))
    for column, name in zip(out.columns[1:], found.classes, strict=True):
        column.header = Text(str(name))
    for name, counts in zip(found.classes, found.confusion, strict=True):
        out.add_row(Text(str(name)), *(f"{count:,}" for count in counts))
    return out
