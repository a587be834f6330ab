"""Names under ``src``: one class for each name, and error classes that end in Error."""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from importlib import import_module
from pathlib import Path

import dpadmm

SOURCES = Path(dpadmm.__file__).parent


def modules() -> list[Path]:
    return sorted(SOURCES.rglob("*.py"))


def test_class_names_are_unique() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(SOURCES)))
    assert places
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_error_classes_end_in_error() -> None:
    found = {}
    for path in modules():
        if "Error)" not in (text := path.read_text(encoding="utf-8")) and "Exception)" not in text:
            continue
        name = ".".join(("dpadmm", *path.relative_to(SOURCES).with_suffix("").parts)).removesuffix(".__init__")
        for item in vars(import_module(name)).values():
            if inspect.isclass(item) and issubclass(item, Exception) and item.__module__ == name:
                found[item.__name__] = issubclass(item, Warning)
    assert len(found) > 10
    assert [name for name, is_warning in found.items() if not name.endswith("Warning" if is_warning else "Error")] == []


def test_top_level_has_packages_and_three_modules_only() -> None:
    files = {path.name for path in SOURCES.iterdir() if path.is_file()}
    assert files == {"__init__.py", "errors.py", "version.py", "py.typed"}
