"""Description of a study for terminal, JSON and notebooks."""

from __future__ import annotations

import math
from typing import Any

from dpadmm.accounting.composition import tally_paper_epsilon
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.release_plan import gaussian
from dpadmm.data.schema import Boolean, Category, Column, Interaction, Number, Ordinal, Schema
from dpadmm.methods import StatisticsRelease
from dpadmm.parameters.suggestions import first_of
from dpadmm.rendering import Block, Fact, Facts, Paragraph, Rendering, Table
from dpadmm.rendering import Column as TableColumn
from dpadmm.rendering.formats import rounded_up
from dpadmm.studies.checks import dotted
from dpadmm.studies.public_rows import PublicRows
from dpadmm.studies.settings import Training
from dpadmm.studies.study import Study

MAX_COLUMNS_SHOWN = 60


def render_study(study: Study) -> Rendering:
    """Return the description of a study: hash, columns, model, noise and privacy loss."""
    body: list[Block] = [Paragraph("Study hash (agents accept only this version):"), Paragraph(study.hash)]
    if study.schema is not None:
        body += _columns(study.schema)
    body.append(Facts([Fact("", name, text) for name, text in _facts(study)]))
    body += [Paragraph(text) for text in describe_releases(study)]
    return Rendering(study.name, body, data=figures(study))


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
        method = study.training.method
        tables = (isinstance(method, StatisticsRelease) and method.tables) or ()
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


def _columns(schema: Schema) -> list[Block]:
    """Return a table with the name, kind, and public bounds or values of every column."""
    rows = [
        (
            column.name,
            "interaction" if isinstance(column, Interaction) else column.kind,
            _domain(column),
            str(len(column.features)),
        )
        for column in schema.terms
    ]
    titles = ("column", "kind", "bounds or values")
    columns = [*(TableColumn("", title) for title in titles), TableColumn("", "features", align="right")]
    more = len(rows) - MAX_COLUMNS_SHOWN
    return [
        Table(columns, rows, max_rows=MAX_COLUMNS_SHOWN),
        *([Paragraph(f"and {more:,} more columns")] if more > 0 else []),
    ]


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
    missing = isinstance(column, Number | Ordinal | Boolean) and column.missing == "indicator"
    return "; ".join(part for part in (text, "missing indicator" if missing else "") if part)
