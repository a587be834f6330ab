"""Releases are reproducible, and texts for people and platforms are consistent."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from looping import case

from dpadmm.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def loaded(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_make", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make = loaded(ROOT / "release" / "make.py")


def checked(tool: str, *words: object) -> str:
    done = subprocess.run(
        [str(BIN / tool), *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_two_builds_are_identical_and_complete(tmp_path):
    built = make.build_twice(tmp_path / "dist")
    make.check_contents(built)
    assert built.wheel.name == f"dpadmm-{VERSION}-py3-none-any.whl"
    assert built.sdist.name == f"dpadmm-{VERSION}.tar.gz"


def test_tag_must_match_the_version():
    done = subprocess.run(
        [sys.executable, str(ROOT / "release" / "make.py"), "--tag", "v99.0"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"the tag is v99.0, and src/dpadmm/version.py says {VERSION}" in done.stderr


def test_version_is_the_same_everywhere():
    assert metadata.version("dpadmm") == VERSION == make.version()
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == VERSION
    assert f"\n## {VERSION}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]


def test_every_user_extra_is_tested():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(make.EXTRAS) == set(extras) - {"dev", "docs"}
    assert set(make.MISSING) | set(make.COMMANDS) == set(make.EXTRAS)


def test_readme_has_testable_commands():
    verbs = [words[0] for words in make.readme_commands()]
    assert verbs[0] == "study"
    assert {"train", "explain"} <= set(verbs)


def test_citation_workflows_and_forms_match_their_schemas():
    github = ROOT / ".github"
    forms = sorted(path for path in (github / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
    assert len(forms) >= 2
    for schema, files in [
        ("citation-file-format", [ROOT / "CITATION.cff"]),
        ("github-workflows", sorted((github / "workflows").glob("*.yml"))),
        ("github-issue-forms", forms),
        ("github-issue-config", [github / "ISSUE_TEMPLATE" / "config.yml"]),
    ]:
        with case(schema):
            checked("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files)


def test_workflows_have_no_known_vulnerability():
    checked("zizmor", "--offline", "--quiet", "--persona", "pedantic", ".github/workflows")


def test_workflows_pin_actions_and_publish_without_a_password():
    texts = {path.name: path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")}
    for used in re.findall(r"uses: (.*)", "".join(texts.values())):
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", used), used
    assert "run: .ci/run" in texts["ci.yml"]
    release = yaml.safe_load(texts["release.yml"])
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML reads on as a truth value
    publish = release["jobs"]["publish"]
    assert (publish["needs"], publish["environment"]) == ("build", "release")
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets." not in texts["release.yml"]


def test_paper_is_cited():
    (paper,) = yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"]
    assert paper["title"] == "DP-ADMM: ADMM-based Distributed Learning with Differential Privacy"
    assert [author["family-names"] for author in paper["authors"]] == ["Huang", "Hu", "Guo", "Chan-Tin", "Gong"]


def test_pre_commit_hooks_match_lint_and_need_no_network():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    lint = (ROOT / "Makefile").read_text().split("\nlint:")[1].split("\n\n")[0]
    for repository in config["repos"]:
        assert repository["repo"] == "local"
        for hook in repository["hooks"]:
            assert hook["language"] == "system"
            folder, _, tool = hook["entry"].split()[0].rpartition("/")
            assert folder == ".venv/bin"
            assert f"$(BIN)/{tool}" in lint
            checked(tool, "--version")


@pytest.mark.parametrize("name", ["CODE_OF_CONDUCT.md", "SECURITY.md", "CONTRIBUTING.md", "release/README.md"])
def test_links_between_documents_have_targets(name):
    file = ROOT / name
    for target in re.findall(r"\]\(([^)#:]+)[#)]", file.read_text(encoding="utf-8")):
        assert (file.parent / target).exists(), target


def test_pages_named_in_changelog_and_doctor_exist():
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "src/dpadmm/cli/doctor.py")]
    named = {page for text in texts for page in re.findall(r"\bdocs/[\w/-]+\.md", text)}
    assert len(named) >= 2
    assert not [page for page in sorted(named) if not (ROOT / page).is_file()]
