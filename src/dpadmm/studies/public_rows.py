"""The public rows of a study: a published table used to initialise training. ε does not depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import file_digest
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from dpadmm.errors import DataError, StudyError
from dpadmm.parameters.fields import parameters, problems

MIN_PUBLIC_ROWS = 5
"""One row for each fold that tunes the initial model."""

TABLE = "public_rows"
"""Name of the table in a study file."""


@dataclass(frozen=True)
class PublicRows:
    """A public table, identified by the digest of its bytes; its path is not part of the study's hash.

    Only the process that trains, or the server, reads the file. Sites receive broadcasts only.
    """

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$"), "SHA-256 digest of the file, in hexadecimal."]
    file: Annotated[str | None, "Path of the table, relative to the study file."] = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for parameter in parameters(PublicRows):
            parameter.checked(getattr(self, parameter.name), f"{TABLE}: ")

    @classmethod
    def of(cls, path: Path) -> PublicRows:
        """Return the public rows in a file."""
        return cls(_digest(path), str(path))

    @property
    def is_here(self) -> bool:
        return self.file is not None and Path(self.file).is_file()

    def verified(self) -> Path:
        """Return the path of the file; raise DataError if it is missing or has another digest."""
        if self.file is None:
            raise DataError(f"the study has no path for its public rows; set file under [{TABLE}]")
        path = Path(self.file)
        if not self.is_here:
            raise DataError(f"{path}: public rows not found; copy the table to this path")
        if (digest := _digest(path)) != self.sha256:
            raise DataError(
                f"{path}: not the table that the study declares (sha256 {digest[:12]}…, expected "
                f"{self.sha256[:12]}…); replace it with the declared table"
            )
        return path


def public_rows_problems(entries: object) -> list[str]:
    """Return a message for each problem of ``[public_rows]``."""
    if not isinstance(entries, Mapping):
        return [f"{TABLE} must be a table, such as [{TABLE}], not {entries!r:.60}"]
    settings = {name: value for name, value in entries.items() if name != "public"}
    messages = problems(settings, parameters(PublicRows), TABLE)
    if "sha256" not in entries:
        messages.append(f"{TABLE}: sha256 is missing; add the digest that sha256sum prints")
    if not isinstance(entries.get("public", True), bool):
        messages.append(f"{TABLE}: public must be true or false, not {entries['public']!r:.60}")
    return messages


def is_unconfirmed(entries: object) -> bool:
    """Return whether the rows are not yet confirmed as public."""
    return isinstance(entries, Mapping) and entries.get("public", True) is False


def public_rows_from(entries: Mapping[str, Any], folder: Path) -> PublicRows:
    """Build the public rows from ``[public_rows]`` of a study file in ``folder``."""
    for message in public_rows_problems(entries):
        raise StudyError(message)
    if is_unconfirmed(entries):
        raise StudyError(
            f"{TABLE}: not confirmed as public. If anyone may see these rows, run dpadmm study confirm, or set "
            f"public = true; otherwise remove [{TABLE}]"
        )
    file = entries.get("file")
    return PublicRows(entries["sha256"], None if file is None else str(folder / file))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
