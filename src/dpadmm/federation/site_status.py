"""``status.json``: what a running agent last said of itself, for its owner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpadmm.errors import StudyError

_Kinds = dict[str, type | tuple[type, ...]]
_STATUS: _Kinds = {
    **dict.fromkeys(("site", "broker", "certificate_expires", "at"), str),
    **dict.fromkeys(("running", "connected"), bool),
    "pid": (int, type(None)),
    "studies": list,
}
_STUDY: _Kinds = {
    **dict.fromkeys(("name", "hash", "decision"), str),
    "answering": bool,
    "last_round": (int, type(None)),
    "n_rounds": int,
}


def read_status(path: Path) -> dict[str, Any]:
    """What the agent wrote, whole and of the right kinds; else one sentence."""
    try:
        seen = json.loads(path.read_text(encoding="utf-8"))
        _check(seen, _STATUS)
        for each in seen["studies"]:
            _check(each, _STUDY)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise StudyError(
            f"{path}: is not what an agent writes, or is damaged: start the agent again, which writes it anew"
        ) from None
    return dict(seen)


def _check(table: Any, kinds: _Kinds) -> None:
    if not all(isinstance(table[name], kind) for name, kind in kinds.items()):
        raise TypeError("another kind")
