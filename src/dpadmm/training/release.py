"""Releases of one table in this process that train no model: private statistics, and the evaluation of a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dpadmm.data.reader import Table, open_table
from dpadmm.errors import StudyError
from dpadmm.files.atomic import StrPath
from dpadmm.methods import StatisticsRelease
from dpadmm.models.description import Description, description_of
from dpadmm.models.evaluate import Evaluation
from dpadmm.models.evaluate import evaluate as evaluate_table
from dpadmm.models.model import Model
from dpadmm.models.private_evaluation import PrivateEvaluation, evaluation_study, private_evaluation_of
from dpadmm.studies.study import Study
from dpadmm.training.train import as_study, encode, run_study


def describe(
    study: Study | StrPath, data: Table, *, by: str | None = None, n_agents: int = 1, seed: int | None = None
) -> Description:
    """Release private statistics of a table: counts, means, quantiles and two-way tables.

    This is the Python form of ``dpadmm describe``.

    Parameters
    ----------
    study : Study or path
        A study of kind "statistics", or the path of its TOML file.
    data : path, data frame or Arrow table
        Table with the private rows; see :func:`dpadmm.train`.
    by : str, optional
        Column that identifies the owner of each row. Each owner is one agent.
    n_agents : int, default=1
        Number of agents, to which rows are assigned at random.
    seed : int, optional
        Seed for simulated noise, which provides no privacy. If not given, the noise is exact.

    Returns
    -------
    Description
        The statistics. A notebook shows them as tables.
    """
    study = as_study(study)
    if study.kind != StatisticsRelease.name:
        raise StudyError('describe needs a study of kind = "statistics"; use train for this study')
    return description_of(run_study(study, encode(study, data, by=by), n_agents=n_agents, seed=seed), all_count=True)


def evaluate(
    model: Model,
    data: Table,
    *,
    label: str | None = None,
    epsilon: float | None = None,
    delta: float = 1e-5,
    by: str | None = None,
) -> Evaluation | PrivateEvaluation:
    """Evaluate a model on a table with labels.

    This is the Python form of ``dpadmm evaluate``. Without ``epsilon`` the metrics are not private: do not publish them
    unless the table is public.

    Parameters
    ----------
    model : Model
        The model.
    data : path, data frame or Arrow table
        Table with the columns and the label of the model. A file may be larger than memory.
    label : str, optional
        Label column, if its name differs in this table.
    epsilon : float, optional
        Total ε of a private evaluation: one noisy release, which may be published (two classes only).
    delta : float, default=1e-5
        δ of a private evaluation.
    by : str, optional
        Column that identifies the owner of each row, in a private evaluation.

    Returns
    -------
    Evaluation or PrivateEvaluation
        The metrics. A notebook shows them as tables.
    """
    if epsilon is None:
        return evaluate_table(model, data, label=label)
    if model.label is not None and label is not None:
        model = replace(model, label=replace(model.label, column=label))
    name = str(model.study.get("name") or "a model")[:150]
    study = evaluation_study(model, f"evaluation of {name}", epsilon=epsilon, delta=delta)
    source = open_table(data)
    result = run_study(study, encode(study, source, by=by))
    return private_evaluation_of(result, all_count=True, source=Path(str(source.location)).name)
