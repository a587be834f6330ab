"""A study: what it says is what its hash names, and every mistake in it is one sentence."""

from __future__ import annotations

import datetime
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpadmm.accounting import exact_epsilon
from dpadmm.accounting.events import Release
from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.errors import StudyError
from dpadmm.losses import Huber, Logistic
from dpadmm.matrices.clipping import INTERCEPT
from dpadmm.methods import DpAdmm, Pgd
from dpadmm.queries.problem import PublicSizes
from dpadmm.studies.checks import DEPLOYABLE, provenance_parameters
from dpadmm.studies.reading import read_study, study_from
from dpadmm.studies.settings import Training, nest
from dpadmm.studies.study import FORMAT, Study
from studies import DEPLOYABLE_OWNERS, FIXED, tables

CONSTANTS = [each.name for each in provenance_parameters() if each.name in FIXED]
ORIGINS = ("public", "assumed", "derived from public data")

BASE = {
    "format": FORMAT,
    "name": "flu",
    "features": ["age", "fever"],
    "classes": ["no", "yes"],
    "method": {"name": "dp_admm"},
    "privacy": {"epsilon": 1.0, "delta": 1e-6},
}

TOML = f"""
format = "{FORMAT}"
name = "flu"
features = ["age", "fever"]
classes = ["no", "yes"]
[method]
name = "dp_admm"
[privacy]
epsilon = 1.0
delta = 1e-6
"""

OTHER = {
    "method.inference": True,
    "method": "dp_sgd",
    "loss": "hinge",
    "loss.width": 2.0,
    "loss.delta": 2.0,
    "loss.gradient_bound": 1.0,
    "regularizer": "none",
    "regularizer.l1_ratio": 0.25,
    "alpha": 0.5,
    "intercept": True,
    "epsilon": 0.5,
    "round_epsilon": 0.5,
    "noise_multiplier": 3.0,
    "delta": 1e-3,
    "calibration": "exact",
    "n_rounds": 7,
    "method.rho": 0.2,
    "method.weight_radius": 3.0,
    "method.schedule": "constant",
    "method.step_size": 0.5,
    "method.learning_rate": 0.5,
    "average": "all",
}
"""Another value of every setting that a study fixes."""

ODD = [
    *(True, 0, -1, 2, 10**9, 10**18, 10**400, -(10**400), -0.0, 1e-320, 1e5, 1e300, 1.7e308),
    *(math.nan, math.inf, -math.inf, "", "l2", "\x1b[3m", "two\nlines", "\ud800", "a" * 500),
    *([], [1], [1.0, 2.0], ["a"], ["a", "a"], ["a", "b", "c"], [None], [[1]], [math.nan, 1], [10**400, 1]),
    *({}, {"a": 1}, datetime.date(2020, 1, 1), b"bytes", 1j, None),
]


def changed(training=None, **parts):
    """With other settings, by their dotted names, or with other parts."""
    if training is None:
        return study_from({**BASE, **parts})
    bare = {name: value for name, value in BASE.items() if name != "privacy"}
    return study_from({**bare, **tables(training), **parts})


def trained(**training):
    """With these settings in place of the base's; constants have an origin."""
    origins = dict.fromkeys(CONSTANTS, "assumed")
    budget = {} if {"round_epsilon", "noise_multiplier"} & training.keys() else {"epsilon": 1.0}
    classes = None if training.get("loss") in ("huber", "squared") else ["no", "yes"]
    return changed({**budget, "delta": 1e-6, **training}, provenance=origins, classes=classes)


def owned(name, **training):
    """With a setting, and the choice that has it."""
    return {**DEPLOYABLE_OWNERS.get(name, {}), **training}


def test_what_is_agreed_on():
    study = changed()
    assert study.shape == (2, 1)
    assert trained(intercept=True).shape == (3, 1)
    assert changed(classes=[1, 2, 3], training={"epsilon": 1.0, "loss": "softmax"}).shape == (2, 3)
    assert study.terms.hash == study.hash
    assert study.terms.plan.n_rounds == study.training.n_rounds == DpAdmm.default_rounds
    total = exact_epsilon(math.sqrt(study.terms.plan.n_rounds) / study.noise_multiplier, 1e-6)
    assert 0.999 < total <= 1.0


def test_it_goes_round_by_json_and_toml(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(TOML)
    study = read_study(path)
    again = study_from(json.loads(json.dumps(study.as_json())))
    assert again.hash == study.hash == changed().hash
    assert again.as_json() == study.as_json()
    assert again.terms == study.terms


def test_a_study_without_rounds_is_open_until_the_sizes_are_known():
    study = trained(method="auto")
    assert study.training.is_open
    assert study.training.n_rounds is None
    again = study_from(json.loads(json.dumps(study.as_json())))
    assert again.training.is_open
    assert again.hash == study.hash
    with pytest.raises(StudyError, match="leaves the number of rounds open; choose it: dpadmm plan study"):
        study.check_concrete()
    for n_rows, n_rounds in ((50, 14), (10**4, 189), (10**6, 200)):
        training = study.training.resolved(study.problem, PublicSizes(np.full(4, n_rows), study.shape[0]))
        assert (training.method.name, training.n_rounds) == ("pgd", n_rounds)


def test_a_study_with_rounds_has_a_concrete_method_which_its_hash_pins():
    study = trained(method="auto", n_rounds=25)
    study.check_concrete()
    assert study.training.method == Pgd()
    assert study.as_json()["method"] == {"name": "pgd"}
    assert study.terms.method == "pgd"
    assert study.hash == trained(method="pgd").hash == trained(method="pgd", n_rounds=25).hash
    inferring = trained(method={"name": "auto", "inference": True})
    inferring.check_concrete()
    assert inferring.as_json()["method"] == {"name": "newton"}
    assert inferring.hash == trained(method="newton", n_rounds=5).hash


@given(
    st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=4, unique=True),
    st.one_of(st.none(), st.lists(st.one_of(st.integers(-5, 5), st.text(max_size=3)), min_size=2, max_size=2)),
    st.sampled_from(DEPLOYABLE),
    st.floats(1e-3, 50.0),
    st.floats(1e-12, 1e-2),
    st.integers(1, 10_000),
    st.booleans(),
)
def test_any_study_goes_round(features, classes, method, epsilon, delta, n_rounds, allow_missed_rounds):
    training = {"method": method, "epsilon": epsilon, "delta": delta, "n_rounds": n_rounds}
    try:
        study = changed(features=features, classes=classes, training=training, allow_missed_rounds=allow_missed_rounds)
    except StudyError:
        return
    again = study_from(json.loads(json.dumps(study.as_json())))
    assert (again.hash, again.terms) == (study.hash, study.terms)
    assert type(study.noise_multiplier) is float


def test_the_hash_is_the_same_in_every_process_and_order():
    backwards = {name: BASE[name] for name in reversed(BASE)}
    backwards["privacy"] = dict(reversed(BASE["privacy"].items()))
    code = f"from dpadmm.studies.reading import study_from; print(study_from({backwards!r}).hash)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == changed().hash
    # Whoever changes what is hashed breaks every enrolled study: then FORMAT must change too
    assert changed().hash == "9083130283a0555a36e5e035f2f4be78ee764bb0391ca5affe11bd88ee9b6d65"


def test_what_means_the_same_has_the_same_hash():
    default = Training(method="dp_admm", epsilon=1).to_dict()
    written_out = {k: v for k, v in default.items() if v is not None and k not in ("epsilon", "delta")}
    same = [
        changed(training={"epsilon": 1, "delta": 1e-6}),
        changed(training={"epsilon": np.float64(1.0), "delta": 1e-6}),
        changed(training={"epsilon": 1.0, "delta": 1e-6, **written_out}),
        changed(training={"epsilon": 1.0, "delta": 1e-6, "noise_multiplier": None}),
        Study(
            name="flu",
            features=("age", "fever"),
            classes=["no", "yes"],
            training={"method": "dp_admm", **BASE["privacy"]},
        ),
    ]
    assert {each.hash for each in same} == {changed().hash}
    assert changed(classes=[0, 1]).hash == changed(classes=[0.0, 1.0]).hash
    assert trained(alpha=-0.0).hash == trained(alpha=0).hash


def test_every_part_changes_the_hash():
    hashes = {
        changed().hash,
        changed(name="flu 2").hash,
        changed(features=["fever", "age"]).hash,
        changed(features=["age", "fever", "x"]).hash,
        changed(classes=["yes", "no"]).hash,
        changed(allow_missed_rounds=True).hash,
        changed(provenance={"method": {"rho": "public"}}).hash,
        changed(provenance={"method.rho": "assumed"}).hash,
    }
    assert len(hashes) == 8
    assert set(OTHER) == set(FIXED)
    for name, value in OTHER.items():
        assert trained(**owned(name, **{name: value})).hash != trained(**owned(name)).hash, name


ROSTER = tuple({"name": f"site-{i}", "key": f"{i:064x}"} for i in range(1, 5))


def masked(min_honest_sites=2, **parts):
    training = {"method": "auto", "epsilon": 1.0, "aggregation": "secure", "min_honest_sites": min_honest_sites}
    return changed(training, **{"max_rows_per_site": 1000, "roster": ROSTER, **parts})


def test_a_roster_and_what_it_promises_are_part_of_the_hash(tmp_path):
    swapped = ({**ROSTER[0], "key": "ff" * 32}, *ROSTER[1:])
    several = [
        masked(),
        masked(3),
        masked(max_rows_per_site=1001),
        masked(roster=ROSTER[:3]),
        masked(roster=ROSTER[::-1]),
    ]
    several += [masked(roster=swapped), masked(roster=()), trained(method="auto")]
    assert len({each.hash for each in several}) == len(several)
    assert all(study_from(json.loads(json.dumps(each.as_json()))).terms == each.terms for each in several)
    terms = masked(allow_missed_rounds=True, quorum=3).terms.masking
    assert (terms.min_honest_sites, terms.quorum, terms.max_rows_per_site) == (2, 3, 1000)
    assert terms.roster[1] == ("site-2", bytes(31) + b"\x02")
    assert masked().terms.masking.quorum == 4
    assert masked(roster=()).terms.masking.roster == ()  # of a draft, which no guard takes


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"roster": [*ROSTER, ROSTER[0]]}, "same name"),
        ({"roster": [*ROSTER, {"name": "x", "key": ROSTER[0]["key"]}]}, "same key"),
        ({"roster": [{"name": "x"}]}, "name and a key"),
        ({"roster": [{"name": "X Y", "key": "0" * 64}]}, "is not a valid site name"),
        ({"roster": [{"name": "x", "key": "0" * 63}]}, "64 hexadecimal digits"),
        ({"roster": "site-1"}, "list of tables"),
        ({"min_honest_sites": 4}, "set min_honest_sites to 3 or less"),
        ({"min_honest_sites": 3, "allow_missed_rounds": True, "quorum": 3}, "set min_honest_sites to 2 or less"),
        ({"quorum": 5, "allow_missed_rounds": True}, "only 4 sites"),
        ({"max_rows_per_site": None}, "requires max_rows_per_site"),
        ({"max_rows_per_site": 0}, "max_rows_per_site must be"),
    ],
)
def test_what_is_wrong_with_a_roster(parts, words):
    with pytest.raises(StudyError, match=words):
        masked(**parts)


def test_sums_of_many_sites_have_to_fit():
    many = [{"name": f"s{i}", "key": f"{i:064x}"} for i in range(1, 1001)]
    with pytest.raises(StudyError, match="63 bits"):
        masked(500, roster=many, max_rows_per_site=10**8, features=[f"x{i}" for i in range(5000)])
    with pytest.raises(StudyError, match="require aggregation"):
        changed(max_rows_per_site=5)


def test_a_study_cannot_be_changed_from_outside():
    training = {"epsilon": 1.0, "delta": 1e-6}
    study = changed(training=training)
    before = study.hash, study.terms
    training["epsilon"] = 100.0
    with pytest.raises(AttributeError):
        study.training.epsilon = 100.0
    assert (study.hash, study.terms) == before == (changed().hash, changed().terms)
    with pytest.raises(AttributeError):
        study.name = "other"


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_needs_an_origin(name):
    training = {**BASE["privacy"], **owned(name, **{name: OTHER[name]})}
    classes = None if training.get("loss") in ("huber", "squared") else ["no", "yes"]
    with pytest.raises(StudyError, match=rf"{name} = .* is not the default, so its source is required"):
        changed(training=training, classes=classes)
    for origin in ORIGINS:
        changed(training=training, classes=classes, provenance={name: origin})
    for wrong in ("cross-validation", "", 1, None, ["public"]):
        with pytest.raises(StudyError, match=f"provenance: {name} must be one of public, assumed"):
            changed(training=training, classes=classes, provenance={name: wrong})


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"format": "dpadmm-study/1"}, "format must be"),
        ({"format": None}, "format must be"),
        ({"name": " "}, "name must not be empty"),
        ({"name": 5}, "name must be"),
        ({"name": "a\nb"}, "name must be printable text"),
        ({"features": []}, "at least one"),
        ({"features": "age"}, "list of at least one column name"),
        ({"features": ["age", "age"]}, "twice"),
        ({"features": ["age", "\x1b[31m"]}, "features[1] must be printable text"),
        ({"features": ["age", 1]}, "must be a column name"),
        ({"classes": "ab"}, "classes must be a list"),
        ({"classes": 5}, "classes must be a list"),
        ({"classes": ["a"]}, "exactly 2 classes"),
        ({"classes": ["1", 1]}, "twice"),
        ({"classes": [datetime.date(2020, 1, 1), "b"]}, "a class must be"),
        ({"classes": [math.nan, 1]}, "a class must be"),
        ({"classes": None, "training": {"epsilon": 1.0, "loss": "softmax"}}, "needs its classes"),
        ({"training": {"epsilon": 1.0, "loss": "squared"}}, "no classes"),
        ({"training": {}}, "exactly one of epsilon"),
        ({"training": {"epsilon": 1.0, "noise_multiplier": 2.0}}, "exactly one of epsilon"),
        ({"training": {"epsilon": [1.0, 2.0]}}, "epsilon must be a positive number"),
        ({"training": {"noise_multiplier": 0}}, "no privacy"),
        ({"training": {"noise_multiplier": 0.01}}, "noise_multiplier = 0.01 is outside 0.1"),
        ({"training": {"noise_multiplier": 1e12}}, "noise_multiplier = 1e+12 is outside"),
        (
            {"training": {"epsilon": 1e9}},
            "epsilon = 1e+09 in 100 rounds requires too little noise",
        ),
        ({"training": {"epsilon": 1e300}}, "0.1 to 1e+09); reduce epsilon"),
        ({"training": {"epsilon": 1e-12, "delta": 1e-12}}, "0.1 to 1e+09); increase epsilon, or use fewer rounds"),
        (
            {"training": {"epsilon": 1.0, "method": "admm"}},
            "admm runs in simulations only; use auto, pgd, newton, dp_admm or dp_sgd",
        ),
        (
            {"training": {"epsilon": 1.0, "method": "admm_pvp"}},
            "admm_pvp runs in simulations only",
        ),
        ({"training": {"epsilon": 1.0, "method": "dp-admm"}}, "did you mean 'dp_admm'"),
        ({"training": {"epsilon": 1.0, "n_agents": 5}}, "unknown setting 'n_agents'"),
        ({"training": {"epsilon": 1.0, "rounds": 5}}, "did you mean 'n_rounds'"),
        ({"training": {"epsilon": 1.0, "n_rounds": 10**400}}, "n_rounds"),
        ({"loss": [1]}, "loss must be a table"),
        ({"loss": {"delta": 1.0}}, "loss: name is missing"),
        ({"loss": {"name": "huber", "width": 1.0}}, "loss: width is a parameter of smoothed_hinge, not of huber"),
        (
            {"method": {"name": "dp_sgd", "sampling": 0.5}, "provenance": {"method": {"sampling": "public"}}},
            "agents release one sum with Gaussian noise per round",
        ),
        ({"provenance": {"n_rounds": "public"}}, "unknown setting 'n_rounds'"),
        ({"allow_missed_rounds": 1}, "allow_missed_rounds must be"),
        ({"allow_mised_rounds": True}, "did you mean 'allow_missed_rounds'"),
    ],
)
def test_a_mistake_is_one_sentence(parts, complaint):
    base = BASE
    if "training" in parts:
        base = {name: value for name, value in BASE.items() if name != "privacy"}
        parts = {**tables(parts["training"]), **{k: v for k, v in parts.items() if k != "training"}}
    with pytest.raises(StudyError, match="a study at hand: ") as caught:
        study_from({**base, **parts}, "a study at hand")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["name", "features", "privacy"])
def test_nothing_may_be_missing(name):
    said = {"features": "give either", "privacy": "exactly one of epsilon"}.get(name, f"{name} is missing")
    with pytest.raises(StudyError, match=said):
        study_from({key: value for key, value in BASE.items() if key != name})


@pytest.mark.parametrize("table", [[], "x", None, 5])
def test_a_study_is_a_table(table):
    with pytest.raises(StudyError, match="a table"):
        study_from(table)


@pytest.mark.parametrize(
    "place",
    [
        *(each.name for each in fields(Study)),
        "format",
        "loss",
        "method",
        "privacy",
        *FIXED,
        "origin",
        "class",
    ],
)
def test_whatever_is_written_there_is_a_study_or_one_sentence(place):
    for value in ODD:
        table = {**BASE, "provenance": dict.fromkeys(CONSTANTS, "public")}
        if place in FIXED:
            budget = {} if place in ("round_epsilon", "noise_multiplier") else {"epsilon": 1.0}
            table = {key: each for key, each in table.items() if key != "privacy"}
            table |= tables({**budget, **owned(place, **{place: value})})
        elif place == "origin":
            table["provenance"] = {"method": {"rho": value}}
        elif place == "class":
            table["classes"] = [value, "b"]
        else:
            table[place] = value
        study, mistake = _tried(table)
        if study is None:
            assert len(mistake.splitlines()) == 1
        else:
            assert len(study.hash) == 64
            assert 0.1 <= study.noise_multiplier <= 1e9
            json.dumps(study.as_json(), allow_nan=False)


def _tried(table):
    try:
        return study_from(table), ""
    except StudyError as error:
        return None, str(error)


@pytest.mark.parametrize(
    "text",
    [
        *("name = ", "a = 1\na = 2", "\x00", "a = " + "1" * 5000, "a = " + "[" * 5000, "n = 0x" + "f" * 9000),
        *(TOML.replace("1.0", "nan"), TOML.replace("1.0", "1e999"), TOML.replace('"flu"', "2020-01-01"), ""),
    ],
)
def test_a_file_that_is_no_study_is_one_sentence(tmp_path, text):
    path = tmp_path / "study.toml"
    path.write_text(text)
    with pytest.raises(StudyError) as caught:
        read_study(path)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 400 + len(str(path))
    assert "\n" not in str(caught.value)


def test_the_constant_column_is_a_part_of_what_is_agreed_on() -> None:
    with_constant = Study(name="s", features=("x",), training={"intercept": True, "noise_multiplier": 9.0})
    table = with_constant.as_json()
    assert table["intercept_value"] == INTERCEPT
    assert study_from(table).hash == with_constant.hash
    with pytest.raises(StudyError, match="use the same version"):
        study_from({**table, "intercept_value": 0.5})
    without = Study(name="s", features=("x",), training={"intercept": False, "noise_multiplier": 9.0})
    assert "intercept_value" not in without.as_json()


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"quorum": 2}, "allow_missed_rounds = true"),
        ({"deadline": 3.0}, "allow_missed_rounds = true"),
        ({"allow_missed_rounds": True, "quorum": 0}, "quorum must be"),
        ({"allow_missed_rounds": True, "quorum": True}, "quorum must be"),
        ({"allow_missed_rounds": True, "deadline": 0.0}, "deadline must be"),
        ({"allow_missed_rounds": True, "deadline": float("nan")}, "deadline must be"),
    ],
)
def test_quorum_and_deadline_are_checked(more: dict[str, Any], text: str) -> None:
    with pytest.raises(StudyError, match=text):
        Study(name="s", features=("x",), training={"noise_multiplier": 9.0}, **more)


def test_quorum_and_deadline_are_in_the_hash_where_they_are_given() -> None:
    plain = {"name": "s", "features": ("x",), "training": {"noise_multiplier": 9.0}, "allow_missed_rounds": True}
    one, other = Study(**plain), Study(**plain, quorum=2, deadline=5)
    assert "quorum" not in one.as_json()
    assert one.hash != other.hash == study_from(other.as_json()).hash
    assert (one.quorum_of(4), other.quorum_of(4)) == (4, 2)


def test_a_study_holds_nothing_but_what_its_file_says():
    """Objects that only look like registered ones would have the hash of these."""

    @dataclass(frozen=True)
    class Loud(Logistic):
        lipschitz: ClassVar[float] = 0.01

    @dataclass(frozen=True)
    class Cheap(DpAdmm):
        pass

    for one, what in ((Loud(), "loss"), (Cheap(), "method")):
        with pytest.raises(StudyError, match=f"the {what} {one.name!r} is not registered"):
            Study(name="s", features=("x",), training=Training(epsilon=1.0, **{what: one}))
    with pytest.raises(StudyError, match="not a class"):
        Training(epsilon=1.0, loss=Huber)
    same = Study(name="s", features=("x",), training=Training(epsilon=1.0, method=DpAdmm(), loss=Logistic()))
    assert same.hash == Study(name="s", features=("x",), training={"method": "dp_admm", "epsilon": 1.0}).hash


def test_a_setting_of_what_was_not_chosen_is_refused():
    for name, value in (("method.mechanism", "pure"), ("loss.delta", 0.5), ("method.learning_rate", 0.1)):
        what, _, own = name.partition(".")
        with pytest.raises(StudyError, match=rf"{what}: {own} is a parameter of .*, not of (auto|logistic); remove it"):
            Study(name="s", features=("x",), training=nest({"epsilon": 1.0, name: value}))
    with pytest.raises(StudyError, match=r"training: unknown setting 'rho'; did you mean 'method\.rho'\?"):
        Study(name="s", features=("x",), training={"epsilon": 1.0, "rho": 0.2})
    with pytest.raises(StudyError, match="loss: delta must be a number"):
        Training(epsilon=1.0, loss={"name": "huber", "delta": "nonsense"})


@pytest.mark.parametrize("kind", ["nothing in round 2", "nine kinds", "a short plan"])
def test_a_plan_that_a_site_could_not_finish_or_state_is_refused(kind, monkeypatch):
    plans = {
        "nothing in round 2": ReleasePlan.of([Release(5.0), None, *[Release(5.0)] * 8]),
        "nine kinds": ReleasePlan.of([*(Release(5.0 + k) for k in range(9)), Release(5.0)]),
        "a short plan": ReleasePlan.constant(Release(5.0), 9),
    }
    monkeypatch.setattr(DpAdmm, "plan", lambda self, agent, n_rounds: plans[kind])
    with pytest.raises(StudyError, match="must release something in every round, and at most 8 different kinds"):
        Study(name="s", features=("x",), training={"method": "dp_admm", "noise_multiplier": 5.0, "n_rounds": 10})


def test_a_huge_number_is_one_sentence():
    with pytest.raises(StudyError, match="n_rounds must be a whole number of at least 1, not a huge number"):
        Training(epsilon=1.0, n_rounds=10**5000)


def test_settings_with_a_meaning_of_their_own_are_refused():
    class Cheap(Training):
        pass

    with pytest.raises(StudyError, match="training must be a mapping of settings"):
        Study(name="s", features=("x",), training=Cheap(epsilon=1.0))
