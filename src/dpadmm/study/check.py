"""Every problem of a study file in a sentence with the column's name, not only the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dpadmm._base.errors import StudyError
from dpadmm.data.schema_file import doubted, unconfirmed
from dpadmm.data.schema_file import problems as rows_problems
from dpadmm.study.settings import Settings, check_names
from dpadmm.study.study import KEYS, TRAINING, study_from
from dpadmm.study.values import CONSTANTS

BUDGETS = ("epsilon", "round_epsilon", "noise_multiplier")


def study_problems(table: Mapping[str, Any]) -> list[str]:
    """What is wrong with a study's table; nothing, if it is a study.

    Examples
    --------
    >>> table = {"format": "dpadmm-study/1", "name": "x", "features": ["a"], "training": {"rounds": 3}}
    >>> study_problems(table)
    ["training: unknown setting 'rounds'; did you mean 'n_rounds'?", 'give exactly one of epsilon ...']
    """
    found = [*_unknown(table, KEYS, "study"), *_of_rows(table), *_of_training(table.get("training"))]
    if isinstance(table.get("provenance"), Mapping):
        found += _unknown(table["provenance"], CONSTANTS, "provenance")
    if not found:
        found += _raised(study_from, table)
    return [_plain(each) for each in found]


def _of_rows(table: Mapping[str, Any]) -> list[str]:
    if "columns" not in table or "features" in table:
        return []
    return rows_problems(table) or [*doubted(table), *confirmations(table)]


def confirmations(table: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Sentences about values that wait to be confirmed -> the column's name, and the values.

    They are among the problems where there is no other problem with the columns.
    """
    if "columns" not in table or "features" in table or rows_problems(table):
        return {}
    return {
        _plain(f"{who}: is this public, {_shown(about)}? Correct it, and say public = true"): (
            about.get("name") or f"{about['column']} (label)",
            _shown(about),
        )
        for who, about in unconfirmed(table)
    }


def _shown(about: Mapping[str, Any]) -> str:
    """The values that were read off a table."""
    named = [(key, about[key]) for key in ("bounds", "values", "classes", "bins") if key in about]
    return ", ".join(f"{key} {', '.join(map(str, value[:12]))}{_more(value)}" for key, value in named)


def _more(value: Sequence[Any]) -> str:
    return f" and {len(value) - 12} more" if len(value) > 12 else ""


def _of_training(training: object) -> list[str]:
    """Each setting by itself; all together only where each is right."""
    if not isinstance(training, Mapping):
        return []
    found = _unknown(training, TRAINING, "training")
    known = {name: value for name, value in training.items() if name in TRAINING and value is not None}
    single = [each for pair in known.items() for each in _raised(_settings, _with_budget(*pair))]
    return found + (single or _raised(_settings, known))


def _settings(values: Mapping[str, Any]) -> Settings:
    return Settings(**values)


def _with_budget(name: str, value: object) -> dict[str, Any]:
    return {name: value} if name in BUDGETS else {name: value, "epsilon": 1.0}


def _unknown(given: Mapping[str, Any], known: tuple[str, ...], where: str) -> list[str]:
    return [each for name in given for each in _raised(check_names, [name], known, where)]


def _raised(check: Callable[..., object], *args: object) -> list[str]:
    try:
        check(*args)
    except StudyError as error:
        return [str(error)]
    return []


def _plain(sentence: str) -> str:
    return " ".join(sentence.removeprefix("study: ").split())
