"""Checks of a study: conflicts between its settings, the range of its noise, and warnings about weak protection.

The functions return messages, so that all problems of a study are reported at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dpadmm.accounting.release_plan import ReleasePlan, gaussian
from dpadmm.data.dataset import resolve_classes
from dpadmm.errors import StudyError
from dpadmm.methods import KINDS, METHODS
from dpadmm.parameters.fields import Parameter, problems
from dpadmm.parameters.text import text_problems
from dpadmm.studies.settings import BUDGETS, CHOICES, PRIVACY, Training, nested_parameters
from dpadmm.trusted.discrete_gaussian import Lattice

if TYPE_CHECKING:
    from dpadmm.studies.study import Study

DEPLOYABLE = tuple(name for name, method in METHODS.items() if method.deployable)
"""Methods whose agents send only noisy sums over all their rows."""

MAX_CLASS_VALUE = 10**15
MIN_NOISE, MAX_NOISE = 0.1, 1e9
"""Range of noise multipliers z for which exact noise can be drawn."""

LARGE_EPSILON = 10.0


def settings_problems(study: Study) -> list[str]:
    """Return the conflicts between the settings of a study."""
    messages = list(_top_level_problems(study)) + list(_method_problems(study))
    if not messages:
        messages = [
            *_label_problems(study),
            *_count_problems(study),
            *_weight_problems(study),
            *_public_rows_problems(study),
            *provenance_problems(study),
        ]
    return messages or text_problems(study.as_json()) or list(_aggregation_problems(study))


def _top_level_problems(study: Study) -> Iterator[str]:
    if not study.name.strip():
        yield "name must not be empty"
    if not study.allow_missed_rounds and (study.quorum is not None or study.deadline is not None):
        yield "quorum and deadline require allow_missed_rounds = true"
    is_statistics = study.kind == "statistics"
    if is_statistics and study.label is not None:
        yield "statistics have no label; declare it as a column instead"
    if not is_statistics and (study.schema is None) != (study.label is None):
        yield "give both columns and label, or only features"
    yield from _feature_problems(study.features)
    yield from _class_problems(study.classes)


def _feature_problems(features: object) -> Iterator[str]:
    if not isinstance(features, tuple) or not features:
        yield "features must be a list of at least one column name"
        return
    seen: set[str] = set()
    for feature in features:
        if not isinstance(feature, str) or not feature.strip():
            yield f"a feature must be a column name, not {feature!r:.60}"
        elif feature in seen:
            yield f"feature {feature!r} is listed twice"
        else:
            seen.add(feature)


def _class_problems(classes: object) -> Iterator[str]:
    if classes is None:
        return
    if not isinstance(classes, tuple):
        yield f"classes must be a list, not {classes!r:.60}"
        return
    for value in classes:
        if not isinstance(value, str) and not (isinstance(value, int | float) and abs(value) <= MAX_CLASS_VALUE):
            yield f"a class must be text or a number, not {value!r:.60}"


def _method_problems(study: Study) -> Iterator[str]:
    """Yield settings that a site cannot load or run."""
    training = study.training
    for what, classes in CHOICES.items():  # readers of the file look these classes up by name
        choice = getattr(training, what)
        if type(choice) is not classes.get(choice.name) and type(choice) not in KINDS.values():
            yield f"the {what} {choice.name!r} is not registered, so sites cannot load it"
    for name in BUDGETS:
        if isinstance(getattr(training, name), tuple):
            yield f"{name} must be a single number, the same for every agent"
    if not training.method.deployable:
        yield not_deployable(training.method.name)


def not_deployable(method: str) -> str:
    """Return the message for a method that runs in simulations only."""
    supported = f"{', '.join(DEPLOYABLE[:-1])} or {DEPLOYABLE[-1]}"
    return f"the method {method} runs in simulations only; use {supported}"


def _label_problems(study: Study) -> Iterator[str]:
    loss, label = study.training.loss, study.label
    is_number = loss.task in ("regression", "count")
    if label is not None and label.has_bounds != is_number:
        yield f"the {loss.name} loss requires {'bounds' if is_number else 'classes'} under [label]"
    elif label is not None and loss.task == "multiclass" and len(label.classes or ()) == 2:
        yield "softmax requires three or more classes; use the logistic loss for two"
    else:
        try:
            resolve_classes(loss.task, study.classes)
        except StudyError as error:
            yield str(error)


def _count_problems(study: Study) -> Iterator[str]:
    """Yield problems of count labels, and their settings if the label is not a count."""
    label, loss = study.label, study.training.loss
    if loss.task != "count":
        if label is not None and label.exposure is not None:
            yield f"exposure and times require the poisson loss, not {loss.name}"
        return
    if label is None:
        yield f"the {loss.name} loss requires [columns], and [label] with bounds"
        return
    try:
        study.training.check_intercept()
    except StudyError as error:
        yield str(error)
    if label.exposure is not None and label.exposure in _column_names(study):
        yield f"{label.exposure!r} is the label's exposure; remove it from [columns]"
    if label.bounds is not None and label.bounds[0] != 0.0:
        yield f"counts start at 0, not {label.bounds[0]:g}; set bounds = [0, maximum]"
    if label.times is not None and not study.training.has_inference:
        yield "times require inference = true under [method]"


def _weight_problems(study: Study) -> Iterator[str]:
    """Yield conflicts of row weights with other settings."""
    label, training = study.label, study.training
    if label is None or not label.weighted:
        return
    if study.kind != "training":
        yield f"weights apply to training only; remove them for kind = {study.kind!r}"
    if label.weight is not None and label.weight in _column_names(study):
        yield f"{label.weight!r} is the label's weight; remove it from [columns]"
    if training.has_inference and training.loss.task == "regression" and not training.intercept:
        yield (
            "inference with the squared loss and weights requires intercept = true, from which the mean weight is "
            "estimated"
        )


def _column_names(study: Study) -> list[str]:
    return [column.name for column in study.schema.columns] if study.schema else []


def _public_rows_problems(study: Study) -> Iterator[str]:
    if study.public_rows is None:
        return
    if study.schema is None:
        yield "[public_rows] requires [columns] and [label]"
    if not study.training.method.uses_public_rows:
        supported = ", ".join(name for name in DEPLOYABLE if METHODS[name].uses_public_rows)
        yield f"{study.training.method.name} does not use public rows; remove [public_rows] or use {supported}"


def constants() -> dict[str, Parameter]:
    """Return the numeric constants of models and methods: ``alpha``, ``method.rho``, ..."""
    known = nested_parameters(Training)
    return {name: parameter for name, parameter in known.items() if parameter.base is float and name not in PRIVACY}


def provenance_parameters() -> list[Parameter]:
    """Return the entries of ``[provenance]``: one for each numeric constant of a model or method.

    Tuning such a constant on private rows would leak them without being accounted for.
    """
    from dpadmm.studies.study import Origin

    return [Parameter(name, Origin, None, constant.help) for name, constant in constants().items()]


def dotted(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of nested tables by their dotted names, such as ``method.rho``."""
    entries: dict[str, Any] = {}
    for name, value in nested.items():
        own = {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, Mapping) else {name: value}
        entries |= own
    return entries


def provenance_problems(study: Study) -> list[str]:
    """Return invalid sources of constants, and each constant that is not the default and has no source."""
    given = dotted(study.provenance)
    messages = problems(given, provenance_parameters(), "provenance")
    if study.kind != "training":
        return messages  # no constants to tune
    names = {what: getattr(study.training, what).name for what in CHOICES}
    settings, defaults = dotted(study.training.to_dict()), dotted(Training(**names, epsilon=1.0).to_dict())
    return messages + [
        f"{name} = {settings[name]} is not the default, so its source is required. Add {name} = "
        '"assumed", "public" or "derived from public data" under [provenance]. A value tuned on private rows would '
        "leak them"
        for name in constants()
        if name in settings and settings[name] != defaults[name] and name not in given
    ]


def _aggregation_problems(study: Study) -> Iterator[str]:
    """Yield problems of secure aggregation. The roster may be empty: a draft has none yet."""
    if study.training.min_honest_sites is None:
        if study.roster or study.max_rows_per_site is not None:
            yield 'roster and max_rows_per_site require aggregation = "secure" under [privacy]'
        return
    if study.roster and study.max_rows_per_site is None:
        yield "secure aggregation requires max_rows_per_site, the maximum number of rows per site"
    yield from site_problems(study, len(study.roster))


def site_problems(study: Study, n_sites: int) -> Iterator[str]:
    """Yield a problem unless ``min_honest_sites`` is below the smallest round; 0 sites: number unknown."""
    min_honest_sites, quorum = study.training.min_honest_sites, study.quorum_of(n_sites)
    if min_honest_sites is not None and 0 < quorum <= min_honest_sites:
        yield (
            f"min_honest_sites = {min_honest_sites}, but a round may have only {quorum} sites and at least one may "
            f"collude with the server; set min_honest_sites to {quorum - 1} or less, or add sites"
        )


def noise_range_problems(training: Training, plan: ReleasePlan) -> Iterator[str]:
    """Yield a problem if the noise multiplier of a release is out of range."""
    if training.noise_multiplier == 0.0:
        yield "noise_multiplier = 0 gives no privacy; set a positive value"
        return
    for release, _ in plan.tally():
        z = gaussian(release).noise_multiplier
        if not MIN_NOISE <= z <= MAX_NOISE:
            yield _describe_noise_range(training, z)
            return


def noise_problems(study: Study) -> list[str]:
    """Return problems of the exact noise: the range of z, and the range of the sums of masked answers."""
    terms = study.terms  # raises StudyError if z is out of range
    min_honest_sites, max_rows = study.training.min_honest_sites, study.max_rows_per_site
    if min_honest_sites is None or max_rows is None:
        return []
    for release, _ in terms.plan.tally():
        query = terms.statistics[gaussian(release).statistic]
        lattice = Lattice(query.row_norm, math.prod(query.shape), max_rows)
        noise_scale = lattice.noise_scale(gaussian(release).noise_multiplier, min_honest_sites)
        if (max(1, len(study.roster)) * lattice.max_upload(noise_scale)).bit_length() > 62:
            return ["the sum over all sites may exceed 63 bits; reduce max_rows_per_site"]
    return []


def _describe_noise_range(training: Training, z: float) -> str:
    """Return the message for a noise multiplier out of range, in terms of the setting that implies it."""
    name = next(budget for budget in BUDGETS if getattr(training, budget) is not None)
    if name == "noise_multiplier":
        return f"noise_multiplier = {z:g} is outside {MIN_NOISE:g} to {MAX_NOISE:g}"
    amount, remedy = (
        ("little", f"reduce {name}") if z < MIN_NOISE else ("much", f"increase {name}, or use fewer rounds")
    )
    return (
        f"{name} = {getattr(training, name):g} in {training.planned_rounds} rounds requires too {amount} noise "
        f"(noise multiplier {z:.3g}, outside {MIN_NOISE:g} to {MAX_NOISE:g}); {remedy}"
    )


def study_notes(study: Study) -> list[str]:
    """Return notes about the study that require no change."""
    note = "with inference, the public rows are only the starting point and do not affect the estimate"
    return [note] if study.training.has_inference and study.public_rows is not None else []


def study_warnings(study: Study, n_rows: int | None = None) -> list[str]:
    """Return warnings about weak protection or ignored settings.

    Protection is weak if ε is large, or if δ is not below 1 / ``n_rows``. Inference ignores the regularizer.
    """
    epsilon, delta, messages = study.epsilon, study.terms.delta, []
    if study.training.has_inference and (study.training.alpha or 0.0) > study.training.method.concrete().default_alpha:
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
