"""``sites/NAME.json``: which certificates an aggregator gave to a site, and which of them it took back."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from dpadmm.errors import StudyError
from dpadmm.federation.names import check_name, user_of
from dpadmm.federation.private_files import read_fields, write_private

FORMAT = "dpadmm-approvals/1"
_SERIAL, _FINGERPRINT = re.compile("[0-9a-f]{16,40}"), re.compile("([0-9A-F]{2}:){31}[0-9A-F]{2}")


@dataclass(frozen=True, kw_only=True)
class ApprovedSite:
    """One certificate of a site.

    ``fingerprint`` is that of its key: what people compared when they approved it. A renewal has the same.
    """

    name: str
    serial: str
    fingerprint: str
    expires: datetime
    approved_at: datetime
    revoked_at: datetime | None = None

    @property
    def user(self) -> str:
        """Its user at the broker."""
        return user_of(self.name, self.serial)

    @property
    def revoked(self) -> bool:
        """Was it taken back?"""
        return self.revoked_at is not None

    def usable(self, now: datetime) -> bool:
        """May its holder connect at this moment?"""
        return not self.revoked and now < self.expires


def approvals_of(folder: Path, name: str) -> list[ApprovedSite]:
    """All certificates that a site was given, oldest first."""
    path = folder / "sites" / f"{check_name(name)}.json"
    return _read(path, name) if path.exists() else []


def all_approvals(folder: Path) -> list[ApprovedSite]:
    """All certificates of all sites; a damaged file is an error, since a revocation could be in it."""
    names = sorted(path.stem for path in (folder / "sites").glob("*.json") if not path.name.startswith("."))
    return [each for name in names for each in approvals_of(folder, name)]


def write_approvals(folder: Path, approvals: list[ApprovedSite]) -> None:
    """Replace a site's file."""
    lines = [
        {key: _told(value) for key, value in asdict(each).items() if key != "name"} for each in approvals
    ]
    table = {"format": FORMAT, "name": approvals[0].name, "certificates": lines}
    path = folder / "sites" / f"{approvals[0].name}.json"
    write_private(path, (json.dumps(table, indent=2) + "\n").encode())


def taken_back(approvals: list[ApprovedSite], now: datetime) -> list[ApprovedSite]:
    """The same, with every certificate revoked that was not yet."""
    return [each if each.revoked else replace(each, revoked_at=now) for each in approvals]


def kept(approvals: list[ApprovedSite], now: datetime) -> list[ApprovedSite]:
    """Without certificates that ended unrevoked, so that files stay short over years of renewals."""
    return [each for each in approvals if each.revoked or now < each.expires]


def _told(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


def _read(path: Path, name: str) -> list[ApprovedSite]:
    table = read_fields(path, format=FORMAT, what="a list of certificates", fields=("name", "certificates"))
    try:
        lines = table["certificates"]
        if table["name"] != name or not isinstance(lines, list) or not lines:
            raise ValueError(name)
        return [_approval(name, dict(line)) for line in lines]
    except (TypeError, ValueError, KeyError, OverflowError):  # the last one for years 0 and 10000
        raise StudyError(
            f"{path}: is damaged, and says who may connect: put it back from a copy, or delete it and "
            f"approve {name} again with a new key"
        ) from None


def _approval(name: str, line: dict[str, object]) -> ApprovedSite:
    serial, fingerprint, revoked = str(line["serial"]), str(line["fingerprint"]), line["revoked_at"]
    if not _SERIAL.fullmatch(serial) or not _FINGERPRINT.fullmatch(fingerprint) or len(line) != 5:
        raise ValueError(serial)
    return ApprovedSite(
        name=name,
        serial=serial,
        fingerprint=fingerprint,
        expires=_moment(line["expires"]),
        approved_at=_moment(line["approved_at"]),
        revoked_at=None if revoked is None else _moment(revoked),
    )


def _moment(text: object) -> datetime:
    moment = datetime.fromisoformat(str(text))
    if moment.tzinfo is None:
        raise ValueError(text)
    return moment.astimezone(UTC)
