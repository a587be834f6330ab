"""A study: the public contract of a training run, frozen and named by a hash of all it says.

Whoever knows the hash knows which columns, model, method, noise and number of rounds were agreed on: an agent
pins it when it enrols, and no later message can change any of it.
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
    doubted,
    label_as_json,
    rows_from,
    schema_as_json,
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
DEPLOYABLE = tuple(name for name, made in METHODS.items() if made.deployable)
"""Methods whose agents say nothing but noisy sums over all their rows."""
_DEPLOYABLE_WORDS = f"{', '.join(DEPLOYABLE[:-1])} and {DEPLOYABLE[-1]}"

TRAINING = "training"
"""The kind of a study that trains a model, which its file need not say."""

Origin = Literal["public", "assumed", "derived from public data"]
"""Where a constant comes from."""

LARGEST = 10**15
LEAST_NOISE, MOST_NOISE = 0.1, 1e9
"""z that exact noise can be drawn for."""

LARGE_EPSILON = 10.0


@dataclass(frozen=True, kw_only=True)
class Study:
    """What was agreed on.

    ``training`` may be given as a table of settings. Where the columns are known, ``schema`` and ``label``
    say so, and ``features`` and ``classes`` follow from them; else ``features`` are columns of numbers that are
    used as they are, and rows longer than 1 are shortened to 1.

    Examples
    --------
    >>> study = Study(name="flu", features=("age", "fever"), training={"epsilon": 1.0, "delta": 1e-6})
    >>> study.shape, study.hash[:8], study.training.method.name
    ((2, 1), '...', 'auto')
    """

    name: Annotated[str, "What it is about, on one line."]
    training: Training
    schema: Schema | None = None
    label: Label | None = None
    features: Annotated[
        tuple[str, ...], "Columns of numbers that are used as they are, in the order of the weights."
    ] = ()
    classes: Annotated[
        tuple[str | int | float, ...] | None, "The labels' public values, negative first; none for numbers."
    ] = None
    provenance: Annotated[
        Mapping[str, Origin],
        "Where a constant comes from that is not the default; a tuned one would leak rows.",
    ] = field(default_factory=dict)
    allow_missed_rounds: Annotated[bool, "Whether agents may miss rounds; they are not charged for those."] = False
    quorum: Annotated[
        Annotated[int, Meta(ge=1, le=10**6)] | None,
        "With allow_missed_rounds: the least number of sites whose answers make a round; all, if not given.",
    ] = None
    deadline: Annotated[
        Annotated[float, Meta(ge=0.1, le=1e7)] | None,
        "With allow_missed_rounds: seconds after which a round goes on without those that are missing, if there are "
        "enough; if not given, sites that are there are waited for.",
    ] = None
    most_rows: Annotated[
        Annotated[int, Meta(ge=1, le=10**8)] | None,
        "With secure_aggregation: no site has more rows than this; all of them draw their noise for so many.",
    ] = None
    roster: tuple[RosterEntry, ...] = ()
    public_rows: PublicRows | None = None

    def __post_init__(self) -> None:
        for each in parameters(Study):
            if each.name in ("name", "allow_missed_rounds", "quorum", "deadline", "most_rows"):
                object.__setattr__(self, each.name, each.checked(getattr(self, each.name), "study: "))
        if not self.name.strip():
            raise StudyError("study: name must not be empty")
        if not self.allow_missed_rounds and (self.quorum is not None or self.deadline is not None):
            raise StudyError("study: quorum and deadline need allow_missed_rounds = true: that sites may miss rounds")
        self._make_training()
        self._check_columns()
        self._check_training()
        object.__setattr__(self, "roster", roster_from(self.roster))
        for sentence in text_problems(self.as_json()):
            raise StudyError(f"study: {sentence}")
        self._check_trust()
        _ = self.terms  # the noise and the step sizes exist
        self._check_room()

    def _check_trust(self) -> None:
        """Of secure aggregation; drafts have no roster yet, and can be tried in one process."""
        honest, n = self.training.honest, len(self.roster)
        if honest is None:
            if n or self.most_rows is not None:
                raise StudyError('study: roster and most_rows belong to [privacy] trust = "secure_aggregation"')
            return
        if n and self.most_rows is None:
            raise StudyError("study: secure_aggregation needs most_rows: a number of rows that no site exceeds")
        self.check_sites(n)

    def check_sites(self, n_sites: int) -> None:
        """Refuse to rely on more honest sites than a round of so many sites may have; 0: not known how many."""
        honest, least = self.training.honest, self.quorum_of(n_sites)
        if honest is not None and 0 < least <= honest:
            raise StudyError(
                f"study: honest = {honest}, but a round may have {least} sites, of which one or more could work with "
                f"the aggregator; take at most {least - 1}, or more sites"
            )

    def _check_room(self) -> None:
        """The sum of what all sites say fits 63 bits, and their shares of the noise are not too small."""
        terms, honest = self.terms, self.training.honest
        if honest is not None and self.most_rows is not None:
            for release, _ in terms.plan.tally():
                asked = gaussian(release)
                statistic = terms.statistics[asked.statistic]
                grid = Lattice(statistic.row_norm, math.prod(statistic.shape), self.most_rows)
                reach = grid.max_upload(grid.noise_scale(asked.noise_multiplier, honest))
                if (max(1, len(self.roster)) * reach).bit_length() > 62:
                    raise StudyError("study: sums of so many sites and rows might not fit 63 bits; take fewer rows")

    @property
    def kind(self) -> str:
        """``training``, or ``statistics`` or ``evaluation``, which train nothing."""
        method = self.training.method
        return method.name if type(method) in KINDS.values() else TRAINING

    @cached_property
    def encoding(self) -> Schema | None:
        """How cells become features: by the columns, or as their counts, moments and tables."""
        method = self.training.method
        if self.schema is None or not isinstance(method, StatisticsRelease):
            return self.schema
        return tabulated(self.schema, method.tables or (), method.bins)

    def _check_columns(self) -> None:
        labelled = self.kind != StatisticsRelease.name
        if not labelled and self.label is not None:
            raise StudyError("study: statistics have no label; make it one of the columns")
        if labelled and (self.schema is None) != (self.label is None):
            raise StudyError("study: columns and label belong together; give both, or features alone")
        if (encoding := self.encoding) is not None:
            if self.features not in ((), encoding.features):
                raise StudyError("study: the columns say what the features are; leave features out")
            object.__setattr__(self, "features", encoding.features)
            object.__setattr__(self, "classes", self.label.classes if self.label else None)
        for name in ("features", "classes"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        _check_features(self.features)
        object.__setattr__(self, "classes", _checked_classes(self.classes))

    def _make_training(self) -> None:
        if isinstance(self.training, Mapping):
            check_names(self.training, flat_parameters(Training), "study, training")
            made = Training(**self.training)
            for name in self.training.keys() - made.flat().keys():
                raise StudyError(f"study: nothing that was chosen has the setting {name}; leave it out")
            object.__setattr__(self, "training", made)
        if type(self.training) is not Training:  # a class of its own could change what the settings mean
            raise StudyError(f"study: training must be a table of settings, not {self.training!r:.60}")

    def _check_training(self) -> None:
        training = self.training
        for what, registry in REGISTRIES.items():  # whoever reads the study's file makes these classes
            one = getattr(training, what)
            if type(one) is not registry.classes.get(one.name) and type(one) not in KINDS.values():
                raise StudyError(f"study: the {what} {one.name!r} is not one that sites know; register it first")
        for name in BUDGETS:
            if isinstance(getattr(training, name), tuple):
                raise StudyError(f"study: {name} must be one value, the same for every agent")
        if not training.method.deployable:
            raise StudyError(f"study: agents can answer for {_DEPLOYABLE_WORDS}, not for {training.method.name}")
        task = training.loss.task
        self._check_counts()
        self._check_weights()
        numbers = task in ("regression", "count")
        if self.label is not None and (self.label.bounds is None) == numbers:
            need = "bounds, since it predicts a number" if numbers else "classes"
            raise StudyError(f"study: with the loss {training.loss.name} the label needs {need}")
        if self.label is not None and task == "multiclass" and len(self.label.classes or ()) == 2:
            raise StudyError("study: for two classes take the loss logistic; softmax is for three or more")
        resolve_classes(task, self.classes)
        self._check_public_rows()
        self._check_provenance()

    def _check_counts(self) -> None:
        """What only labels that are counts have, and what they need."""
        label, loss = self.label, self.training.loss
        if loss.task != "count":
            if label is not None and label.exposure is not None:
                raise StudyError(f"study: exposure and times belong to the loss poisson, not to {loss.name}")
            return
        if label is None:
            raise StudyError(f"study: the loss {loss.name} needs [columns] and [label], which has the largest count")
        self.training.check_intercept()
        if self.schema is not None and label.exposure in [each.name for each in self.schema.columns]:
            raise StudyError(f"study: {label.exposure!r} is the label's exposure, so it cannot be a column too")
        if label.bounds is not None and label.bounds[0] != 0.0:
            raise StudyError(f"study: counts have the lower bound 0, not {label.bounds[0]:g}; bounds = [0, largest]")
        if label.times is not None and not getattr(self.training.method, "inference", False):
            raise StudyError("study: times need inference = true under [method], which estimates hazard ratios")
        object.__setattr__(self, "label", replace(label, counts=True))

    def _check_weights(self) -> None:
        """What weights of rows go with."""
        label, training = self.label, self.training
        if label is None or not label.weighted:
            return
        if self.kind != TRAINING:
            raise StudyError(f"study: weights are for training, and kind = {self.kind!r} counts rows; leave them out")
        if self.schema is not None and label.weight in [each.name for each in self.schema.columns]:
            raise StudyError(f"study: {label.weight!r} is the label's weight, so it cannot be a column too")
        inference = getattr(training.method, "inference", False)
        if inference and training.loss.task == "regression" and not training.intercept:
            raise StudyError(
                "study: intervals of the squared loss with weights need intercept = true, which tells the mean weight"
            )

    def _check_public_rows(self) -> None:
        if self.public_rows is None:
            return
        if not isinstance(self.public_rows, PublicRows):
            raise StudyError(f"study: public_rows must be PublicRows, not {self.public_rows!r:.60}")
        if self.schema is None:
            raise StudyError("study: [public_rows] needs [columns] and [label], which say how to read it")
        if not self.training.method.weighs_public_rows:
            able = ", ".join(name for name in DEPLOYABLE if METHODS[name].weighs_public_rows)
            raise StudyError(f"study: [public_rows] is for {able}, not for {self.training.method.name}; leave it out")

    def _check_provenance(self) -> None:
        """Every constant that is not the default says where it comes from."""
        if not isinstance(self.provenance, Mapping):
            raise StudyError(f"study: provenance must be a table, not {self.provenance!r:.60}")
        object.__setattr__(self, "provenance", dict(self.provenance))
        for sentence in problems(self.provenance, origins(), "study: provenance"):
            raise StudyError(sentence)
        if self.kind != TRAINING:
            return  # nothing is tuned
        said, chosen = self.training.flat(), {what: getattr(self.training, what).name for what in REGISTRIES}
        usual = Training(**chosen, epsilon=1.0).flat()  # the defaults of what was chosen
        for name in _constants().keys() & said.keys():
            if said[name] != usual[name] and name not in self.provenance:
                raise StudyError(
                    f'study: where does {name} = {said[name]} come from? Add {name} = "assumed" under '
                    "[provenance], or public, or derived from public data; a value tuned on private rows leaks them"
                )

    @cached_property
    def problem(self) -> Problem:
        """What is minimised."""
        return self.training.problem(len(self.classes or ()), self.label)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """(d, p) of the weights."""
        return len(self.features) + self.training.intercept, self.problem.loss.n_outputs

    @cached_property
    def broadcast_shape(self) -> tuple[int, ...]:
        """The shape of what is broadcast in every round: that of the weights, unless a method says more."""
        return self.method(1).start(self.shape).shape

    def upload_shape(self, round: int) -> tuple[int, ...]:
        """The shape of what a site says in round k: that of the statistic which it releases."""
        release = self.terms.plan.at(round if 1 <= round <= self.terms.plan.n_rounds else 1)
        assert release is not None  # every round of a study releases something
        return self.terms.statistics[gaussian(release).statistic].shape

    @property
    def noise_multiplier(self) -> float:
        """z of every agent; the smallest, where rounds differ."""
        return min(gaussian(release).noise_multiplier for release, _ in self.terms.plan.tally())

    @property
    def epsilon(self) -> float:
        """Total ε of all rounds: as it was set, or what the noise gives."""
        said, terms = self.training.epsilon, self.terms
        return (
            float(said) if isinstance(said, float) else exact_epsilon(math.sqrt(terms.plan.mu_squared()), terms.delta)
        )

    def method(self, *n_rows: int) -> DeployableMethod[Any]:
        """The method, as agents of so many rows run it."""
        sizes = PublicSizes(np.array(n_rows), self.shape[0])
        rounds = np.full(len(n_rows), self.training.planned_rounds)
        return cast(DeployableMethod[Any], self.training.rounds(self.problem, sizes, rounds))

    def check_rows(self, *n_rows: int) -> None:
        """Refuse a study of which agents with so many rows would say noise alone; before anything is spent."""
        method = self.method(*n_rows)
        if isinstance(method, NewtonRounds):
            columns = len(self.schema.columns) if self.schema else len(self.features)
            method.check_rows(np.array(n_rows), columns + self.training.intercept, self.training.honest)
        if self.kind != TRAINING:
            unit = self.encoding.scale if self.encoding and self.kind == StatisticsRelease.name else 1.0
            cast(ReleaseRounds, self.method(*n_rows)).check_rows(np.array(n_rows), unit, self.training.honest)

    @cached_property
    def terms(self) -> Terms:
        """What is asked of an agent's guard."""
        settings, problem = self.training, self.problem
        with np.errstate(over="ignore"):  # too much noise is refused below
            plan = self.method(1).plan(0, settings.planned_rounds)
        if plan.n_releases != settings.planned_rounds or len(plan.tally()) > MAX_RELEASES:
            raise StudyError(
                f"study: every round must release something, of at most {MAX_RELEASES} kinds in all, which "
                f"{settings.method.name} does not do"
            )
        for release, _ in plan.tally():
            z = getattr(release, "noise_multiplier", 0.0)
            if settings.noise_multiplier == 0.0:
                raise StudyError("study: noise_multiplier = 0 means no privacy, which no agent agrees to")
            if not LEAST_NOISE <= z <= MOST_NOISE:
                raise StudyError(f"study: {_noise_in_words(settings, z)}")
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
        """What a guard has to know of secure aggregation; no guard is on an empty roster."""
        if self.training.honest is None:
            return None
        keys = tuple((each.name, bytes.fromhex(each.key)) for each in self.roster)
        return MaskingTerms(self.training.honest, self.quorum_of(len(keys)), self.most_rows or 1, keys)

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values, every setting written out; ``study_from`` takes it back."""
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
            **{name: each for name in _OPTIONAL if (each := getattr(self, name)) is not None},
            **({"roster": [each._asdict() for each in self.roster]} if self.roster else {}),
            **({"public_rows": {"sha256": self.public_rows.sha256}} if self.public_rows else {}),
        }

    def quorum_of(self, n_sites: int) -> int:
        """How many of so many sites must answer a round."""
        if self.quorum is not None and n_sites and self.quorum > n_sites:
            raise StudyError(f"study: quorum = {self.quorum}, but only {n_sites} sites are to take part")
        return n_sites if self.quorum is None else self.quorum

    @cached_property
    def hash(self) -> str:
        """By which all who take part know it."""
        return hash_of(self.as_json())


_OPTIONAL = ("quorum", "deadline", "most_rows")

TABLES: Mapping[str, tuple[str, ...]] = {
    "privacy": PRIVACY,
    "training": tuple(each.name for each in parameters(Training) if each.name not in (*PRIVACY, *REGISTRIES)),
}
"""Tables of a study's file beside those of the registries, and the settings in each."""

KEYS = (
    *("format", "kind", "name", "adjacency", "label", "columns", "row_norm", "interactions"),
    *("features", "classes", "public_rows", *REGISTRIES, *TABLES, *KINDS),
    *("provenance", "allow_missed_rounds", *_OPTIONAL, "roster", "intercept_value"),
)
"""What the file of a study may say."""


def read_study(path: StrPath) -> Study:
    """A study from its TOML file.

    Parameters
    ----------
    path : str or path-like
        The file. Paths in it are relative to its folder.

    Returns
    -------
    Study
        Checked, and frozen.

    Raises
    ------
    StudyError
        The file is no study, or waits for someone to confirm that its values are public.
    """
    file = Path(path)
    return study_from(read_toml(file), str(file), file.parent)


def study_from(table: Mapping[str, Any], where: str = "study", folder: Path = Path()) -> Study:
    """A study from a table such as a TOML file in ``folder``, or from :meth:`Study.as_json`.

    Unknown names are refused.
    """
    if not isinstance(table, Mapping):
        raise StudyError(f"{where}: a study is a table of names and values, not {table!r:.60}")
    for sentence in _of_file(table, where):
        raise StudyError(sentence)
    given: dict[str, Any] = {
        name: table[name]
        for name in ("name", "features", "classes", "provenance", "allow_missed_rounds", *_OPTIONAL, "roster")
        if name in table
    }
    try:
        if "columns" in table:
            given["label"], given["schema"] = rows_from(table)
        elif table.keys() & {"label", "row_norm", "interactions"}:
            raise StudyError("[label], row_norm and interactions belong to [columns]; with features, give classes")
        if "public_rows" in table:
            given["public_rows"] = public_rows_from(table["public_rows"], folder)
        for sentence in _of_training(table):
            raise StudyError(sentence)
        return Study(**given, training=_training_from(table))
    except StudyError as error:
        raise StudyError(f"{where}: {str(error).removeprefix('study: ')}") from None


def study_problems(table: Mapping[str, Any]) -> list[str]:
    """A sentence for everything that is wrong with a study's table; nothing, if it is a study once it is confirmed.

    Examples
    --------
    >>> table = {"format": "dpadmm-study/2", "name": "x", "features": ["a"], "training": {"rounds": 3}}
    >>> study_problems(table)
    ["training: unknown setting 'rounds'; did you mean 'n_rounds'?"]
    """
    found = _of_file(table, "study")
    if table.get("format") != FORMAT:
        return [each.removeprefix("study: ") for each in found]
    if "columns" in table and "features" not in table:
        found += rows_problems(table) or doubted(table)
    found += _of_training(table)
    if isinstance(table.get("provenance"), Mapping):
        found += problems(table["provenance"], origins(), "provenance")
    if "public_rows" in table:
        found += public_rows_problems(table["public_rows"])
    if not found:
        try:
            study_from(_confirmed(table) if confirmations(table) else table)
        except StudyError as error:
            found = [str(error)]
    return [" ".join(each.removeprefix("study: ").split()) for each in found]


class Confirmation(NamedTuple):
    """Values that were read off a table and wait for someone to say that they are public."""

    place: tuple[str, ...]
    """Of the study's file: ``("label",)``, ``("columns", name)`` or ``("public_rows",)``."""
    name: str
    group: Literal["label", "numbers", "categories", "public-rows"]
    values: str


def confirmations(table: Mapping[str, Any]) -> list[Confirmation]:
    """All that waits to be confirmed, where there is no problem with the texts and the columns."""
    if "columns" not in table or "features" in table or text_problems(table) or rows_problems(table):
        return []
    found = []
    for _, about in unconfirmed(table):
        if "name" in about:
            group: Any = "numbers" if about["kind"] in ("number", "plain") else "categories"
            found.append(Confirmation(("columns", about["name"]), about["name"], group, _shown(about)))
        else:
            found.append(Confirmation(("label",), about["column"], "label", _shown(about)))
    about = table.get("public_rows", {})
    if is_unconfirmed(about) and not public_rows_problems(about):
        name = about.get("file", about["sha256"])
        found.append(Confirmation(("public_rows",), name, "public-rows", "all of its rows, which anyone may see"))
    return found


def _confirmed(table: Mapping[str, Any]) -> dict[str, Any]:
    """The same study's table when everything is confirmed."""
    rows = {"public_rows": {**table["public_rows"], "public": True}} if "public_rows" in table else {}
    return {**confirmed(table), **rows}


def study_notes(study: Study) -> list[str]:
    """What is worth knowing, and nothing to correct."""
    starts = "with inference, training starts from the public rows, which do not influence the estimate"
    return [starts] if _with_intervals(study) and study.public_rows is not None else []


def _with_intervals(study: Study) -> bool:
    return bool(getattr(study.training.method, "inference", False))


def study_warnings(study: Study, n_rows: int | None = None) -> list[str]:
    """Where a budget protects little: a large ε, or a δ that is not below 1 / rows (where their number is known).

    And a penalty that estimates with intervals ignore.
    """
    epsilon, delta, found = study.epsilon, study.terms.delta, []
    if _with_intervals(study) and (study.training.reg_share or 0.0) > study.training.method.usual_reg_share:
        found.append("inference estimates the model without a penalty: the regularizer does not influence it")
    if epsilon >= LARGE_EPSILON:
        found.append(
            f"ε = {epsilon:.4g} promises little: odds about a person may change by a factor of e^{epsilon:.4g}"
        )
    if n_rows and delta * n_rows >= 1.0:
        found.append(
            f"δ = {delta:g} is not below 1/{n_rows:,}, so it allows a method that publishes a row of the table; "
            f"take {0.1 / n_rows:.0e} or less"
        )
    return found


def origins() -> list[Parameter]:
    """What ``[provenance]`` may say: an origin for each constant that people like to tune.

    Chosen on private rows such a number would leak them, and nothing would count it.
    """
    return [Parameter(name, Origin, None, each.help) for name, each in _constants().items()]


def _constants() -> dict[str, Parameter]:
    """Every setting that is a number of a model or a method."""
    counted = (*PRIVACY, "n_rounds")
    return {
        name: each for name, each in flat_parameters(Training).items() if each.base is float and name not in counted
    }


def _tables(training: Training, kind: str = TRAINING) -> dict[str, dict[str, Any]]:
    """The tables of a study's file that are about training; unset values are left out.

    The rounds are always there: a hash that left them to this version's default would name other plans in others.
    """
    chosen = {name: getattr(training, name) for name in REGISTRIES}
    tables: dict[str, dict[str, Any]] = {
        name: {"name": made.name, **{each.name: getattr(made, each.name) for each in parameters(type(made))}}
        for name, made in chosen.items()
    }
    for name in training.method.omit_if_default:
        if not tables["method"][name]:
            del tables["method"][name]
    tables |= {name: {each: getattr(training, each) for each in names} for name, names in TABLES.items()}
    tables["training"]["n_rounds"] = training.planned_rounds
    if kind != TRAINING:
        tables[kind] = {key: for_json(value) for key, value in tables["method"].items() if key != "name"}
        tables["training"] = {name: tables["training"][name] for name in OF_TRAINING[kind]}
        tables = {name: tables[name] for name in _tables_of(kind)}
    return {name: {k: v for k, v in table.items() if v is not None} for name, table in tables.items()}


def _training_from(table: Mapping[str, Any]) -> Training:
    """The training of a study's table that has no problem by itself."""
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
    """The kind of study that a table with no problem of its frame is."""
    return str(table.get("kind", TRAINING))


OF_TRAINING = {StatisticsRelease.name: ("n_rounds",), "evaluation": ("n_rounds", "intercept")}
"""What ``[training]`` of other kinds of studies says."""


def _tables_of(kind: str) -> tuple[str, ...]:
    """The tables of a study's file of another kind than training."""
    return (kind, "training", "privacy", *(["loss"] if kind == "evaluation" else []))


def _of_file(table: Mapping[str, Any], where: str) -> list[str]:
    """What is wrong with the frame of a study's table."""
    if table.get("format") != FORMAT:
        return [f'{where}: format must be "{FORMAT}", not {table.get("format")!r:.60}']
    found = [f"{where}: {sentence}" for sentence in text_problems(table)]
    found += [
        f"{where}: unknown setting {name!r:.60}; {nearest(str(name), KEYS)}" for name in table if name not in KEYS
    ]
    kinds = (TRAINING, *KINDS)
    if _kind(table) not in kinds:
        said = f"{where}: kind must be one of {', '.join(kinds)}, not {table['kind']!r:.60}"
        return [*found, f"{said}; {nearest(_kind(table), kinds)}"]
    found += _of_kind(table, where)
    if table.get("adjacency", ADJACENCY) != ADJACENCY:
        found.append(f'{where}: adjacency must be "{ADJACENCY}", not {table["adjacency"]!r:.60}')
    if "name" not in table:
        found.append(f"{where}: name is missing")
    if ("columns" in table) == ("features" in table):
        found.append(f"{where}: give either [columns] with their public bounds and values, or a list of features")
    if table.get("intercept_value", INTERCEPT) != INTERCEPT:
        found.append(
            f"{where}: its constant column is {table['intercept_value']!r:.60}, and {INTERCEPT} in this "
            "version of dpadmm; all who take part need the same version"
        )
    return found


def _of_kind(table: Mapping[str, Any], where: str) -> list[str]:
    """Tables that belong to studies of another kind."""
    kind, known = _kind(table), (*REGISTRIES, *TABLES, *KINDS)
    mine = (*REGISTRIES, *TABLES) if kind == TRAINING else _tables_of(kind)
    found = [
        f"{where}: [{name}] does not belong to kind = {kind!r}; leave it out"
        for name in known
        if name in table and name not in mine
    ]
    others = {"public_rows", "provenance", *(("label", "row_norm") if kind == StatisticsRelease.name else ())}
    if kind != TRAINING:
        found += [
            f"{where}: {name!r:.60} does not belong to kind = {kind!r}; leave it out"
            for name in table
            if name in others and table[name]
        ]
        if isinstance(table.get("training"), Mapping):
            unfit = [each for each in table["training"] if each not in OF_TRAINING[kind]]
            found += [
                f"{where}: training: {name!r:.60} does not belong to kind = {kind!r}; leave it out" for name in unfit
            ]
    return found


def table_parameters(table: str, name: str | None = None) -> Sequence[Parameter]:
    """What a table of a study's file about training may say; ``name`` is the class of a registry."""
    if table in TABLES:
        return [flat_parameters(Training)[each].single() for each in TABLES[table]]
    if table in KINDS:
        return parameters(KINDS[table])
    return parameters(REGISTRIES[table].classes[name]) if name is not None else ()


def _of_training(table: Mapping[str, Any]) -> list[str]:
    """What is wrong with each table about training, by itself."""
    found = []
    for name, about in ((name, table[name]) for name in (*REGISTRIES, *TABLES, *KINDS) if name in table):
        if not isinstance(about, Mapping):
            found.append(f"{name} must be a table, such as [{name}], not {about!r:.60}")
        elif name in TABLES or name in KINDS:
            found += problems(about, table_parameters(name), name)
        elif not isinstance(about.get("name"), str) or about["name"] not in REGISTRIES[name].classes:
            wrong, classes = about.get("name"), REGISTRIES[name].classes
            said = f"{wrong!r:.60} does not exist" if "name" in about else "give it a name"
            found.append(f"{name}: {said}; {nearest(str(wrong), classes)}")
        else:
            found += _of_choice(name, about)
    return found


def _of_choice(table: str, about: Mapping[str, Any]) -> list[str]:
    """What is wrong with the parameters of a loss, regularizer or method that exists."""
    classes, name = REGISTRIES[table].classes, about["name"]
    if table == "method" and name not in DEPLOYABLE:
        return [f"{table}: agents can answer for {_DEPLOYABLE_WORDS}, not for {name}"]
    own = table_parameters(table, name)
    found, given = [], {key: value for key, value in about.items() if key != "name"}
    for key in list(given):
        others = [other for other, made in classes.items() if key in {each.name for each in parameters(made)}]
        if others and name not in others:
            found.append(f"{table}: {key} is a parameter of {', '.join(others)}, not of {name}; leave it out")
            del given[key]
    return found + problems(given, own, table)


def _shown(about: Mapping[str, Any]) -> str:
    """The values that were read off a table."""
    named = {
        key: about[key]
        for key in (
            *("bounds", "center", "scale", "values", "unseen", "classes", "bins"),
            *("exposure_bound", "weight_bound", "class_weight"),
        )
        if key in about
    }
    return ", ".join(f"{key} {first_of(value) if isinstance(value, list) else value}" for key, value in named.items())


def _noise_in_words(settings: Training, z: float) -> str:
    """Noise that agents cannot add, by the setting that asks for it."""
    name = next(each for each in BUDGETS if getattr(settings, each) is not None)
    if name == "noise_multiplier":
        return f"the noise multiplier is {z:g}; agents can add {LEAST_NOISE:g} to {MOST_NOISE:g}"
    little, than = z < LEAST_NOISE, "less" if z < LEAST_NOISE else "more"
    return (
        f"{name} = {getattr(settings, name):g} in {settings.planned_rounds} rounds takes {than} noise than agents can "
        f"add; take a {'smaller' if little else 'larger'} {name}{', or fewer rounds' if not little else ''}"
    )


def _check_features(features: object) -> None:
    """Names of columns, each once."""
    if not isinstance(features, tuple) or not features:
        raise StudyError("study: features must be a list of the columns' names, at least one")
    seen: set[str] = set()
    for each in features:
        if not isinstance(each, str) or not each.strip():
            raise StudyError(f"study: a feature must be the name of a column, not {each!r:.60}")
        if each in seen:
            raise StudyError(f"study: the feature {each!r} is named twice")
        seen.add(each)


def _checked_classes(classes: object) -> tuple[Any, ...] | None:
    """Texts and numbers; 1.0 is written as 1, which means the same and must have the same hash."""
    if classes is None:
        return None
    if not isinstance(classes, tuple):
        raise StudyError(f"study: classes must be a list of the labels' values, not {classes!r:.60}")
    for each in classes:
        if not isinstance(each, str) and not (isinstance(each, int | float) and abs(each) <= LARGEST):
            raise StudyError(f"study: a class must be text or a number, not {each!r:.60}")
    return tuple(int(each) if isinstance(each, float) and each.is_integer() else each for each in classes)
