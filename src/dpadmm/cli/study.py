"""``dpadmm study``: create, check and inspect study files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from dpadmm.accounting.composition import tally_paper_epsilon
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.release_plan import gaussian
from dpadmm.cli.console import (
    TABLE_KINDS,
    AsJson,
    Row,
    StudyFile,
    check_new,
    echo,
    echo_json,
    echo_path,
    rounded_up,
    show_table,
    write,
)
from dpadmm.data.schema import Category, Column, Interaction, Number, Ordinal, Schema
from dpadmm.errors import DataError, StudyError
from dpadmm.files.toml import read_toml
from dpadmm.parameters.fields import parameters
from dpadmm.parameters.suggestions import first_of
from dpadmm.studies.checks import dotted, study_notes, study_warnings
from dpadmm.studies.public_rows import PublicRows
from dpadmm.studies.reading import Confirmation, confirmations, read_study, study_problems, table_parameters
from dpadmm.studies.settings import CHOICES, Training
from dpadmm.studies.study import TABLES, Study

if TYPE_CHECKING:
    from dpadmm.data.encoded import Survey
    from dpadmm.studies.drafts import Draft

study_app = typer.Typer(help="Create, check and inspect study files.", no_args_is_help=True)

MAX_COLUMNS_SHOWN = 60
CONFIRM = "Would these values be public for any data set? Edit any that are not, then confirm:"
GROUPS = {"label": "the label", "numbers": "numbers", "categories": "categories", "public-rows": "the public rows"}
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
    from dpadmm.studies.drafts import secured_text, study_text

    check_new(file)
    text, summary, next_command = template("study"), ["Edit it for your data, then inspect it:"], "show"
    if given:
        draft = _drafted(from_table, dictionary, statistics, label)
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


def _drafted(from_table: Path | None, dictionary: Path | None, statistics: Path | None, label: str | None) -> Draft:
    """Return a draft from a table, a dictionary or private statistics."""
    from dpadmm.data.reader import column_names
    from dpadmm.parameters.suggestions import listed
    from dpadmm.studies.drafts import draft_from_dictionary, draft_from_table

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
    assert from_table is not None
    if label is None:
        names = listed(column_names(from_table))
        raise StudyError(f"--label is required: name the column to predict; {from_table} has {names}")
    return draft_from_table(from_table, label)


def _describe_draft(draft: Draft) -> list[str]:
    """Describe the drafted columns, the omitted ones and the next steps."""
    omitted = [column for column in draft.columns if column.about is None]
    used = len(draft.columns) - len(omitted)
    columns = "1 column" if used == 1 else f"{used} columns"
    lines = [f"{columns} and the label {draft.label['column']!r} from {draft.source}."]
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
    if not draft.confirm:
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
    as_json: AsJson = False,
) -> None:
    """Validate a study file and list unconfirmed values. Exit code 2 if there are any problems.

    With --data: check that the table has the columns, and count cells that would be clamped, unknown or missing.
    These counts carry no noise. Run it on the owner's machine and do not share them.
    """
    document = read_toml(study_file)
    problems, unconfirmed, survey = study_problems(document), confirmations(document), None
    study = None if problems or unconfirmed else read_study(study_file)
    if study and data is not None:
        from dpadmm.data.encoded import plain_schema, survey_table

        survey = survey_table(data, study.schema or plain_schema(study.features), study.label)
        problems = [*survey.problems]
    warnings = study_warnings(study, survey.rows if survey else None) if study else []
    notes = study_notes(study) if study else []
    if study and study.public_rows is not None:
        if study.public_rows.is_here:
            problems += _public_rows_problems(study)
        else:
            warnings.append("the public rows are missing on this machine; train and the server need them")
    if as_json:
        to_confirm = [each._asdict() for each in unconfirmed]
        result = {"problems": problems, "to_confirm": to_confirm, "warnings": warnings, "notes": notes}
        echo_json({**result, "table": counts_of(survey) if survey else None})
    else:
        if study and survey and survey.rows:
            show_survey(study, survey)
        _show_problems(problems, place="the table" if survey else "the study")
        echo(*(f"Warning: {each}." for each in warnings))
        echo(*(f"Note: {each}." for each in notes))
        if study and not problems:
            n_columns = len(study.schema.columns if study.schema else study.features)
            echo(*describe_aggregation(study))
            echo(f"No problems found: {n_columns} columns, {len(study.features)} features. Study hash:")
            echo_path(study.hash)
    counts = problems if len(problems) < 2 else [f"{len(problems)} problems"]
    if unconfirmed:
        counts = [*counts, f"{_count_by_group(unconfirmed)} (dpadmm study confirm {study_file})"]
    if counts:
        raise StudyError(f"{study_file}: {'; '.join(counts)}")


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
    _show_pairs(("confirmed", "values"), [(_title(each), each.values) for each in chosen])
    left = [each for each in unconfirmed if each not in chosen]
    if not chosen:
        echo("These values are already confirmed.")
    echo(f"{_count_by_group(left)}." if left else "All values confirmed. Next:")
    echo_path(f"  dpadmm study {'confirm' if left else 'check'} {study_file}")


def _show_unconfirmed(unconfirmed: Sequence[Confirmation], study_file: Path) -> None:
    """List the unconfirmed values and the commands that confirm them."""
    _show_pairs(("unconfirmed", "values"), [(_title(each), each.values) for each in unconfirmed])
    if not unconfirmed:
        echo("All values confirmed.")
        return
    echo(CONFIRM)
    counts = {group: sum(each.group == group for each in unconfirmed) for group in GROUPS}
    echo_path(*(f"  dpadmm study confirm {study_file} --{group}" for group in (*filter(counts.get, GROUPS), "all")))


def _count_by_group(unconfirmed: Sequence[Confirmation]) -> str:
    """Return the number of unconfirmed values, by group."""
    counts = {words: sum(each.group == group for each in unconfirmed) for group, words in GROUPS.items()}
    by_group = ", ".join(words if words.startswith("the ") else f"{n} {words}" for words, n in counts.items() if n)
    return f"{len(unconfirmed)} unconfirmed value{'s' * (len(unconfirmed) > 1)} ({by_group})"


def _title(value: Confirmation) -> str:
    kinds = {"label": " (label)", "public-rows": " (public rows)"}
    return f"{value.name}{kinds.get(value.group, '')}"


def _show_problems(problems: Sequence[str], *, place: str) -> None:
    """List problems by place. A problem without a place of its own is listed under ``place``."""
    matches = [(_PROBLEM.fullmatch(problem), problem) for problem in problems]
    _show_pairs(("where", "problem"), [match.groups() if match else (place, text) for match, text in matches])


def _show_pairs(headings: tuple[str, str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        show_table(headings, rows, left=(0, 1), fold=(0, 1), first_width=28)


def show_survey(study: Study, survey: Survey) -> None:
    """Show counts by column and warnings, for the owner of the table only."""
    from dpadmm.cli import owner_report
    from dpadmm.data.encoded import plain_schema

    echo(f"{survey.rows:,} rows. These counts are for the data owner only; do not share them.")
    columns = survey.columns | ({f"{study.label.column} (label)": survey.label} if study.label else {})
    changed = owner_report.show_counts(columns, survey.rows)
    label = ["the label"] if study.label and not any(vars(survey.label).values()) else []
    unchanged = len(columns) - changed - len(label)
    other = " other" if unchanged < len(survey.columns) else ""
    names = [f"{unchanged}{other} column{'s' * (unchanged > 1)}"] if unchanged else []
    if names or label:
        echo(f"No clamped, unknown or missing cells in {' and '.join([*names, *label])}.")
    echo(*owner_report.describe_clipping(survey))
    echo(*(f"Warning: {each}" for each in survey.warnings(study.schema or plain_schema(study.features))))


def counts_of(survey: Survey) -> dict[str, Any]:
    """Return the counts of :func:`show_survey` for JSON."""
    columns = {name: asdict(tally) for name, tally in survey.columns.items()}
    return {"rows": survey.rows, "shortened": survey.shortened, "columns": columns, "label": asdict(survey.label)}


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
    study = read_study(study_file)
    if as_json:
        echo_json(figures(study))
        return
    echo(study.name, style="bold")
    echo_path("Study hash (agents accept only this version):", study.hash)
    if study.schema is not None:
        _show_columns(study.schema)
    show_table(("", ""), _facts(study), left=(0, 1), fold=[1], show_header=False)
    echo(*describe_releases(study))


def figures(study: Study) -> dict[str, Any]:
    """Return the hash, shape, noise and privacy loss of a study for JSON."""
    terms = study.terms
    mu_squared, paper = terms.plan.mu_squared(), tally_paper_epsilon(terms.plan.tally(), terms.delta)
    return {
        "hash": study.hash,
        "study": study.as_json(),
        "shape": list(study.shape),
        "lipschitz": float(study.problem.loss.lipschitz),
        "noise_multiplier": study.noise_multiplier,
        "n_rounds": terms.plan.n_rounds,
        "plan": terms.plan.to_list(),
        "delta": terms.delta,
        "epsilon_exact": exact_epsilon(math.sqrt(mu_squared), terms.delta),
        "epsilon_if_others_collude": exact_epsilon(math.sqrt(terms.shares * mu_squared), terms.delta),
        "epsilon_paper": None if math.isnan(paper) else paper,
        "mu_squared": float(mu_squared),
    }


def describe_releases(study: Study) -> list[str]:
    """Describe the queries that an agent answers, and the scope of ε."""
    terms, size = study.terms, math.prod(study.broadcast_shape)
    frequency = "at most once in each of" if study.allow_missed_rounds else "once in each of"
    numbers = f"{size} public numbers" if size > 1 else "one public number"
    releases = ", and ".join(
        f"{f'{frequency} {n} rounds' if n > 1 else 'in one round'} "
        f"the sum of the {gaussian(release).statistic} over all its rows"
        for release, n in terms.plan.tally()
    )
    return [
        f"Each agent releases, with noise, {releases}. It receives {numbers} per round. It releases nothing else "
        "about its rows.",
        "ε protects a person with one row at one agent, against anyone who sees all messages of this study. For a "
        "person with k rows, μ is k times as large. The owner's limits and ledger apply in addition.",
        *describe_aggregation(study),
    ]


def describe_aggregation(study: Study) -> list[str]:
    """State ε with and without the honest sites that secure aggregation assumes."""
    if study.training.min_honest_sites is None:
        return []
    numbers = figures(study)
    return [
        f"Secure aggregation: ε is {rounded_up(numbers['epsilon_exact'])} if at least "
        f"{study.training.min_honest_sites} of the "
        f"sites in a round are honest, and {rounded_up(numbers['epsilon_if_others_collude'])} if all other sites "
        f"collude."
    ]


def _facts(study: Study) -> list[tuple[str, str]]:
    settings, numbers = study.training, figures(study)
    paper = numbers["epsilon_paper"]
    intercept = ", including an intercept" if settings.intercept else ""
    origin = ", ".join(f"{name}: {text}" for name, text in sorted(dotted(study.provenance).items()))
    model = [
        ("model", f"{settings.loss.name} loss, {settings.regularizer.name} regularizer"),
        ("weights", f"{study.shape[0]} × {study.shape[1]}{intercept}"),
        ("method", settings.method.name),
        ("gradient bound of a row, c1", f"{numbers['lipschitz']:g}"),
    ]
    return [
        *_describe_rows(study),
        *(model if study.kind == "training" else [("kind", study.kind), *_describe_statistics(study)]),
        ("rounds", f"{_describe_rounds(settings)}{_describe_quorum(study)}"),
        ("noise multiplier z", study.terms.plan.describe_noise()),
        ("δ", f"{numbers['delta']:g}"),
        ("total ε, exact", rounded_up(numbers["epsilon_exact"])),
        *([("secure aggregation", _describe_sites(study))] if settings.min_honest_sites is not None else []),
        *([("total ε, paper's moments bound", rounded_up(paper))] if paper is not None else []),
        *([("constants", origin or "default")] if study.kind == "training" else []),
        *([("public rows", describe_public_rows(study.public_rows))] if study.public_rows else []),
    ]


def _describe_rounds(settings: Training) -> str:
    if settings.is_open:
        return f"chosen from rows and budget (the noise below is for {settings.planned_rounds})"
    return str(settings.planned_rounds)


def _describe_statistics(study: Study) -> list[tuple[str, str]]:
    """Describe the release of a statistics or evaluation study and its noise."""
    encoding = study.encoding if study.kind == "statistics" else None
    unit = encoding.scale if encoding else 1.0
    noise = 2.0 * study.noise_multiplier * unit / math.sqrt(study.training.planned_rounds)
    factor = "√sites" if study.training.min_honest_sites is None else f"√(sites/{study.training.min_honest_sites})"
    released = "rows by class and bin of the score"
    if encoding:
        tables = getattr(study.training.method, "tables", None) or ()
        released = f"{len(study.features)} counts and moments" + "".join(f"; {one} × {other}" for one, other in tables)
    return [
        ("released", released),
        ("noise of a count, one site", f"± {noise:,.1f} rows; {factor} times that in the sum"),
    ]


def _describe_sites(study: Study) -> str:
    """Describe the roster of a study with secure aggregation."""
    limit = "" if study.max_rows_per_site is None else f", at most {study.max_rows_per_site:,} rows each"
    names = [site.name for site in study.roster]
    sites = f"{len(names)} sites{limit}: {first_of(names)}"
    without = f"no roster yet (dpadmm server propose --offer){limit}"
    return f"at least {study.training.min_honest_sites} honest; {sites if names else without}"


def describe_public_rows(rows: PublicRows) -> str:
    """Return the role and the hash of a study's public rows."""
    return f"used for initialisation at no privacy cost (sha256 {rows.sha256[:12]}…)"


def _describe_quorum(study: Study) -> str:
    if not study.allow_missed_rounds:
        return ""
    quorum = "" if study.quorum is None else f"; quorum {study.quorum} sites"
    deadline = "" if study.deadline is None else f", deadline {study.deadline:g} seconds"
    return f", sites may miss some{quorum}{deadline}"


def _describe_rows(study: Study) -> list[tuple[str, str]]:
    """Describe the label, the columns and the row scaling."""
    names = first_of(study.features)
    classes = "a number" if study.classes is None else ", ".join(map(str, study.classes))
    if study.schema is not None and study.label is None:
        return [("columns", f"{len(study.schema.columns)}")]
    if study.schema is None or study.label is None:
        if study.classes is None and study.problem.loss.task == "binary":
            classes = "-1, 1"
        return [("columns", f"{len(study.features)}: {names}"), ("label", classes)]
    if study.label.bounds is not None:
        classes = f"a number from {study.label.bounds[0]:g} to {study.label.bounds[1]:g}"
        if study.label.counts:
            classes = f"a count up to {study.label.largest:g}"
            if study.label.times is not None:
                classes = f"event or not, in intervals up to {', '.join(f'{time:g}' for time in study.label.times)}"
            if study.label.exposure is not None:
                classes += f", {study.label.exposure} up to {study.label.longest:g}"
    if study.label.weight is not None:
        classes += f"; weights {study.label.weight} up to {study.label.weight_bound:g}"
    if study.label.class_weight is not None:
        classes += f"; class weights {', '.join(f'{name} {each:g}' for name, each in study.label.class_weight.items())}"
    scale = f"1/{study.schema.scale:.4g}"
    derived = f"1/√{round(study.schema.scale**2)} = {scale}"
    return [
        ("label", f"{study.label.column}: {classes}"),
        ("columns", f"{len(study.schema.columns)}, encoded as {len(study.features)} features"),
        ("features", names),
        ("row scaling", derived if study.schema.row_norm is None else f"{scale} (row_norm)"),
    ]


def _show_columns(schema: Schema) -> None:
    """Show the name, kind, and public bounds or values of every column."""
    rows: list[Row] = [
        (
            column.name,
            "interaction" if isinstance(column, Interaction) else column.kind,
            _domain(column),
            str(len(column.features)),
        )
        for column in schema.terms[:MAX_COLUMNS_SHOWN]
    ]
    more = len(schema.terms) - MAX_COLUMNS_SHOWN
    rows += [(f"and {more:,} more", "", "", "")] if more > 0 else []
    show_table(("column", "kind", "bounds or values", "features"), rows, left=range(3), fold=(0, 2))


def _domain(column: Column | Interaction) -> str:
    """Return the public bounds or values of a column."""
    if isinstance(column, Interaction):
        return "products of both columns' features"
    if isinstance(column, Number):
        low, high = (f"{int(x):,}" if float(x).is_integer() and abs(x) < 1e12 else f"{x:g}" for x in column.bounds)
        bins = f", cut at {', '.join(f'{edge:g}' for edge in column.bins)}" if column.bins else ""
        center = "" if column.center is None else f", center {column.center:g}, scale {column.scale:g}"
        bins += f", linear between {', '.join(f'{knot:g}' for knot in column.knots)}" if column.knots else ""
        text = f"{low} to {high}{', log' if column.transform == 'log' else ''}{center}{bins}"
    elif isinstance(column, Category | Ordinal):
        text = first_of(column.values, 8, between=" < " if isinstance(column, Ordinal) else ", ")
    else:
        text = "not scaled" if column.kind == "plain" else ""
    missing = getattr(column, "missing", "middle") == "indicator"
    return "; ".join(part for part in (text, "missing indicator" if missing else "") if part)


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
