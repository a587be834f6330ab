"""``dpadmm`` itself: help, version, exit codes, one sentence for every mistake."""

from __future__ import annotations

import os
import subprocess
from dataclasses import fields
from itertools import product

from looping import case

import dpadmm
from dpadmm.cli.simulate_options import RUN_OPTIONS

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
        *("--data", "--label", "--classes", "--by", "--output", "--overwrite", "--json", "--learning-rate"),
    ],
    "reproduce": ["--output", "--grid", "--workers", "--repeats", "--overwrite", "--no-figures", "--json"],
    "report": ["--output"],
    "ledger": ["show", "verify", "export"],
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


def test_version(process):
    answer = process("--version").succeeded()
    assert (answer.out, answer.err) == (f"{dpadmm.__version__}\n", "")


def test_a_mistake_in_the_line_is_one_sentence(cli):
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


def test_a_mistake_in_a_real_process(process):
    answer = process("simulate", "--data", "synthetic", "--epsilon", "-1", "--rounds", "3")
    assert answer.code == 2
    assert (answer.out, answer.err) == ("", "dpadmm: epsilon must be a positive number or a list of such, not -1.0\n")


PRIVACY = ("privacy", "--round-epsilon", "0.05", "--delta", "1e-3", "--rounds", "100")


def test_a_screen_without_greek_letters_is_no_reason_to_fail(process):
    answer = process(*PRIVACY, env={"PYTHONIOENCODING": "ascii"}).succeeded()
    assert "0.2772" in answer.out
    assert answer.err == ""


def test_a_closed_pipe_is_no_traceback(command):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*command, *PRIVACY], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.stderr == b""
