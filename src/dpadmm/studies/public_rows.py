"""The public rows of a study: a table that anyone may see, from which training starts. No ε depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import file_digest
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from dpadmm.errors import DataError, StudyError
from dpadmm.parameters.fields import parameters, problems

LEAST_PUBLIC = 5
"""One for each fold of the model that training starts from."""

TABLE = "public_rows"
"""Its table in the study's file."""


@dataclass(frozen=True)
class PublicRows:
    """A table, known by its bytes: the same bytes in another file are the same rows, and the same study.

    Only whoever trains or aggregates needs the file; agents see what is broadcast.
    """

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$"), "SHA-256 of the table's bytes, in hexadecimal digits."]
    file: Annotated[str | None, "The table's file, relative to that of the study."] = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for each in parameters(PublicRows):
            each.checked(getattr(self, each.name), f"{TABLE}: ")

    @classmethod
    def of(cls, path: Path) -> PublicRows:
        """The rows of a file."""
        return cls(_digest(path), str(path))

    @property
    def is_here(self) -> bool:
        return self.file is not None and Path(self.file).is_file()

    def verified(self) -> Path:
        """The file, if it is there and has these bytes."""
        if self.file is None:
            raise DataError(f"the study does not say where its public rows are; give file in [{TABLE}]")
        path = Path(self.file)
        if not self.is_here:
            raise DataError(f"{path}: the study's public rows are not there; put the table there")
        if (found := _digest(path)) != self.sha256:
            raise DataError(
                f"{path}: not the study's public rows, but another table (sha256 {found[:12]}…, not "
                f"{self.sha256[:12]}…); put theirs there"
            )
        return path


def public_rows_problems(about: object) -> list[str]:
    """A sentence for everything that is wrong with ``[public_rows]``."""
    if not isinstance(about, Mapping):
        return [f"{TABLE} must be a table, such as [{TABLE}], not {about!r:.60}"]
    found = problems({name: each for name, each in about.items() if name != "public"}, parameters(PublicRows), TABLE)
    if "sha256" not in about:
        found.append(f"{TABLE}: sha256 is missing: that of the table, as sha256sum prints it")
    if not isinstance(about.get("public", True), bool):
        found.append(f"{TABLE}: public must be true or false, not {about['public']!r:.60}")
    return found


def is_unconfirmed(about: object) -> bool:
    """Whether someone still has to say that anyone may see these rows."""
    return isinstance(about, Mapping) and about.get("public", True) is False


def public_rows_from(about: Mapping[str, Any], folder: Path) -> PublicRows:
    """Public rows from their table in a study's file, which lies in ``folder``."""
    for sentence in public_rows_problems(about):
        raise StudyError(sentence)
    if is_unconfirmed(about):
        raise StudyError(
            f"{TABLE}: it is not confirmed that anyone may see these rows; if so, say public = true, by hand or with "
            f"dpadmm study confirm; if not, leave [{TABLE}] out"
        )
    file = about.get("file")
    return PublicRows(about["sha256"], None if file is None else str(folder / file))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
