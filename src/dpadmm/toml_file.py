"""A TOML file of the user's -> a table, or one sentence why not."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from dpadmm.errors import StudyError


def read_toml(path: Path) -> dict[str, Any]:
    """The table that a TOML file holds."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StudyError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError):
        raise StudyError(f"{path}: cannot be read as a text file") from None
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{path}: not valid TOML: {error}") from None
