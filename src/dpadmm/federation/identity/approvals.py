"""Sites of a server: ``sites/NAME.json`` has a site's certificates, which of them were revoked, and its join token.

Both are in one file, so that a certificate and the use of its token are recorded in one durable write.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, ValidationError, convert

from dpadmm.errors import StudyError
from dpadmm.federation.identity.private_files import read_fields, write_private
from dpadmm.federation.protocol import check_name, user_of

FORMAT = "dpadmm-approvals/2"
IDENTITY = r"^[A-Za-z0-9.@_+-]{1,254}$"
_FIELDS = {"serial", "fingerprint", "expires", "approved_at", "revoked_at"}
_Moment = Annotated[datetime, Meta(tz=True)]
MAX_CHAIN = 2**14
"""Characters of a stored certificate with its intermediate ones."""


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


@dataclass(frozen=True, kw_only=True)
class StoredToken:
    """The server's record of a join token, without its secret. Only one key can use it."""

    id: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
    secret_hash: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    created_at: _Moment
    expires: _Moment
    withdrawn_at: _Moment | None = None
    used_at: _Moment | None = None
    fingerprint: Annotated[str, Meta(pattern="^([0-9A-F]{2}:){31}[0-9A-F]{2}$")] | None = None
    """Of the key that used the token."""
    certificate: Annotated[str, Meta(max_length=MAX_CHAIN)] | None = None
    """What that key received. The same key may ask for it again, if the answer was lost."""

    def is_open(self, now: datetime) -> bool:
        """Return whether a site can still join with it."""
        return self.used_at is None and self.withdrawn_at is None and now < self.expires


@dataclass(frozen=True)
class SiteRecord:
    """All that the server stores about a site: its certificates, oldest first, and its latest join token."""

    name: str
    certificates: list[ApprovedSite] = field(default_factory=list)
    token: StoredToken | None = None


def record_of(folder: Path, name: str) -> SiteRecord:
    """Return the record of a site; an empty one if the server does not know the name."""
    path = folder / "sites" / f"{check_name(name)}.json"
    if not path.exists():
        return SiteRecord(name)
    table = read_fields(path, format=FORMAT, what="a list of certificates", fields=("name", "certificates", "token"))
    try:
        entries, token = table["certificates"], table["token"]
        if table["name"] != name or not isinstance(entries, list) or not (entries or token):
            raise ValueError(name)
        if any(entry.keys() - {"identity"} != _FIELDS for entry in entries):
            raise ValueError(name)
        return SiteRecord(
            name,
            [convert({**entry, "name": name}, ApprovedSite) for entry in entries],
            None if token is None else convert(token, StoredToken),
        )
    except (AttributeError, TypeError, ValueError, ValidationError):
        raise StudyError(
            f"{path}: damaged; it lists who may connect. Restore it from a backup, or delete it and invite "
            f"{name} again with a new key"
        ) from None


def all_records(folder: Path) -> list[SiteRecord]:
    """Return the records of all sites. A damaged file is an error, because it may contain a revocation."""
    names = sorted(path.stem for path in (folder / "sites").glob("*.json") if not path.name.startswith("."))
    return [record_of(folder, name) for name in names]


def approvals_of(folder: Path, name: str) -> list[ApprovedSite]:
    """Return all certificates of a site, oldest first."""
    return record_of(folder, name).certificates


def all_approvals(folder: Path) -> list[ApprovedSite]:
    """Return all certificates of all sites."""
    return [approval for record in all_records(folder) for approval in record.certificates]


def write_record(folder: Path, record: SiteRecord) -> None:
    """Replace the record of one site in one durable write."""
    entries = [asdict(approval) for approval in record.certificates]
    for entry in entries:
        del entry["name"]
        if entry["identity"] is None:
            del entry["identity"]
    token: dict[str, Any] | None = None if record.token is None else asdict(record.token)
    table = {"format": FORMAT, "name": record.name, "certificates": entries, "token": token}
    text = json.dumps(table, indent=2, default=datetime.isoformat)
    write_private(folder / "sites" / f"{record.name}.json", f"{text}\n".encode())
