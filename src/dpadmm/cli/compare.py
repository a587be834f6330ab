"""``dpadmm compare``: methods × budgets × agents × seeds on any data, at equal privacy."""

from __future__ import annotations

import math
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text
from typer import Option

from dpadmm.accounting.calibration import total_noise_multiplier
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.baselines import ALL_METHODS
from dpadmm.cli import reproduce
from dpadmm.cli.console import (
    AsJson,
    console_width,
    echo,
    echo_json,
    echo_path,
    epsilon_text,
    mean_and_spread,
    show_table,
)
from dpadmm.cli.console import Row as TableRow
from dpadmm.cli.reproduce import RESULTS, Restart, Scheduler, Workers
from dpadmm.cli.simulate_options import (
    RUN_OPTIONS,
    about_study,
    add_options,
    check_owners,
    check_used,
    numbers,
    open_dataset,
    open_study,
    parameters,
)
from dpadmm.data import Dataset
from dpadmm.engine.metrics import spread
from dpadmm.errors import DIVERGED, StudyError
from dpadmm.experiments.grid import DATA_KEYS, grid_from
from dpadmm.experiments.results import DONE, MEASURES, REFUSED, Results
from dpadmm.losses import LOSSES
from dpadmm.reporting.series import METHODS, ONE_MODEL
from dpadmm.studies import settings as of_runs
from dpadmm.studies.settings import Settings, settings_from
from dpadmm.studies.study import Study
from dpadmm.training.simulate import settings_of

COMPARED = "auto,dp_admm,dp_sgd,admm_pvp"
NOT_PRIVATE = tuple(name for name, method in ALL_METHODS.items() if not method.private)
BUDGETS = {"epsilon": "total ε = {:g}", "round_epsilon": "ε = {:g} per round"}
EXPERIMENT = "comparison"
LOCAL = {"trust": "local", "honest": None, "void_rounds": 0.0}
_OWN = ("method", "n_agents", *of_runs.BUDGETS, "seed", "repeats", "output", "metrics_every")
"""Options of simulate that compare defines differently."""


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
    repeats: int | None = Option(None, help="Random splits of each run.", show_default="3; of a suite 10"),
    seed: int = Option(1, help="Seed of the first split."),
    metrics_every: int = Option(5, help="Measure every this many rounds."),
    workers: Workers = None,
    scheduler: Scheduler = None,
    output: Path | None = Option(None, "--output", "-o", help="Folder for the results file and the figure."),
    overwrite: Restart = False,
    suite: str | None = Option(None, help="accuracy: auto beside all methods on 30 data sets, with a page; hours."),
    quick: bool = Option(False, "--quick", help="Of a suite: small data sets, one ε, 3 splits."),
    only: str | None = Option(None, help="Of a suite: make the runs of these methods again: auto"),
    sets: str | None = Option(None, help="Of a suite: these data sets: adult,flights"),
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Compare methods at the same ε.

    With a STUDY, its method beside others on a table (--data), all at the study's total ε and δ.
    """
    if suite is not None:
        from dpadmm.cli.accuracy import run_suite  # loads tables

        _refuse_beside_suite(options, methods=methods, epsilon=epsilon, round_epsilon=round_epsilon, agents=agents)
        run_suite(
            suite,
            output or Path("runs") / suite,
            quick=quick,
            repeats=repeats,
            only=only,
            sets=sets,
            workers=workers,
            scheduler=scheduler,
            overwrite=overwrite,
            as_json=as_json,
        )
        return
    if quick or only or sets:
        raise StudyError("--quick, --only and --sets are of a suite; add --suite accuracy")
    repeats = 3 if repeats is None else repeats
    given = {name: value for name, value in options.items() if value is not None}
    about = {name: given.pop(name) for name in list(given) if name in RUN_OPTIONS}
    check_owners(about, given)
    shared = {**given, "metrics_every": metrics_every}
    (study, prior), named, masked = open_study(about), _names(methods), {}
    if agents is not None and "by" in about:
        raise StudyError("by says who the agents are; leave --agents out")
    counts = list(dict.fromkeys(numbers("agents", agents or "10", int, "whole numbers")))
    agents_of = {} if "by" in about else {"n_agents": counts}
    if study is None:
        masked = _of_sums(named, shared)
        budgets = _budgets(named, epsilon=epsilon, round_epsilon=round_epsilon)
        _check(named, budgets, counts, shared, masked)
        runs = _runs(named, budgets, agents_of, masked)
    else:
        budget = {"epsilon": epsilon, "round_epsilon": round_epsilon}
        base = settings_of(study, shared | {name: value for name, value in budget.items() if value is not None})
        named = list(dict.fromkeys([study.training.method.name, *named]))
        runs, shared = _runs_of_study(study, base, named, shared, agents_of), {}
    if output:
        reproduce.check_results_folder(output, overwrite=overwrite)
    title = f"{', '.join(named)} on {Path(about.get('data', '')).name}"
    title += f", study {study.hash[:12]}" if study else ""  # another study's runs are not these
    grid = grid_from(
        {
            "title": title,
            **{name: value for name, value in about.items() if name in DATA_KEYS},
            "repeats": repeats,
            "first_seed": seed,
            "shared": shared,
            "experiments": {EXPERIMENT: {"title": title, "runs": runs}},
        },
        "compare",
    )
    first = grid.cells()[0].settings
    check_used(given, first, ("loss", "regularizer"))
    dataset = open_dataset(about, first, study)
    with nullcontext(output) if output else tempfile.TemporaryDirectory() as folder:
        run = partial(reproduce.run_with_progress, workers=workers, scheduler=scheduler, overwrite=overwrite)
        results = run(grid, dataset, Path(folder), prior=prior, quiet=as_json, kept=output is not None)
    rows = rows_of(results)
    asked = [row for row in rows if row.method != "centralized"]
    if asked and all(row.status != DONE for row in asked):
        reasons = dict.fromkeys(said(row) for row in asked)
        raise StudyError(f"none of these methods applies; {'; '.join(reasons)}")
    written = []
    if output:
        from dpadmm.reporting.figures import comparison_figure, save_figure  # matplotlib takes its time

        written = [output / RESULTS, *save_figure(comparison_figure(results), output / "comparison")]
    if as_json:
        answer = {
            "data": results.meta["data"],
            **({"study": {"name": study.name, "hash": study.hash}} if study else {}),
            "settings": {**shared, **masked, "delta": first.delta, "n_rounds": first.n_rounds, "loss": first.loss.name},
            "seeds": [seed + k for k in range(repeats)],
            "rows": as_json_rows(rows),
            "files": [str(path) for path in written],
        }
        echo_json(answer)
    else:
        show(dataset, results, rows)
        echo(*about_study(study, prior), style="dim")
        for path in written[:2]:
            echo_path(f"{'Results' if path.suffix == '.parquet' else 'Figure'}: {path}")


add_options(compare, [each for each in parameters() if each.name not in _OWN])


def _refuse_beside_suite(options: Mapping[str, Any], **own: str | None) -> None:
    """A suite says itself what is compared."""
    given = [name for name, value in {**own, **options}.items() if value not in (None, COMPARED)]
    if given:
        raise StudyError(f"a suite has its own {given[0]}; leave --{given[0].replace('_', '-')} out")


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
    """What belongs to secure aggregation, taken out of ``shared``: methods are local too, or only."""
    if shared.get("trust") != "secure_aggregation":
        return {}
    if not any(_sums_only(name) for name in names):
        able = ", ".join(filter(_sums_only, ALL_METHODS))
        raise StudyError(f"with secure_aggregation only the sum of all answers is seen; add a method for that: {able}")
    return {name: shared.pop(name) for name in ("trust", "honest", "void_rounds") if name in shared}


def _sums_only(name: str) -> bool:
    return name in ALL_METHODS and ALL_METHODS[name].sums_only


def _budgets(names: list[str], **asked: str | None) -> dict[str, list[float]]:
    """``{"epsilon": [0.5, 1.0]}`` or ``{"round_epsilon": [...]}``; nothing where no method is private."""
    given = {name: list(dict.fromkeys(numbers(name, text))) for name, text in asked.items() if text is not None}
    private = any(name not in NOT_PRIVATE for name in names)
    if len(given) != 1 and (private or given):
        raise StudyError("give the privacy to compare at: either --epsilon (totals) or --round-epsilon")
    return given


def _check(
    names: list[str],
    budgets: Mapping[str, list[float]],
    counts: list[int],
    shared: Mapping[str, Any],
    masked: Mapping[str, Any],
) -> None:
    """Check all settings, so that errors name the options."""
    first = settings_from({**shared, "method": "centralized"}, "options")
    pairs = [(budget, value) for budget, values in budgets.items() for value in values]
    for name in names:
        for budget, value in [("epsilon", None)] if name in NOT_PRIVATE else pairs:
            settings_from({**shared, "method": name, budget: value}, "options")
            if masked and _sums_only(name):
                settings_from({**shared, **masked, "method": name, budget: value}, "options")
    for count in counts:
        replace(first, n_agents=count)


def _runs(
    names: list[str],
    budgets: Mapping[str, list[float]],
    agents: Mapping[str, list[int]],
    masked: Mapping[str, Any],
) -> list[dict[str, Any]]:
    private = [name for name in names if name not in NOT_PRIVATE]
    others = [name for name in names if name in NOT_PRIVATE]
    optimum = {"method": "centralized", **{name: counts[:1] for name, counts in agents.items()}}
    of_sums = [name for name in private if masked and _sums_only(name)]
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
    trusts = [(name, LOCAL) for name in ("centralized", *names)]
    trusts += [(name, {}) for name in names if study.training.honest is not None and _sums_only(name)]
    for name, trust in trusts:
        changes = {**given, **dict.fromkeys(of_runs.BUDGETS), "method": name, **trust}
        if name == study.training.method.name:
            del changes["method"]  # with its own parameters
        if name not in NOT_PRIVATE:
            changes["epsilon"] = study.epsilon
        said = {key: value for key, value in base.changed(**changes).flat().items() if value is not None}
        counts = {key: each[:1] if name == "centralized" else each for key, each in agents.items()}
        runs.append({key: said[key] for key in said if key != "n_agents"} | counts)
    return runs


@dataclass(frozen=True)
class Row:
    """Repeated runs of one method.

    ``budget`` is "epsilon" or "round_epsilon" and ``asked`` its value, None for a method without privacy;
    ``total_epsilon`` the largest over the runs, by ``accountant``; ``values`` has every measure at the end of
    each run, and the ``seconds`` in rounds. With secure aggregation ``honest`` agents are relied on, and
    ``epsilon_alone`` is the total if all others work together.
    """

    method: str
    n_agents: int
    budget: str | None
    asked: float | None
    status: str
    reason: str | None
    total_epsilon: float | None
    accountant: str | None
    values: dict[str, list[float]]
    honest: int | None = None
    epsilon_alone: float | None = None

    @property
    def trust(self) -> str:
        """``local``, ``h = 5``, or nothing where nothing is private."""
        return "" if self.budget is None else "local" if self.honest is None else f"h = {self.honest}"


def rows_of(results: Results) -> list[Row]:
    """The optimum first, then methods by agents and budget, in the order of the grid; both trusts of one together."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for line in results.last().table.to_pylist():
        budget = next((name for name in BUDGETS if line[name] is not None), None)
        key = (line["n_agents"], budget, line[budget] if budget else None, line["method"], line["honest"])
        groups.setdefault(key, []).append(line)
    rows = [_row(key, lines) for key, lines in groups.items()]
    order = list(dict.fromkeys(row.method for row in rows))
    return sorted(
        rows,
        key=lambda row: (row.method != "centralized", row.n_agents, row.asked or 0.0, order.index(row.method)),
    )


def _row(key: tuple[Any, ...], lines: list[dict[str, Any]]) -> Row:
    n_agents, budget, asked, method, honest = key
    done = [line for line in lines if line["status"] == DONE]
    totals = [line["total_epsilon"] for line in done if line["total_epsilon"] is not None]
    total = max(totals, default=None)
    return Row(
        method=method,
        n_agents=n_agents,
        budget=budget,
        asked=asked,
        status=DONE if done else REFUSED,
        reason=next((line["reason"] for line in lines if line["reason"]), None),
        total_epsilon=total,
        accountant=next((line["accountant"] for line in done), None),
        values={
            name: [line[name] for line in done]
            for name in (*MEASURES, "seconds")
            if done and all(line[name] is not None for line in done)
        },
        honest=honest,
        epsilon_alone=None if honest is None or total is None else _alone(total, lines[0]["delta"], honest),
    )


def _alone(epsilon: float, delta: float, honest: int) -> float:
    """Total ε of one share of the noise, where ``honest`` of them have this one."""
    return float(exact_epsilon(math.sqrt(honest) / total_noise_multiplier(epsilon, delta, 1), delta))


def said(row: Row) -> str:
    """Why a method does not apply, or its warning, with its name."""
    reason = row.reason or ""
    return reason if reason.startswith(row.method) else f"{row.method}: {reason}"


def as_json_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Plain values, with mean and standard deviation of every measure."""
    return [
        {
            **{name: value for name, value in vars(row).items() if name != "values"},
            "measures": {
                name: {"mean": float(np.mean(values)), "std": float(spread(values)), "values": values}
                for name, values in row.values.items()
            },
        }
        for row in rows
    ]


def show(dataset: Dataset, results: Results, rows: Sequence[Row]) -> None:
    """One table per number of agents and budget, each with the optimum."""
    first = results.last().table.slice(0, 1).to_pylist()[0]
    _say_head(
        dataset.name,
        f"{dataset.n_rows} rows × {dataset.n_features} features",
        f"{first['loss']} loss",
        f"{first['regularizer']} regularizer",
        f"{first['n_rounds']} rounds",
        f"δ = {first['delta']:g}",
    )
    floor = [row for row in rows if row.method == "centralized"]
    asked = [row for row in rows if row.method != "centralized"]
    free = [row for row in asked if row.budget is None]
    private = [row for row in asked if row.budget is not None]
    for (n_agents, _), group in groupby(private or free, key=lambda row: (row.n_agents, row.asked)):
        members = list(group)
        beside = [row for row in free if row.n_agents == n_agents and row not in members]
        _show_group([*floor, *beside, *members], first["loss"])
    echo(*dict.fromkeys(said(row) for row in rows if row.reason))
    echo(_explained(rows), style="dim")


def _say_head(name: str, *parts: str) -> None:
    """``name: part, part``, wrapped between parts only; rich also breaks at no-break spaces."""
    whole, width = ", ".join(part.replace(" ", "\u00a0") for part in parts), console_width()
    lines = textwrap.wrap(f"{name}: {whole}", width, break_long_words=False, break_on_hyphens=False)
    echo(*(line.replace("\u00a0", " ") for line in lines))


def _show_group(rows: Sequence[Row], loss: str) -> None:
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
    both = any(row.honest is not None for row in rows)
    lines: list[TableRow] = []
    for row in rows:
        trust = (row.trust,) if both else ()
        if row.status == REFUSED:
            word = "diverged" if row.reason and DIVERGED in row.reason else "does not apply"
            lines.append((METHODS[row.method], *trust, word))
            continue
        cells = [
            mean_and_spread(name, row.values[name], is_rate=error == "error") if _has(row, name) else "–"
            for name in (f"{where}_{stem}" for stem in shown)
        ]
        total = "" if row.total_epsilon is None else epsilon_text(row.total_epsilon)
        lines.append((METHODS[row.method], *trust, *cells, total, f"{np.mean(row.values['seconds']):.2f}"))
    agents = "one agent" if named.n_agents == 1 else f"{named.n_agents} agents"
    budget = f", {BUDGETS[named.budget].format(named.asked)}" if named.budget else ""
    alone = next((f"; h = {row.honest}: {epsilon_text(row.epsilon_alone)}" for row in rows if row.epsilon_alone), "")
    echo("", f"{agents}{budget}{alone and f'{alone} if all others work together'}", style="bold")
    headings = ("", *(["trust"] if both else []), *(words[stem] for stem in shown), "total ε", "s")
    show_table(headings, lines, first_width=13, collapse_padding=True)


def _has(row: Row, name: str) -> bool:
    """Whether a measure is there and is not a repetition of the global model's."""
    return name in row.values and not (name.endswith("_local") and row.method in ONE_MODEL)


def _explained(rows: Sequence[Row]) -> str:
    n_runs = max((len(row.values["seconds"]) for row in rows if row.values), default=0)
    noisy = [row for row in rows if row.status == DONE and row.budget is not None]
    either = any(row.method == "admm" for row in rows)
    local = any(_has(row, "test_error_local") for row in rows)
    honest = max((row.honest or 0 for row in rows), default=0)
    by = "; ".join(dict.fromkeys(row.accountant for row in noisy if row.accountant))
    sentences = {
        f"The optimum uses all rows without privacy{'; ADMM has no privacy either' if either else ''}.": True,
        "Local models are each agent's own, on the test rows; – where a method has none.": local,
        f"Local: an agent relies on nobody. h = {honest}: secure aggregation; total ε holds if {honest} agents or more "
        "of every round are honest. Methods that need the answer of every agent by itself stay local.": honest,
        f"± is the standard deviation over {n_runs} random splits.": n_runs > 1,
        f"Total ε is exact for plain Gaussian noise and otherwise a bound that holds, by the accountant ({by}).": noisy,
        "Seconds are the time in rounds, one core each.": True,
        "The noise is simulated: an experiment, no protection.": noisy,
    }
    return " ".join(sentence for sentence, applies in sentences.items() if applies)
