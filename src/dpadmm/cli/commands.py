"""Which commands there are: a table, so that ``--help`` and a command load no other command's modules."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Entry(NamedTuple):
    """Where a command lives, and its help in a line, which is the first of its own."""

    module: str
    attribute: str
    help: str


COMMANDS = {
    "demo": Entry(
        "demo", "demo", "DP-ADMM against the non-private optimum, 100 agents, two privacy budgets."
    ),
    "simulate": Entry(
        "simulate", "simulate_command", "Train across simulated agents: what accuracy costs what privacy."
    ),
    "train": Entry("train", "train", "Train a study's model on a table, all agents in this process."),
    "predict": Entry("predict", "predict", "Predict every row of a table, in its order."),
    "evaluate": Entry(
        "evaluate",
        "evaluate",
        "Accuracy, loss, AUC, calibration and confusion matrix on a table with labels.",
    ),
    "explain": Entry("explain", "explain", "Coefficients in the units of the columns, largest effect first."),
    "plan": Entry("plan", "plan", "Forecast what a study costs and reaches, before any private row is read."),
    "privacy": Entry(
        "privacy",
        "privacy",
        "Privacy calculator: give some of noise, ε per round, total ε and rounds; see the others.",
    ),
    "compare": Entry(
        "compare",
        "compare_command",
        "Compare methods at equal privacy: what does each reach, and what does it cost?",
    ),
    "reproduce": Entry(
        "reproduce", "reproduce", "Run the paper's experiments and draw its figures and tables."
    ),
    "report": Entry(
        "report",
        "report",
        "One page of claims, figures, tables, settings and privacy: self-contained HTML, or Markdown.",
    ),
    "audit": Entry("audit", "audit", "Attack the agent that ships: does it keep its promise?"),
    "verify": Entry("verify", "verify", "Check a privacy statement: every ε is derived again, in two ways."),
    "study": Entry("study", "study_app", "A study: the public contract of a run."),
    "agent": Entry(
        "agent", "agent_app", "For data owners: your table, your limits, and the studies that you agree to."
    ),
    "aggregator": Entry(
        "aggregator",
        "aggregator_app",
        "For who runs studies across sites: certificates, the broker, rounds and the model.",
    ),
    "federation": Entry(
        "federation",
        "federation_app",
        "A federation on this machine alone: see it work before others depend on it.",
    ),
    "ledger": Entry(
        "ledger", "ledger_app", "What was given away from a data set: spent, reserved and left, by study."
    ),
}


class Commands(TyperGroup):
    """Lists commands by the table; the one that is run is loaded."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, entry in COMMANDS.items():
            self.add_command(TyperCommand(name, help=entry.help))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed and loaded(str(name)), rest


def loaded(name: str) -> Any:
    """The command itself, from its module."""
    entry = COMMANDS[name]
    command = getattr(import_module(f"dpadmm.cli.{entry.module}"), entry.attribute)
    alone = typer.Typer(add_completion=False)
    alone.callback()(lambda: None)  # a group, whatever is in it
    if isinstance(command, typer.Typer):
        alone.add_typer(command, name=name)
    else:
        alone.command(name)(command)
    group = typer.main.get_command(alone)
    assert isinstance(group, TyperGroup)
    return group.commands[name]
