"""Find words that the style guide excludes, in documentation, docstrings, comments, messages and help texts.

    python tools/prose_lint.py [--max N] [PATH]...

The words are in prose_words.toml, accepted uses in prose_allow.txt. With more than N findings the exit code is 1.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
PATHS = ("README.md", "docs", "src", "reproduction", "examples")
SUFFIXES = (".md", ".html", ".py", ".toml")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
CODE = re.compile(
    r"<script.*?</script>|<style.*?</style>|</?[a-z][^>]*>"
    r"|``.*?``|`[^`\n]*`|:\w+:`[^`]*`|\]\([^)\s]*\)|<!--.*?-->|\{\{.*?\}\}|\{%.*?%\}|(?m:^ *(?:>>>|\.\.\.) .*$)",
    re.DOTALL,
)
FENCE = re.compile(r" *(```+|~~~+)(.*)")
PROSE_FENCE = re.compile(r"\{(note|tip|warning|admonition|dropdown|grid|card)")


class Rule(NamedTuple):
    name: str
    pattern: re.Pattern[str]
    use: str
    only: str = ""
    kind: str = ""


class Passage(NamedTuple):
    """Text of one kind, with the line on which it begins."""

    line: int
    text: str
    kind: str


class Finding(NamedTuple):
    path: str
    line: int
    word: str
    rule: Rule


def read_rules(path: Path = HERE / "prose_words.toml") -> list[Rule]:
    """Read the rules, in order of precedence."""
    entries = tomllib.loads(path.read_text("utf-8"))
    return [
        Rule(name, _compiled(e["pattern"]), e["use"], e.get("only", ""), e.get("kind", ""))
        for name, e in entries.items()
    ]


def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern whose spaces also match line breaks, except in lookbehinds, which have a fixed width."""
    return re.compile(re.sub(r"(\(\?<!.*?\))| ", lambda space: space[1] or r"\s+", pattern), re.IGNORECASE)


def read_allowed(path: Path = HERE / "prose_allow.txt") -> list[tuple[str, str]]:
    """Read the accepted uses: the name of a rule, and part of a line."""
    lines = [line for line in path.read_text("utf-8").splitlines() if line.strip() and not line.startswith("#")]
    return [(rule.strip(), text.strip()) for rule, _, text in (line.partition(":") for line in lines)]


def passages(path: Path) -> Iterator[Passage]:
    """Split a file into the passages that people read."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        lines = _markdown_prose(text) if path.suffix in (".md", ".html") else _toml_prose(text)
        yield Passage(1, "\n".join(lines), "text")
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Passage(token.start[0], token.string, "comment")
    tree = ast.parse(text)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, DOCUMENTED) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield Passage(node.lineno, node.value, "docstring" if id(node) in docstrings else "message")


def _markdown_prose(text: str) -> Iterator[str]:
    """Yield the lines of a page, empty where they are code."""
    fence, is_code = "", False
    for line in text.split("\n"):
        if marks := FENCE.fullmatch(line):
            if not fence:
                fence, is_code = marks[1], not PROSE_FENCE.match(marks[2])
            elif marks[1].startswith(fence) and not marks[2].strip():
                fence, is_code = "", False
        yield "" if is_code or marks else line


def _toml_prose(text: str) -> Iterator[str]:
    """Yield the comments and texts of a TOML file, line by line; keys, numbers and single words are left out."""
    text = re.sub(r'(?m)^[\w.\-]+ = |"[^" \n]*"', "", text)
    for line in text.split("\n"):
        yield line if " " in line.strip() else ""


def find(text: Passage, path: str, rules: list[Rule], allowed: list[tuple[str, str]]) -> Iterator[Finding]:
    """Apply the rules to a passage; overlapping matches count once, for the first rule."""
    prose = CODE.sub(_blank, text.text)
    lines, taken = text.text.split("\n"), set[int]()
    for rule in rules:
        if not path.startswith(rule.only) or rule.kind not in ("", text.kind):
            continue
        for match in rule.pattern.finditer(prose):
            place = prose.count("\n", 0, match.start())
            span = {*range(*match.span())}
            is_allowed = any(name == rule.name and part in lines[place] for name, part in allowed)
            if not span & taken and not is_allowed:
                yield Finding(path, text.line + place, " ".join(match[0].split()), rule)
            taken |= span


def _blank(match: re.Match[str]) -> str:
    """Replace code by a neutral mark, and keep its line breaks."""
    return "·" + "\n" * match[0].count("\n")


def files(paths: list[Path]) -> Iterator[Path]:
    """Iterate over the files to check, without built pages."""
    for path in paths:
        found = [path] if path.is_file() else sorted(item for item in path.rglob("*") if item.is_file())
        yield from (item for item in found if item.suffix in SUFFIXES and "_build" not in item.parts)


def package_of(path: str) -> str:
    """Name the part of the project that a file belongs to: ``src/dpadmm/cli``, ``docs/how-to``, ``README.md``."""
    parts = Path(path).parts[:-1]
    return "/".join(parts[:3] if parts[:1] == ("src",) else parts[:2]) or path


def main(words: list[str] | None = None) -> int:
    """Print the findings with their totals; return 1 if there are more than allowed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--max", type=int, default=0, metavar="N", help="number of findings to accept (default 0)")
    parser.add_argument("--quiet", action="store_true", help="print the totals only")
    parser.add_argument("--root", type=Path, default=HERE.parent, help="folder of the project")
    parser.add_argument("paths", nargs="*", default=PATHS, metavar="PATH", help="files or folders in that folder")
    given = parser.parse_args(words)
    rules, allowed = read_rules(), read_allowed()
    findings = [
        entry
        for file in files([given.root / path for path in given.paths])
        for text in passages(file)
        for entry in find(text, file.relative_to(given.root).as_posix(), rules, allowed)
    ]
    if not given.quiet:
        for finding in sorted(findings, key=lambda item: item[:2]):
            print(f"{finding.path}:{finding.line}: {finding.word} -> {finding.rule.use}")
    for title, counts in (
        ("word", Counter(finding.rule.name for finding in findings)),
        ("package", Counter(package_of(finding.path) for finding in findings)),
    ):
        print(f"\nFindings per {title}:", *(f"{count:6} {name}" for name, count in counts.most_common()), sep="\n")
    print(f"\n{len(findings)} findings, {given.max} allowed.")
    if len(findings) < given.max:
        print(f"Lower --max to {len(findings)}.")
    return int(len(findings) > given.max)


if __name__ == "__main__":
    sys.exit(main())
