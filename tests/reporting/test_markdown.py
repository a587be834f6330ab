"""The Markdown page: every claim, figure and table, with links that lead somewhere."""

from __future__ import annotations

import re

from dpadmm.reporting.claims import claims
from dpadmm.reporting.figures import pictures
from dpadmm.reporting.markdown import write_markdown
from dpadmm.reporting.tables import tables


def anchors(text: str) -> set[str]:
    """What a viewer makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_everything_is_there_and_every_link_leads_somewhere(paper_results, tmp_path):
    written = write_markdown(paper_results, tmp_path / "page.md", source="runs/x")
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert written == [tmp_path / "page.md", *sorted(written[1:], key=written.index)]
    for claim in claims(paper_results):
        assert f"#### {claim.statement}\n\n**{claim.verdict}**" in text
    for picture in pictures(paper_results):
        assert (tmp_path / "page-figures" / f"{picture.name}.png").read_bytes().startswith(b"\x89PNG")
        assert picture.caption in text
    for table in tables(paper_results):
        assert f"### {table.title}\n" in text
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert {link[1:] for link in links if link.startswith("#")} <= anchors(text)
    assert all((tmp_path / link).is_file() for link in links if not link.startswith("#"))
    assert "dpadmm report runs/x -o page.md" in text
    assert [len(h) for h in re.findall(r"^(#+) ", text, flags=re.MULTILINE)].count(1) == 1


def test_a_comparison_has_no_claims(cli, comparison_folder, tmp_path):
    cli("report", comparison_folder, "-o", tmp_path / "page.md").succeeded()
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "## Claims" not in text
    assert "## Figures" in text
    assert list((tmp_path / "page-figures").glob("*.png"))
