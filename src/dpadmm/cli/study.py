"""``dpadmm study``: draft the public contract of a run, check it, and see what it asks of every agent."""

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
from dpadmm.cli.screen import (
    TABLE_KINDS,
    AsJson,
    Row,
    StudyFile,
    check_new,
    echo_json,
    rounded_up,
    say,
    say_path,
    show_table,
    write,
)
from dpadmm.data.schema import Category, Column, Interaction, Number, Ordinal, Schema
from dpadmm.errors import DPADMMError, StudyError
from dpadmm.files.toml import read_toml
from dpadmm.parameters.fields import parameters
from dpadmm.parameters.suggestions import first_of
from dpadmm.studies.public_rows import PublicRows
from dpadmm.studies.settings import REGISTRIES
from dpadmm.studies.study import (
    TABLES,
    Confirmation,
    Study,
    confirmations,
    read_study,
    study_notes,
    study_problems,
    study_warnings,
    table_parameters,
)

if TYPE_CHECKING:
    from dpadmm.data.encoded import Survey
    from dpadmm.studies.drafts import Draft

study_app = typer.Typer(help="A study: the public contract of a run.", no_args_is_help=True)

MOST_SHOWN = 60
CONFIRM = "Are these public knowledge, whoever's rows are used? Correct in the file what is not; then confirm them:"
GROUPS = {"label": "the label", "numbers": "numbers", "categories": "categories", "public-rows": "the public rows"}
_WHERE = re.compile(
    rf"(column '[^']*'|the label '[^']*'|label|{'|'.join((*REGISTRIES, *TABLES))}|provenance|public_rows|study): (.+)"
)


@study_app.command("new")
def new(
    file: Path = Argument(..., help="The file to write.", metavar="FILE"),
    from_table: Path | None = Option(
        None, "--from", metavar="TABLE", help=f"A public or dummy table ({TABLE_KINDS}). Never private rows."
    ),
    label: str | None = Option(None, metavar="COLUMN", help="The column to predict."),
    dictionary: Path | None = Option(
        None,
        "--from-dictionary",
        metavar="DICT.csv",
        help="A data dictionary: a line for every column, with name, kind, low, high, values (a|b|c), description.",
    ),
    statistics: Path | None = Option(
        None,
        "--from-statistics",
        metavar="RESULTS.json",
        help="Private statistics, by dpadmm describe or from sites: centers and scales come from them.",
    ),
    model: Path | None = Option(
        None, "--from-model", metavar="MODEL", help="A model to evaluate on the rows of sites: an evaluation study."
    ),
    kind: str = Option("training", metavar="KIND", help="training, or statistics (with --from-dictionary)."),
    by: str | None = Option(None, metavar="COLUMN", help="A column that says who owns a row: left out."),
    name: str | None = Option(None, metavar="TEXT", help="The study's name."),
    dummy: bool = Option(False, "--dummy", help="The rows of TABLE are made up: training does not start from them."),
    trust: str = Option(
        "local", metavar="TRUST", help="local, or secure_aggregation: only the sum of answers is seen."
    ),
    honest: int | None = Option(
        None, metavar="H", help="With secure_aggregation: the sites of a round that are honest, at least."
    ),
    most_rows: int | None = Option(None, metavar="M", help="With secure_aggregation: no site has more rows."),
) -> None:
    """Write a commented study file to edit: an example, or a draft for your columns.

    What was read off a table is marked public = false; the study is refused until you have looked at each
    value and said true. A dictionary is public, and needs no confirmation. Training starts from the rows of the
    table, once you have confirmed that anyone may see them.
    """
    masked = _secure_aggregation(trust, honest, most_rows)
    if dummy and from_table is None:
        raise StudyError("--dummy is about a table: give --from TABLE too")
    sources = {"--from": from_table, "--from-dictionary": dictionary, "--from-statistics": statistics}
    sources["--from-model"] = model
    if len(given := [each for each, path in sources.items() if path is not None]) > 1:
        raise StudyError(f"give one of {' and '.join(given)}, not both")
    if kind not in ("training", "statistics"):
        raise StudyError(f"--kind must be training or statistics, not {kind!r:.60}; --from-model makes evaluations")
    drafted = bool(given)
    if kind == "statistics" or model is not None:
        return _new_release(file, dictionary, model, name, masked, unfit=[label, by, from_table, statistics])
    if not drafted and (label is not None or name is not None or by is not None):
        raise StudyError("--label, --by and --name are for drafts: give --from TABLE or --from-dictionary too")
    from dpadmm.studies.drafts import secured_text, study_text

    check_new(file)
    text, said, then = template("study"), ["Edit it for your question; then see what it means:"], "show"
    if drafted:
        draft = _drafted(from_table, dictionary, statistics, label)
        draft = draft if by is None else draft.without(by)
        draft = draft.without_public_rows() if dummy else draft
        text = study_text(draft, name or f"{draft.label['column']}, by {Path(draft.source).stem}", file.parent)
        said, then = _draft_in_words(draft), "check"
    write(file, (secured_text(text, *masked) if masked else text).encode())
    say_path(f"Written: {file}")
    say(*said)
    say_path(f"  dpadmm study {then} {file}")
    return None


def _new_release(
    file: Path,
    dictionary: Path | None,
    model: Path | None,
    name: str | None,
    masked: tuple[int, int] | None,
    *,
    unfit: Sequence[object],
) -> None:
    """Write a study of the kind statistics or evaluation."""
    from dpadmm.studies.drafts import columns_from_dictionary, evaluation_text, secured_text, statistics_text

    if any(each is not None for each in unfit) or (dictionary is None and model is None):
        raise StudyError(
            "a statistics study is drafted with --kind statistics --from-dictionary DICT.csv, and an evaluation with "
            "--from-model MODEL; both take no label and no other table"
        )
    check_new(file)
    if dictionary is not None:
        text = statistics_text(
            columns_from_dictionary(dictionary), name or f"statistics, by {dictionary.stem}", dictionary.name
        )
        text = secured_text(text, *masked) if masked else text
    else:
        from dpadmm.models.evaluate import evaluation_study
        from dpadmm.models.file import load_model

        assert model is not None
        trust = {"trust": "secure_aggregation", "honest": masked[0]} if masked else {}
        made = evaluation_study(
            load_model(model), name or f"evaluation of {model.stem}", epsilon=1.0, delta=1e-5, **trust
        )
        text = evaluation_text(made if masked is None else replace(made, most_rows=masked[1]))
    write(file, text.encode())
    say_path(f"Written: {file}")
    say("Choose what it releases and the privacy; then see what it means:")
    say_path(f"  dpadmm study check {file}")


def _secure_aggregation(trust: str, honest: int | None, most_rows: int | None) -> tuple[int, int] | None:
    """How many sites are honest and the most rows of one; None for local trust."""
    known = {each.name: each for each in (*table_parameters("privacy"), *parameters(Study))}
    if known["trust"].checked(trust) == "local":
        if honest is not None or most_rows is not None:
            raise StudyError("--honest and --most-rows are for --trust secure_aggregation")
        return None
    if honest is None or most_rows is None:
        raise StudyError(
            "secure_aggregation needs --honest, how many sites of a round can be relied on not to work with the "
            "aggregator, and --most-rows, a number of rows that no site exceeds"
        )
    return known["honest"].checked(honest), known["most_rows"].checked(most_rows)


def _drafted(from_table: Path | None, dictionary: Path | None, statistics: Path | None, label: str | None) -> Draft:
    """A draft from a table, a dictionary or private statistics, whichever is given."""
    from dpadmm.data.reader import column_names
    from dpadmm.parameters.suggestions import listed
    from dpadmm.studies.drafts import draft_from_dictionary, draft_from_table

    if dictionary is not None:
        return draft_from_dictionary(dictionary, label)
    if statistics is not None:
        from dpadmm.models.description import draft_from_statistics, load_description

        found = load_description(statistics)
        if label is None:
            raise StudyError(f"say which column is predicted: --label COLUMN; there are {listed(found.columns)}")
        return draft_from_statistics(found, label)
    assert from_table is not None
    if label is None:
        names = listed(column_names(from_table))
        raise StudyError(f"say which column is predicted: --label COLUMN; {from_table} has {names}")
    return draft_from_table(from_table, label)


def _draft_in_words(draft: Draft) -> list[str]:
    """What was drafted, what was left out, and what is to be done."""
    out = [each for each in draft.columns if each.about is None]
    used = len(draft.columns) - len(out)
    columns = "1 column" if used == 1 else f"{used} columns"
    said = [f"{columns} and the label {draft.label['column']!r} from {draft.source}."]
    if out:
        reasons = [f"{each.name!r} ({each.comment.partition(';')[0]})" for each in out]
        said.append(f"Left out: {first_of(reasons, 8, between='; ')}.")
    said += [f"Column {each.name!r} {each.comment}" for each in draft.columns if each.has_question]
    said += [f"The label: {each}." for each in draft.comments]
    if asked := [repr(each.name) for each in draft.columns if each.about and each.comment and not each.has_question]:
        said.append(f"Comments in the file ask about {first_of(asked, 8)}.")
    if draft.not_public:
        said.append(f"Training will not start from the rows of {draft.source}: {draft.not_public}.")
    if draft.public_rows is not None:
        said.append(
            "Training will start from these rows once you confirm that anyone may see them; delete [public_rows] "
            "from the file if not."
        )
    if not draft.confirm:
        return [*said, "Choose the model and the privacy; then:"]
    return [
        *said,
        "Its bounds, centers, scales, values and classes were read off the table. Open the file, correct what is not "
        "public knowledge, and confirm the rest (dpadmm study confirm). Then check it:",
    ]


@study_app.command("check")
def check(
    study_file: StudyFile,
    data: Path | None = Option(None, metavar="TABLE", help="Also count on your table what would be clamped."),
    as_json: AsJson = False,
) -> None:
    """List every problem of a study, one per line, and what waits to be confirmed. Exit code 2 if there is any.

    With a table, on its owner's machine: whether it has the columns, and how many cells would be clamped,
    unknown or missing. Those counts are for the owner's eyes only.
    """
    said = read_toml(study_file)
    problems, waiting, survey = study_problems(said), confirmations(said), None
    study = None if problems or waiting else read_study(study_file)
    if study and data is not None:
        from dpadmm.data.encoded import plain_schema, survey_table

        survey = survey_table(data, study.schema or plain_schema(study.features), study.label)
        problems = [*survey.problems]
    warnings = study_warnings(study, survey.rows if survey else None) if study else []
    notes = study_notes(study) if study else []
    if study and study.public_rows is not None:
        if study.public_rows.is_here:
            problems += _of_public_rows(study)
        else:
            warnings.append("the public rows are not here; whoever trains or aggregates needs them")
    if as_json:
        to_confirm = [each._asdict() for each in waiting]
        about = {"problems": problems, "to_confirm": to_confirm, "warnings": warnings, "notes": notes}
        echo_json({**about, "table": counts_of(survey) if survey else None})
    else:
        if study and survey and survey.rows:
            show_survey(study, survey)
        _show_problems(problems, place="the table" if survey else "the study")
        say(*(f"Warning: {each}." for each in warnings))
        say(*(f"Note: {each}." for each in notes))
        if study and not problems:
            n_columns = len(study.schema.columns if study.schema else study.features)
            say(*trust_in_words(study))
            say(f"No problem found: {n_columns} columns, {len(study.features)} features. Hash of the study:")
            say_path(study.hash)
    counts = problems if len(problems) < 2 else [f"{len(problems)} problems"]
    if waiting:
        counts = [*counts, f"{_wait(waiting)} to be confirmed (dpadmm study confirm {study_file})"]
    if counts:
        raise StudyError(f"{study_file}: {'; '.join(counts)}")


def _of_public_rows(study: Study) -> list[str]:
    """What is wrong with a study's public rows, which are here."""
    from dpadmm.training.train import prior_from

    assert study.public_rows is not None
    try:
        prior_from(study, study.public_rows.verified())
    except DPADMMError as error:
        return [f"public_rows: {error}"]
    return []


@study_app.command("confirm")
def confirm(
    study_file: StudyFile,
    columns: list[str] = Argument([], metavar="[COLUMN]...", help="Columns by name.", show_default=False),
    everything: bool = Option(False, "--all", help="All that waits."),
    numbers: bool = Option(False, "--numbers", help="Bounds, centers and scales."),
    categories: bool = Option(False, "--categories", help="Values of categories and ordinals."),
    label: bool = Option(False, "--label", help="The label's classes or bounds."),
    public_rows: bool = Option(False, "--public-rows", help="That anyone may see the rows of the table itself."),
) -> None:
    """Confirm that values inferred from a table are public knowledge: public = true.

    The question at the end of such a line is removed. Nothing else in the file changes. Without a choice, the
    unconfirmed values are listed.
    """
    from dpadmm.parameters.suggestions import unknown_name
    from dpadmm.studies.drafts import confirmed_text

    said = read_toml(study_file)
    waiting = confirmations(said)
    if not waiting and study_problems(said):
        raise StudyError(f"{study_file} has problems; correct them first: dpadmm study check {study_file}")
    names = [*(said["columns"] if isinstance(said.get("columns"), dict) else ()), *(each.name for each in waiting)]
    for name in columns:
        if name not in names:
            raise unknown_name("column", name, names, study_file)
    groups = {"numbers": numbers, "categories": categories, "label": label, "public-rows": public_rows}
    chosen = [each for each in waiting if everything or groups[each.group] or each.name in columns]
    if not (everything or columns or any(groups.values())):
        _show_waiting(waiting, study_file)
        return
    if chosen:
        text = confirmed_text(study_file.read_bytes().decode(), {each.place for each in chosen})
        write(study_file.resolve(), text.encode())
    _two_columns(("confirmed", "values"), [(_who(each), each.values) for each in chosen])
    left = [each for each in waiting if each not in chosen]
    if not chosen:
        say("None of these waits to be confirmed.")
    say(f"{_wait(left).capitalize()} to be confirmed." if left else "Nothing waits any more. Next:")
    say_path(f"  dpadmm study {'confirm' if left else 'check'} {study_file}")


def _show_waiting(waiting: Sequence[Confirmation], study_file: Path) -> None:
    """All that waits, and how to confirm it."""
    _two_columns(("to confirm", "values"), [(_who(each), each.values) for each in waiting])
    if not waiting:
        say("Nothing waits to be confirmed.")
        return
    say(CONFIRM)
    found = {group: sum(each.group == group for each in waiting) for group in GROUPS}
    say_path(*(f"  dpadmm study confirm {study_file} --{each}" for each in (*filter(found.get, GROUPS), "all")))


def _wait(waiting: Sequence[Confirmation]) -> str:
    """How many values wait, by group."""
    found = {words: sum(each.group == group for each in waiting) for group, words in GROUPS.items()}
    by_group = ", ".join(words if words.startswith("the ") else f"{n} {words}" for words, n in found.items() if n)
    return f"1 value ({by_group}) waits" if len(waiting) == 1 else f"{len(waiting)} values ({by_group}) wait"


def _who(waiting: Confirmation) -> str:
    kinds = {"label": " (label)", "public-rows": " (public rows)"}
    return f"{waiting.name}{kinds.get(waiting.group, '')}"


def _show_problems(problems: Sequence[str], *, place: str) -> None:
    """Mistakes with their place; sentences that name none are about the ``place`` as a whole."""
    found = [(_WHERE.fullmatch(each), each) for each in problems]
    _two_columns(("where", "problem"), [match.groups() if match else (place, each) for match, each in found])


def _two_columns(headings: tuple[str, str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        show_table(headings, rows, left=(0, 1), fold=(0, 1), first_width=28)


def show_survey(study: Study, survey: Survey) -> None:
    """Counts by column, and warnings: for the owner's eyes only."""
    from dpadmm.cli import owner_report
    from dpadmm.data.encoded import plain_schema

    say(f"{survey.rows:,} rows. For your eyes only: how the study reads their cells.")
    columns = survey.columns | ({f"{study.label.column} (label)": survey.label} if study.label else {})
    changed = owner_report.show_counts(columns, survey.rows)
    label = ["the label"] if study.label and not any(vars(survey.label).values()) else []
    quiet = len(columns) - changed - len(label)
    other = " other" if quiet < len(survey.columns) else ""
    names = [f"{quiet}{other} column{'s' * (quiet > 1)}"] if quiet else []
    if names or label:
        say(f"No such cells in {' and '.join([*names, *label])}.")
    say(*owner_report.shortened(survey))
    say(*(f"Warning: {each}" for each in survey.warnings(study.schema or plain_schema(study.features))))


def counts_of(survey: Survey) -> dict[str, Any]:
    """The same, for programs."""
    columns = {name: asdict(tally) for name, tally in survey.columns.items()}
    return {"rows": survey.rows, "shortened": survey.shortened, "columns": columns, "label": asdict(survey.label)}


@study_app.command("schema")
def schema(
    out: Path | None = Option(None, "--out", "-o", metavar="FILE", help="The file to write; else it is shown."),
) -> None:
    """Write the JSON Schema of study files, with which editors complete and check them.

    Editors find it by the first line of a study: #:schema ./study.schema.json
    """
    from dpadmm.studies.json_schema import study_schema

    text = json.dumps(study_schema(), indent=2, ensure_ascii=False) + "\n"
    if out is None:
        typer.echo(text, nl=False)
        return
    write(out, text.encode())
    say_path(f"Written: {out}")


@study_app.command("show")
def show(study_file: StudyFile, as_json: AsJson = False) -> None:
    """Check a study, and show its hash, its columns, its model, its noise and what it costs."""
    study = read_study(study_file)
    if as_json:
        echo_json(figures(study))
        return
    say(study.name, style="bold")
    say_path("Hash, which every agent pins:", study.hash)
    if study.schema is not None:
        _show_columns(study.schema)
    show_table(("", ""), _facts(study), left=(0, 1), fold=[1], show_header=False)
    say(*in_words(study))


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
        "epsilon_alone": exact_epsilon(math.sqrt(terms.shares * mu_squared), terms.delta),
        "epsilon_paper": None if math.isnan(paper) else paper,
        "mu_squared": float(mu_squared),
    }


def in_words(study: Study) -> list[str]:
    """What is asked of an agent."""
    terms, size = study.terms, math.prod(study.broadcast_shape)
    often = "at most once in each of" if study.allow_missed_rounds else "once in each of"
    numbers = f"{size} numbers" if size > 1 else "one number"
    asked = ", and ".join(
        f"{f'{often} {n} rounds' if n > 1 else 'in one round'} "
        f"the sum of the {gaussian(release).statistic} over all its rows"
        for release, n in terms.plan.tally()
    )
    return [
        f"Asked of an agent: {asked}, with noise, at public numbers that are sent to it ({numbers}). Nothing "
        "else about the rows is asked for.",
        "The ε is for each person with one row at one agent, against everyone who sees all messages of this "
        "study. With k rows μ is k times as large; every owner's own limits and ledger decide.",
        *trust_in_words(study),
    ]


def trust_in_words(study: Study) -> list[str]:
    """What ε rests on with secure aggregation, and what is left of it otherwise."""
    if study.training.honest is None:
        return []
    found = figures(study)
    return [
        f"Secure aggregation: if at least {study.training.honest} of the sites that take part in a round are honest: "
        f"ε {rounded_up(found['epsilon_exact'])}; if all others work together against you: ε "
        f"{rounded_up(found['epsilon_alone'])}."
    ]


def _facts(study: Study) -> list[tuple[str, str]]:
    settings, numbers = study.training, figures(study)
    paper = numbers["epsilon_paper"]
    constant = ", one for a constant" if settings.intercept else ""
    by_size = " across sites; in one process, what suits rows and budget"
    origin = ", ".join(f"{name}: {text}" for name, text in sorted(study.provenance.items()))
    model = [
        ("model", f"{settings.loss.name} loss, {settings.regularizer.name} regularizer"),
        ("weights", f"{study.shape[0]} × {study.shape[1]}{constant}"),
        ("method", settings.method.name),
        ("bound of a row's gradient c1", f"{numbers['lipschitz']:g}"),
    ]
    return [
        *_rows_in_words(study),
        *(model if study.kind == "training" else [("kind", study.kind), *_release_in_words(study)]),
        ("rounds", f"{settings.planned_rounds}{by_size if settings.n_rounds is None else ''}{_absences(study)}"),
        ("noise multiplier z", study.terms.plan.noise_in_words()),
        ("δ", f"{numbers['delta']:g}"),
        ("total ε, exact", rounded_up(numbers["epsilon_exact"])),
        *([("secure aggregation", _sites_in_words(study))] if settings.honest is not None else []),
        *([("total ε, paper's moments bound", rounded_up(paper))] if paper is not None else []),
        *([("constants", origin or "all of them the defaults")] if study.kind == "training" else []),
        *([("public rows", start_in_words(study.public_rows))] if study.public_rows else []),
    ]


def _release_in_words(study: Study) -> list[tuple[str, str]]:
    """What a study that trains nothing releases, and how noisy it is."""
    encoding = study.encoding if study.kind == "statistics" else None
    unit = encoding.scale if encoding else 1.0
    noise = 2.0 * study.noise_multiplier * unit / math.sqrt(study.training.planned_rounds)
    share = "" if study.training.honest is None else f", and √(sites/{study.training.honest}) times that in their sum"
    apart = "" if study.training.honest is not None else ", and √sites times that in their sum"
    what = "rows by class and bin of the score"
    if encoding:
        tables = getattr(study.training.method, "tables", None) or ()
        what = f"{len(study.features)} counts and moments" + "".join(f"; {one} × {other}" for one, other in tables)
    return [("released", what), ("noise of a count, one site", f"± {noise:,.1f} rows{share}{apart}")]


def _sites_in_words(study: Study) -> str:
    """Who is in the roster of a study with secure aggregation."""
    most = "" if study.most_rows is None else f", of at most {study.most_rows:,} rows each"
    names = [each.name for each in study.roster]
    sites = f"{len(names)} sites{most}: {first_of(names)}"
    without = f"no roster of sites yet (dpadmm aggregator roster){most}"
    return f"at least {study.training.honest} honest; {sites if names else without}"


def start_in_words(rows: PublicRows) -> str:
    """That training starts from public rows."""
    return f"training starts from public rows (sha256 {rows.sha256[:12]}…), which costs nothing"


def _absences(study: Study) -> str:
    if not study.allow_missed_rounds:
        return ""
    quorum = "" if study.quorum is None else f"; {study.quorum} sites make a round"
    deadline = "" if study.deadline is None else f", after {study.deadline:g} seconds"
    return f", some may be missed{quorum}{deadline}"


def _rows_in_words(study: Study) -> list[tuple[str, str]]:
    """What the rows are made of."""
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
                classes = f"an event or not by intervals up to {', '.join(f'{each:g}' for each in study.label.times)}"
            if study.label.exposure is not None:
                classes += f", {study.label.exposure} up to {study.label.longest:g}"
    if study.label.weight is not None:
        classes += f"; weights {study.label.weight} up to {study.label.weight_bound:g}"
    if study.label.class_weight is not None:
        classes += f"; class weights {', '.join(f'{name} {each:g}' for name, each in study.label.class_weight.items())}"
    declared = " (declared)" if study.schema.row_norm is not None else ", the square root of columns"
    declared += " and interactions" if study.schema.interactions and study.schema.row_norm is None else ""
    return [
        ("label", f"{study.label.column}: {classes}"),
        ("columns", f"{len(study.schema.columns)}, which make {len(study.features)} features"),
        ("features", names),
        ("rows are divided by R", f"{study.schema.scale:.4g}{declared}"),
    ]


def _show_columns(schema: Schema) -> None:
    """Name, kind, and public bounds or values of every column."""
    rows: list[Row] = [
        (column.name, getattr(column, "kind", "interaction"), _holds(column), str(len(column.features)))
        for column in schema.terms[:MOST_SHOWN]
    ]
    more = len(schema.terms) - MOST_SHOWN
    rows += [(f"and {more:,} more", "", "", "")] if more > 0 else []
    show_table(("column", "kind", "bounds or values", "features"), rows, left=range(3), fold=(0, 2))


def _holds(column: Column | Interaction) -> str:
    if isinstance(column, Interaction):
        return "products of both columns' features"
    if isinstance(column, Number):
        low, high = (f"{int(x):,}" if float(x).is_integer() and abs(x) < 1e12 else f"{x:g}" for x in column.bounds)
        bins = f", cut at {', '.join(f'{edge:g}' for edge in column.bins)}" if column.bins else ""
        usual = "" if column.center is None else f", center {column.center:g}, scale {column.scale:g}"
        bins += f", straight between {', '.join(f'{knot:g}' for knot in column.knots)}" if column.knots else ""
        text = f"{low} to {high}{', log' if column.transform == 'log' else ''}{usual}{bins}"
    elif isinstance(column, Category | Ordinal):
        text = first_of(column.values, 8, between=" < " if isinstance(column, Ordinal) else ", ")
    else:
        text = "as it is" if column.kind == "plain" else ""
    missing = getattr(column, "missing", "middle") == "indicator"
    return "; ".join(each for each in (text, "missing is said" if missing else "") if each)


def write_template(kind: str, path: Path) -> None:
    """The packaged example of a study or a site, to a file that must be new."""
    check_new(path)
    write(path, template(kind).encode())


def template(kind: str) -> str:
    """The packaged example of a study or a site."""
    return (
        files("dpadmm.studies" if kind == "study" else "dpadmm.sites")
        .joinpath("templates", f"{kind}.toml")
        .read_text(encoding="utf-8")
    )
