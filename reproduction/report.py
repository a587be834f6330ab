"""Render results as an HTML page, as a Markdown page, or as files of figures, tables and claims."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
import numpy as np
import pandas as pd
from markupsafe import Markup

from dpadmm.baselines import METHOD_TITLES
from dpadmm.figures.comparison import BUDGETS
from dpadmm.figures.style import Picture, power, save_figure
from dpadmm.training.run_folder import write_text
from reproduction import series
from reproduction.claims import Claim, claims, few_splits_warning, summary_of, verdict_counts
from reproduction.figures import PAPER, pictures
from reproduction.measurements import times
from reproduction.results import SETTINGS, Results
from reproduction.rules import CLEAR, ClaimVerdict
from reproduction.series import at_end, distinct, done, missing, split, started

SIGNS = dict(zip(ClaimVerdict, "✓◐✗○–", strict=True))
"""Verdicts are shown by sign and word, not by colour alone."""


def report_html(results: Results, *, source: str = "RESULTS") -> str:
    """Return a self-contained page, without network access, scripts or other files.

    ``source`` is the argument of ``python -m reproduction report``.
    """
    found, drawn = claims(results), pictures(results)
    css = files("reproduction").joinpath("templates/report.css").read_text(encoding="utf-8")
    order = [ClaimVerdict.FAILS, ClaimVerdict.IN_PART, ClaimVerdict.NOT_APPLICABLE]
    methods = set(distinct(results, "method")) - {"admm", "centralized"}
    contents = _common_contents(results, found)
    return _render(
        "report.html",
        **contents | {"tables": [table for table in contents["tables"] if table.name != "settings"]},
        css=Markup(css),  # from the package, not from users
        of_paper=bool(set(PAPER) & set(started(results))),
        claim_groups=[(title, group, verdict_counts(group)) for title, group in contents["groups"].items()],
        notable=[claim for verdict in order for claim in found if claim.verdict is verdict],
        pictures=[(picture, image(picture)) for picture in drawn],
        titles={picture.name: picture.title for picture in drawn},
        settings=settings_table(results),
        private=[words for name, words in METHOD_TITLES.items() if name in methods],
        grid=grid_text(results),
        source=source,
    )


def _common_contents(results: Results, found: Sequence[Claim]) -> dict[str, Any]:
    """Return the contents of every kind of report."""
    groups = {
        "The paper's claims": [claim for claim in found if claim.from_paper],
        "Claims that we added": [claim for claim in found if not claim.from_paper],
    }
    return {
        "groups": {title: group for title, group in groups.items() if group},
        "in_short": summary_of(found),
        "few_splits": few_splits_warning(found),
        "signs": SIGNS,
        "clear": CLEAR,
        "title": display_title(results.grid.get("title") or "Comparison of methods"),
        "meta": results.meta,
        "facts": facts(results),
        "missing": missing(results),
        "tables": tables(results),
        "refusals": refusals(results),
    }


def _render(template: str, **words: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("reproduction"),
        autoescape=jinja2.select_autoescape(["html"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"slug": slug, "together": together, "anchor": _anchor, "escaped": _escaped}
    return environment.get_template(template).render(words)


def image(picture: Picture) -> str:
    """Return a figure as a data URL: SVG with text as paths, so that it looks the same everywhere."""
    out = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "dpadmm", "svg.fonttype": "path"}):
        picture.figure.savefig(out, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(out.getvalue()).decode()


def slug(text: str) -> str:
    """Return a link name of letters, digits and hyphens."""
    return "".join(char if char.isalnum() and char.isascii() else "-" for char in text.lower())


def together(text: str) -> str:
    """Return the text with no-break spaces in ``a ± b`` and ``a = b``."""
    return re.sub(r" ([±=]) ", "\u00a0\\1\u00a0", text)


def _anchor(heading: str) -> str:
    """Return the anchor of a heading as Markdown viewers create it: lower case, no punctuation, hyphens for spaces."""
    return "".join(char for char in heading.lower() if char.isalnum() or char in " -_").replace(" ", "-")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def refusals(results: Results) -> list[tuple[str, str, str]]:
    """Return (method, experiments, reason) of every method that refused, once for each reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in results.experiments:
        here = results.select(name).select(status="refused")
        for method, reason in zip(here.frame["method"], here.frame["reason"], strict=True):
            found.setdefault((method, reason), []).append(name)
    return [
        (METHOD_TITLES.get(method, method), ", ".join(dict.fromkeys(names)), reason)
        for (method, reason), names in found.items()
    ]


def facts(results: Results) -> list[tuple[str, str]]:
    """Return (name, value) of data, runs, agents and rounds."""
    data, lines = results.meta.get("data", {}), done(results)
    return [
        ("Data", f"{data.get('name')}: {data.get('rows')} rows, {data.get('features')} features"),
        ("Runs", f"{len(results.cells)}, over {series.random_splits(lines)}"),
        ("Agents", ", ".join(map(str, distinct(lines, "n_agents")))),
        ("Rounds", ", ".join(map(str, distinct(lines, "n_rounds")))),
    ]


def write_markdown(results: Results, page: Path, *, source: str) -> list[Path]:
    """Write a Markdown page and its figures (PNG) in a folder next to it; return the paths."""
    folder = page.with_name(f"{page.stem}-figures")
    drawn, found = pictures(results), claims(results)
    written = [path for picture in drawn for path in save_figure(picture.figure, folder / picture.name, ("png",))]
    text = _render(
        "report.md",
        **_common_contents(results, found),
        source=source,
        page=page.name,
        folder=folder.name,
        deviations=page.with_name("deviations.md").exists(),
        found=found,
        pictures=drawn,
    )
    write_text(page, f"{text.rstrip()}\n")
    return [page, *written]


def claims_json(found: Sequence[Claim]) -> str:
    return json.dumps([claim.as_json() for claim in found], indent=2, ensure_ascii=False) + "\n"


def write_all(results: Results, folder: Path) -> list[Path]:
    """Write every figure (PNG and SVG), table (CSV) and claim (JSON) of the results. Return the paths."""
    written: list[Path] = []
    for picture in pictures(results):
        written += save_figure(picture.figure, folder / "figures" / picture.name)
    texts = {f"tables/{table.name}.csv": table.csv() for table in tables(results)}
    if found := claims(results):
        texts["claims.json"] = claims_json(found)
    for name, text in texts.items():
        write_text(folder / name, text)
        written.append(folder / name)
    return written


@dataclass(frozen=True)
class ReportTable:
    """A table of text with its file name, heading and note."""

    name: str
    title: str
    note: str
    frame: pd.DataFrame

    def markdown(self) -> str:
        rows = [self.frame.columns, ["---"] * self.frame.shape[1], *self.frame.itertuples(index=False)]
        lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows)
        return f"# {self.title}\n\n{self.note}\n\n{''.join(lines)}"

    def csv(self) -> str:
        return str(self.frame.to_csv(index=False, lineterminator="\n"))


def tables(results: Results) -> list[ReportTable]:
    found = [time_table(results), *(accuracy_table(results, name) for name in series.started(results))]
    return [table for table in [*found, settings_table(results)] if table is not None and len(table.frame)]


def time_table(results: Results) -> ReportTable | None:
    """Return Table III: seconds, ratio to DP-ADMM, iterations of local solves, and the paper's values."""
    rows = [
        {
            "ε per round": f"{row.budget:g}",
            "method": row.method,
            "seconds": f"{row.seconds:.3f}",
            "slowest": f"{row.slowest:.3f}",
            "× DP-ADMM": _number(row.ratio, ".1f"),
            "iterations": _number(row.iterations or np.nan, ".1f"),
            "paper, seconds": _number(row.paper_seconds, ".3f"),
            "paper, × DP-ADMM": _number(row.paper_ratio, ".1f"),
        }
        for row in times(results)
    ]
    if not rows:
        return None
    return ReportTable(
        "table3",
        "Time of a run (the paper's Table III)",
        "Seconds of all rounds, for the fastest and the slowest repeat. Each run had the machine to itself, after "
        "compilation. Ratios use the fastest repeat. Iterations of the exact local solver are per agent "
        "and round. The paper's seconds are from MATLAB on another machine: compare the ratios.",
        pd.DataFrame(rows),
    )


def accuracy_table(results: Results, experiment: str) -> ReportTable | None:
    """Return the final loss and error for every setting of an experiment, local and global, with both totals."""
    lines = done(results.select(experiment)).select(timed=False)
    if not len(lines):
        return None
    budget = series.budget_column(lines)
    asked = "requested total ε" if budget == "epsilon" else BUDGETS[budget]
    error = "RMS error" if series.is_regression(lines) else "error"
    rows = []
    for label, group in series.variants(lines).items():
        keys = [name for name in BUDGETS if distinct(group, name)]
        for values, runs in split(group, "n_agents", "delta", *keys).items():
            pooled = distinct(runs, "method") == ["centralized"]
            spent = [
                f"{value:g}" if name == budget else f"{value:g} ({BUDGETS[name]})"
                for name, value in zip(keys, values[2:], strict=True)
                if value is not None
            ]
            local = series.has_local(runs)
            row = {
                "method": label,
                "agents": "–" if pooled else f"{values[0]}",
                asked: spent[0] if spent else "–",
                "δ": power(values[1]) if spent else "–",
                "total ε": _number(runs.frame["total_epsilon"].max(), ".4f"),
                "paper's ε̄": _number(runs.frame["total_paper_epsilon"].max(), ".4f"),
                "loss, global": _spread(runs, "train_loss_global"),
                f"{error}, global": _spread(runs, series.error_column(runs)),
                "loss, local": _spread(runs, "train_loss_local") if local else "–",
                f"{error}, local": _spread(runs, "test_error_local") if local else "–",
            }
            rows.append(row)
    title = results.grid["experiments"][experiment].get("title", experiment)
    return ReportTable(
        f"accuracy_{experiment}",
        f"At the end of the runs: {display_title(title)}",
        f"{_about_splits_and_totals(lines)}Local is the mean over the agents' own models, loss on "
        f"their own rows, {error} on test rows.",
        pd.DataFrame(rows),
    )


def display_title(title: str) -> str:
    """Return the title of a comparison with the display names of its methods, and any other title unchanged.

    Examples
    --------
    >>> display_title("dp_admm, admm_pvp on rows.csv")
    'DP-ADMM, PVP on rows.csv'
    """
    names, on, data = title.partition(" on ")
    listed = names.split(", ")
    if not set(listed) <= set(METHOD_TITLES):
        return title
    return f"{', '.join(METHOD_TITLES[name] for name in listed)}{on}{data}"


def _about_splits_and_totals(lines: Results) -> str:
    n_seeds, by = len(distinct(lines, "seed")), "; ".join(distinct(lines, "accountant"))
    over = "One split." if n_seeds == 1 else f"Mean ± standard deviation over up to {n_seeds} splits."
    totals = (
        "Total ε is that of the run at δ, exact for plain Gaussian noise and an upper bound otherwise, "
        f"by the accountant ({by}); ε̄ is the paper's bound where it applies. "
    )
    return f"{over} {totals if by else ''}"


def settings_table(results: Results) -> ReportTable:
    values = {name: distinct(results, name) for name in SETTINGS}
    return ReportTable(
        "settings",
        "Settings",
        "Every setting with its values in this file. Settings are public. Choosing one on private rows "
        "leaks information.",
        pd.DataFrame([{"setting": name, "values": _values(name, found)} for name, found in values.items() if found]),
    )


def _values(name: str, values: Sequence[object]) -> str:
    if name == "seed" and len(values) > 2:
        return f"{values[0]} to {values[-1]}"
    words = {True: "yes", False: "no"}
    return ", ".join(
        words[value]
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else METHOD_TITLES.get(str(value), str(value))
        for value in values
    )


def _spread(lines: Results, column: str) -> str:
    percent = "error" in column and not series.is_regression(lines)
    return series.mean_and_spread(at_end(lines, column), percent=percent, digits=2 if percent else 4)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None or not np.isfinite(value) else f"{value:{form}}"


def grid_text(results: Results) -> str:
    experiments = {
        name: {key: value for key, value in about.items() if key != "cells"}
        for name, about in results.grid["experiments"].items()
    }
    return json.dumps({**results.grid, "experiments": experiments}, indent=1, ensure_ascii=False)
