"""The command line: one file per command group, loaded when it is run."""

from __future__ import annotations

import errno
import inspect
import io
import re
import sys
from importlib import import_module, metadata
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

import dpadmm
from dpadmm.errors import DPADMMError, RefusalError, ServiceUnavailableError
from dpadmm.parameters.text import printable

USER_ERROR, INCONCLUSIVE, TRY_LATER, INTERRUPTED = 2, 3, 75, 130
"""Exit codes beside 0 and 1.

An audit with too few trials ends with 3. A service that ends with 75 (EX_TEMPFAIL) is worth starting again,
after 2 it is not.
"""

_HEALING = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT),
)
"""Errors of the system that go away when a disk, a network or another process recovers."""


class InterruptedRunError(Exception):
    """Ctrl-C ended a command early; the message says what was kept."""


COMMANDS = {
    "demo": "Compare the paper's DP-ADMM, auto, auto with secure aggregation and the non-private optimum.",
    "simulate": "Train across simulated agents: what does privacy cost?",
    "describe": "Release private statistics of a table: counts, means, quantiles, tables.",
    "train": "Train a study's model on a table, all agents in this process.",
    "predict": "Predict every row of a table.",
    "evaluate": "Evaluate a model on a table with labels.",
    "explain": "Show coefficients in the units of the columns, largest effect first.",
    "plan": "Forecast the cost and the accuracy of a study, without reading private rows.",
    "privacy": "Privacy calculator: compute noise, ε per round, total ε or rounds from the others.",
    "compare": "Compare methods at equal privacy: what does each reach, and what does it cost?",
    "audit": "Run a privacy attack against the shipped agent, and check that it keeps its guarantee.",
    "verify": "Check a privacy statement: recompute every ε in two ways.",
    "study": "A study: the public contract of a run.",
    "agent": "For data owners: your table, your limits, and the studies you take part in.",
    "aggregator": "For study coordinators: certificates, the broker, rounds and the model.",
    "federation": "Try a whole federation on this machine.",
    "ledger": "The privacy budget of a data set: spent, reserved and left, by study.",
    "doctor": "Check this installation and this machine, and say what to do about problems.",
    "version": "Show the version; with --verbose, also what it runs on.",
}
"""The first line of every command's help."""

_HOMES = {"predict": "model", "evaluate": "model", "explain": "model", "version": "doctor"}
"""Files of commands that have another name than their command."""


class Commands(TyperGroup):
    """Lists commands from the table, and loads only the one that is run."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, text in COMMANDS.items():
            self.add_command(TyperCommand(name, help=text))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed and loaded(str(name)), rest


def loaded(name: str) -> Any:
    module = import_module(f"dpadmm.cli.{_HOMES.get(name, name)}")
    command = getattr(module, f"{name}_app", None) or getattr(module, name)
    alone = typer.Typer(add_completion=False)
    alone.callback()(lambda: None)  # makes it a group
    if isinstance(command, typer.Typer):
        alone.add_typer(command, name=name)
    else:
        alone.command(name)(command)
    group = typer.main.get_command(alone)
    assert isinstance(group, TyperGroup)
    return _reflowed(group.commands[name])


def _reflowed(command: Any) -> Any:
    """Join the lines of each paragraph of the help, so that it wraps at the width of the terminal."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)
    for each in getattr(command, "commands", {}).values():
        _reflowed(each)
    return command


app = typer.Typer(
    name="dpadmm",
    cls=Commands,
    help="Train one linear model across data owners with differential privacy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(dpadmm.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Train one linear model across data owners with differential privacy."""


def main() -> None:
    """Run a command of ``dpadmm``."""
    run_app(app)


def run_app(app: typer.Typer) -> None:
    """Run a typer application.

    Exit codes: 0 success, 1 a check failed (audit, health, doctor), 2, 3, 75 and 130 as above.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # shows ? where ε cannot be encoded
    try:
        code = app(standalone_mode=False)
    except InterruptedRunError as error:
        _fail(str(error), INTERRUPTED)
    except typer.TyperException as error:
        _fail(error.format_message(), USER_ERROR)
    except (DPADMMError, OSError) as error:
        _fail(sentence(error), TRY_LATER if _may_heal(error) else USER_ERROR)
    except ModuleNotFoundError as error:
        if (package := _left_out(error)) is None:
            raise
        text = f"this needs {package}, which the install of a site leaves out"
        _fail(f"{text}: pip install dpadmm adds all that is missing", USER_ERROR)
    else:
        if code == INTERRUPTED:  # typer's exit code for Ctrl-C
            _fail("interrupted", INTERRUPTED)
        sys.exit(code)


def sentence(error: DPADMMError | OSError) -> str:
    """What the user of a command reads of an error."""
    if isinstance(error, RefusalError):
        # The user of the command is the owner, who may see the problem with the rows
        why = f" ({error.__cause__})" if error.code == "study-unfit" and error.__cause__ else ""
        return f"{error}{why} [{error.code}]"
    if isinstance(error, OSError) and not isinstance(error, DPADMMError):
        return f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}"
    return str(error)


def _may_heal(error: DPADMMError | OSError) -> bool:
    """Whether the same command can succeed later, without any change by its user."""
    for each in (error, error.__cause__):
        if isinstance(each, OSError):
            return each.errno in _HEALING
    waiting = ("ledger-failed", "ledger-locked")
    if isinstance(error, ServiceUnavailableError) or (isinstance(error, RefusalError) and error.code in waiting):
        return True
    return isinstance(error.__cause__, Exception) and _is_transient(error.__cause__)


def _is_transient(error: Exception) -> bool:
    """Whether a database failed because of a full disk, a failing disk, memory or another process."""
    import sqlite3  # an error has occurred: the time to load it does not matter

    transient = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_NOMEM)
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF in transient


def _left_out(error: ModuleNotFoundError) -> str | None:
    """The package that dpadmm requires and whose module is missing, or None if it is another."""
    wanted = (error.name or "").partition(".")[0].replace("_", "-")
    required = (each for each in metadata.requires("dpadmm") or () if "extra ==" not in each)
    return wanted if wanted in {re.split("[^a-z0-9-]", each)[0] for each in required} else None


def _fail(sentence: str, code: int) -> None:
    if sentence:  # empty if typer has shown the help
        typer.echo(f"dpadmm: {printable(' '.join(sentence.split()))}", err=True)
    sys.exit(code)
