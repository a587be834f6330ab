"""All agents in this process: settings + data -> model, trace and privacy report.

The noise here is simulated: good for experiments, no protection for anyone, and the report says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpadmm import data as sources
from dpadmm.arrays import Features, Floats, Integers
from dpadmm.constants import Constants, constants_of
from dpadmm.data import Dataset, Partition
from dpadmm.errors import DataError, StudyError
from dpadmm.features import as_matrix, clip_rows, with_intercept
from dpadmm.losses import LOSSES
from dpadmm.methods import Centralized, DpAdmm, Method
from dpadmm.metrics import Metrics, TestRows, Trace
from dpadmm.model import Model
from dpadmm.privacy.calibration import (
    exact_round_noise_multiplier,
    paper_noise_multiplier,
    total_noise_multiplier,
)
from dpadmm.privacy.noise import SimulatedNoise, fresh_seed
from dpadmm.privacy.report import PrivacyReport
from dpadmm.problem import Problem, Rows, make_rows
from dpadmm.schedules import Constant, theorem_schedule
from dpadmm.settings import Settings, settings_from
from dpadmm.training import (
    Averages,
    Observer,
    Outcome,
    Participation,
    PlannedParticipation,
    RandomParticipation,
    StopWhenStill,
    train,
)

DataSource = Dataset | str | tuple[Any, Any]


@dataclass(frozen=True)
class Result:
    """A finished (or interrupted) simulated run.

    Attributes
    ----------
    model : Model
        The global model, ready to predict and save.
    trace : Trace
        The paper's measures by round; empty when ``metrics_every=0``.
    privacy : PrivacyReport
        What every agent has given away.
    outcome : Outcome
        Last consensus, local models, averages.
    constants : Constants
        c1..c4 and the rest, for :mod:`dpadmm.bounds`.
    problem : Problem
    rows : Rows
        The training rows as the agents hold them.
    settings : Settings
        As used: with the seed that was drawn.
    seconds : float
        Time in rounds.
    """

    model: Model
    trace: Trace
    privacy: PrivacyReport
    outcome: Outcome
    constants: Constants
    problem: Problem
    rows: Rows
    settings: Settings
    seconds: float

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the run early."""
        return self.outcome.interrupted

    def summary(self) -> dict[str, Any]:
        """Plain values for JSON: settings, rounds, measures at the end, privacy."""
        return {
            "settings": asdict(self.settings),
            "agents": self.rows.n_agents,
            "rows": len(self.rows.labels),
            "features": self.rows.n_features,
            "rounds": self.outcome.rounds,
            "interrupted": self.interrupted,
            "seconds": self.seconds,
            "measures": {k: v if np.isfinite(v) else None for k, v in self.trace.last().items()},
            "privacy": self.privacy.as_json(),
        }


def simulate(
    data: DataSource,
    *,
    settings: Settings | None = None,
    classes: Sequence[Any] | None = None,
    groups: ArrayLike | None = None,
    participation: ArrayLike | None = None,
    observers: Sequence[Observer] = (),
    **changes: Any,
) -> Result:
    """Train across simulated agents and report what it cost in privacy and what it reached.

    Parameters
    ----------
    data : Dataset, (features, labels), "adult" or "synthetic"
        Rows must have an L2 norm ≤ 1 (or ``clip_rows=True``).
    settings : Settings, optional
        A ready value; ``changes`` are applied on top.
    classes : sequence, optional
        Public list of the labels, negative first; needed where labels are not ±1.
    groups : array of one value per row, optional
        Who owns a row: each value is an agent (``partition="groups"``, ``n_agents`` does not count).
    participation : bool array (rounds, agents), optional
        A public plan of who takes part when; noise is then calibrated to each agent's own number of rounds.
        A chance for unplanned absence is ``participation=0.8`` instead.
    observers : sequence of callables, optional
        Called with a :class:`dpadmm.training.RoundView` after every round.
    **changes
        Any field of :class:`dpadmm.Settings`, such as ``epsilon=1.0, n_agents=100``.

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
    if groups is not None and settings is None:
        changes.setdefault("partition", "groups")
    settings = _settings(settings, changes)
    if settings.seed is None:
        settings = replace(settings, seed=fresh_seed())
    dataset = as_dataset(data, settings, classes=classes, groups=groups)
    prepared = prepare(dataset, settings)
    return run(prepared, settings, plan=participation, observers=observers)


@dataclass(frozen=True)
class Prepared:
    """Rows dealt to agents, test rows, and the problem: everything before privacy and training."""

    dataset: Dataset
    problem: Problem
    rows: Rows
    test: TestRows | None


def as_dataset(
    data: DataSource,
    settings: Settings,
    *,
    classes: Sequence[Any] | None = None,
    groups: ArrayLike | None = None,
) -> Dataset:
    """Turn whatever names or holds data into a :class:`Dataset` for the loss of these settings."""
    task = LOSSES[settings.loss].task
    if isinstance(data, str):
        if data == "adult":
            dataset = sources.load_adult()
        elif data == "synthetic":
            dataset = sources.synthetic(task, seed=0)
        else:
            raise DataError(
                f"there is no data set {data!r}; known are adult and synthetic (or give a Dataset)"
            )
    elif isinstance(data, Dataset):
        dataset = data
    else:
        features, values = data
        labels = sources.encode_labels(np.asarray(values), task=task, classes=classes)
        names = tuple(classes) if classes is not None else ((-1, 1) if task == "binary" else None)
        dataset = Dataset("arrays", as_matrix(features), labels, names)
    if groups is not None:
        owners = np.asarray(groups)
        if owners.shape != dataset.labels.shape:
            raise DataError(f"groups have shape {owners.shape}, but there are {len(dataset.labels)} rows")
        if settings.partition != "groups":
            raise StudyError(
                f"groups say who owns a row, but partition is {settings.partition!r}; drop one of them"
            )
        dataset = replace(dataset, groups=owners)
    _check_task(dataset, settings.loss)
    return dataset


def prepare(dataset: Dataset, settings: Settings) -> Prepared:
    """Hold out test rows, deal the others to agents, check and lay them out."""
    rng = np.random.default_rng([_seed(settings), 1])
    n_test = _test_count(settings.test_rows, len(dataset.labels))
    features = _shape_features(dataset.features, settings)
    everyone = np.arange(len(dataset.labels))
    kept, held = sources.holdout(len(everyone), n_test, rng) if n_test else (everyone, everyone[:0])
    deal = _deal(dataset, kept, settings, rng)
    rows = make_rows(features, dataset.labels, order=kept[deal.order], offsets=deal.offsets, names=deal.names)
    test = TestRows(features, dataset.labels[held], held) if n_test else None
    n_classes = len(dataset.classes) if dataset.classes is not None else 0
    return Prepared(dataset, settings.problem(n_classes), rows, test)


def run(
    prepared: Prepared,
    settings: Settings,
    *,
    plan: ArrayLike | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Calibrate, train and report on prepared rows."""
    started = perf_counter()
    problem, rows, seed = prepared.problem, prepared.rows, _seed(settings)
    participation, planned = _participation(settings, plan, rows.n_agents, seed)
    multipliers = _noise_multipliers(settings, rows.n_agents, planned)
    constants = constants_of(
        problem,
        n_features=rows.n_features,
        n_rows=rows.n_rows,
        noise_multiplier=multipliers,
        weight_radius=settings.weight_radius,
    )
    method: Method[Any]
    rho: float | None = None
    if settings.method == "centralized":
        method, n_rounds = Centralized(), 1
    else:
        theorem = settings.schedule == "theorem"
        schedule = theorem_schedule(constants) if theorem else Constant(settings.step_size, rows.n_agents)
        method, n_rounds = DpAdmm(settings.rho, schedule, multipliers), settings.n_rounds
        rho = settings.rho
    averages = Averages(with_released=settings.metrics_every > 0)
    metrics = Metrics(problem, rows, averages, rho, prepared.test, max(1, settings.metrics_every))
    outcome = train(
        method,
        problem,
        rows,
        n_rounds=n_rounds,
        noise=SimulatedNoise(seed, rows.n_agents, (rows.n_features, problem.loss.n_outputs)),
        participation=participation,
        stop=StopWhenStill(settings.stop_tolerance) if settings.stop_tolerance else None,
        averages=averages,
        observers=[*([metrics] if settings.metrics_every else []), *observers],
    )
    privacy = PrivacyReport(
        multipliers,
        outcome.n_releases,
        planned,
        settings.delta,
        method.name,
        ended_by_result=outcome.interrupted or settings.stop_tolerance is not None,
    )
    dataset = prepared.dataset
    model = Model(
        weights=outcome.weights(settings.average),
        task=problem.loss.task,
        loss=problem.loss.name,
        classes=dataset.classes,
        intercept=settings.intercept,
        clip=settings.clip_rows,
        feature_names=dataset.feature_names,
        privacy=privacy.as_json(),
    )
    return Result(
        model, metrics.trace, privacy, outcome, constants, problem, rows, settings, perf_counter() - started
    )


def _seed(settings: Settings) -> int:
    if settings.seed is None:
        raise StudyError(
            "prepare() and run() need settings with a seed; simulate() draws one where it is missing"
        )
    return settings.seed


def _settings(settings: Settings | None, changes: Mapping[str, Any]) -> Settings:
    if settings is None:
        return settings_from(changes, "simulate()")
    return settings_from({**asdict(settings), **changes}, "simulate()")


def _noise_multipliers(settings: Settings, n_agents: int, planned: Integers) -> Floats:
    """z of every agent; it depends on no row."""

    def each(name: str) -> Floats:
        values = np.asarray(getattr(settings, name), dtype=float)
        if values.ndim and values.shape != (n_agents,):
            raise StudyError(
                f"{name} has {values.size} values, but there are {n_agents} agents; give one for each"
            )
        return np.broadcast_to(values, (n_agents,))

    if settings.method == "centralized":
        return np.zeros(n_agents)
    if settings.noise_multiplier is not None:
        return each("noise_multiplier")
    if settings.epsilon is not None:
        return np.asarray(total_noise_multiplier(each("epsilon"), settings.delta, planned))
    calibrate = paper_noise_multiplier if settings.calibration == "paper" else exact_round_noise_multiplier
    return np.asarray(calibrate(each("round_epsilon"), settings.delta))


def _shape_features(features: Features, settings: Settings) -> Features:
    matrix = clip_rows(features) if settings.clip_rows else as_matrix(features)
    return with_intercept(matrix) if settings.intercept else matrix


def _test_count(test_rows: float, n_rows: int) -> int:
    count = int(test_rows) if test_rows >= 1 else round(test_rows * n_rows)
    if test_rows >= 1 and test_rows != count:
        raise StudyError(f"test_rows must be a whole number of rows or a share below 1, not {test_rows!r}")
    if count >= n_rows:
        raise StudyError(f"test_rows asks for {count} of {n_rows} rows, so none is left to train on")
    return count


def _deal(dataset: Dataset, kept: Integers, settings: Settings, rng: np.random.Generator) -> Partition:
    n = settings.n_agents
    if settings.partition == "groups":
        if dataset.groups is None:
            raise DataError("partition by groups needs to know who owns a row: give groups= or --by COLUMN")
        return _deal_by_group(dataset.groups, kept)
    if settings.partition == "unequal":
        return sources.unequal(len(kept), n, rng, spread=settings.partition_spread)
    if settings.partition == "label_skewed":
        return sources.label_skewed(dataset.labels[kept], n, rng, concentration=settings.partition_spread)
    return sources.equal(len(kept), n, rng)


def _deal_by_group(groups: NDArray[Any], kept: Integers) -> Partition:
    """By group; an agent with too few rows is refused whether or not its rows happen to be held out."""
    everyone, deal = sources.by_group(groups), sources.by_group(groups[kept])
    training = dict(zip(deal.names, deal.sizes.tolist(), strict=True))
    for name, owned in zip(everyone.names, everyone.sizes.tolist(), strict=True):
        if training.get(name, 0) < 2:
            rows = "one row" if owned == 1 else f"{owned} rows, {training.get(name, 0)} of them for training"
            raise DataError(
                f"agent {name} has {rows}; every agent needs at least 2 to train on "
                "(leave it out, or hold out fewer test rows)"
            )
    return deal


def _participation(
    settings: Settings, plan: ArrayLike | None, n_agents: int, seed: int
) -> tuple[Participation | None, Integers]:
    """Who takes part when, and for how many rounds every agent's noise must be calibrated."""
    everything = np.full(n_agents, 1 if settings.method == "centralized" else settings.n_rounds)
    if plan is None:
        if settings.participation == 1.0:
            return None, everything
        return RandomParticipation(settings.participation, n_agents, seed), everything
    mask: NDArray[np.bool_] = np.asarray(plan, dtype=bool)
    if mask.shape != (settings.n_rounds, n_agents):
        raise StudyError(
            f"the participation plan has shape {mask.shape}, but there are {settings.n_rounds} rounds "
            f"and {n_agents} agents"
        )
    if not mask.any(axis=0).all():
        idle = int(np.argmin(mask.any(axis=0))) + 1
        raise StudyError(f"agent {idle} never takes part in the participation plan; leave it out")
    return PlannedParticipation(mask), mask.sum(axis=0)


def _check_task(dataset: Dataset, loss: str) -> None:
    task, labels = LOSSES[loss].task, dataset.labels
    if task == "binary":
        fits, wanted = _only(labels, np.array([-1.0, 1.0])), "labels -1 and +1 (two classes)"
    elif task == "multiclass":
        n = len(dataset.classes or ())
        fits, wanted = n >= 2 and _only(labels, np.arange(float(n))), "labels 0..p-1 and their classes"
    else:
        fits, wanted = dataset.classes is None, "numbers as labels, not classes"
    if not fits:
        raise DataError(
            f"loss {loss} needs {wanted}; data set {dataset.name!r} has none: choose another loss"
        )


def _only(labels: Floats, allowed: Floats) -> bool:
    return bool(np.isin(labels, allowed).all())
