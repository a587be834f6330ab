"""Masks cancel in the sum over all members of a round, and only there."""

from __future__ import annotations

import hmac
import itertools
import runpy
import sys
from hashlib import sha256

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from guards import refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from dpadmm.errors import StudyError
from dpadmm.trusted import masking
from dpadmm.trusted.masking import Masks, bitmap_of, members_of, public_key

STUDY, REQUEST = "5d" * 32, "e9" * 32
ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")


def keys(n: int) -> list[bytes]:
    return [sha256(f"key {i}".encode()).digest() for i in range(n)]


def sites(n: int, study: str = STUDY) -> list[Masks]:
    roster = [public_key(key) for key in keys(n)]
    return [Masks(study, key, roster) for key in keys(n)]


def reference(private: list[bytes], i: int, members: list[int], size: int, round: int = 1) -> list[int]:
    """Compute the mask of site i from the formulas of the module, with hashlib and the cipher only."""
    n, total = len(private), [0] * size
    bits = "".join("01"[j in members] for j in range(n)).ljust(8 * ((n + 7) // 8), "0")
    bitmap = int(bits, 2).to_bytes((n + 7) // 8)
    numbers = round.to_bytes(4, "little") + n.to_bytes(4, "little")
    label = b"dpadmm-mask/1"
    context = sha256(label + bytes.fromhex(STUDY) + numbers + bytes.fromhex(REQUEST) + bitmap).digest()
    for j in set(members) - {i}:
        secret = X25519PrivateKey.from_private_bytes(private[i]).exchange(
            X25519PublicKey.from_public_bytes(public_key(private[j]))
        )
        prk = hmac.digest(b"dpadmm-secagg/1", secret, "sha256")
        pair = min(i, j).to_bytes(4, "little") + max(i, j).to_bytes(4, "little")
        key = hmac.digest(prk, label + context + pair + b"\x01", "sha256")
        stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * size))
        for place in range(size):
            number = int.from_bytes(stream[8 * place : 8 * place + 8], "little")
            total[place] = (total[place] + (number if j > i else -number)) % 2**64
    return total


def test_known_answer() -> None:
    """Keys of RFC 7748 §6.1, a study and a request of zeros, round 1."""
    masks = Masks("00" * 32, ALICE, [public_key(ALICE), public_key(BOB)])
    mask = masks.for_round(1, "00" * 32, b"\xc0").numbers(4).astype("<i8").tobytes()
    assert mask.hex() == "a559023df043f1d0cc79ef4dd2ba97f60afde0efa7367f900f078b089a5279ef"
    assert masks.tags.hex() == "00000000000000001be8f677ce138a03"


def test_masks_follow_the_formulas() -> None:
    all_sites = sites(11)
    for members, round in (([0, 3, 10], 1), ([2, 3], 258), (list(range(11)), 10**9)):
        for i in members:
            mask = all_sites[i].for_round(round, REQUEST, bitmap_of(members, 11)).numbers(5)
            assert mask.view(np.uint64).tolist() == reference(keys(11), i, members, 5, round)


@given(st.integers(2, 12).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
@settings(max_examples=40, deadline=None)
def test_masks_cancel_over_any_members(case: tuple[int, set[int]]) -> None:
    n, members = case
    bitmap, all_sites = bitmap_of(members, n), sites(n)
    assert members_of(bitmap, n) == tuple(sorted(members))
    answers = np.random.default_rng(0).integers(-(2**62), 2**62, (n, 3))
    masked = [answers[i] + all_sites[i].for_round(7, REQUEST, bitmap).numbers(3) for i in members]
    np.testing.assert_array_equal(np.sum(masked, axis=0), answers[list(members)].sum(axis=0))


def uniform(numbers: np.ndarray) -> bool:
    """Bytes at each of the eight places of the numbers are equally frequent; a false alarm in 1e6."""
    places = numbers.astype("<i8").view(np.uint8).reshape(-1, 8).T
    return min(chisquare(np.bincount(place, minlength=256)).pvalue for place in places) > 1e-6 / 8


def test_sums_over_a_strict_subset_of_members_look_uniform() -> None:
    members, size = [0, 2, 3, 5], 2**14
    masks = {i: sites(6)[i].for_round(1, REQUEST, bitmap_of(members, 6)).numbers(size) for i in members}
    subsets = [members_ for k in (1, 2, 3) for members_ in itertools.combinations(members, k)]
    assert len(subsets) == 14
    for subset in subsets:
        assert uniform(np.sum([masks[i] for i in subset], axis=0)), subset
    assert not uniform(np.sum(list(masks.values()), axis=0))


@pytest.mark.parametrize(("n", "colluding"), [(2, ()), (3, ()), (4, ()), (3, (1,)), (4, (0,)), (4, (1, 3))])
def test_transcript_reveals_only_the_sum_of_honest_answers(
    n: int, colluding: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enumerate every stream of every honest pair modulo 4: each array position holds one combination.

    Given the streams of colluding members, transcripts of honest members are equally likely for all answers with the
    same sum. Without one of the honest answers, they are equally likely for all answers.
    """
    honest_sites = [i for i in range(n) if i not in colluding]
    pairs = list(itertools.combinations(honest_sites, 2))
    choices = np.array(list(itertools.product(range(4), repeat=len(pairs)))).T
    streams = {f"{i} {j}".encode(): choices[k] for k, (i, j) in enumerate(pairs)}
    shared = {f"{min(i, c)} {max(i, c)}".encode(): (3 * c + i) % 4 for i in honest_sites for c in colluding}

    class Stream:
        def __init__(self, key: bytes, mode: object) -> None:
            self.key = key

        def encryptor(self) -> Stream:
            return self

        def update(self, zeros: bytes) -> bytes:
            value = np.broadcast_to(streams.get(self.key, shared.get(self.key)), choices.shape[1:])
            return value.astype("<i8").tobytes()

    all_sites = sites(n)
    monkeypatch.setattr(Masks, "derive_key", lambda self, j, info: "{} {}".format(*sorted((self.me, j))).encode())
    monkeypatch.setattr(masking.algorithms, "AES256", lambda key: key)
    monkeypatch.setattr(masking, "Cipher", Stream)
    masks = [all_sites[i].for_round(1, REQUEST, bitmap_of(range(n), n)).numbers(choices.shape[1]) for i in honest_sites]

    def transcript_counts(answers: tuple[int, ...], missing: int | None = None) -> bytes:
        """How often each transcript is seen: a count for every possible one."""
        code, places = np.zeros(choices.shape[1], np.int64), 0
        for place, (answer, mask) in enumerate(zip(answers, masks, strict=True)):
            if place != missing:
                code, places = 4 * code + (answer + mask) % 4, places + 1
        return np.bincount(code, minlength=4**places).tobytes()

    for missing in range(len(honest_sites)):
        assert len({transcript_counts(x, missing) for x in itertools.product(range(4), repeat=len(honest_sites))}) == 1
    by_sum = {total: set() for total in range(4)}
    for x in itertools.product(range(4), repeat=len(honest_sites)):
        by_sum[sum(x) % 4].add(transcript_counts(x))
    assert all(len(item) == 1 for item in by_sum.values())
    assert len(set.union(*by_sum.values())) == 4


def test_masks_do_not_cancel_if_the_server_sends_different_requests() -> None:
    """Sites 0 and 1 get different requests. Their shared stream does not cancel and looks uniform."""
    base = (STUDY, 1, REQUEST, [0, 1])
    requests = [
        base,
        ("5e" * 32, *base[1:]),
        (STUDY, 2, *base[2:]),
        (STUDY, 1, "e8" * 32, base[3]),
        (*base[:3], [0, 1, 2]),
    ]
    masks = {
        (i, k): sites(3, study)[i].for_round(round, request, bitmap_of(members, 3)).numbers(2**14)
        for i in (0, 1)
        for k, (study, round, request, members) in enumerate(requests)
    }
    assert not (masks[0, 0] + masks[1, 0]).any()
    for k, other in itertools.permutations(range(len(requests)), 2):
        assert uniform(masks[0, k] + masks[1, other])
        assert uniform(masks[0, k] - masks[0, other])


def test_tags_of_a_pair_match_unless_a_key_was_swapped() -> None:
    private = keys(4)
    roster = [public_key(item) for item in private]
    swapped = [*roster[:2], public_key(ALICE), roster[3]]

    def tags(i: int, keys_of_all: list[bytes], study: str = STUDY) -> list[bytes]:
        all_tags = Masks(study, private[i], keys_of_all).tags
        return [all_tags[8 * j : 8 * j + 8] for j in range(4)]

    all_tags = [tags(i, roster) for i in range(4)]
    assert all(all_tags[i][j] == all_tags[j][i] for i in range(4) for j in range(4))
    assert len({item for one in all_tags for item in one}) == 1 + 6
    misled = tags(0, swapped)
    assert [misled[j] == all_tags[j][0] for j in range(4)] == [True, True, False, True]
    assert not set(tags(0, roster, "5e" * 32)[1:]) & set(all_tags[0][1:])


P = 2**255 - 19
LOW_ORDER = [0, 1, P - 1, P, P + 1, 325606250916557431795983626356110631294008115727848805560023387167927233504,
             39382357235489614581723060781553021112529911719440698176882885853963445705823]  # fmt: skip


def test_roster_without_own_key_or_with_weak_or_duplicate_keys_is_refused() -> None:
    good = [public_key(key) for key in keys(3)]
    other_spelling = bytes([*good[1][:31], good[1][31] | 0x80])
    own_spelling = bytes([*good[0][:31], good[0][31] | 0x80])
    assert other_spelling != good[1]
    for roster, code in [
        ([*good[1:]], "roster-not-mine"),
        ([public_key(ALICE), *good[1:]], "roster-not-mine"),
        ([*good, good[1]], "roster-unfit"),
        ([*good, good[0]], "roster-unfit"),
        ([*good, other_spelling], "roster-unfit"),
        ([*good, own_spelling], "roster-unfit"),
        ([*good, good[1][:31]], "roster-unfit"),
        *(([*good, point.to_bytes(32, "little")], "roster-unfit") for point in LOW_ORDER),
    ]:
        assert refusal(Masks, STUDY, keys(3)[0], roster).code == code
    assert Masks(STUDY, keys(3)[2], good).me == 2


@pytest.mark.parametrize(
    "bitmap", [b"", b"\xff", b"\xff\x80\x00", b"\xff\x40", b"\xff\xc0\x00", bytearray(b"\xff\x80"), "ÿ\x80", None]
)
def test_malformed_bitmaps_are_refused(bitmap: object) -> None:
    assert members_of(b"\xff\x80", 9) == tuple(range(9))
    assert refusal(members_of, bitmap, 9).code == "members-malformed"
    assert refusal(sites(9)[0].for_round, 1, REQUEST, bitmap).code == "members-malformed"


def test_missing_cryptography_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(StudyError, match=r"needs cryptography: pip install 'dpadmm\[federation\]'"):
        runpy.run_path(masking.__file__)
