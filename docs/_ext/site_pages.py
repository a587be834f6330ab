"""Small parts of the site that no extension has: formulas without scripts, shell cells, links out of docs/."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

SHELL = "%%bash\n"
MAX_UNBROKEN = 28
"""Characters of inline code that stay on one line. A telephone shows about 35."""

PROJECT = {
    "CHANGELOG": "changelog",
    "CONTRIBUTING": "contributing",
    "SECURITY": "security",
    "CODE_OF_CONDUCT": "code-of-conduct",
    "release/README": "release",
    "benchmarks/RESULTS": "benchmark-results",
}
"""Files outside docs/ that are pages of the site, in docs/project/."""


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (_inline_formula, None), (_displayed_formula, None))
    app.config.html_math_renderer = "mathml"
    app.connect("doctree-read", _show_shell_cells)
    app.connect("html-page-context", _empty_corners)
    app.connect("doctree-read", _keep_short_code_together)
    app.connect("doctree-read", _link_pages_of_the_project)
    app.connect("env-updated", _exclude_from_search)
    app.connect("env-updated", _keep_index_entries)
    return {"parallel_write_safe": True}


def _inline_formula(visitor: Any, node: nodes.Element) -> None:
    visitor.body.append(_formula(node, inline=True))
    raise nodes.SkipNode


def _displayed_formula(visitor: Any, node: nodes.Element) -> None:
    box = '<div class="formula" tabindex="0" role="region" aria-label="Formula">'
    visitor.body.append(f"{box}{_formula(node, inline=False)}</div>")
    raise nodes.SkipNode


def _formula(node: nodes.Element, *, inline: bool) -> str:
    """MathML, which every browser of today sets itself: no MathJax, and no request for it."""
    text = node.astext().replace(r"\dots", r"\ldots")
    try:
        return str(tex2mathml(text, as_block=not inline))
    except Exception as error:
        raise ValueError(f"formula {escape(text)!r}: {error}") from error


def _show_shell_cells(app: Sphinx, doctree: nodes.document) -> None:
    """A cell that starts with %%bash is run by a shell, and shown as one would type it."""
    for block in doctree.findall(nodes.literal_block):
        text = block.astext()
        if text.startswith(SHELL):
            shown = nodes.literal_block(text.removeprefix(SHELL), text.removeprefix(SHELL), **block.attributes)
            shown["language"] = "bash"
            block.replace_self(shown)


def _keep_short_code_together(app: Sphinx, doctree: nodes.document) -> None:
    """Mark short inline code, so that the style sheet keeps options and names on one line."""
    for code in doctree.findall(nodes.literal):
        if len(code.astext()) <= MAX_UNBROKEN:
            code["classes"].append("short")


def _link_pages_of_the_project(app: Sphinx, doctree: nodes.document) -> None:
    """Redirect links to files outside docs/, such as ../SECURITY.md, to their pages on the site."""
    release = Path(app.srcdir).parent / "release"
    for link in list(doctree.findall(addnodes.pending_xref)):
        path = str(link.get("reftarget", "")).removesuffix(".md")
        page = next((page for file, page in PROJECT.items() if f"/{path}".endswith(f"/{file}")), None)
        if page is not None:
            link["refdomain"], link["reftarget"] = "doc", f"project/{page}"
            link.attributes.setdefault("reftargetid", None)
        elif app.env.docname == "project/release" and path and (release / path).is_file():
            link.replace_self(link.children)  # a file next to release/README.md, which is not on the site


def _exclude_from_search(app: Sphinx, env: BuildEnvironment) -> Iterable[str]:
    """Mark decision records as not searchable, and return those to write again.

    They repeat the words of the guides at greater length, so they would come first in most searches.
    """
    indexed = [name for name in env.all_docs if name.startswith("decisions/") and "nosearch" not in env.metadata[name]]
    for name in indexed:
        env.metadata[name]["nosearch"] = True
    return indexed


def _keep_index_entries(app: Sphinx, env: BuildEnvironment) -> Iterable[str]:
    """Return the pages with main index entries, to write them in every build.

    The search index of an incremental build has the index entries of written pages only. A main entry decides which
    page a search lists first, so without it the order would depend on what was built before.
    """
    entries = env.domaindata["index"]["entries"]
    return [name for name, found in entries.items() if any(main == "main" for _, _, _, main, _ in found)]


def _empty_corners(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """The empty corner of a table is no heading of its column."""
    if "body" in context:
        context["body"] = re.sub(r'<th class="head[^"]*"><p></p></th>', "<td></td>", context["body"])
