"""Results -> one Markdown page with its figures in a folder beside it, for a repository's documentation."""

from __future__ import annotations

from pathlib import Path

from dpadmm.reporting.claims import claims, evidence_markdown, in_short
from dpadmm.reporting.convergence import save_figure
from dpadmm.reporting.figures import PAPER, pictures
from dpadmm.reporting.html import SIGNS, facts, refusals
from dpadmm.reporting.run_folder import write_text
from dpadmm.reporting.series import begun, missing
from dpadmm.reporting.tables import in_words, tables
from dpadmm.results import Results


def write_markdown(results: Results, page: Path, *, source: str) -> list[Path]:
    """Write the page and its figures (PNG); ``source`` is how the reader would name the results."""
    folder = page.with_name(f"{page.stem}-figures")
    drawn = pictures(results)
    written = [
        path for picture in drawn for path in save_figure(picture.figure, folder / picture.name, ("png",))
    ]
    parts = [_head(results, source, page.name), *_verdicts(results)]
    parts.append("## Figures")
    for picture in drawn:
        where = f"{folder.name}/{picture.name}.png"
        parts.append(
            f"### {picture.name}: {picture.title}\n\n![{picture.title}]({where})\n\n{picture.caption}"
        )
    parts.append("## Tables")
    parts += [table.markdown().replace("# ", "### ", 1).rstrip() for table in tables(results)]
    refused = [f"- {each.method} ({each.experiments}): {each.reason}." for each in refusals(results)]
    if refused:
        parts.append("### Methods that do not apply\n\n" + "\n".join(refused))
    write_text(page, "\n\n".join(parts) + "\n")
    return [page, *written]


def _head(results: Results, source: str, page: str) -> str:
    meta = results.meta
    about = [f"- {name}: {value}" for name, value in facts(results)]
    about.append(
        f"- dpadmm {meta['version']}, Python {meta['python']}, NumPy {meta['numpy']}; data digest "
        f"`{meta['data']['digest']}`, grid digest `{meta['grid_digest']}`"
    )
    if missing(results):
        about.append(f"- **Not complete: {missing(results)} runs are missing.**")
    commands = f"```\n{meta['command']}\ndpadmm report {source} -o {page}\n```"
    return "\n\n".join(
        [
            f"# {in_words(results.grid.get('title') or 'Comparison of methods')}",
            f"Made by these commands, and by no hand:\n\n{commands}",
            "\n".join(about),
            "The noise of these runs is simulated: it shows what privacy costs and protects nobody. Losses "
            "and errors were measured on the rows without noise. ± is one standard deviation over splits.",
        ]
    )


def _verdicts(results: Results) -> list[str]:
    """The claims in a table, then each with its evidence; nothing where there are none to judge."""
    if not set(PAPER) & set(begun(results)):
        return []
    found = claims(results)
    lines = [f"| {SIGNS[c.verdict]} {c.verdict} | [{c.statement}](#{_anchor(c.statement)}) |" for c in found]
    table = "\n".join(["| verdict | claim |", "|---|---|", *lines])
    return [
        f"## Claims\n\n{in_short(found)}.\n\n{table}",
        f"## Evidence\n\n{evidence_markdown(found, level=3).rstrip()}",
    ]


def _anchor(heading: str) -> str:
    """The link that Markdown viewers make of a heading: lower case, punctuation gone, blanks to hyphens."""
    return "".join(char for char in heading.lower() if char.isalnum() or char in " -_").replace(" ", "-")
