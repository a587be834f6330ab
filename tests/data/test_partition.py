"""Partitions: every row has one owner, no agent is empty, and each kind has the documented shape."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from looping import case

from dpadmm.data import Partition, by_group, equal, holdout, label_skewed, unequal
from dpadmm.errors import DataError, StudyError


def _skewed_classes(n_rows: int, n_agents: int, rng: np.random.Generator, shape: float) -> Partition:
    return label_skewed(rng.integers(0, 4, n_rows), n_agents, rng, concentration=max(shape, 1e-6))


def _skewed_numbers(n_rows: int, n_agents: int, rng: np.random.Generator, shape: float) -> Partition:
    return label_skewed(rng.standard_normal(n_rows), n_agents, rng, concentration=max(shape, 1e-6))


KINDS: dict[str, Callable[[int, int, np.random.Generator, float], Partition]] = {
    "equal": lambda n_rows, n_agents, rng, shape: equal(n_rows, n_agents, rng),
    "unequal": unequal,
    "skewed classes": _skewed_classes,
    "skewed numbers": _skewed_numbers,
}


@st.composite
def counts(draw: st.DrawFn) -> tuple[int, int]:
    n_rows = draw(st.integers(1, 300))
    return n_rows, draw(st.integers(1, n_rows))


@pytest.mark.parametrize("kind", KINDS)
@given(counts=counts(), seed=st.integers(0, 2**32), shape=st.sampled_from([0.0, 1e-3, 0.5, 3.0, 1e3, 1e6]))
@settings(max_examples=40, deadline=None)
def test_every_row_has_one_owner_and_no_agent_is_empty(
    kind: str, counts: tuple[int, int], seed: int, shape: float
) -> None:
    n_rows, n_agents = counts
    partition = KINDS[kind](n_rows, n_agents, np.random.default_rng(seed), shape)
    assert np.array_equal(np.sort(partition.order), np.arange(n_rows))
    assert partition.n_agents == n_agents == len(set(partition.names))
    assert partition.sizes.min() >= 1
    assert partition.sizes.sum() == n_rows
    assert all((np.diff(partition.rows(agent)) > 0).all() for agent in range(n_agents))
    assert partition.order.dtype == partition.offsets.dtype == np.int64


@given(groups=st.lists(st.sampled_from("abcdef"), min_size=1))
def test_groups_assign_rows_by_value(groups: list[str]) -> None:
    partition = by_group(groups)
    assert list(partition.names) == sorted(set(groups))
    for agent, name in enumerate(partition.names):
        assert partition.rows(agent).tolist() == [row for row, group in enumerate(groups) if group == name]


def test_the_seed_decides() -> None:
    for kind in KINDS:
        with case(kind):
            first, same, other = (KINDS[kind](200, 5, np.random.default_rng(seed), 1.0) for seed in (1, 1, 2))
            assert np.array_equal(first.order, same.order)
            assert np.array_equal(first.offsets, same.offsets)
            assert not np.array_equal(first.order, other.order)


def test_equal_sizes_differ_by_at_most_one() -> None:
    assert set(equal(103, 10, np.random.default_rng(0)).sizes.tolist()) == {10, 11}
    assert set(unequal(103, 10, np.random.default_rng(0), spread=0.0).sizes.tolist()) == {10, 11}


def test_a_larger_spread_gives_more_unequal_sizes() -> None:
    mild, wide = (unequal(10_000, 50, np.random.default_rng(0), spread=spread).sizes for spread in (0.3, 2.0))
    assert wide.std() > 3.0 * mild.std() > 0.0
    assert np.log(mild).std() == pytest.approx(0.3, rel=0.3)


def test_a_smaller_concentration_gives_more_skewed_labels() -> None:
    labels = np.repeat([-1.0, 1.0], 5000)

    def disagreement(concentration: float) -> float:
        partition = label_skewed(labels, 20, np.random.default_rng(0), concentration=concentration)
        means = np.array([labels[partition.rows(agent)].mean() for agent in range(20)])
        return float(np.average(np.abs(means), weights=partition.sizes))

    assert disagreement(0.1) > 0.7
    assert disagreement(1e5) < 0.05


def test_regression_labels_are_skewed_too() -> None:
    labels = np.random.default_rng(1).uniform(-1.0, 1.0, 5000)
    partition = label_skewed(labels, 10, np.random.default_rng(0), concentration=0.1)
    means = np.array([labels[partition.rows(agent)].mean() for agent in range(10)])
    assert means.std() > 0.15  # random groups of 500 rows would give 0.026


def test_groups_of_numbers_and_mixed_types() -> None:
    assert by_group(np.array([10, 9, 10])).names == ("9", "10")
    assert by_group(np.array([1, "a", 1], dtype=object)).names == ("1", "a")
    assert by_group(np.array(["2020-01-01", "2019-01-01"], dtype="M8[D]")).names == (
        "2019-01-01",
        "2020-01-01",
    )


def test_a_missing_group_names_the_row() -> None:
    for groups in [
        np.array(["a", None], dtype=object),
        np.array(["a", float("nan")], dtype=object),
        np.array([1.0, np.nan]),
        np.array(["a", ""]),
        np.array(["2020-01-01", "NaT"], dtype="M8[D]"),
    ]:
        with case(groups), pytest.raises(DataError, match="row 2: the group is missing"):
            by_group(groups)


@pytest.mark.parametrize("groups", [np.zeros((2, 2)), []])
def test_groups_must_be_one_value_per_row(groups: object) -> None:
    with pytest.raises(DataError, match="one value per row"):
        by_group(groups)


def test_impossible_counts_are_refused() -> None:
    for (n_rows, n_agents, message), kind in product(
        [(5, 6, "6 agents cannot share 5 rows"), (5, 0, "at least 1, not 0")], KINDS
    ):
        with case(n_rows, n_agents, message, kind), pytest.raises(StudyError, match=message):
            KINDS[kind](n_rows, n_agents, np.random.default_rng(0), 1.0)


def test_spread_out_of_range_is_refused() -> None:
    for spread in [-1.0, float("nan"), float("inf")]:
        with case(spread), pytest.raises(StudyError, match="spread must be"):
            unequal(10, 2, np.random.default_rng(0), spread=spread)


def test_concentration_out_of_range_is_refused() -> None:
    for concentration in [0.0, -1.0, float("nan"), 1e300]:
        with case(concentration), pytest.raises(StudyError, match="concentration must lie"):
            label_skewed(np.ones(10), 2, np.random.default_rng(0), concentration=concentration)


def test_labels_that_cannot_be_skewed_are_refused() -> None:
    with pytest.raises(DataError, match="row 2: the label is missing"):
        label_skewed([1.0, np.nan], 2, np.random.default_rng(0))
    with pytest.raises(DataError, match=r"shape \(2, 2\)"):
        label_skewed(np.ones((2, 2)), 2, np.random.default_rng(0))


@given(n_rows=st.integers(1, 200), data=st.data())
@settings(max_examples=30)
def test_holdout_splits_all_rows(n_rows: int, data: st.DataObject) -> None:
    n_test = data.draw(st.integers(0, n_rows - 1))
    train, test = holdout(n_rows, n_test, np.random.default_rng(0))
    assert len(test) == n_test
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(n_rows))


def test_an_impossible_holdout_is_refused() -> None:
    for n_rows, n_test, message in [(5, 5, "from 0 to 4"), (5, -1, "-1 of 5"), (0, 0, "no rows")]:
        with case(n_rows, n_test, message), pytest.raises(StudyError, match=message):
            holdout(n_rows, n_test, np.random.default_rng(0))


def test_invalid_partition_is_refused() -> None:
    for order, offsets, names, message in [
        ([0, 1], [0, 1], ("a",), "from 0 to the number of rows"),
        ([0, 1], [0, 0, 2], ("a", "b"), "agent 1 has no rows"),
        ([0, 1], [0, 2], ("a", "b"), "1 agents but 2 names"),
        ([0, 0], [0, 2], ("a",), "exactly once"),
        ([0, 2], [0, 2], ("a",), "exactly once"),
    ]:
        with case(order, offsets, names, message), pytest.raises(StudyError, match=message):
            Partition(np.array(order), np.array(offsets), names)
