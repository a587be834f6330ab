"""Two ways to apply a mutant: to the live function, or to a fresh import of its module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cached_property
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any


class Misfit(Exception):
    """The function cannot be changed in place."""


def transplant(module: str, path: Path, source: str, function: tuple[tuple[str, ...], int]) -> None:
    """Replace the code of a live function by that in ``source``, also for modules that imported it by name.

    Compiled functions (numba) ignore their code, and are no targets.
    """
    names, line = function
    live = sys.modules.get(module)
    if live is None:
        raise Misfit("its module is not loaded")
    new = _code(compile(source, str(path), "exec", dont_inherit=True), names, line)
    for item in _functions(live, names):
        if item.__code__.co_firstlineno == line:
            if item.__code__.co_freevars != new.co_freevars:
                raise Misfit("it has other free variables")
            item.__code__ = new
            return
    raise Misfit("it was not found")


def _code(code: CodeType, names: tuple[str, ...], line: int) -> CodeType:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType) and constant.co_name == names[0]]
    if len(names) > 1:
        for item in inner:
            try:
                return _code(item, names[1:], line)
            except Misfit:
                continue
    for node in inner:
        if len(names) == 1 and node.co_firstlineno == line:
            return node
    raise Misfit("the mutated file has no such function")


def _functions(place: ModuleType | type, names: tuple[str, ...]) -> Iterator[FunctionType]:
    """Return the functions with a name, or those inside the result of their decorators."""
    found: Any = place
    for name in names:
        if name not in vars(found):
            raise Misfit("it was not found")
        found = vars(found)[name]
    yield from _unwrapped(found)


def _unwrapped(found: Any) -> Iterator[FunctionType]:
    if isinstance(found, FunctionType):
        yield found
    if isinstance(found, property):
        inside = [found.fget, found.fset, found.fdel]
    elif isinstance(found, cached_property):
        inside = [found.func]
    elif isinstance(found, classmethod | staticmethod):
        inside = [found.__func__]
    else:
        if hasattr(found, "cache_clear"):
            found.cache_clear()
        inside = [getattr(found, "__wrapped__", None)]
    for node in inside:
        if node is not None:
            yield from _unwrapped(node)


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: Path, source: str) -> None:
        super().__init__(name, str(path))
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, name: str, path: Path, source: str) -> None:
        self._name, self._loader = name, _Loader(name, path, source)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = spec_from_loader(fullname, self._loader, origin=self._loader.path)
        if spec is not None:
            spec.has_location = True
        return spec


def substitute(module: str, path: Path, source: str) -> None:
    """Use ``source`` for all later imports of the module."""
    if module in sys.modules:
        raise RuntimeError(f"{module} was loaded before it was mutated")
    sys.meta_path.insert(0, _Finder(module, path, source))
