"""The options of ``dpadmm simulate``: one per setting of :class:`dpadmm.Settings` and a few about the run.

The same names stand in a TOML file.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from dpadmm._base.errors import StudyError
from dpadmm._base.fields import Parameter, check_names, choices
from dpadmm._base.toml import read_toml
from dpadmm.study.settings import PRIVACY, REGISTRIES, Settings, flat_parameters

RUN_OPTIONS: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "data": (str, "File (.csv .tsv .parquet .npz .svm) or data set: adult, synthetic.", ("--data", "-d")),
    "label": (str, "Name of the label column (tables).", ("--label",)),
    "classes": (str, "Public list of labels, negative first: no,yes", ("--classes",)),
    "by": (str, "Column that says who owns a row (then each value is an agent).", ("--by",)),
    "repeats": (int, "Runs with seeds seed, seed+1, ... (default 1)", ("--repeats",)),
    "output": (str, "Folder for settings, trace, summary, models and figure.", ("--output", "-o")),
}
"""What a command needs beside :class:`Settings`: type, help, option names."""

_SHORT = {"n_agents": ("--agents", "-n"), "n_rounds": ("--rounds", "-t"), "epsilon": ("-e",)}
_OFF = {"split_regularizer": "--no-split"}  # short, for a narrow screen; the others are turned off by --no-NAME
_DATA = ("n_agents", "partition", "partition_spread", "clip_rows", "intercept", "test_rows")
_ALIASES = {"agents": "n_agents", "rounds": "n_rounds"}


def parameters() -> list[inspect.Parameter]:
    """One option per run option and per setting."""
    options = [_option(name, kind, names, text, "Data and output") for name, (kind, text, names) in RUN_OPTIONS.items()]
    for name, each in flat_parameters(Settings).items():
        kind: type = str if each.listed else each.base
        unsaid = each.default is None or kind is bool
        text = each.help if name in REGISTRIES else " ".join([each.help, *_in_brackets(each)])
        text = text if unsaid else f"{text} (default {each.default})"
        dashed = f"--{name.replace('_', '-')}"
        off = _OFF.get(name, f"--no-{dashed[2:]}")
        names = (f"{dashed}/{off}",) if kind is bool else (dashed, *_SHORT.get(name, ()))
        options.append(_option(name, kind, names, text, _panel(name)))
    return options


def _in_brackets(each: Parameter) -> list[str]:
    return [f"({', '.join(choices(each.kind))})"] if each.base is str else []


def _option(name: str, kind: type, names: tuple[str, ...], text: str, panel: str) -> inspect.Parameter:
    option = typer.Option(*names, help=text, show_default=False, rich_help_panel=panel)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _panel(name: str) -> str:
    if name in PRIVACY or name in _DATA:
        return "Privacy" if name in PRIVACY else "Data and output"
    model = any(name.startswith(each) for each in REGISTRIES if each != "method")
    return "Model" if model or name == "reg_share" else "Training"


def from_toml(path: Path) -> dict[str, Any]:
    """Options from a TOML file: names checked, with - or _ in them."""
    given: dict[str, Any] = {}
    for spelled, value in read_toml(path).items():
        name = _ALIASES.get(spelled, spelled.replace("-", "_"))
        if name in given:
            raise StudyError(f"{path}: {name} is set twice, the second time as {spelled!r}")
        given[name] = value
    check_names(given, [*RUN_OPTIONS, *flat_parameters(Settings)], str(path))
    for name in ("data", "label", "by", "output"):
        if name in given and not _is_text(given[name]):
            raise StudyError(f"{path}: {name} must be text, not {given[name]!r}")
    classes = given.get("classes", "")
    if not _is_text(classes) and not (isinstance(classes, list) and all(map(_is_class, classes))):
        raise StudyError(f'{path}: classes must be a list such as ["no", "yes"], not {classes!r}')
    return given


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_class(value: object) -> bool:
    return isinstance(value, (str, int, float))
