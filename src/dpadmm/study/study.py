"""A study: the public contract of a training run, frozen and named by a hash of all it says.

Whoever knows the hash knows which columns, model, method, noise and number of rounds were agreed on: an agent
pins it when it enrols, and no later message can change any of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import numpy as np

from dpadmm._base.errors import StudyError
from dpadmm._base.toml import read_toml
from dpadmm.data.dataset import resolve_classes
from dpadmm.data.schema import Label, Schema
from dpadmm.data.schema_file import label_as_json, rows_from, schema_as_json
from dpadmm.optim.features import INTERCEPT
from dpadmm.optim.losses import LOSSES
from dpadmm.optim.problem import Problem, PublicSizes
from dpadmm.privacy.plan import gaussian
from dpadmm.privacy.statistics import make_statistic
from dpadmm.study.assembly import make_method
from dpadmm.study.settings import Settings, check_names
from dpadmm.study.values import (
    check_features,
    check_provenance,
    check_rounds,
    check_values,
    checked_classes,
    number,
)
from dpadmm.training.methods import GradientMethod
from dpadmm.trusted.policy import Terms

FORMAT = "dpadmm-study/1"
ADJACENCY = "replace-one"
METHODS = ("dp_admm", "dp_sgd")
"""Methods whose agents say nothing but noisy mean gradients of all their rows."""

TRAINING = (
    "method", "loss", "loss_width", "loss_delta", "gradient_bound", "regularizer", "l1_ratio", "reg_share",
    "intercept", "epsilon", "round_epsilon", "noise_multiplier", "delta", "calibration", "n_rounds", "rho",
    "weight_radius", "schedule", "step_size", "learning_rate", "average",
)  # fmt: skip
"""The settings that a study fixes; the others are about simulations."""

LEAST_NOISE, MOST_NOISE = 0.1, 1e9
"""z that exact noise can be drawn for."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """What was agreed on.

    Attributes
    ----------
    name : str
        For people.
    training : mapping
        Any of the settings in ``TRAINING``; what is left out has the default of :class:`dpadmm.Settings`.
    schema : Schema, optional
        The columns of the owners' tables with their public bounds and values; then ``label`` is needed too,
        and ``features`` and ``classes`` follow from them.
    label : Label, optional
        The column to predict, with its public classes or bounds.
    features : tuple of str
        Without a schema: columns of numbers that are used as they are, in the order of the weights; rows
        longer than 1 are shortened to 1.
    classes : tuple, optional
        The labels' public values, negative first; None for numbers.
    provenance : mapping
        Where a constant comes from that is not the default: public, assumed, or derived from public data.
    absences : bool
        Whether agents may miss rounds.
    quorum : int, optional
        With absences: the least number of sites whose answers make a round; all if not given.
    deadline : float, optional
        With absences: seconds after which a round goes on without those that are missing, if there are
        enough; if not given, sites that are there are waited for.

    Examples
    --------
    >>> study = Study(name="flu", features=("age", "fever"), training={"epsilon": 1.0, "delta": 1e-6})
    >>> study.shape, study.hash[:8], round(study.noise_multiplier, 3)
    ((2, 1), '...', 42.247)
    """

    name: str
    training: Mapping[str, Any]
    schema: Schema | None = None
    label: Label | None = None
    features: tuple[str, ...] = ()
    classes: tuple[Any, ...] | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)
    absences: bool = False
    quorum: int | None = None
    deadline: float | None = None

    def __post_init__(self) -> None:
        for name, kind in (("name", str), ("training", Mapping), ("provenance", Mapping), ("absences", bool)):
            if not isinstance(getattr(self, name), kind):
                raise StudyError(
                    f"study: {name} must be of kind {kind.__name__}, not {getattr(self, name)!r}"
                )
        if not self.name.strip() or len(self.name) > 200 or not self.name.isprintable():
            raise StudyError("study: give it a name of one line, of at most 200 characters")
        deadline = check_rounds(self.quorum, self.deadline, absences=self.absences)
        object.__setattr__(self, "deadline", deadline)
        for name in ("training", "provenance"):
            object.__setattr__(self, name, dict(getattr(self, name)))
        if (self.schema is None) != (self.label is None):
            raise StudyError("study: columns and label belong together; give both, or features alone")
        if self.schema is not None and self.label is not None:
            if self.features not in ((), self.schema.features):
                raise StudyError("study: the columns say what the features are; leave features out")
            object.__setattr__(self, "features", self.schema.features)
            object.__setattr__(self, "classes", self.label.classes)
        for name in ("features", "classes"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        check_features(self.features)
        object.__setattr__(self, "classes", checked_classes(self.classes))
        check_names(self.training, TRAINING, "study, training")
        check_values(self.training)
        settings = self.settings
        if settings.method not in METHODS:
            raise StudyError(
                f"study: agents can answer for {' and '.join(METHODS)}, not for {settings.method}"
            )
        task = LOSSES[settings.loss].task
        if self.label is not None and (self.label.bounds is None) == (task == "regression"):
            wanted = "bounds, since it predicts a number" if task == "regression" else "classes"
            raise StudyError(f"study: with the loss {settings.loss} the label needs {wanted}")
        if self.label is not None and task == "multiclass" and len(self.label.classes or ()) == 2:
            raise StudyError("study: for two classes take the loss logistic; softmax is for three or more")
        resolve_classes(task, self.classes)
        check_provenance(settings, self.provenance)
        _ = self.terms  # the noise and the step sizes exist

    @cached_property
    def settings(self) -> Settings:
        """The settings of the run."""
        return Settings(**self.training, clip_rows=True)

    @cached_property
    def problem(self) -> Problem:
        """What is minimised."""
        return self.settings.problem(len(self.classes or ()))

    @property
    def shape(self) -> tuple[int, int]:
        """(d, p) of the weights."""
        return len(self.features) + self.settings.intercept, self.problem.loss.n_outputs

    @property
    def noise_multiplier(self) -> float:
        """z of every agent; the smallest, where rounds differ."""
        return min(gaussian(release).noise_multiplier for release, _ in self.terms.plan.tally())

    def method(self, n_rows: int) -> GradientMethod[Any]:
        """The method, as an agent of ``n_rows`` rows runs it."""
        sizes, rounds = PublicSizes(np.array([n_rows]), self.shape[0]), np.array([self.settings.n_rounds])
        made, _ = make_method(self.settings, self.problem, sizes, rounds, seed=0)
        return cast(GradientMethod[Any], made)

    @cached_property
    def terms(self) -> Terms:
        """What is asked of an agent's guard."""
        settings, problem = self.settings, self.problem
        with np.errstate(over="ignore"):  # too much noise is refused below
            plan = self.method(1).plan(0, settings.n_rounds)
        for release, _ in plan.tally():
            z = getattr(release, "noise_multiplier", 0.0)
            if not z > 0.0:
                raise StudyError("study: noise_multiplier = 0 means no privacy, which no agent agrees to")
            if not LEAST_NOISE <= z <= MOST_NOISE:
                raise StudyError(
                    f"study: the noise multiplier is {z:g}; agents can add {LEAST_NOISE:g} to {MOST_NOISE:g}"
                )
        names = dict.fromkeys(gaussian(release).statistic for release, _ in plan.tally())
        return Terms(
            hash=self.hash,
            name=self.name,
            method=settings.method,
            loss=problem.loss.name,
            plan=plan,
            statistics={name: make_statistic(name, problem, self.shape[0]) for name in names},
            delta=float(settings.delta),
            may_miss_rounds=self.absences,
        )

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values, every setting written out."""
        if self.schema is not None and self.label is not None:
            columns = schema_as_json(self.schema, label=self.label.column)
            rows: dict[str, Any] = {**columns, "label": label_as_json(self.label)}
        else:
            classes = None if self.classes is None else list(self.classes)
            rows = {"features": list(self.features), "classes": classes}
        return {
            "format": FORMAT,
            "name": self.name,
            "adjacency": ADJACENCY,
            **rows,
            "training": {name: number(name, getattr(self.settings, name)) for name in TRAINING},
            "provenance": dict(self.provenance),
            "absences": self.absences,
            **({"intercept_value": INTERCEPT} if self.settings.intercept else {}),
            **{name: each for name in ("quorum", "deadline") if (each := getattr(self, name)) is not None},
        }

    def quorum_of(self, n_sites: int) -> int:
        """How many of so many sites must answer a round."""
        if self.quorum is not None and self.quorum > n_sites:
            raise StudyError(f"study: quorum = {self.quorum}, but only {n_sites} sites are to take part")
        return n_sites if self.quorum is None else self.quorum

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON: sorted keys, no spaces, ASCII."""
        text = json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return sha256(text.encode("ascii")).hexdigest()


KEYS = (
    *(each.name for each in fields(Study) if each.name != "schema"),
    *("format", "adjacency", "columns", "row_norm", "intercept_value"),
)
"""What the file of a study may say."""


def study_from(table: Mapping[str, Any], where: str = "study") -> Study:
    """A study from a table such as a TOML file, or from :meth:`Study.as_json`; unknown names are refused."""
    if not isinstance(table, Mapping):
        raise StudyError(f"{where}: a study is a table of names and values, not {table!r:.60}")
    check_names(table, KEYS, where)
    if table.get("format") != FORMAT:
        raise StudyError(f'{where}: format must be "{FORMAT}", not {table.get("format")!r}')
    if table.get("adjacency", ADJACENCY) != ADJACENCY:
        raise StudyError(f'{where}: adjacency must be "{ADJACENCY}", not {table["adjacency"]!r}')
    for name in ("name", "training"):
        if name not in table:
            raise StudyError(f"{where}: {name} is missing")
    if ("columns" in table) == ("features" in table):
        raise StudyError(
            f"{where}: give either [columns] with their public bounds and values, or a list of features"
        )
    if table.get("intercept_value", INTERCEPT) != INTERCEPT:
        raise StudyError(
            f"{where}: its constant column is {table['intercept_value']!r:.60}, and {INTERCEPT} in this "
            "version of dpadmm; all who take part need the same version"
        )
    parts = ("format", "adjacency", "columns", "row_norm", "label", "intercept_value")
    given: dict[str, Any] = {name: value for name, value in table.items() if name not in parts}
    if isinstance(given["training"], Mapping):
        given["training"] = {name: value for name, value in given["training"].items() if value is not None}
    try:
        if "columns" in table:
            given["label"], given["schema"] = rows_from(table)
        elif "label" in table or "row_norm" in table:
            raise StudyError("[label] and row_norm belong to [columns]; with features, give classes")
        return Study(**given)
    except StudyError as error:
        raise StudyError(f"{where}: {str(error).removeprefix('study: ')}") from None


def read_study(path: Path) -> Study:
    """A study from its TOML file."""
    return study_from(read_toml(path), str(path))
