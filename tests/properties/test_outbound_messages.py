"""Every byte that a site sends over the network is public, or a number of a noisy upload.

Real responders and real sites run the same study with the same entropy, on tables that differ in one row. A table in
this file states the allowed content of every message field. A new field without an entry fails the tests.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import struct
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import small_study
from guards import memory_folder
from looping import case

from dpadmm.federation.local import new_site
from dpadmm.federation.protocol import (
    HEAD,
    MAGIC,
    NO_DIGEST,
    VERSION,
    Kind,
    Message,
    digest_of,
    packed,
    packed_claim,
    unpacked,
)
from dpadmm.federation.site.lease import Lease
from dpadmm.federation.site.responder import Responder
from dpadmm.federation.transport.link import Link, SiteLink
from dpadmm.queries.problem import PublicSizes
from dpadmm.sites.agent import Agent
from dpadmm.sites.site import read_site
from dpadmm.studies.roster import RosterEntry
from dpadmm.trusted.discrete_gaussian import Lattice, as_mean
from dpadmm.trusted.ledger import Ledger, read_ledger
from dpadmm.trusted.masking import public_key
from dpadmm.trusted.private_rows import CheckedRows

ROUNDS, N_ROWS, PERSONS_ROWS = 4, 30, 3
STUDY = small_study(ROUNDS, allow_missed_rounds=False, quorum=None, deadline=None)
ROWS = [f"{20 + k}.5,{15 + k % 20}.25,{'yes' if k % 2 else 'no'}" for k in range(N_ROWS)]
NEIGHBOURS = {
    "as it is": ROWS[11],
    "another label": "31.5,26.25,no",
    "other numbers": "99,59,yes",
    "beyond all bounds": "1e300,-1e300,yes",
    "no numbers": "old,heavy,yes",
    "empty": ",,",
    "not a number": "nan,inf,no",
    "an unknown label": "31.5,26.25,perhaps",
}
WIRE = frozenset(
    {
        *("budget-cap", "budget-reservation", "study-unknown", "study-closed", "study-blocked", "request-malformed"),
        *("round-forked", "round-old", "round-missed", "round-over", "release-failed"),
        *("policy-collusion", "round-not-ready", "members-malformed", "members-without-me", "members-few"),
        *("ledger-missing", "ledger-behind", "ledger-locked", "ledger-damaged", "ledger-failed", "ledger-closed"),
    }
)
"""Codes that may leave a site; the others are about its rows or its owner's limits, and stay there."""


# --- what each field may be --------------------------------------------------------------------------------

DECIDED = {
    "kind": "what it is",
    "study": "the study's hash",
    "round": "the round that was asked for; 0 unless it is an upload",
    "values": "post-processing of what the guard answered and the ledger holds",
    "digest": "SHA-256 of the message that it answers",
    "n_rows": "the number of rows used, public by the neighbouring relation; 0 in a refusal",
    "rows_per_person": "of the owner's site.toml, at most the number of rows; 0 in a refusal",
    "code": "one of a closed list; empty unless it is a refusal",
    "body": "tags, of the site's key and those of the roster; empty without secure aggregation",
    "masked": "what the guard answered and the ledger holds, under its mask",
}
HEAD_FIELDS = (
    "magic", "version", "kind", "nothing", "study", "digest", "round", "d", "p", "n_rows", "rows_per_person",
    "body",
)  # fmt: skip


def expected_head(asked: bytes, answer: Message) -> bytes:
    """Build the head of an answer from public values."""
    upload, refused = answer.kind is Kind.UPLOAD, answer.kind is Kind.REFUSED
    d, p = STUDY.shape if upload else (0, 0)
    return HEAD.pack(
        MAGIC,
        VERSION,
        answer.kind,
        0,
        bytes.fromhex(STUDY.hash),
        hashlib.sha256(asked).digest(),
        struct.unpack_from("<I", asked, 72)[0] if upload else 0,
        d,
        p,
        0 if refused else N_ROWS,
        0 if refused else PERSONS_ROWS,
        8 * d * p + len(answer.code),
    )


def test_every_message_field_has_an_allowed_content() -> None:
    assert set(DECIDED) == set(Message._fields)
    assert {kind.name for kind in Kind} == {
        *("CALL", "REQUEST", "END", "MASK", "PRESENT", "UPLOAD", "REFUSED", "READY", "MASKED")
    }
    fields = re.findall(r"\d*s|[A-Za-z]", HEAD.format.lstrip("<"))
    assert len(fields) == len(HEAD_FIELDS)
    assert HEAD.size == struct.calcsize(HEAD.format) == 104
    assert Message(Kind.CALL, STUDY.hash) == (*(Kind.CALL, STUDY.hash, 0, None, NO_DIGEST, 0, 0, "", b"", None),)
    assert HEAD.unpack_from(packed(Message(Kind.REQUEST, STUDY.hash, 7, np.zeros(STUDY.shape))))[6] == 7


def test_heartbeat_contains_only_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link sends it. The link has the site's name and no access to rows."""
    sent: list[tuple[str, bytes]] = []

    async def publish(_: Link, subject: str, data: bytes) -> bool:
        sent.append((subject, data))
        raise asyncio.CancelledError

    monkeypatch.setattr(Link, "publish", publish)
    monkeypatch.setattr(time, "time", lambda: 1.8e9)

    async def run() -> None:
        link = SiteLink("north", "tls://localhost:1", lambda: None, logging.getLogger("nobody"))  # type: ignore[arg-type,return-value]
        with pytest.raises(asyncio.CancelledError):
            await link._send_heartbeats()

    asyncio.run(run())
    assert sent == [("dpadmm.alive.up.north", struct.pack("<4sBBHd", MAGIC, VERSION, 255, 0, 1.8e9))]


def test_lease_contains_only_ledger_mark_and_process_number(tmp_path: Path) -> None:
    """The chain depends on rows only through salted digests and releases: SHA-256 of records."""
    with Ledger.open(tmp_path, cap=1.0, create=True) as ledger:
        ledger.reserve(STUDY.hash, 0.5, about={"salt": "ab", "rows": "cd"})
    lease = Lease(tmp_path, lambda: 2, logging.getLogger("nobody"))
    claim = lease.claim()
    assert claim is not None
    state = read_ledger(tmp_path)
    head = struct.pack("<4sBBH", MAGIC, VERSION, 254, 0) + bytes.fromhex(claim.instance)
    body = struct.pack("<QIQ", 1, 2, state.seq) + bytes.fromhex(state.fingerprint) + bytes(32)
    assert packed_claim(claim) == head + body


# --- a study at a responder


class SeededOS:
    """``os`` with seeded randomness."""

    def __init__(self) -> None:
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def urandom(self, size: int) -> bytes:
        self.calls += 1
        return hashlib.shake_128(f"chance {self.calls}".encode()).digest(size)


def request(round: int, value: float = 0.25) -> bytes:
    point = np.full(STUDY.shape, value)
    return packed(Message(Kind.REQUEST, STUDY.hash, round, point))


def invalid_messages() -> list[bytes]:
    """Return messages that a site refuses or ignores."""
    whole = request(1)
    nan = bytearray(whole)
    nan[HEAD.size : HEAD.size + 8] = np.array([np.nan]).tobytes()
    reserved = bytearray(whole)
    reserved[6] = 1
    return [
        b"",
        b"garbage",
        whole[:-1],
        whole + b"x",
        bytes(nan),
        bytes(reserved),
        packed(Message(Kind.REQUEST, STUDY.hash, 1, np.zeros((1, 1)))),
        packed(Message(Kind.REQUEST, "ab" * 32, 1, np.zeros(STUDY.shape))),
        packed(Message(Kind.PRESENT, STUDY.hash, n_rows=3, rows_per_person=1)),
        packed(Message(Kind.REFUSED, STUDY.hash, code="round-old")),
        request(ROUNDS + 1),
        request(ROUNDS + 100),
    ]


CALL, END = packed(Message(Kind.CALL, STUDY.hash)), packed(Message(Kind.END, STUDY.hash, ROUNDS))
Said = list[tuple[str, bytes, bytes | None]]


@cache
def run_study(row: str) -> tuple[Said, list[Any]]:
    """Return all messages of a site in a study, from the first call to the last, and the contents of its ledger."""
    exchanges: Said = []
    with memory_folder() as folder, pytest.MonkeyPatch.context() as patch:
        chance = SeededOS()
        for module in ("discrete_gaussian", "guard", "ledger"):
            patch.setattr(f"dpadmm.trusted.{module}.os", chance)
        table = [*ROWS[:11], row, *ROWS[12:]]
        (folder / "table.csv").write_text("\n".join(["age,bmi,sick", *table]) + "\n")
        new_site(folder, STUDY, table="table.csv", epsilon=99.0)
        toml = folder / "site.toml"
        toml.write_text(toml.read_text().replace("rows = 1\n", f"rows = {PERSONS_ROWS}\n"))
        site = read_site(toml)
        responder = Responder(site.guard, site.policy.unit.rows, logging.getLogger("nobody listens"))

        def ask(when: str, *messages: bytes) -> None:
            exchanges.extend((when, data, responder.answer(STUDY.hash, data)) for data in messages)

        responder.open()
        ask("before it is accepted", CALL, request(1), b"garbage")
        assert responder.accept(STUDY) is None
        ask("at first", CALL, request(2), *invalid_messages(), request(1), CALL, request(1), request(2))
        ask("after two rounds", *invalid_messages(), request(1, 0.5), request(1), request(2, 0.5), request(2))
        responder.close()
        responder.open()
        responder.accept(STUDY)
        ask("after a restart", CALL, request(2), request(3), *invalid_messages())
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(CheckedRows, "total", lambda rows, *_: 1 / 0 if rows.n_rows else None)
            ask("a gradient that fails", request(4))
        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(Agent, "_checked", lambda agent, _: {}[str(agent._guard.enrol(STUDY).rows.digest())])
            ask("an agent that fails", request(4))
        responder.close()
        rows = (folder / "table.csv").read_text()
        (folder / "table.csv").write_text(rows + "50,30,yes\n")
        responder.open()
        assert responder.accept(STUDY) is not None
        ask("after the rows were changed", CALL, request(4), *invalid_messages())
        (folder / "table.csv").write_text(rows)
        assert responder.accept(STUDY) is None
        ask("at the end", request(4))
        answers = responder._guard.transcript(STUDY.hash) if responder._guard else []
        ask("at the end", END)
        responder.leave(STUDY)
        ask("after it was left", CALL, request(1), request(4), request(4, 0.5), *invalid_messages())
        responder.close()
        assert read_ledger(site.ledger).accounts[STUDY.hash].closed
    return exchanges, answers


def message(data: bytes) -> Message:
    return unpacked(data, study=STUDY.hash, shape=STUDY.upload_shape, from_site=True)


def test_all_bytes_except_upload_numbers_are_public() -> None:
    for neighbour in NEIGHBOURS:
        with case(neighbour):
            exchanges, answers = run_study(NEIGHBOURS[neighbour])
            uploads, kinds = expected_uploads(answers), set()
            for when, asked, answer in exchanges:
                if answer is None:
                    assert when == "before it is accepted" or asked == END
                    continue
                found = message(answer)
                kinds.add(found.kind)
                assert answer[: HEAD.size] == expected_head(asked, found), when
                body = answer[HEAD.size :]
                if found.kind is Kind.UPLOAD:
                    assert body == uploads[found.round].astype("<f8").tobytes(), when
                    assert len(answer) == HEAD.size + 8 * STUDY.shape[0] * STUDY.shape[1]
                elif found.kind is Kind.REFUSED:
                    assert found.code in WIRE, when
                    assert body == found.code.encode()
                else:
                    assert body == b""
                assert found.digest == digest_of(asked)
            assert kinds == {Kind.PRESENT, Kind.UPLOAD, Kind.REFUSED}
            assert len(uploads) == ROUNDS


def expected_uploads(answers: list[Any]) -> dict[int, Any]:
    """Build uploads from the guard's answers only, to the last bit."""
    grid = Lattice(float(STUDY.problem.loss.lipschitz), STUDY.shape[0] * STUDY.shape[1], N_ROWS)
    method = STUDY.method(N_ROWS)
    state, out = method.init(STUDY.problem, PublicSizes(np.array([N_ROWS]), STUDY.shape[0])), {}
    for round, answer, memo in answers:
        consensus = np.frombuffer(memo, "<f8").reshape(STUDY.shape)
        assert (consensus == 0.25).all()
        gradient = as_mean(answer, grid)[None]
        state, sent = method.advance(state, gradient, consensus, round=round, problem=STUDY.problem)
        out[round] = sent[0]
    return out


def test_messages_of_neighbouring_tables_differ_only_in_upload_numbers() -> None:
    for neighbour in list(NEIGHBOURS)[1:]:
        with case(neighbour):
            one, other = run_study(NEIGHBOURS["as it is"])[0], run_study(NEIGHBOURS[neighbour])[0]
            assert len(one) == len(other)
            differing = 0
            for (when, asked, first), (_, _, second) in zip(one, other, strict=True):
                if first is not None and second is not None and message(first).kind is Kind.UPLOAD:
                    assert first[: HEAD.size] == second[: HEAD.size], when
                    assert len(first) == len(second)
                    differing += first != second
                else:
                    assert first == second, (when, asked[:8])
            assert differing > 0


MASKED = small_study(ROUNDS, quorum=3, max_rows_per_site=N_ROWS)
KEYS = [hashlib.sha256(name.encode()).digest() for name in "abc"]
MASKED = replace(
    MASKED, roster=tuple(RosterEntry(name, public_key(key).hex()) for name, key in zip("abc", KEYS, strict=True))
)


def run_masked_study(row: str) -> list[tuple[bytes, bytes | None]]:
    """Return all messages of a site in a study with secure aggregation: calls, requests, masks, forks and garbage."""
    start = MASKED.method(1).start(MASKED.shape)
    call = packed(Message(Kind.CALL, MASKED.hash))
    asked = [packed(Message(Kind.REQUEST, MASKED.hash, round, start)) for round in (1, 2)]
    masks = [
        packed(Message(Kind.MASK, MASKED.hash, round, digest=digest_of(data), body=body))
        for round, data in enumerate(asked, 1)
        for body in (b"\xe0", b"\xc0", b"\x60", b"\xff")
    ]
    with memory_folder() as folder, pytest.MonkeyPatch.context() as patch:
        chance = SeededOS()
        for module in ("discrete_gaussian", "guard", "ledger"):
            patch.setattr(f"dpadmm.trusted.{module}.os", chance)
        table = [*ROWS[:11], row, *ROWS[12:]]
        (folder / "table.csv").write_text("\n".join(["age,bmi,sick", *table]) + "\n")
        site = new_site(folder, MASKED, table="table.csv", epsilon=9.0)
        patch.setattr(type(site), "key_of", lambda *_: KEYS[0])
        responder = Responder(site.guard, 1, logging.getLogger("nobody listens"))
        responder.open()
        assert responder.accept(MASKED) is None
        messages = [call, masks[0], asked[0], asked[0], *masks, masks[0], asked[0], call, asked[1], *masks[4:], b"x"]
        exchanges = [(data, responder.answer(MASKED.hash, data)) for data in messages]
        responder.close()
    return exchanges


def test_masked_messages_of_neighbouring_tables_differ_only_in_masked_numbers() -> None:
    def read(data: bytes) -> Message:
        return unpacked(data, study=MASKED.hash, shape=MASKED.upload_shape, from_site=True, n_sites=3)

    one = run_masked_study(ROWS[11])
    kinds = {read(answer).kind for _, answer in one if answer}
    assert kinds == {Kind.PRESENT, Kind.READY, Kind.MASKED, Kind.REFUSED}
    for neighbour in ("another label", "beyond all bounds", "empty"):
        differing = 0
        for (asked, first), (_, second) in zip(one, run_masked_study(NEIGHBOURS[neighbour]), strict=True):
            if first is None or second is None or read(first).kind is not Kind.MASKED:
                assert first == second, asked[:8]
                continue
            assert first[: HEAD.size] == second[: HEAD.size]
            a, b = read(first), read(second)
            assert a.masked is not None
            assert b.masked is not None
            statistic = MASKED.terms.statistics[list(MASKED.terms.statistics)[min(a.round, 2) - 1]]
            grid = Lattice(statistic.row_norm, a.masked.size, N_ROWS)
            moved = (a.masked - b.masked).astype(float) * grid.step  # the masks are the same
            assert np.linalg.norm(moved) <= grid.sensitivity
            differing += first != second
        assert differing > 0


CODES = {
    "before it is accepted": {None},
    "a gradient that fails": {"release-failed"},
    "an agent that fails": {"release-failed"},
    "after the rows were changed": {"study-blocked"},  # only the owner may see the reason
    "after it was left": {"study-closed"},
}


def test_refusal_messages_stay_at_the_site() -> None:
    exchanges, _ = run_study(NEIGHBOURS["as it is"])
    for when, codes in CODES.items():
        found = {message(data).code if data else None for time, _, data in exchanges if time == when}
        assert found == codes, when
    seen = {message(data).code for _, _, data in exchanges if data} - {""}
    assert seen >= {"round-missed", "round-over", "round-forked", "request-malformed", "study-blocked"}


def test_repeated_requests_return_the_same_bytes() -> None:
    exchanges, _ = run_study(NEIGHBOURS["as it is"])
    for asked in (CALL, request(1), request(2)):
        kinds = {}
        for _, data, answer in exchanges:
            if data == asked and answer is not None:
                kinds.setdefault(message(answer).kind, set()).add(answer)
        assert len(kinds.get(Kind.PRESENT, kinds.get(Kind.UPLOAD, ()))) == 1


def test_refusal_codes_are_from_the_closed_list() -> None:
    """Every code in the source is either in the list of codes that sites send, or never sent."""
    table = (Path(__file__).parents[2] / "docs" / "explanation" / "threat-model.md").read_text(encoding="utf-8")
    section = table.partition("## Refusals")[2].partition("\n## ")[0]
    cells = (line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
    documented = {code for cell in cells for code in re.findall("`([a-z-]+)`", cell)}
    at_home = {code for code in documented if code.startswith(("policy-", "roster-"))} - {"policy-collusion"}
    at_home |= {"study-unfit", "study-changed", "data-changed", "ledger-exists"}
    assert documented - at_home == WIRE
