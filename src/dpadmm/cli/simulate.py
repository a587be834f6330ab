"""``dpadmm simulate``: all agents in this process, on a data file or a named data set.

Every setting is an option, and every option a name in a TOML file (``--config``); options win.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dpadmm._base.errors import Diverged, StudyError
from dpadmm.cli.data_options import add_options, open_dataset
from dpadmm.cli.screen import (
    NAMES,
    Interrupted,
    epsilon_text,
    mean_and_spread,
    number_range,
    progress,
    say,
    say_path,
    table,
)
from dpadmm.cli.simulate_options import RUN_OPTIONS, from_toml, parameters
from dpadmm.data import Dataset
from dpadmm.reporting.run_folder import (
    check_folder,
    end_values,
    finished,
    measures,
    remove_leftovers,
    summary,
    used_settings,
    write_run,
)
from dpadmm.runs.preparation import prepare
from dpadmm.runs.run import Result
from dpadmm.runs.simulation import run_prepared
from dpadmm.study.settings import BUDGETS, Settings, settings_from
from dpadmm.training.loop import Observer
from dpadmm.training.methods import METHODS
from dpadmm.training.oracles import fresh_seed


def simulate_command(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="TOML file with any of these options.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that is in the output folder.")
    ] = False,
    **options: Any,
) -> None:
    """Train across simulated agents: what accuracy costs what privacy."""
    on_line = {name: value for name, value in options.items() if value is not None}
    given = _line_wins(on_line, from_toml(config)) if config else on_line
    about_run = {name: given.pop(name) for name in list(given) if name in RUN_OPTIONS}
    settings = _settings(given, about_run)
    repeats = _repeats(about_run.get("repeats", 1))
    folder = Path(about_run["output"]) if "output" in about_run else None
    if folder:
        check_folder(folder, overwrite=overwrite)
    dataset = open_dataset(about_run, settings)

    def keep(results: Mapping[str, Result]) -> None:
        if folder and results:
            extra = {"measures": measures(finished(results.values()))}
            write_run(folder, results, how=_how(results, about_run), extra=extra, new=list(results)[-1:])
            if overwrite and len(results) == 1:
                remove_leftovers(folder, results)

    plans = [replace(settings, seed=(settings.seed or 0) + k) for k in range(repeats)]
    results, interrupted = _train(dataset, plans, keep=keep, quiet=as_json)
    if folder:
        _draw(folder, results)
    if as_json:
        everything = summary(results, _how(results, about_run), {"measures": measures(finished(results.values()))})
        typer.echo(json.dumps(everything, indent=2, allow_nan=False))
    else:
        _show(dataset, results, folder)
    if interrupted:
        done = list(results.values())[-1].outcome.rounds
        where = f"; what was done is in {folder}" if folder else ""
        raise Interrupted(f"interrupted in run {len(results)} of {repeats} after {done} rounds{where}")


add_options(simulate_command, parameters())


def _train(
    dataset: Dataset, plans: Sequence[Settings], *, keep: Callable[[Mapping[str, Result]], None], quiet: bool
) -> tuple[dict[str, Result], bool]:
    """The runs by name ("1", "2", ...), and whether Ctrl-C ended them early; ``keep`` follows each run."""
    results: dict[str, Result] = {}
    interrupted = False
    rounds = sum(plan.planned_rounds for plan in plans)
    try:
        if plans[0].partition != "equal":
            for plan in plans[1:]:  # a random split may leave an agent too few rows: found before any run
                prepare(dataset, plan)
        with progress(rounds, "training", quiet=quiet) as advance:
            for k, plan in enumerate(plans, 1):
                result = _run(dataset, plan, f"run {k} of {len(plans)}: " if len(plans) > 1 else "", advance)
                interrupted = result.interrupted
                if result.outcome.rounds:
                    results[f"{k}"] = result
                    keep(results)
                if interrupted:
                    break
    except KeyboardInterrupt:  # between two runs, or while one was written
        interrupted = True
        keep(results)
    if not results:
        raise KeyboardInterrupt
    return results, interrupted


def _run(dataset: Dataset, plan: Settings, named: str, watch: Observer) -> Result:
    try:
        return run_prepared(prepare(dataset, plan), plan, observers=[watch], keep_interrupted=True)
    except Diverged as error:
        if not named:
            raise
        raise StudyError(f"{named}{error}") from error


def _line_wins(line: Mapping[str, Any], file: Mapping[str, Any]) -> dict[str, Any]:
    """The file's options with the line's on top; what the line says in another way goes out of the file."""
    replaced: set[str] = set()
    method = METHODS.get(line.get("method", ""))
    if (method and not method.private) or any(name in line for name in BUDGETS):
        replaced.update(BUDGETS)
    if "by" in line:
        replaced.add("partition")
    return {**{name: value for name, value in file.items() if name not in replaced}, **line}


def _settings(given: Mapping[str, Any], about_run: Mapping[str, Any]) -> Settings:
    chosen = dict(given)
    for name in BUDGETS:
        if isinstance(chosen.get(name), str):
            chosen[name] = _numbers(name, chosen[name])
    if "by" in about_run and chosen.setdefault("partition", "groups") != "groups":
        raise StudyError(
            f"by says who owns a row, so partition cannot be {chosen['partition']!r}; leave one of them out"
        )
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


def _how(results: Mapping[str, Result], about_run: Mapping[str, Any]) -> dict[str, Any]:
    """What to run again: run options (but the output folder) and the settings of the first run."""
    return {**{k: v for k, v in about_run.items() if k != "output"}, **used_settings(results["1"])}


def _draw(folder: Path, results: Mapping[str, Result]) -> None:
    traces = [result.trace for result in finished(results.values()) if len(result.trace)]
    if traces:
        from dpadmm.reporting.figures import convergence_figure, save_figure

        first = results["1"]
        epsilon = f", ε = {epsilon_text(first.privacy.epsilon)}" if first.privacy.private else ""
        save_figure(convergence_figure({first.settings.method.name + epsilon: traces}), folder / "convergence")


def _show(dataset: Dataset, results: Mapping[str, Result], folder: Path | None) -> None:
    console = Console()
    shown = finished(results.values())
    first = shown[0]
    sizes, task = first.rows.n_rows, first.problem.loss.task
    say(
        console,
        f"{dataset.name}: {len(first.rows.labels)} training rows × {first.rows.n_features} features, "
        f"{first.rows.n_agents} agents of {number_range(sizes, 'd')} rows",
    )
    runs = f", mean ± standard deviation of {len(shown)} runs" if len(shown) > 1 else ""
    rounds = "" if first.settings.planned_rounds == 1 else f", {first.outcome.rounds} rounds"
    problem = f"{first.problem.loss.name} loss, {first.problem.regularizer.name} regularizer"
    say(console, f"{first.settings.method.name}, {problem}{rounds}{runs}")
    out = table("", "value")
    ends = end_values(shown)
    for name, text in NAMES.items():
        if name in ends:
            text = text if task != "regression" else text.replace("error", "RMS error")
            out.add_row(text, mean_and_spread(name, ends[name], is_rate=task != "regression"))
    out.add_section()
    reports = [result.privacy for result in shown]
    if all(report.private for report in reports):
        worst = max(reports, key=lambda report: report.epsilon)
        how = worst.accountant if math.isnan(worst.paper_epsilon) else "exact"
        out.add_row(
            f"total ε of each run, {how}" if len(shown) > 1 else f"total ε, {how}", number_range(worst.epsilon_by_agent)
        )
        if not math.isnan(worst.paper_epsilon):
            out.add_row("total ε, paper's moments bound", epsilon_text(worst.paper_epsilon))
        out.add_row("δ", f"{worst.delta:g}")
        if not any(map(math.isnan, worst.noise_multiplier)):
            out.add_row("noise multiplier z", number_range(worst.noise_multiplier))
    else:
        out.add_row("privacy", "none")
    console.print(out)
    if reports[0].private:
        say(
            console,
            "The noise is simulated from a seed: this shows what a private run would reach and cost; "
            "it protects nobody.",
            style="dim",
        )
    if folder:
        say_path(console, f"Written to {folder}")
