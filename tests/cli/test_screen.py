"""What is printed is what was said."""

from __future__ import annotations

import pytest

from dpadmm.cli.screen import rounded_down, rounded_up, say, say_path


@pytest.mark.parametrize("speak", [say, say_path])
def test_fingerprints_and_names_are_printed_as_they_are(speak, capsys):
    """rich would make a picture of a CD of :CD:, and people could not compare fingerprints."""
    speak("AB:CD:AB:CD [bold] :smile: /a/b")
    assert capsys.readouterr().out == "AB:CD:AB:CD [bold] :smile: /a/b\n"


def test_what_was_spent_is_rounded_up_and_what_is_left_is_rounded_down():
    """People decide by these digits: neither may promise more than is true."""
    near = (0.12341, 0.12349, 0.1234, 9e-5, 1e-6)
    assert [rounded_up(each) for each in near] == ["0.1235", "0.1235", "0.1234", "0.0001", "0.0001"]
    assert [rounded_down(each) for each in near] == ["0.1234", "0.1234", "0.1234", "0.0000", "0.0000"]
