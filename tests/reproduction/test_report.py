"""Reports: self-contained HTML, Markdown with valid links, and reproducible files."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from reproduction.claims import claims
from reproduction.figures import pictures
from reproduction.report import report_html, tables, together, write_all, write_markdown


class ParsedPage(HTMLParser):
    """Tags of a page with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def all(self, *names):
        return [about for tag, about in self.tags if tag in names]


@pytest.fixture(scope="module")
def page(paper_page):
    return ParsedPage(paper_page)


def test_page_loads_nothing_and_has_no_scripts(page):
    assert not page.all("script", "iframe", "object", "embed")
    for about in (about for _, about in page.tags):
        assert not [name for name in about if name.startswith("on")]
        for name in ("src", "href"):
            assert about.get(name, "#").startswith(("#", "data:")), about
    assert "@import" not in page.text
    assert "url(" not in page.text


def test_link_targets_exist_once(page):
    ids = [about["id"] for _, about in page.tags if "id" in about]
    assert len(ids) == len(set(ids))
    targets = {about["href"][1:] for about in page.all("a")}
    assert targets <= set(ids)
    labelled = {about["aria-labelledby"] for _, about in page.tags if "aria-labelledby" in about}
    assert labelled <= set(ids)


def test_images_have_alt_texts_and_tables_have_headers(page):
    assert len(page.all("img")) == 14
    assert all(len(about["alt"]) > 80 for about in page.all("img"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert {about.get("scope") for about in page.all("th")} == {"col", "row"}


def test_names_from_files_are_escaped(page):
    assert "small <b>&</b> synthetic" in page.text
    assert not page.all("b")


@pytest.mark.usefixtures("sketched")
def test_hostile_file_name_and_reason_are_escaped(paper_results):
    evil = "<script>alert(1)</script>"
    meta = {**paper_results.meta, "command": evil, "data": {**paper_results.meta["data"], "name": evil}}
    page = ParsedPage(report_html(replace(paper_results.select("fig4"), meta=meta), source=evil))
    assert not page.all("script")
    assert page.text.count(evil) >= 3


def test_page_contains_required_statements(page):
    for words in (
        "The noise of these runs is simulated.",
        "It shows the cost of privacy and protects no data.",
        "python -m reproduction run --grid small.toml",
        "python -m reproduction report runs/small -o report.html",
        "Methods that do not apply",
        "Choosing them on private rows leaks information.",
        "does not hold",
    ):
        assert words in page.text, words


@pytest.mark.usefixtures("sketched")
def test_a_comparison_has_no_claims(comparison_results):
    page = ParsedPage(report_html(comparison_results))
    assert "Claims" not in page.text
    assert "verdicts are decided" not in page.text
    assert "#claims" not in {about["href"] for about in page.all("a")}
    assert not [about for about in page.all("table") if about.get("class") == "claims"]
    assert len(page.all("img")) == 1


@pytest.mark.usefixtures("sketched")
def test_page_warns_about_few_splits_once(page, comparison_results):
    assert page.text.count("only 2 random splits, so some claims are unclear for lack of evidence") == 1
    assert "lack of evidence" not in report_html(comparison_results)


@pytest.mark.usefixtures("sketched")
def test_title_uses_display_names_of_methods(comparison_results):
    grid = {**comparison_results.grid, "title": "dp_admm, dp_sgd on <rows>"}
    text = report_html(replace(comparison_results, grid=grid))
    assert "<h1>DP-ADMM, DPSGD on &lt;rows&gt;</h1>" in text


def test_numbers_do_not_break_across_lines():
    assert together("a 1.0 ± 0.1, ε = 2") == "a 1.0\u00a0±\u00a00.1, ε\u00a0=\u00a02"


@pytest.mark.usefixtures("sketched")
def test_incomplete_results_are_marked(paper_results, page):
    assert "results are incomplete" not in page.text
    part = paper_results.select("fig4", seed=1)
    assert "These results are incomplete. 5 runs are missing." in ParsedPage(report_html(part)).text


def anchors(text: str) -> set[str]:
    """Return the anchors that a viewer creates from the headings."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_markdown_is_complete_and_all_links_have_targets(paper_results, tmp_path):
    some = [cell for name in ("fig4", "table3") for cell in paper_results.select(name).cells]
    paper_results = paper_results.select(cell=some)
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
    assert "python -m reproduction report runs/x -o page.md" in text
    assert [len(h) for h in re.findall(r"^(#+) ", text, flags=re.MULTILINE)].count(1) == 1


@pytest.mark.usefixtures("sketched")
def test_markdown_of_a_comparison_has_no_claims(reproduction, comparison_folder, tmp_path):
    reproduction("report", comparison_folder, "-o", tmp_path / "page.md").succeeded()
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "## Claims" not in text
    assert "## Figures" in text
    assert list((tmp_path / "page-figures").glob("*.png"))


def test_report_files_are_complete_and_reproducible(paper_results, tmp_path):
    part = paper_results.select("bounds")
    written = write_all(part, tmp_path / "one")
    names = {str(path.relative_to(tmp_path / "one")) for path in written}
    assert {"figures/bounds.png", "figures/bounds.svg", "claims.json"} <= names
    assert {"tables/accuracy_bounds.csv", "tables/settings.csv"} <= names
    there = {str(path.relative_to(tmp_path / "one")) for path in (tmp_path / "one").rglob("*") if path.is_file()}
    assert there == names
    json.loads((tmp_path / "one" / "claims.json").read_text())
    for path in write_all(part, tmp_path / "two"):
        again = tmp_path / "one" / path.relative_to(tmp_path / "two")
        assert path.read_bytes() == again.read_bytes(), path.name
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
