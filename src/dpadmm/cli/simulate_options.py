"""The options of ``dpadmm simulate`` and ``compare``: one per setting of :class:`dpadmm.Settings`, and the data.

The same names stand in a TOML file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from dpadmm.data import Dataset, read_table
from dpadmm.errors import DataError, StudyError
from dpadmm.files.toml import read_toml
from dpadmm.methods.prior import Prior
from dpadmm.parameters.fields import check_names, choices
from dpadmm.parameters.fields import parameters as fields_of
from dpadmm.studies.settings import PRIVACY, REGISTRIES, Settings, flat_parameters
from dpadmm.studies.study import Study, read_study
from dpadmm.training.preparation import as_dataset
from dpadmm.training.simulate import rows_of
from dpadmm.training.train import prior_from, with_public_table

NAMED = ("adult", "synthetic")
RUN_OPTIONS: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "study": (str, "A study's TOML file: its model, method, budget and columns, for a table (--data).", ()),
    "data": (
        str,
        "File (.csv .tsv .parquet .npz; with a study any table) or adult, synthetic.",
        ("--data", "-d"),
    ),
    "label": (str, "Name of the label column (tables).", ("--label",)),
    "classes": (str, "Public list of labels, negative first: no,yes", ("--classes",)),
    "by": (str, "Column that says who owns a row (then each value is an agent).", ("--by",)),
    "no_public": (bool, "Leave the study's public rows out.", ("--no-public",)),
    "repeats": (int, "Runs with seeds seed, seed+1, ... (default 1)", ("--repeats",)),
    "output": (str, "Folder for settings, trace, summary, models and figure.", ("--output", "-o")),
}
"""What a command needs beside :class:`Settings`: type, help, option names; none of an argument."""

_SHORT = {"n_agents": ("--agents", "-n"), "n_rounds": ("--rounds", "-t"), "epsilon": ("-e",)}
_OFF = {"split_regularizer": "--no-split"}  # short, for a narrow screen; the others are turned off by --no-NAME
_DATA = ("n_agents", "partition", "partition_spread", "clip_rows", "intercept", "test_rows")
_ALIASES = {"agents": "n_agents", "rounds": "n_rounds"}


def add_options(command: Callable[..., Any], options: Iterable[inspect.Parameter]) -> None:
    """Put ``options`` in the place of the command's ``**options``, where typer finds them."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    signature = inspect.Signature([*(each for each in own if each.name != "options"), *options])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}


def parameters() -> list[inspect.Parameter]:
    options = [_option(name, kind, names, text, "Data and output") for name, (kind, text, names) in RUN_OPTIONS.items()]
    for name, each in flat_parameters(Settings).items():
        kind: type = str if each.listed else each.base
        listed = f" ({', '.join(choices(each.kind))})" if each.base is str and name not in REGISTRIES else ""
        default = "" if each.default is None or kind is bool else f" (default {each.default})"
        dashed = f"--{name.replace('_', '-')}"
        off = _OFF.get(name, f"--no-{dashed[2:]}")
        names = (f"{dashed}/{off}",) if kind is bool else (dashed, *_SHORT.get(name, ()))
        options.append(_option(name, kind, names, f"{each.help}{listed}{default}", _panel(name)))
    return options


def _option(name: str, kind: type, names: tuple[str, ...], text: str, panel: str) -> inspect.Parameter:
    if names:
        listed = list(REGISTRIES[name].classes) if name in REGISTRIES else ()
        option = Option(
            *names, help=text, show_default=False, rich_help_panel=panel, autocompletion=_completed_from(listed)
        )
    else:
        option = Argument(help=text, show_default=False, metavar=name.upper())
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _completed_from(names: Iterable[str]) -> Callable[[str], list[str]] | None:
    """What a shell may complete a word to; typer knows the parameter by its name."""
    return (lambda incomplete: [each for each in names if each.startswith(incomplete)]) if names else None


def _panel(name: str) -> str:
    if name in PRIVACY or name in _DATA:
        return "Privacy" if name in PRIVACY else "Data and output"
    model = any(name.startswith(each) for each in REGISTRIES if each != "method")
    return "Model" if model or name == "alpha" else "Training"


def from_toml(path: Path) -> dict[str, Any]:
    """Options from a TOML file: names checked, with - or _ in them."""
    given: dict[str, Any] = {}
    for spelled, value in read_toml(path).items():
        name = _ALIASES.get(spelled, spelled.replace("-", "_"))
        if name in given:
            raise StudyError(f"{path}: {name} is set twice, the second time as {spelled!r}")
        given[name] = value
    check_names(given, [*RUN_OPTIONS, *flat_parameters(Settings)], str(path))
    for name in ("study", "data", "label", "by", "output"):
        if name in given and not _is_text(given[name]):
            raise StudyError(f"{path}: {name} must be text, not {given[name]!r}")
    if type(given.get("no_public", True)) is not bool:
        raise StudyError(f"{path}: no_public must be true or false, not {given['no_public']!r}")
    classes = given.get("classes", "")
    listed = isinstance(classes, list) and all(isinstance(each, str | int | float) for each in classes)
    if not listed and not _is_text(classes):
        raise StudyError(f'{path}: classes must be a list such as ["no", "yes"], not {classes!r}')
    return given


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def numbers(name: str, text: str, kind: Any = float, words: str = "numbers") -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise StudyError(f"{name} must be {words} with commas between, not {text!r}") from None


def check_owners(about: Mapping[str, Any], chosen: dict[str, Any]) -> None:
    """Where ``by`` says who owns a row, nothing else may."""
    if "by" in about and chosen.setdefault("partition", "groups") != "groups":
        raise StudyError(
            f"by says who owns a row, so partition cannot be {chosen['partition']!r}; leave one of them out"
        )


def check_used(on_line: Iterable[str], settings: Settings, kinds: Iterable[str] = tuple(REGISTRIES)) -> None:
    """On the command line an option of a loss (regularizer, method) that was not chosen is a mistake.

    A file may have it: for another run, with ``--loss`` on the line.
    """
    used = settings.flat()
    for name, kind in ((name, kind) for name in on_line if name not in used for kind in kinds):
        registry = REGISTRIES[kind]
        owners = [
            cls.name
            for cls in registry.classes.values()
            if name in (f"{registry.prefix}{each.name}" for each in fields_of(cls))
        ]
        if owners:
            raise StudyError(
                f"--{name.replace('_', '-')} is an option of the {kind} {' and '.join(owners)}, and the {kind} is "
                f"{used[kind]}; leave it out, or choose --{kind} {owners[0]}"
            )


def open_study(about: Mapping[str, Any]) -> tuple[Study | None, Prior | None]:
    """The study that is named, if there is one, and its public rows; it says what other options might."""
    if "study" not in about:
        if about.get("no_public"):
            raise StudyError("--no-public is for a study; leave it out")
        return None, None
    for name in ("label", "classes"):
        if name in about:
            raise StudyError(f"{name} belongs to the study; leave --{name} out")
    study = read_study(Path(about["study"]))
    if about.get("data") is None:
        raise StudyError("a study needs rows: add --data TABLE")
    study, public = with_public_table(study, False if about.get("no_public") else None)
    return study, None if public is None else prior_from(study, public, private=about["data"])


def about_study(study: Study | None, prior: Prior | None) -> list[str]:
    """What an error of 1 is in the label's own units, if that is a number; and with how many rows runs start."""
    said = []
    if study is not None and study.label is not None and study.label.bounds is not None:
        low, high = study.label.bounds
        unit = f"an error of 1 is {(high - low) / 2:g} of {study.label.column}"
        scaled = f"Errors and losses are of the label scaled to −1 … 1: {unit}."
        counts = f"Errors and losses are half the deviance over the largest count, {high:g}."
        said.append(counts if study.label.counts else scaled)
    return said if prior is None else [*said, f"Every run starts from the study's {prior.n_rows:,} public rows."]


def open_dataset(about: Mapping[str, Any], settings: Settings, study: Study | None = None) -> Dataset:
    """The rows that ``data`` (for files with ``label``, ``classes``, ``by``) names, for the loss given or a study."""
    source = about.get("data")
    if source is None:
        raise StudyError(f"say which data: --data FILE, or one of {', '.join(NAMED)}")
    if study is not None:
        return as_dataset(rows_of(study, source, by=about.get("by")), settings)
    if source in NAMED:
        for name in ("label", "classes", "by"):
            if name in about:
                raise StudyError(f"{name} is for data files; the data set {source!r} comes with its own")
        return as_dataset(source, settings)
    if "." not in Path(source).name and not Path(source).exists():
        raise DataError(f"there is no data set and no file {source!r}; data sets are {', '.join(NAMED)}")
    classes = about.get("classes")
    if isinstance(classes, str):
        classes = [name.strip() for name in classes.split(",")]
    task = settings.loss.task
    dataset = read_table(source, task=task, label=about.get("label"), classes=classes, by=about.get("by"))
    return as_dataset(dataset, settings)
