"""Results -> one HTML page, one Markdown page, or figures, tables and claims as files."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import jinja2
import matplotlib
from markupsafe import Markup

from dpadmm.experiments.results import Results
from dpadmm.paper.claims import claims, counted, few_splits, in_short
from dpadmm.paper.figures import PAPER, pictures
from dpadmm.paper.tables import grid_text, in_words, tables
from dpadmm.paper.verdicts import CLEAR, Claim, Verdict
from dpadmm.reporting.convergence import save_figure
from dpadmm.reporting.run_folder import write_text
from dpadmm.reporting.series import METHODS, begun, distinct, done, missing, where
from dpadmm.reporting.style import Picture

SIGNS = {
    Verdict.HOLDS: "✓",
    Verdict.IN_PART: "◐",
    Verdict.FAILS: "✗",
    Verdict.NOT_APPLICABLE: "○",
    Verdict.UNMEASURED: "–",
}
"""Verdicts are shown by sign and word, not by colour alone."""


@dataclass(frozen=True)
class Refusal:
    """A method that did not apply, and why."""

    method: str
    experiments: str
    reason: str


def report_html(results: Results, *, source: str = "RESULTS") -> str:
    """A self-contained page: no network, no script, no other file.

    ``source`` is what the reader would give to ``dpadmm report``.
    """
    found, drawn = claims(results), pictures(results)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dpadmm.paper"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"slug": slug, "together": together}
    css = files("dpadmm.paper").joinpath("templates/report.css").read_text(encoding="utf-8")
    every = tables(results)
    groups = [
        ("The paper's claims", [claim for claim in found if claim.from_paper]),
        ("Claims that we added", [claim for claim in found if not claim.from_paper]),
    ]
    order = [Verdict.FAILS, Verdict.IN_PART, Verdict.NOT_APPLICABLE]
    notable = [claim for verdict in order for claim in found if claim.verdict is verdict]
    methods = set(distinct(results, "method")) - {"admm", "centralized"}
    return environment.get_template("report.html").render(
        css=Markup(css),  # from the package, not from users
        title=in_words(results.grid.get("title") or "Comparison of methods"),
        of_paper=bool(set(PAPER) & set(begun(results))),
        claim_groups=[(title, group, _counts(group)) for title, group in groups if group],
        signs=SIGNS,
        clear=CLEAR,
        few_splits=few_splits(found),
        notable=notable,
        pictures=[(picture, image(picture)) for picture in drawn],
        titles={picture.name: picture.title for picture in drawn},
        tables=[table for table in every if table.name != "settings"],
        settings=next(table for table in every if table.name == "settings"),
        refusals=refusals(results),
        facts=facts(results),
        missing=missing(results),
        private=[words for name, words in METHODS.items() if name in methods],
        meta=results.meta,
        grid=grid_text(results),
        source=source,
    )


def _counts(group: Sequence[Claim]) -> dict[Verdict, int]:
    return counted(group, from_paper=group[0].from_paper)


def image(picture: Picture) -> str:
    """A figure as a data URL: SVG with text as paths, so that it looks the same everywhere."""
    out = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "dpadmm", "svg.fonttype": "path"}):
        picture.figure.savefig(out, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(out.getvalue()).decode()


def slug(text: str) -> str:
    """A name for links: letters, digits and hyphens."""
    return "".join(char if char.isalnum() and char.isascii() else "-" for char in text.lower())


def together(text: str) -> str:
    """The same text with no-break spaces in ``a ± b`` and ``a = b``."""
    return re.sub(r" ([±=]) ", "\u00a0\\1\u00a0", text)


def refusals(results: Results) -> list[Refusal]:
    """Every method that refused, once for each reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in results.experiments:
        here = where(results.select(name), status="refused")
        for method, reason in zip(here.column("method"), here.column("reason"), strict=True):
            found.setdefault((method, reason), []).append(name)
    return [
        Refusal(METHODS.get(method, method), ", ".join(dict.fromkeys(names)), reason)
        for (method, reason), names in found.items()
    ]


def facts(results: Results) -> list[tuple[str, str]]:
    """(name, value) of data, runs, agents and rounds."""
    data, lines = results.meta.get("data", {}), done(results)
    seeds = len(distinct(lines, "seed"))
    return [
        ("Data", f"{data.get('name')}: {data.get('rows')} rows, {data.get('features')} features"),
        ("Runs", f"{len(set(results.cells))}, over {seeds} random split{'s' if seeds != 1 else ''}"),
        ("Agents", ", ".join(map(str, distinct(lines, "n_agents")))),
        ("Rounds", ", ".join(map(str, distinct(lines, "n_rounds")))),
    ]


def write_markdown(results: Results, page: Path, *, source: str) -> list[Path]:
    """Write a Markdown page and its figures (PNG) in a folder beside it; the paths."""
    folder = page.with_name(f"{page.stem}-figures")
    drawn, found = pictures(results), claims(results)
    written = [
        path for picture in drawn for path in save_figure(picture.figure, folder / picture.name, ("png",))
    ]
    parts = [_head(results, source, page)]
    if found:
        rows = [
            f"| {SIGNS[c.verdict]} {c.verdict} | {'paper' if c.from_paper else 'ours'} | "
            f"[{c.statement}](#{_anchor(c.statement)}) |"
            for c in found
        ]
        table = "\n".join(["| verdict | whose | claim |", "|---|---|---|", *rows])
        parts.append(f"## Claims\n\n{in_short(found)}\n\n{table}")
        parts.append(f"## Evidence\n\n{evidence_markdown(found, level=3).rstrip()}")
    parts.append("## Figures")
    for picture in drawn:
        link = f"![{picture.title}]({folder.name}/{picture.name}.png)"
        parts.append(f"### {picture.name}: {picture.title}\n\n{link}\n\n{picture.caption}")
    parts.append("## Tables")
    parts += [table.markdown().replace("# ", "### ", 1).rstrip() for table in tables(results)]
    refused = [f"- {each.method} ({each.experiments}): {each.reason}." for each in refusals(results)]
    if refused:
        parts.append("### Methods that do not apply\n\n" + "\n".join(refused))
    write_text(page, "\n\n".join(parts) + "\n")
    return [page, *written]


def _head(results: Results, source: str, page: Path) -> str:
    meta = results.meta
    about = [f"- {name}: {value}" for name, value in facts(results)]
    about.append(
        f"- dpadmm {meta['version']}, Python {meta['python']}, NumPy {meta['numpy']}; data digest "
        f"`{meta['data']['digest']}`, grid digest `{meta['grid_digest']}`"
    )
    if missing(results):
        about.append(f"- **Not complete: {missing(results)} runs are missing.**")
    if page.with_name("deviations.md").exists():
        about.append("- Deviations from the paper, and why: [deviations.md](deviations.md)")
    commands = f"```\n{meta['command']}\ndpadmm report {source} -o {page.name}\n```"
    return "\n\n".join(
        [
            f"# {in_words(results.grid.get('title') or 'Comparison of methods')}",
            f"Generated by these commands:\n\n{commands}",
            "\n".join(about),
            "The noise of these runs is simulated: it shows what privacy costs and protects nobody. Losses "
            "and errors were measured on the rows without noise. ± is one standard deviation over splits.",
        ]
    )


def _anchor(heading: str) -> str:
    """The link that Markdown viewers give a heading: lower case, no punctuation, hyphens for spaces."""
    return "".join(char for char in heading.lower() if char.isalnum() or char in " -_").replace(" ", "-")


def evidence_markdown(found: Sequence[Claim], *, level: int = 2) -> str:
    """Every claim with its verdict, evidence and rule, under headings of this level and the next."""
    lines = [" ".join(filter(None, [CLEAR, few_splits(found)]))]
    for from_paper, title in ((True, "The paper's claims"), (False, "Claims that we added")):
        group = [claim for claim in found if claim.from_paper is from_paper]
        lines += ["", f"{'#' * level} {title}"] if group else []
        for claim in group:
            lines += ["", f"{'#' * level}# {claim.statement}", "", f"**{claim.verdict}**. {claim.place}."]
            if claim.quote:
                lines[-1] += f" In the paper: “{_escaped(claim.quote)}”."
            if claim.figures:
                lines[-1] += f" Figures: {', '.join(claim.figures)}."
            lines += ["", *(f"- {_escaped(sentence)}" for sentence in claim.evidence)]
            lines += ["", f"Rule: {claim.rule}"]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def claims_markdown(found: Sequence[Claim], *, n_missing: int = 0) -> str:
    """The claims as a Markdown page; ``n_missing`` runs of the experiments are not there yet."""
    lines = ["# Claims of the paper, measured", ""]
    if n_missing:
        lines += [f"**These results are not complete: {n_missing} runs are missing.**", ""]
    return "\n".join([*lines, in_short(found), "", evidence_markdown(found)])


def claims_json(found: Sequence[Claim]) -> str:
    """The claims as JSON."""
    return json.dumps([claim.as_json() for claim in found], indent=2, ensure_ascii=False) + "\n"


def write_all(results: Results, folder: Path) -> list[Path]:
    """Write every figure (PNG and SVG), table (Markdown and CSV) and claim of the results; the paths."""
    written: list[Path] = []
    captions = []
    for picture in pictures(results):
        written += save_figure(picture.figure, folder / "figures" / picture.name)
        captions.append(f"## {picture.name}: {picture.title}\n\n{picture.caption}\n")
    texts: dict[str, str] = {}
    for table in tables(results):
        texts |= {f"tables/{table.name}.md": table.markdown(), f"tables/{table.name}.csv": table.csv()}
    if found := claims(results):
        texts["claims.md"] = claims_markdown(found, n_missing=missing(results))
        texts["claims.json"] = claims_json(found)
    if captions:
        texts["figures/captions.md"] = "# Captions\n\n" + "\n".join(captions)
    for name, text in texts.items():
        write_text(folder / name, text)
        written.append(folder / name)
    return written
