"""``dpadmm predict``: a model's answers for every row of a table, of any size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import typer
from rich.console import Console

from dpadmm.cli import owner_report
from dpadmm.cli.screen import say, say_path
from dpadmm.cli.waiting import waiting
from dpadmm.errors import DataError, StudyError
from dpadmm.files import atomic_file
from dpadmm.model import Model
from dpadmm.model_loading import load_model
from dpadmm.model_tables import Scorer

ModelFile = Annotated[
    Path, typer.Argument(help="A file that train wrote.", show_default=False, metavar="MODEL")
]
PREDICTION = "prediction"


def predict(
    model_file: ModelFile,
    data: Annotated[
        Path,
        typer.Option("--data", "-d", help="Table: .csv or .parquet.", show_default=False, metavar="TABLE"),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Table to write: .csv or .parquet.", show_default=False)
    ],
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", help="Column to carry over, such as an id; repeatable.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
) -> None:
    """Predict every row of a table, in its order.

    Written are the columns to keep, the prediction in the label's own classes
    or units, and the probability of every class where the model has any.
    """
    model, kept = load_model(model_file), list(dict.fromkeys(keep or ()))
    suffix = output.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise StudyError(f"{output}: predictions are written as .csv or .parquet")
    if output.is_dir() or (output.exists() and not overwrite):
        raise StudyError(f"{output} exists; choose another name with -o, or say --overwrite")
    if clash := set(kept) & set(added_columns(model)):
        raise StudyError(f"the column {clash.pop()!r} cannot be kept: a column of predictions is called so")
    scorer = Scorer(model)
    with waiting(f"predicting {data}", quiet=quiet), atomic_file(output) as out:
        _write(out, suffix, _tables(model, scorer, data, kept))
    if not quiet:
        console = Console()
        for sentence in owner_report.worries(scorer.report, data):
            say(console, f"Warning: {sentence}", style="bold")
        say_path(console, f"{scorer.report.rows:,} predictions: {output}")


def added_columns(model: Model) -> list[str]:
    """Names of the columns that are written beside those that are kept."""
    chances = model.class_names if model.has_probabilities else ()
    return [PREDICTION, *(f"probability {name}" for name in chances)]


def _tables(model: Model, scorer: Scorer, data: Path, keep: list[str]) -> Iterator[Any]:
    for each in model.predict_batches(data, keep=keep, scorer=scorer):
        columns = [] if each.probabilities is None else list(each.probabilities.T)
        arrays = [pa.array(values) for values in (each.predictions, *columns)]
        names = [*each.kept.schema.names, *added_columns(model)]
        yield pa.record_batch([*each.kept.columns, *arrays], names=names)


def _write(out: IO[bytes], suffix: str, batches: Iterator[Any]) -> None:
    first = next(batches, None)
    if first is None:
        raise DataError("the table has no rows")
    make = pa.csv.CSVWriter if suffix == ".csv" else pa.parquet.ParquetWriter
    with make(out, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
