"""Parameters as annotated fields of frozen dataclasses.

``rho: Annotated[Positive, "Penalty ρ."] = 0.1`` declares a parameter once. Its check, error message, help text,
column type and JSON Schema are derived from the annotation. msgspec checks the values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache, wraps
from hashlib import sha256
from importlib import import_module
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

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
"""Metadata of a dataclass field that is not a parameter."""


@dataclass(frozen=True)
class Parameter:
    """A parameter: name, type with constraints, default (or MISSING), and one line of help."""

    name: str
    kind: Any
    default: Any
    help: str

    @property
    def base(self) -> type:
        """The type of a single value without constraints: bool, int, float or str."""
        types = [member for member in _members(self.kind) if member is not NoneType]
        return next((member for member in types if isinstance(member, type)), str)

    @property
    def listed(self) -> bool:
        """Whether the value may be a list."""
        return any(get_origin(member) is tuple for member in _members(self.kind))

    def single(self) -> Parameter:
        """Return the parameter without lists of values."""
        if not self.listed:
            return self
        members = tuple(member for member in get_args(self.kind) if get_origin(member) is not tuple)
        return replace(self, kind=Union[members])  # noqa: UP007  # the types are known at run time only

    def checked(self, value: object, where: str = "") -> Any:
        """Return the value as a Python value. Raise StudyError, starting with ``where``, if it is invalid."""
        value = plain(value)
        try:
            converted = msgspec.convert(value, self.kind)
            if _is_finite(converted):
                return converted + 0.0 if isinstance(converted, float) else converted  # −0.0 becomes 0.0
        except (msgspec.ValidationError, OverflowError, UnicodeError):
            pass
        near = near_name(value, choices(self.kind)) if isinstance(value, str) else None
        hint = f"; did you mean {near!r}?" if near else ""
        raise StudyError(f"{where}{self.name} must be {wanted(self.kind)}, not {_format_value(value)}{hint}")

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the value."""
        schema = msgspec.json.schema(self.kind)
        if self.default is not MISSING and self.default is not None:
            schema["default"] = list(self.default) if isinstance(self.default, tuple) else self.default
        return {**schema, "description": self.help} if self.help else schema


def parameters(cls: type) -> tuple[Parameter, ...]:
    """Return the parameters of a dataclass in the order of its fields; none for other classes."""
    return _parameters(cls)


@cache
def _parameters(cls: Any) -> tuple[Parameter, ...]:
    return tuple(_collect(cls)) if is_dataclass(cls) else ()


def _collect(cls: Any) -> Iterator[Parameter]:
    hints = get_type_hints(cls, include_extras=True)
    for field in fields(cls):
        if field.metadata.get("file", True):
            kind, help = _split(hints[field.name])
            yield Parameter(field.name, kind, field.default, help)


def registered(package: str, *files: str, having: str) -> dict[str, Any]:
    """Return the classes in a package's files by ``name``, in the order of the files.

    A class is registered if it has a ``name`` and the attribute ``having``.
    """
    classes: dict[str, Any] = {}
    for module in (import_module(f"{package}.{file}") for file in files):
        members: list[Any] = [member for member in vars(module).values() if isinstance(member, type)]
        for cls in members:
            is_own = cls.__module__ == module.__name__ and {having, "name"} <= {*dir(cls)}
            if is_own and classes.setdefault(cls.name, cls) is not cls:
                raise ValueError(f"{package} has two classes with the name {cls.name!r}")
    return classes


C = TypeVar("C", bound=type)


def convert_arguments(convert: Callable[[Any, dict[str, Any]], dict[str, Any]]) -> Callable[[C], C]:
    """Return a decorator for dataclasses that replaces the constructor's arguments by ``convert(cls, arguments)``."""

    def decorate(cls: C) -> C:
        init: Any = cls.__init__  # type: ignore[misc]  # the constructor of exactly this class
        names = [field.name for field in fields(cls) if field.init and not field.kw_only]

        @wraps(init)
        def converting_init(self: Any, *args: Any, **given: Any) -> None:
            positional = dict(zip(names, args, strict=False))
            if len(args) > len(names) or positional.keys() & given.keys():
                init(self, *args, **given)  # raises TypeError
            init(self, **convert(cls, positional | given))

        cls.__init__ = converting_init  # type: ignore[misc]
        return cls

    return decorate


def _check_parameters(cls: Any, given: dict[str, Any]) -> dict[str, Any]:
    own = {each.name: each.checked(given[each.name], f"{cls.name}: ") for each in parameters(cls) if each.name in given}
    return given | own


checked_parameters = convert_arguments(_check_parameters)
"""Decorator for dataclasses with a ``name``: the constructor checks parameters, and converts them to Python values."""


def raise_problems(problems: Sequence[str]) -> None:
    """Raise one StudyError with all problems, if there are any."""
    if problems:
        raise StudyError("; ".join(problems))


def problems(table: Mapping[str, Any], known: Iterable[Parameter], where: str) -> list[str]:
    """Return a message for each unknown name and each invalid value of a table."""
    by_name, messages = {parameter.name: parameter for parameter in known}, []
    for name, value in table.items():
        try:
            check_names([name], by_name, where)
            by_name[name].checked(value, f"{where}: ")
        except StudyError as error:
            messages.append(str(error))
    return messages


def check_names(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise StudyError for unknown names, with the most similar known ones."""
    known = list(known)
    raise_problems(
        [f"{where}: unknown setting {name!r:.60}; {nearest(name, known)}" for name in given if name not in known]
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return 'did you mean ...?', or the list of known names."""
    known = sorted(known)
    near = near_name(name, known)
    if not known:
        return "there are none here"
    return f"did you mean {near!r}?" if near else f"known are {', '.join(known)}"


def choices(kind: Any) -> list[str]:
    """Return the possible values of a parameter that is one of several words."""
    return [word for kind in _members(kind) if get_origin(kind) is Literal for word in get_args(kind)]


def wanted(kind: Any) -> str:
    """Describe the valid values of a type.

    Examples
    --------
    >>> wanted(Positive), wanted(Probability | None), wanted(Count | bool)
    ('a positive number', 'a number in (0, 1]', 'a whole number of at least 1 or true or false')
    """
    if listed := choices(kind):
        return f"one of {', '.join(listed)}"
    from msgspec import inspect

    info = inspect.type_info(kind)
    members = info.types if isinstance(info, inspect.UnionType) else (info,)
    descriptions = dict.fromkeys(map(_describe, members))
    return " or ".join(filter(None, descriptions))


def _describe(info: Any) -> str:
    match type(info).__name__:
        case "VarTupleType":
            return "a list of such"
        case "IntType":
            return "a whole number" + ("" if info.ge is None else f" of at least {info.ge}")
        case "FloatType":
            return _describe_number(info)
        case "StrType" if info.pattern is not None:
            return f"text like {info.pattern.strip('^$')}"
    return {"BoolType": "true or false", "StrType": "text", "NoneType": ""}[type(info).__name__]


def _describe_number(info: Any) -> str:
    low, high = (info.gt if info.ge is None else info.ge), (info.lt if info.le is None else info.le)
    if high is not None:
        left, right = "[" if info.ge is not None else "(", "]" if info.le is not None else ")"
        return f"a number in {left}{low:g}, {high:g}{right}"
    if low == 0:
        return "a positive number" if info.ge is None else "a number of at least 0"
    return "a finite number"


def _format_value(value: object) -> str:
    try:
        return f"{value!r:.60}"
    except ValueError:  # Python does not format integers with thousands of digits
        return "a huge number"


def plain(value: object) -> object:
    """Convert NumPy values to Python values, and lists to tuples."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    return tuple(plain(item) for item in value) if isinstance(value, list | tuple) else value


def for_json(value: Any) -> Any:
    """Convert a value for JSON: NaN and infinities become null, NumPy values Python values."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):  # the most frequent type, before the slower checks
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): for_json(item) for key, item in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return for_json(value.tolist())
    if isinstance(value, Sequence):
        return [for_json(item) for item in value]
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")


def hash_of(document: Any) -> str:
    """Return the SHA-256 digest of the canonical JSON: sorted keys, no spaces, ASCII."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(text.encode("ascii")).hexdigest()


def _is_finite(value: object) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _split(hint: Any) -> tuple[Any, str]:
    """Return a type with its constraints, and the help text of the annotation."""
    if get_origin(hint) is not Annotated:
        return hint, ""
    inner, *notes = get_args(hint)
    help = next((note for note in notes if isinstance(note, str)), "")
    constraints = [note for note in notes if not isinstance(note, str)]
    return (Annotated[inner, *constraints] if constraints else inner), help


def _members(kind: Any) -> list[Any]:
    """Return the members of a union without their constraints."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, UnionType):
        return [member for item in get_args(kind) for member in _members(item)]
    return [kind]
