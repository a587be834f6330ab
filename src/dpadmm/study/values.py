"""What a study's values must be, each checked with a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from dpadmm._base.errors import StudyError
from dpadmm.study.settings import Settings, check_names

CONSTANTS = (
    "loss_width", "loss_delta", "gradient_bound", "l1_ratio", "reg_share", "rho", "weight_radius",
    "step_size", "learning_rate",
)  # fmt: skip
"""Numbers that people like to tune: chosen on private rows they would leak, and nothing would count it."""

LARGEST = 10**15

PROVENANCE = ("public", "assumed", "derived from public data")


def check_rounds(quorum: object, deadline: object, *, absences: bool) -> float | None:
    """The deadline as a number; refused are a quorum and a deadline that make no sense."""
    if quorum is not None and (type(quorum) is not int or not 1 <= quorum <= 10**6):
        raise StudyError(f"study: quorum must be a number of sites, at least 1, not {quorum!r:.60}")
    if not absences and (quorum is not None or deadline is not None):
        raise StudyError("study: quorum and deadline need absences = true: that sites may miss rounds")
    if deadline is None:
        return None
    if isinstance(deadline, bool) or not isinstance(deadline, int | float) or not 0.1 <= deadline <= 1e7:
        raise StudyError(f"study: deadline must be seconds, from 0.1 to 1e7, not {deadline!r:.60}")
    return float(deadline)


def check_features(features: object) -> None:
    """Names of columns, each once."""
    if not isinstance(features, tuple) or not features:
        raise StudyError("study: features must be a list of the columns' names, at least one")
    seen: set[str] = set()
    for each in features:
        if not isinstance(each, str) or not each.strip() or len(each) > 200 or not each.isprintable():
            raise StudyError(f"study: a feature must be the name of a column, on one line, not {each!r:.60}")
        if each in seen:
            raise StudyError(f"study: the feature {each!r} is named twice")
        seen.add(each)


def checked_classes(classes: object) -> tuple[Any, ...] | None:
    """Texts and numbers; 1.0 is written as 1, which means the same and must have the same hash."""
    if classes is None:
        return None
    if not isinstance(classes, tuple):
        raise StudyError(f"study: classes must be a list of the labels' values, not {classes!r:.60}")
    for each in classes:
        is_text = isinstance(each, str) and each.isprintable() and len(each) <= 200
        if not is_text and not (isinstance(each, int | float) and abs(each) <= LARGEST):
            raise StudyError(f"study: a class must be a short text or a number, not {each!r:.60}")
    return tuple(int(each) if isinstance(each, float) and each.is_integer() else each for each in classes)


def check_values(training: Mapping[str, Any]) -> None:
    """One value each, and no absurd number."""
    for name, value in training.items():
        if isinstance(value, list | tuple | np.ndarray):
            raise StudyError(f"study: {name} must be one value, the same for every agent")
        if isinstance(value, int) and abs(value) > LARGEST:
            raise StudyError(f"study: {name} must be a number of at most {LARGEST:g}")


def check_provenance(settings: Settings, provenance: Mapping[str, str]) -> None:
    """Every constant that is not the default says where it comes from."""
    check_names(provenance, CONSTANTS, "study, provenance")
    for name, origin in provenance.items():
        if origin not in PROVENANCE:
            raise StudyError(f"study: provenance of {name} must be {', '.join(PROVENANCE)}, not {origin!r}")
    default = {each.name: each.default for each in fields(Settings)}
    for name in CONSTANTS:
        if getattr(settings, name) != default[name] and name not in provenance:
            raise StudyError(
                f"study: where does {name} = {getattr(settings, name)} come from? Say provenance.{name} = "
                f"one of {', '.join(PROVENANCE)}; a value tuned on private rows leaks them"
            )


def number(name: str, value: Any) -> Any:
    """1 and 1.0 are the same number, and must have the same hash; rounds are counted."""
    is_counted = isinstance(value, bool | str) or value is None or name == "n_rounds"
    return value if is_counted else float(value) + 0.0  # −0.0 is 0.0
