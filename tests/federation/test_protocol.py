"""Names on the wire, and who may say what to whom."""

from __future__ import annotations

import struct

import pytest
from looping import case

from dpadmm.errors import StudyError
from dpadmm.federation.protocol import (
    BEAT_EVERY,
    CLAIMS,
    LEASE_FREE_AFTER,
    LEASE_HOLDS,
    MAX_BODY,
    NO_DIGEST,
    SERVER,
    SERVER_USER,
    SILENT_AFTER,
    BadMessageError,
    Grant,
    LeaseClaim,
    LeaseReply,
    Mark,
    MissingPackagesError,
    ProposalReply,
    ReplyCode,
    beat_subjects_of,
    check_name,
    clock_of_beat,
    grants_of,
    packed_beat,
    packed_claim,
    packed_document,
    packed_grant,
    packed_proposal,
    packed_reply,
    proposals_of,
    subjects_of,
    unpacked_claim,
    unpacked_grant,
    unpacked_proposal,
    unpacked_reply,
    user_of,
)


def test_a_name_that_could_be_another_subject_is_refused() -> None:
    for name in ["", "-a", "A", "a b", "a.b", "a" * 41, "a\n", "ä"]:
        with (
            case(name),
            pytest.raises(StudyError, match="is not a valid site name: use 1 to 40 lowercase letters"),
        ):
            check_name(name)


def test_names_that_are_allowed() -> None:
    assert [check_name(name) for name in ("a", "7", "a" * 40, "north-2")] == ["a", "7", "a" * 40, "north-2"]


def test_no_site_can_be_called_like_the_aggregator() -> None:
    assert (SERVER, SERVER_USER) == ("server", "server@dpadmm")
    with pytest.raises(StudyError, match="'server' is reserved"):
        check_name("server")


def test_sites_speak_to_the_aggregator_and_it_to_all() -> None:
    assert subjects_of("north") == ("dpadmm.*.up.north", "dpadmm.*.down")
    assert subjects_of(SERVER) == ("dpadmm.*.down", "dpadmm.*.up.*")
    assert user_of("north", "0a") == "north.0a@dpadmm"


def test_missing_packages_say_what_to_install() -> None:
    assert str(MissingPackagesError()) == "federation needs more packages: pip install 'dpadmm[federation]'"


def test_signs_of_life_have_subjects_that_the_broker_allows_and_no_study_can_have() -> None:
    assert beat_subjects_of("north") == ("dpadmm.alive.up.north", "dpadmm.alive.down")
    assert beat_subjects_of("server") == ("dpadmm.alive.down", "dpadmm.alive.up.*")


def test_a_sign_of_life_is_the_clock_in_16_bytes_and_anything_else_is_refused() -> None:
    assert packed_beat(1.5) == b"dpAM\x01\xff\x00\x00" + struct.pack("<d", 1.5)
    for clock in (0.0, 1.5, 1.8e9, 99_999_999_999.0):
        assert clock_of_beat(packed_beat(clock)) == clock
    fine = packed_beat(1.5)
    for wrong in (
        b"",
        fine[:-1],
        b"dpAN" + fine[4:],
        fine[:4] + b"\x02" + fine[5:],
        fine[:7] + b"\x01" + fine[8:],
    ):
        with pytest.raises(BadMessageError, match=r"^not a heartbeat$"):
            clock_of_beat(wrong)
    for clock in (-1e-9, 1e11, float("nan"), float("inf")):
        with pytest.raises(BadMessageError, match=r"^invalid clock in a heartbeat$"):
            clock_of_beat(packed_beat(clock))
    assert (BEAT_EVERY, SILENT_AFTER) == (1.0, 3.5), "two that are lost are no silence"


def test_claims_and_grants_are_read_as_they_were_written_and_anything_else_is_refused() -> None:
    mark = Mark(3, 2**40, "cd" * 32)
    for leaving in (False, True):
        claim = LeaseClaim("ab" * 16, 2**63, mark, "ef" * 32, leaving)
        assert unpacked_claim(packed_claim(claim)) == claim
    for verdict in LeaseReply:
        grant = Grant(verdict, "ab" * 16, 7, mark, contested=verdict is LeaseReply.GRANTED)
        assert unpacked_grant(packed_grant(grant)) == grant
    assert LeaseClaim("ab" * 16, 1, Mark()) == ("ab" * 16, 1, (0, 0, "0" * 64), "0" * 64, False)
    assert mark.place == (3, 2**40)
    fine, granted = (
        packed_claim(LeaseClaim("ab" * 16, 1, mark)),
        packed_grant(Grant(LeaseReply.WAIT, "ab" * 16, 1, mark)),
    )
    assert (len(fine), len(granted)) == (108, 80)
    for read, data in ((unpacked_claim, fine), (unpacked_grant, granted)):
        for wrong in (
            b"",
            data[:-1],
            data + b"x",
            b"dpAN" + data[4:],
            data[:4] + b"\x02" + data[5:],
            data[:5] + b"\xff" + data[6:],
            data[:6] + b"\x06" + data[7:],
            data[:6] + b"\x00\x01" + data[8:],
            granted if data == fine else fine,
        ):
            with pytest.raises(BadMessageError, match=r"^not a lease message$"):
                read(wrong)
    with pytest.raises(BadMessageError, match=r"^not a lease message$"):
        unpacked_claim(fine[:6] + b"\x02" + fine[7:])
    for wrong in (granted[:6] + b"\x00" + granted[7:], granted[:-4] + b"\x02\x00\x00\x00"):
        with pytest.raises(BadMessageError, match=r"^not a lease message$"):
            unpacked_grant(wrong)
    assert (LEASE_HOLDS, LEASE_FREE_AFTER, BEAT_EVERY) == (2.5, 4.5, 1.0), "a claim that is lost loses no lease"


def test_leases_have_subjects_that_the_broker_allows_and_no_study_can_have() -> None:
    publish, subscribe = subjects_of("north")
    assert publish.replace("*", "lease") == f"{CLAIMS}.north"
    assert subscribe.replace("*", "lease-north") == grants_of("north")


def test_verdicts_have_numbers_that_stay() -> None:
    """Agents and aggregators of different versions talk to each other by them."""
    numbers = {"GRANTED": 1, "PROVE": 2, "WAIT": 3, "CLONED": 4, "BEHIND": 5}
    assert {item.name: item.value for item in LeaseReply} == numbers
    assert not Grant(LeaseReply.GRANTED, "ab" * 16, 7, Mark()).contested


def test_a_proposal_is_the_hash_of_a_study_in_40_bytes_and_anything_else_is_refused() -> None:
    assert proposals_of("north") == "dpadmm.proposal-north.down"
    fine = packed_proposal("ab" * 32)
    assert fine == b"dpAM\x01\xfc\x00\x00" + bytes.fromhex("ab" * 32)
    assert unpacked_proposal(fine) == ("ab" * 32, None)
    for wrong in (
        b"",
        fine[:-1],
        b"dpAN" + fine[4:],
        *(fine[:i] + b"\x07" + fine[i + 1 :] for i in range(8)),
    ):
        with pytest.raises(BadMessageError, match=r"^not a proposal$"):
            unpacked_proposal(wrong)


def test_a_document_is_a_study_after_its_hash() -> None:
    fine = packed_document("ab" * 32, b"{}")
    assert unpacked_proposal(fine) == ("ab" * 32, b"{}")
    with pytest.raises(BadMessageError, match="exceeds the message limit"):
        packed_document("ab" * 32, b" " * (MAX_BODY + 1))
    for wrong in (fine + b" " * MAX_BODY, fine[:-2], *(fine[:i] + b"\x07" + fine[i + 1 :] for i in range(8))):
        with pytest.raises(BadMessageError, match=r"^not a proposal$"):
            unpacked_proposal(wrong)


@pytest.mark.parametrize("code", list(ReplyCode))
def test_a_reply_to_a_proposal_has_72_bytes_and_a_key_only_with_an_offer(code: ReplyCode) -> None:
    key = "cd" * 32 if code is ReplyCode.OFFERED else NO_DIGEST
    fine = packed_reply(ProposalReply("ab" * 32, code, key))
    assert len(fine) == 72
    assert unpacked_reply(fine) == ProposalReply("ab" * 32, code, key)
    other = bytes(32) if code is ReplyCode.OFFERED else b"\x01" * 32
    for wrong in (b"", fine[:-1], fine + b"x", fine[:40] + other, fine[:6] + b"\x09\x00" + fine[8:]):
        with pytest.raises(BadMessageError, match="not a reply"):
            unpacked_reply(wrong)
