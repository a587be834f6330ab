"""A TOML file of the user's -> a table, or one sentence why not."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from dpadmm.errors import StudyError

MOST_BYTES = 4_000_000
"""Some 50,000 columns; what is larger is refused unread, since to parse it would take a minute."""

DEEPEST = 100
"""Tables within tables; none of these files has more than five."""


def read_toml(path: Path) -> dict[str, Any]:
    """The table that a TOML file holds."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise StudyError(f"{path}: larger than {MOST_BYTES // 10**6} MB, which no such file is; is it another one?")
        table = tomllib.loads(content.decode("utf-8").replace("\r\n", "\n"))
        _check_values(table)
        return table
    except FileNotFoundError:
        raise StudyError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError):
        raise StudyError(f"{path}: cannot be read as a text file") from None
    except ValueError as error:  # of tomllib, or of int() for thousands of digits
        raise StudyError(f"{path}: not valid TOML: {str(error).partition(';')[0]}") from None
    except RecursionError:
        raise StudyError(f"{path}: not valid TOML: brackets within brackets, too deep") from None


def _check_values(value: object, depth: int = 0) -> None:
    """TOML's whole numbers have 64 bits; longer ones, and deep tables, Python could not even show."""
    if depth > DEEPEST:
        raise RecursionError
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            _check_values(each, depth + 1)
    elif isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError("a whole number has more than 64 bits")
