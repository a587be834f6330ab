"""The built site loads nothing from other hosts: no fonts, scripts, styles or images."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

SITE = Path(__file__).parents[2] / "docs" / "_build" / "html"
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\bsrc(?:set)?=["']\s*(?:https?:)?//[^"']+"""
    r"""|<link\b(?=[^>]*\brel=["'](?:[^"']*\s)?(?:stylesheet|icon|preload|preconnect|dns-prefetch|modulepreload)\b)"""
    r"""[^>]*\bhref=["'](?:https?:)?//[^"']+""",
    re.IGNORECASE,
)
IN_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?\s*(?:https?:)?//[^"')]+""", re.IGNORECASE)


@pytest.fixture(scope="module")
def site():
    if not (SITE / "index.html").exists():
        reason = "the site is not built: make docs"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return SITE


def test_nothing_is_loaded_from_another_host(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 80
    found = [f"{page.relative_to(site)}: {hit}" for page in pages for hit in LOADED.findall(page.read_text("utf-8"))]
    found += [
        f"{style.relative_to(site)}: {hit}"
        for style in site.rglob("*.css")
        for hit in IN_STYLE.findall(style.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('<script src="https://cdn.example/x.js">', True),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', True),
        ('<link href="https://fonts.example/" rel="preconnect">', True),
        ('<a href="https://example.org/">', False),
        ('<script src="_static/x.js">', False),
    ],
)
def test_patterns_match_loaded_resources(text, found):
    assert bool(LOADED.search(text)) is found


def test_options_begin_with_hyphens(site):
    """In running text, as in the help of another option, an option appears as one types it."""
    text = (site / "reference" / "cli" / "model.html").read_text("utf-8")
    assert "--data" in text
    assert re.findall(r"(?<!\w)[–—]\w[\w-]*", re.sub(r"<[^>]+>", "", text)) == []


def test_every_page_has_a_search_and_a_language(site):
    for page in site.glob("*/*.html"):
        if page.parent.name not in ("_modules", "_static"):
            text = page.read_text("utf-8")
            assert 'lang="en"' in text, page
            assert 'aria-label="Search"' in text, page


def test_search_index_excludes_decision_records(site):
    """They would rank above the guides. The index of the explanation section links to them."""
    text = (site / "searchindex.js").read_text("utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    decisions = {i for i, name in enumerate(index["docnames"]) if name.startswith("decisions/")}
    assert len(decisions) >= 24
    for part in ("terms", "titleterms"):
        pages = {word: {*found} if isinstance(found, list) else {found} for word, found in index[part].items()}
        assert "ledger" in pages
        assert [word for word, found in pages.items() if found & decisions] == []
    assert [title for title, found in index["alltitles"].items() if decisions & {page for page, _ in found}] == []
