"""Forecast the cost and accuracy of a study in Python, without reading private rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from dpadmm.data.leakage import leakage_warnings
from dpadmm.data.reader import Table, open_table
from dpadmm.errors import StudyError
from dpadmm.files.atomic import StrPath
from dpadmm.matrices.arrays import Integers
from dpadmm.models.description import Description, load_description
from dpadmm.planning.costs import costs_of, measured_seconds, with_rounds_for
from dpadmm.planning.forecast import forecast_scenario, forecast_settings, grid_of, n_runs
from dpadmm.planning.intervals import forecast_intervals
from dpadmm.planning.plan import Alternative, Plan, alternatives
from dpadmm.planning.recommendation import goal_from
from dpadmm.planning.scenarios import Scenario, public_scenario, synthetic_scenarios
from dpadmm.studies.checks import study_warnings
from dpadmm.studies.study import Study
from dpadmm.training.train import as_study, with_public_table

ROUNDS = (50, 200, 800)
FEW_ROUNDS = 5
"""Rounds of ``auto`` for sites that answer by hand."""

MAX_CELLS = 200
MAX_ROWS = 10**12
MAX_AGENTS = 10**6

Started = Callable[[int], Callable[[], None]]
"""Called with the number of runs. Returns a function to call after each of them."""


def plan(
    study: Study | StrPath,
    rows: int | Sequence[int],
    *,
    n_agents: int | None = None,
    public: Table | Literal[False] | None = None,
    statistics: Description | StrPath | None = None,
    epsilons: Sequence[float] | None = None,
    rounds: Sequence[int] | None = None,
    repeats: int = 5,
    goal: str | None = None,
    seed: int = 1,
    started: Started = lambda total: lambda: None,
) -> Plan:
    """Forecast the cost and accuracy of a study without reading private rows.

    This is the Python form of ``dpadmm plan``. ε, noise, traffic and time follow from public numbers. Accuracy, AUC
    and log-loss are forecast by running the study on public rows, or on synthetic rows with three strengths of signal.

    Parameters
    ----------
    study : Study or path
        The study, or the path of its TOML file.
    rows : int or sequence of int
        Rows of every agent: one number, or one per agent.
    n_agents : int, optional
        Number of agents. Default: one for each number in ``rows``.
    public : path, data frame, Arrow table or False, optional
        Public table to use instead of the study's public rows; False uses synthetic rows.
    statistics : Description or path, optional
        Private statistics (from ``dpadmm describe``) whose counts the synthetic rows have.
    epsilons : sequence of float, optional
        Values of total ε to compare. Default: half, one and two times the study's ε.
    rounds : sequence of int, optional
        Numbers of rounds to compare, in addition to the study's.
    repeats : int, default=5
        Runs for every ε and number of rounds, from 2 to 100.
    goal : str, optional
        Goal: an accuracy ("0.8"), "auc=0.8", "log_loss=0.4" or "sensitivity=0.6"; for regression the maximum root mean
        square error. Default: clearly better than a constant prediction.
    seed : int, default=1
        Seed of splits and simulated noise.
    started : callable, optional
        Called with the number of runs. Returns a function that is called after each of them, for progress.

    Returns
    -------
    Plan
        Costs, forecast and recommendation. A notebook shows it as tables.
    """
    given = as_study(study)
    _, table = with_public_table(given, public)
    if table is not None and statistics is not None:
        raise StudyError(
            "statistics apply to synthetic rows, but public rows are used; ignore them: --no-public (in Python "
            "public=False)"
        )
    sizes = planned_sizes(n_agents, [rows] if isinstance(rows, int) else list(rows))
    study = with_rounds_for(given, sizes)
    if not 2 <= repeats <= 100:
        raise StudyError(f"repeats must be a whole number from 2 to 100, not {repeats}")
    if seed < 0:
        raise StudyError(f"seed must be a whole number of at least 0, not {seed}")
    wanted = goal_from(goal, study)
    total = costs_of(study, sizes).epsilon
    own = study.training.epsilon if isinstance(study.training.epsilon, float) else total
    others = other_rounds(study) if rounds is None else list(rounds)
    grid = grid_of(study, own, epsilons=(own / 2.0, own * 2.0) if epsilons is None else tuple(epsilons), rounds=others)
    if len(grid.cells) > MAX_CELLS:
        raise StudyError(f"{len(grid.cells)} combinations of ε and rounds are too many; the maximum is {MAX_CELLS}")
    if table is not None:
        scenarios = [public_scenario(study, table, repeats=repeats, seed=seed)]
    else:
        counts = (
            statistics
            if statistics is None or isinstance(statistics, Description)
            else load_description(Path(statistics))
        )
        scenarios = synthetic_scenarios(study, int(sizes.sum()), repeats=repeats, seed=seed, statistics=counts)
    compared = alternatives(given, sizes, own)
    finished = started(n_runs(scenarios, grid, len(compared)))
    forecasts = [forecast_scenario(study, each, sizes, grid, seed=seed, finished=finished) for each in scenarios]
    warnings = [f"{warning}." for warning in study_warnings(study, int(sizes.max()))]
    return Plan(
        study=study,
        sizes=sizes,
        costs=costs_of(study, sizes, measured_seconds(study, scenarios[0].folds[0][0], sizes)),
        grid=grid,
        forecasts=tuple(forecasts),
        goal=wanted,
        public=None if table is None else Path(str(open_table(table).location)),
        repeats=repeats,
        warnings=(*leakage_warnings(scenarios[0].leaky_columns), *scenarios[0].warnings, *warnings),
        alternatives=_forecast_alternatives(study, scenarios, sizes, compared, seed=seed, finished=finished),
        uses_statistics=statistics is not None,
        intervals=forecast_intervals(study, scenarios, sizes, seed=seed) if study.training.has_inference else None,
    )


def _forecast_alternatives(
    study: Study,
    scenarios: Sequence[Scenario],
    sizes: Integers,
    compared: Sequence[Alternative],
    *,
    seed: int,
    finished: Callable[[], None],
) -> tuple[Alternative, ...]:
    """Return the alternatives with their forecasts in every scenario."""
    forecasts = []
    for other in compared:
        again = partial(forecast_settings, study, other.training, sizes=sizes, aborted_rounds=other.aborted_rounds)
        values = tuple(again(scenario=each, seed=seed, finished=finished) for each in scenarios)
        forecasts.append(replace(other, values=values))
    return tuple(forecasts)


def other_rounds(study: Study) -> Sequence[int]:
    """Return numbers of rounds to compare with the study's."""
    own = study.training.planned_rounds
    if not study.training.method.sums_only:
        return ROUNDS
    return [t for t in (FEW_ROUNDS, own // 2, 2 * own) if t == FEW_ROUNDS or t >= 2 * FEW_ROUNDS]


def planned_sizes(n_agents: int | None, counts: Sequence[int]) -> Integers:
    """Return the number of rows of every agent."""
    for count in counts:
        if not 2 <= count <= MAX_ROWS:
            raise StudyError(f"rows must be a whole number from 2 to {MAX_ROWS:g}, not {count}")
    if n_agents is not None and not 1 <= n_agents <= MAX_AGENTS:
        raise StudyError(f"agents must be a whole number from 1 to {MAX_AGENTS:,}, not {n_agents}")
    if len(counts) > 1 and n_agents not in (None, len(counts)):
        raise StudyError(f"rows has {len(counts)} numbers for {n_agents} agents; give one for each")
    return np.full(n_agents or 1, counts[0]) if len(counts) == 1 else np.array(counts)
