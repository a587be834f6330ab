"""Every refusal code is provoked here, documented in docs/explanation/threat-model.md, and independent of the rows."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guards import POLICY, ROUNDS, STUDY, D, TinyRows, guarded, memory_folder, refusal, rows, study
from ledgers import Fault, failing, sqlite_vfs
from masked_sites import ALL, KEYS, MASKED, OWNER, ROSTER, N, masked_study, site

import dpadmm
from dpadmm.errors import DataError
from dpadmm.federation.protocol import WITHHELD
from dpadmm.trusted.ledger import DATABASE, Ledger
from dpadmm.trusted.masking import bitmap_of

SOURCE, TESTS = Path(dpadmm.__file__).parent, Path(__file__).parent.parent
TABLE = TESTS.parent / "docs" / "explanation" / "threat-model.md"
GUARDED = ("sites/agent", "trusted/guard", "trusted/masking", "trusted/policy", "trusted/ledger")
FAMILIES = "budget|data|ledger|members|policy|release|request|roster|round|study"
HASH, POINT = STUDY.hash, np.zeros((D, 1))


def codes_in(path: Path) -> set[str]:
    """Return the codes of all refusals in a file. A part that is inserted at run time becomes a star."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ours = any(
        isinstance(node, ast.ImportFrom)
        and node.module == "dpadmm.errors"
        and "RefusalError" in [name.name for name in node.names]
        for node in ast.walk(tree)
    )
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    # sent over the network, not raised by a guard
    sent = [call.args[2] for call in calls if call.func.id == "refusal_of"]
    sent_codes = {str(item.value) for item in sent if isinstance(item, ast.Constant)}
    if not ours:
        return sent_codes
    found = [_code(call.args[0]) for call in calls if call.func.id == "RefusalError"]
    if None in found:  # passed on from elsewhere in this file
        texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        found += [text for text in texts if re.fullmatch(f"({FAMILIES})-[a-z]+", str(text))]
    return sent_codes | {code for code in found if code}


def _code(word: ast.expr) -> str | None:
    if isinstance(word, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in word.values)
    return str(word.value) if isinstance(word, ast.Constant) else None


def matches(code: str, codes: set[str]) -> bool:
    return any(re.fullmatch(re.escape(item).replace(r"\*", "[a-z]+"), code) for item in codes)


@cache
def codes() -> dict[str, set[str]]:
    """Codes by file."""
    files = {str(path.relative_to(SOURCE).with_suffix("")): path for path in SOURCE.rglob("*.py")}
    return {name: found for name, path in files.items() if (found := codes_in(path))}


# Cases that provoke each code


def _enrolled(folder: Path, opened: Any, **policy: Any) -> Any:
    return guarded(folder, opened, replace(POLICY, **policy))


def _enrol(asked: Any = STUDY, **policy: Any) -> Callable[[Path, Any], Any]:
    def act(folder: Path, opened: Any) -> Any:
        with _enrolled(folder, opened, **policy) as guard:
            return refusal(guard.enrol, asked)

    return act


def _answer(*requests: tuple[int, Any], asked: Any = STUDY) -> Callable[[Path, Any], Any]:
    """Send requests and return the last result."""

    def act(folder: Path, opened: Any) -> Any:
        with _enrolled(folder, opened) as guard:
            guard.enrol(asked)
            for round, point in requests[:-1]:
                guard.answer(asked.hash, round, point)
            return refusal(guard.answer, asked.hash, *requests[-1])

    return act


def _data_changed(folder: Path, opened: Any) -> Any:
    with guarded(folder, opened) as guard:
        guard.enrol(STUDY)
    features, labels = rows(seed=99)
    with guarded(folder, lambda study: TinyRows(features, labels)) as guard:
        return refusal(guard.enrol, STUDY)


def _study_changed(folder: Path, opened: Any) -> Any:
    with guarded(folder, opened) as guard:
        guard.enrol(STUDY)
        guard.leave(HASH)
        return refusal(guard.enrol, STUDY)


def _study_closed(folder: Path, opened: Any) -> Any:
    with guarded(folder, opened) as guard:
        guard.enrol(STUDY)
        guard.leave(HASH)
        return refusal(guard.answer, HASH, 1, POINT)


def _study_unknown(folder: Path, opened: Any) -> Any:
    with guarded(folder, opened) as guard:
        return refusal(guard.answer, HASH, 1, POINT)


def _study_unfit(folder: Path, opened: Any) -> Any:
    def unfit(study: Any) -> Any:
        raise DataError(f"the first row has {opened(study).features[0]}")

    with guarded(folder, unfit) as guard:
        return refusal(guard.enrol, STUDY)


def _release_failed(folder: Path, opened: Any) -> Any:
    class Broken(TinyRows):
        def total(self, *asked: Any) -> Any:
            raise FloatingPointError(f"the first row has {self.features[0]}")

    whole = opened(STUDY)
    with guarded(folder, lambda study: Broken(whole.features, whole.labels)) as guard:
        guard.enrol(STUDY)
        return refusal(guard.answer, HASH, 1, POINT)


def _beyond_the_reservation(folder: Path, opened: Any) -> Any:
    """No request leads here, only a guard that lost its number of rounds."""
    with guarded(folder, opened) as guard:
        guard.enrol(STUDY)
        return refusal(guard._ledger.spend, HASH, 1, digest="1" * 64, mu_squared=0.05, upload=b"")


def _masked_enrol(asked: Any = MASKED, **limits: Any) -> Callable[[Path, Any], Any]:
    def act(folder: Path, opened: Any) -> Any:
        policy = replace(OWNER, masking=OWNER.masking._replace(**limits)) if asked else POLICY
        with guarded(folder, opened, policy, key=KEYS[0]) as guard:
            return refusal(guard.enrol, asked or MASKED)

    return act


def _masked(members: bytes, prepared: bool = True) -> Callable[[Path, Any], Any]:
    def act(folder: Path, opened: Any) -> Any:
        with site(folder, open_rows=opened) as guard:
            request = guard.prepare(MASKED.hash, 1, POINT) if prepared else "0" * 64
            return refusal(guard.mask, MASKED.hash, 1, request, members)

    return act


def _ledger(when: str) -> Callable[[Path, Any], Any]:
    def act(folder: Path, opened: Any) -> Any:
        if when == "missing":
            return refusal(Ledger.open, folder / "none", cap=1.0)
        with guarded(folder, opened) as guard:
            guard.enrol(STUDY)
            if when == "locked":
                return refusal(guarded(folder, opened).__enter__)
            if when == "failed":
                with failing(Fault("EIO", 1)):
                    return refusal(guard.answer, HASH, 1, POINT)
        if when == "closed":
            return refusal(guard.answer, HASH, 1, POINT)
        (folder / DATABASE).write_bytes(b"no database")
        return refusal(guarded(folder, opened).__enter__)

    return act


NOT_A_NUMBER = np.full((D, 1), np.nan)
CASES: dict[str, Callable[[Path, Any], Any]] = {
    "policy-method": _enrol(methods=frozenset()),
    "policy-loss": _enrol(losses=frozenset()),
    "policy-rounds": _enrol(max_rounds=1),
    "policy-rows": _enrol(min_rows=1000),
    "policy-aggregation": _masked_enrol(None),
    "policy-honest": _masked_enrol(min_honest_sites=4),
    "policy-collusion": _masked_enrol(epsilon_if_others_collude=0.9),
    "roster-not-mine": _masked_enrol(masked_study(roster=ROSTER[1:])),
    "roster-unfit": _masked_enrol(masked_study(roster=(*ROSTER, ("weak", bytes(32))))),
    "members-malformed": _masked(ALL + ALL),
    "members-without-me": _masked(bitmap_of([1, 2, 3, 4], N)),
    "members-few": _masked(bitmap_of([0, 1], N)),
    "round-not-ready": _masked(ALL, prepared=False),
    "budget-cap": _enrol(study(n_rounds=1000)),
    "budget-reservation": _beyond_the_reservation,
    "data-changed": _data_changed,
    "study-changed": _study_changed,
    "study-closed": _study_closed,
    "study-unknown": _study_unknown,
    "study-unfit": _study_unfit,
    "request-malformed": _answer((1, NOT_A_NUMBER)),
    "release-failed": _release_failed,
    "round-forked": _answer((1, POINT), (1, POINT + 1)),
    "round-old": _answer((3, POINT), (2, POINT), asked=replace(STUDY, allow_missed_rounds=True)),
    "round-missed": _answer((2, POINT)),
    "round-over": _answer((ROUNDS + 1, POINT)),
    **{f"ledger-{when}": _ledger(when) for when in ("missing", "locked", "damaged", "failed", "closed")},
}


@pytest.mark.parametrize("code", CASES)
def test_code_and_message_of_a_refusal_do_not_depend_on_rows(code):
    if code == "ledger-failed" and sqlite_vfs() is None:
        pytest.skip("this Python hides its SQLite library, so its writes cannot be made fail")
    messages = []
    for seed in (1, 2):
        features, labels = rows(seed)
        with memory_folder() as folder:
            refused = CASES[code](folder, lambda study, a=features, b=labels: TinyRows(a, b))
            assert refused.code == code
            messages.append(repr(refused).replace(str(folder), "FOLDER"))
    assert messages[0] == messages[1]


def test_refusal_message_is_a_sentence():
    features, labels = rows()
    with memory_folder() as folder:
        for i, (code, act) in enumerate(CASES.items()):
            if code != "ledger-failed":
                text = str(act(folder / str(i), lambda study: TinyRows(features, labels)))
                assert len(text) > 20
                assert "\n" not in text
                assert code not in text


def test_every_code_of_the_guard_has_a_case():
    known_codes = set().union(*(found for name, found in codes().items() if name in GUARDED))
    assert {name for name in GUARDED if name in codes()} == set(GUARDED)
    for code in CASES:
        assert matches(code, known_codes), f"{code} is not in the guard any more"
    for code in known_codes:
        assert any(matches(case, {code}) for case in CASES), f"{code} is nowhere provoked"


def test_every_other_code_occurs_in_a_test():
    text = "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    for name, found in codes().items():
        for code in found if name not in GUARDED else ():
            assert f'"{code}"' in text, f"{code} of {name}.py is in no test"


def documented() -> set[str]:
    section = TABLE.read_text(encoding="utf-8").partition("## Refusals")[2].partition("\n## ")[0]
    first = (line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
    return {code for cell in first for code in re.findall("`([a-z-]+)`", cell)}


def test_threat_model_lists_exactly_these_codes():
    known_codes = set().union(*codes().values()) | {WITHHELD}
    assert {code for code in documented() if not matches(code, known_codes)} == set()
    assert {code for code in CASES if code not in documented()} == set()
    assert {code for code in known_codes if "*" not in code} <= documented()


def test_codes_are_found():
    assert len(CASES) > 20
    assert codes()["trusted/policy"] >= {"policy-method", "policy-loss", "policy-rounds", "policy-rows"}
    assert codes()["trusted/ledger"] >= {"budget-cap", "budget-reservation"}
    assert "request-malformed" in codes()["sites/agent"]
