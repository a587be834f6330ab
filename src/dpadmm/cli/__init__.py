"""The command line: one file per command."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

import dpadmm
from dpadmm.cli.agent import agent_app
from dpadmm.cli.audit import audit
from dpadmm.cli.compare import compare_command
from dpadmm.cli.demo import demo
from dpadmm.cli.evaluate import evaluate
from dpadmm.cli.explain import explain
from dpadmm.cli.ledger import ledger_app
from dpadmm.cli.plan import plan
from dpadmm.cli.predict import predict
from dpadmm.cli.privacy import privacy
from dpadmm.cli.report import report
from dpadmm.cli.reproduce import reproduce
from dpadmm.cli.screen import Interrupted
from dpadmm.cli.simulate import simulate_command
from dpadmm.cli.study import study_app
from dpadmm.cli.train import train
from dpadmm.cli.verify import verify
from dpadmm.errors import DpadmmError, Refusal

INTERRUPTED = 130

app = typer.Typer(
    name="dpadmm",
    help="Train one linear model across data owners with differential privacy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo)
app.command("simulate")(simulate_command)
app.command("train")(train)
app.command("predict")(predict)
app.command("evaluate")(evaluate)
app.command("explain")(explain)
app.command("plan")(plan)
app.command("privacy")(privacy)
app.command("compare")(compare_command)
app.command("reproduce")(reproduce)
app.command("report")(report)
app.command("audit")(audit)
app.command("verify")(verify)
app.add_typer(study_app, name="study")
app.add_typer(agent_app, name="agent")
app.add_typer(ledger_app, name="ledger")


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
