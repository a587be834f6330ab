"""The command line. Each command group has its own module, imported when the command runs."""

from __future__ import annotations

import errno
import inspect
import io
import re
import sys
from importlib import import_module
from typing import Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

import dpadmm
from dpadmm.errors import DPADMMError, RefusalError, ServiceUnavailableError, StudyError, TableError
from dpadmm.parameters.text import printable

USER_ERROR, INCONCLUSIVE, TRY_LATER, INTERRUPTED = 2, 3, 75, 130
"""Exit codes other than 0 and 1.

An audit with too few trials exits with 3. Restart a service that exits with 75 (EX_TEMPFAIL), but not one that
exits with 2.
"""

_TRANSIENT_ERRNOS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT),
)
"""System errors that disappear when a disk, a network or another process recovers."""


class InterruptedRunError(Exception):
    """Ctrl-C ended a command early. The message names the results that were kept."""


PANELS = {
    "Model": {
        "study": "Create, check and inspect study files.",
        "plan": "Forecast the cost and accuracy of a study without reading private rows.",
        "train": "Train a model on a local table.",
        "evaluate": "Evaluate a model on a table with labels.",
        "explain": "Show coefficients in the units of the columns, largest effect first.",
        "predict": "Predict every row of a table.",
        "describe": "Release private statistics of a table: counts, means, quantiles, tables.",
    },
    "Federation": {
        "site": "For data owners: join a server, review studies, take part in them and track the budget.",
        "server": "For study coordinators: run the server, invite sites, run studies and export models.",
    },
    "Privacy": {
        "privacy": "Compute any one of noise, ε or rounds from the rest.",
        "verify": "Verify a privacy report: recompute every ε with two independent methods.",
        "audit": "Attack the shipped agent and check that its privacy guarantee holds.",
    },
    "Research": {
        "demo": "Compare the paper's DP-ADMM, auto, auto with secure aggregation and the non-private optimum.",
        "simulate": "Train across simulated agents and measure the cost of privacy.",
        "compare": "Compare methods at the same ε.",
    },
    "Installation": {
        "doctor": "Check this installation and suggest fixes for problems.",
        "version": "Show the version; with --verbose, also the environment.",
    },
}
"""The first line of every command's help, by the panel of ``dpadmm --help``."""

COMMANDS = {name: text for panel in PANELS.values() for name, text in panel.items()}

EXAMPLES = {
    "study new": "dpadmm study new study.toml --from sample.csv --label ill --by hospital",
    "study check": "dpadmm study check study.toml",
    "study confirm": "dpadmm study confirm study.toml --all",
    "study show": "dpadmm study show study.toml",
    "study schema": "dpadmm study schema > study.schema.json",
    "plan": "dpadmm plan study.toml --agents 5 --rows 8000",
    "train": "dpadmm train study.toml --data patients.csv --by hospital",
    "evaluate": "dpadmm evaluate model.dpadmm --data test.csv",
    "explain": "dpadmm explain model.dpadmm --top 10",
    "predict": "dpadmm predict model.dpadmm --data new.csv --keep case -o answers.csv",
    "describe": "dpadmm describe statistics.toml --data patients.csv --by hospital",
    "site join": "dpadmm site join TOKEN --site here",
    "site check": "dpadmm site check --site here --connect",
    "site studies": "dpadmm site studies --site here",
    "site review": "dpadmm site review flu --site here",
    "site accept": "dpadmm site accept flu --site here",
    "site decline": "dpadmm site decline flu --site here",
    "site leave": "dpadmm site leave flu --site here",
    "site run": "dpadmm site run --site here",
    "site status": "dpadmm site status --site here",
    "site install": "dpadmm site install --site here > dpadmm-site.service",
    "site budget": "dpadmm site budget --site here",
    "site export": "dpadmm site export flu --site here -o flu.privacy.json",
    "site backup": "dpadmm site backup --site here -o ledger.backup",
    "site restore": "dpadmm site restore ledger.backup --site here",
    "server init": "dpadmm server init server --host study.example.org",
    "server start": "dpadmm server start --folder server",
    "server invite": "dpadmm server invite north --folder server",
    "server sites": "dpadmm server sites --folder server",
    "server revoke": "dpadmm server revoke north --folder server",
    "server propose": "dpadmm server propose study.toml --folder server",
    "server run": "dpadmm server run study.toml --folder server",
    "server end": "dpadmm server end flu --folder server",
    "server status": "dpadmm server status --folder server",
    "server export": "dpadmm server export flu --folder server -o flu.dpadmm",
    "privacy": "dpadmm privacy --epsilon 1 --delta 1e-5 --rounds 100",
    "verify": "dpadmm verify model.privacy.json",
    "audit": "dpadmm audit --method pgd",
    "demo": "dpadmm demo --data synthetic",
    "simulate": "dpadmm simulate --data synthetic --method auto --epsilon 1",
    "compare": "dpadmm compare --data synthetic --epsilon 0.5,1",
    "doctor": "dpadmm doctor",
    "version": "dpadmm version --verbose",
}
"""An example of each command, shown below its help. ``tests/cli/test_help.py`` parses them."""

_HOMES = {"predict": "model", "evaluate": "model", "explain": "model", "version": "doctor"}
"""Modules of commands whose module has another name."""


_REPLACED: dict[str, dict[str, str]] = {
    "agent": {
        "": "site",
        **{name: f"site {name}" for name in ("check", "review", "leave", "join", "run", "status")},
        "init": "site join",
        "begin": "site join",
        "request": "site join --manual",
        "enrol": "site accept",
        "offer": "site accept",
        "health": "site status --health",
    },
    "aggregator": {
        "": "server",
        **{name: f"server {name}" for name in ("init", "revoke", "sites", "end", "status", "export")},
        "install": "server init --certificate",
        "approve": "server invite",
        "broker": "server start",
        "users": "server sites --nats-users",
        "roster": "server propose --offer",
        "health": "server status --health",
        "serve": "server run",
        "resume": "server run",
    },
    "ledger": {
        "": "site budget",
        "export": "site export",
        "statement": "site export",
        "backup": "site backup",
        "restore": "site restore",
    },
    "federation": {"": "demo --federated"},
}
"""The commands that replace those of removed groups; the empty name stands for the others of a group."""


class Commands(TyperGroup):
    """Lists commands from ``COMMANDS`` and imports only the one that is run."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for panel, commands in PANELS.items():
            for name, text in commands.items():
                self.add_command(TyperCommand(name, help=text, rich_help_panel=panel))

    def get_params(self, ctx: Any) -> list[Any]:
        options = super().get_params(ctx)
        for option in options:
            option.metavar = ""  # all are flags
        return options

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _REPLACED:
            raise StudyError(_replacement(*args))
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, placeholder and load_command(str(name)), rest


def _replacement(group: str, command: str = "", *_: str) -> str:
    """Return a sentence that names the command that replaces a removed one."""
    commands = _REPLACED[group]
    typed = f"{group} {command}" if command in commands and command else group
    return f"there is no command {typed!r}; use dpadmm {commands.get(command, commands[''])}"


def load_command(name: str) -> Any:
    """Import a command and return it with its help text reflowed."""
    module = import_module(f"dpadmm.cli.{_HOMES.get(name, name)}")
    command = getattr(module, f"{name}_app", None) or getattr(module, name)
    parent = typer.Typer(add_completion=False)
    parent.callback()(lambda: None)  # makes it a group
    if isinstance(command, typer.Typer):
        parent.add_typer(command, name=name)
    else:
        parent.command(name)(command)
    group = typer.main.get_command(parent)
    assert isinstance(group, TyperGroup)
    return _complete_help(group.commands[name], name)


def _complete_help(command: Any, name: str) -> Any:
    """Reflow the help of a command, append its example, and name the values of its options in words."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    if isinstance(command, TyperGroup):
        for subcommand in command.commands.values():
            _complete_help(subcommand, f"{name} {subcommand.name}")
    elif name in EXAMPLES:
        command.epilog = f"Example: {EXAMPLES[name]}"
    for option in (*command.params, command.get_help_option(typer.Context(command))):
        if option.metavar is None and option.opts[0].startswith("-"):
            option.metavar = _value_name(option)
    return command


def _value_name(option: Any) -> str | None:
    """Return a word for the value of an option; None keeps the list of choices."""
    value = option.type_descriptor
    if option.is_flag:
        return ""
    if value.is_choice:
        return None
    if value.is_path:
        return "PATH"
    kinds = {int: "N", float: "X"}
    return next(
        (word for kind, word in kinds.items() if kind in (value.annotation, *get_args(value.annotation))), "TEXT"
    )


app = typer.Typer(
    name="dpadmm",
    cls=Commands,
    help="Train one linear model across data owners with differential privacy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(dpadmm.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """Train one linear model across data owners with differential privacy."""


class _HiddenPackages:
    """Hides optional dependencies of other packages that no command uses.

    pyarrow would import pandas (0.3 s, 25 MB) to recognise data frames, and SciPy charset_normalizer (0.04 s, 3 MB), by
    way of NumPy's reader of Fortran.
    """

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name in ("pandas", "charset_normalizer"):
            raise ModuleNotFoundError(f"commands do not use {name}", name=name)


def start() -> None:
    """Run a command of ``dpadmm`` in a separate process: the entry point of the console script."""
    sys.meta_path.insert(0, _HiddenPackages())
    main()


def main() -> None:
    """Run a command of ``dpadmm``."""
    run_app(app)


def run_app(app: typer.Typer) -> None:
    """Run a typer application.

    Exit codes: 0 success, 1 a check failed (audit, health, doctor), 2, 3, 75 and 130 as above.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # prints ? if ε cannot be encoded
    try:
        code = app(standalone_mode=False)
    except InterruptedRunError as error:
        _fail(str(error), INTERRUPTED)
    except typer.Abort:  # Ctrl-C or end of input at a question
        _fail("interrupted", INTERRUPTED)
    except typer.TyperException as error:
        _fail(error.format_message(), USER_ERROR)
    except TableError as error:
        if len(error.problems) > 1:
            from dpadmm.cli.console import show_problems

            show_problems(error)
        _fail(error.summary, USER_ERROR)
    except (DPADMMError, OSError) as error:
        _fail(format_error(error), TRY_LATER if _is_transient(error) else USER_ERROR)
    except ModuleNotFoundError as error:
        if (package := _missing_dependency(error)) is None:
            raise
        text = f"this command needs {package}, which a site installation does not include"
        _fail(f"{text}; run: pip install dpadmm", USER_ERROR)
    else:
        if code == INTERRUPTED:  # typer's exit code for Ctrl-C
            _fail("interrupted", INTERRUPTED)
        sys.exit(code)


def format_error(error: DPADMMError | OSError) -> str:
    """Return the message of an error for the user of a command."""
    if isinstance(error, RefusalError):
        # The user of the command owns the table and may see the problem with its rows
        cause = f" ({error.__cause__})" if error.code == "study-unfit" and error.__cause__ else ""
        return f"{error}{cause} [{error.code}]"
    if isinstance(error, OSError) and not isinstance(error, DPADMMError):
        return f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}"
    return str(error)


def _is_transient(error: DPADMMError | OSError) -> bool:
    """Return whether the same command can succeed later without any change by its user."""
    for candidate in (error, error.__cause__):
        if isinstance(candidate, OSError):
            return candidate.errno in _TRANSIENT_ERRNOS
    codes = ("ledger-failed", "ledger-locked")
    if isinstance(error, ServiceUnavailableError) or (isinstance(error, RefusalError) and error.code in codes):
        return True
    return isinstance(error.__cause__, Exception) and _is_transient_database_error(error.__cause__)


def _is_transient_database_error(error: Exception) -> bool:
    """Return whether a database failed because of a full or failing disk, memory or another process."""
    import sqlite3  # slow, and only needed after an error

    transient = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_NOMEM)
    return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF in transient


def _missing_dependency(error: ModuleNotFoundError) -> str | None:
    """Return the missing package if dpadmm depends on it, else None."""
    from importlib import metadata  # slow, and only needed after an error

    package = (error.name or "").partition(".")[0].replace("_", "-")
    required = (line for line in metadata.requires("dpadmm") or () if "extra ==" not in line)
    return package if package in {re.split("[^a-z0-9-]", line)[0] for line in required} else None


def _fail(message: str, code: int) -> None:
    if message:  # empty if typer has shown the help
        typer.echo(f"dpadmm: {printable(' '.join(message.split()))}", err=True)
    sys.exit(code)
