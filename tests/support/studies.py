"""Tables of study files from settings with dotted names. The default method is the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpadmm.parameters.fields import parameters
from dpadmm.studies.settings import CHOICES, PRIVACY, Training, nest, nested_parameters

DEPLOYABLE_OWNERS: dict[str, dict[str, str]] = {
    f"{what}.{own.name}": {what: name}
    for what, classes in CHOICES.items()
    for name, cls in reversed(list(classes.items()))
    if getattr(cls, "deployable", True)
    for own in parameters(cls)
}
"""Parameter -> the choice that has it, such as loss.delta -> {"loss": "huber"}; of deployable methods."""

FIXED = [
    *(name for name in nested_parameters(Training) if name in DEPLOYABLE_OWNERS and name != "method.sampling"),
    *(
        parameter.name
        for parameter in parameters(Training)
        if parameter.name not in ("aggregation", "min_honest_sites")
    ),
]
"""Every setting that a study fixes; those of secure aggregation need each other, and are tried together."""


def tables(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``{"loss": "huber", "loss.delta": 0.5, "epsilon": 1.0}`` -> ``[loss]`` and ``[privacy]``."""
    out: dict[str, Any] = {"method": {"name": "dp_admm"}}
    for name, value in nest(settings).items():
        if name in CHOICES and isinstance(value, Mapping):
            owners = (DEPLOYABLE_OWNERS.get(f"{name}.{key}", {}).get(name) for key in value)
            owner = next(filter(None, owners), None)
            out[name] = {"name": owner} | value if owner else value
        elif name in CHOICES:
            out[name] = {"name": value}
        else:
            out.setdefault("privacy" if name in PRIVACY else "training", {})[name] = value
    return out
