"""The section ``[notify]`` of ``site.toml`` and ``server.toml``: the program that receives events."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpadmm.errors import StudyError
from dpadmm.parameters.fields import check_names

MAX_DELAY = 86_400.0


@dataclass(frozen=True)
class NotifySettings:
    """A program with its arguments, and the seconds for which an alarm must last before it is reported."""

    command: tuple[str, ...]
    delay: float = 10.0

    def warnings(self) -> list[str]:
        """Return warnings if the program cannot be started."""
        program = Path(self.command[0])
        if program.is_file() and os.access(program, os.X_OK):
            return []
        return [f"notify.command: {program} is not an executable file, so no event is delivered; install it"]


def notify_settings(section: Mapping[str, Any], where: str) -> NotifySettings:
    """Check the section ``[notify]`` of the file ``where``; one error names all of its problems."""
    check_names(section, ("command", "delay"), f"{where}, [notify]")
    command, delay, problems = section.get("command"), section.get("delay", NotifySettings.delay), []
    if not isinstance(command, list) or not command or not all(_is_word(word) for word in command):
        example = '["/usr/local/bin/notify"]'
        problems.append(f"notify.command must be a list of a program and its arguments, such as {example}")
    elif not Path(command[0]).is_absolute():
        problems.append(f"notify.command must begin with the full path of a program, not {command[0]!r:.60}")
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0.0 <= delay <= MAX_DELAY:
        problems.append(f"notify.delay must be a number of seconds between 0 and {MAX_DELAY:,.0f}, not {delay!r:.60}")
    if problems:
        raise StudyError(f"{where}: {'; '.join(problems)}")
    return NotifySettings(tuple(section["command"]), float(delay))


def _is_word(value: object) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value
