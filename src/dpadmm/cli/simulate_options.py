"""Options of ``dpadmm simulate`` and ``compare``: one for each setting of :class:`dpadmm.Settings`, and the data.

A TOML file has the same names. ``--set`` sets the parameters of the loss, the regularizer and the method.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from dpadmm.cli.console import show
from dpadmm.data import Dataset, read_table
from dpadmm.errors import DataError, StudyError
from dpadmm.files.toml import read_toml
from dpadmm.methods.prior import Prior
from dpadmm.parameters.fields import Parameter, choices, raise_problems
from dpadmm.parameters.fields import parameters as parameters_of
from dpadmm.rendering import Column, Rendering, Table
from dpadmm.studies.reading import read_study
from dpadmm.studies.settings import CHOICES, PRIVACY, Settings, name_problems, nest
from dpadmm.studies.study import Study
from dpadmm.training.preparation import as_dataset
from dpadmm.training.simulate import rows_of
from dpadmm.training.train import prior_from, with_public_table

NAMED = ("adult", "synthetic")
RUN_OPTIONS: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "study": (str, "Study file that sets model, method, budget and columns for a table (--data).", ()),
    "data": (
        str,
        "File (.csv .tsv .parquet .npz; with a study any table) or adult, synthetic.",
        ("--data", "-d"),
    ),
    "label": (str, "Name of the label column (tables).", ("--label",)),
    "classes": (str, "Public list of labels, negative first: no,yes", ("--classes",)),
    "by": (str, "Column that identifies the owner of each row; each value is an agent.", ("--by",)),
    "no_public": (bool, "Ignore the study's public rows.", ("--no-public",)),
    "repeats": (int, "Runs with seeds seed, seed+1, ... (default 1)", ("--repeats",)),
    "output": (str, "Folder for settings, trace, summary, models and figure.", ("--output", "-o")),
}
"""Options of a command that are not settings: type, help and option names (none for an argument)."""

ASSIGNMENTS = "assignments"
"""Python name of the option --set."""

_SHORT = {"n_agents": ("--agents", "-n"), "n_rounds": ("--rounds", "-t"), "epsilon": ("-e",)}
_DATA = ("n_agents", "partition", "partition_spread", "clip_rows", "intercept", "test_rows")
_MODEL = ("loss", "regularizer", "alpha")
_ALIASES = {"agents": "n_agents", "rounds": "n_rounds"}


def add_options(command: Callable[..., Any], options: Iterable[inspect.Parameter]) -> None:
    """Replace the command's ``**options`` by ``options``, so that typer finds them."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    signature = inspect.Signature([*(each for each in own if each.name != "options"), *options])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}


def parameters() -> list[inspect.Parameter]:
    """Return the options of all settings, with those of the run first."""
    options = [_option(name, kind, names, text, "Data and output") for name, (kind, text, names) in RUN_OPTIONS.items()]
    for setting in parameters_of(Settings):
        kind = str if setting.listed or setting.name in CHOICES else setting.base
        dashed = f"--{setting.name.replace('_', '-')}"
        names = (f"{dashed}/--no-{dashed[2:]}",) if kind is bool else (dashed, *_SHORT.get(setting.name, ()))
        options.append(_option(setting.name, kind, names, _help(setting), _panel(setting.name)))
    assign = Option(
        "--set",
        metavar="NAME=VALUE",
        help="Parameter of the loss, regularizer or method: loss.delta=0.5. method.? lists them. Repeatable.",
        show_default=False,
        rich_help_panel="Model",
    )
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [
        *options,
        inspect.Parameter(ASSIGNMENTS, keyword, default=None, annotation=Annotated[list[str] | None, assign]),
    ]


def _help(setting: Parameter) -> str:
    if setting.name in CHOICES:
        names = ", ".join(CHOICES[setting.name])
        return f"{setting.name.capitalize()}: {names} (default {setting.default.name})"
    listed = f" ({', '.join(choices(setting.kind))})" if setting.base is str else ""
    default = "" if setting.default is None or setting.base is bool else f" (default {setting.default})"
    return f"{setting.help}{listed}{default}"


def _option(name: str, kind: type, names: tuple[str, ...], text: str, panel: str) -> inspect.Parameter:
    if names:
        completion = _complete(CHOICES.get(name, ()))
        option = Option(*names, help=text, show_default=False, rich_help_panel=panel, autocompletion=completion)
    else:
        option = Argument(help=text, show_default=False, metavar=name.upper())
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _complete(names: Iterable[str]) -> Callable[[str], list[str]] | None:
    """Return the completion of a shell; typer requires the argument's name ``incomplete``."""
    return (lambda incomplete: [name for name in names if name.startswith(incomplete)]) if names else None


def _panel(name: str) -> str:
    if name in PRIVACY or name in _DATA:
        return "Privacy" if name in PRIVACY else "Data and output"
    return "Model" if name in _MODEL else "Training"


def read_assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Return the settings of the options ``--set NAME=VALUE``, nested.

    Examples
    --------
    >>> read_assignments(["loss.delta=0.5", "method.mechanism=pure"])
    {'loss': {'delta': 0.5}, 'method': {'mechanism': 'pure'}}
    """
    given: dict[str, Any] = {}
    problems = []
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            problems.append(f"--set requires NAME=VALUE, such as loss.delta=0.5, not {text!r:.60}")
        elif name in given:
            problems.append(f"--set: {name} is set twice")
        given[name] = _parse_value(value.strip())
    raise_problems(problems)
    return nest(given)


def _parse_value(text: str) -> Any:
    """Return a TOML value, or the text if it is not TOML: words need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text


def merge_settings(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``changes``. A choice keeps its parameters unless another one is chosen."""
    merged = {**base, **changes}
    for what in CHOICES.keys() & base.keys() & changes.keys():
        old, new = (entry if isinstance(entry, Mapping) else {"name": entry} for entry in (base[what], changes[what]))
        if new.get("name", old.get("name")) == old.get("name"):
            merged[what] = {**old, **new}
    return merged


def show_parameters(assignments: Sequence[str], given: Mapping[str, Any]) -> bool:
    """Show the parameters of the choices in ``--set method.?``. Return whether there are any."""
    asked = [text.removesuffix(".?") for text in assignments if text.endswith(".?")]
    for what in asked:
        if what not in CHOICES:
            raise StudyError(f"--set: {what}.? does not exist; use {', '.join(f'{name}.?' for name in CHOICES)}")
        classes = {name: cls for name, cls in CHOICES[what].items() if given.get(what) in (None, name)}
        rows = [
            (name, f"{what}.{own.name}", "" if own.default is None else str(own.default), own.help)
            for name, cls in classes.items()
            for own in parameters_of(cls)
        ]
        names = [Column("", title, align="left", wrap=False) for title in (what, "parameter", "default")]
        show(Rendering(body=[Table([*names, Column("", "")], rows)]))
    return bool(asked)


def from_toml(path: Path) -> dict[str, Any]:
    """Return the options in a TOML file. Names may contain - instead of _."""
    given: dict[str, Any] = {}
    for spelled, value in read_toml(path).items():
        name = _ALIASES.get(spelled, spelled.replace("-", "_"))
        if name in given:
            raise StudyError(f"{path}: {name} is set twice, the second time as {spelled!r}")
        given[name] = value
    problems = name_problems((name for name in given if name not in RUN_OPTIONS), Settings, str(path))
    problems += [
        f"{path}: {name} must be text, not {given[name]!r}"
        for name in ("study", "data", "label", "by", "output")
        if name in given and not _is_text(given[name])
    ]
    if type(given.get("no_public", True)) is not bool:
        problems.append(f"{path}: no_public must be true or false, not {given['no_public']!r}")
    classes = given.get("classes", "")
    listed = isinstance(classes, list) and all(isinstance(each, str | int | float) for each in classes)
    if not listed and not _is_text(classes):
        problems.append(f'{path}: classes must be a list such as ["no", "yes"], not {classes!r}')
    raise_problems(problems)
    return given


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def numbers(name: str, text: str, kind: Any = float, words: str = "numbers") -> list[Any]:
    """Return the numbers in a comma-separated list."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise StudyError(f"{name} must be {words}, separated by commas, not {text!r}") from None


def check_owners(about: Mapping[str, Any], chosen: dict[str, Any]) -> None:
    """Set the partition for ``by``. Raise StudyError if another partition is given."""
    if "by" in about and chosen.setdefault("partition", "groups") != "groups":
        raise StudyError(
            f"--by defines the agents, so partition cannot be {chosen['partition']!r}; leave one of them out"
        )


def open_study(about: Mapping[str, Any]) -> tuple[Study | None, Prior | None]:
    """Return the study in ``about`` and the prior from its public rows."""
    if "study" not in about:
        if about.get("no_public"):
            raise StudyError("--no-public requires a study; leave it out")
        return None, None
    for name in ("label", "classes"):
        if name in about:
            raise StudyError(f"the study sets {name}; leave --{name} out")
    study = read_study(Path(about["study"]))
    if about.get("data") is None:
        raise StudyError("a study requires rows: add --data TABLE")
    study, public = with_public_table(study, False if about.get("no_public") else None)
    return study, None if public is None else prior_from(study, public, private=about["data"])


def about_study(study: Study | None, prior: Prior | None) -> list[str]:
    """Return notes on the unit of errors if the label is a number, and on the public rows."""
    notes = []
    if study is not None and study.label is not None and study.label.bounds is not None:
        low, high = study.label.bounds
        unit = f"an error of 1 is {(high - low) / 2:g} of {study.label.column}"
        scaled = f"Errors and losses refer to the label scaled to −1 … 1: {unit}."
        counts = f"Errors and losses are half the deviance, divided by the maximum count {high:g}."
        notes.append(counts if study.label.counts else scaled)
    return notes if prior is None else [*notes, f"Every run is initialised from {prior.n_rows:,} public rows."]


def open_dataset(about: Mapping[str, Any], settings: Settings, study: Study | None = None) -> Dataset:
    """Return the rows of a file (with ``label``, ``classes``, ``by``), a named data set, or a study's table."""
    source = about.get("data")
    if source is None:
        raise StudyError(f"no data given; use --data FILE, or one of {', '.join(NAMED)}")
    if study is not None:
        return as_dataset(rows_of(study, source, by=about.get("by")), settings)
    if source in NAMED:
        for name in ("label", "classes", "by"):
            if name in about:
                raise StudyError(f"--{name} applies to data files; the data set {source!r} has its own")
        return as_dataset(source, settings)
    if "." not in Path(source).name and not Path(source).exists():
        raise DataError(f"there is no data set and no file {source!r}; data sets are {', '.join(NAMED)}")
    classes = about.get("classes")
    if isinstance(classes, str):
        classes = [name.strip() for name in classes.split(",")]
    task = settings.loss.task
    dataset = read_table(source, task=task, label=about.get("label"), classes=classes, by=about.get("by"))
    return as_dataset(dataset, settings)
