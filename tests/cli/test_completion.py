"""A real bash completes commands, options and names, with what ``dpadmm --show-completion bash`` prints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from looping import case

BASH = shutil.which("bash")
COMPLETE = """
set -eu
source "$1"
COMP_WORDS=("${@:2}")
COMP_CWORD=$(( $# - 2 ))
_dpadmm_completion "${COMP_WORDS[0]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return the program under its own name, for a shell."""
    file = tmp_path / "bin" / "dpadmm"
    file.parent.mkdir()
    file.write_text(f"#!{sys.executable}\nfrom dpadmm.cli import main\nmain()\n")
    file.chmod(0o755)
    return file


def in_bash(program: Path, option: str, **env: str) -> str:
    """Run the program as a child of bash."""
    done = subprocess.run(
        [str(BASH), "-c", f'"$0" {option}; exit $?', str(program)],
        env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_bash_completes_commands_options_and_names(program, tmp_path):
    script = tmp_path / "completion.sh"
    script.write_text(in_bash(program, "--show-completion"))

    def completed(*words: str) -> list[str]:
        paths = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [str(BASH), "-c", COMPLETE, "bash", str(script), "dpadmm", *words],
            env={**os.environ, "PATH": paths}, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout.split()

    for words, expected in [
        (["sim"], ["simulate"]),
        (["site", "bu"], ["budget"]),
        (["server", "inv"], ["invite"]),
        (["privacy", "--round-e"], ["--round-epsilon"]),
        (["simulate", "--loss", "h"], ["hinge", "huber"]),
        (["simulate", "--method", "dp_"], ["dp_admm", "dp_sgd"]),
        (["demo", "--data", "s"], ["synthetic"]),
    ]:
        with case(words):
            assert sorted(completed(*words)) == expected


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_installing_writes_to_the_home_folder_only(program, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    in_bash(program, "--install-completion", HOME=str(home))
    written = [path.read_text() for path in home.rglob("*") if path.is_file()]
    assert any("_DPADMM_COMPLETE" in text for text in written)
