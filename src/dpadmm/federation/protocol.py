"""The wire protocol between server and sites: names, subjects, messages and the transport interface.

A message has a header of ``HEAD.size`` bytes and a body whose length is in the header. The body is one of:

- little-endian float64 numbers: a consensus or an upload,
- the code of a refusal,
- nothing,
- with secure aggregation: masked int64 numbers, the bitmap of a round's members, or pairwise tags.

Other messages have a fixed size: heartbeats with the sender's clock, lease claims and grants (which process of a site
may answer, and the position of its ledger), proposals with the hash of a study, and a site's reply to a proposal. A
document is a proposed study as JSON, which a site stores for its owner if its hash is that of the proposal. No message
can make a site run, read or configure anything. Sizes are checked before allocation.
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

SERVER = "server"
SERVER_USER = "server@dpadmm"
_NAME = re.compile("[a-z0-9][a-z0-9-]{0,39}")


def check_name(name: str) -> str:
    """Return a valid site name, such as ``north-hospital-2``, or raise ``StudyError``."""
    if not _NAME.fullmatch(name):
        raise StudyError(
            f"{name[:60]!r} is not a valid site name: use 1 to 40 lowercase letters, digits and hyphens, "
            "starting with a letter or digit"
        )
    if name == SERVER:
        raise StudyError(f"the site name {SERVER!r} is reserved: choose another name")
    return name


def user_of(name: str, serial: str) -> str:
    """Return the broker user of a certificate, ``NAME.SERIALHEX@dpadmm``.

    The serial number keeps a revoked certificate revoked after its site receives a new one.
    """
    return f"{name}.{serial}@dpadmm"


def subjects_of(name: str) -> tuple[str, str]:
    """Return the subjects that a user may publish to and subscribe to, in any study."""
    if name == SERVER:
        return "dpadmm.*.down", "dpadmm.*.up.*"
    return f"dpadmm.*.up.{name}", "dpadmm.*.down"


def requests_of(study: str) -> str:
    """Return the subject of a study's messages to sites."""
    return f"dpadmm.{study}.down"


def beat_subjects_of(name: str) -> tuple[str, str]:
    """Return the subjects on which a user publishes its heartbeats and receives those of the other side."""
    publish, subscribe = (subject.replace("*", "alive", 1) for subject in subjects_of(name))
    return publish, subscribe


class MissingPackagesError(DPADMMError, ImportError):
    """A package of the extra ``federation`` is not installed."""

    def __init__(self) -> None:
        super().__init__("federation needs more packages: pip install 'dpadmm[federation]'")


class Transport(Protocol):
    """Carries bytes between the server and its sites, and authenticates the names of the sites."""

    async def send(self, data: bytes) -> None:
        """Send to all sites of the study; delivery is not guaranteed."""

    async def receive(self, timeout: float) -> tuple[str, bytes] | None:
        """Return the next answer and its site, or None after ``timeout`` seconds."""


MAGIC, VERSION = b"dpAM", 1
HEAD = struct.Struct("<4sBBH32s32sIIIQIQ")
"""Magic, version, kind, reserved, study, digest of the request, round, d, p, rows, rows per person, body."""

MAX_BODY = 8 * 2**20 - 1024
"""Bytes. The broker accepts messages of up to 8 MB."""

MAX_ROWS = 10**12
NO_DIGEST = "0" * 64
_CODE = re.compile("[a-z][a-z-]{0,39}")
WITHHELD = "study-blocked"
"""Refusal code sent if the reason may depend on rows or on the owner's limits. The reason stays at the site."""


class BadMessageError(DPADMMError):
    """The bytes are not a message of this version, or their sender may not send it."""


BEAT = struct.Struct("<4sBBHd")
"""A heartbeat: magic, version, kind, reserved, and the sender's clock in seconds since 1970."""

BEAT_KIND = 255
BEAT_EVERY, SILENT_AFTER = 1.0, 3.5
"""Seconds between heartbeats, and seconds without one after which the sender counts as silent."""


def packed_beat(clock: float) -> bytes:
    return BEAT.pack(MAGIC, VERSION, BEAT_KIND, 0, clock)


def clock_of_beat(data: bytes) -> float:
    """Return the sender's clock, or raise ``BadMessageError``."""
    flag, clock = _fields(BEAT, BEAT_KIND, data, "a heartbeat")
    if flag or not 0.0 <= clock < 1e11:
        raise BadMessageError("invalid clock in a heartbeat" if not flag else "not a heartbeat")
    return float(clock)


def _fields(form: struct.Struct, kind: int, data: bytes, expected: str) -> list[Any]:
    """Return the fields of a message of fixed size, from its fourth on, or raise ``BadMessageError``."""
    if len(data) != form.size or data[:6] != MAGIC + bytes([VERSION, kind]):
        raise BadMessageError(f"not {expected}")
    return list(form.unpack(data))[3:]


class Mark(NamedTuple):
    """The position of a ledger. Of two marks of one ledger, the larger one is later."""

    restores: int = 0
    """Number of backups that the owner restored."""
    seq: int = 0
    """Number of records."""
    chain: str = NO_DIGEST
    """Chain value of the last record."""

    @property
    def place(self) -> tuple[int, int]:
        return self.restores, self.seq


class LeaseClaim(NamedTuple):
    """A process requests its site's lease, or returns it (``leaving``)."""

    instance: str
    """Drawn at random when the process starts."""
    number: int
    """Counts the claims of the process."""
    mark: Mark
    proved: str = NO_DIGEST
    """Chain value in the process's own ledger at the position of the server's mark."""
    leaving: bool = False


class LeaseReply(IntEnum):
    """The server's decision on a claim."""

    GRANTED = 1
    PROVE = 2
    """The lease is free. The process must prove that its ledger continues from this mark."""
    WAIT = 3
    """Another process of the site held the lease a moment ago."""
    CLONED = 4
    """Another process of the site holds the lease."""
    BEHIND = 5
    """The ledger lacks records that an earlier claim reported."""


class Grant(NamedTuple):
    """The decision on a claim."""

    verdict: LeaseReply
    instance: str
    number: int
    mark: Mark
    """The latest mark of the site."""
    contested: bool = False
    """Whether another process of the site was refused recently."""


CLAIM = struct.Struct("<4sBBH16sQIQ32s32s")
"""Magic, version, kind, leaving, instance, number, restores, records, chain, proved."""

GRANT = struct.Struct("<4sBBH16sQIQ32sI")
"""Magic, version, kind, verdict, instance, number, restores, records, chain, contested."""

CLAIM_KIND, GRANT_KIND = 254, 253
CLAIMS = "dpadmm.lease.up"
"""Prefix of the subject on which a site claims its lease; its name follows. Grants use ``grants_of``."""

LEASE_HOLDS, LEASE_FREE_AFTER = 2.5, 4.5
"""Seconds for which a grant is valid after its claim, and seconds without a claim after which the lease is free."""


def grants_of(name: str) -> str:
    """Return the subject of a site's grants."""
    return f"dpadmm.lease-{name}.down"


def packed_claim(claim: LeaseClaim) -> bytes:
    restores, seq, chain = claim.mark
    ids = bytes.fromhex(claim.instance), claim.number, restores, seq, bytes.fromhex(chain), bytes.fromhex(claim.proved)
    return CLAIM.pack(MAGIC, VERSION, CLAIM_KIND, claim.leaving, *ids)


def unpacked_claim(data: bytes) -> LeaseClaim:
    leaving, instance, number, restores, seq, chain, proved = _fields(CLAIM, CLAIM_KIND, data, "a lease message")
    if leaving > 1:
        raise BadMessageError("not a lease message")
    return LeaseClaim(instance.hex(), number, Mark(restores, seq, chain.hex()), proved.hex(), bool(leaving))


def packed_grant(grant: Grant) -> bytes:
    restores, seq, chain = grant.mark
    ids = bytes.fromhex(grant.instance), grant.number, restores, seq, bytes.fromhex(chain)
    return GRANT.pack(MAGIC, VERSION, GRANT_KIND, grant.verdict, *ids, grant.contested)


def unpacked_grant(data: bytes) -> Grant:
    verdict, instance, number, restores, seq, chain, contested = _fields(GRANT, GRANT_KIND, data, "a lease message")
    if verdict not in set(LeaseReply) or contested > 1:
        raise BadMessageError("not a lease message")
    return Grant(LeaseReply(verdict), instance.hex(), number, Mark(restores, seq, chain.hex()), bool(contested))


PROPOSAL = struct.Struct("<4sBBH32s")
"""A proposed study, or the head of a document: magic, version, kind, reserved, and the hash of the study."""

REPLY = struct.Struct("<4sBBH32s32s")
"""A site's reply to a proposal: magic, version, kind, reply, the hash of the study, and an offered key or zeros."""

PROPOSAL_KIND, DOCUMENT_KIND, REPLY_KIND = 252, 251, 250
REPLIES = "dpadmm.proposal.up"
"""Prefix of the subject on which a site replies to proposals; its name follows."""


class ReplyCode(IntEnum):
    """The state of a proposed study at a site. It never depends on rows or on limits."""

    WANTED = 1
    """The site does not have the study yet."""
    RECEIVED = 2
    """The owner has not decided."""
    ACCEPTED = 3
    DECLINED = 4
    """The owner declined the study, or left it."""
    OFFERED = 5
    """The owner accepted the draft of a study with secure aggregation. The reply contains the site's public key."""


class ProposalReply(NamedTuple):
    """A site's reply to the proposal of a study."""

    study: str
    code: ReplyCode
    key: str = NO_DIGEST
    """The offered public key, in hexadecimal digits."""


def proposals_of(name: str) -> str:
    """Return the subject of the proposals to a site, and of their documents."""
    return f"dpadmm.proposal-{name}.down"


def packed_proposal(study: str) -> bytes:
    return PROPOSAL.pack(MAGIC, VERSION, PROPOSAL_KIND, 0, bytes.fromhex(study))


def packed_document(study: str, text: bytes) -> bytes:
    """Return the message with a proposed study as JSON."""
    if len(text) > MAX_BODY:
        raise BadMessageError("the study exceeds the message limit of 8 MB")
    return PROPOSAL.pack(MAGIC, VERSION, DOCUMENT_KIND, 0, bytes.fromhex(study)) + text


def unpacked_proposal(data: bytes) -> tuple[str, bytes | None]:
    """Return the hash of a proposed study, and its text if this is the document, or raise ``BadMessageError``."""
    kind = DOCUMENT_KIND if len(data) > PROPOSAL.size else PROPOSAL_KIND
    reserved, study = _fields(PROPOSAL, kind, data[: PROPOSAL.size], "a proposal")
    if reserved or len(data) > PROPOSAL.size + MAX_BODY:
        raise BadMessageError("not a proposal")
    return bytes(study).hex(), data[PROPOSAL.size :] or None


def packed_reply(reply: ProposalReply) -> bytes:
    ids = bytes.fromhex(reply.study), bytes.fromhex(reply.key)
    return REPLY.pack(MAGIC, VERSION, REPLY_KIND, reply.code, *ids)


def unpacked_reply(data: bytes) -> ProposalReply:
    """Return a site's reply to a proposal, or raise ``BadMessageError``."""
    code, study, key = _fields(REPLY, REPLY_KIND, data, "a reply to a proposal")
    if code not in set(ReplyCode) or (key.hex() != NO_DIGEST) != (code == ReplyCode.OFFERED):
        raise BadMessageError("not a reply to a proposal")
    return ProposalReply(study.hex(), ReplyCode(code), key.hex())


class LastContact(NamedTuple):
    """The last heartbeat of a sender."""

    at: float
    """Monotonic time of arrival."""
    clock_difference: float
    """Seconds by which the sender's clock is ahead of ours."""


class Kind(IntEnum):
    """The server sends the kinds below 16, sites send the others."""

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
"""Kinds that only studies with secure aggregation use. These studies have no ``UPLOAD``."""

NUMBERS = {Kind.REQUEST: "<f8", Kind.UPLOAD: "<f8", Kind.MASKED: "<i8"}
"""Kinds whose body is an array, with the type of its numbers."""

COUNTED = (Kind.PRESENT, Kind.UPLOAD, Kind.READY, Kind.MASKED)
"""Kinds that contain the site's number of rows."""

TAG = 8
"""Bytes of the tag that proves a shared key of two sites."""


class Message(NamedTuple):
    """A message; fields that its kind does not use keep their defaults.

    ======== ======= ===============================================================
    kind     sender  contents
    ======== ======= ===============================================================
    CALL     server  none; every site that is present answers
    REQUEST  server  w^{k−1}, for round k
    END      server  the number of rounds of a study that is over
    PRESENT  site    answers a call with the number of rows
    UPLOAD   site    c_i^k
    REFUSED  site    the code of a refusal
    READY    site    answers a request (secure aggregation)
    MASK     server  the request's digest and the bitmap of the round's members
    MASKED   site    the masked numbers
    ======== ======= ===============================================================

    A site's message contains the digest of the message that it answers. With secure aggregation, the body of
    ``PRESENT`` and ``READY`` is the site's tag with each site of the roster.
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
    """Return the digest of a message; answers use it to identify their request."""
    return sha256(data).hexdigest()


def packed(message: Message) -> bytes:
    numbers = message.values if message.masked is None else message.masked
    shape, body = (0, 0), message.body or message.code.encode("ascii")
    if numbers is not None:
        shape, body = _on_wire(numbers.shape), numbers.astype(NUMBERS[message.kind]).tobytes()
    if len(body) > MAX_BODY:
        raise BadMessageError(f"an array of {shape[0]:,} × {shape[1]:,} numbers exceeds the message limit of 8 MB")
    ids = (bytes.fromhex(message.study), bytes.fromhex(message.digest))
    sizes = (message.n_rows, message.rows_per_person, len(body))
    return HEAD.pack(MAGIC, VERSION, message.kind, 0, *ids, message.round, *shape, *sizes) + body


def _on_wire(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return rows and columns; a vector is one column."""
    return shape[0], prod(shape[1:])


def unpacked(
    data: bytes, *, study: str, shape: Callable[[int], tuple[int, ...]], from_site: bool, n_sites: int = 0
) -> Message:
    """Decode a message of this study with finite numbers of the round's shape, or raise ``BadMessageError``.

    ``n_sites`` is the size of the roster with secure aggregation, otherwise 0. All lengths are checked before
    allocation.
    """
    if not HEAD.size <= len(data) <= HEAD.size + MAX_BODY:
        raise BadMessageError(f"invalid message size: {len(data):,} bytes")
    magic, version, number, reserved, study_bytes, digest, round, d, p, n_rows, k, length = HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION or reserved != 0:
        raise BadMessageError("unknown format or version")
    if study_bytes.hex() != study:
        raise BadMessageError("message of another study")
    if number not in _kinds(from_site, masked=n_sites > 0):
        raise BadMessageError(f"kind {number} is not allowed from this sender")
    if length != len(data) - HEAD.size:
        raise BadMessageError("length does not match the header")
    kind, values, masked, code, body = Kind(number), None, None, "", b""
    if kind in NUMBERS:
        expected = shape(round)
        if (d, p) != _on_wire(expected) or length != 8 * d * p:
            raise BadMessageError(f"expected a round and numbers of shape {expected}")
        numbers = np.frombuffer(data, NUMBERS[kind], d * p, HEAD.size).reshape(expected)
        if kind is Kind.MASKED:
            masked = numbers.astype(np.int64)
        else:
            values = numbers.astype(np.float64)
            if not np.isfinite(values).all():
                raise BadMessageError("numbers are not finite")
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
        raise BadMessageError("shape without numbers")
    counted = kind in COUNTED
    if counted != bool(n_rows) or counted != bool(k) or n_rows > MAX_ROWS:
        raise BadMessageError("invalid number of rows")
    if not from_site and kind is not Kind.MASK and digest.hex() != NO_DIGEST:
        raise BadMessageError("unexpected digest")
    return Message(kind, study, round, values, digest.hex(), n_rows, k, code, body, masked)


def _kinds(from_site: bool, *, masked: bool) -> set[Kind]:
    """Return the kinds that one side may send."""
    others = {Kind.UPLOAD} if masked else set(MASKING)
    return {kind for kind in Kind if (kind > 16) == from_site} - others


def _body_length(kind: Kind, n_sites: int) -> int:
    """Return the length of a body without numbers: the bitmap of a round's members, a site's tags, or 0."""
    if kind is Kind.MASK:
        return (n_sites + 7) // 8
    return TAG * n_sites if kind in (Kind.PRESENT, Kind.READY) else 0
