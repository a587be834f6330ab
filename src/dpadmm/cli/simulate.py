"""``dpadmm simulate``: train with all agents in this process, on a data file or a named data set.

Every option is also a key of the TOML file of ``--config``. Options override the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from typer import Option

from dpadmm.accounting.report import PrivacyReport
from dpadmm.baselines import ALL_METHODS
from dpadmm.cli import console, simulate_options
from dpadmm.cli.console import AsJson, InterruptedRunError, echo_json
from dpadmm.cli.simulate_options import ASSIGNMENTS, RUN_OPTIONS, from_toml, merge_settings, numbers, read_assignments
from dpadmm.data import Dataset
from dpadmm.engine.noise import fresh_seed
from dpadmm.errors import DivergenceError, StudyError
from dpadmm.methods.prior import Prior
from dpadmm.models.run import Result
from dpadmm.rendering import Column, Paragraph, Rendering, Row, Table
from dpadmm.rendering.formats import epsilon_text, mean_text, number_range, rounded_up
from dpadmm.studies.settings import BUDGETS, Settings, settings_from
from dpadmm.studies.study import Study
from dpadmm.training import run_folder
from dpadmm.training.preparation import prepare
from dpadmm.training.run_folder import end_values, finished, measures
from dpadmm.training.simulate import run_prepared, settings_fixed_by, settings_of

MEASURES = {
    "train_loss_global": "training loss, global model",
    "train_loss_local": "training loss, local models",
    "train_error_global": "training error, global model",
    "test_loss_global": "test loss, global model",
    "test_error_global": "test error, global model",
    "test_error_local": "test error, local models",
    "augmented_objective": "augmented objective (sum over agents)",
    "seconds": "seconds in rounds",
}
"""Labels of measures, in display order."""


def simulate(
    config: Path | None = Option(None, "--config", "-c", help="TOML file with any of these options."),
    as_json: AsJson = False,
    overwrite: bool = Option(False, "--overwrite", help="Replace the run that is in the output folder."),
    **options: Any,
) -> None:
    """Train across simulated agents and measure the cost of privacy.

    With a STUDY: its settings, on a table (--data), tested on held-out rows.
    """
    on_line = {name: value for name, value in options.items() if value is not None}
    assignments = on_line.pop(ASSIGNMENTS, [])
    if simulate_options.show_parameters(assignments, on_line):
        return
    on_line = merge_settings(on_line, read_assignments(assignments))
    given = _override(from_toml(config), on_line) if config else on_line
    about_run = {name: given.pop(name) for name in list(given) if name in RUN_OPTIONS}
    study, prior = simulate_options.open_study(about_run)
    settings = _settings(given, about_run, study)
    repeats = about_run.get("repeats", 1)
    if type(repeats) is not int or repeats < 1:
        raise StudyError(f"repeats must be a whole number of at least 1, not {repeats!r}")
    folder = Path(about_run["output"]) if "output" in about_run else None
    if folder:
        run_folder.check_folder(folder, overwrite=overwrite)
    dataset = simulate_options.open_dataset(about_run, settings, study)
    fixed = settings_fixed_by(study) if study else set()

    def about(results: Mapping[str, Result]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options that repeat the run, and the measures."""
        how = {name: value for name, value in about_run.items() if name != "output"}
        used = run_folder.used_settings(results["1"])
        return {**how, **{name: value for name, value in used.items() if name not in fixed}}, {
            "measures": measures(finished(results.values()))
        }

    def keep(results: Mapping[str, Result]) -> None:
        if folder and results:
            how, extra = about(results)
            run_folder.write_run(folder, results, how=how, extra=extra, new=list(results)[-1:])
            if overwrite and len(results) == 1:
                run_folder.remove_leftovers(folder, results)

    plans = {f"{k + 1}": replace(settings, seed=(settings.seed or 0) + k) for k in range(repeats)}
    results, interrupted = run_all(dataset, plans, study=study, prior=prior, keep=keep, quiet=as_json)
    if folder:
        _draw(folder, results)
    if as_json:
        echo_json(run_folder.summary(results, *about(results)))
    else:
        rendering = _rendering(dataset, results, simulate_options.about_study(study, prior))
        console.show(rendering.extend(next_steps=[f"Written to {folder}"] if folder else []))
    if interrupted:
        done = list(results.values())[-1].outcome.rounds
        where = f"; what was done is in {folder}" if folder else ""
        raise InterruptedRunError(f"interrupted in run {len(results)} of {repeats} after {done} rounds{where}")


simulate_options.add_options(simulate, simulate_options.parameters())


def run_all(
    dataset: Dataset,
    plans: Mapping[str, Settings],
    *,
    study: Study | None = None,
    prior: Prior | None = None,
    keep: Callable[[Mapping[str, Result]], None] = lambda results: None,
    quiet: bool,
) -> tuple[dict[str, Result], bool]:
    """Return the runs by name, and whether Ctrl-C ended them early. ``keep`` is called after each run."""
    results: dict[str, Result] = {}
    interrupted = False
    first, *others = plans.values()
    try:
        if first.partition != "equal":
            for plan in others:  # a random split may leave an agent too few rows: found before any run
                prepare(dataset, plan)
        with console.progress(sum(plan.planned_rounds for plan in plans.values()), "training", quiet=quiet) as advance:
            for k, (name, plan) in enumerate(plans.items(), 1):
                try:
                    prepared = prepare(dataset, plan)
                    result = run_prepared(
                        prepared, plan, study=study, prior=prior, observers=[advance], keep_interrupted=True
                    )
                except DivergenceError as error:
                    if not others:
                        raise
                    raise StudyError(f"run {k} of {len(plans)}: {error}") from error
                interrupted = result.interrupted
                if result.outcome.rounds:
                    results[name] = result
                    keep(results)
                if interrupted:
                    break
    except KeyboardInterrupt:  # between two runs, or while one was written
        interrupted = True
        keep(results)
    if not results:
        raise KeyboardInterrupt
    return results, interrupted


def _override(file: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file's options, overridden by those of the command line and without those they replace."""
    replaced: set[str] = set()
    choice = line.get("method", "")
    method = ALL_METHODS.get(str(choice.get("name") if isinstance(choice, Mapping) else choice))
    if (method and not method.private) or any(name in line for name in BUDGETS):
        replaced.update(BUDGETS)
    if "by" in line:
        replaced.add("partition")
    return merge_settings({name: value for name, value in file.items() if name not in replaced}, line)


def _settings(given: Mapping[str, Any], about_run: Mapping[str, Any], study: Study | None) -> Settings:
    chosen = dict(given)
    for name in BUDGETS:
        if isinstance(chosen.get(name), str):
            values = numbers(name, chosen[name], words="a number, or numbers")
            chosen[name] = values[0] if len(values) == 1 else values
    simulate_options.check_owners(about_run, chosen)
    chosen.setdefault("seed", fresh_seed())
    return settings_from(chosen, "options") if study is None else settings_of(study, chosen)


def _draw(folder: Path, results: Mapping[str, Result]) -> None:
    traces = [result.trace for result in finished(results.values()) if len(result.trace)]
    if traces:
        from dpadmm.figures.convergence import convergence_figure
        from dpadmm.figures.style import save_figure

        first = results["1"]
        epsilon = f", ε = {epsilon_text(first.privacy.epsilon)}" if first.privacy.private else ""
        save_figure(convergence_figure({first.settings.method.name + epsilon: traces}), folder / "convergence")


def _rendering(dataset: Dataset, results: Mapping[str, Result], notes: Sequence[str]) -> Rendering:
    """Describe runs: data, model, measures at the end, and privacy."""
    runs = finished(results.values())
    first, several = runs[0], len(runs) > 1
    rows, problem = first.rows, first.problem
    n_rounds = "" if first.settings.planned_rounds == 1 else f", {first.outcome.rounds} rounds"
    spread = f", mean ± standard deviation of {len(runs)} runs" if several else ""
    is_rate, ends = problem.loss.task in ("binary", "multiclass"), end_values(runs)
    error = "half deviance" if problem.loss.task == "count" else "RMS error"
    measured = [
        (
            title if is_rate else title.replace("error", error),
            mean_text(ends[name], is_rate=is_rate and "error" in name),
        )
        for name, title in MEASURES.items()
        if name in ends
    ]
    is_private = all(run.privacy.private for run in runs)
    seeded = "The noise is simulated from a seed. It is for experiments only and provides no privacy."
    return Rendering(
        body=[
            Paragraph(
                f"{dataset.name}: {len(rows.labels)} training rows × {rows.n_features} features, "
                f"{rows.n_agents} agents of {number_range(rows.n_rows, 'd')} rows"
            ),
            Paragraph(
                f"{first.settings.method.name}, {problem.loss.name} loss, {problem.regularizer.name} regularizer"
                f"{n_rounds}{spread}"
            ),
            Table(
                [Column("", ""), Column("", "value", align="right")],
                [*measured, (), *(_privacy_rows(runs) if is_private else [("privacy", "none")])],
            ),
        ],
        notes=[*notes, *([seeded] if first.privacy.private else [])],
    )


def _privacy_rows(runs: Sequence[Result]) -> list[Row]:
    """Return the privacy loss of the run with the largest ε."""
    report = max((run.privacy for run in runs), key=lambda report: report.epsilon)
    has_paper = not math.isnan(report.paper_epsilon)
    accountant = "exact" if has_paper else report.accountant
    rows: list[Row] = [
        (f"total ε{' of each run' if len(runs) > 1 else ''}, {accountant}", number_range(report.epsilon_by_agent)),
        *_aggregation_rows(report),
    ]
    if has_paper:
        rows.append(("total ε, paper's moments bound", epsilon_text(report.paper_epsilon)))
    rows.append(("δ", f"{report.delta:g}"))
    if not any(map(math.isnan, report.noise_multiplier)):
        rows.append(("noise multiplier z", number_range(report.noise_multiplier)))
    return rows


def _aggregation_rows(report: PrivacyReport) -> list[Row]:
    """Return the honest agents that secure aggregation assumes, and ε if all others collude."""
    if report.min_honest_sites is None:
        return []
    return [
        (f"  with at least {report.min_honest_sites} honest agents", ""),
        ("  if all others collude", rounded_up(report.epsilon_if_others_collude)),
    ]
