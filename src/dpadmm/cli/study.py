"""``dpadmm study``: create, check and inspect study files."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from dpadmm.cli import console
from dpadmm.cli.console import (
    TABLE_KINDS,
    AsJson,
    Decimal,
    Encoding,
    Separator,
    StudyFile,
    check_new,
    echo,
    echo_path,
    opened_table,
    write,
)
from dpadmm.errors import DataError, StudyError
from dpadmm.files.toml import read_toml
from dpadmm.parameters.fields import parameters
from dpadmm.parameters.suggestions import first_of
from dpadmm.rendering import Block, Column, Paragraph, Rendering, Table
from dpadmm.rendering.formats import plural
from dpadmm.studies.checks import study_notes, study_warnings
from dpadmm.studies.reading import Confirmation, confirmations, read_study, study_problems, table_parameters
from dpadmm.studies.rendering import describe_aggregation
from dpadmm.studies.settings import CHOICES
from dpadmm.studies.study import TABLES, Study

if TYPE_CHECKING:
    from dpadmm.studies.drafts import Draft
    from dpadmm.studies.drafts.table import Answers

study_app = typer.Typer(help="Create, check and inspect study files.", no_args_is_help=True)

CONFIRM = "Would these values be public for any data set? Edit any that are not, then confirm:"
GROUPS = ("label", "numbers", "categories", "public-rows")
_PROBLEM = re.compile(
    rf"(column '[^']*'|the label '[^']*'|label|{'|'.join((*CHOICES, *TABLES))}|provenance|public_rows|study): (.+)"
)


@study_app.command("new")
def new(
    file: Path = Argument(..., help="File to write.", metavar="FILE"),
    from_table: Path | None = Option(
        None, "--from", metavar="TABLE", help=f"Public or dummy table ({TABLE_KINDS}). Never private rows."
    ),
    label: str | None = Option(None, metavar="COLUMN", help="Column to predict."),
    dictionary: Path | None = Option(
        None,
        "--from-dictionary",
        metavar="DICT.csv",
        help="Data dictionary with one line per column: name, kind, low, high, values (a|b|c), description.",
    ),
    statistics: Path | None = Option(
        None,
        "--from-statistics",
        metavar="RESULTS.json",
        help="Private statistics (from dpadmm describe or from sites) that set centers and scales.",
    ),
    model: Path | None = Option(
        None, "--from-model", metavar="MODEL", help="Model to evaluate across sites; drafts an evaluation study."
    ),
    kind: str = Option("training", metavar="KIND", help="training, or statistics (with --from-dictionary)."),
    by: str | None = Option(None, metavar="COLUMN", help="Column that identifies the owner of each row; omitted."),
    name: str | None = Option(None, metavar="TEXT", help="Name of the study."),
    categories: str | None = Option(
        None, help="Columns of whole numbers that are codes, separated by commas.", metavar="COLUMNS"
    ),
    numbers: str | None = Option(
        None, help="Columns of whole numbers that are amounts, separated by commas.", metavar="COLUMNS"
    ),
    label_kind: str | None = Option(
        None, "--label-kind", help="Kind of label: classes, counts or number.", metavar="KIND", show_default="inferred"
    ),
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    dummy: bool = Option(False, "--dummy", help="TABLE has synthetic rows; do not use them for initialisation."),
    aggregation: str = Option("plain", metavar="MODE", help="plain, or secure: only the sum of releases is visible."),
    min_honest_sites: int | None = Option(
        None, metavar="H", help="Minimum number of honest sites in a round (secure aggregation)."
    ),
    max_rows_per_site: int | None = Option(
        None, metavar="M", help="Maximum number of rows per site (secure aggregation)."
    ),
) -> None:
    """Write a commented study file: an example, or a draft for your columns.

    Values inferred from a table are marked public = false. The study is rejected until you have reviewed them and
    set public = true. Values from a dictionary need no confirmation. Training is initialised from the rows of the
    table if you confirm that they are public.
    """
    masked = _secure_aggregation(aggregation, min_honest_sites, max_rows_per_site)
    if dummy and from_table is None:
        raise StudyError("--dummy requires --from TABLE")
    sources = {"--from": from_table, "--from-dictionary": dictionary, "--from-statistics": statistics}
    sources["--from-model"] = model
    if len(given := [option for option, path in sources.items() if path is not None]) > 1:
        raise StudyError(f"{' and '.join(given)} cannot be combined; give one of them")
    if kind not in ("training", "statistics"):
        raise StudyError(
            f"--kind must be training or statistics, not {kind!r:.60}; for an evaluation, give --from-model MODEL"
        )
    if kind == "statistics" or model is not None:
        return _new_release(file, dictionary, model, name, masked, unsupported=[label, by, from_table, statistics])
    if not given and (label is not None or name is not None or by is not None):
        raise StudyError("--label, --by and --name require --from TABLE or --from-dictionary DICT.csv")
    kinds = (_listed(categories), _listed(numbers), label_kind)
    if from_table is None and any(kinds):
        raise StudyError("--categories, --numbers and --label-kind require --from TABLE")
    from dpadmm.studies.drafts import secured_text, study_text

    check_new(file)
    text, summary, next_command = template("study"), ["Edit it for your data, then inspect it:"], "show"
    if given:
        table = None if from_table is None else opened_table(from_table, separator, decimal, encoding)
        draft = _drafted(table, dictionary, statistics, label, kinds)
        draft = draft if by is None else draft.without(by)
        draft = draft.without_public_rows() if dummy else draft
        text = study_text(draft, name or f"{draft.label['column']}, by {Path(draft.source).stem}", file.parent)
        summary, next_command = _describe_draft(draft), "check"
    write(file, (secured_text(text, *masked) if masked else text).encode())
    echo_path(f"Written: {file}")
    echo(*summary)
    echo_path(f"  dpadmm study {next_command} {file}")
    return None


def _new_release(
    file: Path,
    dictionary: Path | None,
    model: Path | None,
    name: str | None,
    masked: tuple[int, int] | None,
    *,
    unsupported: Sequence[object],
) -> None:
    """Write a study of kind statistics or evaluation."""
    from dpadmm.studies.drafts import columns_from_dictionary, evaluation_text, secured_text, statistics_text

    if any(option is not None for option in unsupported) or (dictionary is None and model is None):
        raise StudyError(
            "a statistics study needs --kind statistics --from-dictionary DICT.csv, an evaluation --from-model MODEL; "
            "neither takes --label, --by or another table"
        )
    check_new(file)
    if dictionary is not None:
        text = statistics_text(
            columns_from_dictionary(dictionary), name or f"statistics, by {dictionary.stem}", dictionary.name
        )
        text = secured_text(text, *masked) if masked else text
    else:
        from dpadmm.models.file import load_model
        from dpadmm.models.private_evaluation import evaluation_study

        assert model is not None
        aggregation = {"aggregation": "secure", "min_honest_sites": masked[0]} if masked else {}
        study = evaluation_study(
            load_model(model), name or f"evaluation of {model.stem}", epsilon=1.0, delta=1e-5, **aggregation
        )
        text = evaluation_text(study if masked is None else replace(study, max_rows_per_site=masked[1]))
    write(file, text.encode())
    echo_path(f"Written: {file}")
    echo("Choose the released statistics and the privacy budget, then check it:")
    echo_path(f"  dpadmm study check {file}")


def _secure_aggregation(
    aggregation: str, min_honest_sites: int | None, max_rows_per_site: int | None
) -> tuple[int, int] | None:
    """Return the minimum of honest sites and the maximum of rows per site, or None without secure aggregation."""
    by_name = {parameter.name: parameter for parameter in (*table_parameters("privacy"), *parameters(Study))}
    if by_name["aggregation"].checked(aggregation) == "plain":
        if min_honest_sites is not None or max_rows_per_site is not None:
            raise StudyError("--min-honest-sites and --max-rows-per-site require --aggregation secure")
        return None
    if min_honest_sites is None or max_rows_per_site is None:
        raise StudyError(
            "secure aggregation needs --min-honest-sites, the minimum number of sites in a round that do not "
            "collude, and "
            "--max-rows-per-site, the maximum number of rows per site"
        )
    return by_name["min_honest_sites"].checked(min_honest_sites), by_name["max_rows_per_site"].checked(
        max_rows_per_site
    )


def _listed(text: str | None) -> tuple[str, ...]:
    """Return the names in a list separated by commas."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _drafted(
    from_table: Any,
    dictionary: Path | None,
    statistics: Path | None,
    label: str | None,
    kinds: tuple[tuple[str, ...], tuple[str, ...], str | None],
) -> Draft:
    """Return a draft from a table, a dictionary or private statistics."""
    from dpadmm.data.reader import column_names, open_table
    from dpadmm.parameters.suggestions import listed
    from dpadmm.planning.drafting import with_forecast_row_norm
    from dpadmm.studies.drafts import draft_from_dictionary, draft_from_table
    from dpadmm.studies.drafts.table import Answers

    if dictionary is not None:
        return draft_from_dictionary(dictionary, label)
    if statistics is not None:
        from dpadmm.models.description import draft_from_statistics, load_description

        description = load_description(statistics)
        if label is None:
            raise StudyError(
                f"--label is required: name the column to predict; {statistics} has {listed(description.columns)}"
            )
        return draft_from_statistics(description, label)
    source = open_table(from_table)
    if label is None:
        names = listed(column_names(source))
        raise StudyError(f"--label is required: name the column to predict; {source.location} has {names}")
    answers = Answers(kinds[0], kinds[1], kinds[2])  # type: ignore[arg-type]  # checked by the draft
    draft = draft_from_table(source, label, answers)
    if draft.questions and sys.stdin.isatty():
        draft = draft_from_table(source, label, _ask(draft, answers))
    return with_forecast_row_norm(draft, source)


def _ask(draft: Draft, answers: Answers) -> Answers:
    """Ask on the terminal what ambiguous columns are."""
    found = {"category": list(answers.categories), "number": list(answers.numbers)}
    label_kind = answers.label_kind
    for question in draft.questions:
        echo(f"{question.text[0].upper()}{question.text[1:]}.", err=True)
        choice = typer.prompt(
            f"Is it {' or '.join(question.choices)}?", default=question.assumed, err=True, type=str
        ).strip()
        if choice not in question.choices:
            raise StudyError(f"column {question.column!r}: answer {' or '.join(question.choices)}, not {choice!r:.40}")
        if question.is_label:
            label_kind = choice
        else:
            found[choice].append(question.column)
    return replace(answers, categories=tuple(found["category"]), numbers=tuple(found["number"]), label_kind=label_kind)


def _describe_draft(draft: Draft) -> list[str]:
    """Describe the drafted columns, the omitted ones and the next steps."""
    omitted = [column for column in draft.columns if column.about is None]
    used = len(draft.columns) - len(omitted)
    columns = "1 column" if used == 1 else f"{used} columns"
    lines = [f"{columns} and the label {draft.label['column']!r} from {draft.source}.", *draft.notes]
    if omitted:
        reasons = [f"{column.name!r} ({column.comment.partition(';')[0]})" for column in omitted]
        lines.append(f"Omitted: {first_of(reasons, 8, between='; ')}.")
    lines += [f"Column {column.name!r} {column.comment}" for column in draft.columns if column.has_question]
    lines += [f"The label: {comment}." for comment in draft.comments]
    commented = [
        repr(column.name) for column in draft.columns if column.about and column.comment and not column.has_question
    ]
    if commented:
        lines.append(f"See the comments in the file on {first_of(commented, 8)}.")
    if draft.not_public:
        lines.append(f"The rows of {draft.source} are not used for initialisation: {draft.not_public}.")
    if draft.public_rows is not None:
        lines.append(
            "Training is initialised from these rows if you confirm that they are public. If they are not, delete "
            "[public_rows] from the file."
        )
    if not draft.is_inferred:
        return [*lines, "Choose the model and the privacy budget, then check the study:"]
    return [
        *lines,
        "Bounds, centers, scales, values and classes were inferred from the table. Edit any that are not public "
        "knowledge and confirm the rest (dpadmm study confirm). Then check the study:",
    ]


@study_app.command("check")
def check(
    study_file: StudyFile,
    data: Path | None = Option(None, metavar="TABLE", help="Also check your table against the study."),
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    as_json: AsJson = False,
) -> None:
    """Validate a study file and list unconfirmed values. Exit code 2 if there are any problems.

    With --data: check that the table has the columns, and count cells that would be clamped, unknown or missing.
    These counts carry no noise. Run it on the owner's machine and do not share them.
    """
    document = read_toml(study_file)
    problems, unconfirmed, survey, how = study_problems(document), confirmations(document), None, list[str]()
    study = None if problems or unconfirmed else read_study(study_file)
    if study and data is not None:
        from dpadmm.data.reader import open_table
        from dpadmm.data.schema import plain_schema
        from dpadmm.data.survey import survey_table

        table = opened_table(data, separator, decimal, encoding)
        survey = survey_table(table, study.schema or plain_schema(study.features), study.label)
        how = open_table(table).notes()
        problems = [*survey.problems]
    warnings = study_warnings(study, survey.rows if survey else None) if study else []
    notes = study_notes(study) if study else []
    if study and study.public_rows is not None:
        if study.public_rows.is_here:
            problems += _public_rows_problems(study)
        else:
            warnings.append("the public rows are missing on this machine; train and the server need them")
    rendering, counts = Rendering(), None
    if study and survey:
        from dpadmm.cli import owner_report  # slow: imports readers of tables

        counts = owner_report.counts_of(survey)
        rendering = owner_report.survey_rendering(study, survey) if survey.rows else rendering
    if survey and survey.details:
        from dpadmm.data.problems import problems_table

        rendering = rendering.extend(problems_table(survey.details, values=True))
    of_study = [each for each in problems if not survey or each not in survey.problems]
    rendering = rendering.extend(
        *_problem_table(of_study, place="the study"),
        notes=[*how, *(f"{text[0].upper()}{text[1:]}." for text in notes)],
        warnings=[f"{text}." for text in warnings],
        data={
            "problems": problems,
            "to_confirm": [each._asdict() for each in unconfirmed],
            "table": counts,
        },
    )
    if study and not problems:
        n_columns = len(study.schema.columns if study.schema else study.features)
        text = f"No problems found: {n_columns} columns, {len(study.features)} features. Study hash:"
        rendering = rendering.extend(*map(Paragraph, describe_aggregation(study)), next_steps=[study.hash])
        rendering = replace(rendering, verdict=Paragraph(text))
    console.show(rendering, as_json=as_json)
    texts = problems if len(problems) < 2 else [f"{len(problems)} problems"]
    if unconfirmed:
        texts = [*texts, f"{_count_by_group(unconfirmed)} (dpadmm study confirm {study_file})"]
    if texts:
        raise StudyError(f"{study_file}: {'; '.join(texts)}")


def _public_rows_problems(study: Study) -> list[str]:
    """Return a problem if the public table is not the declared one. Its rows were checked when it was drafted."""
    assert study.public_rows is not None
    try:
        study.public_rows.verified()
    except DataError as error:
        return [f"public_rows: {error}"]
    return []


@study_app.command("confirm")
def confirm(
    study_file: StudyFile,
    columns: list[str] = Argument([], metavar="[COLUMN]...", help="Columns by name.", show_default=False),
    everything: bool = Option(False, "--all", help="All unconfirmed values."),
    numbers: bool = Option(False, "--numbers", help="Bounds, centers and scales."),
    categories: bool = Option(False, "--categories", help="Values of categories and ordinals."),
    label: bool = Option(False, "--label", help="Classes or bounds of the label."),
    public_rows: bool = Option(False, "--public-rows", help="The rows of the table itself."),
) -> None:
    """Mark inferred values as public knowledge (public = true).

    Only these lines of the file change. Without columns or options, list the unconfirmed values.
    """
    from dpadmm.parameters.suggestions import unknown_name
    from dpadmm.studies.drafts import confirmed_text

    document = read_toml(study_file)
    unconfirmed = confirmations(document)
    if not unconfirmed and study_problems(document):
        raise StudyError(f"{study_file} has problems; correct them first: dpadmm study check {study_file}")
    columns_in_file = document["columns"] if isinstance(document.get("columns"), dict) else ()
    names = [*columns_in_file, *(each.name for each in unconfirmed)]
    for name in columns:
        if name not in names:
            raise unknown_name("column", name, names, study_file)
    groups = {"numbers": numbers, "categories": categories, "label": label, "public-rows": public_rows}
    chosen = [each for each in unconfirmed if everything or groups[each.group] or each.name in columns]
    if not (everything or columns or any(groups.values())):
        _show_unconfirmed(unconfirmed, study_file)
        return
    if chosen:
        text = confirmed_text(study_file.read_bytes().decode(), {each.place for each in chosen})
        write(study_file.resolve(), text.encode())
    left = [each for each in unconfirmed if each not in chosen]
    texts = [*([] if chosen else ["These values are already confirmed."])]
    texts.append(f"{_count_by_group(left)}." if left else "All values confirmed. Next:")
    step = f"  dpadmm study {'confirm' if left else 'check'} {study_file}"
    body: list[Block] = [*_value_table("confirmed", chosen), *map(Paragraph, texts)]
    console.show(Rendering(body=body, next_steps=[step]))


def _show_unconfirmed(unconfirmed: Sequence[Confirmation], study_file: Path) -> None:
    """List the unconfirmed values and the commands that confirm them."""
    groups = dict.fromkeys(group for group in GROUPS if any(each.group == group for each in unconfirmed))
    steps = [f"  dpadmm study confirm {study_file} --{group}" for group in (*groups, "all")] if groups else []
    text = CONFIRM if unconfirmed else "All values confirmed."
    console.show(Rendering(body=[*_value_table("unconfirmed", unconfirmed), Paragraph(text)], next_steps=steps))


def _count_by_group(unconfirmed: Sequence[Confirmation]) -> str:
    """Return the number of unconfirmed values, by group."""
    counts = {group: sum(each.group == group for each in unconfirmed) for group in GROUPS}
    nouns = {"numbers": plural(counts["numbers"], "number"), "label": "the label", "public-rows": "the public rows"}
    nouns["categories"] = "1 category" if counts["categories"] == 1 else f"{counts['categories']} categories"
    by_group = ", ".join(nouns[group] for group in GROUPS if counts[group])
    return f"{plural(len(unconfirmed), 'unconfirmed value')} ({by_group})"


def _value_table(title: str, values: Sequence[Confirmation]) -> list[Table]:
    """Return a table of values; none without values."""
    kinds = {"label": " (label)", "public-rows": " (public rows)"}
    rows = [(f"{each.name}{kinds.get(each.group, '')}", each.values) for each in values]
    return [Table([Column("", title), Column("", "values")], rows)] if rows else []


def _problem_table(problems: Sequence[str], *, place: str) -> list[Table]:
    """Return a table of problems by place; none without problems. The default place is ``place``."""
    matches = [(_PROBLEM.fullmatch(problem), problem) for problem in problems]
    rows = [match.groups() if match else (place, text) for match, text in matches]
    return [Table([Column("", "where"), Column("", "problem")], rows)] if rows else []


@study_app.command("schema")
def schema(
    out: Path | None = Option(None, "--out", "-o", metavar="FILE", help="File to write (default: standard output)."),
) -> None:
    """Write the JSON Schema for study files (for editor completion).

    Editors find it through the first line of a study: #:schema ./study.schema.json
    """
    from dpadmm.studies.json_schema import study_schema

    text = json.dumps(study_schema(), indent=2, ensure_ascii=False) + "\n"
    if out is None:
        typer.echo(text, nl=False)
        return
    write(out, text.encode())
    echo_path(f"Written: {out}")


@study_app.command("show")
def show(study_file: StudyFile, as_json: AsJson = False) -> None:
    """Show a study's hash, columns, model, noise and privacy loss."""
    console.show(read_study(study_file), as_json=as_json)


def write_template(kind: str, path: Path) -> None:
    """Write the packaged example of a study or a site to a new file."""
    check_new(path)
    write(path, template(kind).encode())


def template(kind: str) -> str:
    """Return the packaged example of a study or a site."""
    return (
        files("dpadmm.studies" if kind == "study" else "dpadmm.sites")
        .joinpath("templates", f"{kind}.toml")
        .read_text(encoding="utf-8")
    )
