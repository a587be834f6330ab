"""``dpadmm compare``: methods × budgets × agents × seeds on one data set, at equal privacy."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from dpadmm.baselines import ALL_METHODS, METHOD_TITLES
from dpadmm.cli import InterruptedRunError
from dpadmm.cli.console import AsJson, CtrlC, progress_bar, show
from dpadmm.cli.simulate_options import (
    ASSIGNMENTS,
    RUN_OPTIONS,
    about_study,
    add_options,
    check_owners,
    merge_settings,
    numbers,
    open_dataset,
    open_study,
    parameters,
    read_assignments,
)
from dpadmm.data import Dataset
from dpadmm.errors import StudyError
from dpadmm.methods.prior import Prior
from dpadmm.parameters.fields import nearest
from dpadmm.parameters.fields import parameters as parameters_of
from dpadmm.studies import settings as of_runs
from dpadmm.studies.settings import Settings, settings_from
from dpadmm.studies.study import Study
from dpadmm.training.compare import DONE, ComparisonRow
from dpadmm.training.compare import compare as run_comparison
from dpadmm.training.comparison import Comparison, describe_reason
from dpadmm.training.run_folder import check_folder, write_text
from dpadmm.training.simulate import settings_of

COMPARED = "auto,dp_admm,dp_sgd,admm_pvp"
COMPARABLE = ", ".join(name for name in ALL_METHODS if name != "centralized")
NOT_PRIVATE = tuple(name for name, method in ALL_METHODS.items() if not method.private)
LOCAL = {"aggregation": "plain", "min_honest_sites": None, "aborted_rounds": 0.0}
MAX_RUNS = 20_000
_OWN = ("method", "n_agents", *of_runs.BUDGETS, "seed", "repeats", "output", "metrics_every")
"""Options of simulate that compare redefines."""

Run = Mapping[str, Any]
"""Settings of a block of runs; a list means one run for each of its values."""


def compare(
    methods: str = Option(
        COMPARED,
        "--methods",
        "-m",
        help=f"Comma-separated list: {COMPARABLE}. The non-private optimum is always added.",
    ),
    epsilon: str | None = Option(
        None, "--epsilon", "-e", help="Total ε, the same for all methods; one or several: 0.5,1"
    ),
    round_epsilon: str | None = Option(
        None, help="ε per round, the same for all methods, as in the paper; one or several."
    ),
    agents: str | None = Option(
        None, "--agents", "-n", help="Number of agents, one or several: 10,100", show_default="10"
    ),
    repeats: int = Option(3, help="Random splits of each run."),
    seed: int = Option(1, help="Seed of the first split."),
    metrics_every: int = Option(5, help="Evaluate every N rounds."),
    workers: Annotated[int | None, Option(help="Processes, one core each.", show_default="all cores")] = None,
    output: Path | None = Option(None, "--output", "-o", help="Folder for the table (JSON) and the figure."),
    overwrite: bool = Option(False, "--overwrite", help="Write to a folder that is not empty."),
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Compare methods at the same ε.

    With STUDY, compare its method with others on a table (--data), at the total
    ε and δ of the study.
    """
    for name, count in (("repeats", repeats), ("workers", workers), ("metrics_every", metrics_every)):
        if count is not None and count < 1:
            words = "at least 1" if name == "metrics_every" else "a whole number of at least 1"
            raise StudyError(f"{name} must be {words}, not {count}")
    given = {name: value for name, value in options.items() if value is not None}
    given = merge_settings(given, read_assignments(given.pop(ASSIGNMENTS, [])))
    own = given.pop("method", {})
    about = {name: given.pop(name) for name in list(given) if name in RUN_OPTIONS}
    check_owners(about, given)
    shared = {**given, "metrics_every": metrics_every}
    (study, prior), named, masked = open_study(about), _names(methods), {}
    if agents is not None and "by" in about:
        raise StudyError("--by defines the agents; leave --agents out")
    counts = list(dict.fromkeys(numbers("agents", agents or "10", int, "whole numbers")))
    agents_of = {} if "by" in about else {"n_agents": counts}
    blocks: Sequence[Run]
    if study is None:
        masked = _of_sums(named, shared)
        budgets = _budgets(named, epsilon=epsilon, round_epsilon=round_epsilon)
        entries = _entries(["centralized", *named], own)
        _check(entries, budgets, counts, shared, masked)
        blocks = _runs(entries, budgets, agents_of, masked)
    else:
        budget = {"epsilon": epsilon, "round_epsilon": round_epsilon}
        base = settings_of(study, shared | {name: value for name, value in budget.items() if value is not None})
        named = list(dict.fromkeys([study.training.method.name, *named]))
        if own:
            raise StudyError("the study sets the parameters of its method; leave --set method out")
        blocks, shared = _runs_of_study(study, base, named, shared, agents_of), {}
    if output:
        check_folder(output, overwrite=overwrite)
    runs = list(_settings(blocks, shared, range(seed, seed + repeats)))
    first = runs[0]
    dataset = open_dataset(about, first, study)
    rows = _run(dataset, runs, prior=prior, workers=workers, quiet=as_json)
    asked = [row for row in rows if row.method != "centralized"]
    if asked and all(row.status != DONE for row in asked):
        reasons = dict.fromkeys(describe_reason(row) for row in asked)
        raise StudyError(f"none of these methods applies; {'; '.join(reasons)}")
    comparison = Comparison(
        dataset={"name": dataset.name, "rows": dataset.n_rows, "features": dataset.n_features},
        settings=first,
        rows=rows,
        data={
            **({"study": {"name": study.name, "hash": study.hash}} if study else {}),
            "settings": {**shared, **masked, "delta": first.delta, "n_rounds": first.n_rounds, "loss": first.loss.name},
            "seeds": [seed + k for k in range(repeats)],
        },
    )
    written = _write(output, comparison) if output else []
    files = [f"{'Results' if path.suffix == '.json' else 'Figure'}: {path}" for path in written[:2]]
    rendering = comparison.rendering().extend(notes=about_study(study, prior), next_steps=files)
    show(rendering.extend(data={"files": [str(path) for path in written]}), as_json=as_json)


add_options(compare, [each for each in parameters() if each.name not in _OWN])


def _run(
    dataset: Dataset, runs: Sequence[Settings], *, prior: Prior | None, workers: int | None, quiet: bool
) -> list[ComparisonRow]:
    """Run everything, with a progress bar."""
    with progress_bar(quiet=quiet) as bar, CtrlC() as ctrl_c:
        task, done = bar.add_task("running", total=len(runs)), 0

        def watch(finished: int) -> None:
            nonlocal done
            done = finished
            bar.update(task, completed=finished)

        rows = run_comparison(dataset, runs, prior=prior, workers=workers, watch=watch, stop=lambda: ctrl_c.pressed)
    if done < len(runs):
        raise InterruptedRunError(f"interrupted with {done} of {len(runs)} runs finished")
    return rows


def _write(folder: Path, comparison: Comparison) -> list[Path]:
    """Write the results as JSON, and the figure."""
    from dpadmm.figures.comparison import comparison_figure  # slow: imports matplotlib
    from dpadmm.figures.style import save_figure

    groups: dict[str, list[ComparisonRow]] = {}
    for row in sorted(comparison.rows, key=lambda row: [*METHOD_TITLES].index(row.method)):
        aggregation = "" if row.min_honest_sites is None else f", secure aggregation, h = {row.min_honest_sites}"
        groups.setdefault(f"{METHOD_TITLES[row.method]}{aggregation}", []).append(row)
    path = folder / "comparison.json"
    write_text(path, json.dumps(comparison.to_dict(), indent=2, allow_nan=False))
    figure = comparison_figure(groups, regression=comparison.settings.loss.task == "regression")
    return [path, *save_figure(figure, folder / "comparison")]


def _settings(blocks: Sequence[Run], shared: Mapping[str, Any], seeds: Sequence[int]) -> Iterator[Settings]:
    """Yield the runs of all blocks: the product of their lists, seeds innermost."""
    lists = [{name: each if isinstance(each, list) else [each] for name, each in block.items()} for block in blocks]
    n_runs = sum(len(seeds) * math.prod(map(len, block.values())) for block in lists)
    if n_runs > MAX_RUNS:
        raise StudyError(f"a comparison has at most {MAX_RUNS:,} runs, not {n_runs:,}")
    for block in lists:
        for values in product(*block.values(), seeds):
            yield Settings(**{**shared, **dict(zip([*block, "seed"], values, strict=True))})


def _names(text: str) -> list[str]:
    names = dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise StudyError(f"methods must be a comma-separated list such as {COMPARED}, not {text!r}")
    if not (others := [name for name in names if name != "centralized"]):
        raise StudyError(
            f"the non-private optimum is always included; name at least one other method, such as {COMPARED}"
        )
    return others


def _of_sums(names: list[str], shared: dict[str, Any]) -> dict[str, Any]:
    """Remove the settings of secure aggregation from ``shared`` and return them.

    Every method also runs with local noise, and some run only with local noise.
    """
    if shared.get("aggregation") != "secure":
        return {}
    if not any(_sums_only(name) for name in names):
        methods = ", ".join(filter(_sums_only, ALL_METHODS))
        raise StudyError(f"none of these methods supports secure aggregation; add one of: {methods}")
    return {name: shared.pop(name) for name in ("aggregation", "min_honest_sites", "aborted_rounds") if name in shared}


def _sums_only(name: str) -> bool:
    return name in ALL_METHODS and ALL_METHODS[name].sums_only


def _budgets(names: list[str], **asked: str | None) -> dict[str, list[float]]:
    """Return ``{"epsilon": [0.5, 1.0]}`` or ``{"round_epsilon": [...]}``; empty if no method is private."""
    given = {name: list(dict.fromkeys(numbers(name, text))) for name, text in asked.items() if text is not None}
    private = any(name not in NOT_PRIVATE for name in names)
    if len(given) != 1 and (private or given):
        raise StudyError("--epsilon (totals) or --round-epsilon is required")
    return given


def _entries(names: list[str], own: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the methods by name, each with those of the given parameters that it has."""
    has = {name: {each.name for each in parameters_of(ALL_METHODS[name])} for name in names if name in ALL_METHODS}
    for key in own:
        if not any(key in keys for keys in has.values()):
            known = dict.fromkeys(parameter for keys in has.values() for parameter in sorted(keys))
            raise StudyError(f"--set: no compared method has a parameter {key!r}; {nearest(key, known)}")
    return {name: {"name": name, **{k: own[k] for k in own if k in has.get(name, ())}} for name in names}


def _check(
    methods: Mapping[str, dict[str, Any]],
    budgets: Mapping[str, list[float]],
    counts: list[int],
    shared: Mapping[str, Any],
    masked: Mapping[str, Any],
) -> None:
    """Check all settings, so that errors name the options."""
    first = settings_from({**shared, "method": methods["centralized"]}, "options")
    pairs = [(budget, value) for budget, values in budgets.items() for value in values]
    for name, method in methods.items():
        for budget, value in [("epsilon", None)] if name in NOT_PRIVATE else pairs:
            settings_from({**shared, "method": method, budget: value}, "options")
            if masked and _sums_only(name):
                settings_from({**shared, **masked, "method": method, budget: value}, "options")
    for count in counts:
        replace(first, n_agents=count)


def _runs(
    methods: Mapping[str, dict[str, Any]],
    budgets: Mapping[str, list[float]],
    agents: Mapping[str, list[int]],
    masked: Mapping[str, Any],
) -> list[dict[str, Any]]:
    private = [method for name, method in methods.items() if name not in NOT_PRIVATE]
    others = [method for name, method in methods.items() if name in NOT_PRIVATE and name != "centralized"]
    optimum = {"method": methods["centralized"], **{name: counts[:1] for name, counts in agents.items()}}
    of_sums = [method for method in private if masked and _sums_only(method["name"])]
    runs = [{"method": private, **agents, **budgets}, {"method": others, **agents}]
    runs.append({"method": of_sums, **agents, **budgets, **masked})
    return [optimum, *(run for run in runs if run["method"])]


def _runs_of_study(
    study: Study, base: Settings, names: list[str], given: Mapping[str, Any], agents: Mapping[str, list[int]]
) -> list[dict[str, Any]]:
    """Return the optimum and every method, with the settings of the study at its total ε.

    If the study uses secure aggregation, methods that support it run both ways. ``auto`` does not run again if it
    selects the method of the study.
    """
    runs = []
    distinct: list[Settings] = []
    aggregations = [(name, LOCAL) for name in ("centralized", *names)]
    aggregations += [(name, {}) for name in names if study.training.min_honest_sites is not None and _sums_only(name)]
    for name, aggregation in aggregations:
        changes = {**given, **dict.fromkeys(of_runs.BUDGETS), "method": name, **aggregation}
        if name == study.training.method.name:
            del changes["method"]  # keeps its own parameters
        if name not in NOT_PRIVATE:
            changes["epsilon"] = study.epsilon
        settings = base.with_changes(**changes)
        if settings.concrete() in distinct:
            continue
        distinct.append(settings.concrete())
        values = {key: value for key, value in settings.to_dict().items() if value is not None}
        counts = {key: each[:1] if name == "centralized" else each for key, each in agents.items()}
        runs.append({key: values[key] for key in values if key != "n_agents"} | counts)
    return runs
