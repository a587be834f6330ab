"""What the deployment guide and its examples tell people to type exists; systemd understands the units."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
from looping import case

from dpadmm.cli import app

ROOT = Path(__file__).parents[2]
GUIDES = [ROOT / "docs" / name for name in ("deployment.md", "operations.md")]
EXAMPLES = ROOT / "examples" / "deployment"


def commands():
    """Every whole command line of the guides, the units and the Compose file."""
    text = "".join(guide.read_text(encoding="utf-8") for guide in GUIDES)
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()] + re.findall("`(dpadmm [^`]*)`", text)
    found = [line.strip().partition("   #")[0] for line in lines if line.strip().startswith("dpadmm ")]
    for unit in EXAMPLES.glob("*.service"):
        found += re.findall("^ExecStart=/opt/dpadmm/bin/(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
    compose = (EXAMPLES / "compose.yaml").read_text(encoding="utf-8")
    found += ["dpadmm " + shlex.join(json.loads(words)) for words in re.findall("command: (.*)", compose)]
    return found + [shlex.join(json.loads(words)[1:]) for words in re.findall("test: (.*)", compose)]


def test_there_are_commands_to_check():
    said = " ".join(commands())
    for verb in ("init", "approve", "revoke", "broker", "serve", "status", "health", "resume", "export"):
        assert f"aggregator {verb}" in said
    for verb in ("init", "request", "join", "review", "enrol", "run", "status", "health", "leave"):
        assert f"agent {verb}" in said


def test_a_command_is_one_that_dpadmm_has():
    for line in commands():
        with case(line):
            command, words = typer.main.get_command(app), shlex.split(line)[1:]
            context = typer.Context(command, info_name="dpadmm")
            while hasattr(command, "resolve_command"):
                _, command, words = command.resolve_command(context, words)  # an error where there is none
            command.make_context("dpadmm", words, parent=context)  # its options and arguments are what it takes


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_understands_the_units(tmp_path):
    for unit in EXAMPLES.glob("*.service"):
        text = unit.read_text(encoding="utf-8").replace("/opt/dpadmm/bin/dpadmm", shutil.which("true"))
        text = re.sub("^(User|Group)=.*$", r"\1=root", text, flags=re.MULTILINE)
        (tmp_path / unit.name.replace("@", "@heart")).write_text(text)
    units = sorted(map(str, tmp_path.iterdir()))
    assert len(units) == 3
    seen = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    assert (seen.returncode, seen.stderr) == (0, "")


def test_the_guides_link_to_files_that_are_there():
    for guide in GUIDES:
        for link in re.findall(r"\]\(([^)#]+)", guide.read_text(encoding="utf-8")):
            assert (guide.parent / link).exists(), link


def test_every_alarm_has_a_line_that_says_what_to_do():
    source = (ROOT / "src" / "dpadmm" / "federation" / "health.py").read_text(encoding="utf-8")
    codes = set(re.findall(r'Alarm\("([a-z-]+)"', source)) | {"disk-full", "disk-small"}
    table = GUIDES[1].read_text(encoding="utf-8").partition("## Alarms")[2]
    assert codes == set(re.findall(r"`([a-z-]+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE))))
