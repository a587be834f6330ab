"""The study: the public configuration of a run, immutable and identified by a hash.

The hash covers columns, model, method, noise and number of rounds. A site pins it at enrolment, and no later message
can change any of these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import numpy as np
from msgspec import Meta

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.release_plan import MAX_RELEASES, gaussian
from dpadmm.data.dataset import resolve_classes
from dpadmm.data.schema import Label, Schema
from dpadmm.data.schema_file import (
    confirmed,
    label_as_json,
    rows_from,
    schema_as_json,
    suspicious_columns,
    unconfirmed,
)
from dpadmm.data.schema_file import problems as rows_problems
from dpadmm.data.tabulation import tabulated
from dpadmm.errors import StudyError
from dpadmm.files.atomic import StrPath
from dpadmm.files.toml import read_toml
from dpadmm.matrices.clipping import INTERCEPT
from dpadmm.methods import KINDS, METHODS, DeployableMethod, ReleaseRounds, StatisticsRelease
from dpadmm.methods.newton import NewtonRounds
from dpadmm.parameters.fields import Parameter, check_names, for_json, hash_of, nearest, parameters, problems
from dpadmm.parameters.suggestions import first_of
from dpadmm.parameters.text import text_problems
from dpadmm.queries import make_query
from dpadmm.queries.problem import Problem, PublicSizes
from dpadmm.studies.public_rows import PublicRows, is_unconfirmed, public_rows_from, public_rows_problems
from dpadmm.studies.roster import RosterEntry, roster_from
from dpadmm.studies.settings import BUDGETS, PRIVACY, REGISTRIES, Training, flat_parameters
from dpadmm.trusted.discrete_gaussian import Lattice
from dpadmm.trusted.policy import MaskingTerms, Terms

FORMAT = "dpadmm-study/2"
ADJACENCY = "replace-one"
DEPLOYABLE = tuple(name for name, method in METHODS.items() if method.deployable)
"""Methods whose agents send only noisy sums over all their rows."""

TRAINING = "training"
"""The default kind: a study that trains a model. Optional in the file."""

Origin = Literal["public", "assumed", "derived from public data"]
"""Source of a constant."""

MAX_CLASS_VALUE = 10**15
MIN_NOISE, MAX_NOISE = 0.1, 1e9
"""Range of noise multipliers z for which exact noise can be drawn."""

LARGE_EPSILON = 10.0


@dataclass(frozen=True, kw_only=True)
class Study:
    """The public configuration of a run.

    ``training`` may be a mapping of settings. With ``schema`` and ``label``, ``features`` and ``classes`` are derived.
    Without them, ``features`` names numeric columns that are used without encoding, and rows are clipped to norm 1.

    Examples
    --------
    >>> study = Study(name="flu", features=("age", "fever"), training={"epsilon": 1.0, "delta": 1e-6})
    >>> study.shape, study.hash[:8], study.training.method.name
    ((2, 1), '...', 'auto')
    """

    name: Annotated[str, "Title of the study, on one line."]
    training: Training
    schema: Schema | None = None
    label: Label | None = None
    features: Annotated[tuple[str, ...], "Numeric columns used without encoding, in the order of the weights."] = ()
    classes: Annotated[
        tuple[str | int | float, ...] | None, "Public classes of the label, negative first; omit for a numeric label."
    ] = None
    provenance: Annotated[
        Mapping[str, Origin],
        "Source of each constant that is not the default. A constant tuned on private rows would leak them.",
    ] = field(default_factory=dict)
    allow_missed_rounds: Annotated[bool, "Whether sites may miss rounds. A missed round is not charged."] = False
    quorum: Annotated[
        Annotated[int, Meta(ge=1, le=10**6)] | None,
        "With allow_missed_rounds: minimum number of answers per round (default: all sites).",
    ] = None
    deadline: Annotated[
        Annotated[float, Meta(ge=0.1, le=1e7)] | None,
        "With allow_missed_rounds: seconds after which a round closes if the quorum has answered "
        "(default: wait for all connected sites).",
    ] = None
    max_rows_per_site: Annotated[
        Annotated[int, Meta(ge=1, le=10**8)] | None,
        "With secure aggregation: maximum number of rows per site. Every site scales its noise to this number.",
    ] = None
    roster: tuple[RosterEntry, ...] = ()
    public_rows: PublicRows | None = None

    def __post_init__(self) -> None:
        for parameter in parameters(Study):
            if parameter.name in ("name", "allow_missed_rounds", "quorum", "deadline", "max_rows_per_site"):
                object.__setattr__(self, parameter.name, parameter.checked(getattr(self, parameter.name), "study: "))
        if not self.name.strip():
            raise StudyError("study: name must not be empty")
        if not self.allow_missed_rounds and (self.quorum is not None or self.deadline is not None):
            raise StudyError("study: quorum and deadline require allow_missed_rounds = true")
        self._make_training()
        self._check_columns()
        self._check_training()
        object.__setattr__(self, "roster", roster_from(self.roster))
        for message in text_problems(self.as_json()):
            raise StudyError(f"study: {message}")
        self._check_aggregation()
        _ = self.terms  # raises if the noise is out of range
        self._check_overflow()

    def _check_aggregation(self) -> None:
        """Check the settings of secure aggregation.

        The roster may be empty: a draft has none yet and can be run in one process.
        """
        min_honest_sites, n = self.training.min_honest_sites, len(self.roster)
        if min_honest_sites is None:
            if n or self.max_rows_per_site is not None:
                raise StudyError('study: roster and max_rows_per_site require aggregation = "secure" under [privacy]')
            return
        if n and self.max_rows_per_site is None:
            raise StudyError(
                "study: secure aggregation requires max_rows_per_site, the maximum number of rows per site"
            )
        self.check_sites(n)

    def check_sites(self, n_sites: int) -> None:
        """Raise StudyError unless ``min_honest_sites`` is below the smallest round; 0 sites: number unknown."""
        min_honest_sites, quorum = self.training.min_honest_sites, self.quorum_of(n_sites)
        if min_honest_sites is not None and 0 < quorum <= min_honest_sites:
            raise StudyError(
                f"study: min_honest_sites = {min_honest_sites}, but a round may have only {quorum} sites and at "
                f"least one may collude with "
                f"the server; set min_honest_sites to {quorum - 1} or less, or add sites"
            )

    def _check_overflow(self) -> None:
        """Raise StudyError if the sum of all masked answers may exceed 63 bits, or a noise share is too small."""
        terms, min_honest_sites = self.terms, self.training.min_honest_sites
        if min_honest_sites is not None and self.max_rows_per_site is not None:
            for release, _ in terms.plan.tally():
                query = terms.statistics[gaussian(release).statistic]
                lattice = Lattice(query.row_norm, math.prod(query.shape), self.max_rows_per_site)
                reach = lattice.max_upload(lattice.noise_scale(gaussian(release).noise_multiplier, min_honest_sites))
                if (max(1, len(self.roster)) * reach).bit_length() > 62:
                    raise StudyError("study: the sum over all sites may exceed 63 bits; reduce max_rows_per_site")

    @property
    def kind(self) -> str:
        """``training``, ``statistics`` or ``evaluation``."""
        method = self.training.method
        return method.name if type(method) in KINDS.values() else TRAINING

    @cached_property
    def encoding(self) -> Schema | None:
        """Schema that maps cells to features; for statistics, to counts, moments and tables."""
        method = self.training.method
        if self.schema is None or not isinstance(method, StatisticsRelease):
            return self.schema
        return tabulated(self.schema, method.tables or (), method.bins)

    def _check_columns(self) -> None:
        labelled = self.kind != StatisticsRelease.name
        if not labelled and self.label is not None:
            raise StudyError("study: statistics have no label; declare it as a column instead")
        if labelled and (self.schema is None) != (self.label is None):
            raise StudyError("study: give both columns and label, or only features")
        if (encoding := self.encoding) is not None:
            if self.features not in ((), encoding.features):
                raise StudyError("study: features are derived from the columns; remove features")
            object.__setattr__(self, "features", encoding.features)
            object.__setattr__(self, "classes", self.label.classes if self.label else None)
        for name in ("features", "classes"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        _check_features(self.features)
        object.__setattr__(self, "classes", _normalize_classes(self.classes))

    def _make_training(self) -> None:
        if isinstance(self.training, Mapping):
            check_names(self.training, flat_parameters(Training), "study, training")
            training = Training(**self.training)
            for name in self.training.keys() - training.flat().keys():
                raise StudyError(f"study: the chosen method, loss and regularizer have no setting {name}; remove it")
            object.__setattr__(self, "training", training)
        if type(self.training) is not Training:  # a subclass could change the meaning of the settings
            raise StudyError(f"study: training must be a mapping of settings, not {self.training!r:.60}")

    def _check_training(self) -> None:
        training = self.training
        for what, registry in REGISTRIES.items():  # readers of the file look these classes up by name
            choice = getattr(training, what)
            if type(choice) is not registry.classes.get(choice.name) and type(choice) not in KINDS.values():
                raise StudyError(f"study: the {what} {choice.name!r} is not registered, so sites cannot load it")
        for name in BUDGETS:
            if isinstance(getattr(training, name), tuple):
                raise StudyError(f"study: {name} must be a single number, the same for every agent")
        if not training.method.deployable:
            raise StudyError(f"study: {_not_deployable(training.method.name)}")
        task = training.loss.task
        self._check_counts()
        self._check_weights()
        numbers = task in ("regression", "count")
        if self.label is not None and self.label.has_bounds != numbers:
            raise StudyError(
                f"study: the {training.loss.name} loss requires {'bounds' if numbers else 'classes'} under [label]"
            )
        if self.label is not None and task == "multiclass" and len(self.label.classes or ()) == 2:
            raise StudyError("study: softmax requires three or more classes; use the logistic loss for two")
        resolve_classes(task, self.classes)
        self._check_public_rows()
        self._check_provenance()

    def _check_counts(self) -> None:
        """Check the settings of count labels, and reject them for other labels."""
        label, loss = self.label, self.training.loss
        if loss.task != "count":
            if label is not None and label.exposure is not None:
                raise StudyError(f"study: exposure and times require the poisson loss, not {loss.name}")
            return
        if label is None:
            raise StudyError(f"study: the {loss.name} loss requires [columns], and [label] with bounds")
        self.training.check_intercept()
        if self.schema is not None and label.exposure in [column.name for column in self.schema.columns]:
            raise StudyError(f"study: {label.exposure!r} is the label's exposure; remove it from [columns]")
        if label.bounds is not None and label.bounds[0] != 0.0:
            raise StudyError(f"study: counts start at 0, not {label.bounds[0]:g}; set bounds = [0, maximum]")
        if label.times is not None and not self.training.has_inference:
            raise StudyError("study: times require inference = true under [method]")
        object.__setattr__(self, "label", replace(label.normalized(), counts=True))

    def _check_weights(self) -> None:
        """Check that row weights fit the other settings."""
        label, training = self.label, self.training
        if label is None or not label.weighted:
            return
        if self.kind != TRAINING:
            raise StudyError(f"study: weights apply to training only; remove them for kind = {self.kind!r}")
        if self.schema is not None and label.weight in [column.name for column in self.schema.columns]:
            raise StudyError(f"study: {label.weight!r} is the label's weight; remove it from [columns]")
        if training.has_inference and training.loss.task == "regression" and not training.intercept:
            raise StudyError(
                "study: inference with the squared loss and weights requires intercept = true, "
                "from which the mean weight is estimated"
            )

    def _check_public_rows(self) -> None:
        if self.public_rows is None:
            return
        if not isinstance(self.public_rows, PublicRows):
            raise StudyError(f"study: public_rows must be PublicRows, not {self.public_rows!r:.60}")
        if self.schema is None:
            raise StudyError("study: [public_rows] requires [columns] and [label]")
        if not self.training.method.weighs_public_rows:
            supported = ", ".join(name for name in DEPLOYABLE if METHODS[name].weighs_public_rows)
            raise StudyError(
                f"study: {self.training.method.name} does not use public rows; remove [public_rows] or use {supported}"
            )

    def _check_provenance(self) -> None:
        """Require a source for each constant that is not the default."""
        if not isinstance(self.provenance, Mapping):
            raise StudyError(f"study: provenance must be a table, not {self.provenance!r:.60}")
        object.__setattr__(self, "provenance", dict(self.provenance))
        for message in problems(self.provenance, provenance_parameters(), "study: provenance"):
            raise StudyError(message)
        if self.kind != TRAINING:
            return  # no constants to tune
        settings, choices = self.training.flat(), {what: getattr(self.training, what).name for what in REGISTRIES}
        defaults = Training(**choices, epsilon=1.0).flat()
        for name in _constants().keys() & settings.keys():
            if settings[name] != defaults[name] and name not in self.provenance:
                raise StudyError(
                    f"study: {name} = {settings[name]} is not the default, so its source is required. Add {name} = "
                    '"assumed", "public" or "derived from public data" under [provenance]. A value tuned on private '
                    "rows would leak them"
                )

    @cached_property
    def problem(self) -> Problem:
        """The optimization problem."""
        return self.training.problem(len(self.classes or ()), self.label)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Shape (d, p) of the weights."""
        return len(self.features) + self.training.intercept, self.problem.loss.n_outputs

    @cached_property
    def broadcast_shape(self) -> tuple[int, ...]:
        """Shape of the broadcast: that of the weights, unless the method's state is larger."""
        return self.method(1).start(self.shape).shape

    def upload_shape(self, round: int) -> tuple[int, ...]:
        """Return the shape of a site's release in round k."""
        release = self.terms.plan.at(round if 1 <= round <= self.terms.plan.n_rounds else 1)
        assert release is not None  # every round of a study releases something
        return self.terms.statistics[gaussian(release).statistic].shape

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier z; the minimum if rounds differ."""
        return min(gaussian(release).noise_multiplier for release, _ in self.terms.plan.tally())

    @property
    def epsilon(self) -> float:
        """Total ε of all rounds: the configured value, or computed from the noise."""
        epsilon, terms = self.training.epsilon, self.terms
        if isinstance(epsilon, float):
            return epsilon
        return exact_epsilon(math.sqrt(terms.plan.mu_squared()), terms.delta)

    def method(self, *n_rows: int) -> DeployableMethod[Any]:
        """Return the method for agents with these numbers of rows."""
        sizes = PublicSizes(np.array(n_rows), self.shape[0])
        rounds = np.full(len(n_rows), self.training.planned_rounds)
        return cast(DeployableMethod[Any], self.training.rounds(self.problem, sizes, rounds))

    def check_rows(self, *n_rows: int) -> None:
        """Raise StudyError if the noise would dominate the releases of agents with these numbers of rows."""
        method = self.method(*n_rows)
        if isinstance(method, NewtonRounds):
            columns = len(self.schema.columns) if self.schema else len(self.features)
            method.check_rows(np.array(n_rows), columns + self.training.intercept, self.training.min_honest_sites)
        if self.kind != TRAINING:
            unit = self.encoding.scale if self.encoding and self.kind == StatisticsRelease.name else 1.0
            cast(ReleaseRounds, self.method(*n_rows)).check_rows(np.array(n_rows), unit, self.training.min_honest_sites)

    @cached_property
    def terms(self) -> Terms:
        """Terms that the guard of a site checks: plan, queries, δ and masking."""
        settings, problem = self.training, self.problem
        with np.errstate(over="ignore"):  # the range of z is checked below
            plan = self.method(1).plan(0, settings.planned_rounds)
        if plan.n_releases != settings.planned_rounds or len(plan.tally()) > MAX_RELEASES:
            raise StudyError(
                f"study: {settings.method.name} must release something in every round, and at most {MAX_RELEASES} "
                "different kinds in total"
            )
        for release, _ in plan.tally():
            z = getattr(release, "noise_multiplier", 0.0)
            if settings.noise_multiplier == 0.0:
                raise StudyError("study: noise_multiplier = 0 gives no privacy; set a positive value")
            if not MIN_NOISE <= z <= MAX_NOISE:
                raise StudyError(f"study: {_describe_noise_range(settings, z)}")
        names = dict.fromkeys(gaussian(release).statistic for release, _ in plan.tally())
        return Terms(
            hash=self.hash,
            name=self.name,
            method=settings.method.name,
            loss="" if self.kind == StatisticsRelease.name else problem.loss.name,
            plan=plan,
            statistics={name: make_query(name, problem, self.shape[0]) for name in names},
            delta=float(settings.delta),
            may_miss_rounds=self.allow_missed_rounds,
            masking=self._masking,
        )

    @property
    def _masking(self) -> MaskingTerms | None:
        """Terms of secure aggregation. A guard never enrols with an empty roster."""
        if self.training.min_honest_sites is None:
            return None
        keys = tuple((entry.name, bytes.fromhex(entry.key)) for entry in self.roster)
        return MaskingTerms(
            self.training.min_honest_sites, self.quorum_of(len(keys)), self.max_rows_per_site or 1, keys
        )

    def as_json(self) -> dict[str, Any]:
        """Return the study as plain values, including defaults; ``study_from`` is the inverse."""
        if self.schema is not None:
            label = {} if self.label is None else {"label": label_as_json(self.label)}
            columns = schema_as_json(self.schema, label=self.label.column if self.label else None)
            rows: dict[str, Any] = {**columns, **label}
        else:
            classes = None if self.classes is None else list(self.classes)
            rows = {"features": list(self.features), "classes": classes}
        return {
            "format": FORMAT,
            **({} if self.kind == TRAINING else {"kind": self.kind}),
            "name": self.name,
            "adjacency": ADJACENCY,
            **rows,
            **_tables(self.training, self.kind),
            "provenance": dict(self.provenance),
            "allow_missed_rounds": self.allow_missed_rounds,
            **({"intercept_value": INTERCEPT} if self.training.intercept else {}),
            **{name: value for name in _OPTIONAL if (value := getattr(self, name)) is not None},
            **({"roster": [entry._asdict() for entry in self.roster]} if self.roster else {}),
            **({"public_rows": {"sha256": self.public_rows.sha256}} if self.public_rows else {}),
        }

    def quorum_of(self, n_sites: int) -> int:
        """Return how many of ``n_sites`` must answer for a round to count."""
        if self.quorum is not None and n_sites and self.quorum > n_sites:
            raise StudyError(f"study: quorum = {self.quorum}, but only {n_sites} sites take part")
        return n_sites if self.quorum is None else self.quorum

    @cached_property
    def hash(self) -> str:
        """Identifier of the study, the same at the server and all sites."""
        return hash_of(self.as_json())


_OPTIONAL = ("quorum", "deadline", "max_rows_per_site")

TABLES: Mapping[str, tuple[str, ...]] = {
    "privacy": PRIVACY,
    "training": tuple(
        parameter.name for parameter in parameters(Training) if parameter.name not in (*PRIVACY, *REGISTRIES)
    ),
}
"""Settings in each table of a study file, except the tables of the registries."""

KEYS = (
    *("format", "kind", "name", "adjacency", "label", "columns", "row_norm", "interactions"),
    *("features", "classes", "public_rows", *REGISTRIES, *TABLES, *KINDS),
    *("provenance", "allow_missed_rounds", *_OPTIONAL, "roster", "intercept_value"),
)
"""Top-level keys of a study file."""


def read_study(path: StrPath) -> Study:
    """Read a study from its TOML file.

    Parameters
    ----------
    path : str or path-like
        The file. Paths in it are relative to its folder.

    Returns
    -------
    Study
        The study, checked and immutable.

    Raises
    ------
    StudyError
        If the file is not a valid study, or contains values that are not confirmed as public.
    """
    file = Path(path)
    return study_from(read_toml(file), str(file), file.parent)


def study_from(table: Mapping[str, Any], where: str = "study", folder: Path = Path()) -> Study:
    """Build a study from the parsed TOML file in ``folder``, or from :meth:`Study.as_json`.

    Unknown keys raise StudyError.
    """
    if not isinstance(table, Mapping):
        raise StudyError(f"{where}: a study must be a table, not {table!r:.60}")
    for problem in _file_problems(table, where):
        raise StudyError(problem)
    given: dict[str, Any] = {
        name: table[name]
        for name in ("name", "features", "classes", "provenance", "allow_missed_rounds", *_OPTIONAL, "roster")
        if name in table
    }
    try:
        if "columns" in table:
            given["label"], given["schema"] = rows_from(table)
        elif table.keys() & {"label", "row_norm", "interactions"}:
            raise StudyError("[label], row_norm and interactions require [columns]; with features, set classes instead")
        if "public_rows" in table:
            given["public_rows"] = public_rows_from(table["public_rows"], folder)
        for problem in _training_problems(table):
            raise StudyError(problem)
        return Study(**given, training=_training_from(table))
    except StudyError as error:
        raise StudyError(f"{where}: {str(error).removeprefix('study: ')}") from None


def study_problems(table: Mapping[str, Any]) -> list[str]:
    """Return a message for each problem of a study's table; unconfirmed values are not problems.

    Examples
    --------
    >>> table = {"format": "dpadmm-study/2", "name": "x", "features": ["a"], "training": {"rounds": 3}}
    >>> study_problems(table)
    ["training: unknown setting 'rounds'; did you mean 'n_rounds'?"]
    """
    messages = _file_problems(table, "study")
    if table.get("format") != FORMAT:
        return [message.removeprefix("study: ") for message in messages]
    if "columns" in table and "features" not in table:
        messages += rows_problems(table) or suspicious_columns(table)
    messages += _training_problems(table)
    if isinstance(table.get("provenance"), Mapping):
        messages += problems(table["provenance"], provenance_parameters(), "provenance")
    if "public_rows" in table:
        messages += public_rows_problems(table["public_rows"])
    if not messages:
        try:
            study_from(_confirm_all(table) if confirmations(table) else table)
        except StudyError as error:
            messages = [str(error)]
    return [" ".join(message.removeprefix("study: ").split()) for message in messages]


class Confirmation(NamedTuple):
    """Values inferred from the data that a person must confirm as public."""

    place: tuple[str, ...]
    """Table in the study file: ``("label",)``, ``("columns", name)`` or ``("public_rows",)``."""
    name: str
    group: Literal["label", "numbers", "categories", "public-rows"]
    values: str


def confirmations(table: Mapping[str, Any]) -> list[Confirmation]:
    """Return the unconfirmed values of a study's table; none if its text or columns have problems."""
    if "columns" not in table or "features" in table or text_problems(table) or rows_problems(table):
        return []
    pending = []
    for _, entry in unconfirmed(table):
        if "name" in entry:
            group: Any = "numbers" if entry["kind"] in ("number", "plain") else "categories"
            pending.append(Confirmation(("columns", entry["name"]), entry["name"], group, _format_values(entry)))
        else:
            pending.append(Confirmation(("label",), entry["column"], "label", _format_values(entry)))
    entry = table.get("public_rows", {})
    if is_unconfirmed(entry) and not public_rows_problems(entry):
        name = entry.get("file", entry["sha256"])
        pending.append(Confirmation(("public_rows",), name, "public-rows", "all rows of the table"))
    return pending


def _confirm_all(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the study's table with all values confirmed."""
    rows = {"public_rows": {**table["public_rows"], "public": True}} if "public_rows" in table else {}
    return {**confirmed(table), **rows}


def study_notes(study: Study) -> list[str]:
    """Return notes about the study that require no change."""
    note = "with inference, the public rows are only the starting point and do not affect the estimate"
    return [note] if study.training.has_inference and study.public_rows is not None else []


def study_warnings(study: Study, n_rows: int | None = None) -> list[str]:
    """Return warnings about weak protection or ignored settings.

    Protection is weak if ε is large, or if δ is not below 1 / ``n_rows``. Inference ignores the regularizer.
    """
    epsilon, delta, messages = study.epsilon, study.terms.delta, []
    if study.training.has_inference and (study.training.alpha or 0.0) > study.training.method.usual_alpha:
        messages.append("inference estimates the model without a penalty, so the regularizer has no effect")
    if epsilon >= LARGE_EPSILON:
        messages.append(
            f"ε = {epsilon:.4g} gives weak protection: odds about a person may change by a factor of e^{epsilon:.4g}"
        )
    if n_rows and delta * n_rows >= 1.0:
        messages.append(
            f"δ = {delta:g} is not below 1/{n_rows:,}, so it would permit publishing a row; "
            f"use {0.1 / n_rows:.0e} or less"
        )
    return messages


def provenance_parameters() -> list[Parameter]:
    """Return the entries of ``[provenance]``: one for each numeric constant of a model or method.

    Tuning such a constant on private rows would leak them without being accounted for.
    """
    return [Parameter(name, Origin, None, constant.help) for name, constant in _constants().items()]


def _constants() -> dict[str, Parameter]:
    """Return the numeric settings of models and methods."""
    budget = (*PRIVACY, "n_rounds")
    settings = flat_parameters(Training)
    return {name: setting for name, setting in settings.items() if setting.base is float and name not in budget}


def _tables(training: Training, kind: str = TRAINING) -> dict[str, dict[str, Any]]:
    """Return the training tables of a study file, without unset values.

    The number of rounds is always included. If the hash depended on the default, another version of dpadmm could
    assign the same hash to another plan.
    """
    tables: dict[str, dict[str, Any]] = {}
    for name in REGISTRIES:
        choice = getattr(training, name)
        own = {parameter.name: getattr(choice, parameter.name) for parameter in parameters(type(choice))}
        tables[name] = {"name": choice.name, **own}
    for name in training.method.omit_if_default:
        if not tables["method"][name]:
            del tables["method"][name]
    tables |= {name: {key: getattr(training, key) for key in keys} for name, keys in TABLES.items()}
    tables["training"]["n_rounds"] = training.planned_rounds
    if kind != TRAINING:
        tables[kind] = {key: for_json(value) for key, value in tables["method"].items() if key != "name"}
        tables["training"] = {name: tables["training"][name] for name in _TRAINING_KEYS[kind]}
        tables = {name: tables[name] for name in _tables_of(kind)}
    return {name: {k: v for k, v in table.items() if v is not None} for name, table in tables.items()}


def _training_from(table: Mapping[str, Any]) -> Training:
    """Build the training from a study's table whose single tables are valid."""
    given: dict[str, Any] = {}
    for name, registry in REGISTRIES.items():
        for key, value in table.get(name, {}).items():
            given[name if key == "name" else f"{registry.prefix}{key}"] = value
    for name in TABLES:
        given |= table.get(name, {})
    if (kind := _kind(table)) != TRAINING:
        given["method"] = KINDS[kind](**table.get(kind, {}))
    return Training(**given)


def _kind(table: Mapping[str, Any]) -> str:
    """Return the kind of study."""
    return str(table.get("kind", TRAINING))


_TRAINING_KEYS = {StatisticsRelease.name: ("n_rounds",), "evaluation": ("n_rounds", "intercept")}
"""Settings in ``[training]`` of studies that train no model."""


def _tables_of(kind: str) -> tuple[str, ...]:
    """Return the tables in the file of a study that trains no model."""
    return (kind, "training", "privacy", *(["loss"] if kind == "evaluation" else []))


def _file_problems(table: Mapping[str, Any], where: str) -> list[str]:
    """Return the problems of the top-level keys."""
    if table.get("format") != FORMAT:
        return [f'{where}: format must be "{FORMAT}", not {table.get("format")!r:.60}']
    messages = [f"{where}: {problem}" for problem in text_problems(table)]
    messages += [
        f"{where}: unknown setting {name!r:.60}; {nearest(str(name), KEYS)}" for name in table if name not in KEYS
    ]
    kinds = (TRAINING, *KINDS)
    if _kind(table) not in kinds:
        message = f"{where}: kind must be one of {', '.join(kinds)}, not {table['kind']!r:.60}"
        return [*messages, f"{message}; {nearest(_kind(table), kinds)}"]
    messages += _kind_problems(table, where)
    if table.get("adjacency", ADJACENCY) != ADJACENCY:
        messages.append(f'{where}: adjacency must be "{ADJACENCY}", not {table["adjacency"]!r:.60}')
    if "name" not in table:
        messages.append(f"{where}: name is missing")
    if ("columns" in table) == ("features" in table):
        messages.append(f"{where}: give either [columns] with public bounds and values, or a list of features")
    if table.get("intercept_value", INTERCEPT) != INTERCEPT:
        messages.append(
            f"{where}: intercept_value is {table['intercept_value']!r:.60}, but {INTERCEPT} in this version of dpadmm; "
            "use the same version at the server and all sites"
        )
    return messages


def _kind_problems(table: Mapping[str, Any], where: str) -> list[str]:
    """Return a message for each entry that does not apply to this kind of study."""
    kind = _kind(table)
    allowed = (*REGISTRIES, *TABLES) if kind == TRAINING else _tables_of(kind)
    unfit = [f"[{name}]" for name in (*REGISTRIES, *TABLES, *KINDS) if name in table and name not in allowed]
    if kind != TRAINING:
        others = {"public_rows", "provenance", *(("label", "row_norm") if kind == StatisticsRelease.name else ())}
        unfit += [f"{name!r:.60}" for name in table if name in others and table[name]]
        if isinstance(table.get("training"), Mapping):
            unfit += [f"training: {key!r:.60}" for key in table["training"] if key not in _TRAINING_KEYS[kind]]
    return [f"{where}: {entry} does not apply to kind = {kind!r}; remove it" for entry in unfit]


def table_parameters(table: str, name: str | None = None) -> Sequence[Parameter]:
    """Return the parameters of a training table of a study file; ``name`` selects a class of a registry."""
    if table in TABLES:
        return [flat_parameters(Training)[key].single() for key in TABLES[table]]
    if table in KINDS:
        return parameters(KINDS[table])
    return parameters(REGISTRIES[table].classes[name]) if name is not None else ()


def _training_problems(table: Mapping[str, Any]) -> list[str]:
    """Return the problems of each training table, checked separately."""
    messages = []
    for name, entries in ((name, table[name]) for name in (*REGISTRIES, *TABLES, *KINDS) if name in table):
        if not isinstance(entries, Mapping):
            messages.append(f"{name} must be a table, such as [{name}], not {entries!r:.60}")
        elif name in TABLES or name in KINDS:
            messages += problems(entries, table_parameters(name), name)
        elif not isinstance(entries.get("name"), str) or entries["name"] not in REGISTRIES[name].classes:
            choice, classes = entries.get("name"), REGISTRIES[name].classes
            message = f"{choice!r:.60} does not exist" if "name" in entries else "name is missing"
            messages.append(f"{name}: {message}; {nearest(str(choice), classes)}")
        else:
            messages += _choice_problems(name, entries)
    return messages


def _choice_problems(table: str, entries: Mapping[str, Any]) -> list[str]:
    """Return the problems with the parameters of a registered loss, regularizer or method."""
    classes, name = REGISTRIES[table].classes, entries["name"]
    if table == "method" and name not in DEPLOYABLE:
        return [f"{table}: {_not_deployable(name)}"]
    messages, given = [], {key: value for key, value in entries.items() if key != "name"}
    for key in list(given):
        owners = [other for other, cls in classes.items() if key in {parameter.name for parameter in parameters(cls)}]
        if owners and name not in owners:
            messages.append(f"{table}: {key} is a parameter of {', '.join(owners)}, not of {name}; remove it")
            del given[key]
    return messages + problems(given, table_parameters(table, name), table)


def _not_deployable(method: str) -> str:
    supported = f"{', '.join(DEPLOYABLE[:-1])} or {DEPLOYABLE[-1]}"
    return f"the method {method} runs in simulations only; use {supported}"


def _format_values(entry: Mapping[str, Any]) -> str:
    """Format the inferred values of a column or label."""
    keys = (
        *("bounds", "center", "scale", "values", "unseen", "classes", "bins"),
        *("exposure_bound", "weight_bound", "class_weight"),
    )
    values = {key: entry[key] for key in keys if key in entry}
    return ", ".join(f"{key} {first_of(value) if isinstance(value, list) else value}" for key, value in values.items())


def _describe_noise_range(settings: Training, z: float) -> str:
    """Return the message for a noise multiplier out of range, in terms of the setting that implies it."""
    name = next(budget for budget in BUDGETS if getattr(settings, budget) is not None)
    if name == "noise_multiplier":
        return f"noise_multiplier = {z:g} is outside {MIN_NOISE:g} to {MAX_NOISE:g}"
    amount, remedy = (
        ("little", f"reduce {name}") if z < MIN_NOISE else ("much", f"increase {name}, or use fewer rounds")
    )
    return (
        f"{name} = {getattr(settings, name):g} in {settings.planned_rounds} rounds requires too {amount} noise "
        f"(noise multiplier {z:.3g}, outside {MIN_NOISE:g} to {MAX_NOISE:g}); {remedy}"
    )


def _check_features(features: object) -> None:
    """Raise StudyError unless ``features`` are distinct column names."""
    if not isinstance(features, tuple) or not features:
        raise StudyError("study: features must be a list of at least one column name")
    seen: set[str] = set()
    for feature in features:
        if not isinstance(feature, str) or not feature.strip():
            raise StudyError(f"study: a feature must be a column name, not {feature!r:.60}")
        if feature in seen:
            raise StudyError(f"study: feature {feature!r} is listed twice")
        seen.add(feature)


def _normalize_classes(classes: object) -> tuple[Any, ...] | None:
    """Return the classes, with whole floats as integers: 1.0 and 1 must have the same hash."""
    if classes is None:
        return None
    if not isinstance(classes, tuple):
        raise StudyError(f"study: classes must be a list, not {classes!r:.60}")
    for value in classes:
        if not isinstance(value, str) and not (isinstance(value, int | float) and abs(value) <= MAX_CLASS_VALUE):
            raise StudyError(f"study: a class must be text or a number, not {value!r:.60}")
    return tuple(int(value) if isinstance(value, float) and value.is_integer() else value for value in classes)
