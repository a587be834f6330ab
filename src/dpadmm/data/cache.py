"""Where downloaded data is kept."""

from __future__ import annotations

import os
from pathlib import Path

from dpadmm._base.files import expanded


def cache_directory() -> Path:
    """The cache directory: DPADMM_CACHE, else ``dpadmm`` in the user's cache directory of this system.

    It need not exist yet.
    """
    chosen = os.environ.get("DPADMM_CACHE")
    if chosen:
        return expanded(chosen, "DPADMM_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return (Path(base) if base else expanded("~/.cache")) / "dpadmm"
