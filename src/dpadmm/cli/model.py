"""``dpadmm predict``, ``evaluate`` and ``explain``: apply, evaluate and explain a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from dpadmm.cli import owner_report
from dpadmm.cli.console import (
    NO_LEDGER,
    TABLE_KINDS,
    AsJson,
    Decimal,
    Encoding,
    Quiet,
    Separator,
    TableFile,
    check_free,
    opened_table,
    privacy_report_path,
    show,
    waiting,
    write,
    write_json,
)
from dpadmm.errors import DataError, StudyError
from dpadmm.files.atomic import atomic_file
from dpadmm.models.file import load_model
from dpadmm.models.model import Model, Scorer
from dpadmm.parameters.text import FORMULA, NUMBER, csv_cell
from dpadmm.rendering import Rendering

if TYPE_CHECKING:
    from dpadmm.data.encoder import Report

ModelFile = Annotated[Path, Argument(help="Model file.", metavar="MODEL")]
PREDICTION = "prediction"
FIGURE = "coefficients"
SEEN_ROWS = "On rows that it was trained on, a model looks better than it is."


def predict(
    model_file: ModelFile,
    data: TableFile,
    output: Path = Option(..., "--output", "-o", help="Table to write: .csv or .parquet."),
    keep: list[str] | None = Option(None, help="Column to copy to the output, such as an id; repeatable."),
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    overwrite: bool = Option(False, "--overwrite", help="Replace an existing file."),
    quiet: Quiet = False,
) -> None:
    """Predict every row of a table.

    The output has the columns to keep, the predicted class or value, and the
    class probabilities if the model has them. In a .csv, an apostrophe
    precedes text that a spreadsheet would run as a formula.
    """
    model, kept = load_model(model_file), list(dict.fromkeys(keep or ()))
    suffix = output.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise StudyError(f"{output}: the output must be .csv or .parquet")
    check_free(output, overwrite=overwrite)
    if clash := set(kept) & set(added_columns(model)):
        raise StudyError(f"cannot keep column {clash.pop()!r}: the output has a column of this name")
    scorer, table = Scorer(model), opened_table(data, separator, decimal, encoding)
    with waiting(f"predicting {data}", quiet=quiet), atomic_file(output) as out:
        _write(out, suffix, _tables(model, scorer, table, kept))
    if not quiet:
        warnings = owner_report.warnings(scorer.report, table)
        show(Rendering(warnings=warnings, next_steps=[f"{scorer.report.rows:,} predictions: {output}"]))


def added_columns(model: Model) -> list[str]:
    classes = model.class_names if model.has_probabilities else ()
    return [PREDICTION, *(f"probability {name}" for name in classes)]


def _tables(model: Model, scorer: Scorer, data: Any, keep: list[str]) -> Iterator[Any]:
    import pyarrow as pa

    for batch in model.predict_batches(data, keep=keep, scorer=scorer):
        probabilities = [] if batch.probabilities is None else list(batch.probabilities.T)
        arrays = [pa.array(values) for values in (batch.predictions, *probabilities)]
        names = [*batch.kept.schema.names, *added_columns(model)]
        yield pa.record_batch([*batch.kept.columns, *arrays], names=names)


def _write(out: IO[bytes], suffix: str, batches: Iterator[Any]) -> None:
    first = next(batches, None)
    if first is None:
        raise DataError("the table has no rows")
    import pyarrow.csv
    import pyarrow.parquet

    make: Any = pyarrow.parquet.ParquetWriter
    cells: Iterator[Any] = chain([first], batches)
    if suffix == ".csv":
        make, cells = pyarrow.csv.CSVWriter, map(_without_formulas, cells)
        first = _without_formulas(first)
    with make(out, first.schema) as writer:
        for batch in cells:
            writer.write_batch(batch)


def _without_formulas(batch: Any) -> Any:
    """Apply :func:`csv_cell` to the names and text cells of a batch. Numbers are not changed."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = []
    for each in batch.columns:
        if pa.types.is_dictionary(each.type):
            each = each.dictionary_decode()
        if pa.types.is_string(each.type) or pa.types.is_large_string(each.type):
            formula, number = (pc.match_substring_regex(each, f"^(?:{rule})") for rule in (FORMULA, f"{NUMBER}$"))
            quoted = pc.binary_join_element_wise("'", each, "")
            each = pc.if_else(pc.and_not(formula, number), quoted, each)
        columns.append(each)
    return pa.record_batch(columns, names=[csv_cell(name) for name in batch.schema.names])


def evaluate(
    model_file: ModelFile,
    data: Path = Option(..., "--data", "-d", help=f"Table with labels: {TABLE_KINDS}.", metavar="TABLE"),
    label: str | None = Option(None, help="Label column, if its name differs in this table."),
    epsilon: float | None = Option(None, help="Evaluate privately with this total ε."),
    delta: float | None = Option(None, help="δ (with --epsilon).", show_default="1e-5"),
    by: str | None = Option(None, help="Column that identifies the owner of each row (with --epsilon)."),
    output: Path | None = Option(None, "--output", "-o", help="File for the results, .json (with --epsilon)."),
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model on a table with labels.

    Shows accuracy, loss, AUC, calibration and the confusion matrix. These
    metrics are not private: do not publish them unless the table is public.
    With --epsilon they come from one noisy release and may be published.
    """
    from dpadmm.models.evaluate import evaluate as evaluate_table

    model, table = load_model(model_file), opened_table(data, separator, decimal, encoding)
    if epsilon is None:
        if delta is not None or by is not None or output is not None:
            raise StudyError("--delta, --by and --output require --epsilon")
        with waiting(f"reading {data}", quiet=as_json):
            evaluation = evaluate_table(model, table, label=label)
        counts = owner_report.to_dict(evaluation.report, table)
        rendering = evaluation.rendering().extend(warnings=counts["warnings"], data={"owner_only": counts})
    else:
        budget = {"epsilon": epsilon} | ({} if delta is None else {"delta": delta})
        rendering, report = _evaluate_privately(model, table, label, by, output, budget, quiet=as_json)
        if not as_json:  # the JSON may be published, and these counts carry no noise
            rendering = rendering.extend(warnings=owner_report.warnings(report, table))
    show(rendering, as_json=as_json)


def _evaluate_privately(
    model: Model, data: Any, label: str | None, by: str | None, output: Path | None, budget: dict[str, float],
    *, quiet: bool,
) -> tuple[Rendering, Report]:  # fmt: skip
    """Release a histogram of the scores, write the files, and return the metrics and the counts for the owner."""
    from dpadmm.data.reader import open_table
    from dpadmm.models.private_evaluation import evaluation_study, private_evaluation_of
    from dpadmm.training.train import encode, run_study  # slow: imports the compiler

    if model.label is not None and label is not None:
        model = replace(model, label=replace(model.label, column=label))
    name = str(model.study.get("name") or "a model")[:150]
    study = evaluation_study(model, f"evaluation of {name}", **budget)
    if output is not None:
        check_free(output, privacy_report_path(output), overwrite=False)
    with waiting("reading the table", quiet=quiet):
        rows = encode(study, data, by=by)
    result = run_study(study, rows)
    evaluation = private_evaluation_of(result, all_count=True, source=Path(str(open_table(data).location)).name)
    files = []
    if output is not None:
        write_json(output, evaluation.to_dict())
        write(privacy_report_path(output), result.privacy.to_bytes())
        files = [f"Results:        {output}", f"Privacy report: {privacy_report_path(output)}"]
    return evaluation.rendering().extend(notes=[SEEN_ROWS, NO_LEDGER], next_steps=files), rows.report


def explain(
    model_file: ModelFile,
    top: int = Option(20, help="Number of coefficients to show.", min=1),
    figure: Path | None = Option(None, help="Folder for a figure (.png and .svg).", metavar="FOLDER"),
    table: Path | None = Option(None, help="File for a table for a paper, .md or .csv.", metavar="FILE"),
    as_json: AsJson = False,
) -> None:
    """Show coefficients in the units of the columns, largest effect first.

    If the study enables inference, also show standard errors, 95% intervals,
    p-values and odds, rate or hazard ratios. No rows are read.
    """
    from dpadmm.accounting.report import privacy_sentence
    from dpadmm.models.explain import explain as explain_model

    model = load_model(model_file)
    explanation, privacy, files = explain_model(model), privacy_sentence(model.privacy), []
    if table is not None:
        if table.suffix not in (".md", ".csv"):
            raise StudyError(f"{table}: the table must be .md or .csv")
        text = explanation.to_markdown(privacy) if table.suffix == ".md" else explanation.to_csv()
        write(table, text.encode())
        files.append(f"Table:  {table}")
    if figure is not None:
        from dpadmm.figures.coefficients import coefficient_figure  # slow: imports matplotlib
        from dpadmm.figures.style import save_figure

        title = str(model.study.get("name") or model_file.name)
        pictures = save_figure(coefficient_figure(explanation, top=top, title=title).figure, figure / FIGURE)
        files.append(f"Figure: {' and '.join(map(str, pictures))}")
    rendering = explanation.rendering(top=top)
    show(
        rendering.extend(notes=[privacy], next_steps=files, data={"privacy_sentence": privacy}),
        as_json=as_json,
    )
