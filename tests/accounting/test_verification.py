"""Untrusted privacy reports: every wrong value is found, and other files are refused."""

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
from reports import agent_releases, counts, study_report

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.report import AgentReleases, PrivacyReport, canonical
from dpadmm.accounting.verification import (
    MAX_BYTES,
    MAX_PLD_GROUPS,
    agree,
    pld_epsilons,
    read_privacy_report,
    verify_report,
)
from dpadmm.errors import StudyError


def made(*agents: AgentReleases) -> PrivacyReport:
    names = [f"site {i}" for i in range(len(agents))]
    return study_report(*agents, names=names, delta=2e-5, min_honest_sites=5)


def agent(z: float, charged: int, *, k: int = 1) -> AgentReleases:
    return agent_releases(counts(z, charged, charged // 2, "mean gradient"), k=k)


DOCUMENT = made(agent(20.0, 100, k=2), agent(75.5, 100)).to_dict()

NOT_CHECKABLE = {"name", "hash", "method", "dpadmm_version", "statistic", "released", "n_rows"}
"""Inputs that no ε depends on. A signature or the ledger vouches for them."""


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
    path = folder / "report.json"
    path.write_bytes(document if isinstance(document, bytes) else canonical(document))
    return path


CHECKED = [path for path in leaves(DOCUMENT) if not NOT_CHECKABLE & set(path)]
FIGURES = [path for path in CHECKED if any("epsilon" in str(key) for key in path)]


def test_the_list_of_values_is_complete():
    # two groups and the worst: epsilon, planned, paper's, of δ, of rows, person, collusion; and ε of a round
    assert len(FIGURES) == 3 * (1 + 1 + 1 + 5 + 3 + 1 + 1) + 1


def test_every_wrong_value_is_found(tmp_path_factory: pytest.TempPathFactory):
    for path in CHECKED:
        with case(path):
            tmp_path = tmp_path_factory.mktemp("case")
            true = at(path)
            if isinstance(true, float):
                false = [true * (1.0 - 1e-6), true * (1.0 + 1e-6), -true, 1e300, None]
            elif isinstance(true, bool):
                false = [not true, int(true), None, "true"]
            elif isinstance(true, int):
                false = [true + 1, float(true), 10**30, str(true)]
            else:
                false = [f"{true}.", 0.0, [], {}] if true is not None else [0.0, 1.0, "", {}]
            for value in false:
                with pytest.raises(StudyError, match=r"report\.json: "):
                    read_privacy_report(written(tmp_path, changed(path, value)))


def test_a_value_that_is_too_small_is_named_with_the_correct_one(tmp_path_factory: pytest.TempPathFactory):
    for path in [path for path in FIGURES if at(path)]:
        with case(path):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(StudyError) as error:
                read_privacy_report(written(tmp_path, changed(path, at(path) * 0.9)))
            text = str(error.value)
            assert f"{path[-1]} is {at(path) * 0.9!r}, which is less than the correct {at(path)!r}" in text
            with pytest.raises(StudyError, match="which is not the correct"):
                read_privacy_report(written(tmp_path, changed(path, at(path) * 1.1)))


def test_values_that_cannot_be_recomputed(tmp_path_factory: pytest.TempPathFactory):
    for path in [path for path in leaves(DOCUMENT) if NOT_CHECKABLE & set(path)]:
        with case(path):
            tmp_path = tmp_path_factory.mktemp("case")
            true = at(path)
            other = {"hash": "cd" * 32}.get(path[-1], true + 1 if isinstance(true, int) else f"{true}1")
            read_privacy_report(written(tmp_path, changed(path, other)))


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
                read_privacy_report(written(tmp_path, document))
            with pytest.raises(StudyError):
                read_privacy_report(written(tmp_path, changed((*path[:-1], "\x1b[2Jmore"), 1)))


RIGHT = canonical(DOCUMENT)
BAD_FILES = {
    "empty": (b"", "not JSON"),
    "not UTF-8": (b"\xff" + RIGHT, "not UTF-8"),
    "another encoding": (RIGHT.decode().encode("utf-16"), "not UTF-8"),
    "cut": (RIGHT[:-9], "not JSON"),
    "a list": (b"[]", "not a privacy report"),
    "nothing": (b"null", "not a privacy report"),
    "another format": (RIGHT.replace(b"report/1", b"report/9"), "dpadmm-privacy-report/9"),
    "format of another kind": (b'{"format": [[1]]}', "not a privacy report"),
    "deep": (b"[" * 10**6, "not JSON, or nested too deeply"),
    "deep inside": (RIGHT.replace(b'"a study"', b"[" * 3000 + b"]" * 3000), "."),
    "NaN": (RIGHT.replace(b'"delta": 2e-05', b'"delta": NaN'), "NaN is not a number"),
    "infinity": (RIGHT.replace(b'"delta": 2e-05', b'"delta": -Infinity'), "Infinity is not a number"),
    "beyond floats": (RIGHT.replace(b'"delta": 2e-05', b'"delta": 1e999'), "delta must be"),
    "huge count": (RIGHT.replace(b'"charged": 100', b'"charged": 1e300'), "charged must be a whole number"),
    "many digits": (RIGHT.replace(b'"charged": 100', b'"charged": 1' + b"0" * 4000), "a huge number"),
    "too many digits": (RIGHT.replace(b'"charged": 100', b'"charged": 1' + b"0" * 9000), "not JSON"),
    "twice": (RIGHT.replace(b'"delta"', b'"delta": 0.5, "delta"', 1), "twice"),
    "no canonical number": (RIGHT.replace(b'"delta": 2e-05', b'"delta": 0.00002'), "canonical form"),
    "no canonical space": (RIGHT + b"\n", "canonical form"),
    "surrogate": (RIGHT.replace(b'"a study"', rb'"\ud800"'), "printable"),
    "control": (RIGHT.replace(b'"a study"', rb'"\u001b[2J"'), "printable"),
    "no agents": (canonical({**DOCUMENT, "agents": []}), "agents must|a privacy report has 1 to"),
    "agents that are none": (canonical({**DOCUMENT, "agents": [1, None]}), "n_rows is missing"),
    "many agents": (canonical({**DOCUMENT, "agents": [{}] * 10**5}), "n_rows is missing"),
    "large": (b"[" + b"1," * (MAX_BYTES // 2 - 2) + b"1]", "not a privacy report"),
}


def test_invalid_files(tmp_path_factory: pytest.TempPathFactory):
    for name, (raw, words) in BAD_FILES.items():
        with case(name):
            tmp_path = tmp_path_factory.mktemp("case")
            assert raw != RIGHT
            with pytest.raises(StudyError, match=words) as error:
                read_privacy_report(written(tmp_path, raw))
            assert len(str(error.value)) < 600
            assert str(error.value).isprintable()


def test_missing_and_endless_files(tmp_path):
    with pytest.raises(StudyError, match="no such file"):
        read_privacy_report(tmp_path / "nothing.json")
    with pytest.raises(StudyError, match="cannot be read"):
        read_privacy_report(tmp_path)
    with pytest.raises(StudyError, match="larger than 16 MB"):
        read_privacy_report(Path("/dev/zero"))
    with (tmp_path / "huge.json").open("wb") as file:
        os.truncate(file.fileno(), 2**40)
    with pytest.raises(StudyError, match="larger than 16 MB"):
        read_privacy_report(tmp_path / "huge.json")


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutated_files_are_correct_or_refused(tmp_path, data):
    """Files with a replaced value or changed bytes are refused, unless all values are the same."""
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
        found = read_privacy_report(written(tmp_path, raw))
    except StudyError:
        return
    true, document = found.to_dict(), json.loads((tmp_path / "report.json").read_bytes())
    assert sorted(leaves(document), key=str) == sorted(leaves(true), key=str)
    for path in leaves(true):
        stated, right = at(path, document), at(path, true)
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


def test_pld_beyond_its_range():
    assert pld_epsilons(26.0, 3, [1e-5]) == [None]
    assert pld_epsilons(1.0, 3, [1e-13]) == [None]
    assert pld_epsilons(0.0, 0, [1e-5, 1e-13]) == [0.0, 0.0]


def test_checks_cover_every_value_of_the_groups_with_the_largest_loss(tmp_path):
    groups = [agent(20.0 + i, 100, k=1 + i % 2) for i in range(MAX_PLD_GROUPS + 3)]
    checks = verify_report(written(tmp_path, made(*groups).to_bytes())).checks
    assert len(checks) == MAX_PLD_GROUPS
    losses = [groups[i].person_mu for i in checks]
    assert losses == sorted((each.person_mu for each in groups), reverse=True)[:MAX_PLD_GROUPS]
    for entries in checks.values():
        assert [entry[:2] for entry in entries] == [
            *((1, delta) for delta in (2e-5, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8)),
            *((rows, 2e-5) for rows in (2, 3, 4)),
        ]
        for entry in entries:
            assert entry.stated == pytest.approx(entry.closed_form, rel=1e-9)
            assert entry.pld == pytest.approx(entry.closed_form, rel=1e-3)


def test_a_person_with_many_rows_is_checked_too(tmp_path):
    checks = verify_report(written(tmp_path, made(agent(200.0, 100, k=7)).to_bytes())).checks
    assert checks[0][-1].n_rows == 7
    assert checks[0][-1].stated == pytest.approx(exact_epsilon(0.35, 2e-5), rel=1e-9)


def test_a_disagreement_of_the_methods_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("dpadmm.accounting.verification.exact_epsilon", lambda mu, delta: 0.1)
    with pytest.raises(StudyError, match="one of the two is wrong"):
        verify_report(written(tmp_path, RIGHT))
