"""The command line: one file per command, loaded when it is run."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

import dpadmm
from dpadmm.cli.commands import Commands
from dpadmm.cli.interrupted import Interrupted
from dpadmm.errors import DpadmmError, Refusal

INTERRUPTED = 130

app = typer.Typer(
    name="dpadmm",
    cls=Commands,
    help="Train one linear model across data owners with differential privacy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(dpadmm.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train one linear model across data owners with differential privacy."""


def main() -> None:
    """Run a command. Exit codes: 0 done, 1 an audit failed, 2 the user can cure it, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # where ε cannot be shown, ? is
    try:
        code = app(standalone_mode=False)
    except Interrupted as error:
        _fail(str(error), INTERRUPTED)
    except typer.TyperException as error:
        _fail(error.format_message(), 2)
    except Refusal as error:
        # Whoever runs commands here is the owner, who may see what is wrong with the rows
        why = f" ({error.__cause__})" if error.code == "study-unfit" and error.__cause__ else ""
        _fail(f"{error}{why} [{error.code}]", 2)
    except DpadmmError as error:
        _fail(str(error), 2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", 2)
    else:
        if code == INTERRUPTED:  # what typer makes of Ctrl-C
            _fail("interrupted", INTERRUPTED)
        sys.exit(code)


def _fail(sentence: str, code: int) -> None:
    if sentence:  # none when typer has shown the help instead
        typer.echo(f"dpadmm: {' '.join(sentence.split())}", err=True)
    sys.exit(code)
