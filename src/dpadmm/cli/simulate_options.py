"""The options of ``dpadmm simulate``: one per field of :class:`dpadmm.Settings` and a few about the run.

The same names stand in a TOML file.
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from dpadmm._base.errors import StudyError
from dpadmm._base.toml import read_toml
from dpadmm.study.settings import Settings, check_names

RUN_OPTIONS: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "data": (str, "File (.csv .parquet .npz .svm) or data set: adult, synthetic.", ("--data", "-d")),
    "label": (str, "Name of the label column (tables).", ("--label",)),
    "classes": (str, "Public list of labels, negative first: no,yes", ("--classes",)),
    "by": (str, "Column that says who owns a row (then each value is an agent).", ("--by",)),
    "repeats": (int, "Runs with seeds seed, seed+1, ... (default 1)", ("--repeats",)),
    "output": (str, "Folder for settings, trace, summary, models and figure.", ("--output", "-o")),
}
"""What a command needs beside :class:`Settings`: type, help, option names."""

_SHORT = {"n_agents": ("--agents", "-n"), "n_rounds": ("--rounds", "-t"), "epsilon": ("-e",)}
LISTS = ("epsilon", "round_epsilon", "noise_multiplier")
_PANELS = {
    "Privacy": (*LISTS, "delta", "calibration"),
    "Data and output": ("n_agents", "partition", "partition_spread", "clip_rows", "intercept", "test_rows"),
    "Model": ("loss", "loss_width", "loss_delta", "gradient_bound", "regularizer", "l1_ratio", "reg_share"),
}
_OFF = {"split_regularizer": "--no-split"}  # the other switches are turned off by --no-NAME
_ALIASES = {"agents": "n_agents", "rounds": "n_rounds"}
_TYPES = {"int": int, "float": float, "bool": bool, "str": str, "int | None": int, "float | None": float}
_HELP = {
    "method": "dp_admm, admm, admm_pvp, admm_dvp, dp_sgd, output_perturbation, objective_perturbation or "
    "centralized (the non-private optimum).",
    "n_agents": "Number of agents.",
    "partition": "equal, unequal, label_skewed or groups.",
    "partition_spread": "Spread of unequal, concentration of label_skewed.",
    "loss": "logistic, softmax, hinge, smoothed_hinge, squared, huber.",
    "loss_width": "Width of smoothed_hinge.",
    "loss_delta": "delta of huber.",
    "gradient_bound": "Gradient bound of squared.",
    "regularizer": "none, l2, l1, elastic_net.",
    "l1_ratio": "Share of L1 in elastic_net.",
    "reg_share": "Weight of the regularizer, the paper's λ/n.",
    "intercept": "Add a constant column.",
    "clip_rows": "Shorten rows longer than 1 instead of refusing them.",
    "epsilon": "TOTAL ε of the run, exact; one number or one per agent (1,2,0.5).",
    "round_epsilon": "ε per ROUND, as in the paper.",
    "noise_multiplier": "Noise in units of the sensitivity; 0: no privacy.",
    "delta": "δ.",
    "calibration": "How round-epsilon becomes noise: paper or exact.",
    "n_rounds": "Rounds.",
    "rho": "Penalty ρ.",
    "weight_radius": "Public guess of the norm of the best weights, c_w.",
    "schedule": "Step sizes: theorem or constant.",
    "step_size": "Step of the constant schedule.",
    "learning_rate": "Step of dp_sgd (default: 1/smoothness).",
    "sampling": "Share of its rows an agent uses in a round of dp_sgd.",
    "mechanism": "Noise of admm_dvp, output_ and objective_perturbation: gaussian or pure (δ = 0).",
    "split_regularizer": "admm: regularizer in the consensus step.",
    "solver_tolerance": "Where exact local solves stop: gradient norm, as a share of 2c1/m.",
    "participation": "Chance of an agent to take part in a round.",
    "average": "Model from the last round, all rounds, or the tail (second half).",
    "stop_tolerance": "Stop when the consensus moves less than this.",
    "test_rows": "Rows held out: a count, or a share below 1.",
    "metrics_every": "Measure every so many rounds; 0: never.",
    "seed": "Names split and noise (default: from the system).",
}


def parameters() -> list[inspect.Parameter]:
    """One option per run option and per field of :class:`Settings`."""
    listed = [
        (name, kind, text, names, "Data and output") for name, (kind, text, names) in RUN_OPTIONS.items()
    ]
    for field in fields(Settings):
        kind: Any = str if field.name in LISTS else _TYPES.get(str(field.type), str)
        default = "" if field.default is None or field.type == "bool" else f" (default {field.default})"
        dashed = f"--{field.name.replace('_', '-')}"
        off = _OFF.get(field.name, f"--no-{dashed[2:]}")
        names = (f"{dashed}/{off}",) if kind is bool else (dashed, *_SHORT.get(field.name, ()))
        panel = next((title for title, members in _PANELS.items() if field.name in members), "Training")
        listed.append((field.name, kind, _HELP[field.name] + default, names, panel))
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                kind | None, typer.Option(*names, help=text, show_default=False, rich_help_panel=panel)
            ],
        )
        for name, kind, text, names, panel in listed
    ]


def from_toml(path: Path) -> dict[str, Any]:
    """Options from a TOML file: names checked, with - or _ in them."""
    given: dict[str, Any] = {}
    for spelled, value in read_toml(path).items():
        name = _ALIASES.get(spelled, spelled.replace("-", "_"))
        if name in given:
            raise StudyError(f"{path}: {name} is set twice, the second time as {spelled!r}")
        given[name] = value
    check_names(given, [*RUN_OPTIONS, *(field.name for field in fields(Settings))], str(path))
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
