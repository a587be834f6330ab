"""What goes over the wire: a fixed, versioned binary form, checked before anything is allocated.

A message is a head of ``HEAD.size`` bytes and a body of exactly the length that the head says: float64
numbers (little-endian) of a consensus or an upload, a refusal's code, or nothing. There is no other kind of
message, so there is nothing that could ask a site to run, read or configure anything.
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from dpadmm.arrays import Floats
from dpadmm.errors import DpadmmError

MAGIC, VERSION = b"dpAM", 1
HEAD = struct.Struct("<4sBBH32s32sIIIQIQ")
"""Magic, version, kind, nothing, study, digest of the request, round, d, p, rows, rows per person, body."""

MAX_BODY = 8 * 2**20 - 1024
"""The broker carries messages of 8 MB."""

MAX_ROWS = 10**12
NO_DIGEST = "0" * 64
_CODE = re.compile("[a-z][a-z-]{0,39}")


class BadMessage(DpadmmError):
    """Bytes that are no message of this version, or not one that may come from there."""


class Kind(IntEnum):
    """What a message is: the first three come from the aggregator, the others from sites."""

    CALL = 1
    REQUEST = 2
    END = 3
    PRESENT = 17
    UPLOAD = 18
    REFUSED = 19


class Message(NamedTuple):
    """A message; what its kind does not have is as it is here.

    ``CALL``: who is there? ``REQUEST``: w^{k−1} of round k. ``END``: it has ended after ``round`` rounds.
    ``PRESENT``: I am, with so many rows. ``UPLOAD``: c_i^k. ``REFUSED``: no, and a code why.
    What comes from a site has the digest of the message that it answers.
    """

    kind: Kind
    study: str
    round: int = 0
    values: Floats | None = None
    digest: str = NO_DIGEST
    n_rows: int = 0
    rows_per_person: int = 0
    code: str = ""


def digest_of(data: bytes) -> str:
    """What an answer names its request by."""
    return sha256(data).hexdigest()


def packed(message: Message) -> bytes:
    """A message as bytes."""
    values = message.values
    shape, body = (0, 0), message.code.encode("ascii")
    if values is not None:
        shape, body = (values.shape[0], values.shape[1]), values.astype("<f8").tobytes()
    if len(body) > MAX_BODY:
        raise BadMessage(f"a model of {shape[0]:,} × {shape[1]:,} numbers does not fit a message of 8 MB")
    head = HEAD.pack(
        MAGIC,
        VERSION,
        message.kind,
        0,
        bytes.fromhex(message.study),
        bytes.fromhex(message.digest),
        message.round,
        *shape,
        message.n_rows,
        message.rows_per_person,
        len(body),
    )
    return head + body


def unpacked(data: bytes, *, study: str, shape: tuple[int, int], from_site: bool) -> Message:
    """The message in some bytes, of this study and with numbers of this shape; else ``BadMessage``.

    Numbers are finite. Nothing is allocated before the lengths agree.
    """
    if not HEAD.size <= len(data) <= HEAD.size + MAX_BODY:
        raise BadMessage(f"{len(data):,} bytes are no message")
    magic, version, number, nothing, study_bytes, digest, round, d, p, n_rows, k, length = HEAD.unpack_from(
        data
    )
    if magic != MAGIC or version != VERSION or nothing != 0:
        raise BadMessage("it is not in the form of this version")
    if study_bytes.hex() != study:
        raise BadMessage("it is of another study")
    if number not in iter(Kind) or (number > Kind.END) != from_site:
        raise BadMessage(f"kind {number} may not come from there")
    if length != len(data) - HEAD.size:
        raise BadMessage("its length is not what it says")
    kind, values, code = Kind(number), None, ""
    if kind in (Kind.REQUEST, Kind.UPLOAD):
        if (d, p) != shape or length != 8 * d * p or round < 1:
            raise BadMessage(f"its numbers are not of shape {shape}, or its round is not one")
        values = np.frombuffer(data, "<f8", d * p, HEAD.size).astype(np.float64).reshape(shape)
        if not np.isfinite(values).all():
            raise BadMessage("some of its numbers are not finite")
    elif kind is Kind.REFUSED:
        code = data[HEAD.size :].decode("ascii", "replace")
        if not _CODE.fullmatch(code):
            raise BadMessage("its code is none")
    elif length:
        raise BadMessage("it has a body, which this kind has not")
    if values is None and (d, p) != (0, 0):
        raise BadMessage("it has a shape and no numbers")
    counted = kind in (Kind.PRESENT, Kind.UPLOAD)
    if counted != bool(n_rows) or counted != bool(k) or n_rows > MAX_ROWS:
        raise BadMessage("its number of rows is none, or of no use here")
    if not from_site and digest.hex() != NO_DIGEST:
        raise BadMessage("it answers nothing, and has a digest")
    return Message(kind, study, round, values, digest.hex(), n_rows, k, code)
