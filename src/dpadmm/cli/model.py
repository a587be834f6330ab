"""``dpadmm predict``, ``evaluate`` and ``explain``: apply, evaluate and explain a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from csv import DictWriter
from dataclasses import replace
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import IO, Annotated, Any

from rich.text import Text
from typer import Argument, Option

from dpadmm.accounting.report import privacy_sentence
from dpadmm.cli import owner_report
from dpadmm.cli.console import (
    TABLE_KINDS,
    WEIGHTS,
    AsJson,
    Quiet,
    Row,
    TableFile,
    check_free,
    console_width,
    echo,
    echo_json,
    echo_path,
    show_table,
    waiting,
    write,
    write_json,
)
from dpadmm.cli.train import NO_LEDGER, privacy_report_path
from dpadmm.data.encoder import Report
from dpadmm.errors import DataError, StudyError
from dpadmm.files.atomic import atomic_file
from dpadmm.models.evaluate import (
    NOT_TO_PUBLISH,
    Evaluation,
    NoisyMeasure,
    PrivateEvaluation,
    evaluation_study,
    private_evaluation_of,
)
from dpadmm.models.evaluate import evaluate as measure
from dpadmm.models.explain import AGAINST_AVERAGE, COUNTED, PER_UNIT, Coefficient, Explanation, alike, ratio, ratio_text
from dpadmm.models.explain import explain as explanation_of
from dpadmm.models.file import load_model
from dpadmm.models.model import Model, Scorer
from dpadmm.parameters.text import FORMULA, NUMBER, csv_cell

ModelFile = Annotated[Path, Argument(help="Model file.", metavar="MODEL")]
PREDICTION = "prediction"


def predict(
    model_file: ModelFile,
    data: TableFile,
    output: Path = Option(..., "--output", "-o", help="Table to write: .csv or .parquet."),
    keep: list[str] | None = Option(None, help="Column to copy to the output, such as an id; repeatable."),
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
    scorer = Scorer(model)
    with waiting(f"predicting {data}", quiet=quiet), atomic_file(output) as out:
        _write(out, suffix, _tables(model, scorer, data, kept))
    if not quiet:
        _show_warnings(scorer.report, data)
        echo_path(f"{scorer.report.rows:,} predictions: {output}")


def _show_warnings(report: Report, data: Path) -> None:
    echo(*(f"Warning: {sentence}" for sentence in owner_report.warnings(report, data)), style="bold")


def added_columns(model: Model) -> list[str]:
    chances = model.class_names if model.has_probabilities else ()
    return [PREDICTION, *(f"probability {name}" for name in chances)]


def _tables(model: Model, scorer: Scorer, data: Path, keep: list[str]) -> Iterator[Any]:
    import pyarrow as pa

    for each in model.predict_batches(data, keep=keep, scorer=scorer):
        columns = [] if each.probabilities is None else list(each.probabilities.T)
        arrays = [pa.array(values) for values in (each.predictions, *columns)]
        names = [*each.kept.schema.names, *added_columns(model)]
        yield pa.record_batch([*each.kept.columns, *arrays], names=names)


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


METRICS = {
    "accuracy": "accuracy",
    "weighted_accuracy": "weighted accuracy",
    "balanced_accuracy": "balanced accuracy (mean over the classes)",
    "weighted_rmse": "weighted root mean square error",
    "most_frequent_class": "majority-class accuracy",
    "auc": "AUC",
    "log_loss": "log-loss",
    "positive_share": "share of the second class",
    "brier": "Brier score",
    "mean_probability": "mean predicted probability",
    "calibration_in_the_large": "calibration in the large (predicted − observed)",
    "calibration_slope": "calibration slope (1: calibrated, below 1: overconfident)",
    "calibration_error": "calibration error (ECE, 10 bins of equal numbers of rows)",
    "rmse": "root mean square error",
    "mae": "mean absolute error",
    "r2": "R²",
    "deviance": "mean deviance",
    "explained": "explained deviance (D²)",
    "observed": "observed events",
    "expected": "expected events",
    "loss": "mean loss, as in training",
}
RATES = ("accuracy", "weighted_accuracy", "balanced_accuracy", "most_frequent_class")
OF_PROBABILITIES = ("log_loss", "brier", "calibration_error")
MAX_CONFUSION_CLASSES = 8
MAX_CLASS_WIDTH = 10


def evaluate(
    model_file: ModelFile,
    data: Path = Option(..., "--data", "-d", help=f"Table with labels: {TABLE_KINDS}.", metavar="TABLE"),
    label: str | None = Option(None, help="Label column, if its name differs in this table."),
    epsilon: float | None = Option(None, help="Evaluate privately with this total ε."),
    delta: float | None = Option(None, help="δ (with --epsilon).", show_default="1e-5"),
    by: str | None = Option(None, help="Column that identifies the owner of each row (with --epsilon)."),
    output: Path | None = Option(None, "--output", "-o", help="File for the results, .json (with --epsilon)."),
    as_json: AsJson = False,
) -> None:
    """Evaluate a model on a table with labels.

    Shows accuracy, loss, AUC, calibration and the confusion matrix. These
    metrics are not private: do not publish them unless the table is public.
    With --epsilon they come from one noisy release and may be published.
    """
    model = load_model(model_file)
    if epsilon is not None:
        return _evaluate_privately(model, data, label, by, output, {"epsilon": epsilon, "delta": delta}, as_json)
    if delta is not None or by is not None or output is not None:
        raise StudyError("--delta, --by and --output require --epsilon")
    with waiting(f"reading {data}", quiet=as_json):
        evaluation = measure(model, data, label=label)
    if as_json:
        return echo_json({**evaluation.as_json(), "owner_only": owner_report.as_json(evaluation.report, data)})
    return _show_evaluation(evaluation, data)


def _evaluate_privately(
    model: Model,
    data: Path,
    label: str | None,
    by: str | None,
    output: Path | None,
    budget: Mapping[str, float | None],
    as_json: bool,
) -> None:
    from dpadmm.training.train import encode, run_study  # slow: imports the compiler

    if model.label is not None and label is not None:
        model = replace(model, label=replace(model.label, column=label))
    given = {name: value for name, value in budget.items() if value is not None}
    name = str(model.study.get("name") or "a model")[:150]
    study = evaluation_study(model, f"evaluation of {name}", **given)
    if output is not None:
        check_free(output, privacy_report_path(output), overwrite=False)
    with waiting(f"reading {data}", quiet=as_json):
        rows = encode(study, data, by=by)
    result = run_study(study, rows)
    evaluation = private_evaluation_of(result, all_count=True)
    if output is not None:
        write_json(output, evaluation.as_json())
        write(privacy_report_path(output), result.privacy.to_bytes())
    if as_json:
        return echo_json(evaluation.as_json())
    show_private_evaluation(evaluation, data.name)
    _show_warnings(rows.report, data)
    echo("On rows that it was trained on, a model looks better than it is. " + NO_LEDGER)
    if output is not None:
        echo_path(f"Results:        {output}", f"Privacy report: {privacy_report_path(output)}")
    return None


def show_private_evaluation(evaluation: PrivateEvaluation, source: str) -> None:
    """Show metrics with standard errors, the calibration and the privacy of the release."""
    rows: list[Row] = []
    for name, metric in evaluation.figures.items():
        cells = ("–", "", "") if metric is None else (f"{metric.value:.4g}", f"{metric.se:.2g}", _interval(metric))
        rows.append((METRICS[name], *cells))
    show_table((f"on {evaluation.n_rows:,} rows of {source}", "", "± se", "95% interval"), rows, fold=[0])
    if "brier" in evaluation.figures:
        lines: list[Row] = [
            (f"{group.low:.1%} to {group.high:.1%}", f"{group.rows:,.0f}", f"{group.predicted:.1%}",
             f"{group.observed:.1%}", f"{group.se:.1%}")
            for group in evaluation.calibration
        ]  # fmt: skip
        show_table(("predicted", "rows", "mean predicted", "observed", "± se"), lines)
    echo(evaluation.sentence)


def _interval(measure: NoisyMeasure) -> str:
    low, high = (None if end is None else f"{end:.3g}" for end in (measure.low, measure.high))
    return f"{low} to {high}" if low and high else f"above {low}" if low else f"below {high}" if high else "any"


def _show_evaluation(found: Evaluation, data: Path) -> None:
    rows = []
    for name, title in METRICS.items():
        if name in found.figures and (bool(found.bins) or name not in OF_PROBABILITIES):
            value = found.figures[name]
            shown = "–" if value is None else f"{value:.1%}" if name in RATES else f"{value:.4g}"
            if name != "loss" or not found.bins:  # with bins, the loss is the log-loss
                rows.append((title, shown))
    show_table((f"on {found.n_rows:,} rows of {data.name}", ""), rows)
    if found.bins:
        _show_calibration(found)
    if 0 < len(found.classes) <= MAX_CONFUSION_CLASSES:
        _show_confusion(found)
    _show_never_predicted(found)
    _show_warnings(found.report, data)
    echo(NOT_TO_PUBLISH)


def _show_calibration(found: Evaluation) -> None:
    event = str(found.classes[-1]) if len(found.classes) == 2 else "the most probable class"
    rows = [
        (f"{each.low:.1%} to {each.high:.1%}", f"{each.rows:,}", f"{each.predicted:.1%}", f"{each.observed:.1%}")
        for each in found.bins
    ]
    show_table((f"probability of {event}", "rows", "mean predicted", "observed"), rows)


def _show_confusion(found: Evaluation) -> None:
    names = [str(name) for name in found.classes]
    short = _shorten_names(names, 4 * MAX_CLASS_WIDTH // len(names))
    rows = names if short == names else [f"{number} = {name}" for number, name in zip(short, names, strict=True)]
    counts = [[f"{count:,}" for count in row] for row in found.confusion]
    lines: list[Row] = [(name, *row) for name, row in zip(rows, counts, strict=True)]
    fold = range(len(names) + 1)
    show_table(("true class, predicted as", *short), lines, fold=fold, padding=(0, 1, 0, 0))


def _show_never_predicted(found: Evaluation) -> None:
    """Name the classes of the table that are never predicted, which an accuracy does not show."""
    counts = found.confusion
    never = [str(name) for k, name in enumerate(found.classes) if counts[k].any() and not counts[:, k].any()]
    if never:
        instead = "use the probabilities" if found.bins else "rank by the scores"
        echo(f"Never predicted: {', '.join(never)}. Either {instead} or train with class weights ({WEIGHTS}).")


def _shorten_names(names: Sequence[str], max_width: int) -> list[str]:
    """Return the class names, or numbers instead if a name is too wide for a table."""
    return list(names) if max(map(len, names)) <= max_width else [str(k + 1) for k in range(len(names))]


TOP = 20
UNSEEN = "* No public row has this value. If no private row has it either, the coefficient is pure noise."
TOO_FEW_ROWS = "–: too few rows to estimate this coefficient or its reference."
FIGURE = "coefficients"


def explain(
    model_file: ModelFile,
    top: int = Option(TOP, help="Number of coefficients to show.", min=1),
    figure: Path | None = Option(None, help="Folder for a figure (.png and .svg).", metavar="FOLDER"),
    table: Path | None = Option(None, help="File for a table for a paper, .md or .csv.", metavar="FILE"),
    as_json: AsJson = False,
) -> None:
    """Show coefficients in the units of the columns, largest effect first.

    If the study enables inference, also show standard errors, 95% intervals,
    p-values and odds, rate or hazard ratios. No rows are read.
    """
    model = load_model(model_file)
    found, sentence = explanation_of(model), privacy_sentence(model.privacy)
    if table is not None:
        if table.suffix not in (".md", ".csv"):
            raise StudyError(f"{table}: the table must be .md or .csv")
        write(table, (_markdown(found, sentence) if table.suffix == ".md" else _csv(found)).encode())
    if figure is not None:
        from dpadmm.figures.coefficients import coefficient_figure  # slow: imports matplotlib
        from dpadmm.figures.style import save_figure

        figures = save_figure(
            coefficient_figure(found, top=top, title=str(model.study.get("name") or model_file.name)), figure / FIGURE
        )
    if as_json:
        return echo_json({**found.as_json(), "privacy_sentence": sentence})
    echo(f"Effect of the columns on: {found.score}", style="bold")
    _show_coefficients(found, top)
    echo(*_describe(found, top), sentence)
    if table is not None:
        echo_path(f"Table:  {table}")
    if figure is not None:
        echo_path(f"Figure: {' and '.join(map(str, figures))}")
    return None


def _markdown(found: Explanation, sentence: str) -> str:
    """Return a table of the estimates for a paper, with its notes."""
    effect = f"{found.ratios.capitalize() or 'Coefficient'}{' (no intervals)' if found.unknown else ''}"
    classes = ["Class"] if any(each.output for each in found.coefficients) else []
    head = ["", *classes, "Change", effect, *([] if found.unknown else ["95% CI", "p"])]
    lines = [head, [*[":--"] * (2 + len(classes)), *["--:"] * (len(head) - 2 - len(classes))]]
    shown = [each for each in found.coefficients if found.unknown or each.interval()]
    for each in (each.in_table for each in shown):
        ends, p = each.interval(), each.p_value
        numbers = [_ratio(x) if found.ratios else x for x in (each.coefficient, *(ends or ()))]
        named = f"{each.name}{' *' * each.unseen}", *([each.output] if classes else []), each.per
        cells = [cell.replace("|", r"\|").replace("*", r"\*") for cell in named]
        if ends:
            estimate, low, high = alike(*numbers)
            cells += [estimate, f"{low} to {high}", "–" if p is None else f"{p:.3f}" if p >= 0.0005 else "<0.001"]
        else:
            cells.append(ratio_text(each.coefficient) if found.ratios else f"{each.coefficient:.3g}")
        lines.append(cells)
    omitted = [each.name for each in found.coefficients if each not in shown]
    notes = f"No confidence intervals: {found.unknown}." if found.unknown else COUNTED
    notes += f" Omitted because of too few rows: {', '.join(omitted)}." if omitted else ""
    notes += f" \\{UNSEEN}" if any(each.unseen for each in shown) else ""
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**Effects on: {found.score}**\n\n{body}\n\n{notes} {sentence}\n"


def _ratio(logarithm: float) -> float:
    value = ratio(logarithm)
    return math.inf if value is None else value


def _csv(found: Explanation) -> str:
    out = StringIO()
    lines = (*found.coefficients, *found.intercepts)
    rows = [{**each.row(ratios=found.ratios), "unseen": "yes" if each.unseen else None} for each in lines]
    writer = DictWriter(out, list(rows[0]), lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(
        {key: csv_cell(cell) if isinstance(cell, str) else cell for key, cell in row.items()} for row in rows
    )
    return out.getvalue()


def _describe(found: Explanation, top: int) -> list[str]:
    """Return the notes below the table of coefficients."""
    against = any(each.per == AGAINST_AVERAGE for each in found.coefficients)
    rest = len(found.coefficients) - top
    hidden = ", or of values that no public row has" if any(each.unseen for each in found.coefficients[top:]) else ""
    numbered = ", ".join(f"{short} = {name}" for name, short in _class_column(found).items() if short != name)
    return [
        *([f"Classes: {numbered}."] if numbered else []),
        *([f"{rest:,} more coefficients with smaller effects{hidden}; --top shows more."] if rest > 0 else []),
        *([UNSEEN] if any(each.unseen for each in found.coefficients[:top]) else []),
        "A coefficient is the change in the score for the change shown, with all other columns fixed. The score of a "
        "row is the intercept plus the sum of coefficient × value, in units of the change shown. Sorted by the effect "
        "over the whole range of a column.",
        *(["Categories and bins: relative to the average over the column's public values."] if against else []),
        *([found.shortened] if found.shortened else []),
        *([found.weights] if found.weights else []),
        f"No confidence intervals: {found.unknown}." if found.unknown else COUNTED,
        *([TOO_FEW_ROWS] if not found.unknown and any(e.standard_error is None for e in found.coefficients) else []),
    ]


def _show_coefficients(found: Explanation, top: int) -> None:
    classes = _class_column(found)
    names = ["column", *(["class"] if classes else []), "change"]
    estimates = [
        "coeffi-\ncient",
        "std.\nerror",
        "95% interval",
        "p",
        *([found.ratios.replace(" ", "\n")] if found.ratios else []),
    ]
    numbers = ["coefficient", "over\nrange"] if found.unknown else estimates
    lines = [_cells(found, each.in_table, classes) for each in found.coefficients[:top]]
    constants = [_cells(found, each, classes, intercept=True) for each in found.intercepts]
    headings = [Text(heading) for heading in (*names, *numbers)]
    _break_names([headings, *lines, *constants], len(names) - 1)
    rows: list[Row] = [*lines, (), *constants]
    left, whole = range(len(names)), range(len(names) - 1, len(names) + len(numbers))
    show_table(headings, rows, left=left, fold=left, whole=whole, padding=(0, 1, 0, 0))


def _break_names(lines: list[list[Text]], change: int) -> None:
    """If names do not fit next to the other columns, break the change column, and names after "="."""

    def room() -> int:
        widths = [max(len(part) for line in lines for part in line[j].plain.split("\n")) for j in range(len(lines[0]))]
        return console_width() - sum(width + 2 for width in widths[1:]) - 2

    def break_after(word: str, column: int, max_width: int) -> None:
        for line in lines:
            if len(line[column]) > max_width:
                line[column] = Text(line[column].plain.replace(word, f"{word.strip()}\n", 1))

    if max(len(line[0]) for line in lines) > room():
        break_after(" ", change, len(PER_UNIT))
        break_after("=", 0, room())


def _class_column(found: Explanation) -> dict[str, str]:
    """Return the table's names of the classes, if each class has its own score."""
    names = [each.output for each in found.intercepts if each.output]
    return dict(zip(names, _shorten_names(names, MAX_CLASS_WIDTH), strict=True)) if names else {}


def _cells(found: Explanation, each: Coefficient, classes: Mapping[str, str], *, intercept: bool = False) -> list[Text]:
    texts = [
        f"{each.name}{' *' * each.unseen}",
        *([classes[each.output]] if classes else []),
        each.per,
        f"{each.coefficient:+.3g}",
    ]
    if not found.unknown:
        ends, p = each.interval(), each.p_value
        texts += [f"{each.standard_error:.2g}", "{:+.3g} to {:+.3g}".format(*ends)] if ends else ["–", "–"]
        texts.append("–" if p is None else f"{p:.3f}" if p >= 0.0005 else "<.001")
        texts += ["" if intercept else ratio_text(each.coefficient)] if found.ratios else []
        return [Text(text) for text in texts]
    texts.append("" if intercept else f"{each.effect:+.3g}")
    return [Text(text) for text in texts]
