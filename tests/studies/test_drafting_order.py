"""Values that look ordered are hinted at, as a comment that changes nothing; others are not."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from looping import case

from dpadmm.studies.drafts import draft_from_table, study_text
from dpadmm.studies.drafts.table import grade_hint, in_order
from dpadmm.studies.reading import study_from


def test_scales():
    for scale in [
        ("low", "medium", "high"),
        ("Very low", "LOW", "normal", "high", "very-high"),
        ("none", "mild", "moderate", "severe"),
        ("never", "rarely", "sometimes", "often", "always"),
        ("strongly disagree", "disagree", "neutral", "agree", "strongly agree"),
        ("S", "M", "L", "XL"),
        ("I", "II", "III", "IV"),
        ("stage 1", "stage 2", "stage 3", "stage 10"),
        ("<18", "18-25", "26-64", "65+"),
        ("1 year", "2 year", "10 year"),
    ]:
        with case(scale):
            assert in_order(sorted(scale)) == scale
            assert in_order(reversed(scale)) == scale


def test_no_scales():
    for values in [
        ("A", "B", "AB", "0"),
        ("low", "high"),
        ("low", "medium", "high", "blue"),
        ("I10", "E11", "J45"),
        ("car", "house", "holiday"),
        ("north", "south", "east"),
        ("medium", "Medium", "high"),
        ("1a", "1b", "1c"),
        (),
    ]:
        with case(values):
            assert in_order(values) is None


def test_grades():
    for whole, is_grade in [
        (range(1, 6), True),
        (range(11), False),
        (range(4), True),
        ([1, 2, 4, 5], False),
        (range(17, 22), False),
        ([1, 2], False),
        ([], False),
        (range(1, 11), True),
    ]:
        with case(whole, is_grade):
            assert bool(grade_hint(list(whole))) == is_grade


def test_a_draft_hints_and_the_hint_can_be_taken(tmp_path: Path):
    words = ["low", "high", "medium", 'say "hi"']
    rows = [f"{words[k % 3]},{1 + k % 5},{words[k % 4]},{k % 7 % 2}" for k in range(60)]
    path = tmp_path / "dummy.csv"
    path.write_text("severity,stage,note,ill\n" + "\n".join(row.replace('"', '""') for row in rows) + "\n")
    text = study_text(draft_from_table(path, "ill"), "x")
    assert 'if they are, set kind = "ordinal", values = ["low", "medium", "high"], and remove unseen' in text.replace(
        "\n# ", " "
    )
    assert 'not amounts, set kind = "ordinal", values = ["1", "2", "3", "4", "5"]' in text
    assert text.count("ordinal") == 2
    before = 'kind = "category"\nvalues = ["high", "low", "medium"]'
    assert before in text
    taken = text.replace(before, 'kind = "ordinal"\nvalues = ["low", "medium", "high"]')
    taken = re.sub(r"(?m)^unseen = .*\n", "", taken)
    study = study_from(tomllib.loads(taken.replace("public = false", "public = true")))
    assert study.schema is not None
    assert study.schema.columns[0].kind == "ordinal"
