"""Approved sites: ``sites/NAME.json`` lists the certificates of a site, and which of them were revoked."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

from msgspec import Meta, ValidationError, convert

from dpadmm.errors import StudyError
from dpadmm.federation.identity.private_files import read_fields, write_private
from dpadmm.federation.protocol import check_name, user_of

FORMAT = "dpadmm-approvals/1"
IDENTITY = r"^[A-Za-z0-9.@_+-]{1,254}$"
_FIELDS = {"serial", "fingerprint", "expires", "approved_at", "revoked_at"}
_Moment = Annotated[datetime, Meta(tz=True)]


@dataclass(frozen=True, kw_only=True)
class ApprovedSite:
    """One certificate of a site. ``fingerprint`` is that of its key; a renewed certificate has the same key."""

    name: str
    serial: Annotated[str, Meta(pattern="^[0-9a-f]{1,40}$")]
    fingerprint: Annotated[str, Meta(pattern="^([0-9A-F]{2}:){31}[0-9A-F]{2}$")]
    expires: _Moment
    approved_at: _Moment
    revoked_at: _Moment | None = None
    identity: Annotated[str, Meta(pattern=IDENTITY)] | None = None
    """The e-mail or DNS name in a certificate of an external CA."""

    @property
    def user(self) -> str:
        """The broker's user for this certificate."""
        return self.identity or user_of(self.name, self.serial)

    @property
    def revoked(self) -> bool:
        return self.revoked_at is not None

    def usable(self, now: datetime) -> bool:
        """Return whether its holder may connect."""
        return not self.revoked and now < self.expires


def approvals_of(folder: Path, name: str) -> list[ApprovedSite]:
    """Return all certificates of a site, oldest first."""
    path = folder / "sites" / f"{check_name(name)}.json"
    if not path.exists():
        return []
    table = read_fields(path, format=FORMAT, what="a list of certificates", fields=("name", "certificates"))
    try:
        entries = table["certificates"]
        if table["name"] != name or not isinstance(entries, list) or not entries:
            raise ValueError(name)
        if any(entry.keys() - {"identity"} != _FIELDS for entry in entries):
            raise ValueError(name)
        return [convert({**entry, "name": name}, ApprovedSite) for entry in entries]
    except (AttributeError, TypeError, ValueError, ValidationError):
        raise StudyError(
            f"{path}: damaged; it lists who may connect. Restore it from a backup, or delete it and approve "
            f"{name} again with a new key"
        ) from None


def all_approvals(folder: Path) -> list[ApprovedSite]:
    """Return all certificates of all sites. A damaged file is an error, because it may contain a revocation."""
    names = sorted(path.stem for path in (folder / "sites").glob("*.json") if not path.name.startswith("."))
    return [approval for name in names for approval in approvals_of(folder, name)]


def write_approvals(folder: Path, approvals: list[ApprovedSite]) -> None:
    """Replace the certificates of one site."""
    name = approvals[0].name
    entries = [asdict(approval) for approval in approvals]
    for entry in entries:
        del entry["name"]
        if entry["identity"] is None:
            del entry["identity"]
    table = {"format": FORMAT, "name": name, "certificates": entries}
    text = json.dumps(table, indent=2, default=datetime.isoformat)
    write_private(folder / "sites" / f"{name}.json", f"{text}\n".encode())
