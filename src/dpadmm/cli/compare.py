"""``dpadmm compare``: methods × budgets × agents × seeds on one data set, at equal privacy."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.text import Text
from typer import Option

from dpadmm.baselines import ALL_METHODS, METHOD_TITLES, ONE_MODEL
from dpadmm.cli.console import (
    AsJson,
    CtrlC,
    InterruptedRunError,
    console_width,
    echo,
    echo_json,
    echo_path,
    epsilon_text,
    mean_and_spread,
    progress_bar,
    show_table,
)
from dpadmm.cli.console import Row as TableRow
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
from dpadmm.errors import DIVERGED, StudyError
from dpadmm.losses import LOSSES
from dpadmm.methods.prior import Prior
from dpadmm.parameters.fields import nearest
from dpadmm.parameters.fields import parameters as parameters_of
from dpadmm.studies import settings as of_runs
from dpadmm.studies.settings import Settings, settings_from
from dpadmm.studies.study import Study
from dpadmm.training.compare import DONE, REFUSED, ComparisonRow
from dpadmm.training.compare import compare as run_comparison
from dpadmm.training.run_folder import check_folder, write_text
from dpadmm.training.simulate import settings_of

COMPARED = "auto,dp_admm,dp_sgd,admm_pvp"
NOT_PRIVATE = tuple(name for name, method in ALL_METHODS.items() if not method.private)
BUDGETS = {"epsilon": "total ε = {:g}", "round_epsilon": "ε = {:g} per round"}
LOCAL = {"aggregation": "plain", "min_honest_sites": None, "aborted_rounds": 0.0}
MAX_RUNS = 20_000
_OWN = ("method", "n_agents", *of_runs.BUDGETS, "seed", "repeats", "output", "metrics_every")
"""Options of simulate that compare defines differently."""

Run = Mapping[str, Any]
"""Settings of a block of runs; a list means one run for each of its values."""


def compare(
    methods: str = Option(
        COMPARED,
        "--methods",
        "-m",
        help="Names with commas between: auto, dp_admm, admm, admm_pvp, admm_dvp, dp_sgd, output_perturbation, "
        "objective_perturbation. The non-private optimum is always added.",
    ),
    epsilon: str | None = Option(
        None, "--epsilon", "-e", help="TOTAL ε, the same for all methods, exact; one or several: 0.5,1"
    ),
    round_epsilon: str | None = Option(
        None, help="ε per ROUND, the same for all methods, as in the paper; one or several."
    ),
    agents: str | None = Option(
        None, "--agents", "-n", help="Number of agents, one or several: 10,100", show_default="10"
    ),
    repeats: int = Option(3, help="Random splits of each run."),
    seed: int = Option(1, help="Seed of the first split."),
    metrics_every: int = Option(5, help="Measure every this many rounds."),
    workers: Annotated[int | None, Option(help="Processes, one core each.", show_default="all cores")] = None,
    output: Path | None = Option(None, "--output", "-o", help="Folder for the table (JSON) and the figure."),
    overwrite: bool = Option(False, "--overwrite", help="Write into a folder that is not empty."),
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Compare methods at the same ε.

    With a STUDY, its method and others run on a table (--data), all at the study's total ε and δ.
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
        reasons = dict.fromkeys(said(row) for row in asked)
        raise StudyError(f"none of these methods applies; {'; '.join(reasons)}")
    answer = {
        "data": {"name": dataset.name, "rows": dataset.n_rows, "features": dataset.n_features},
        **({"study": {"name": study.name, "hash": study.hash}} if study else {}),
        "settings": {**shared, **masked, "delta": first.delta, "n_rounds": first.n_rounds, "loss": first.loss.name},
        "seeds": [seed + k for k in range(repeats)],
        "rows": [row.to_dict() for row in rows],
    }
    written = _write(output, answer, rows, first) if output else []
    if as_json:
        echo_json({**answer, "files": [str(path) for path in written]})
    else:
        show(dataset, first, rows)
        echo(*about_study(study, prior), style="dim")
        for path in written[:2]:
            echo_path(f"{'Results' if path.suffix == '.json' else 'Figure'}: {path}")


add_options(compare, [each for each in parameters() if each.name not in _OWN])


def _run(
    dataset: Dataset, runs: Sequence[Settings], *, prior: Prior | None, workers: int | None, quiet: bool
) -> list[ComparisonRow]:
    """Run everything with a progress bar."""
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


def _write(folder: Path, answer: Mapping[str, Any], rows: Sequence[ComparisonRow], first: Settings) -> list[Path]:
    """Write the table as JSON and the figure."""
    from dpadmm.figures.comparison import comparison_figure  # matplotlib takes its time
    from dpadmm.figures.style import save_figure

    groups: dict[str, list[ComparisonRow]] = {}
    for row in sorted(rows, key=lambda row: [*METHOD_TITLES].index(row.method)):
        aggregation = "" if row.min_honest_sites is None else f", secure aggregation, h = {row.min_honest_sites}"
        groups.setdefault(f"{METHOD_TITLES[row.method]}{aggregation}", []).append(row)
    path = folder / "comparison.json"
    write_text(path, json.dumps(answer, indent=2, allow_nan=False))
    figure = comparison_figure(groups, regression=first.loss.task == "regression")
    return [path, *save_figure(figure, folder / "comparison")]


def _settings(blocks: Sequence[Run], shared: Mapping[str, Any], seeds: Sequence[int]) -> Iterator[Settings]:
    """The runs of all blocks: their lists crossed, seeds innermost."""
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
        raise StudyError(f"methods must be names with commas between, such as {COMPARED}, not {text!r}")
    if not (others := [name for name in names if name != "centralized"]):
        raise StudyError(
            f"the non-private optimum is always there; name at least one method to compare with it, such as {COMPARED}"
        )
    return others


def _of_sums(names: list[str], shared: dict[str, Any]) -> dict[str, Any]:
    """Remove the settings of secure aggregation from ``shared`` and return them.

    Every method also runs with local noise, and some run only with local noise.
    """
    if shared.get("aggregation") != "secure":
        return {}
    if not any(_sums_only(name) for name in names):
        able = ", ".join(filter(_sums_only, ALL_METHODS))
        raise StudyError(f"with secure aggregation only the sum of all answers is seen; add a method for that: {able}")
    return {name: shared.pop(name) for name in ("aggregation", "min_honest_sites", "aborted_rounds") if name in shared}


def _sums_only(name: str) -> bool:
    return name in ALL_METHODS and ALL_METHODS[name].sums_only


def _budgets(names: list[str], **asked: str | None) -> dict[str, list[float]]:
    """``{"epsilon": [0.5, 1.0]}`` or ``{"round_epsilon": [...]}``; nothing where no method is private."""
    given = {name: list(dict.fromkeys(numbers(name, text))) for name, text in asked.items() if text is not None}
    private = any(name not in NOT_PRIVATE for name in names)
    if len(given) != 1 and (private or given):
        raise StudyError("give the privacy to compare at: either --epsilon (totals) or --round-epsilon")
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
    """The optimum and every method, with the study's settings at its total ε; the rest is usual for the method.

    In a study with secure aggregation, methods that can have it run both ways, the others with local noise.
    """
    runs = []
    aggregations = [(name, LOCAL) for name in ("centralized", *names)]
    aggregations += [(name, {}) for name in names if study.training.min_honest_sites is not None and _sums_only(name)]
    for name, aggregation in aggregations:
        changes = {**given, **dict.fromkeys(of_runs.BUDGETS), "method": name, **aggregation}
        if name == study.training.method.name:
            del changes["method"]  # with its own parameters
        if name not in NOT_PRIVATE:
            changes["epsilon"] = study.epsilon
        said = {key: value for key, value in base.with_changes(**changes).to_dict().items() if value is not None}
        counts = {key: each[:1] if name == "centralized" else each for key, each in agents.items()}
        runs.append({key: said[key] for key in said if key != "n_agents"} | counts)
    return runs


def said(row: ComparisonRow) -> str:
    """Why a method does not apply, or its warning, with its name."""
    reason = row.reason or ""
    return reason if reason.startswith(row.method) else f"{row.method}: {reason}"


def _aggregation(row: ComparisonRow) -> str:
    """``local``, ``h = 5``, or nothing for a method without privacy."""
    return "" if row.budget is None else "plain" if row.min_honest_sites is None else f"h = {row.min_honest_sites}"


def show(dataset: Dataset, first: Settings, rows: Sequence[ComparisonRow]) -> None:
    """One table per number of agents and budget, each with the optimum."""
    _say_head(
        dataset.name,
        f"{dataset.n_rows} rows × {dataset.n_features} features",
        f"{first.loss.name} loss",
        f"{first.regularizer.name} regularizer",
        f"{first.n_rounds} rounds",
        f"δ = {first.delta:g}",
    )
    floor = [row for row in rows if row.method == "centralized"]
    asked = [row for row in rows if row.method != "centralized"]
    free = [row for row in asked if row.budget is None]
    private = [row for row in asked if row.budget is not None]
    for (n_agents, _), group in groupby(private or free, key=lambda row: (row.n_agents, row.asked)):
        members = list(group)
        beside = [row for row in free if row.n_agents == n_agents and row not in members]
        _show_group([*floor, *beside, *members], first.loss.name)
    echo(*dict.fromkeys(said(row) for row in rows if row.reason))
    echo(_explained(rows), style="dim")


def _say_head(name: str, *parts: str) -> None:
    """``name: part, part``, wrapped between parts only; rich also breaks at no-break spaces."""
    whole, width = ", ".join(part.replace(" ", "\u00a0") for part in parts), console_width()
    lines = textwrap.wrap(f"{name}: {whole}", width, break_long_words=False, break_on_hyphens=False)
    echo(*(line.replace("\u00a0", " ") for line in lines))


def _show_group(rows: Sequence[ComparisonRow], loss: str) -> None:
    named, error = rows[-1], {"regression": "RMS error", "count": "half deviance"}.get(LOSSES[loss].task, "error")
    where = "test" if any("test_error_global" in row.values for row in rows) else "train"
    kind = "test" if where == "test" else "training"
    what = f"{kind} {error}"
    words: dict[str, str | Text] = {
        "error_global": what,
        "error_local": Text(f"{what},\nlocal models"),
        "loss_global": f"{kind} loss",
    }
    shown = [stem for stem in words if any(_has(row, f"{where}_{stem}") for row in rows)]
    both = any(row.min_honest_sites is not None for row in rows)
    lines: list[TableRow] = []
    for row in rows:
        aggregation = (_aggregation(row),) if both else ()
        if row.status == REFUSED:
            word = "diverged" if row.reason and DIVERGED in row.reason else "does not apply"
            lines.append((METHOD_TITLES[row.method], *aggregation, word))
            continue
        cells = [
            mean_and_spread(name, row.values[name], is_rate=error == "error") if _has(row, name) else "–"
            for name in (f"{where}_{stem}" for stem in shown)
        ]
        total = "" if row.total_epsilon is None else epsilon_text(row.total_epsilon)
        lines.append((METHOD_TITLES[row.method], *aggregation, *cells, total, f"{np.mean(row.values['seconds']):.2f}"))
    agents = "one agent" if named.n_agents == 1 else f"{named.n_agents} agents"
    budget = f", {BUDGETS[named.budget].format(named.asked)}" if named.budget else ""
    alone = next(
        (
            f"; h = {row.min_honest_sites}: {epsilon_text(row.epsilon_if_others_collude)}"
            for row in rows
            if row.epsilon_if_others_collude
        ),
        "",
    )
    echo("", f"{agents}{budget}{alone and f'{alone} if all others work together'}", style="bold")
    headings = ("", *(["aggregation"] if both else []), *(words[stem] for stem in shown), "total ε", "s")
    show_table(headings, lines, first_width=13, collapse_padding=True)


def _has(row: ComparisonRow, name: str) -> bool:
    """Whether a measure is there and is not a repetition of the global model's."""
    return name in row.values and not (name.endswith("_local") and row.method in ONE_MODEL)


def _explained(rows: Sequence[ComparisonRow]) -> str:
    n_runs = max((len(row.values["seconds"]) for row in rows if row.values), default=0)
    noisy = [row for row in rows if row.status == DONE and row.budget is not None]
    either = any(row.method == "admm" for row in rows)
    local = any(_has(row, "test_error_local") for row in rows)
    min_honest_sites = max((row.min_honest_sites or 0 for row in rows), default=0)
    by = "; ".join(dict.fromkeys(row.accountant for row in noisy if row.accountant))
    sentences = {
        f"The optimum uses all rows without privacy{'; ADMM has no privacy either' if either else ''}.": True,
        "Local models are each agent's own, on the test rows; – where a method has none.": local,
        f"Local: an agent relies on nobody. h = {min_honest_sites}: secure aggregation; total ε holds if "
        f"at least {min_honest_sites} agents of every round are honest. "
        "Methods that need the answer of every agent alone use plain aggregation.": min_honest_sites,
        f"± is the standard deviation over {n_runs} random splits.": n_runs > 1,
        f"Total ε is exact for plain Gaussian noise and otherwise a bound that holds, by the accountant ({by}).": noisy,
        "Seconds are the time in rounds, one core each.": True,
        "The noise is simulated: an experiment, no protection.": noisy,
    }
    return " ".join(sentence for sentence, applies in sentences.items() if applies)
