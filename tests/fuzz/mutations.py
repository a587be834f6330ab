"""Random mutations of an input: of bytes, of words and lines of a text, and of base64 contents."""

from __future__ import annotations

import base64
import io
import random
import re
import warnings
import zipfile
from collections.abc import Callable, Sequence

_TOKEN = re.compile(rb'"(?:[^"\\\n]|\\.)*"|[-+]?[0-9][0-9.eE_+-]*|[A-Za-z_][\w-]*|[\[\]{}=:,]')
_PEM = re.compile(rb"(-----BEGIN [A-Z ]+-----)(?:\\n|\n)([A-Za-z0-9+/=\\\n]+?)(?:\\n|\n)(-----END [A-Z ]+-----)")
_DEEP = 970
"""Nearly as deep as Python's stack."""

WORDS: Sequence[bytes] = (
    *(
        b"0",
        b"-1",
        b"1",
        b"2",
        b"1e-9",
        b"1e308",
        b"1e400",
        b"-0.0",
        b"nan",
        b"inf",
        b"-inf",
        b"NaN",
        b"Infinity",
    ),
    *(
        b"true",
        b"false",
        b"null",
        b"[]",
        b"{}",
        b'""',
        b'" "',
        b'"\\u0000"',
        b'"\\ud800"',
        b'"\\n"',
        b'"a\\nb"',
    ),
    *(
        b'"\\u202e"',
        b'"x"',
        b"[1]",
        b'["x"]',
        b"[[]]",
        b"[{}]",
        b'{"x": 1}',
        b"{x = 1}",
        b"1979-05-27",
        b"07:32:00",
    ),
    *(b"9223372036854775807", b"9223372036854775808", b"1" + b"0" * 400, b"9" * 5000, b"1000000000", b"0x10"),
    *(
        b"1979-05-27T07:32:00Z",
        b'"0001-01-01T00:00:00+14:00"',
        b'"9999-12-31T23:59:59-14:00"',
        b'"2030-01-01"',
    ),
    *(
        b'"' + b"a" * 1700 + b'"',
        b"[" * _DEEP + b"]" * _DEEP,
        b".".join([b"a"] * _DEEP),
        b'"::1%x\\ny"',
        b"=",
        b",",
    ),
    *(
        b'"../x"',
        b'"~nobody/x"',
        b'"~"',
        b"[0, 1]",
        b"[1, 0]",
        b'["a", "a"]',
        b'["a", "b"]',
        b'["a", "b", "c"]',
    ),
    *(
        b'{"a": ' * 300 + b"1" + b"}" * 300,
        b"[0, 1" + b"0" * 400 + b"]",
        b'["no", "yes"]',
        b'"softmax"',
        b'"huber"',
    ),
)
BYTES: Sequence[bytes] = (
    *(
        b"\0",
        b"\xff",
        b"\x80",
        b"\r",
        b"\n",
        b"\r\n",
        b"\xef\xbb\xbf",
        b"\xc3\x28",
        b"\xed\xa0\x80",
        b'"',
        b"'",
    ),
    *(b"|", b",", b"\xf0\x7f" + b"\0" * 6, b"\0\0\0\0\0\0\xf0\x7f", b"\xff" * 8, b"\0" * 8),
)


def mutated(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Return an input with one to four mutations."""
    kinds: list[Callable[[bytes, Sequence[bytes], random.Random], bytes]] = [_bytes]
    if data[:2] == b"PK":
        kinds += [_in_zip, _in_zip, _in_zip]
    elif data[:4] != b"dpAM":
        kinds += [_words, _words, _words, _words, _lines]
        if b"-----BEGIN" in data:
            kinds += [_in_pem, _in_pem, _in_pem]
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = rng.choice(kinds)(data, others, rng)
    return data


def _bytes(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    to = min(len(data), at + rng.choice((0, 1, 1, 2, 4, 8, 40)))
    new = rng.choice((b"", rng.choice(BYTES), rng.randbytes(max(1, to - at)), data[at:to] * 2))
    if rng.random() < 0.3 and at < len(data):
        new, to = bytes([data[at] ^ 1 << rng.randrange(8)]), at + 1
    if rng.random() < 0.05:
        to = len(data)
    return data[:at] + new + data[to:]


def _words(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    found = list(_TOKEN.finditer(data))
    if not found:
        return _bytes(data, others, rng)
    start, end = rng.choice(found).span()
    if rng.random() < 0.5:
        new = rng.choice(WORDS)
    else:
        source = list(_TOKEN.finditer(rng.choice(others)))
        new = rng.choice(source).group() if source else b""
    return data[:start] + new + data[end:]


def _lines(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    foreign = rng.choice(others).splitlines(keepends=True)
    if not lines or not foreign:
        return data
    at = rng.randrange(len(lines))
    new = rng.choice(([], [lines[at]] * 2, [rng.choice(lines), lines[at]], [lines[at], rng.choice(foreign)]))
    return b"".join([*lines[:at], *new, *lines[at + 1 :]])


def _in_pem(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Change the contents of a certificate, not its encoding."""
    found = list(_PEM.finditer(data))
    if not found:
        return data
    match = rng.choice(found)
    try:
        inside = base64.b64decode(match.group(2).replace(b"\\n", b"").replace(b"\n", b""))
    except ValueError:
        return data
    if rng.random() < 0.3 and (oids := [m.end() for m in re.finditer(rb"\x06\x03\x55\x1d", inside)]):
        at, other = rng.choice(oids), rng.choice(oids)  # the same extension twice, or another one
        inside = inside[:at] + inside[other : other + 1] + inside[at + 1 :]
    else:
        inside = _bytes(inside, others, rng)
    text = base64.b64encode(inside)
    return data[: match.start(2)] + text + data[match.end(2) :]


def _in_zip(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Change one member of an archive, or its compression, and pack it again."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(member.filename, archive.read(member)) for member in archive.infolist()]
    except Exception:
        return _bytes(data, others, rng)
    if not members:
        return data
    at = rng.randrange(len(members))
    name, inside = members[at]
    how = rng.choice(
        (zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2)
    )
    change = rng.choice(("bytes", "header", "header", "shape", "drop", "name", "none"))
    if change == "bytes":
        inside = _bytes(inside, others, rng)
    elif change == "header":
        head = _words(inside[:128].replace(b"'", b'"'), others, rng).replace(b'"', b"'")
        inside = head[:128] + inside[128:]
    elif change == "shape":
        shape = rng.choice((b"(0,)", b"()", b"(3, 9999999999)", b"(-1,)", b"(1,)", b"(2, 3, 1)", b"(((("))
        kind = rng.choice((b"'<f8'", b"'<c16'", b"'<U9'", b"'|O'", b"'<M8[s]'", b"'|V8'", b"'<f2'", b"[('a', '<f8')]"))
        head = b"{'descr': %s, 'fortran_order': False, 'shape': %s, }" % (kind, shape)
        inside = b"\x93NUMPY\x01\0" + (118).to_bytes(2, "little") + head.ljust(117) + b"\n" + inside[128:]
    elif change == "name":
        name = rng.choice(("about.npy", "weights.npy", "weights", "../x.npy", "history.npy", "labels.npy"))
    members[at : at + 1] = [] if change == "drop" else [(name, inside)]
    out = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(out, "w", how) as archive:  # a name twice
        for member, content in members:
            info = zipfile.ZipInfo(member)  # without the current time
            info.compress_type = how
            archive.writestr(info, content)
    whole = out.getvalue()
    return _bytes(whole, others, rng) if rng.random() < 0.3 else whole
