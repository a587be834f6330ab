"""``dpadmm simulate``: all agents in this process, on a data file or a named data set.

Every setting is an option, and every option a name in a TOML file (``--config``); options win.
"""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dpadmm.cli.screen import NAMES, epsilon_text, mean_and_spread, progress, table
from dpadmm.data import Dataset, read_table
from dpadmm.errors import DataError, StudyError
from dpadmm.losses import LOSSES
from dpadmm.privacy.noise import fresh_seed
from dpadmm.reporting.run_folder import (
    check_folder,
    end_values,
    measures,
    summary,
    used_settings,
    write_run,
)
from dpadmm.settings import Settings, check_names, settings_from
from dpadmm.simulation import Result, as_dataset, prepare, run

NAMED = ("adult", "synthetic")

# --- options -----------------------------------------------------------------------------------------------

_RUN: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "data": (str, "File (.csv .parquet .npz .svm) or data set: adult, synthetic.", ("--data", "-d")),
    "label": (str, "Name of the label column (tables).", ("--label",)),
    "classes": (str, "Public list of labels, negative first: no,yes", ("--classes",)),
    "by": (str, "Column that says who owns a row (then each value is an agent).", ("--by",)),
    "repeats": (int, "Runs with seeds seed, seed+1, ... (default 1)", ("--repeats",)),
    "output": (str, "Folder for settings, trace, summary, models and figure.", ("--output", "-o")),
}
"""What a command needs beside :class:`Settings`: type, help, option names."""

_SHORT = {"n_agents": ("--agents", "-n"), "n_rounds": ("--rounds", "-t"), "epsilon": ("-e",)}
_LISTS = ("epsilon", "round_epsilon", "noise_multiplier")
_PANELS = {
    "Privacy": (*_LISTS, "delta", "calibration"),
    "Data and output": ("n_agents", "partition", "partition_spread", "clip_rows", "intercept", "test_rows"),
    "Model": ("loss", "loss_width", "loss_delta", "gradient_bound", "regularizer", "l1_ratio", "reg_share"),
}
_TYPES = {"int": int, "float": float, "bool": bool, "str": str, "int | None": int, "float | None": float}
_HELP = {
    "method": "dp_admm or centralized (the non-private optimum).",
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
    "participation": "Chance of an agent to take part in a round.",
    "average": "Model from the last round, all rounds, or the tail (second half).",
    "stop_tolerance": "Stop when the consensus moves less than this.",
    "test_rows": "Rows held out: a count, or a share below 1.",
    "metrics_every": "Measure every so many rounds; 0: never.",
    "seed": "Names split and noise (default: from the system).",
}


def _parameters() -> list[inspect.Parameter]:
    """One option per run option and per field of :class:`Settings`."""
    listed = [(name, kind, text, names, "Data and output") for name, (kind, text, names) in _RUN.items()]
    for field in fields(Settings):
        kind: Any = str if field.name in _LISTS else _TYPES.get(str(field.type), str)
        default = "" if field.default is None or field.type == "bool" else f" (default {field.default})"
        dashed = f"--{field.name.replace('_', '-')}"
        names = (f"{dashed}/--no-{dashed[2:]}",) if kind is bool else (dashed, *_SHORT.get(field.name, ()))
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


# --- the command -------------------------------------------------------------------------------------------


def simulate_command(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="TOML file with any of these options.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what is in the output folder.")
    ] = False,
    **options: Any,
) -> None:
    """Train across simulated agents: what accuracy costs what privacy."""
    given = {**_from_toml(config), **{name: value for name, value in options.items() if value is not None}}
    about_run = {name: given.pop(name) for name in list(given) if name in _RUN}
    settings = _settings(given, about_run)
    repeats = _repeats(about_run.get("repeats", 1))
    folder = Path(about_run["output"]) if "output" in about_run else None
    if folder:
        check_folder(folder, overwrite=overwrite)
    dataset = _dataset(about_run, settings)
    results: dict[str, Result] = {}
    rounds = repeats * (1 if settings.method == "centralized" else settings.n_rounds)
    with progress(rounds, "training", quiet=as_json) as advance:
        for k in range(repeats):
            one = replace(settings, seed=(settings.seed or 0) + k)
            result = run(prepare(dataset, one), one, observers=[advance])
            results[f"{k + 1}"] = result
            if folder:
                _write(folder, results, about_run)
            if result.interrupted:
                break
    how = _how(results["1"], about_run)
    if as_json:
        typer.echo(
            json.dumps(
                summary(results, how, {"measures": measures(results.values())}), indent=2, allow_nan=False
            )
        )
    else:
        _show(dataset, results, folder)
    last = list(results.values())[-1]
    if last.interrupted:
        kept = f"; what was done is in {folder}" if folder else ""
        typer.echo(f"dpadmm: interrupted after round {last.outcome.rounds}{kept}", err=True)
        raise typer.Exit(130)


simulate_command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        *(
            p
            for p in inspect.signature(simulate_command, eval_str=True).parameters.values()
            if p.name != "options"
        ),
        *_parameters(),
    ]
)
simulate_command.__annotations__ = {
    p.name: p.annotation for p in inspect.signature(simulate_command).parameters.values()
}


def _from_toml(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        table_ = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StudyError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError):
        raise StudyError(f"{path}: cannot be read as a text file") from None
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{path}: not valid TOML: {error}") from None
    table_ = {name.replace("-", "_"): value for name, value in table_.items()}
    aliases = {"agents": "n_agents", "rounds": "n_rounds"}
    table_ = {aliases.get(name, name): value for name, value in table_.items()}
    check_names(table_, [*_RUN, *(f.name for f in fields(Settings))], str(path))
    for name in ("data", "label", "by", "output"):
        if not isinstance(table_.get(name, ""), str):
            raise StudyError(f"{path}: {name} must be text, not {table_[name]!r}")
    return table_


def _settings(given: Mapping[str, Any], about_run: Mapping[str, Any]) -> Settings:
    chosen = dict(given)
    for name in _LISTS:
        if isinstance(chosen.get(name), str):
            chosen[name] = _numbers(name, chosen[name])
    if "by" in about_run:
        chosen.setdefault("partition", "groups")
    chosen.setdefault("seed", fresh_seed())
    return settings_from(chosen, "options")


def _numbers(name: str, text: str) -> float | list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise StudyError(f"{name} must be a number, or numbers with commas between, not {text!r}") from None
    return values[0] if len(values) == 1 else values


def _repeats(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise StudyError(f"repeats must be a whole number of at least 1, not {value!r}")
    return value


def _dataset(about_run: Mapping[str, Any], settings: Settings) -> Dataset:
    source = about_run.get("data")
    if source is None:
        raise StudyError(f"say which data: --data FILE, or one of {', '.join(NAMED)}")
    if source in NAMED:
        for name in ("label", "classes", "by"):
            if name in about_run:
                raise StudyError(f"{name} is for data files; the data set {source!r} comes with its own")
        return as_dataset(source, settings)
    if "." not in Path(source).name and not Path(source).exists():
        raise DataError(f"there is no data set and no file {source!r}; data sets are {', '.join(NAMED)}")
    classes = about_run.get("classes")
    if isinstance(classes, str):
        classes = classes.split(",")
    task = LOSSES[settings.loss].task
    dataset = read_table(
        source, task=task, label=about_run.get("label"), classes=classes, by=about_run.get("by")
    )
    return as_dataset(dataset, settings)


def _how(result: Result, about_run: Mapping[str, Any]) -> dict[str, Any]:
    """What to run again: run options (but the output folder) and the settings of the first run."""
    return {**{k: v for k, v in about_run.items() if k != "output"}, **used_settings(result)}


def _write(folder: Path, results: Mapping[str, Result], about_run: Mapping[str, Any]) -> None:
    write_run(
        folder,
        results,
        how=_how(results["1"], about_run),
        extra={"measures": measures(results.values())},
    )
    if all(len(result.trace) for result in results.values()):
        from dpadmm.reporting.convergence import convergence_figure, save_figure

        first = results["1"]
        label = "centralized" if not first.privacy.private else f"ε = {epsilon_text(first.privacy.epsilon)}"
        traces = {label: [result.trace for result in results.values()]}
        save_figure(convergence_figure(traces), folder / "convergence")


def _show(dataset: Dataset, results: Mapping[str, Result], folder: Path | None) -> None:
    console = Console()
    first = results["1"]
    sizes = first.rows.n_rows
    rows_each = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    console.print(
        f"{dataset.name}: {len(first.rows.labels)} training rows × {first.rows.n_features} features, "
        f"{first.rows.n_agents} agents with {rows_each} rows each",
        highlight=False,
    )
    runs = f", {len(results)} runs (mean ± standard deviation)" if len(results) > 1 else ""
    title = f"{first.settings.method}, {first.problem.loss.name} + {first.problem.regularizer.name}"
    out = table("", "value", title=f"{title}, {first.outcome.rounds} rounds{runs}")
    is_rate = first.problem.loss.task != "regression"
    for name, values in end_values(results.values()).items():
        out.add_row(NAMES.get(name, name), mean_and_spread(name, values, is_rate=is_rate))
    privacy = first.privacy
    out.add_section()
    if privacy.private:
        out.add_row("total ε, exact", epsilon_text(max(r.privacy.epsilon for r in results.values())))
        out.add_row("total ε, paper's moments bound", epsilon_text(privacy.paper_epsilon))
        out.add_row("δ", f"{privacy.delta:g}")
        low, high = privacy.noise_multiplier.min(), privacy.noise_multiplier.max()
        out.add_row("noise multiplier z", f"{low:.4f}" if low == high else f"{low:.4f} to {high:.4f}")
    else:
        out.add_row("privacy", "none")
    console.print(out)
    if privacy.private:
        console.print(
            "The noise is simulated from a seed: this shows what a private run would reach and cost; "
            "it protects nobody.",
            style="dim",
        )
    if folder:
        console.print(f"Written to {folder}", highlight=False)
