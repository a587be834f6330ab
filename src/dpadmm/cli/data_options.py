"""Shared by ``simulate``, ``compare`` and ``reproduce``: options made from a list, and the data they name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dpadmm._base.errors import DataError, StudyError
from dpadmm.data import Dataset, read_table
from dpadmm.runs.preparation import as_dataset
from dpadmm.study.settings import Settings

NAMED = ("adult", "synthetic")


def open_dataset(about: Mapping[str, Any], settings: Settings) -> Dataset:
    """The rows that ``data`` (for files with ``label``, ``classes``, ``by``) names, for the loss given."""
    source = about.get("data")
    if source is None:
        raise StudyError(f"say which data: --data FILE, or one of {', '.join(NAMED)}")
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


def add_options(command: Callable[..., Any], options: Iterable[inspect.Parameter]) -> None:
    """Put ``options`` in the place of the command's ``**options``, where typer finds them."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    signature = inspect.Signature([*(each for each in own if each.name != "options"), *options])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
