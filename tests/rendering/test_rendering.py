"""One description becomes terminal output, JSON and HTML."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from printed import printed

from dpadmm.cli import console
from dpadmm.rendering import Cell, Column, Fact, Facts, Paragraph, Renderable, Rendering, Table
from dpadmm.rendering.formats import rounded_up

HOSTILE = "\x1b[2J\u202e<script>alert(1)</script>"

METHODS = Table(
    (Column("name", "method"), Column("error", "test error", ".1%"), Column("", "interval"), Column("low")),
    [("auto", 0.1, "0.1 to 0.2", np.float64(0.1)), (), ("dp_admm", Cell(0.25, style="bad"))],
    key="methods",
    max_rows=2,
)
FACTS = Facts(
    (Fact("epsilon", "total ε", 0.98123, rounded_up), Fact("rows", "rows", np.int64(4000)), Fact("limit", None, np.inf))
)


def rendering() -> Rendering:
    return Rendering(
        title="A result",
        body=(FACTS, METHODS, Paragraph("A paragraph."), Paragraph("Stopped early.", key="ended", value=True)),
        notes=("A note.",),
        warnings=("Check the units.",),
        verdict=Paragraph("Recommended: train.", "good", "verdict", "recommended"),
        next_steps=("dpadmm train study.toml",),
        data={"extra": {1: (1, 2)}},
    )


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)


def test_json_has_numbers_of_all_rows_and_no_formatted_text() -> None:
    assert json.loads(json.dumps(rendering().to_dict(), allow_nan=False)) == {
        "epsilon": 0.98123,
        "rows": 4000,
        "limit": None,
        "methods": [{"name": "auto", "error": 0.1, "low": 0.1}, {"name": "dp_admm", "error": 0.25}],
        "ended": True,
        "verdict": "recommended",
        "extra": {"1": [1, 2]},
        "notes": ["A note."],
        "warnings": ["Check the units."],
    }


def test_facts_with_a_key_are_nested() -> None:
    assert Facts((Fact("rows", "rows", 3),), key="data").to_dict() == {"data": {"rows": 3}}


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_shows_every_text_in_order(width: int) -> None:
    out = printed(width, lambda: console.show(rendering()))
    texts = ("A result", "total ε", "0.9813", "4,000", "method", "error", "auto", "10.0%", "A paragraph.",
             "A note.", "Warning: Check the units.", "Recommended: train.", "dpadmm train study.toml")  # fmt: skip
    places = [out.index(text) for text in texts]
    assert places == sorted(places)
    assert "low" not in out
    assert "dp_admm" not in out


def test_json_and_quiet() -> None:
    assert json.loads(printed(80, lambda: console.show(rendering(), as_json=True))) == rendering().to_dict()
    assert not printed(80, lambda: console.show(rendering(), quiet=True))


def test_numbers_are_right_aligned_and_text_is_left_aligned() -> None:
    assert METHODS.alignments == ("left", "right", "left")


def test_plain_text_is_aligned() -> None:
    lines = rendering().to_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("method"))
    assert lines[at : at + 3] == ["method  test error  interval", "-" * 30, "auto         10.0%  0.1 to 0.2"]


def test_every_output_is_escaped() -> None:
    hostile = Rendering(
        HOSTILE,
        (
            Facts((Fact("a", HOSTILE, HOSTILE, note=HOSTILE),), title=HOSTILE),
            Table((Column("a", HOSTILE),), [(HOSTILE,)], title=HOSTILE, caption=HOSTILE),
            Paragraph(HOSTILE),
        ),
        (HOSTILE,),
        (HOSTILE,),
        Paragraph(HOSTILE),
        (HOSTILE,),
    )
    outputs = (hostile.to_html(), hostile.to_text(), printed(200, lambda: console.show(hostile)))
    for out in outputs:
        assert out.count(r"\x1b[2J\u202e") == 14
        assert all(map(str.isprintable, out.split("\n")))
    parser = _Tags()
    parser.feed(outputs[0])
    assert parser.tags <= {"div", "p", "table", "thead", "tbody", "tr", "th", "td"}
    assert not re.search(r"\bcolor:(?!inherit)|background", outputs[0]), "a notebook may be light or dark"


def test_a_result_is_shown_in_notebooks() -> None:
    class Example(Renderable):
        def rendering(self) -> Rendering:
            return rendering()

    assert Example()._repr_html_() == rendering().to_html()
    assert Example().to_dict() == rendering().to_dict()


def test_extend_keeps_the_content_and_adds_to_it() -> None:
    longer = rendering().extend(Paragraph("More."), notes=["2"], warnings=["3"], next_steps=["4"], data={"more": 5})
    assert longer.body[-1] == Paragraph("More.")
    assert (longer.notes, longer.warnings) == (("A note.", "2"), ("Check the units.", "3"))
    assert longer.next_steps == ("dpadmm train study.toml", "4")
    assert set(longer.data) == {"extra", "more"}
