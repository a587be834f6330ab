"""Simulate a run with all agents in this process: settings (or a study) and data -> model, trace, privacy report.

The noise is simulated from a seed unless exact noise is requested. Simulated noise is for experiments and provides
no privacy; the report is marked accordingly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpadmm.data import Dataset
from dpadmm.data.reader import Table, open_table
from dpadmm.engine.loop import (
    Averages,
    Observer,
    Participation,
    PlannedParticipation,
    RandomAborts,
    RandomParticipation,
    StopWhenStill,
)
from dpadmm.engine.metrics import Metrics
from dpadmm.engine.noise import ExactNoise, Noise, SimulatedNoise, fresh_seed
from dpadmm.errors import DataError, StudyError
from dpadmm.files.atomic import StrPath
from dpadmm.matrices.arrays import Floats
from dpadmm.methods.prior import Prior
from dpadmm.models.model import Model
from dpadmm.models.run import Result, run
from dpadmm.parameters.fields import parameters, raise_problems
from dpadmm.studies.reading import read_study
from dpadmm.studies.settings import Settings, Training, choice_to_dict, name_problems, settings_from
from dpadmm.studies.study import Study
from dpadmm.training.preparation import DataSource, PreparedData, as_dataset, prepare, seed_of
from dpadmm.training.train import encode, prior_from, with_public_table


def simulate(
    data: DataSource | Study | StrPath,
    table: DataSource | Table | None = None,
    *,
    settings: Settings | None = None,
    classes: Sequence[Any] | None = None,
    by: str | None = None,
    public: StrPath | Literal[False] | None = None,
    groups: ArrayLike | None = None,
    participation: ArrayLike | None = None,
    observers: Sequence[Observer] = (),
    exact_noise: bool = False,
    warm_start: Floats | Model | None = None,
    keep_interrupted: bool = False,
    **changes: Any,
) -> Result:
    """Train across simulated agents, and measure accuracy and privacy loss.

    Parameters
    ----------
    data : Dataset, (features, labels), "adult", "synthetic", Study or path
        The rows, or a study. Rows must have an L2 norm of at most 1, unless ``clip_rows=True``. A study (or the path
        of its file) sets the model, method, budget and columns; its rows are in ``table``, and ``changes`` may only
        set agents, participation, test rows and measurements.
    table : path, Dataset or (features, labels), optional
        The rows of a study: a file, data frame or Arrow table with its columns, or rows in its encoding, for example
        the ``dataset`` of an earlier result. Numeric labels are scaled to −1 … 1, and so are the errors in the trace.
    settings : Settings, optional
        Base settings, to which ``changes`` are applied.
    classes : sequence, optional
        Public list of the class labels, negative class first. Required if the labels are not ±1.
    by : str, optional
        Column of the study's table that identifies the owner of each row.
    public : path or False, optional
        Public table to use instead of the study's public rows; False ignores them. See :func:`dpadmm.train`.
    groups : array-like of shape (n_rows,), optional
        Owner of each row. Each distinct value is an agent. Implies ``partition="groups"`` and overrides ``n_agents``.
    participation : float or bool array-like of shape (n_rounds, n_agents), optional
        An array is a public plan of the rounds in which each agent participates; the noise is calibrated to each
        agent's number of rounds. A number such as 0.8 is the probability that an agent participates in a round.
    observers : sequence of callables, optional
        Called with a :class:`dpadmm.engine.loop.RoundView` after every round.
    exact_noise : bool, default=False
        Whether to add the noise of a deployed site: integers drawn from the operating system's entropy. Slower and
        not reproducible; for ``auto``, ``dp_admm`` and ``dp_sgd`` only. ``seed`` still determines the split of the
        rows.
    warm_start : Model or array of shape (n_features, n_outputs), optional
        Public weights to start from, in the encoding of these rows. The privacy loss of a model is not included in
        the report of this run. A model trained without privacy is refused in a private run.
    keep_interrupted : bool, default=False
        Whether Ctrl-C ends the run and returns the rounds so far. If False, KeyboardInterrupt is raised.
    **changes
        Parameters of :class:`dpadmm.Settings`, such as ``epsilon=1.0, n_agents=100``. ``loss``, ``regularizer`` and
        ``method`` are names, tables such as ``{"name": "huber", "delta": 0.5}``, or instances, including your own
        classes.

    Returns
    -------
    Result
        The model, the trace of losses and errors by round, and the privacy report.

    Raises
    ------
    StudyError
        If a setting is unknown, out of range or already set by the study.
    DataError
        If the rows or labels do not fit the loss or the study.
    DivergenceError
        If the weights are no longer finite.

    See Also
    --------
    dpadmm.train : Train the model of a study with exact noise.

    Examples
    --------
    >>> from dpadmm import simulate
    >>> result = simulate("synthetic", n_agents=10, epsilon=1.0, delta=1e-5, n_rounds=20, seed=1)
    >>> print(f"{result.privacy.epsilon:.3f}")
    1.000
    >>> result.model.predict(result.rows.features[:3]).shape
    (3,)
    """
    if participation is not None and np.ndim(participation) == 0:
        changes["participation"], participation = participation, None
    study = _study(data, table, settings=settings, classes=classes, by=by, public=public)
    prior = None
    if study is not None:
        study, public_table = with_public_table(study, public)
        prior = None if public_table is None else prior_from(study, public_table, private=table)
    if prior is not None and warm_start is not None:
        raise StudyError("warm_start and public rows cannot be combined; leave one of them out (public=False)")
    if (groups is not None or by is not None) and settings is None:
        changes.setdefault("partition", "groups")
    settings = settings_of(study, changes) if study else _settings(settings, changes)
    if exact_noise and settings.partition == "label_skewed":
        raise StudyError(
            "exact noise needs public numbers of rows, but with partition='label_skewed' they depend on the labels; "
            "choose equal, unequal or groups, or simulated noise"
        )
    if settings.seed is None:
        settings = replace(settings, seed=fresh_seed())
    if isinstance(warm_start, Model) and settings.method.private and not warm_start.privacy.get("private"):
        raise StudyError(
            "warm_start: the model was trained without privacy or has no privacy report, so a private run that starts "
            "from it would disclose it; pass public weights as an array"
        )
    source: Any = data if study is None else rows_of(study, table, by=by)
    dataset = as_dataset(source, settings, classes=study.classes if study else classes, groups=groups)
    if study is not None and dataset.n_features != len(study.features):
        raise DataError(f"the rows have {dataset.n_features} features, but the study has {len(study.features)}")
    prepared = prepare(dataset, settings)
    noise = ExactNoise() if exact_noise else None
    return run_prepared(
        prepared,
        settings,
        study=study,
        plan=participation,
        observers=observers,
        noise=noise,
        prior=prior,
        warm_start=warm_start.weights if isinstance(warm_start, Model) else warm_start,
        keep_interrupted=keep_interrupted,
    )


def run_prepared(
    prepared: PreparedData,
    settings: Settings,
    *,
    study: Study | None = None,
    plan: ArrayLike | None = None,
    observers: Sequence[Observer] = (),
    noise: Noise | None = None,
    warm_start: Floats | None = None,
    prior: Prior | None = None,
    keep_interrupted: bool = False,
) -> Result:
    """Simulate a run on prepared rows and measure every ``metrics_every`` rounds.

    If ``noise`` is not given, it is simulated from the seed. With a ``study``, the resulting model accepts tables.
    """
    problem, rows, seed = prepared.problem, prepared.rows, seed_of(settings)
    settings = settings.resolved(problem, rows)
    if settings.method.one_round and settings.participation < 1.0:
        raise StudyError(
            f"{settings.method.name} has one round, so participation must be 1, not {settings.participation}"
        )
    rho = choice_to_dict(settings.method).get("rho")
    averages = Averages(with_released=settings.metrics_every > 0 and rho is not None)
    metrics = Metrics(
        problem, rows, averages, rho, prepared.test,
        max(1, settings.metrics_every), settings.average,
    )  # fmt: skip
    result = run(
        settings,
        problem,
        rows,
        noise or SimulatedNoise(seed, rows.n_agents, (rows.n_features, problem.loss.n_outputs)),
        participation=_participation(settings, plan, rows.n_agents, seed),
        stop=StopWhenStill(settings.stop_tolerance) if settings.stop_tolerance else None,
        averages=averages,
        observers=[*([metrics] if settings.metrics_every else []), *observers],
        warm_start=warm_start,
        prior=prior,
        keep_interrupted=keep_interrupted,
        seed=seed,
        aborts=RandomAborts(settings.aborted_rounds, seed) if settings.aborted_rounds else None,
        max_rows_per_site=study.max_rows_per_site if study else None,
    )
    if study is not None:
        study = replace(study, training=study.training.with_changes(n_rounds=settings.n_rounds))
    return replace(result, trace=metrics.trace, dataset=prepared.dataset, of_study=study, names=prepared.names)


def settings_of(study: Study, given: Mapping[str, Any]) -> Settings:
    """Return the settings of a simulated study.

    ``given`` may set agents, participation, test rows, measurements and the seed. The study sets the rest.
    """
    raise_problems(name_problems(given, Settings, "a simulated study"))
    fixed = settings_fixed_by(study)
    for name in given:
        if name in fixed:
            raise StudyError(f"{name} is set by the study; leave it out here, or change it there")
    own = {parameter.name: getattr(study.training, parameter.name) for parameter in parameters(Training)}
    return Settings(**own, clip_rows=study.schema is None, **given)


def settings_fixed_by(study: Study) -> set[str]:
    """Return the names of the settings that a study sets."""
    return {*study.training.to_dict(), "clip_rows"}


def rows_of(study: Study, table: Table, *, by: str | None = None) -> Dataset | tuple[Any, Any]:
    """Encode a table by the columns of a study, without the intercept, which :func:`prepare` adds.

    A data set or a pair of arrays is returned unchanged.
    """
    if isinstance(table, Dataset | tuple):
        return table
    rows = encode(study, table, by=by, intercept=False)
    owners = None if rows.groups is None else np.array(rows.owners, dtype=object)[rows.groups]
    name, weights = Path(str(open_table(table).location)).name, rows.row_weights
    return Dataset(name, rows.features, rows.labels, study.classes, owners, study.features, weights)


def _study(data: object, table: object, **others: object) -> Study | None:
    """Return the study to simulate, or None. Raise StudyError for arguments that do not apply."""
    if table is None and not isinstance(data, Study):
        for name in ("by", "public"):
            if others[name] is not None:
                raise StudyError(f"{name} needs a study and its table; for other rows use groups or warm_start")
        return None
    if table is None:
        raise StudyError('a study needs rows: simulate(study, "patients.csv")')
    if not isinstance(data, Study | str | PathLike):
        raise StudyError(f"with a table, the first argument must be a study or its path, not {type(data).__name__}")
    for name in ("settings", "classes"):
        if others[name] is not None:
            raise StudyError(f"{name} are set by the study; leave them out here, or change them there")
    return data if isinstance(data, Study) else read_study(Path(data))


def _settings(settings: Settings | None, changes: Mapping[str, Any]) -> Settings:
    if settings is None:
        return settings_from(changes, "simulate()")
    raise_problems(name_problems(changes, Settings, "simulate()"))
    return settings.with_changes(**changes)


def _participation(settings: Settings, plan: ArrayLike | None, n_agents: int, seed: int) -> Participation | None:
    """Return the participation of agents in rounds. None: all agents in all rounds."""
    if plan is None:
        probability = settings.participation
        return (
            None
            if probability == 1.0
            else RandomParticipation(probability, n_agents, seed, settings.min_honest_sites or 1)
        )
    mask: NDArray[np.bool_] = np.asarray(plan, dtype=bool)
    if mask.shape != (settings.planned_rounds, n_agents):
        raise StudyError(
            f"the participation plan has shape {mask.shape}, but there are {settings.planned_rounds} rounds "
            f"and {n_agents} agents"
        )
    if not mask.any(axis=0).all():
        idle = int(np.argmin(mask.any(axis=0))) + 1
        raise StudyError(f"the participation plan has no round for agent {idle}; leave the agent out")
    return PlannedParticipation(mask)
