"""The search index of a small site, built with the project's extension, from scratch and incrementally."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXTENSIONS = Path(__file__).parents[2] / "docs" / "_ext"
PAGES = {
    "conf.py": 'extensions = ["myst_parser", "site_pages"]\n',
    "index.md": "# Start\n\n```{toctree}\nfaq\ndecisions/0001\n```\n",
    "faq.md": "# Answers\n\n```{index} ! second study\n```\n\nA ledger adds the costs.\n",
    "decisions/0001.md": "# A decision\n\nAn unmistakable paragraph about a ledger.\n",
}


def build_index(folder: Path) -> dict[str, Any]:
    """Build the site in ``folder`` and return its search index."""
    program = [sys.executable, "-m", "sphinx", "-W", "-q", str(folder), str(folder / "_build")]
    done = subprocess.run(
        program, env=os.environ | {"PYTHONPATH": str(EXTENSIONS)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    text = (folder / "_build" / "searchindex.js").read_text("utf-8")
    found: dict[str, Any] = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    return found


def test_every_build_excludes_decisions_and_keeps_index_entries(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="the extra docs is not installed: make docs")
    for name, text in PAGES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for start in ("", "A new sentence.\n"):
        (tmp_path / "index.md").write_text(PAGES["index.md"] + start)
        index = build_index(tmp_path)
        faq = index["docnames"].index("faq")
        assert index["indexentries"] == {"second study": [[faq, "index-0", True]]}
        assert index["terms"]["ledger"] == faq
        assert not any(word.startswith("unmistak") for word in index["terms"])
        assert "A decision" not in index["alltitles"]
