"""The help of commands: panels, examples and names of values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from dpadmm.cli import COMMANDS, EXAMPLES, PANELS, load_command


def leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and command of everything that can be run."""
    if not isinstance(command, typer.core.TyperGroup):
        yield name, command
        return
    for subcommand in command.commands.values():
        if not subcommand.hidden:
            yield from leaves(subcommand, f"{name} {subcommand.name}")


RUNNABLE = {name: command for group in COMMANDS for name, command in leaves(load_command(group), group)}


def test_every_command_has_an_example() -> None:
    assert sorted(EXAMPLES) == sorted(RUNNABLE)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_valid_and_shown(name: str, cli: Any) -> None:
    program, *words = shlex.split(EXAMPLES[name].partition(" > ")[0])
    arguments = words[len(name.split()) :]
    assert [program, *words] == ["dpadmm", *name.split(), *arguments]
    RUNNABLE[name].make_context(name, list(arguments), resilient_parsing=False)
    shown = " ".join(cli(*name.split(), "--help", columns=200).out.split())
    assert f"Example: {EXAMPLES[name]}" in shown


def test_the_list_of_commands_has_a_panel_for_each_kind_of_user(cli: Any) -> None:
    text = cli("--help", columns=100).out
    titles = re.findall(r"^╭─ (\w+) ─+╮$", text, re.MULTILINE)
    assert titles == ["Options", *PANELS]


@pytest.mark.parametrize("name", [*RUNNABLE, ""])
def test_options_show_no_python_types(name: str, cli: Any) -> None:
    text = cli(*name.split(), "--help", columns=120).out
    assert re.findall(r"-[\w-]+ +<(?:bool|str|int|float|path|list\[\w+\])", text) == []
