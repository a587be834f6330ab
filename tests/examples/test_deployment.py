"""Commands in how-to guides and deployment examples exist, and systemd accepts the units."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

import compose_spec
import images
import pytest
import typer
import yaml
from looping import case

from dpadmm.cli import TRY_LATER, USER_ERROR, app
from dpadmm.sites.service import systemd_unit
from dpadmm.sites.site import Site
from dpadmm.trusted.policy import Policy
from dpadmm.trusted.unit import PrivacyUnit

ROOT = Path(__file__).parents[2]
# all but the one whose commands come with a patch
GUIDES = sorted(path for path in (ROOT / "docs" / "how-to").glob("*.md") if path.stem != "extend")
RUNBOOK = ROOT / "docs" / "how-to" / "operations.md"
EXAMPLES = ROOT / "examples" / "deployment"


def compose():
    return yaml.safe_load((EXAMPLES / "compose.yaml").read_text(encoding="utf-8"))


def commands():
    """Return every complete command line of the guides, the units, the Compose file and the Dockerfile."""
    text = "".join(guide.read_text(encoding="utf-8") for guide in GUIDES)
    lines = re.findall(r"^ *\$ !? ?(dpadmm .*)$", text, re.MULTILINE)
    lines += re.findall("`(dpadmm [^`]*)`", RUNBOOK.read_text(encoding="utf-8"))
    found = [re.split("  +#", line)[0] for line in lines]
    for unit in EXAMPLES.glob("*.service"):
        found += re.findall("^ExecStart=/opt/dpadmm/bin/(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
    for service in compose()["services"].values():
        found += [shlex.join(["dpadmm", *service["command"]]), shlex.join(service["healthcheck"]["test"][1:])]
    for stage in images.stages().values():
        if stage.command:
            found += [shlex.join([*stage.entrypoint, *stage.command]), shlex.join(stage.health)]
    return found


def test_there_are_commands_to_check():
    listed = " ".join(commands())
    for verb in ("init", "start", "invite", "sites", "revoke", "propose", "run", "end", "status", "export"):
        assert f"server {verb}" in listed
    for verb in (
        "join",
        "check",
        "review",
        "accept",
        "decline",
        "leave",
        "run",
        "status",
        "budget",
        "export",
        "backup",
    ):
        assert f"site {verb}" in listed


def test_site_unit_equals_the_output_of_install():
    def site_at(folder):
        policy = Policy(1.0, 1e-5, frozenset({"auto"}), frozenset({"logistic"}), 100, 100, PrivacyUnit())
        table, ledger = Path("/srv/data/table.csv"), Path(folder, "ledger")
        return Site(path=Path(folder, "site.toml"), table=table, ledger=ledger, label=None, policy=policy)

    program = Path("/opt/dpadmm/bin/dpadmm")
    unit = systemd_unit(site_at("/var/lib/dpadmm-site"), "dpadmm-site", program)
    assert unit == (EXAMPLES / "dpadmm-site.service").read_text(encoding="utf-8")
    at_home = systemd_unit(site_at("/home/ward 7/100%"), "ward", program)
    assert "ProtectHome=read-only\n" in at_home
    assert "WorkingDirectory=/home/ward 7/100%%\n" in at_home
    assert 'run --site "/home/ward 7/100%%/site.toml" --quiet' in at_home


def test_commands_exist():
    for line in commands():
        with case(line):
            command, words = typer.main.get_command(app), shlex.split(line)[1:]
            context = typer.Context(command, info_name="dpadmm")
            while hasattr(command, "resolve_command"):
                _, command, words = command.resolve_command(context, words)  # an error where there is none
            command.make_context("dpadmm", words, parent=context)  # its options and arguments are what it takes


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None and os.environ.get("CI") != "true", reason="there is no systemd here"
)
def test_systemd_accepts_the_units(tmp_path):
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


def test_units_restart_after_transient_errors_only():
    for unit in EXAMPLES.glob("*.service"):
        with case(unit.name):
            lines = unit.read_text(encoding="utf-8").splitlines()
            assert {"Restart=on-failure", f"RestartPreventExitStatus={USER_ERROR}", "StartLimitIntervalSec=0"} <= {
                *lines
            }
            assert str(TRY_LATER) not in " ".join(line for line in lines if not line.startswith("#"))


def test_compose_file_follows_its_specification():
    checked = compose_spec.PyCompose.from_yaml(yaml.safe_dump(compose()))
    checked.validate()
    stages = images.stages()
    for name, service in compose()["services"].items():
        with case(name):
            assert service["read_only"] is True
            assert service["user"] == stages[service["build"]["target"]].user != "0:0"
            assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
            ends = service["command"][:2] == ["server", "run"]  # a study that is done is not to be started again
            assert service["restart"] == ("on-failure" if ends else "unless-stopped")
            assert (EXAMPLES / service["build"]["context"] / service["build"]["dockerfile"]).samefile(images.DOCKERFILE)


def test_dockerfile_passes_the_linter():
    linter = Path(sysconfig.get_path("scripts")) / "hadolint"
    seen = subprocess.run([linter, images.DOCKERFILE], capture_output=True, text=True, check=False)
    assert (seen.returncode, seen.stdout, seen.stderr) == (0, "", "")


def test_links_of_the_guides_have_targets():
    for guide in GUIDES:
        for link in re.findall(r"\]\(([^)#]+)", guide.read_text(encoding="utf-8")):
            assert (guide.parent / link).exists(), link


def test_every_alarm_has_an_action():
    source = (ROOT / "src" / "dpadmm" / "federation" / "health.py").read_text(encoding="utf-8")
    codes = set(re.findall(r'Alarm\(\s*"([a-z-]+)"', source)) | {"disk-full", "disk-small"}
    table = RUNBOOK.read_text(encoding="utf-8").partition("## Alarms")[2].partition("\n## ")[0]
    assert codes == set(re.findall(r"`([a-z-]+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE))))
