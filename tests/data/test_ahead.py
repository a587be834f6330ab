"""Items made beforehand: the same ones, errors in their place, and nothing left running."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from dpadmm.data.ahead import ahead


def numbers(stop: int, made: list[int], closed: list[bool], error: Exception | None = None) -> Iterator[int]:
    try:
        for k in range(stop):
            made.append(k)
            yield k
        if error is not None:
            raise error
    finally:
        closed.append(True)


def left_over() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("ahead")]


def test_the_same_items_and_no_more_than_asked_for_beforehand() -> None:
    made: list[int] = []
    closed: list[bool] = []
    for k, item in enumerate(ahead(numbers(50, made, closed), count=3)):
        assert item == k
        assert len(made) <= k + 4
    assert made == list(range(50))
    assert closed == [True]
    assert not left_over()


def test_an_error_comes_after_the_items_before_it() -> None:
    made: list[int] = []
    seen: list[int] = []
    with pytest.raises(ValueError, match="here"):
        seen.extend(ahead(numbers(5, made, [], ValueError("here"))))
    items = ahead(numbers(5, made, [], ValueError("here")))
    assert [next(items) for _ in range(5)] == list(range(5))
    with pytest.raises(ValueError, match="here"):
        next(items)
    assert not left_over()


def test_whoever_stops_looking_leaves_nothing_open() -> None:
    closed: list[bool] = []
    items = ahead(numbers(10**6, [], closed))
    assert next(items) == 0
    items.close()
    assert closed == [True]
    assert not left_over()
