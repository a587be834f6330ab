"""``dpadmm predict``, ``evaluate`` and ``explain``: predictions, their quality, and coefficients."""

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
from dpadmm.cli.screen import (
    TABLE_KINDS,
    WEIGHTS,
    AsJson,
    Quiet,
    Row,
    TableFile,
    check_free,
    echo_json,
    say,
    say_path,
    screen_width,
    show_table,
    waiting,
    write,
    write_json,
)
from dpadmm.cli.train import ADDS_UP, statement_beside
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

ModelFile = Annotated[Path, Argument(help="The model's file.", metavar="MODEL")]
PREDICTION = "prediction"


def predict(
    model_file: ModelFile,
    data: TableFile,
    output: Path = Option(..., "--output", "-o", help="Table to write: .csv or .parquet."),
    keep: list[str] | None = Option(None, help="A column to copy, such as an id; repeatable."),
    overwrite: bool = Option(False, "--overwrite", help="Replace an existing file."),
    quiet: Quiet = False,
) -> None:
    """Predict every row of a table.

    The output has the columns to keep, the prediction in the classes or units
    of the label, and the probability of every class if the model has any. In
    a .csv, an apostrophe precedes text that a spreadsheet would run as a
    formula.
    """
    model, kept = load_model(model_file), list(dict.fromkeys(keep or ()))
    suffix = output.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise StudyError(f"{output}: predictions are written as .csv or .parquet")
    check_free(output, overwrite=overwrite)
    if clash := set(kept) & set(added_columns(model)):
        raise StudyError(f"the column {clash.pop()!r} cannot be kept: a column of predictions has this name")
    scorer = Scorer(model)
    with waiting(f"predicting {data}", quiet=quiet), atomic_file(output) as out:
        _write(out, suffix, _tables(model, scorer, data, kept))
    if not quiet:
        _say_warnings(scorer.report, data)
        say_path(f"{scorer.report.rows:,} predictions: {output}")


def _say_warnings(report: Report, data: Path) -> None:
    say(*(f"Warning: {sentence}" for sentence in owner_report.warnings(report, data)), style="bold")


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
    """Names and texts of a table for :func:`csv_cell`; numbers stay numbers."""
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


WORDS = {
    "accuracy": "accuracy",
    "weighted_accuracy": "accuracy of the weighted rows",
    "balanced_accuracy": "accuracy, mean over the classes",
    "weighted_rmse": "root mean square error of the weighted rows",
    "most_frequent_class": "accuracy of always the most frequent class",
    "auc": "AUC",
    "log_loss": "log-loss",
    "positive_share": "share of the second class",
    "brier": "Brier score",
    "mean_probability": "mean predicted probability",
    "calibration_in_the_large": "calibration in the large (predicted − observed)",
    "calibration_slope": "calibration slope (1: calibrated, below: too sure)",
    "calibration_error": "calibration error (ECE, 10 bins of equal numbers of rows)",
    "rmse": "root mean square error",
    "mae": "mean absolute error",
    "r2": "R²",
    "deviance": "mean deviance",
    "explained": "share of the deviance explained (D²)",
    "observed": "events observed",
    "expected": "events expected",
    "loss": "mean loss, as in training",
}
RATES = ("accuracy", "weighted_accuracy", "balanced_accuracy", "most_frequent_class")
OF_PROBABILITIES = ("log_loss", "brier", "calibration_error")
MOST_CLASSES = 8
LONGEST_CLASS = 10


def evaluate(
    model_file: ModelFile,
    data: Path = Option(..., "--data", "-d", help=f"Table with labels: {TABLE_KINDS}.", metavar="TABLE"),
    label: str | None = Option(None, help="Column of the label, if it has another name in this table."),
    epsilon: float | None = Option(None, help="Evaluate under privacy, at this total ε."),
    delta: float | None = Option(None, help="With --epsilon: δ.", show_default="1e-5"),
    by: str | None = Option(None, help="With --epsilon: the column with the agent of each row."),
    output: Path | None = Option(None, "--output", "-o", help="With --epsilon: file for the results (.json)."),
    as_json: AsJson = False,
) -> None:
    """Evaluate a model on a table with labels.

    Shows accuracy, loss, AUC, calibration and the confusion matrix. These
    figures have no noise: the table must be public or your own. With
    --epsilon they come from one release with noise, and may be published.
    """
    model = load_model(model_file)
    if epsilon is not None:
        return _evaluate_privately(model, data, label, by, output, {"epsilon": epsilon, "delta": delta}, as_json)
    if delta is not None or by is not None or output is not None:
        raise StudyError("--delta, --by and --output are for evaluation under privacy: give --epsilon too")
    with waiting(f"reading {data}", quiet=as_json):
        found = measure(model, data, label=label)
    if as_json:
        return echo_json({**found.as_json(), "owner_only": owner_report.as_json(found.report, data)})
    return _show_evaluation(found, data)


def _evaluate_privately(
    model: Model,
    data: Path,
    label: str | None,
    by: str | None,
    output: Path | None,
    budget: Mapping[str, float | None],
    as_json: bool,
) -> None:
    from dpadmm.training.train import encode, run_study  # which loads the compiler

    if model.label is not None and label is not None:
        model = replace(model, label=replace(model.label, column=label))
    given = {name: value for name, value in budget.items() if value is not None}
    name = str(model.study.get("name") or "a model")[:150]
    study = evaluation_study(model, f"evaluation of {name}", **given)
    if output is not None:
        check_free(output, statement_beside(output), overwrite=False)
    with waiting(f"reading {data}", quiet=as_json):
        rows = encode(study, data, by=by)
    result = run_study(study, rows)
    found = private_evaluation_of(result, all_count=True)
    if output is not None:
        write_json(output, found.as_json())
        write(statement_beside(output), result.statement.as_bytes())
    if as_json:
        return echo_json(found.as_json())
    show_private_evaluation(found, data.name)
    _say_warnings(rows.report, data)
    say("Rows that the model was trained on make it look better than it is. " + ADDS_UP)
    if output is not None:
        say_path(f"Results:   {output}", f"Statement: {statement_beside(output)}")
    return None


def show_private_evaluation(found: PrivateEvaluation, source: str) -> None:
    """Figures with their standard errors, calibration, and the sentence beside them."""
    rows: list[Row] = []
    for name, each in found.figures.items():
        told = ("–", "", "") if each is None else (f"{each.value:.4g}", f"{each.se:.2g}", _interval(each))
        rows.append((WORDS[name], *told))
    show_table((f"on {found.n_rows:,} rows of {source}", "", "± se", "95% interval"), rows, fold=[0])
    if "brier" in found.figures:
        lines: list[Row] = [
            (f"{group.low:.1%} to {group.high:.1%}", f"{group.rows:,.0f}", f"{group.predicted:.1%}",
             f"{group.observed:.1%}", f"{group.se:.1%}")
            for group in found.calibration
        ]  # fmt: skip
        show_table(("predicted", "rows", "mean predicted", "observed", "± se"), lines)
    say(found.sentence)


def _interval(measure: NoisyMeasure) -> str:
    low, high = (None if end is None else f"{end:.3g}" for end in (measure.low, measure.high))
    return f"{low} to {high}" if low and high else f"above {low}" if low else f"below {high}" if high else "any"


def _show_evaluation(found: Evaluation, data: Path) -> None:
    rows = []
    for name, words in WORDS.items():
        if name in found.figures and (bool(found.bins) or name not in OF_PROBABILITIES):
            value = found.figures[name]
            shown = "–" if value is None else f"{value:.1%}" if name in RATES else f"{value:.4g}"
            if name != "loss" or not found.bins:  # there it is the log-loss
                rows.append((words, shown))
    show_table((f"on {found.n_rows:,} rows of {data.name}", ""), rows)
    if found.bins:
        _show_calibration(found)
    if 0 < len(found.classes) <= MOST_CLASSES:
        _show_confusion(found)
    _say_never_predicted(found)
    _say_warnings(found.report, data)
    say(NOT_TO_PUBLISH)


def _show_calibration(found: Evaluation) -> None:
    what = str(found.classes[-1]) if len(found.classes) == 2 else "the likeliest class"
    rows = [
        (f"{each.low:.1%} to {each.high:.1%}", f"{each.rows:,}", f"{each.predicted:.1%}", f"{each.observed:.1%}")
        for each in found.bins
    ]
    show_table((f"probability of {what}", "rows", "mean predicted", "observed"), rows)


def _show_confusion(found: Evaluation) -> None:
    names = [str(name) for name in found.classes]
    short = _short(names, 4 * LONGEST_CLASS // len(names))
    rows = names if short == names else [f"{number} = {name}" for number, name in zip(short, names, strict=True)]
    counts = [[f"{count:,}" for count in row] for row in found.confusion]
    lines: list[Row] = [(name, *row) for name, row in zip(rows, counts, strict=True)]
    fold = range(len(names) + 1)
    show_table(("true class, rows predicted as", *short), lines, fold=fold, padding=(0, 1, 0, 0))


def _say_never_predicted(found: Evaluation) -> None:
    """Classes that some rows have and no row is predicted to have: an accuracy does not show that."""
    counts = found.confusion
    never = [str(name) for k, name in enumerate(found.classes) if counts[k].any() and not counts[:, k].any()]
    if never:
        instead = "use the probabilities" if found.bins else "rank by the scores"
        say(f"No row is predicted to be {' or '.join(never)}: {instead}, or train with class weights ({WEIGHTS}).")


def _short(names: Sequence[str], longest: int) -> list[str]:
    """The names of the classes, or numbers in place of them where they would leave no room in a table."""
    return list(names) if max(map(len, names)) <= longest else [str(k + 1) for k in range(len(names))]


TOP = 20
UNSEEN = "* No public row held this value: if no private row does either, its coefficient is noise alone."
NOTHING_KNOWN = "–: too few rows say something of this coefficient, or of what it is told against."
FIGURE = "coefficients"


def explain(
    model_file: ModelFile,
    top: int = Option(TOP, help="Number of coefficients to show.", min=1),
    figure: Path | None = Option(None, help="Folder for a figure (png, svg).", metavar="FOLDER"),
    table: Path | None = Option(None, help="File for a table to paste into a paper: .md or .csv.", metavar="FILE"),
    as_json: AsJson = False,
) -> None:
    """Show coefficients in the units of the columns, largest effect first.

    If the study asked for inference: with standard errors, 95% intervals,
    p-values and ratios of odds, rates or hazards. No rows are read.
    """
    model = load_model(model_file)
    found, sentence = explanation_of(model), privacy_sentence(model.privacy)
    if table is not None:
        if table.suffix not in (".md", ".csv"):
            raise StudyError(f"{table}: a table is written as .md or .csv")
        write(table, (_markdown(found, sentence) if table.suffix == ".md" else _csv(found)).encode())
    if figure is not None:
        from dpadmm.figures.coefficients import coefficient_figure  # matplotlib takes its time
        from dpadmm.figures.style import save_figure

        pictures = save_figure(
            coefficient_figure(found, top=top, title=str(model.study.get("name") or model_file.name)), figure / FIGURE
        )
    if as_json:
        return echo_json({**found.as_json(), "privacy_sentence": sentence})
    say(f"Effect of the columns on: {found.score}", style="bold")
    _show_coefficients(found, top)
    say(*in_words(found, top), sentence)
    if table is not None:
        say_path(f"Table:  {table}")
    if figure is not None:
        say_path(f"Figure: {' and '.join(map(str, pictures))}")
    return None


def _markdown(found: Explanation, sentence: str) -> str:
    """A table of the estimates for a paper, with what stands below it."""
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
            told, low, high = alike(*numbers)
            cells += [told, f"{low} to {high}", "–" if p is None else f"{p:.3f}" if p >= 0.0005 else "<0.001"]
        else:
            cells.append(ratio_text(each.coefficient) if found.ratios else f"{each.coefficient:.3g}")
        lines.append(cells)
    left = [each.name for each in found.coefficients if each not in shown]
    notes = f"There are no confidence intervals: {found.unknown}." if found.unknown else COUNTED
    notes += f" Left out, since too few rows tell: {', '.join(left)}." if left else ""
    notes += f" \\{UNSEEN}" if any(each.unseen for each in shown) else ""
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**Effects on: {found.score}**\n\n{body}\n\n{notes} {sentence}\n"


def _ratio(logarithm: float) -> float:
    found = ratio(logarithm)
    return math.inf if found is None else found


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


def in_words(found: Explanation, top: int) -> list[str]:
    against = any(each.per == AGAINST_AVERAGE for each in found.coefficients)
    rest = len(found.coefficients) - top
    hidden = ", or of values that no public row held" if any(each.unseen for each in found.coefficients[top:]) else ""
    numbered = ", ".join(f"{short} = {name}" for name, short in _class_column(found).items() if short != name)
    return [
        *([f"Classes: {numbered}."] if numbered else []),
        *([f"{rest:,} more coefficients with smaller effects{hidden}; --top shows more."] if rest > 0 else []),
        *([UNSEEN] if any(each.unseen for each in found.coefficients[:top]) else []),
        "A coefficient is the change of the score when the column changes as shown and all others stay the "
        "same; the score of a row is the intercept plus coefficient × value, in units of the change "
        "shown, over all columns. Sorted by the change over the whole range of a column.",
        *(["Categories and bins: against the average over the column's public values."] if against else []),
        *([found.shortened] if found.shortened else []),
        *([found.weights] if found.weights else []),
        f"There are no confidence intervals: {found.unknown}." if found.unknown else COUNTED,
        *([NOTHING_KNOWN] if not found.unknown and any(e.standard_error is None for e in found.coefficients) else []),
    ]


def _show_coefficients(found: Explanation, top: int) -> None:
    classes = _class_column(found)
    words = ["column", *(["class"] if classes else []), "change"]
    told = [
        "coeffi-\ncient",
        "std.\nerror",
        "95% interval",
        "p",
        *([found.ratios.replace(" ", "\n")] if found.ratios else []),
    ]
    numbers = ["coefficient", "over\nrange"] if found.unknown else told
    lines = [_cells(found, each.in_table, classes) for each in found.coefficients[:top]]
    constants = [_cells(found, each, classes, intercept=True) for each in found.intercepts]
    headings = [Text(word) for word in (*words, *numbers)]
    _break_names([headings, *lines, *constants], len(words) - 1)
    rows: list[Row] = [*lines, (), *constants]
    left, whole = range(len(words)), range(len(words) - 1, len(words) + len(numbers))
    show_table(headings, rows, left=left, fold=left, whole=whole, padding=(0, 1, 0, 0))


def _break_names(lines: list[list[Text]], change: int) -> None:
    """Where names do not fit beside the other columns of a table, break what changes, and names after "="."""

    def room() -> int:
        widths = [max(len(part) for line in lines for part in line[j].plain.split("\n")) for j in range(len(lines[0]))]
        return screen_width() - sum(width + 2 for width in widths[1:]) - 2

    def break_after(word: str, column: int, most: int) -> None:
        for line in lines:
            if len(line[column]) > most:
                line[column] = Text(line[column].plain.replace(word, f"{word.strip()}\n", 1))

    if max(len(line[0]) for line in lines) > room():
        break_after(" ", change, len(PER_UNIT))
        break_after("=", 0, room())


def _class_column(found: Explanation) -> dict[str, str]:
    """What the table calls the classes, where each has a score of its own."""
    names = [each.output for each in found.intercepts if each.output]
    return dict(zip(names, _short(names, LONGEST_CLASS), strict=True)) if names else {}


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
