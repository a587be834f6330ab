"""Commands and programs on the pages work."""

from __future__ import annotations

import doctest
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import blocks, commands, is_run, script, setups, unrun_commands

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        ROOT / "README.md",
        *(path for folder in ("how-to", "boards", "explanation", "reference") for path in (DOCS / folder).glob("*.md")),
    ]
)
RUN = [page for page in PAGES if any(map(is_run, blocks(page.read_text())))]
REPORTS = ("accuracy.md", "performance.md", "reproduction.md")
"""Written by the commands that they name, which take hours."""
PREPARED = {
    "study": """
        dpadmm study new study.toml --from sample.csv --label ill --by hospital >setup.log
        dpadmm study confirm study.toml --all >setup.log""",
    "model": "dpadmm train study.toml --data patients.csv --by hospital -o model.dpadmm >setup.log",
}
"""What <!-- setup: NAME --> prepares; a model needs the study."""


def name_of(page):
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    subprocess.run([sys.executable, DOCS / "data" / "make_tables.py", folder], check=True)
    return folder


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_blocks_of_a_page_run(page, tables, tmp_path):
    text = page.read_text()
    folder = tmp_path / "here"
    shutil.copytree(tables, folder)
    wanted = setups(text)
    assert wanted <= set(PREPARED), f"{name_of(page)}: setup must be one of {', '.join(PREPARED)}"
    if "model" in wanted:
        wanted = {"study", "model"}
    prepared = "\n".join(lines for name, lines in PREPARED.items() if name in wanted)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "NO_COLOR": "1",
        "MPLBACKEND": "agg",
    }
    done = subprocess.run(
        ["bash", "-c", f"set -e\n{prepared}\n{script(text, folder)}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,  # limit for a busy machine; normally this takes seconds
        stdin=subprocess.DEVNULL,
    )
    reached = next((line for line in reversed(done.stdout.splitlines()) if line.startswith("@@ ")), "its setup")
    assert done.returncode == 0, (
        f"{name_of(page)}, {reached.removeprefix('@@ ')}:\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
    )


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in REPORTS], ids=name_of)
def test_commands_that_are_not_run_have_a_reason(page):
    assert unrun_commands(page.read_text()) == []


SAMPLE = """
<!-- setup: study -->
```console
$ echo one \\
    two
one two
$ cd sub   # goes there
```
<!-- file: a b.toml -->
```toml
x = 1
```
<!-- not run: needs a broker -->
```console
$ false
```
1. A list

   ```python
   y = 2
   ```
```bash
dpadmm demo
```
"""


def test_page_parser():
    found = blocks(SAMPLE)
    assert [item.language for item in found] == ["console", "toml", "console", "python", "bash"]
    assert [item.line for item in found] == [3, 10, 14, 19, 22]
    assert commands(found[0].text) == ["echo one \\\n    two", "cd sub   # goes there"]
    assert found[3].text == "y = 2\n"
    assert setups(SAMPLE) == {"study"}
    assert list(map(is_run, found)) == [True, False, False, True, False]
    assert unrun_commands(SAMPLE) == ["line 22: dpadmm demo"]


def test_page_stops_at_the_first_failing_command(tmp_path):
    fences = [("console", "$ touch a"), ("python", "x = 1"), ("python", "assert x == 2"), ("console", "$ touch b")]
    page = "\n".join(f"```{language}\n{text}\n```\n" for language, text in fences)
    done = subprocess.run(["bash", "-c", script(page, tmp_path)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stdout.splitlines()[-1] == "@@ line 9"
    assert (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()


def test_the_python_session_of_the_readme_prints_what_it_shows():
    text = "\n".join(each.text for each in blocks((ROOT / "README.md").read_text()) if each.language == "pycon")
    session = doctest.DocTestParser().get_doctest(text, {}, "README.md", None, 0)
    assert len(session.examples) > 4
    assert doctest.DocTestRunner().run(session).failed == 0
