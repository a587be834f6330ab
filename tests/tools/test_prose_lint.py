"""The prose linter finds excluded words in prose, not in code, and fails above its limit."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from looping import case

TOOLS = Path(__file__).parents[2] / "tools"
MODULE = '''"""What the hub says."""

import desk  # rows are dealt to agents

ORACLE = {"statement": "beside", "beside": 1}
"""A value next to ``beside``."""


def reach(hub: int) -> str:
    """Return a value.

    Examples
    --------
    >>> "read off the table"
    """
    raise ValueError(f"row {hub} is read off " "the table")
'''
PAGE = """# A page beside `beside`

```python
print("whoever")
```

:::{note}
Values are read
off the table.
:::

    ```text
    beside
    ```

Made-up rows [beside](beside.md), and a third-party library.
"""


@pytest.fixture(scope="module")
def lint() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prose_lint", TOOLS / "prose_lint.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def findings(lint: ModuleType, path: Path, root: Path) -> list[tuple[int, str]]:
    rules, name = lint.read_rules(), path.relative_to(root).as_posix()
    findings = [
        finding for text in lint.passages(path) for finding in lint.find(text, name, rules, lint.read_allowed())
    ]
    return sorted((finding.line, finding.rule.name) for finding in findings)


def in_a_page(lint: ModuleType, text: str) -> list[str]:
    rules = lint.read_rules()
    return [finding.rule.name for finding in lint.find(lint.Passage(1, text, "text"), "docs/a.md", rules, [])]


def test_python_files_yield_docstrings_comments_and_messages(lint: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    assert findings(lint, path, tmp_path) == [
        (1, "hub"),
        (1, "say"),
        (1, "what-clause"),
        (3, "deal"),
        (16, "read-off"),
    ]


def test_code_and_addresses_on_pages_are_skipped(lint: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    assert findings(lint, path, tmp_path) == [(1, "beside"), (8, "read-off"), (16, "beside"), (16, "made-up")]


def test_toml_files_yield_comments_and_texts(lint: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text('statement = "beside"  # whoever reads it\n# shortened rows\ntitle = "one beside another"\n')
    assert findings(lint, path, tmp_path) == [(1, "whoever"), (2, "shorten"), (3, "beside")]


def test_tags_and_scripts_in_templates_are_skipped(lint: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text('<p class="hub">Made-up {{ claim.statement }}</p>\n<script>\nconst desk = 1;\n</script>\n')
    assert findings(lint, path, tmp_path) == [(1, "made-up")]


def test_each_rule_matches_its_words(lint: ModuleType) -> None:
    for text, names in [
        ("two tables that nobody can tell apart", ["told-apart"]),
        ("each party sends, and a third-party library for multi-party computation", ["party"]),
        ("the length of a row", ["row-length"]),
        ("the hub on GitHub", ["hub"]),
        ("the agent answers a question", ["question"]),
        ("a constant guess had a say", ["constant-guess", "had-a-say"]),
        ("how columns go together, and options that do not go together", ["go-together"]),
        ("studies of before, for so many rounds", ["of-before", "so-many"]),
        ("so many rows that it is slow", []),
        ("nothing waits to be confirmed", ["unconfirmed"]),
        ("a void round, a remark, its price", ["price", "void", "message-kind"]),
        ("the code hears, speaks and tells what the file says", ["say", "speak", "hear", "tell"]),
        ("if all others work together", ["collude"]),
        ("a file of its own that was put back, for want of another", ["of-its-own", "put-back", "for-want-of"]),
        ("it goes on anew, all the same", ["goes-on", "all-the-same", "anew"]),
        ("noise that protects nobody cannot be had", ["protects-nobody", "to-be-had"]),
        ("this deals with rows", []),
        ("the paper says so", []),
        ("the privacy report of a release, clipped to the row norm", []),
    ]:
        with case(text):
            assert in_a_page(lint, text) == names


def test_rules_can_be_limited_to_a_package(lint: ModuleType) -> None:
    text = lint.Passage(1, "# the agent", "comment")
    for path, n in [("src/dpadmm/federation/health.py", 1), ("src/dpadmm/engine/loop.py", 0)]:
        assert len([*lint.find(text, path, lint.read_rules(), [])]) == n


def test_allowed_uses_are_skipped(lint: ModuleType) -> None:
    text = lint.Passage(1, "a void pointer\na void round", "text")
    rules = lint.read_rules()
    assert [finding.line for finding in lint.find(text, "a.md", rules, [("void", "void pointer")])] == [2]
    assert len([*lint.find(text, "a.md", rules, [("hub", "void pointer")])]) == 2
    assert {name for name, _ in lint.read_allowed()} <= {rule.name for rule in rules}


def test_exit_code_depends_on_the_limit(lint: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "docs" / "how-to"
    folder.mkdir(parents=True)
    (folder / "a.md").write_text("One row beside another.\n")
    (tmp_path / "docs" / "_build").mkdir()
    (tmp_path / "docs" / "_build" / "b.md").write_text("Built, beside others.\n")
    for limit, code, note in [(0, 1, False), (1, 0, False), (5, 0, True)]:
        with case(limit):
            assert lint.main(["--root", str(tmp_path), "--max", str(limit), "docs"]) == code
            printed = capsys.readouterr().out
            assert "docs/how-to/a.md:1: beside -> alongside" in printed
            assert "     1 beside\n" in printed
            assert "     1 docs/how-to\n" in printed
            assert f"1 findings, {limit} allowed." in printed
            assert ("Lower --max to 1." in printed) == note
