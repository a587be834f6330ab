"""The study: the public configuration of a run, immutable and identified by a hash.

The hash covers columns, model, method, noise and number of rounds. A site pins it at enrolment, and no later message
can change any of these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal, cast

import numpy as np
from msgspec import Meta

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.release_plan import MAX_RELEASES, gaussian
from dpadmm.data.schema import Label, Schema
from dpadmm.data.schema_file import label_as_json, schema_as_json
from dpadmm.data.tabulation import tabulated
from dpadmm.errors import StudyError
from dpadmm.matrices.clipping import INTERCEPT
from dpadmm.methods import KINDS, DeployableMethod, Newton, ReleaseMethod, StatisticsRelease
from dpadmm.parameters.fields import convert_arguments, for_json, hash_of, parameters, raise_problems
from dpadmm.queries import make_query
from dpadmm.queries.problem import Problem, PublicSizes
from dpadmm.rendering import Renderable, Rendering
from dpadmm.studies import checks
from dpadmm.studies.public_rows import PublicRows
from dpadmm.studies.roster import RosterEntry, roster_from
from dpadmm.studies.settings import CHOICES, PRIVACY, Training, choice_to_dict, name_problems, nest
from dpadmm.trusted.policy import MaskingTerms, Terms

FORMAT = "dpadmm-study/2"
ADJACENCY = "replace-one"

TRAINING = "training"
"""The default kind: a study that trains a model. Optional in the file."""

Origin = Literal["public", "assumed", "derived from public data"]
"""Source of a constant."""

TABLES: Mapping[str, tuple[str, ...]] = {
    "privacy": PRIVACY,
    "training": tuple(
        parameter.name for parameter in parameters(Training) if parameter.name not in (*PRIVACY, *CHOICES)
    ),
}
"""Settings in each table of a study file, except the tables of the choices."""

TRAINING_KEYS = {StatisticsRelease.name: ("n_rounds",), "evaluation": ("n_rounds", "intercept")}
"""Settings in ``[training]`` of studies that train no model."""

OPTIONAL = ("quorum", "deadline", "max_rows_per_site")
"""Top-level keys that are omitted if they are not set."""


def tables_of(kind: str) -> tuple[str, ...]:
    """Return the tables with settings in the file of a study of this kind."""
    if kind == TRAINING:
        return (*CHOICES, *TABLES)
    return (kind, "training", "privacy", *(["loss"] if kind == "evaluation" else []))


def _normalize(cls: type[Study], given: dict[str, Any]) -> dict[str, Any]:
    """Check the type of each argument, and derive features, classes and the kind of label."""
    values, messages = dict(given), []
    for parameter in parameters(cls):
        if parameter.name in given and parameter.name in ("name", "allow_missed_rounds", *OPTIONAL):
            try:
                values[parameter.name] = parameter.checked(given[parameter.name])
            except StudyError as error:
                messages.append(str(error))
    raise_study_problems(messages)
    values["training"] = training = _build_training(given.get("training"))
    schema, label = given.get("schema"), given.get("label")
    if isinstance(schema, Schema):
        values["schema"] = schema = schema.normalized()
    if isinstance(label, Label):
        values["label"] = label = label.normalized()
    for name in ("features", "classes"):
        if isinstance(given.get(name), list):
            values[name] = tuple(given[name])
    if schema is not None:
        features = encoding_of(schema, training).features
        if values.get("features", ()) not in ((), features):
            raise StudyError("study: features are derived from the columns; remove features")
        values |= {"features": features, "classes": label.classes if label else None}
    if isinstance(values.get("classes"), tuple):  # 1.0 and 1 must have the same hash
        values["classes"] = tuple(int(c) if isinstance(c, float) and c.is_integer() else c for c in values["classes"])
    if label is not None and training.loss.task == "count" and not label.counts:
        values["label"] = replace(label, counts=True)
    provenance, public_rows = given.get("provenance", {}), given.get("public_rows")
    if not isinstance(provenance, Mapping):
        raise StudyError(f"study: provenance must be a table, not {provenance!r:.60}")
    if public_rows is not None and not isinstance(public_rows, PublicRows):
        raise StudyError(f"study: public_rows must be PublicRows, not {public_rows!r:.60}")
    values["provenance"] = nest(provenance)
    values["roster"] = roster_from(given.get("roster", ()))
    return values


def _build_training(given: Any) -> Training:
    if isinstance(given, Mapping):
        raise_problems(name_problems(given, Training, "study, training"))
        return Training(**given).concrete()
    if type(given) is not Training:  # a subclass could change the meaning of the settings
        raise StudyError(f"study: training must be a mapping of settings, not {given!r:.60}")
    return given.concrete()


def encoding_of(schema: Schema, training: Training) -> Schema:
    """Return the schema that maps cells to features; for statistics, to counts, moments and tables."""
    if isinstance(training.method, StatisticsRelease):
        return tabulated(schema, training.method.tables or (), training.method.bins)
    return schema


def raise_study_problems(messages: list[str]) -> None:
    """Raise one StudyError with all problems of a study, if there are any."""
    if messages:
        raise StudyError(f"study: {'; '.join(messages)}")


@convert_arguments(_normalize)
@dataclass(frozen=True, kw_only=True)
class Study(Renderable):
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
        Mapping[str, Origin | Mapping[str, Origin]],
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
        raise_study_problems(checks.settings_problems(self))
        raise_study_problems(checks.noise_problems(self))

    @property
    def kind(self) -> str:
        """``training``, ``statistics`` or ``evaluation``."""
        method = self.training.method
        return method.name if type(method) in KINDS.values() else TRAINING

    @cached_property
    def encoding(self) -> Schema | None:
        """Schema that maps cells to features; for statistics, to counts, moments and tables."""
        return None if self.schema is None else encoding_of(self.schema, self.training)

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
        return cast(DeployableMethod[Any], self.training.build(self.problem, sizes, rounds))

    def check_sites(self, n_sites: int) -> None:
        """Raise StudyError unless ``min_honest_sites`` is below the smallest round; 0 sites: number unknown."""
        raise_study_problems(list(checks.site_problems(self, n_sites)))

    def check_concrete(self) -> None:
        """Raise StudyError if the number of rounds is open: sites accept only studies with a fixed plan."""
        if self.training.is_open:
            raise StudyError(
                "the study leaves the number of rounds open; choose it: dpadmm plan study.toml --agents N --rows M "
                "--write"
            )

    def check_rows(self, *n_rows: int) -> None:
        """Raise StudyError if the noise would dominate the releases of agents with these numbers of rows."""
        method = self.method(*n_rows)
        if isinstance(method, Newton):
            columns = len(self.schema.columns) if self.schema else len(self.features)
            method.check_rows(np.array(n_rows), columns + self.training.intercept, self.training.min_honest_sites)
        if self.kind != TRAINING:
            unit = self.encoding.scale if self.encoding and self.kind == StatisticsRelease.name else 1.0
            cast(ReleaseMethod, self.method(*n_rows)).check_rows(np.array(n_rows), unit, self.training.min_honest_sites)

    @cached_property
    def terms(self) -> Terms:
        """Terms that the guard of a site checks: plan, queries, δ and masking."""
        settings, problem = self.training, self.problem
        with np.errstate(over="ignore"):  # the range of z is checked in checks.py
            plan = self.method(1).plan(0, settings.planned_rounds)
        if plan.n_releases != settings.planned_rounds or len(plan.tally()) > MAX_RELEASES:
            raise StudyError(
                f"study: {settings.method.name} must release something in every round, and at most {MAX_RELEASES} "
                "different kinds in total"
            )
        raise_study_problems(list(checks.noise_range_problems(settings, plan)))
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
            **_training_tables(self.training, self.kind),
            "provenance": for_json(self.provenance),
            "allow_missed_rounds": self.allow_missed_rounds,
            **({"intercept_value": INTERCEPT} if self.training.intercept else {}),
            **{name: value for name in OPTIONAL if (value := getattr(self, name)) is not None},
            **({"roster": [entry._asdict() for entry in self.roster]} if self.roster else {}),
            **({"public_rows": {"sha256": self.public_rows.sha256}} if self.public_rows else {}),
        }

    @property
    def is_draft(self) -> bool:
        """Whether the study needs a key of each site, for its roster, before it can be accepted."""
        return self.training.aggregation == "secure" and not self.roster

    def quorum_of(self, n_sites: int) -> int:
        """Return how many of ``n_sites`` must answer for a round to count."""
        if self.quorum is not None and n_sites and self.quorum > n_sites:
            raise StudyError(f"study: quorum = {self.quorum}, but only {n_sites} sites take part")
        return n_sites if self.quorum is None else self.quorum

    def rendering(self) -> Rendering:
        """Return the description of the study: hash, columns, model, noise and privacy loss."""
        from dpadmm.studies.rendering import render_study

        return render_study(self)

    @cached_property
    def hash(self) -> str:
        """Identifier of the study, the same at the server and all sites."""
        return hash_of(self.as_json())


def _training_tables(training: Training, kind: str) -> dict[str, dict[str, Any]]:
    """Return the training tables of a study file, without unset values.

    The number of rounds is missing only if the study leaves it open. Such a study cannot be enrolled, so the hash of
    an enrolled study does not depend on a default that another version of dpadmm may change.
    """
    tables: dict[str, dict[str, Any]] = {what: choice_to_dict(getattr(training, what)) for what in CHOICES}
    tables |= {name: {key: getattr(training, key) for key in keys} for name, keys in TABLES.items()}
    if kind != TRAINING:
        tables[kind] = {key: for_json(value) for key, value in tables["method"].items() if key != "name"}
        tables["training"] = {name: tables["training"][name] for name in TRAINING_KEYS[kind]}
        tables = {name: tables[name] for name in tables_of(kind)}
    return {name: {k: v for k, v in table.items() if v is not None} for name, table in tables.items()}
