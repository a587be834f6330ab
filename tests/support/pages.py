"""Executable blocks of Markdown pages and how to run them. CONTRIBUTING.md describes how to write them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^( *)(`{3,}|~{3,})[ \t]*(\S*)[^\n]*\n(.*?)^\1?\2`*\s*?$", re.MULTILINE | re.DOTALL)
NOTE = re.compile(r"<!-- (file|not run|setup): (.+?) -->")
COMMAND = re.compile(r"^(?:\$ )?(?:dpadmm|pip|python|make) ", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: its language, its text, its first line, and the note on the line before it."""

    language: str
    text: str
    line: int
    note: tuple[str, str] | None


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found = []
    for match in FENCE.finditer(page):
        before = page[: match.start()].rstrip("\n").rpartition("\n")[2]
        note = NOTE.fullmatch(before.strip())
        indent = match[1]
        text = "".join(line.removeprefix(indent) for line in match[4].splitlines(keepends=True))
        found.append(
            Block(match[3], text, page.count("\n", 0, match.start()) + 1, (note[1], note[2]) if note else None)
        )
    return found


def setups(page: str) -> set[str]:
    """Return the preparations that the page requires."""
    return {match[2] for match in NOTE.finditer(page) if match[1] == "setup"}


def is_run(block: Block) -> bool:
    return block.language in ("console", "python") and (block.note is None or block.note[0] != "not run")


def unrun_commands(page: str) -> list[str]:
    """Return blocks with commands that are not run and have no reason for it."""
    return [
        f"line {block.line}: {block.text.splitlines()[0][:60]}"
        for block in blocks(page)
        if block.language in ("", "bash", "sh", "shell", "text")
        and COMMAND.search(block.text)
        and not (block.note and block.note[0] == "not run")
    ]


def commands(text: str) -> list[str]:
    """Return the typed lines of a console block, including their continuation lines."""
    typed, going_on = [], False
    for line in text.splitlines():
        if going_on:
            typed[-1] += "\n" + line.removeprefix("> ")
        elif line.startswith("$ "):
            typed.append(line[2:])
        else:
            continue
        going_on = typed[-1].endswith("\\")
    return typed


def script(page: str, folder: Path) -> str:
    """Return a bash script that runs a page's blocks in order, and names the first that fails.

    Python blocks between two console blocks are one program. A later one runs the earlier ones again.
    """
    lines, namespace, waits = ["set -euo pipefail"], folder / ".namespace.py", False
    run = f"python '{namespace}'"
    for block in blocks(page):
        if block.note and block.note[0] == "file":
            lines.append(f"cat > '{block.note[1]}' <<'END-OF-BLOCK'\n{block.text}END-OF-BLOCK")
        elif is_run(block) and block.language == "python":
            text = f"print('@@ line {block.line}')\n{block.text}"
            lines.append(f"cat >> '{namespace}' <<'END-OF-BLOCK'\n{text}END-OF-BLOCK")
            waits = True
        elif is_run(block):
            lines += [*([run] if waits else []), f"echo '@@ line {block.line}'", *commands(block.text)]
            waits = False
    return "\n".join([*lines, *([run] if waits else [])]) + "\n"
