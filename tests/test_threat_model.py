"""Every claim of the threat model names an existing test.

By hand: ``python tests/test_threat_model.py``. In the tables under the heading, the last column contains at least one
of `tests/FILE.py::test_name`, `tests/FILE.py` or `tests/FOLDER/`. ``*`` matches any letters.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from looping import case

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "docs" / "explanation" / "threat-model.md"
HEADING = "## Guarantees"
_CELLS = re.compile(r"(?<!\\)\|")
_NAMED = re.compile(r"`(tests/[^`\s:]*)((?:::[^`\s:]+)*)`")


class Row(NamedTuple):
    """A claim, and the text of its last column."""

    line: int
    promise: str
    tests: str


def claims(text: str) -> list[Row]:
    """Return the rows of all tables below the heading, without header rows."""
    found, inside, head = [], False, True
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("## "):
            inside = line.startswith(HEADING)
        if not inside or not line.lstrip().startswith("|"):
            head = True  # the next table begins with one
            continue
        cells = [part.strip() for part in _CELLS.split(line.strip())[1:-1]]
        if all(re.fullmatch(":?-+:?", cell) for cell in cells):
            head = False
        elif not head:
            found.append(Row(number, cells[0], cells[-1] if len(cells) > 1 else ""))
    return found


def problems(text: str, root: Path) -> Iterator[str]:
    """Return a sentence for every claim without a test and for every test that does not exist."""
    rows = claims(text)
    if not rows:
        yield f'there is no table under "{HEADING}"'
    for row in rows:
        where = f"line {row.line}, {row.promise[:60]!r}"
        named = _NAMED.findall(row.tests)
        if not named:
            yield f"{where}: names no test; write `tests/FILE.py::test_name` into the last column"
        for path, names in named:
            if wrong := _missing(path, names.split("::")[1:], root):
                yield f"{where}: {wrong}"


def _missing(path: str, names: list[str], root: Path) -> str | None:
    pattern = f"{path}test_*.py" if path.endswith("/") else path
    files = sorted(item for item in root.glob(pattern) if item.is_file())
    if not files:
        return f"there is no {path}"
    tests = set().union(*(_tests_in(item) for item in files))
    if not tests:
        return f"there is no test in {path}"
    if names and "::".join(names).partition("[")[0] not in tests:
        return f"there is no {'::'.join(names)} in {path}"
    return None


def _tests_in(file: Path) -> set[str]:
    """Return the tests that pytest collects from a file: ``test_name`` and ``TestClass::test_name``."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        members = node.body if isinstance(node, ast.ClassDef) and node.name.startswith("Test") else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {
            f"{prefix}{member.name}"
            for member in members
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and member.name.startswith("test_")
        }
    return found


def test_claims_of_the_threat_model_name_existing_tests() -> None:
    assert list(problems(MODEL.read_text(encoding="utf-8"), ROOT)) == []


def test_conditions_of_the_filter_theorem_name_existing_tests() -> None:
    text = (MODEL.parent / "ledgers.md").read_text(encoding="utf-8")
    named = _NAMED.findall(text)
    assert len(named) >= 8
    assert [wrong for path, names in named if (wrong := _missing(path, names.split("::")[1:], ROOT))] == []


def test_all_claims_are_checked() -> None:
    text = MODEL.read_text(encoding="utf-8")
    part = text[text.index(HEADING) :].split("\n## Limits")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    heads = sum(line.startswith("|---") for line in lines)
    assert len(claims(text)) == len(lines) - 2 * heads >= 13


HERE = "tests/test_threat_model.py"
OWN = "test_missing_test_is_reported"


def test_missing_test_is_reported() -> None:
    for last, complaint in [
        ("proofs in decision 7", "names no test"),
        ("", "names no test"),
        ("`test_somewhere`", "names no test"),
        ("`tests/test_gone.py`", "there is no tests/test_gone.py"),
        ("`tests/gone_*.py`", "there is no tests/gone_*.py"),
        ("`tests/gone/`", "there is no tests/gone/"),
        (f"`{HERE}`, `tests/gone.py::test_it`", "there is no tests/gone.py"),
        (f"`{HERE}::test_gone`", f"there is no test_gone in {HERE}"),
        (f"`{HERE}::claims`", f"there is no claims in {HERE}"),
        (f"`{HERE}::Row::test_gone`", f"there is no Row::test_gone in {HERE}"),
        (f"`{HERE}::{OWN}` and `{HERE}::{OWN}_now`", f"there is no {OWN}_now in {HERE}"),
        ("`tests/conftest.py`", "there is no test in tests/conftest.py"),
    ]:
        with case(last, complaint):
            (found,) = problems(_table(last), ROOT)
            assert found.startswith("line 7, 'nothing leaks': ")
            assert complaint in found


def test_existing_test_is_accepted() -> None:
    for last in [
        f"`{HERE}`",
        f"`{HERE}::{OWN}`",
        f"`{HERE}::{OWN}[x]` (by hand)",
        "`tests/audit/` and its mutants",
        "`tests/test_thr*.py`",
    ]:
        with case(last):
            assert list(problems(_table(last), ROOT)) == []


def test_threat_model_without_claims_is_reported() -> None:
    assert list(problems("# Threat model\n\n| a | `b` |\n|---|---|\n| x | y |\n", ROOT))


def _table(last: str) -> str:
    head = f"# T\n\n{HEADING} for a person\n| guarantee | mechanism | test |\n|---|---|---|\n"
    return f"{head}| fine | so | `{HERE}` |\n| nothing leaks | a \\| b | {last} |\n"


if __name__ == "__main__":
    wrong = list(problems(MODEL.read_text(encoding="utf-8"), ROOT))
    sys.exit("\n".join(f"{MODEL.name}, {item}" for item in wrong) or 0)
