"""``dpadmm compare``: methods × budgets × agents × seeds on any data, at equal privacy."""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dpadmm._base.errors import StudyError
from dpadmm.cli.comparison_table import Row, as_json_rows, rows_of, said, show
from dpadmm.cli.data_options import open_dataset
from dpadmm.cli.grid_run import RESULTS, check_results_folder, run_with_progress
from dpadmm.cli.screen import say_path
from dpadmm.cli.signature import add_options
from dpadmm.cli.simulate_options import RUN_OPTIONS, parameters
from dpadmm.experiments.grid import Grid, grid_from
from dpadmm.experiments.results import DONE, Results
from dpadmm.study.settings import BUDGETS, Settings, settings_from
from dpadmm.training.methods import METHODS as REGISTERED

METHODS = "dp_admm,dp_sgd,admm_pvp"
NOT_PRIVATE = tuple(name for name, method in REGISTERED.items() if not method.private)
EXPERIMENT = "comparison"
_OWN = ("method", "n_agents", *BUDGETS, "seed", "repeats", "output", "metrics_every")
"""Options of simulate that compare defines differently."""


def compare_command(
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            "-m",
            help="Names with commas between: dp_admm, admm, admm_pvp, admm_dvp, dp_sgd, output_perturbation, "
            "objective_perturbation. The non-private optimum is always added.",
        ),
    ] = METHODS,
    epsilon: Annotated[
        str | None,
        typer.Option(
            "--epsilon",
            "-e",
            help="TOTAL ε, the same for all methods, exact; one or several: 0.5,1",
            show_default=False,
        ),
    ] = None,
    round_epsilon: Annotated[
        str | None,
        typer.Option(
            "--round-epsilon",
            help="ε per ROUND, the same for all methods, as in the paper; one or several.",
            show_default=False,
        ),
    ] = None,
    agents: Annotated[
        str | None,
        typer.Option("--agents", "-n", help="Number of agents, one or several: 10,100", show_default="10"),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", help="Random splits of each run.")] = 3,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the first split.")] = 1,
    metrics_every: Annotated[int, typer.Option("--metrics-every", help="Measure every so many rounds.")] = 5,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Processes, one core each.", show_default="all cores")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the results file and the figure.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start again where the folder has other results.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    **options: Any,
) -> None:
    """Compare methods at equal privacy: what does each reach, and what does it cost?"""
    given = {name: value for name, value in options.items() if value is not None}
    about = {name: given.pop(name) for name in list(given) if name in RUN_OPTIONS}
    if "by" in about and given.setdefault("partition", "groups") != "groups":
        raise StudyError("by says who owns a row, so partition cannot be another; leave one of them out")
    shared = {**given, "metrics_every": metrics_every}
    named = _names(methods)
    budgets = _budgets(named, epsilon=epsilon, round_epsilon=round_epsilon)
    counts = _agents(agents, about)
    first = _checked(named, budgets, counts, shared)
    if output:
        check_results_folder(output, overwrite=overwrite)
    top = {"repeats": repeats, "first_seed": seed, "shared": shared}
    grid = _grid(about, named, budgets, counts, top)
    dataset = open_dataset(about, first)
    with nullcontext(output) if output else tempfile.TemporaryDirectory() as folder:
        results = run_with_progress(
            grid,
            dataset,
            Path(folder),
            workers=workers,
            overwrite=overwrite,
            quiet=as_json,
            kept=output is not None,
        )
    rows = rows_of(results)
    _refuse_nothing(rows)
    written = [output / RESULTS, *_draw(results, output)] if output else []
    if as_json:
        out = {
            "data": results.meta["data"],
            "settings": {**shared, "delta": first.delta, "n_rounds": first.n_rounds, "loss": first.loss.name},
            "seeds": [seed + k for k in range(repeats)],
            "rows": as_json_rows(rows),
            "files": [str(path) for path in written],
        }
        typer.echo(json.dumps(out, indent=2, allow_nan=False))
    else:
        console = Console()
        show(console, dataset, results, rows)
        for path in written[:2]:
            say_path(console, f"{'Results' if path.suffix == '.parquet' else 'Figure'}: {path}")


def _options() -> list[inspect.Parameter]:
    return [each for each in parameters() if each.name not in _OWN]


add_options(compare_command, _options())


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise StudyError(f"methods must be names with commas between, such as {METHODS}, not {text!r}")
    others = list(dict.fromkeys(name for name in names if name != "centralized"))
    if not others:
        raise StudyError(
            "the non-private optimum is always there; name at least one method to compare with it, "
            f"such as {METHODS}"
        )
    return others


def _budgets(names: list[str], *, epsilon: str | None, round_epsilon: str | None) -> dict[str, list[float]]:
    """``{"epsilon": [0.5, 1.0]}`` or ``{"round_epsilon": [...]}``; nothing where no method is private."""
    given = {
        name: _numbers(name, text)
        for name, text in (("epsilon", epsilon), ("round_epsilon", round_epsilon))
        if text is not None
    }
    private = any(name not in NOT_PRIVATE for name in names)
    if len(given) != 1 and (private or given):
        raise StudyError("give the privacy to compare at: either --epsilon (totals) or --round-epsilon")
    return given


def _numbers(name: str, text: str) -> list[float]:
    try:
        return list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise StudyError(f"{name} must be numbers with commas between, not {text!r}") from None


def _agents(text: str | None, about: Mapping[str, Any]) -> list[int]:
    if text is not None and "by" in about:
        raise StudyError("by says who the agents are; leave --agents out")
    try:
        return list(dict.fromkeys(int(part) for part in (text or "10").split(",")))
    except ValueError:
        raise StudyError(f"agents must be whole numbers with commas between, not {text!r}") from None


def _checked(
    names: list[str], budgets: Mapping[str, list[float]], counts: list[int], shared: Mapping[str, Any]
) -> Settings:
    """The first settings, after checking all of them, so that errors name the options."""
    first = settings_from({**shared, "method": "centralized"}, "options")
    pairs = [(budget, value) for budget, values in budgets.items() for value in values]
    for name in names:
        for budget, value in [("epsilon", None)] if name in NOT_PRIVATE else pairs:
            settings_from({**shared, "method": name, budget: value}, "options")
    for count in counts:
        replace(first, n_agents=count)
    return first


def _grid(
    about: Mapping[str, Any],
    names: list[str],
    budgets: Mapping[str, list[float]],
    counts: list[int],
    top: Mapping[str, Any],
) -> Grid:
    private = [name for name in names if name not in NOT_PRIVATE]
    others = [name for name in names if name in NOT_PRIVATE]
    agents: dict[str, list[int]] = {} if "by" in about else {"n_agents": counts}
    runs: list[dict[str, Any]] = [{"method": "centralized", **{k: v[:1] for k, v in agents.items()}}]
    if private:
        runs.append({"method": private, **agents, **budgets})
    if others:
        runs.append({"method": others, **agents})
    title = f"{', '.join(names)} on {Path(about.get('data', '')).name}"
    return grid_from(
        {
            "title": title,
            **{name: value for name, value in about.items() if name in ("data", "label", "classes", "by")},
            **top,
            "experiments": {EXPERIMENT: {"title": title, "runs": runs}},
        },
        "compare",
    )


def _refuse_nothing(rows: list[Row]) -> None:
    asked = [row for row in rows if row.method != "centralized"]
    if asked and all(row.status != DONE for row in asked):
        reasons = dict.fromkeys(said(row) for row in asked)
        raise StudyError(f"none of these methods applies; {'; '.join(reasons)}")


def _draw(results: Results, folder: Path) -> list[Path]:
    from dpadmm.reporting.figures import comparison_figure, save_figure  # matplotlib takes its time

    return save_figure(comparison_figure(results), folder / "comparison")
