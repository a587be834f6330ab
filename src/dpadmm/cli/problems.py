"""Problems of a study on the screen: what is wrong and where, then what waits to be confirmed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpadmm.cli.screen import say, table

CONFIRM = (
    "These were read off a table. Are they public knowledge, whoever's rows are used? Correct what is not, "
    "and change public = false to public = true."
)
_WHERE = re.compile(r"(column '[^']*'|the label '[^']*'|label|training|provenance|study): (.+)")


def show_problems(
    console: Console, problems: Sequence[str], waiting: Mapping[str, tuple[str, str]], *, place: str
) -> None:
    """Mistakes with their place, and values that wait, whose sentences are among the problems.

    Sentences that name no place are about the ``place`` as a whole.
    """
    wrong = [each for each in problems if each not in waiting]
    if wrong:
        out = _two_columns("where", "problem")
        for sentence in wrong:
            found = _WHERE.fullmatch(sentence)
            out.add_row(*(Text(part) for part in (found.groups() if found else (place, sentence))))
        console.print(out)
    read = [waiting[each] for each in problems if each in waiting]
    if read:
        out = _two_columns("to confirm", "values")
        for name, values in read:
            out.add_row(Text(name), Text(values))
        console.print(out)
        say(console, CONFIRM)


def _two_columns(*headings: str) -> Table:
    out = table(*headings)
    out.columns[1].justify = "left"
    for column in out.columns:
        column.overflow = "fold"
    out.columns[0].max_width = 28
    return out
