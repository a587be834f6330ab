"""Targets of mutation testing and the tests that may kill their mutants, from ``targets.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True, eq=False)
class Project:
    """Settings of a run. ``targets`` are relative to ``package``, everything else to ``root``."""

    root: Path
    source: str
    package: str
    reasons: str
    killers: str
    targets: tuple[str, ...]
    candidates: tuple[str, ...]
    left_out: tuple[str, ...]
    preload: tuple[str, ...]
    own: dict[str, tuple[str, ...]]

    def path(self, target: str) -> Path:
        return self.root / self.package / target

    def text(self, target: str) -> str:
        return self.path(target).read_text(encoding="utf-8")

    def module(self, target: str) -> str:
        """Return the name under which the target is imported."""
        return ".".join(self.path(target).relative_to(self.root / self.source).with_suffix("").parts)

    @property
    def state(self) -> Path:
        """Folder of maps and results that are kept between runs."""
        return self.root / ".mutation"

    def chosen(self, globs: list[str]) -> list[str]:
        """Return the targets that match one of the globs, in order; all targets without globs."""
        chosen = [
            target
            for target in self.targets
            if not globs or any(fnmatch(target, glob) or fnmatch(f"{self.package}/{target}", glob) for glob in globs)
        ]
        if not chosen:
            raise ValueError(f"no target is named {' or '.join(globs)}; targets.toml lists them")
        return chosen

    @cached_property
    def test_files(self) -> list[str]:
        """Return all files whose tests may kill a mutant."""
        doctests = [f"{self.package}/{target}" for target in self.targets if ">>>" in self.text(target)]
        out = set(self._files(self.left_out))
        return [*(path for path in self._files(self.candidates) if path not in out), *doctests]

    def own_files(self, target: str) -> list[str]:
        """Return those files that belong to a target."""
        stem = Path(target).stem
        named = set(self._files(self.own.get(target, ())))
        return [
            path
            for path in self.test_files
            if path in named or Path(path).name == f"test_{stem}.py" or path == f"{self.package}/{target}"
        ]

    def _files(self, patterns: tuple[str, ...]) -> list[str]:
        found: dict[str, None] = {}
        for pattern in patterns:
            places = sorted(self.root.glob(pattern))
            if not places:
                raise ValueError(f"targets.toml names {pattern}, which is not there")
            for place in places:
                files = sorted(place.rglob("test_*.py")) if place.is_dir() else [place]
                found.update(dict.fromkeys(str(path.relative_to(self.root)) for path in files))
        return list(found)


def read_project(path: Path, root: Path) -> Project:
    with path.open("rb") as file:
        table = tomllib.load(file)
    lists = {key: tuple(table.get(key, ())) for key in ("targets", "candidates", "left_out", "preload")}
    own = {target: tuple(files) for target, files in table.get("own", {}).items()}
    unknown = sorted(set(own) - set(lists["targets"]))
    if unknown:
        raise ValueError(f"[own] in {path} names {', '.join(unknown)}, which is no target")
    names = (table[name] for name in ("source", "package", "reasons", "killers"))
    return Project(root.resolve(), *names, own=own, **lists)
