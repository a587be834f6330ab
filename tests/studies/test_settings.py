"""Settings: every bad value is a StudyError that names it, and unknown names suggest the nearest."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from cases import LOSS_CASES, REGULARIZER_CASES

from dpadmm.baselines import ALL_METHODS
from dpadmm.errors import StudyError
from dpadmm.losses import LOSSES, Huber, SmoothedHinge, Softmax, Squared
from dpadmm.parameters.fields import check_names, choices, nearest, parameters, wanted
from dpadmm.regularizers import REGULARIZERS, ElasticNet
from dpadmm.studies.settings import BUDGETS, CHOICES, Settings, Training, nest, nested_parameters, settings_from

KNOWN = nested_parameters(Settings)
OWNERS = {
    f"{what}.{own.name}": {what: name}
    for what, classes in CHOICES.items()
    for name, cls in classes.items()
    for own in parameters(cls)
}
"""A parameter, and one of the choices that have it."""

NUMBERS = [n for n, each in KNOWN.items() if each.base is float and n not in BUDGETS]
WHOLE = [name for name, each in KNOWN.items() if each.base is int]
FLAGS = [name for name, each in KNOWN.items() if each.base is bool]
NAMES = [name for name, each in KNOWN.items() if each.base is str or name in CHOICES]


def made(**changes: Any) -> Settings:
    method = ALL_METHODS.get(str(changes.get("method")))
    if not set(BUDGETS) & set(changes) and (method is None or method.private):
        changes["epsilon"] = 1.0
    return Settings(**nest(changes))


def refused(name: str, value: Any) -> str:
    with pytest.raises(StudyError, match=name.replace(".", r"[.:] ?")) as caught:
        made(**{**OWNERS.get(name, {}), name: value})
    return str(caught.value)


def test_every_setting_is_tested_here_and_has_help() -> None:
    assert {*NUMBERS, *WHOLE, *FLAGS, *NAMES, *BUDGETS} == set(KNOWN)
    assert all(each.help for each in KNOWN.values())
    assert {"method.rho", "loss.delta", "regularizer.l1_ratio", "method.weight_radius", "delta"} <= set(NUMBERS)


def test_bad_numbers() -> None:
    for name in NUMBERS:
        for bad in (-1.0, np.nan, np.inf, "1", None, True, [1.0]):
            if bad is not None or KNOWN[name].default is not None:
                assert f"{bad!r}"[:20] in refused(name, bad) or isinstance(bad, list | bool)


def test_zero_where_a_positive_number_is_needed() -> None:
    zero = [
        name
        for name in NUMBERS
        if "at least 0" not in wanted(KNOWN[name].kind) and name not in ("regularizer.l1_ratio", "aborted_rounds")
    ]
    assert {"method.rho", "loss.width", "participation", "stop_tolerance", "delta"} <= set(zero)
    for name in zero:
        refused(name, 0.0)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("participation", 1.1), ("method.sampling", 1.1), ("delta", 1.0), ("delta", 1.5), ("stop_tolerance", 1.0),
        ("regularizer.l1_ratio", 1.1), ("loss.delta", 1e101), ("loss.gradient_bound", 1e101),
    ],
)  # fmt: skip
def test_numbers_beyond_their_range(name: str, bad: float) -> None:
    refused(name, bad)


def test_bad_whole_numbers() -> None:
    own = {"method.local_steps", "method.degree", "method.graph_seed", "method.max_delay", "method.delay_seed"}
    assert set(WHOLE) == {"n_agents", "n_rounds", "metrics_every", "seed", "min_honest_sites"} | own
    for name in WHOLE:
        for bad in (1.5, "3", True, np.nan, -1):
            refused(name, bad)
    refused("n_agents", 0)
    refused("n_rounds", 0)


def test_bad_flags() -> None:
    for name in FLAGS:
        for bad in (1, "yes", None):
            assert "must be true or false" in refused(name, bad)


def test_bad_names() -> None:
    for name in NAMES:
        for bad in ("", "nonsense", 3, None, ["l2"]):
            if bad is not None or KNOWN[name].default is not None:
                refused(name, bad)


@pytest.mark.parametrize(
    ("name", "typed", "meant"),
    [
        ("loss", "logistc", "logistic"), ("regularizer", "L2", "l2"), ("method", "dpadmm", "dp_admm"),
        ("partition", "group", "groups"), ("average", "tails", "tail"), ("calibration", "exakt", "exact"),
    ],
)  # fmt: skip
def test_the_nearest_name_is_suggested(name: str, typed: str, meant: str) -> None:
    with pytest.raises(StudyError, match=f"did you mean '{meant}'"):
        made(**{name: typed})


def test_bad_budgets() -> None:
    for name in ("epsilon", "round_epsilon"):
        for bad in (0.0, -1.0, np.nan, np.inf, "1", True, [1.0, 0.0], [1.0, np.nan], [], [[1.0]]):
            refused(name, bad)


def test_bad_noise_multiplier_but_zero_is_no_privacy() -> None:
    for bad in (-1.0, np.nan, np.inf, "1", [1.0, -1.0], []):
        refused("noise_multiplier", bad)
    assert made(noise_multiplier=0.0).noise_multiplier == 0.0


def test_exactly_one_budget() -> None:
    with pytest.raises(StudyError, match=r"exactly one of epsilon .*none given"):
        Settings()
    with pytest.raises(StudyError, match="epsilon and noise_multiplier given"):
        Settings(epsilon=1.0, noise_multiplier=1.0)


@pytest.mark.parametrize("name", BUDGETS)
def test_centralized_takes_no_budget(name: str) -> None:
    with pytest.raises(StudyError, match=f"is not private; remove {name}"):
        Settings(method="centralized", **{name: 1.0})
    assert Settings(method="centralized").epsilon is None


def test_unknown_settings_suggest_the_nearest() -> None:
    with pytest.raises(StudyError, match=r"study\.toml: unknown setting 'epsilom'; did you mean 'epsilon'"):
        settings_from({"epsilom": 1.0}, "study.toml")
    with pytest.raises(StudyError, match="known are"):
        settings_from({"qqqqqqqq": 1.0})
    with pytest.raises(StudyError, match="unknown setting 'n_agents'"):
        Training(epsilon=1.0, n_agents=5)
    check_names(["a"], ["a", "b"], "here")
    assert nearest("roh", ["rho", "delta"]) == "did you mean 'rho'?"


@pytest.mark.parametrize("budget", [np.array(0.5), np.float32(0.5), np.array([0.5, 0.25]), [np.float64(0.5)], (1, 2)])
def test_numpy_values_become_plain_ones(budget: Any) -> None:
    settings = Settings(
        epsilon=budget, n_agents=np.int64(2), method={"rho": np.float32(0.5)}, seed=np.uint8(3), intercept=np.True_,
        loss=np.str_("logistic"),
    )  # fmt: skip
    said = json.loads(json.dumps(settings.to_dict(), allow_nan=False))
    assert said["n_agents"] == 2
    assert said["method"]["rho"] == 0.5
    assert said["intercept"] is True
    assert np.array_equal(said["epsilon"], budget)
    again = settings_from(settings.to_dict())
    assert again == settings
    assert hash(again) == hash(settings)


def test_losses_and_regularizers_get_their_parameters() -> None:
    given = {
        "smoothed_hinge": {"width": 0.3}, "huber": {"delta": 0.4}, "squared": {"gradient_bound": 5.0},
    }  # fmt: skip
    expected = {
        "smoothed_hinge": SmoothedHinge(0.3), "huber": Huber(0.4), "squared": Squared(5.0),
        "softmax": Softmax(4),
    }  # fmt: skip
    for name in LOSSES:
        problem = settings_from({"loss": {"name": name, **given.get(name, {})}, "epsilon": 1.0}).problem(4)
        assert problem.loss.name == name
        assert problem.loss == expected.get(name, problem.loss)
    assert {loss.name for loss in LOSS_CASES} == set(LOSSES)
    for name in REGULARIZERS:
        assert settings_from({"regularizer": name, "epsilon": 1.0}).problem(2).regularizer.name == name
    elastic = made(regularizer={"name": "elastic_net", "l1_ratio": 0.7}, alpha=0.25).problem(2)
    assert elastic.regularizer == ElasticNet(0.7)
    assert elastic.alpha == 0.25
    assert {each.name for each in REGULARIZER_CASES} == set(REGULARIZERS)


def test_a_parameter_belongs_to_the_methods_that_have_it() -> None:
    given = {"rho": 0.3, "solver_tolerance": 0.5, "learning_rate": 2.0, "mechanism": "pure"}
    for name, method in ALL_METHODS.items():
        own = {each.name for each in parameters(method)}
        for key, value in given.items():
            budget = {"epsilon": 1.0} if method.private else {}
            if key in own:
                assert getattr(Settings(method={"name": name, key: value}, **budget).method, key) == value
            else:
                with pytest.raises(StudyError, match=f"method: {key} is a parameter of .*, not of {name}; remove it"):
                    Settings(method={"name": name, key: value}, **budget)


def test_names_tables_and_objects_are_the_same() -> None:
    by_name = made(
        loss={"name": "huber", "delta": 0.5}, regularizer="elastic_net",
        method={"name": "dp_sgd", "learning_rate": 2.0},
    )  # fmt: skip
    by_object = made(loss=Huber(0.5), regularizer=ElasticNet(), method=ALL_METHODS["dp_sgd"](learning_rate=2.0))
    assert by_name == by_object
    assert by_name.with_changes(loss={"delta": 0.25}).loss == Huber(0.25)
    assert by_name.with_changes(loss="logistic").to_dict()["loss"] == {"name": "logistic"}
    assert made(method={"rho": 0.25}).method == ALL_METHODS["dp_admm"](rho=0.25)
    assert by_name.with_changes(method={"sampling": 0.5}).method.learning_rate == 2.0


def test_all_problems_are_reported_at_once_with_the_valid_names() -> None:
    with pytest.raises(StudyError) as caught:
        Settings(epsilom=1.0, method={"name": "dp_admm", "roh": 0.2, "step_size": -1.0}, loss="hube", alpha=-1.0)
    for words in (
        "settings: unknown setting 'epsilom'; did you mean 'epsilon'?",
        "dp_admm has no parameter 'roh'; did you mean 'rho'? Parameters: rho, weight_radius, schedule, step_size",
        "method: step_size must be a positive number, not -1.0",
        "loss: 'hube' does not exist; did you mean 'huber'?",
        "alpha must be a number of at least 0, not -1.0",
    ):
        assert words in str(caught.value)
    with pytest.raises(StudyError, match=r"unknown setting 'rho'; did you mean 'method\.rho'\?"):
        made(rho=0.2)
    with pytest.raises(StudyError, match="none given; min_honest_sites requires aggregation"):
        Settings(min_honest_sites=3)


def test_parameters_have_one_type_and_help() -> None:
    for name, each in KNOWN.items():
        assert each.help or name in CHOICES, name
        assert name in CHOICES or each.base in (bool, int, float, str), name
        assert each.base is not str or choices(each.kind) or name == "method.edges", name


def test_an_own_loss_is_checked_when_it_is_given() -> None:
    class Bare:
        name = "bare"

    @dataclass(frozen=True)
    class Wrong(Huber):
        name: ClassVar[str] = "wrong"

        @staticmethod
        def formula(i: Any, labels: Any, scores: Any, parameters: Any, out: Any) -> None:
            out[0, i] = parameters[3]

    @dataclass(frozen=True)
    class NotANumber(Huber):
        name: ClassVar[str] = "nan"

        @staticmethod
        def formula(i: Any, labels: Any, scores: Any, parameters: Any, out: Any) -> None:
            out[0, i] = np.log(scores[0, i])

    for loss, words in (
        (Bare(), "loss Bare has no task; a loss needs name, task"),
        (Wrong(), "loss Wrong: NumPy cannot run its formula .IndexError"),
        (NotANumber(), "loss NotANumber: its formula returns nan"),
        (Huber, r"loss must be a name or an object, such as Huber\(\)"),
    ):
        with pytest.raises(StudyError, match=words):
            made(loss=loss)
    for what, other in (("regularizer", Huber()), ("method", Huber())):
        with pytest.raises(StudyError, match=f"{what} Huber is not"):
            made(**{what: other})
