"""Tables of times, of accuracy at the end, and of settings; as Markdown and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpadmm.experiments.results import Results
from dpadmm.paper.measurements import times
from dpadmm.reporting.series import (
    BUDGETS,
    METHODS,
    at_end,
    begun,
    budget_column,
    distinct,
    done,
    has,
    has_local,
    is_regression,
    mean_std,
    split,
    variants,
    where,
)
from dpadmm.reporting.style import power
from dpadmm.study.settings import Settings, flat_parameters


@dataclass(frozen=True)
class Table:
    """A finished table: file name, heading, note, columns and rows of text."""

    name: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """As Markdown, with the heading and the note."""
        lines = [
            f"# {self.title}",
            "",
            self.note,
            "",
            _line(self.columns),
            _line(["---"] * len(self.columns)),
        ]
        return "\n".join([*lines, *(_line(row) for row in self.rows)]) + "\n"

    def csv(self) -> str:
        """As CSV with a header."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.columns, *self.rows])
        return out.getvalue()


def tables(results: Results) -> list[Table]:
    """All tables that have rows."""
    found = [time_table(results), *(accuracy_table(results, name) for name in begun(results))]
    return [table for table in [*found, settings_table(results)] if table is not None and table.rows]


def time_table(results: Results) -> Table | None:
    """Table III: seconds, ratio to DP-ADMM, iterations of local solves, and the paper's values."""
    rows = times(results)
    if not rows:
        return None
    return Table(
        "table3",
        "Time of a run (the paper's Table III)",
        "Seconds in rounds of the fastest and the slowest repeat, each run alone on the machine, after "
        "compilation; ratios are of the fastest. Iterations are those of the exact local solver, per agent "
        "and round. The paper's seconds are from MATLAB on another machine: compare the ratios.",
        (
            *("ε per round", "method", "seconds", "slowest", "× DP-ADMM", "iterations"),
            *("paper, seconds", "paper, × DP-ADMM"),
        ),
        tuple(
            (
                f"{row.budget:g}",
                row.method,
                f"{row.seconds:.3f}",
                f"{row.slowest:.3f}",
                _number(row.ratio, ".1f"),
                _number(row.iterations or np.nan, ".1f"),
                _number(row.paper_seconds, ".3f"),
                _number(row.paper_ratio, ".1f"),
            )
            for row in rows
        ),
    )


def accuracy_table(results: Results, experiment: str) -> Table | None:
    """Loss and error at the end for every setting of an experiment, local and global, with both totals."""
    lines = where(done(results.select(experiment)), timed=False)
    if not len(lines):
        return None
    budget = budget_column(lines)
    rows = []
    for label, group in variants(lines).items():
        keys = [name for name in BUDGETS if distinct(group, name)]
        for values, cell in split(group, "n_agents", "delta", *keys).items():
            pooled = distinct(cell, "method") == ["centralized"]
            spent = [
                f"{value:g}{_if_other(name, budget)}"
                for name, value in zip(keys, values[2:], strict=True)
                if value is not None
            ]
            rows.append(
                (
                    label,
                    "–" if pooled else f"{values[0]}",
                    spent[0] if spent else "–",
                    power(values[1]) if spent else "–",
                    _number(_largest(cell, "total_epsilon"), ".4f"),
                    _number(_largest(cell, "total_paper_epsilon"), ".4f"),
                    _spread(cell, "train_loss_global"),
                    _spread(
                        cell, "test_error_global" if has(cell, "test_error_global") else "train_error_global"
                    ),
                    _spread(cell, "train_loss_local") if has_local(cell) else "–",
                    _spread(cell, "test_error_local") if has_local(cell) else "–",
                )
            )
    title = results.grid["experiments"][experiment].get("title", experiment)
    asked = "total ε, asked" if budget == "epsilon" else BUDGETS[budget]
    error = "RMS error" if is_regression(lines) else "error"
    return Table(
        f"accuracy_{experiment}",
        f"At the end of the runs: {in_words(title)}",
        f"{_over_splits(lines)} {_about_totals(lines)}Local is the mean over the agents' own models, loss on "
        f"their own rows, {error} on test rows.",
        (
            "method", "agents", asked, "δ", "total ε", "paper's ε̄", "loss, global", f"{error}, global",
            "loss, local", f"{error}, local",
        ),
        tuple(rows),
    )  # fmt: skip


def in_words(title: str) -> str:
    """The title of a comparison with the display names of its methods; any other title unchanged.

    Examples
    --------
    >>> in_words("dp_admm, admm_pvp on rows.csv")
    'DP-ADMM, PVP on rows.csv'
    """
    names, on, data = title.partition(" on ")
    listed = names.split(", ")
    if not set(listed) <= set(METHODS):
        return title
    return f"{', '.join(METHODS[name] for name in listed)}{on}{data}"


def _over_splits(lines: Results) -> str:
    n_seeds = len(distinct(lines, "seed"))
    return "One split." if n_seeds == 1 else f"Mean ± standard deviation over up to {n_seeds} splits."


def _about_totals(lines: Results) -> str:
    by = "; ".join(distinct(lines, "accountant"))
    if not by:
        return ""
    return (
        "Total ε is that of the run at δ, exact for plain Gaussian noise and otherwise a bound that holds, "
        f"by the accountant ({by}); ε̄ is the paper's bound where it applies. "
    )


def settings_table(results: Results) -> Table:
    """Every setting with the values it takes in the results."""
    rows = []
    for name in flat_parameters(Settings):
        values = distinct(results, name)
        if values:
            rows.append((name, _values(name, values)))
    return Table(
        "settings",
        "Settings",
        "Every setting with the values it takes in this file. Settings are public: choosing one on private "
        "rows is a leak.",
        ("setting", "values"),
        tuple(rows),
    )


def _values(name: str, values: Sequence[object]) -> str:
    if name == "seed" and len(values) > 2:
        return f"{values[0]} to {values[-1]}"
    return ", ".join(_plain(value) for value in values)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else METHODS.get(str(value), str(value))


def _if_other(column: str, usual: str) -> str:
    return "" if column == usual else f" ({BUDGETS[column]})"


def _largest(lines: Results, column: str) -> float:
    values = np.array(lines.last().column(column), dtype=float)
    return float(np.nanmax(values)) if np.isfinite(values).any() else float("nan")


def _spread(lines: Results, column: str) -> str:
    values = at_end(lines, column)
    if not values:
        return "–"
    mean, std = mean_std(values)
    scale, unit, form = (1.0, "", ".4f")
    if "error" in column and not is_regression(lines):
        scale, unit, form = (100.0, "%", ".2f")
    around = f" ± {scale * std:{form}}" if len(values) > 1 else ""
    return f"{scale * mean:{form}}{around}{unit}"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None or not np.isfinite(value) else f"{value:{form}}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def grid_text(results: Results) -> str:
    """The grid as written, without the cells."""
    experiments = {
        name: {key: value for key, value in about.items() if key != "cells"}
        for name, about in results.grid["experiments"].items()
    }
    return json.dumps({**results.grid, "experiments": experiments}, indent=1, ensure_ascii=False)
