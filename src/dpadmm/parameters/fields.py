"""Fields of frozen dataclasses that say once what their values must be.

``rho: Annotated[Positive, "Penalty ρ."] = 0.1`` is all there is to say about a parameter: its check, the
sentence for a wrong value, an option's help, a column's type and the JSON Schema are read from it. msgspec
does the checking.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from hashlib import sha256
from importlib import import_module
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta

from dpadmm.errors import StudyError
from dpadmm.parameters.suggestions import near_name

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Probability = Annotated[float, Meta(gt=0, le=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Delta = Annotated[float, Meta(gt=0, lt=1)]
Count = Annotated[int, Meta(ge=1, le=10**15)]
Rounds = Annotated[int, Meta(ge=1, le=10**6)]
Honest = Annotated[int, Meta(ge=2, le=10**6)]

NOT_IN_FILE = {"file": False}
"""Metadata of a dataclass's field that no file, option or keyword sets."""


@dataclass(frozen=True)
class Parameter:
    """A field: its name, its type with all constraints, its default (or MISSING), and a line of help."""

    name: str
    kind: Any
    default: Any
    help: str

    @property
    def base(self) -> type:
        """The plain type of a single value: bool, int, float or str."""
        plain = [each for each in _members(self.kind) if each is not NoneType]
        return next((each for each in plain if isinstance(each, type)), str)

    @property
    def listed(self) -> bool:
        """Whether it may be a list of values."""
        return any(get_origin(each) is tuple for each in _members(self.kind))

    def single(self) -> Parameter:
        """The same for one value alone, where it may also be a list of values."""
        if not self.listed:
            return self
        members = tuple(each for each in get_args(self.kind) if get_origin(each) is not tuple)
        return replace(self, kind=Union[members])  # noqa: UP007  # of types that are known when it runs

    def checked(self, value: object, where: str = "") -> Any:
        """The value as Python's own; refused in a sentence that begins with ``where``."""
        value = plain(value)
        try:
            found = msgspec.convert(value, self.kind)
            if _finite(found):
                return found + 0.0 if isinstance(found, float) else found  # −0.0 is 0.0
        except (msgspec.ValidationError, OverflowError, UnicodeError):
            pass
        near = near_name(value, choices(self.kind)) if isinstance(value, str) else None
        hint = f"; did you mean {near!r}?" if near else ""
        raise StudyError(f"{where}{self.name} must be {wanted(self.kind)}, not {shown(value)}{hint}")

    def json_schema(self) -> dict[str, Any]:
        """What an editor should know of it."""
        made = msgspec.json.schema(self.kind)
        if self.default is not MISSING and self.default is not None:
            made["default"] = list(self.default) if isinstance(self.default, tuple) else self.default
        return {**made, "description": self.help} if self.help else made


_FOUND: dict[type, tuple[Parameter, ...]] = {}


def parameters(made: type) -> tuple[Parameter, ...]:
    """The fields of a dataclass that can be set from outside, in their order; none of another class."""
    if made not in _FOUND:
        _FOUND[made] = tuple(_parameters(made)) if is_dataclass(made) else ()
    return _FOUND[made]


def _parameters(made: Any) -> Iterator[Parameter]:
    hints = get_type_hints(made, include_extras=True)
    for each in fields(made):
        if each.metadata.get("file", True):
            kind, text = _split(hints[each.name])
            yield Parameter(each.name, kind, each.default, text)


def registered(package: str, *files: str, having: str) -> dict[str, Any]:
    """The classes of a package's files by their ``name``: those with a member ``having``, in the files' order."""
    found: dict[str, Any] = {}
    for module in (import_module(f"{package}.{file}") for file in files):
        for each in vars(module).values():
            own = getattr(each, "__module__", "") == module.__name__ and hasattr(each, having)
            if own and hasattr(each, "name") and found.setdefault(each.name, each) is not each:
                raise ValueError(f"{package} has two classes of the name {each.name!r}")
    return found


def check(made: Any) -> None:
    """Check every field of a frozen dataclass that has a ``name``; for its ``__post_init__``."""
    for each in parameters(type(made)):
        object.__setattr__(made, each.name, each.checked(getattr(made, each.name), f"{made.name}: "))


def chosen(what: str, registry: Mapping[str, type], given: object) -> Any:
    """An object of a registry's classes from its name; an object of any other class is taken as it is."""
    if not isinstance(given, str | type) and isinstance(getattr(given, "name", None), str):
        return given
    if isinstance(given, type):
        raise StudyError(f"{what} must be a name or an object, such as {given.__name__}(), and not a class")
    if not isinstance(given, str) or given not in registry:
        raise StudyError(f"{what} {given!r:.60} does not exist; {nearest(str(given), registry)}")
    return registry[given]()


def problems(table: Mapping[str, Any], known: Iterable[Parameter], where: str) -> list[str]:
    """A sentence for every unknown name and every wrong value of a table."""
    by_name, found = {each.name: each for each in known}, []
    for name, value in table.items():
        try:
            check_names([name], by_name, where)
            by_name[name].checked(value, f"{where}: ")
        except StudyError as error:
            found.append(str(error))
    return found


def check_names(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Refuse unknown names, with the nearest known one."""
    known = list(known)
    for name in given:
        if name not in known:
            raise StudyError(f"{where}: unknown setting {name!r:.60}; {nearest(name, known)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """'did you mean ...?' or the list of what there is."""
    known = sorted(known)
    near = near_name(name, known)
    if not known:
        return "there are none here"
    return f"did you mean {near!r}?" if near else f"known are {', '.join(known)}"


def choices(kind: Any) -> list[str]:
    """The texts that a value may be, where there is a list of them."""
    return [each for kind in _members(kind) if get_origin(kind) is Literal for each in get_args(kind)]


def wanted(kind: Any) -> str:
    """What a value of this type must be, in words.

    Examples
    --------
    >>> wanted(Positive), wanted(Probability | None), wanted(Count | bool)
    ('a positive number', 'a number in (0, 1]', 'a whole number of at least 1 or true or false')
    """
    if listed := choices(kind):
        return f"one of {', '.join(listed)}"
    from msgspec import inspect

    info = inspect.type_info(kind)
    words = dict.fromkeys(_words(each) for each in getattr(info, "types", (info,)))
    return " or ".join(each for each in words if each)


def _words(info: Any) -> str:
    match type(info).__name__:
        case "VarTupleType":
            return "a list of such"
        case "IntType":
            return "a whole number" + ("" if info.ge is None else f" of at least {info.ge}")
        case "FloatType":
            return _number_words(info)
        case "StrType" if info.pattern is not None:
            return f"text like {info.pattern.strip('^$')}"
    return {"BoolType": "true or false", "StrType": "text", "NoneType": ""}[type(info).__name__]


def _number_words(info: Any) -> str:
    low, high = (info.gt if info.ge is None else info.ge), (info.lt if info.le is None else info.le)
    if high is not None:
        left, right = "[" if info.ge is not None else "(", "]" if info.le is not None else ")"
        return f"a number in {left}{low:g}, {high:g}{right}"
    if low == 0:
        return "a positive number" if info.ge is None else "a number of at least 0"
    return "a finite number"


def shown(value: object) -> str:
    """A value in a sentence; Python does not write out whole numbers of thousands of digits."""
    try:
        return f"{value!r:.60}"
    except ValueError:
        return "a huge number"


def plain(value: object) -> object:
    """Python's own numbers, text and tuples in place of NumPy's and of lists, so that settings are values."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    return tuple(plain(each) for each in value) if isinstance(value, list | tuple) else value


def for_json(value: Any) -> Any:
    """The same value for JSON: NaN and infinities become null, NumPy's values Python's."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):  # most values: before the slower checks
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): for_json(each) for key, each in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return for_json(value.tolist())
    if isinstance(value, Sequence):
        return [for_json(each) for each in value]
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")


def hash_of(document: Any) -> str:
    """SHA-256 of the canonical JSON: sorted keys, no spaces, ASCII."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(text.encode("ascii")).hexdigest()


def _finite(value: object) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _split(hint: Any) -> tuple[Any, str]:
    """A type with its constraints, and the help that stands beside them."""
    if get_origin(hint) is not Annotated:
        return hint, ""
    inner, *notes = get_args(hint)
    text = next((each for each in notes if isinstance(each, str)), "")
    rest = [each for each in notes if not isinstance(each, str)]
    return (Annotated[inner, *rest] if rest else inner), text


def _members(kind: Any) -> list[Any]:
    """The types of a union, without their constraints."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, UnionType):
        return [each for member in get_args(kind) for each in _members(member)]
    return [kind]
