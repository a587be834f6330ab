"""All agents in this process: settings (or a study) + data -> model, trace and privacy report.

The noise here is simulated, unless exact noise is asked for: good for experiments, no protection for anyone,
and the report says so.
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
from dpadmm.engine.loop import (
    Averages,
    Observer,
    Participation,
    PlannedParticipation,
    RandomParticipation,
    RandomVoids,
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
from dpadmm.parameters.fields import check_names, parameters
from dpadmm.studies.settings import Settings, Training, flat_parameters, settings_from
from dpadmm.studies.study import Study, read_study
from dpadmm.training.preparation import DataSource, PreparedData, as_dataset, prepare, seed_of
from dpadmm.training.train import encode, prior_from, with_public_table


def simulate(
    data: DataSource | Study | StrPath,
    table: DataSource | StrPath | None = None,
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
    """Train across simulated agents and report what it cost in privacy and what it reached.

    Parameters
    ----------
    data : Dataset, (features, labels), "adult", "synthetic", or a study
        Rows must have an L2 norm ≤ 1 (or ``clip_rows=True``). A study, or its file, says all about model, method,
        budget and columns; ``changes`` are then about agents and measurements.
    table : path, Dataset or (features, labels), optional
        The rows of a study: a CSV or Parquet file with its columns, or rows in its encoding such as the ``dataset``
        of an earlier result. Labels that are numbers are scaled to −1 … 1, and errors with them.
    settings : Settings, optional
        A ready value; ``changes`` are applied on top.
    classes : sequence, optional
        Public list of the labels, negative first; needed where labels are not ±1.
    by : str, optional
        The column of a study's table that says who owns a row.
    public : path or False, optional
        A table in place of the study's public rows, or none, as for :func:`dpadmm.train`.
    groups : array of one value per row, optional
        Who owns a row: each value is an agent (``partition="groups"``, ``n_agents`` does not count).
    participation : bool array (rounds, agents), optional
        A public plan of who takes part when; noise is then calibrated to each agent's own number of rounds.
        A chance for unplanned absence is ``participation=0.8`` instead.
    observers : sequence of callables, optional
        Called with a :class:`dpadmm.engine.loop.RoundView` after every round.
    warm_start : (d, p) array or Model, optional
        Public weights to start from, in the encoding of these rows. What a model cost comes on top of what is
        reported here; one without privacy is refused in a private run.
    keep_interrupted : bool
        Whether Ctrl-C ends the run and returns what was done; otherwise it is raised as usual.
    exact_noise : bool
        Add what a deployed agent adds, whole numbers from the operating system's entropy: slower, never the
        same twice, and for auto, dp_admm and dp_sgd only. ``seed`` still names the split of the rows.
    **changes
        Anything that :class:`dpadmm.Settings` takes, such as ``epsilon=1.0, n_agents=100``. ``loss``,
        ``regularizer`` and ``method`` may be names or objects, your own too.

    Returns
    -------
    Result
        The model, a trace of losses and errors by round, and the privacy report.

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
        study, known = with_public_table(study, public)
        prior = None if known is None else prior_from(study, known, beside=table)
    if prior is not None and warm_start is not None:
        raise StudyError("warm_start and public rows are two starts; leave one of them out (public=False)")
    if (groups is not None or by is not None) and settings is None:
        changes.setdefault("partition", "groups")
    settings = settings_of(study, changes) if study else _settings(settings, changes)
    if exact_noise and settings.partition == "label_skewed":
        raise StudyError(
            "exact noise is for agents whose numbers of rows tell nothing: partition='label_skewed' deals "
            "rows by their labels; choose equal, unequal or groups, or simulated noise"
        )
    if settings.seed is None:
        settings = replace(settings, seed=fresh_seed())
    if isinstance(warm_start, Model) and settings.method.private and not warm_start.privacy.get("private"):
        raise StudyError(
            "warm_start: this model was trained without privacy, or does not say; a private run that starts from "
            "it would give it away (weights that are public can be given as an array)"
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
    """Simulate on prepared rows, and measure; ``noise`` is simulated from the seed if left out.

    Of a ``study``, the result keeps it, so that its model takes tables.
    """
    problem, rows, seed = prepared.problem, prepared.rows, seed_of(settings)
    settings = settings.with_rounds(problem, rows)
    if settings.method.one_round and settings.participation < 1.0:
        raise StudyError(
            f"in {settings.method.name} every agent speaks once, so participation must be 1, "
            f"not {settings.participation}"
        )
    rho = getattr(settings.method, "rho", None)
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
        voids=RandomVoids(settings.void_rounds, seed) if settings.void_rounds else None,
        most_rows=study.most_rows if study else None,
    )
    if study is not None:
        study = replace(study, training=study.training.changed(n_rounds=settings.n_rounds))
    return replace(result, trace=metrics.trace, dataset=prepared.dataset, of_study=study, names=prepared.names)


def settings_of(study: Study, given: Mapping[str, Any]) -> Settings:
    """A study's training, with what it leaves open: agents, participation, test rows, measurements and the seed."""
    check_names(given, flat_parameters(Settings), "a simulated study")
    for name in given:
        if name in said_by(study):
            raise StudyError(f"{name} belongs to the study; leave it out here, or change it there")
    own = {each.name: getattr(study.training, each.name) for each in parameters(Training)}
    return Settings(**own, clip_rows=study.schema is None, **given)


def said_by(study: Study) -> set[str]:
    """The settings of a simulation that follow from a study."""
    return {*study.training.flat(), "clip_rows"}


def rows_of(study: Study, table: Any, *, by: str | None = None) -> Dataset | tuple[Any, Any]:
    """A file by the columns of a study; the constant column comes later, as with all rows. Others as they are."""
    if isinstance(table, Dataset | tuple):
        return table
    rows = encode(study, table, by=by, intercept=False)
    owners = None if rows.groups is None else np.array(rows.owners, dtype=object)[rows.groups]
    name, weights = Path(table).name, rows.row_weights
    return Dataset(name, rows.features, rows.labels, study.classes, owners, study.features, weights)


def _study(data: object, table: object, **others: object) -> Study | None:
    """The study that is to be simulated, if it is one; it needs a table, and says itself what others might."""
    if table is None and not isinstance(data, Study):
        for name in ("by", "public"):
            if others[name] is not None:
                raise StudyError(f"{name} is for a study and its table; other rows take groups and warm_start")
        return None
    if table is None:
        raise StudyError('a study needs rows: simulate(study, "patients.csv")')
    if not isinstance(data, Study | str | PathLike):
        raise StudyError(f"the first of two is a study or its file, not {type(data).__name__}")
    for name in ("settings", "classes"):
        if others[name] is not None:
            raise StudyError(f"{name} belong to the study; leave them out here, or change them there")
    return data if isinstance(data, Study) else read_study(Path(data))


def _settings(settings: Settings | None, changes: Mapping[str, Any]) -> Settings:
    if settings is None:
        return settings_from(changes, "simulate()")
    check_names(changes, flat_parameters(Settings), "simulate()")
    return settings.changed(**changes)


def _participation(settings: Settings, plan: ArrayLike | None, n_agents: int, seed: int) -> Participation | None:
    """Who takes part when; None: everyone always."""
    if plan is None:
        chance = settings.participation
        return None if chance == 1.0 else RandomParticipation(chance, n_agents, seed, settings.honest or 1)
    mask: NDArray[np.bool_] = np.asarray(plan, dtype=bool)
    if mask.shape != (settings.planned_rounds, n_agents):
        raise StudyError(
            f"the participation plan has shape {mask.shape}, but there are {settings.planned_rounds} rounds "
            f"and {n_agents} agents"
        )
    if not mask.any(axis=0).all():
        idle = int(np.argmin(mask.any(axis=0))) + 1
        raise StudyError(f"agent {idle} never takes part in the participation plan; leave it out")
    return PlannedParticipation(mask)
