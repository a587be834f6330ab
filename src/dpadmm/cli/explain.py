"""``dpadmm explain``: a model's coefficients in the units of the columns, and what of them may be noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpadmm.cli.predict import ModelFile
from dpadmm.cli.screen import say, say_path, table
from dpadmm.cli.waiting import waiting
from dpadmm.explanation import AGAINST_AVERAGE, Coefficient, Explanation
from dpadmm.explanation import explain as explanation_of
from dpadmm.model_loading import load_model

TOP = 20
FIGURE = "coefficients"
NUMBERS = ("coefficient", "± wobble", "over range", "")
WOBBLE = (
    "± is the wobble: the standard deviation of the coefficient if the same rows were trained on again with "
    "fresh privacy noise, estimated from public values alone. It is not the sampling error: with other "
    "people's rows coefficients would differ more. noise?: below two wobbles, the coefficient may be noise."
)


def explain(
    model_file: ModelFile,
    top: Annotated[int, typer.Option("--top", help="Show so many coefficients.", min=1)] = TOP,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure", help="Folder for a figure (png, svg).", show_default=False, metavar="FOLDER"
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="All coefficients, as plain JSON on standard output.")
    ] = False,
) -> None:
    """Coefficients in the units of the columns, largest effect first.

    Each with its wobble: the standard deviation that privacy noise alone gives
    it. The wobble is estimated from the model's file; no rows are read.
    """
    model = load_model(model_file)
    with waiting("estimating the wobble", quiet=as_json):
        found = explanation_of(model)
    if figure is not None:
        _draw(found, figure, top, model_file)
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2, allow_nan=False))
        return
    console = Console()
    say(console, f"What the columns do to: {found.score}", style="bold")
    console.print(_table(found, top))
    for sentence in in_words(found, top):
        say(console, sentence)
    if figure is not None:
        say_path(console, f"Figure: {figure / f'{FIGURE}.png'}")


def in_words(found: Explanation, top: int) -> list[str]:
    """What the table means."""
    against = any(each.per == AGAINST_AVERAGE for each in found.coefficients)
    rest = len(found.coefficients) - top
    return [
        *([f"{rest:,} more coefficients with smaller effects; --top shows more."] if rest > 0 else []),
        "A coefficient is the change of the score when the column changes as said and all others stay; the "
        "score of a row is the intercept plus coefficient × value over all columns. Sorted by the change "
        "over the column's whole range.",
        *(["Categories and bins: against the average over the column's public values."] if against else []),
        *([found.shortened] if found.shortened else []),
        f"No wobble is shown: {found.unknown}." if found.unknown else WOBBLE,
    ]


def _table(found: Explanation, top: int) -> Table:
    classes = any(each.output for each in found.coefficients)
    heads = ["column", *(["class"] if classes else []), "change", *NUMBERS]
    out = table(*heads)
    for column in out.columns[: -len(NUMBERS)]:
        column.justify, column.overflow = "left", "fold"
    for column in out.columns[-len(NUMBERS) - 1 :]:
        column.no_wrap = True
    for each in found.coefficients[:top]:
        out.add_row(*_cells(each, classes=classes))
    out.add_section()
    for each in found.intercepts:
        out.add_row(*_cells(each, classes=classes, intercept=True))
    return out


def _cells(each: Coefficient, *, classes: bool, intercept: bool = False) -> list[Text]:
    wobble = "–" if each.wobble is None else f"{each.wobble:.2g}"
    mark = "noise?" if each.may_be_noise and not intercept else ""
    texts = [
        each.name,
        *([each.output] if classes else []),
        each.per,
        f"{each.coefficient:+.3g}",
        wobble,
        "" if intercept else f"{each.effect:+.3g}",
        mark,
    ]
    return [Text(text) for text in texts]


def _draw(found: Explanation, folder: Path, top: int, model_file: Path) -> None:
    from dpadmm.reporting.coefficients import coefficient_figure  # matplotlib takes its time
    from dpadmm.reporting.convergence import save_figure

    save_figure(coefficient_figure(found, top=top, title=model_file.name), folder / FIGURE)
