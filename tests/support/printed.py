"""Output of a function on a terminal of a given width."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any
from unittest.mock import patch


def printed(width: int, speak: Callable[..., None], *arguments: Any) -> str:
    with redirect_stdout(io.StringIO()) as out, patch.dict(os.environ, COLUMNS=str(width)):
        speak(*arguments)
    return out.getvalue()
