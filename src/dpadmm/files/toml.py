"""Read TOML files. Every error is one sentence."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from dpadmm.errors import StudyError

MAX_BYTES = 4_000_000
"""Maximum size, which allows about 50,000 columns. Parsing a larger file would take a minute."""

MAX_DEPTH = 100
"""Maximum nesting of tables. Valid files have at most five levels."""


def read_toml(path: Path) -> dict[str, Any]:
    """Return the table in a TOML file."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise StudyError(f"{path}: larger than {MAX_BYTES // 10**6} MB, the limit; check that it is the right file")
        table = tomllib.loads(content.decode("utf-8").replace("\r\n", "\n"))
        _check_values(table)
        return table
    except FileNotFoundError:
        raise StudyError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError):
        raise StudyError(f"{path}: cannot be read as a text file") from None
    except ValueError as error:  # from tomllib, or from int() for thousands of digits
        raise StudyError(f"{path}: not valid TOML: {str(error).partition(';')[0]}") from None
    except RecursionError:
        raise StudyError(f"{path}: not valid TOML: nested too deeply") from None


def _check_values(value: object, depth: int = 0) -> None:
    """Raise an error for integers above 64 bits and deep nesting, which Python cannot display."""
    if depth > MAX_DEPTH:
        raise RecursionError
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _check_values(item, depth + 1)
    elif isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError("a whole number has more than 64 bits")
