"""The one maker of studies' tables: settings by their flat names, as the tables of a study's file.

The method is the paper's, unless another one is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpadmm.parameters.fields import parameters
from dpadmm.studies.settings import PRIVACY, REGISTRIES, Training, flat_parameters

DEPLOYABLE_OWNERS: dict[str, dict[str, str]] = {
    f"{registry.prefix}{own.name}": {what: name}
    for what, registry in REGISTRIES.items()
    for name, made in reversed(list(registry.classes.items()))
    if getattr(made, "deployable", True)
    for own in parameters(made)
}
"""Parameter -> the choice that has it, such as loss_delta -> {"loss": "huber"}; of what agents can answer for."""

FIXED = [
    *(name for name in flat_parameters(Training) if name in DEPLOYABLE_OWNERS and name != "sampling"),
    *(each.name for each in parameters(Training) if each.name not in ("aggregation", "min_honest_sites")),
]
"""Every setting that a study fixes; those of secure aggregation need each other, and are tried together."""


def tables(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``{"loss": "huber", "loss_delta": 0.5, "epsilon": 1.0}`` -> ``[loss]`` and ``[privacy]``."""
    out: dict[str, Any] = {}
    for name, value in settings.items():
        place, key = _place(name)
        out.setdefault(place, {})[key] = value
    out.setdefault("method", {"name": "dp_admm"})
    for what in set(out) & set(REGISTRIES):
        if "name" not in out[what]:
            out[what]["name"] = next(
                (DEPLOYABLE_OWNERS[name][what] for name in settings if what in DEPLOYABLE_OWNERS.get(name, ())),
                None,
            )
    return out


def _place(name: str) -> tuple[str, str]:
    if name in REGISTRIES:
        return name, "name"
    if name in PRIVACY:
        return "privacy", name
    owner = DEPLOYABLE_OWNERS.get(name)
    if owner is None:
        return "training", name
    (what,) = owner
    return what, name.removeprefix(REGISTRIES[what].prefix)
