"""Printed text is not changed by markup, and ε is rounded in the safe direction."""

from __future__ import annotations

import pytest

from dpadmm.cli.console import echo, echo_path, show
from dpadmm.rendering import Fact, Facts, Rendering
from dpadmm.rendering.formats import rounded_down, rounded_up


@pytest.mark.parametrize("function", [echo, echo_path])
def test_fingerprints_and_names_are_printed_as_they_are(function, capsys):
    """rich would print an emoji for ``:CD:``, so fingerprints could not be compared."""
    function("AB:CD:AB:CD [bold] :smile: /a/b")
    assert capsys.readouterr().out == "AB:CD:AB:CD [bold] :smile: /a/b\n"


def test_spent_epsilon_is_rounded_up_and_remaining_epsilon_down():
    """Neither rounding may overstate privacy."""
    near = (0.12341, 0.12349, 0.1234, 9e-5, 1e-6)
    assert [rounded_up(each) for each in near] == ["0.1235", "0.1235", "0.1234", "0.0001", "0.0001"]
    assert [rounded_down(each) for each in near] == ["0.1234", "0.1234", "0.1234", "0.0000", "0.0000"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_facts_are_wrapped_and_not_cut(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    value = "3 of 3 intact: 39 records, 30 releases, none over budget"
    facts = Facts([Fact("", "start of the sites, until the first round", "3 s"), Fact("", "ledgers", value)])
    show(Rendering(body=[facts]))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert f"ledgers {value}" in text
