"""Data sets and label encoding."""

from __future__ import annotations

from decimal import Decimal
from itertools import product

import numpy as np
import pytest
from looping import case
from scipy.sparse import csr_array

from dpadmm.data import Dataset, encode_labels
from dpadmm.errors import DataError, StudyError


@pytest.mark.parametrize("sparse", [False, True])
def test_take_keeps_rows_labels_and_groups_together(sparse: bool) -> None:
    matrix = np.arange(12.0).reshape(4, 3)
    data = Dataset(
        "d",
        csr_array(matrix) if sparse else matrix,
        np.arange(4.0),
        None,
        np.array(list("abca")),
        ("x", "y", "z"),
    )
    part = data.take(np.array([3, 1]))
    dense = part.features.toarray() if isinstance(part.features, csr_array) else part.features
    assert dense.tolist() == matrix[[3, 1]].tolist()
    assert part.labels.tolist() == [3.0, 1.0]
    assert part.groups is not None
    assert part.groups.tolist() == ["a", "b"]
    assert (part.n_rows, part.n_features, part.feature_names) == (2, 3, ("x", "y", "z"))


def test_wrong_shapes_are_refused() -> None:
    for arguments, message in [
        ((np.zeros(3), np.zeros(3), None), "must be a matrix"),
        ((np.zeros((3, 2)), np.zeros(2), None), "3 rows need 3 labels"),
        ((np.zeros((3, 2)), np.zeros(3), None, np.zeros(4)), "3 rows need 3 groups"),
        ((np.zeros((3, 2)), np.zeros(3), None, None, ("x",)), "2 columns but 1 feature names"),
    ]:
        with case(arguments, message), pytest.raises(DataError, match=message):
            Dataset("d", *arguments)


def test_spellings_of_a_class_are_equal() -> None:
    for container, classes, values in product(
        [list, np.array],
        [("0", "1"), (0, 1), (False, True), (0.0, "1.0")],
        [
            [0, 1, 1],
            [0.0, 1.0, 1.0],
            [False, True, True],
            ["0", "1", "1"],
            ["0.0", " 1", "+1"],
            [0, "1", True],
            [b"0", b"1", b"1"],
            [Decimal("0"), Decimal("1.0"), 1],
            ["false", "True", "TRUE"],
        ],
    ):
        with case(container, classes, values):
            assert encode_labels(container(values), task="binary", classes=classes).tolist() == [
                -1.0,
                1.0,
                1.0,
            ]


def test_order_of_classes_determines_the_encoding() -> None:
    assert encode_labels(["b", "a", "c"], task="multiclass", classes=("c", "b", "a")).tolist() == [
        1.0,
        2.0,
        0.0,
    ]
    assert encode_labels(np.array([5, 3, 9]), task="multiclass", classes=("9", 5, 3)).tolist() == [
        1.0,
        2.0,
        0.0,
    ]
    assert encode_labels([2, 1], task="binary", classes=(2, 1)).tolist() == [-1.0, 1.0]
    assert encode_labels([0, 1], task="multiclass", classes=(0, 1)).tolist() == [0.0, 1.0]


def test_binary_classes_are_minus_one_and_one_by_default() -> None:
    assert encode_labels(np.array([1, -1]), task="binary").tolist() == [1.0, -1.0]


def test_regression_labels_are_numbers() -> None:
    assert encode_labels(["1.5", "-2"], task="regression").tolist() == [1.5, -2.0]
    assert encode_labels(np.array([1, 2], dtype=np.int8), task="regression").dtype == np.float64


def test_unknown_label_error_names_value_row_and_remedy() -> None:
    for values in [np.array([1] * 16 + [2]), [1] * 16 + [2], [1.0] * 16 + ["2"]]:
        with (
            case(values),
            pytest.raises(DataError, match=r"row 17: label '?2'? is not one of .* -1, 1: .*classes=.*--classes"),
        ):
            encode_labels(values, task="binary")


def test_numbers_never_match_text_classes() -> None:
    with pytest.raises(DataError, match="row 1: label 1 is not one of the declared classes 'no', 'yes'"):
        encode_labels(np.array([1, 0]), task="binary", classes=("no", "yes"))
    with pytest.raises(DataError, match="row 2: label '1_0'"):
        encode_labels(["10", "1_0"], task="binary", classes=(10, 20))


def test_missing_labels_name_the_row() -> None:
    for bad, task in product(
        [None, "", "  ", "nan", "inf", "-Infinity", float("nan"), float("inf")], ["binary", "regression"]
    ):
        with case(bad, task):
            with pytest.raises(DataError, match="row 2: the label is missing or not finite"):
                encode_labels([1, bad], task=task)
            if isinstance(bad, float):
                with pytest.raises(DataError, match="row 2: the label is missing or not finite"):
                    encode_labels(np.array([1.0, bad]), task=task)


def test_text_is_refused_as_a_regression_label() -> None:
    with pytest.raises(DataError, match="row 2: label 'high' is not a number"):
        encode_labels(["1", "high"], task="regression")


def test_labels_must_be_one_dimensional() -> None:
    with pytest.raises(DataError, match=r"shape \(2, 1\)"):
        encode_labels(np.ones((2, 1)), task="binary")


def test_classes_that_do_not_match_the_task_are_refused() -> None:
    for task, classes, message in [
        ("binary", (0, 1, 2), "exactly 2 classes"),
        ("binary", (0,), "exactly 2 classes"),
        ("binary", ("1", 1.0), "1.0 is declared twice"),
        ("binary", (0, None), "not None"),
        ("multiclass", None, "needs its classes: .*--classes"),
        ("multiclass", ("a",), "at least 2 classes"),
        ("multiclass", ("a", "b", "a"), "'a' is declared twice"),
        ("regression", (0, 1), "no classes"),
        ("ranking", None, "unknown task 'ranking'"),
    ]:
        with case(task, classes, message), pytest.raises(StudyError, match=message):
            encode_labels([1], task=task, classes=classes)
