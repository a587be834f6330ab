"""Printed text is not changed by markup, and ε is rounded in the safe direction."""

from __future__ import annotations

import pytest

from dpadmm.cli.console import echo, echo_path
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
