"""Results -> one HTML file that needs nothing else: no network, no script, no other file."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import jinja2
import matplotlib
from markupsafe import Markup

from dpadmm.reporting.claims import CLEAR, Claim, Verdict, claims, counted, few_splits
from dpadmm.reporting.figures import PAPER, Picture, pictures
from dpadmm.reporting.series import METHODS, begun, distinct, done, missing, where
from dpadmm.reporting.tables import grid_text, in_words, tables
from dpadmm.results import Results

SIGNS = {Verdict.HOLDS: "✓", Verdict.IN_PART: "◐", Verdict.FAILS: "✗", Verdict.UNMEASURED: "–"}
"""Verdicts are told by sign and word, not by colour alone."""


@dataclass(frozen=True)
class Refusal:
    """A method that did not apply, and why."""

    method: str
    experiments: str
    reason: str


def report_html(results: Results, *, source: str = "RESULTS") -> str:
    """The whole report; ``source`` is how the reader would name the results on the command line."""
    of_paper = bool(set(PAPER) & set(begun(results)))
    found = claims(results) if of_paper else []
    drawn = pictures(results)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dpadmm.reporting"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"slug": slug, "together": together}
    css = files("dpadmm.reporting").joinpath("templates/report.css").read_text(encoding="utf-8")
    every = tables(results)
    return environment.get_template("report.html").render(
        css=Markup(css),  # ours, from the package
        title=in_words(results.grid.get("title") or "Comparison of methods"),
        of_paper=of_paper,
        paper_claims=[claim for claim in found if claim.from_paper],
        other_claims=[claim for claim in found if not claim.from_paper],
        counts=counted(found),
        signs=SIGNS,
        clear=CLEAR,
        few_splits=few_splits(found),
        notable=_notable(found),
        pictures=[(picture, image(picture)) for picture in drawn],
        titles={picture.name: picture.title for picture in drawn},
        tables=[table for table in every if table.name != "settings"],
        settings=next(table for table in every if table.name == "settings"),
        refusals=refusals(results),
        facts=facts(results),
        missing=missing(results),
        private=_private_methods(results),
        meta=results.meta,
        grid=grid_text(results),
        source=source,
    )


def image(picture: Picture) -> str:
    """A figure as a data address: SVG with its letters as shapes, so that it looks the same everywhere."""
    out = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "dpadmm", "svg.fonttype": "path"}):
        picture.figure.savefig(out, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(out.getvalue()).decode()


def refusals(results: Results) -> list[Refusal]:
    """Every method that refused, with its reason, once."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in results.experiments:
        here = where(results.select(name), status="refused")
        for method, reason in zip(here.column("method"), here.column("reason"), strict=True):
            found.setdefault((method, reason), []).append(name)
    return [
        Refusal(METHODS.get(method, method), ", ".join(dict.fromkeys(names)), reason)
        for (method, reason), names in found.items()
    ]


def slug(text: str) -> str:
    """A name for links: letters, digits and hyphens."""
    return "".join(char if char.isalnum() and char.isascii() else "-" for char in text.lower())


def together(text: str) -> str:
    """The same text with ``a ± b`` and ``a = b`` in one piece, never broken between two lines."""
    return re.sub(r" ([±=]) ", "\u00a0\\1\u00a0", text)


def _notable(found: Sequence[Claim]) -> list[Claim]:
    """What a hurried reader must see: what does not hold, and what holds in part."""
    order = [Verdict.FAILS, Verdict.IN_PART]
    return sorted((c for c in found if c.verdict in order), key=lambda c: order.index(c.verdict))


def facts(results: Results) -> list[tuple[str, str]]:
    """Data, runs, agents, rounds: (name, value)."""
    data = results.meta.get("data", {})
    lines = done(results)
    seeds, agents = distinct(lines, "seed"), distinct(lines, "n_agents")
    rounds = distinct(lines, "n_rounds")
    return [
        ("Data", f"{data.get('name')}: {data.get('rows')} rows, {data.get('features')} features"),
        (
            "Runs",
            f"{len(set(results.cells))}, over {len(seeds)} random split{'s' if len(seeds) != 1 else ''}",
        ),
        ("Agents", ", ".join(map(str, agents))),
        ("Rounds", ", ".join(map(str, rounds))),
    ]


def _private_methods(results: Results) -> list[str]:
    here = set(distinct(results, "method")) - {"admm", "centralized"}
    return [words for name, words in METHODS.items() if name in here]
