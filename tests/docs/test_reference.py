"""Reference pages are complete."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest

import dpadmm
from dpadmm import cli
from dpadmm.federation import protocol
from dpadmm.sites.site import SECTIONS
from dpadmm.studies.reading import KEYS

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reference"
SOURCES = sorted((ROOT / "src" / "dpadmm").rglob("*.py"))
CODE = re.compile("[a-z]+(?:-[a-z]+)+")
RAISING = ("RefusalError", "refusal_of", "_require_fit", "_budget", "_one_of", "Limit")


@pytest.fixture(scope="module")
def reference():
    pytest.importorskip("sphinx", reason="make docs installs it")
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    try:
        spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "_ext" / "reference.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def codes_in_source():
    """Return all refusal codes in the source."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            name = getattr(getattr(node, "func", None), "id", getattr(getattr(node, "func", None), "attr", ""))
            if isinstance(node, ast.Call) and name in RAISING:
                texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                found |= {text for text in texts if isinstance(text, str) and CODE.fullmatch(text)}
    return found


def test_every_refusal_has_meaning_cause_and_fix():
    page = (PAGES / "refusals.md").read_text("utf-8")
    entries = dict(re.findall(r"^### `([a-z-]+)`\n(.+?)(?=\n\n|\Z)", page, re.MULTILINE | re.DOTALL))
    codes = codes_in_source() | {protocol.WITHHELD}
    assert len(codes) >= 34
    assert set(entries) == codes
    for code, text in entries.items():
        assert "**Cause:**" in text, code
        assert "**Fix:**" in text, code


def test_every_exit_code_is_documented():
    page = (PAGES / "refusals.md").read_text("utf-8")
    assert re.findall(r"^\| (\d+) \|", page, re.MULTILINE) == [
        "0",
        "1",
        *map(str, (cli.USER_ERROR, cli.INCONCLUSIVE, cli.TRY_LATER, cli.INTERRUPTED)),
    ]


def test_every_public_name_is_on_the_api_page():
    names = re.findall(r"^   dpadmm\.(\w+)$", (PAGES / "api.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(names) == sorted(dpadmm.__all__)


def test_every_entry_of_a_site_file_is_documented():
    page = (PAGES / "site.md").read_text("utf-8")
    for section, names in SECTIONS.items():
        part = page.partition(f"## `[{section}]`\n")[2].partition("\n## ")[0]
        assert re.findall(r"^`(\w+)`\n: ", part, re.MULTILINE) == list(names), section


def test_command_line_pages_have_every_command_and_option(reference):
    for name in cli.COMMANDS:
        page = reference.filled((PAGES / "cli" / f"{reference.page_of(name)}.md").read_text("utf-8"))
        command = cli.load_command(name)
        for item, loaded in (getattr(command, "commands", None) or {"": command}).items():
            title = f"`dpadmm {name} {item}".rstrip() + "`\n"
            assert title in page
            part = page.partition(title)[2].partition("\n## ")[0]
            for option in loaded.params:
                if option.opts[0].startswith("-") and not option.hidden:
                    assert f"`{option.opts[0]}`" in part, (title, option.opts)


def test_study_page_has_every_key(reference):
    page = reference.filled((PAGES / "study.md").read_text("utf-8"))
    for key in KEYS:
        if key != "intercept_value":  # written by dpadmm itself
            assert f"`{key}`" in page or f"`[{key}]`" in page or f"`[[{key}]]`" in page, key


def test_messages_page_has_every_kind_and_header(reference):
    page = reference.filled((PAGES / "messages.md").read_text("utf-8"))
    assert all(f"`{kind.name}`" in page for kind in (*protocol.Kind, *protocol.LeaseReply))
    assert "<!-- generated" not in page


def test_every_file_format_is_documented():
    page = (PAGES / "files.md").read_text("utf-8")
    text = "\n".join(path.read_text("utf-8") for path in SOURCES)
    formats = set(re.findall(r'[=:] "(dpadmm-[a-z]+/\d)"', text))
    assert len(formats) >= 10
    assert {item for item in formats if f"`{item}`" not in page} == set()
