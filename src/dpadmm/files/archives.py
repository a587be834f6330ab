"""Checks of NumPy archives from untrusted sources."""

from __future__ import annotations

import math
from lzma import LZMAError
from tokenize import TokenError
from zipfile import BadZipFile, ZipFile
from zlib import error as ZlibError

import numpy as np

BROKEN_ARCHIVE = (
    OSError, ValueError, TypeError, EOFError, RuntimeError, SyntaxError, MemoryError, NotImplementedError,
    OverflowError, BadZipFile, ZlibError, LZMAError, TokenError,
)  # fmt: skip
"""Errors that zipfile, its compression methods and NumPy's headers, which are Python literals, raise for bad files."""

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def check_claim(archive: ZipFile, member: str) -> None:
    """Raise ValueError if the header of an array declares more bytes than it has: NumPy would allocate them."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"its header has version {version}")
        shape, _, dtype = _HEADERS[version](file)
    if math.prod(shape) * dtype.itemsize > archive.getinfo(member).file_size:
        raise ValueError(f"its header has shape {shape}, but the data is shorter")
