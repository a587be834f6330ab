"""``dpadmm``: help, version, exit codes, and one sentence for every error."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import fields
from itertools import product

import pytest
from looping import case

import dpadmm
from dpadmm.cli import main
from dpadmm.cli.simulate_options import RUN_OPTIONS
from dpadmm.errors import RefusalError, ServiceUnavailableError, StudyError
from dpadmm.federation.server.journal import JournalError

OPTIONS = {
    "demo": ["--data", "--output", "--json"],
    "simulate": [
        *("--config", "--json", "--overwrite"),
        *(option for _, _, names in RUN_OPTIONS.values() for option in names),
        *(f"--{field.name.replace('_', '-')}" for field in fields(dpadmm.Settings)),
        *("--agents", "--rounds", "-n", "-t", "-e", "-d", "-o", "-c"),
    ],
    "privacy": [
        *("--round-epsilon", "--epsilon", "--noise-multiplier", "--delta", "--rounds", "--calibration"),
        *("--rows", "--lipschitz", "--rows-per-person", "--cross-check", "--json"),
    ],
    "compare": [
        *("--methods", "--epsilon", "--round-epsilon", "--agents", "--repeats", "--seed", "--workers"),
        *("--data", "--label", "--classes", "--by", "--output", "--overwrite", "--json", "--set"),
    ],
    "site": ["join", "run", "review", "accept", "budget"],
    "server": ["init", "start", "invite", "propose", "run"],
}


def test_help_names_every_option(cli):
    for command in OPTIONS:
        with case(command):
            words = cli(command, "--help", columns=120).succeeded().out.replace(",", " ").replace("/", " ").split()
            assert not [option for option in OPTIONS[command] if option not in words]


def test_help_fits_the_screen(cli):
    for command, columns in product([[], *([name] for name in OPTIONS)], [80, 120]):
        with case(command, columns):
            text = cli(*command, "--help", columns=columns).succeeded().out
            assert max(map(len, text.splitlines())) <= columns
            assert "…" not in text


def test_help_lists_the_commands_and_no_command_shows_it(cli):
    text = cli("--help").succeeded().out
    assert all(name in text for name in OPTIONS)
    bare = cli()
    assert bare.code == 2
    assert bare.out.split() == text.split()
    assert bare.err == ""


OLD = {
    "agent": [
        "init",
        "check",
        "begin",
        "offer",
        "review",
        "enrol",
        "leave",
        "request",
        "join",
        "run",
        "status",
        "health",
    ],
    "aggregator": [
        *("init", "install", "approve", "revoke", "sites", "users", "roster", "broker", "serve", "resume"),
        *("end", "status", "health", "export"),
    ],
    "ledger": ["show", "verify", "export", "statement", "backup", "restore"],
    "federation": ["demo"],
}


def test_an_old_command_names_the_new_one(cli):
    """Each hint is a command with options that exist."""
    for words in [*([group] for group in OLD), *([group, name] for group, names in OLD.items() for name in names)]:
        with case(words):
            answer = cli(*words, "--some", "option")
            assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
            assert f"dpadmm: there is no command '{words[0]}" in answer.err
            new = answer.err.strip().partition("; use dpadmm ")[2].split()
            text = cli(*(word for word in new if not word.startswith("--")), "--help").succeeded().out
            assert all(word in text for word in new if word.startswith("--"))


def test_version(process):
    answer = process("--version").succeeded()
    assert (answer.out, answer.err) == (f"{dpadmm.__version__}\n", "")


def test_invalid_arguments_are_reported_in_one_sentence(cli):
    for words, complaint in [
        (["simulat"], "simulat"),
        (["simulate", "--epsilonn", "1"], "--epsilonn (Possible options: --epsilon"),
        (["simulate", "--rounds", "many"], "--rounds"),
        (["simulate", "--seed"], "--seed"),
        (["simulate", "surplus"], "surplus"),
        (["demo", "--data", "adlut"], "'adlut' is not one of 'auto', 'adult', 'synthetic'"),
        (["privacy", "--calibration", "papers"], "'papers' is not one of 'paper', 'exact'"),
        (["privacy", "--round-epsilon", "2", "--delta", "1e-3", "-t", "5"], "exact"),
    ]:
        with case(words, complaint):
            answer = cli(*words)
            assert (answer.code, answer.out) == (2, "")
            assert answer.err.startswith("dpadmm: ")
            assert answer.err.count("\n") == 1
            assert complaint in answer.err


def test_an_error_in_a_real_process(process):
    answer = process("simulate", "--data", "synthetic", "--epsilon", "-1", "--rounds", "3")
    assert answer.code == 2
    assert (answer.out, answer.err) == ("", "dpadmm: epsilon must be a positive number or a list of such, not -1.0\n")


PRIVACY = ("privacy", "--round-epsilon", "0.05", "--delta", "1e-3", "--rounds", "100")


def test_a_terminal_without_greek_letters_works(process):
    answer = process(*PRIVACY, env={"PYTHONIOENCODING": "ascii"}).succeeded()
    assert "0.2772" in answer.out
    assert answer.err == ""


def test_a_closed_pipe_causes_no_traceback(command):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*command, *PRIVACY], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.stderr == b""


def database_error(statements):
    """Return the error of a database that is limited to four pages."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("PRAGMA max_page_count = 4")
        with pytest.raises(sqlite3.OperationalError) as caught:
            database.executescript(statements)
    return caught.value


def journal_error(cause):
    error = JournalError("the journal cannot be used")
    error.__cause__ = cause
    return error


def test_transient_errors_have_their_own_exit_code(cli, monkeypatch):
    """Services restart after exit code 75, but not after 2."""

    def refusal(code, cause=None):
        error = RefusalError(code, "no")
        error.__cause__ = cause
        return error

    full, gone = database_error("CREATE TABLE t (a); INSERT INTO t VALUES (zeroblob(100000))"), database_error("wrong")
    for error, code in [
        (ServiceUnavailableError("two sites are missing"), 75),
        (journal_error(full), 75),
        (journal_error(gone), 2),
        (journal_error(sqlite3.DatabaseError("damaged")), 2),
        (OSError(errno.ENOSPC, "full", "journal"), 75),
        (OSError(errno.ENETUNREACH, "no network"), 75),
        (refusal("ledger-locked", BlockingIOError(errno.EAGAIN, "held")), 75),
        (refusal("ledger-failed", OSError(errno.EIO, "a bad disk")), 75),
        (refusal("ledger-failed", sqlite3.OperationalError("database or disk is full")), 75),
        (refusal("ledger-failed", PermissionError(errno.EACCES, "not yours")), 2),
        (refusal("ledger-missing"), 2),
        (refusal("study-unfit", FileNotFoundError(errno.ENOENT, "no table")), 2),
        (FileNotFoundError(errno.ENOENT, "none", "site.toml"), 2),
        (PermissionError(errno.EACCES, "not yours", "key.pem"), 2),
        (StudyError("wrong"), 2),
    ]:
        with case(error):
            monkeypatch.setattr("dpadmm.cli.app", lambda error=error, **_: (_ for _ in ()).throw(error))
            answer = cli("site", "run")
            assert (answer.code, answer.out, answer.err.count("\n")) == (code, "", 1)


def test_only_packages_that_sites_omit_are_named_in_the_hint(cli, monkeypatch):
    def needs(name):
        def app(**_):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        return app

    for name, package in [
        ("numba", "numba"),
        ("matplotlib.axes", "matplotlib"),
        ("dp_accounting.pld", "dp-accounting"),
    ]:
        monkeypatch.setattr("dpadmm.cli.app", needs(name))
        answer = cli("demo")
        text = f"this command needs {package}, which a site installation does not include; run: pip install dpadmm"
        assert (answer.code, answer.err) == (2, f"dpadmm: {text}\n")
    for name in ("dpadmm.nothing", "pandas", None):
        monkeypatch.setattr("dpadmm.cli.app", needs(name))
        with pytest.raises(ModuleNotFoundError):
            main()
