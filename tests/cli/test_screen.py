"""What is printed is what was said."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dpadmm.cli.screen import say, say_path


@pytest.mark.parametrize("speak", [say, say_path])
def test_fingerprints_and_names_are_printed_as_they_are(speak):
    """rich would make a picture of a CD of :CD:, and people could not compare fingerprints."""
    out = io.StringIO()
    speak(Console(file=out, width=200), "AB:CD:AB:CD [bold] :smile: /a/b")
    assert out.getvalue() == "AB:CD:AB:CD [bold] :smile: /a/b\n"
