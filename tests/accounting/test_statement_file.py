"""Statements of strangers: every false figure is found, and no file can do more than be refused."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from looping import case

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.statement import (
    EXACT,
    MAX_BILLS,
    MAX_BYTES,
    AgentGroup,
    StatedRelease,
    Statement,
    agree,
    canonical,
    cross_checks,
    pld_epsilons,
    read_statement,
)
from dpadmm.errors import StudyError


def made(*groups: AgentGroup) -> Statement:
    return Statement("a study", "ab" * 32, "auto", EXACT, 2e-5, groups, "0.1.0", min_honest_sites=5)


def group(name: str, z: float, charged: int, *, k: int = 1) -> AgentGroup:
    return AgentGroup({name: 400}, k, (StatedRelease("mean gradient", z, charged, charged // 2),))


DOCUMENT = made(group("a", 20.0, 100, k=2), group("b", 75.5, 100)).as_json()

NOT_CHECKABLE = {"name", "hash", "method", "dpadmm_version", "statistic", "released", "n_rows"}
"""Inputs on which no figure depends; what vouches for them is a signature, or the ledger."""


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(entry, (*path, key))
    else:
        yield path


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    document = copy.deepcopy(DOCUMENT)
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return document


def at(path: tuple[Any, ...], document: Any = None) -> Any:
    value = DOCUMENT if document is None else document
    for key in path:
        value = value[key]
    return value


def written(folder: Path, document: Any) -> Path:
    path = folder / "statement.json"
    path.write_bytes(document if isinstance(document, bytes) else canonical(document))
    return path


CHECKED = [path for path in leaves(DOCUMENT) if not NOT_CHECKABLE & set(path)]
FIGURES = [path for path in CHECKED if any("epsilon" in str(key) for key in path)]


def test_the_list_of_figures_is_whole():
    assert len(FIGURES) == 3 * (6 + 1 + 4 + 1 + 1)  # two groups and the worst: δ, paper's, rows, person, alone


def test_every_false_value_is_found(tmp_path_factory: pytest.TempPathFactory):
    for path in CHECKED:
        with case(path):
            tmp_path = tmp_path_factory.mktemp("case")
            true = at(path)
            if isinstance(true, float):
                false = [true * (1.0 - 1e-6), true * (1.0 + 1e-6), -true, 1e300, None]
            elif isinstance(true, int):
                false = [true + 1, float(true), 10**30, str(true)]
            else:
                false = [f"{true}.", 0.0, [], {}] if true is not None else [0.0, 1.0, "", {}]
            for value in false:
                with pytest.raises(StudyError, match=r"statement\.json: "):
                    read_statement(written(tmp_path, changed(path, value)))


def test_a_figure_that_is_too_small_is_named_with_the_true_one(tmp_path_factory: pytest.TempPathFactory):
    for path in [path for path in FIGURES if at(path)]:
        with case(path):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(StudyError) as error:
                read_statement(written(tmp_path, changed(path, at(path) * 0.9)))
            text = str(error.value)
            assert f"{path[-1]} states {at(path) * 0.9!r}, which is less than the true {at(path)!r}" in text
            with pytest.raises(StudyError, match="which is not the true"):
                read_statement(written(tmp_path, changed(path, at(path) * 1.1)))


def test_what_no_calculation_can_check(tmp_path_factory: pytest.TempPathFactory):
    for path in [path for path in leaves(DOCUMENT) if NOT_CHECKABLE & set(path)]:
        with case(path):
            tmp_path = tmp_path_factory.mktemp("case")
            true = at(path)
            other = {"hash": "cd" * 32}.get(path[-1], true + 1 if isinstance(true, int) else f"{true}1")
            read_statement(written(tmp_path, changed(path, other)))


def test_no_field_may_be_missing_or_added(tmp_path_factory: pytest.TempPathFactory):
    for path in list(leaves(DOCUMENT)):
        with case(path):
            tmp_path = tmp_path_factory.mktemp("case")
            document = copy.deepcopy(DOCUMENT)
            place: Any = document
            for key in path[:-1]:
                place = place[key]
            del place[path[-1]]
            with pytest.raises(StudyError):
                read_statement(written(tmp_path, document))
            with pytest.raises(StudyError):
                read_statement(written(tmp_path, changed((*path[:-1], "\x1b[2Jmore"), 1)))


RIGHT = canonical(DOCUMENT)
BAD_FILES = {
    "empty": (b"", "not JSON"),
    "not UTF-8": (b"\xff" + RIGHT, "not UTF-8"),
    "another encoding": (RIGHT.decode().encode("utf-16"), "not UTF-8"),
    "cut": (RIGHT[:-9], "not JSON"),
    "a list": (b"[]", "not a statement"),
    "nothing": (b"null", "not a statement"),
    "another format": (RIGHT.replace(b"statement/1", b"statement/9"), "dpadmm-statement/9"),
    "format of another kind": (b'{"format": [[1]]}', "not a statement"),
    "deep": (b"[" * 10**6, "not JSON, or nested too deeply"),
    "deep inside": (RIGHT.replace(b'"a study"', b"[" * 3000 + b"]" * 3000), "."),
    "NaN": (RIGHT.replace(b'"delta": 2e-05', b'"delta": NaN'), "NaN is not a number"),
    "infinity": (RIGHT.replace(b'"delta": 2e-05', b'"delta": -Infinity'), "Infinity is not a number"),
    "beyond floats": (RIGHT.replace(b'"delta": 2e-05', b'"delta": 1e999'), "delta must be"),
    "huge count": (RIGHT.replace(b'"charged": 100', b'"charged": 1e300'), "charged must be a whole number"),
    "many digits": (RIGHT.replace(b'"charged": 100', b'"charged": 1' + b"0" * 4000), "a huge number"),
    "too many digits": (RIGHT.replace(b'"charged": 100', b'"charged": 1' + b"0" * 9000), "not JSON"),
    "twice": (RIGHT.replace(b'"delta"', b'"delta": 0.5, "delta"', 1), "twice"),
    "no canonical number": (RIGHT.replace(b'"delta": 2e-05', b'"delta": 0.00002'), "one form"),
    "no canonical space": (RIGHT + b"\n", "one form"),
    "surrogate": (RIGHT.replace(b'"a study"', rb'"\ud800"'), "printable"),
    "control": (RIGHT.replace(b'"a study"', rb'"\u001b[2J"'), "printable"),
    "no agents": (canonical({**DOCUMENT, "agents": []}), "a statement has 1 to"),
    "agents that are none": (canonical({**DOCUMENT, "agents": [1, None]}), "n_rows is missing"),
    "many agents": (canonical({**DOCUMENT, "agents": [{}] * 10**5}), "n_rows is missing"),
    "large": (b"[" + b"1," * (MAX_BYTES // 2 - 2) + b"1]", "not a statement"),
}


def test_bad_files(tmp_path_factory: pytest.TempPathFactory):
    for name, (raw, words) in BAD_FILES.items():
        with case(name):
            tmp_path = tmp_path_factory.mktemp("case")
            assert raw != RIGHT
            with pytest.raises(StudyError, match=words) as error:
                read_statement(written(tmp_path, raw))
            assert len(str(error.value)) < 600
            assert str(error.value).isprintable()


def test_files_that_are_not_there_or_have_no_end(tmp_path):
    with pytest.raises(StudyError, match="no such file"):
        read_statement(tmp_path / "nothing.json")
    with pytest.raises(StudyError, match="cannot be read"):
        read_statement(tmp_path)
    with pytest.raises(StudyError, match="larger than 16 MB"):
        read_statement(Path("/dev/zero"))
    with (tmp_path / "huge.json").open("wb") as file:
        os.truncate(file.fileno(), 2**40)
    with pytest.raises(StudyError, match="larger than 16 MB"):
        read_statement(tmp_path / "huge.json")


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutated_files_are_right_or_refused(tmp_path, data):
    """Some part is replaced by anything, or some bytes by others: what still passes has the same figures."""
    if data.draw(st.booleans()):
        paths = list(leaves(DOCUMENT))
        path = data.draw(st.sampled_from(paths))
        path = path[: data.draw(st.integers(1, len(path)))]
        raw = json.dumps(changed(path, data.draw(anything))).encode()
    else:
        start = data.draw(st.integers(0, len(RIGHT)))
        cut = data.draw(st.integers(0, 5))
        raw = RIGHT[:start] + data.draw(st.binary(max_size=5)) + RIGHT[start + cut :]
    try:
        found = read_statement(written(tmp_path, raw))
    except StudyError:
        return
    true = found.statement.as_json()
    assert sorted(leaves(found.document), key=str) == sorted(leaves(true), key=str)
    for path in leaves(true):
        stated, right = at(path, found.document), at(path, true)
        assert stated == (pytest.approx(right, rel=1e-9) if isinstance(right, float) else right)


# Two ways to the same ε


def test_pld_confirms_the_closed_form():
    for (mu, count), delta in product(
        [(1e-5, 1), (0.1, 100), (1.0, 10**8), (3.0, 1000), (25.0, 37)], [1e-12, 1e-9, 1e-8, 1e-5, 1e-3, 0.3]
    ):
        with case(mu, count, delta):
            (pld,) = pld_epsilons(mu, count, [delta])
            assert pld is not None
            assert agree(exact_epsilon(mu, delta), pld, mu)


def test_pld_contradicts_other_numbers():
    for factor in [0.5, 0.995, 1.005, 2.0]:
        with case(factor):
            (pld,) = pld_epsilons(0.5, 100, [1e-5])
            assert pld is not None
            assert not agree(exact_epsilon(0.5, 1e-5) * factor, pld, 0.5)
            assert not agree(0.1, math.nan, 0.5)
            assert not agree(0.1, math.inf, 0.5)


def test_pld_where_it_cannot_say():
    assert pld_epsilons(26.0, 3, [1e-5]) == [None]
    assert pld_epsilons(1.0, 3, [1e-13]) == [None]
    assert pld_epsilons(0.0, 0, [1e-5, 1e-13]) == [0.0, 0.0]


def test_checks_cover_every_figure_of_the_largest_bills(tmp_path):
    groups = [group(f"{i}", 20.0 + i, 100, k=1 + i % 2) for i in range(MAX_BILLS + 3)]
    checks = cross_checks(read_statement(written(tmp_path, made(*groups).as_bytes())))
    assert len(checks) == MAX_BILLS
    costs = [groups[i].person_mu for i in checks]
    assert costs == sorted((each.person_mu for each in groups), reverse=True)[:MAX_BILLS]
    for entries in checks.values():
        assert [entry[:2] for entry in entries] == [
            *((1, delta) for delta in (1e-3, 1e-4, 2e-5, 1e-5, 1e-6, 1e-8)),
            *((rows, 2e-5) for rows in (2, 3, 4)),
        ]
        for entry in entries:
            assert entry.stated == pytest.approx(entry.closed_form, rel=1e-9)
            assert entry.pld == pytest.approx(entry.closed_form, rel=1e-3)


def test_a_person_with_many_rows_is_checked_too(tmp_path):
    checks = cross_checks(read_statement(written(tmp_path, made(group("a", 200.0, 100, k=7)).as_bytes())))
    assert checks[0][-1].n_rows == 7
    assert checks[0][-1].stated == pytest.approx(exact_epsilon(0.35, 2e-5), rel=1e-9)


def test_a_disagreement_confirms_nothing(tmp_path, monkeypatch):
    verified = read_statement(written(tmp_path, RIGHT))
    monkeypatch.setattr("dpadmm.accounting.statement.exact_epsilon", lambda mu, delta: 0.1)
    with pytest.raises(StudyError, match="one of the two is wrong"):
        cross_checks(verified)
