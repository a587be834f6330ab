"""Result of ``dpadmm compare``: tables of methods by budget and number of agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from dpadmm.baselines import METHOD_TITLES, ONE_MODEL
from dpadmm.errors import DIVERGED
from dpadmm.losses import LOSSES
from dpadmm.rendering import Cell, Column, Renderable, Rendering, Row, Table
from dpadmm.rendering.formats import epsilon_text, mean_text, plural
from dpadmm.studies.settings import Settings
from dpadmm.training.compare import DONE, REFUSED, ComparisonRow

BUDGETS = {"epsilon": "total ε = {:g}", "round_epsilon": "ε = {:g} per round"}
ERRORS = {"regression": "RMS error", "count": "half deviance"}
"""Names of the error by task; an error rate for others."""


@dataclass(frozen=True)
class Comparison(Renderable):
    """Methods on one data set at the same budgets.

    Attributes
    ----------
    dataset : mapping
        Name, rows and features of the data.
    settings : Settings
        Settings of the first run.
    rows : sequence of ComparisonRow
        One row per method, budget and number of agents; the non-private optimum first.
    data : mapping
        Further values of the JSON.
    """

    dataset: Mapping[str, Any]
    settings: Settings
    rows: Sequence[ComparisonRow]
    data: Mapping[str, Any] = field(default_factory=dict)

    def rendering(self) -> Rendering:
        """Return one table per number of agents and budget, each with the optimum."""
        settings = self.settings
        facts = (
            f"{self.dataset['rows']} rows × {self.dataset['features']} features",
            f"{settings.loss.name} loss",
            f"{settings.regularizer.name} regularizer",
            f"{settings.n_rounds} rounds",
            f"δ = {settings.delta:g}",
        )
        optimum = [row for row in self.rows if row.method == "centralized"]
        public = [row for row in self.rows if row.budget is None and row.method != "centralized"]
        private = [row for row in self.rows if row.budget is not None]
        tables = []
        for (n_agents, _), group in groupby(private or public, key=lambda row: (row.n_agents, row.asked)):
            members = list(group)
            others = [row for row in public if row.n_agents == n_agents and row not in members]
            tables.append(self._table([*optimum, *others, *members]))
        reasons = dict.fromkeys(describe_reason(row) for row in self.rows if row.reason)
        return Rendering(
            title=f"{self.dataset['name']}: {', '.join(facts)}",
            body=tables,
            notes=[*reasons, self._explanation()],
            data={"data": dict(self.dataset), **self.data, "rows": [row.to_dict() for row in self.rows]},
        )

    def _table(self, rows: Sequence[ComparisonRow]) -> Table:
        task = LOSSES[self.settings.loss.name].task
        source, kind = ("test", "test") if _has_test(rows) else ("train", "training")
        error = f"{kind} {ERRORS.get(task, 'error')}"
        titles = {"error_global": error, "error_local": f"{error}, local models", "loss_global": f"{kind} loss"}
        measures = [name for name in titles if any(_has(row, f"{source}_{name}") for row in rows)]
        is_secure = any(row.min_honest_sites is not None for row in rows)
        columns = [Column("", "method"), *([Column("", "aggregation")] if is_secure else [])]
        columns += [Column("", titles[name], align="right") for name in measures]
        columns += [Column("", "total ε", align="right"), Column("", "s", ".2f", align="right")]
        lines: list[Row] = []
        for row in rows:
            line: list[Any] = [METHOD_TITLES[row.method], *([_aggregation(row)] if is_secure else [])]
            if row.status == REFUSED:
                lines.append([*line, "diverged" if row.reason and DIVERGED in row.reason else "does not apply"])
                continue
            for name in (f"{source}_{name}" for name in measures):
                is_rate = "error" in name and task not in ERRORS
                line.append(mean_text(row.values[name], is_rate=is_rate) if _has(row, name) else "–")
            total = "" if row.total_epsilon is None else epsilon_text(row.total_epsilon)
            lines.append([*line, total, Cell(float(np.mean(row.values["seconds"])))])
        return Table(columns, lines, title=self._table_title(rows))

    def _table_title(self, rows: Sequence[ComparisonRow]) -> str:
        last = rows[-1]
        agents = "one agent" if last.n_agents == 1 else f"{last.n_agents} agents"
        budget = f", {BUDGETS[last.budget].format(last.asked)}" if last.budget else ""
        for row in rows:
            if row.epsilon_if_others_collude:
                epsilon = epsilon_text(row.epsilon_if_others_collude)
                return f"{agents}{budget}; h = {row.min_honest_sites}: {epsilon} if all others collude"
        return f"{agents}{budget}"

    def _explanation(self) -> str:
        rows = self.rows
        n_runs = max((len(row.values["seconds"]) for row in rows if row.values), default=0)
        noisy = [row for row in rows if row.status == DONE and row.budget is not None]
        has_admm = any(row.method == "admm" for row in rows)
        has_local = any(_has(row, "test_error_local") for row in rows)
        min_honest_sites = max((row.min_honest_sites or 0 for row in rows), default=0)
        accountants = "; ".join(dict.fromkeys(row.accountant for row in noisy if row.accountant))
        sentences = {
            f"The optimum uses all rows without privacy{'; ADMM has no privacy either' if has_admm else ''}.": True,
            "Local models are those of the single agents, on the test rows; – for methods without them.": has_local,
            f"Plain: each answer carries its own noise. h = {min_honest_sites}: secure aggregation; total ε holds if "
            f"at least {min_honest_sites} agents of every round are honest. Methods that need single answers use "
            "plain aggregation.": min_honest_sites,
            f"± is the standard deviation over {plural(n_runs, 'random split')}.": n_runs > 1,
            f"Total ε is exact for plain Gaussian noise and otherwise an upper bound ({accountants}).": noisy,
            "Seconds are the time in rounds, one core each.": True,
            "The noise is simulated: an experiment without privacy protection.": noisy,
        }
        return " ".join(sentence for sentence, applies in sentences.items() if applies)


def describe_reason(row: ComparisonRow) -> str:
    """Return why a method does not apply, or its warning, with its name."""
    reason = row.reason or ""
    return reason if reason.startswith(row.method) else f"{row.method}: {reason}"


def _aggregation(row: ComparisonRow) -> str:
    """Return ``plain``, ``h = 5``, or nothing for a method without privacy."""
    return "" if row.budget is None else "plain" if row.min_honest_sites is None else f"h = {row.min_honest_sites}"


def _has(row: ComparisonRow, name: str) -> bool:
    """Return whether a measure exists and does not repeat that of the global model."""
    return name in row.values and not (name.endswith("_local") and row.method in ONE_MODEL)


def _has_test(rows: Sequence[ComparisonRow]) -> bool:
    return any("test_error_global" in row.values for row in rows)
