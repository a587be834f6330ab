"""Compare methods on one data set: runs in worker processes, one row per method, budget and number of agents."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dpadmm.accounting.calibration import total_noise_multiplier
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.data import Dataset
from dpadmm.engine.metrics import spread
from dpadmm.engine.workers import in_processes, n_cores
from dpadmm.errors import DPADMMError
from dpadmm.methods.prior import Prior
from dpadmm.models.run import Result
from dpadmm.studies.settings import Settings
from dpadmm.training.preparation import PreparedData, prepare
from dpadmm.training.simulate import run_prepared

MEASURES = (
    "augmented_objective",
    "train_loss_local",
    "train_loss_global",
    "train_error_global",
    "test_loss_global",
    "test_error_local",
    "test_error_global",
    "objective_global",
    "weight_norm_global",
)
DONE, REFUSED = "done", "refused"

_BUDGETS = ("epsilon", "round_epsilon")
_PARTITION = ("seed", "n_agents", "partition", "partition_spread", "intercept", "clip_rows", "test_rows")
_COMPILED_BY = ("method", "loss", "regularizer")


@dataclass(frozen=True)
class ComparisonRow:
    """Repeated runs of one method, with one budget and one number of agents.

    ``budget`` is "epsilon" or "round_epsilon" and ``asked`` its value. Both are None for a method without privacy.
    ``total_epsilon`` is the largest over the runs, computed by ``accountant``. ``values`` has every measure at the
    end of each run, and the ``seconds`` in rounds. With secure aggregation, ``min_honest_sites`` is the assumed number
    of honest agents, and ``epsilon_if_others_collude`` the total ε if all others collude.
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
    min_honest_sites: int | None = None
    epsilon_if_others_collude: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, with mean and standard deviation of every measure."""
        return {
            **{name: value for name, value in vars(self).items() if name != "values"},
            "measures": {
                name: {"mean": float(np.mean(values)), "std": float(spread(values)), "values": values}
                for name, values in self.values.items()
            },
        }


def compare(
    dataset: Dataset,
    runs: Sequence[Settings],
    *,
    prior: Prior | None = None,
    workers: int | None = None,
    watch: Callable[[int], None] = lambda finished: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[ComparisonRow]:
    """Run all settings on one data set and return a row for each method, budget and number of agents.

    Settings that differ in other parameters than these and the seed belong in separate comparisons. A method that
    does not apply gets a row with status "refused" and the reason.

    Parameters
    ----------
    runs : sequence of Settings
        One for each run, in the order of the rows.
    prior : Prior, optional
        Prior from public rows, with which every run starts.
    workers : int, optional
        Worker processes, one core each; all cores if left out.
    watch : callable
        Called with the number of finished runs.
    stop : callable
        When it returns True, the runs in progress are abandoned and are missing from the rows.

    Returns
    -------
    list of ComparisonRow
        The non-private optimum first, then by number of agents, budget and method.
    """
    # Runs on the same split follow each other, so that a worker prepares the rows once.
    tasks = sorted(enumerate(runs), key=lambda task: (task[1].seed or 0, task[1].n_agents))
    outcomes: dict[int, _Outcome] = {}
    watch(0)
    make = partial(_run_one, dataset, prior)
    with closing(in_processes(make, tasks, workers=workers or n_cores(), stop=stop)) as finished:
        for (place, _), outcome in finished:
            outcomes[place] = outcome
            watch(len(outcomes))
    return _rows((runs[place], outcomes[place]) for place in sorted(outcomes))


class PreparedRuns:
    """Runs on one data set. Consecutive runs with the same split share the prepared rows."""

    def __init__(self, dataset: Dataset, prior: Prior | None = None) -> None:
        self._dataset, self._prior = dataset, prior
        self._split: tuple[Any, ...] | None = None
        self._prepared: PreparedData | None = None
        self._warm: set[tuple[str, ...]] = set()

    def prepared(self, settings: Settings) -> PreparedData:
        """Return the rows for these settings, with their problem."""
        split = tuple(getattr(settings, name) for name in _PARTITION)
        if self._prepared is None or split != self._split:
            self._prepared, self._split = prepare(self._dataset, settings), split
        n_classes = len(self._dataset.classes) if self._dataset.classes is not None else 0
        return replace(self._prepared, problem=settings.problem(n_classes))

    def run(self, settings: Settings) -> tuple[Result, str | None]:
        """Return the result of a run, and its warnings."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = run_prepared(self.prepared(settings), settings, prior=self._prior)
        return result, "; ".join(dict.fromkeys(str(each.message) for each in caught)) or None

    def warm_up(self, settings: Settings, *, n_rounds: int | None = 2) -> None:
        """Run once before the first run of each kind, so that compilation is not in the times; None: all rounds."""
        kind = tuple(repr(getattr(settings, name)) for name in _COMPILED_BY)
        if kind in self._warm:
            return
        self._warm.add(kind)
        if n_rounds is not None:
            settings = replace(settings, n_rounds=n_rounds, metrics_every=n_rounds)
        try:
            self.run(settings)
        except DPADMMError:  # reported by the run itself
            return


@dataclass(frozen=True)
class _Outcome:
    """The end of one run."""

    n_agents: int
    reason: str | None
    done: bool = False
    total_epsilon: float | None = None
    accountant: str | None = None
    values: dict[str, float] | None = None


def _run_one(dataset: Dataset, prior: Prior | None) -> Callable[[tuple[int, Settings]], _Outcome]:
    """Return the function that a worker process applies to its tasks."""
    runs = PreparedRuns(dataset, prior)

    def run(task: tuple[int, Settings]) -> _Outcome:
        _, settings = task
        runs.warm_up(settings)
        try:
            result, warning = runs.run(settings)
        except DPADMMError as error:
            return _Outcome(settings.n_agents, str(error))
        privacy, end = result.privacy, result.trace.last()
        return _Outcome(
            n_agents=result.rows.n_agents,
            reason=warning,
            done=True,
            total_epsilon=finite(privacy.planned_epsilon),
            accountant=privacy.accountant if privacy.private else None,
            values={name: float(end[name]) for name in (*MEASURES, "seconds") if name in end},
        )

    return run


def _rows(runs: Iterable[tuple[Settings, _Outcome]]) -> list[ComparisonRow]:
    groups: dict[tuple[Any, ...], list[_Outcome]] = {}
    deltas: dict[tuple[Any, ...], float] = {}
    for settings, outcome in runs:
        budget = next((name for name in _BUDGETS if getattr(settings, name) is not None), None)
        asked = getattr(settings, budget) if budget else None
        key = (settings.method.name, outcome.n_agents, budget, asked, settings.min_honest_sites)
        groups.setdefault(key, []).append(outcome)
        deltas[key] = settings.delta
    rows = [_row(key, outcomes, deltas[key]) for key, outcomes in groups.items()]
    order = list(dict.fromkeys(row.method for row in rows))
    return sorted(
        rows,
        key=lambda row: (row.method != "centralized", row.n_agents, row.asked or 0.0, order.index(row.method)),
    )


def _row(key: tuple[Any, ...], outcomes: Sequence[_Outcome], delta: float) -> ComparisonRow:
    method, n_agents, budget, asked, min_honest_sites = key
    done = [each for each in outcomes if each.done]
    total = max((each.total_epsilon for each in done if each.total_epsilon is not None), default=None)
    ends = [each.values or {} for each in done]
    return ComparisonRow(
        method=method,
        n_agents=n_agents,
        budget=budget,
        asked=asked,
        status=DONE if done else REFUSED,
        reason=next((each.reason for each in outcomes if each.reason), None),
        total_epsilon=total,
        accountant=next((each.accountant for each in done), None),
        values={
            name: [end[name] for end in ends]
            for name in (*MEASURES, "seconds")
            if ends and all(math.isfinite(end.get(name, math.nan)) for end in ends)
        },
        min_honest_sites=min_honest_sites,
        epsilon_if_others_collude=None
        if min_honest_sites is None or total is None
        else _epsilon_if_others_collude(total, delta, min_honest_sites),
    )


def _epsilon_if_others_collude(epsilon: float, delta: float, min_honest_sites: int) -> float:
    """Return the total ε of one share of the noise, if ``min_honest_sites`` shares together have ``epsilon``."""
    return float(exact_epsilon(math.sqrt(min_honest_sites) / total_noise_multiplier(epsilon, delta, 1), delta))


def finite(value: float | None) -> float | None:
    """Return the value, or None if it is not a finite number."""
    return value if value is not None and math.isfinite(value) else None
