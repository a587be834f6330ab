"""Settings: every bad value is a StudyError that names it, and unknown names suggest the nearest."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from itertools import product
from typing import Any

import numpy as np
import pytest
from cases import LOSS_CASES, REGULARIZER_CASES
from looping import case

from dpadmm._base.errors import StudyError
from dpadmm.optim.losses import LOSSES, Huber, SmoothedHinge, Softmax, Squared
from dpadmm.optim.regularizers import REGULARIZERS, ElasticNet
from dpadmm.study.settings import NOT_PRIVATE, Settings, check_names, nearest, settings_from

POSITIVE = (
    "partition_spread", "loss_width", "loss_delta", "gradient_bound", "rho", "weight_radius", "step_size",
    "participation", "stop_tolerance", "learning_rate", "sampling", "solver_tolerance",
)  # fmt: skip
AT_LEAST_0 = ("l1_ratio", "reg_share", "test_rows")
NAMES = ("method", "partition", "loss", "regularizer", "calibration", "schedule", "average", "mechanism")
WHOLE = {"n_agents": 1, "n_rounds": 1, "metrics_every": 0, "seed": 0}
FLAGS = ("intercept", "clip_rows", "split_regularizer")
MAY_BE_LEFT_OUT = ("stop_tolerance", "learning_rate")
BUDGETS = ("epsilon", "round_epsilon", "noise_multiplier")


def made(**changes: Any) -> Settings:
    if not set(BUDGETS) & set(changes) and changes.get("method") not in NOT_PRIVATE:
        changes["epsilon"] = 1.0
    return Settings(**changes)


def refused(name: str, value: Any, **others: Any) -> None:
    with pytest.raises(StudyError, match=rf"\b{name}\b"):
        made(**{name: value}, **others)


def test_every_setting_is_tested_here() -> None:
    known = {*POSITIVE, *AT_LEAST_0, *NAMES, *WHOLE, *FLAGS, *BUDGETS, "delta"}
    assert known == {field.name for field in fields(Settings)}


def test_bad_numbers() -> None:
    for name, bad in product(
        [*POSITIVE, *AT_LEAST_0, "delta"], [-1.0, np.nan, np.inf, "1", None, True, [1.0]]
    ):
        with case(name, bad):
            if name in MAY_BE_LEFT_OUT and bad is None:
                continue
            refused(name, bad)


def test_zero_where_a_positive_number_is_needed() -> None:
    for name in [*POSITIVE, "delta"]:
        with case(name):
            refused(name, 0.0)


def test_chances_above_1() -> None:
    for name, bad in [("participation", 1.1), ("sampling", 1.1), ("delta", 1.0), ("delta", 1.5)]:
        with case(name, bad):
            refused(name, bad)


@pytest.mark.parametrize("bad", [1.1, 7.0])
def test_l1_ratio_above_1_is_refused_whatever_the_regularizer(bad: float) -> None:
    for regularizer in REGULARIZERS:
        refused("l1_ratio", bad, regularizer=regularizer)


@pytest.mark.parametrize("bad", [1.0, 2.0])
def test_stop_tolerance_from_1(bad: float) -> None:
    refused("stop_tolerance", bad)


def test_bad_whole_numbers() -> None:
    for name, bad in product(WHOLE, [1.5, "3", True, np.nan]):
        with case(name, bad):
            refused(name, bad)
            refused(name, WHOLE[name] - 1)


def test_bad_flags() -> None:
    for name, bad in product(FLAGS, [1, "yes", None]):
        with case(name, bad):
            refused(name, bad)


def test_bad_names() -> None:
    for name, bad in product(NAMES, ["", "nonsense", 3, None, ["l2"]]):
        with case(name, bad):
            refused(name, bad)


def test_the_nearest_name_is_suggested() -> None:
    for name, typed, meant in [
        ("loss", "logistc", "logistic"),
        ("regularizer", "L2", "l2"),
        ("method", "dpadmm", "dp_admm"),
        ("partition", "group", "groups"),
        ("average", "tails", "tail"),
        ("calibration", "exakt", "exact"),
    ]:
        with case(name, typed, meant), pytest.raises(StudyError, match=f"did you mean '{meant}'"):
            made(**{name: typed})


def test_bad_budgets() -> None:
    for name, bad in product(
        ["epsilon", "round_epsilon"],
        [0.0, -1.0, np.nan, np.inf, "1", True, [1.0, 0.0], [1.0, np.nan], [], [[1.0]]],
    ):
        with case(name, bad):
            refused(name, bad)


def test_bad_noise_multiplier_but_zero_is_no_privacy() -> None:
    for bad in (-1.0, np.nan, np.inf, "1", [1.0, -1.0], []):
        refused("noise_multiplier", bad)
    assert made(noise_multiplier=0.0).noise_multiplier == 0.0


def test_exactly_one_budget() -> None:
    with pytest.raises(StudyError, match=r"exactly one of epsilon .*none was given"):
        Settings()
    with pytest.raises(StudyError, match="epsilon and noise_multiplier were given"):
        Settings(epsilon=1.0, noise_multiplier=1.0)


def test_centralized_takes_no_budget() -> None:
    for name in BUDGETS:
        with case(name):
            with pytest.raises(StudyError, match=f"takes no {name}"):
                Settings(method="centralized", **{name: 1.0})  # type: ignore[arg-type]
            assert Settings(method="centralized").epsilon is None


def test_unknown_settings_suggest_the_nearest() -> None:
    with pytest.raises(StudyError, match=r"study\.toml: unknown setting 'epsilom'; did you mean 'epsilon'"):
        settings_from({"epsilom": 1.0}, "study.toml")
    with pytest.raises(StudyError, match="known are"):
        settings_from({"qqqqqqqq": 1.0})
    check_names(["a"], ["a", "b"], "here")
    assert nearest("roh", ["rho", "delta"]) == "did you mean 'rho'?"


def test_numpy_values_become_plain_ones() -> None:
    for budget in [np.array(0.5), np.float32(0.5), np.array([0.5, 0.25]), [np.float64(0.5)], (1, 2)]:
        with case(budget):
            settings = Settings(
                epsilon=budget, n_agents=np.int64(2), rho=np.float32(0.5), seed=np.uint8(3),
                intercept=np.True_, loss=np.str_("logistic"),
            )  # fmt: skip
            said = json.loads(json.dumps(asdict(settings), allow_nan=False))
            assert said["n_agents"] == 2
            assert said["intercept"] is True
            assert np.array_equal(said["epsilon"], budget)
            assert settings_from(asdict(settings)) == settings
            assert hash(settings) == hash(settings_from(asdict(settings)))


def test_losses_and_regularizers_get_their_parameters() -> None:
    settings = made(loss_width=0.3, loss_delta=0.4, gradient_bound=5.0, l1_ratio=0.7)
    wanted = {
        "smoothed_hinge": SmoothedHinge(0.3), "huber": Huber(0.4), "squared": Squared(5.0),
        "softmax": Softmax(4),
    }  # fmt: skip
    for name in LOSSES:
        problem = settings_from(asdict(settings) | {"loss": name}).problem(4)
        assert problem.loss.name == name
        assert problem.loss == wanted.get(name, problem.loss)
    assert {each.name for each in LOSS_CASES} == set(LOSSES)
    for name in REGULARIZERS:
        assert settings_from(asdict(settings) | {"regularizer": name}).problem(2).regularizer.name == name
    elastic = settings_from(asdict(settings) | {"regularizer": "elastic_net", "reg_share": 0.25}).problem(2)
    assert elastic.regularizer == ElasticNet(0.7)
    assert elastic.reg_share == 0.25
    assert {each.name for each in REGULARIZER_CASES} == set(REGULARIZERS)
