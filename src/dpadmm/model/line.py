"""A model in one line: of what, for which answers, at which ε."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpadmm.model.model import Model

MOST_CLASSES = 4


def in_a_line(model: Model) -> str:
    """What Python shows of a model, whatever its file says of itself."""
    name = f"{_short(model.study['name'])!r}: " if model.study.get("name") else ""
    count = len(model.weights) - model.intercept
    features = f"{count:,} feature{'s' * (count != 1)}{' and a constant' * model.intercept}"
    classes = model.class_names
    few = f"classes {', '.join(map(_short, classes))}" if len(classes) <= MOST_CLASSES else ""
    answers = few if classes and few else f"{len(classes)} classes" if classes else "predicts a number"
    return f"<Model {name}{model.loss}, {features}, {answers}, {_promise(model.privacy)}>"


def _promise(privacy: Mapping[str, Any]) -> str:
    if not privacy:
        return "privacy unknown"
    epsilon, delta = privacy.get("epsilon"), privacy.get("delta")
    if not (isinstance(epsilon, int | float) and isinstance(delta, int | float)):
        return "not private"
    simulated = "" if str(privacy.get("noise", "")).startswith("exact") else ", simulated noise"
    return f"ε = {epsilon:.4g} at δ = {delta:g}{simulated}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
