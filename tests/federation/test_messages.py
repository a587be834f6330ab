"""Messages round trip, and all other bytes are refused before memory is allocated."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from cases import prove
from hypothesis import given
from hypothesis import strategies as st
from looping import case

from dpadmm.federation.protocol import (
    HEAD,
    MAX_BODY,
    NO_DIGEST,
    BadMessageError,
    Kind,
    Message,
    digest_of,
    packed,
    unpacked,
)

STUDY, SHAPE = "ab" * 32, (3, 2)
VALUES = np.arange(6.0).reshape(SHAPE) / 7.0
DOWN = [
    Message(Kind.CALL, STUDY),
    Message(Kind.REQUEST, STUDY, 4, VALUES),
    Message(Kind.END, STUDY, 9),
]
UP = [
    Message(Kind.PRESENT, STUDY, digest="cd" * 32, n_rows=12, rows_per_person=2),
    Message(Kind.UPLOAD, STUDY, 4, -VALUES, "cd" * 32, 12, 2),
    Message(Kind.REFUSED, STUDY, digest="cd" * 32, code="round-forked"),
]


N = 10
"""Sites in the roster of a study with secure aggregation."""

MASKED_DOWN = [*DOWN, Message(Kind.MASK, STUDY, 4, digest="ef" * 32, body=b"\xff\x03")]
MASKED_UP = [
    Message(Kind.PRESENT, STUDY, 0, None, "cd" * 32, 12, 2, body=bytes(range(8 * N))),
    Message(Kind.READY, STUDY, 4, None, "cd" * 32, 12, 2, body=bytes(range(8 * N))),
    Message(Kind.MASKED, STUDY, 4, None, "cd" * 32, 12, 2, masked=np.array([[2**63 - 1, -(2**63)], [0, 1], [-1, 7]])),
    UP[2],
]


def read(data: bytes, from_site: bool, n_sites: int = 0) -> Message:
    return unpacked(data, study=STUDY, shape=lambda _: SHAPE, from_site=from_site, n_sites=n_sites)


def of_both() -> Iterator[tuple[Message, bool, int]]:
    """Return every message, whether a site sends it, and the number of sites in the roster."""
    for n_sites, down, up in ((0, DOWN, UP), (N, MASKED_DOWN, MASKED_UP)):
        yield from ((message, False, n_sites) for message in down)
        yield from ((message, True, n_sites) for message in up)


def test_opening_has_a_bit_for_every_site() -> None:
    for n_sites in range(1, 20):
        for n_bytes in range(1, 4):
            data = packed(Message(Kind.MASK, STUDY, 4, digest="ef" * 32, body=bytes(n_bytes)))
            with case(n_sites, n_bytes):
                if n_bytes == math.ceil(n_sites / 8):
                    assert read(data, False, n_sites).body == bytes(n_bytes)
                else:
                    with pytest.raises(BadMessageError, match="unexpected body"):
                        read(data, False, n_sites)


def test_messages_round_trip() -> None:
    for message, from_site, n_sites in of_both():
        with case(message):
            back = read(packed(message), from_site, n_sites)
            bare = {"values": None, "masked": None}
            assert back._replace(**bare) == message._replace(**bare)
            for got, sent in ((back.values, message.values), (back.masked, message.masked)):
                assert (got is None) == (sent is None)
                if got is not None and sent is not None:
                    assert got.dtype == sent.dtype
                    assert np.array_equal(got, sent)


def test_messages_of_the_other_direction_are_refused() -> None:
    for message, from_site, n_sites in of_both():
        with case(message), pytest.raises(BadMessageError, match="is not allowed from this sender"):
            read(packed(message), not from_site, n_sites)


def test_masked_and_plain_answers_are_not_mixed() -> None:
    for message in (MASKED_DOWN[3], MASKED_UP[1], MASKED_UP[2]):
        with case(message), pytest.raises(BadMessageError, match="is not allowed from this sender"):
            read(packed(message), message.kind > 16)
    with pytest.raises(BadMessageError, match="is not allowed from this sender"):
        read(packed(UP[1]), True, N)


def test_members_and_tags_have_the_length_of_the_roster() -> None:
    mask, present, ready, _, _ = (MASKED_DOWN[3], *MASKED_UP)
    for message in (mask, present, ready):
        for body in (message.body[:-1], message.body + b"\0", b""):
            with case(message, body), pytest.raises(BadMessageError, match="unexpected body"):
                read(packed(message._replace(body=body)), message is not mask, N)
    for message in (mask, ready):
        with case(message), pytest.raises(BadMessageError, match="expected a round"):
            read(packed(message._replace(round=0)), message is not mask, N)


def test_another_study_is_refused() -> None:
    with pytest.raises(BadMessageError, match="another study"):
        unpacked(packed(DOWN[1]), study="00" * 32, shape=lambda _: SHAPE, from_site=False)


def test_numbers_are_finite() -> None:
    for bad in [np.nan, np.inf, -np.inf]:
        with case(bad):
            values = VALUES.copy()
            values[1, 1] = bad
            with pytest.raises(BadMessageError, match="not finite"):
                read(packed(UP[1]._replace(values=values)), True)


def test_another_shape_is_refused() -> None:
    for shape in [(2, 3), (3, 1), (1, 6), (3, 3)]:
        with case(shape), pytest.raises(BadMessageError, match="shape"):
            read(packed(UP[1]._replace(values=np.zeros(shape))), True)


def test_large_length_in_a_header_allocates_nothing() -> None:
    head = HEAD.pack(b"dpAM", 1, Kind.UPLOAD, 0, bytes.fromhex(STUDY), bytes(32), 1, 2**32 - 1, 2**32 - 1, 1, 1, 2**63)
    with pytest.raises(BadMessageError, match="length"):
        read(head, True)


def test_too_large_messages_are_refused_unread() -> None:
    with pytest.raises(BadMessageError, match="invalid message size"):
        read(bytes(HEAD.size + MAX_BODY + 1), True)
    with pytest.raises(BadMessageError, match="8 MB"):
        packed(Message(Kind.REQUEST, STUDY, 1, np.zeros((MAX_BODY // 8 + 1, 1))))


def test_presence_contains_the_number_of_rows() -> None:
    for rows in [{"n_rows": 0}, {"rows_per_person": 0}, {"n_rows": 10**13}]:
        with case(rows), pytest.raises(BadMessageError, match="number of rows"):
            read(packed(UP[1]._replace(**rows)), True)


def test_codes_are_short_and_plain() -> None:
    for code in ["", "Round-Forked", "a" * 41, "x y", "<b>"]:
        with case(code), pytest.raises(BadMessageError, match="code"):
            read(packed(UP[2]._replace(code=code)), True)


def test_wire_format_of_version_1_is_stable() -> None:
    """Sites and servers of different releases communicate."""
    assert {kind.name: kind.value for kind in Kind} == {
        "CALL": 1, "REQUEST": 2, "END": 3, "MASK": 4,
        "PRESENT": 17, "UPLOAD": 18, "REFUSED": 19, "READY": 20, "MASKED": 21,
    }  # fmt: skip
    numbers = (4).to_bytes(4, "little") + (3).to_bytes(4, "little") + (2).to_bytes(4, "little")
    rows = (12).to_bytes(8, "little") + (2).to_bytes(4, "little") + (48).to_bytes(8, "little")
    head = b"dpAM" + bytes([1, 18, 0, 0]) + b"\xab" * 32 + b"\xcd" * 32 + numbers + rows
    assert packed(UP[1]) == head + (-VALUES).astype("<f8").tobytes()
    call = b"dpAM" + bytes([1, 1, 0, 0]) + b"\xab" * 32 + bytes(32 + 3 * 4 + 8 + 4 + 8)
    assert packed(Message(Kind.CALL, STUDY)) == call


def raw(body: bytes = b"", **fields: object) -> bytes:
    """Return a message with any header, by default a call."""
    head: dict[str, object] = {
        "magic": b"dpAM", "version": 1, "kind": Kind.CALL, "nothing": 0, "study": bytes.fromhex(STUDY),
        "digest": bytes(32), "round": 0, "d": 0, "p": 0, "n_rows": 0, "k": 0, "length": len(body),
    }  # fmt: skip
    return HEAD.pack(*(head | fields).values()) + body


REQUEST = {"kind": Kind.REQUEST, "round": 1, "d": 3, "p": 2}
PRESENT = {"kind": Kind.PRESENT, "n_rows": 12, "k": 2}
WRONG = [
    ({"magic": b"dpAN"}, "unknown format or version"),
    ({"version": 2}, "unknown format or version"),
    ({"nothing": 1}, "unknown format or version"),
    ({"kind": 0}, "kind 0 is not allowed"),
    ({"kind": 4}, "kind 4 is not allowed"),
    ({"kind": 20}, "kind 20 is not allowed"),
    ({"length": 1}, "length"),
    ({"body": b"x"}, "unexpected body"),
    ({**PRESENT, "body": b"x"}, "unexpected body"),
    ({"d": 1}, "shape without numbers"),
    ({"p": 1}, "shape without numbers"),
    ({"n_rows": 1}, "number of rows"),
    ({"k": 1}, "number of rows"),
    ({"digest": b"\xcd" * 32}, "unexpected digest"),
    ({**REQUEST, "body": bytes(48), "round": 0}, "expected a round"),
    ({**REQUEST, "body": bytes(40)}, "numbers of shape"),
    ({**REQUEST, "body": bytes(56)}, "numbers of shape"),
    ({**REQUEST, "body": bytes(48), "d": 2, "p": 3}, "numbers of shape"),
    ({**PRESENT, "n_rows": 0}, "number of rows"),
    ({**PRESENT, "k": 0}, "number of rows"),
    ({**PRESENT, "n_rows": 10**12 + 1}, "number of rows"),
    ({"kind": Kind.REFUSED, "body": b"round\xff"}, "code"),
]


def test_every_invalid_field_is_refused() -> None:
    for fields, complaint in WRONG:
        with case(fields, complaint), pytest.raises(BadMessageError, match=complaint):
            read(raw(**fields), fields.get("kind", Kind.CALL) > 16)


def test_message_limits_are_inclusive() -> None:
    assert read(raw(**REQUEST, body=bytes(48)), False).round == 1
    assert read(raw(**{**PRESENT, "n_rows": 10**12}), True).n_rows == 10**12
    assert read(packed(UP[2]._replace(code="a" * 40)), True).code == "a" * 40
    numbers = (8 * 2**20 - 1024) // 8  # with its head it is below the 8 MiB that a broker carries
    largest = Message(Kind.REQUEST, STUDY, 1, np.ones((numbers, 1)))
    values = unpacked(packed(largest), study=STUDY, shape=lambda _: (numbers, 1), from_site=False).values
    assert values is not None
    assert values.sum() == numbers
    with pytest.raises(BadMessageError, match="8 MB"):
        packed(largest._replace(values=np.ones((numbers + 1, 1))))


@prove
@given(st.data())
def test_flipped_or_truncated_messages_are_refused_or_valid(data: st.DataObject) -> None:
    message, from_site, n_sites = data.draw(st.sampled_from(list(of_both())))
    whole = bytearray(packed(message))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))]) if data.draw(st.booleans()) else bytes(whole)
    try:
        got = read(cut, from_site, n_sites)
    except BadMessageError:
        return
    assert got.study == STUDY
    assert got.values is None or (got.values.shape == SHAPE and np.isfinite(got.values).all())


@prove
@given(st.binary(max_size=400), st.booleans(), st.sampled_from([0, N]))
def test_arbitrary_bytes_are_refused_or_valid(data: bytes, from_site: bool, n_sites: int) -> None:
    with pytest.raises(BadMessageError):
        read(data, from_site, n_sites)


def test_digest_covers_the_whole_request() -> None:
    one, other = packed(DOWN[1]), packed(DOWN[1]._replace(values=VALUES + 1e-12))
    assert digest_of(one) != digest_of(other) != NO_DIGEST
