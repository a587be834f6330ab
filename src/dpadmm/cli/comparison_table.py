"""The table of ``dpadmm compare``: mean and spread per method, budget and number of agents."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from rich.console import Console

from dpadmm._base.errors import DIVERGED
from dpadmm.cli.screen import epsilon_text, mean_and_spread, say, table
from dpadmm.data import Dataset
from dpadmm.experiments.results import DONE, MEASURES, REFUSED, Results
from dpadmm.optim.losses import LOSSES
from dpadmm.reporting.series import METHODS, ONE_MODEL
from dpadmm.training.metrics import spread

BUDGETS = {"epsilon": "total ε = {:g}", "round_epsilon": "ε = {:g} per round"}


@dataclass(frozen=True)
class Row:
    """Repeated runs of one method.

    Attributes
    ----------
    budget : str or None
        "epsilon" or "round_epsilon", and ``asked`` its value; None for a method without privacy.
    total_epsilon : float or None
        The largest over the runs, by ``accountant``.
    values : dict
        Measure -> one value per run, at the end; ``seconds`` in rounds.
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


def rows_of(results: Results) -> list[Row]:
    """The optimum first, then methods by agents and budget, in the order of the grid."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in results.last().table.to_pylist():
        budget = next((name for name in BUDGETS if line[name] is not None), None)
        key = (line["n_agents"], budget, line[budget] if budget else None, line["method"])
        groups.setdefault(key, []).append(line)
    rows = [_row(key, lines) for key, lines in groups.items()]
    return sorted(rows, key=lambda row: (row.method != "centralized", row.n_agents, row.asked or 0.0))


def _row(key: tuple[Any, ...], lines: list[dict[str, Any]]) -> Row:
    n_agents, budget, asked, method = key
    done = [line for line in lines if line["status"] == DONE]
    totals = [line["total_epsilon"] for line in done if line["total_epsilon"] is not None]
    return Row(
        method=method,
        n_agents=n_agents,
        budget=budget,
        asked=asked,
        status=DONE if done else REFUSED,
        reason=next((line["reason"] for line in lines if line["reason"]), None),
        total_epsilon=max(totals, default=None),
        accountant=next((line["accountant"] for line in done), None),
        values={
            name: [line[name] for line in done]
            for name in (*MEASURES, "seconds")
            if done and all(line[name] is not None for line in done)
        },
    )


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


def show(console: Console, dataset: Dataset, results: Results, rows: Sequence[Row]) -> None:
    """One table per number of agents and budget, each with the optimum."""
    first = results.last().table.slice(0, 1).to_pylist()[0]
    _say_head(
        console,
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
        _show_group(console, [*floor, *beside, *members], first["loss"])
    for sentence in dict.fromkeys(said(row) for row in rows if row.reason):
        say(console, sentence)
    _explain(console, rows)


def _say_head(console: Console, name: str, *parts: str) -> None:
    """``name: part, part``, wrapped between parts only; rich also breaks at no-break spaces."""
    whole = ", ".join(part.replace(" ", "\u00a0") for part in parts)
    lines = textwrap.wrap(f"{name}: {whole}", console.width, break_long_words=False, break_on_hyphens=False)
    say(console, "\n".join(lines).replace("\u00a0", " "))


def _show_group(console: Console, rows: Sequence[Row], loss: str) -> None:
    regression = LOSSES[loss].task == "regression"
    named = rows[-1]
    budget = f", {BUDGETS[named.budget].format(named.asked)}" if named.budget else ""
    where = "test" if any("test_error_global" in row.values for row in rows) else "train"
    shown = [f"{where}_error_global", f"{where}_error_local", f"{where}_loss_global"]
    shown = [name for name in shown if any(_has(row, name) for row in rows)]
    error = f"{'test' if where == 'test' else 'training'} {'RMS ' if regression else ''}error"
    words = {
        "error_global": error,
        "error_local": f"{error},\nlocal models",
        "loss_global": f"{error.split()[0]} loss",
    }
    out = table("", *(words[name.split("_", 1)[1]] for name in shown), "total ε", "s")
    out.collapse_padding = True
    out.columns[0].max_width = 13
    agents = "one agent" if named.n_agents == 1 else f"{named.n_agents} agents"
    say(console, f"\n{agents}{budget}", style="bold")
    for row in rows:
        if row.status == REFUSED:
            word = "diverged" if row.reason and DIVERGED in row.reason else "does not apply"
            out.add_row(METHODS[row.method], *(word if k == 0 else "" for k in range(len(shown))), "", "")
            continue
        cells = [
            mean_and_spread(name, row.values[name], is_rate=not regression) if _has(row, name) else "–"
            for name in shown
        ]
        total = "" if row.total_epsilon is None else epsilon_text(row.total_epsilon)
        out.add_row(METHODS[row.method], *cells, total, f"{np.mean(row.values['seconds']):.2f}")
    console.print(out)


def _has(row: Row, name: str) -> bool:
    """Whether a measure is there and is not a repetition of the global model's."""
    return name in row.values and not (name.endswith("_local") and row.method in ONE_MODEL)


def _explain(console: Console, rows: Sequence[Row]) -> None:
    n_runs = max((len(row.values["seconds"]) for row in rows if row.values), default=0)
    noisy = [row for row in rows if row.status == DONE and row.budget is not None]
    either = any(row.method == "admm" for row in rows)
    sentences = [
        "The optimum uses all rows without privacy" + ("; ADMM has no privacy either." if either else ".")
    ]
    if any(_has(row, "test_error_local") for row in rows):
        sentences.append("Local models are each agent's own, on the test rows; – where a method has none.")
    if n_runs > 1:
        sentences.append(f"± is the standard deviation over {n_runs} random splits.")
    if noisy:
        by = "; ".join(dict.fromkeys(row.accountant for row in noisy if row.accountant))
        sentences.append(
            "Total ε is exact for plain Gaussian noise and otherwise a bound that holds, by the accountant "
            f"({by})."
        )
    sentences.append("Seconds are the time in rounds, one core each.")
    if noisy:
        sentences.append("The noise is simulated: an experiment, no protection.")
    say(console, " ".join(sentences), style="dim")
