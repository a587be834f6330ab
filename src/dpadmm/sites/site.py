"""A site: an owner's table, limits and ledger, configured in ``site.toml``.

A study only selects columns and names classes. It cannot change limits, the number of rows per person, or the ledger.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dpadmm.errors import RefusalError, StudyError
from dpadmm.files.atomic import StrPath, atomic_file, expanded
from dpadmm.files.toml import read_toml
from dpadmm.losses import LOSSES
from dpadmm.methods import CONCRETE_METHODS, KINDS
from dpadmm.parameters.fields import check_names, nearest
from dpadmm.sites.addresses import check_urls
from dpadmm.sites.notify_settings import NotifySettings, notify_settings
from dpadmm.studies.study import Study
from dpadmm.trusted.guard import EnrolledStudy, Guard, PrivateRows
from dpadmm.trusted.ledger import MARK, Ledger, LedgerState, Record
from dpadmm.trusted.policy import MaskingLimits, MaskingTerms, Policy
from dpadmm.trusted.unit import PrivacyUnit

if TYPE_CHECKING:
    from dpadmm.sites.table import SiteRows

FORMAT = "dpadmm-site/2"
SECTIONS = {
    "data": ("table", "label", "scheduler"),
    "person": ("column", "rows"),
    "limits": ("epsilon", "delta", "methods", "losses", "max_rounds", "min_rows"),
    "secure_aggregation": ("allow", "min_honest_sites", "min_withstood", "epsilon_if_others_collude"),
    "server": ("addresses",),
    "notify": ("command", "delay"),
}
MAX_LIMIT = 10**9
"""Maximum of limits in rows or rounds."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """An owner's table and limits; read it with :func:`read_site`."""

    path: Path
    """The ``site.toml``."""
    table: Path
    ledger: Path
    """The folder of the ledger."""
    label: str | None
    """The column with the outcome."""
    scheduler: str | None = None
    """The address of the Dask scheduler whose workers hold the rows; None: this process holds them."""
    addresses: tuple[str, ...] = ()
    """Addresses of brokers. They replace those of the invitation."""
    notify: NotifySettings | None = None
    policy: Policy
    """The limits, and the privacy unit."""

    @cached_property
    def rows(self) -> SiteRows:
        """The table and its encodings. Errors and warnings are for the owner only."""
        arguments = self.path, self.table, self.label, self.policy.unit
        if self.scheduler is not None:
            from dpadmm.sites.cluster import ClusterRows

            return ClusterRows(*arguments, self.scheduler)
        from dpadmm.sites.table import SiteRows  # loads the readers of tables

        return SiteRows(*arguments)

    def open_rows(self, study: Study) -> PrivateRows:
        """Return the rows in the encoding of a study. Errors are for the owner only."""
        return self.rows.opened(study)

    def open_ledger(self, folder: Path | None = None, *, create: bool = False) -> Ledger:
        """Open the ledger, or another one in ``folder``, with the owner's limits."""
        limits = self.policy
        return Ledger.open(
            folder or self.ledger,
            cap=limits.cap,
            collusion_cap=limits.collusion_cap,
            rows_per_person=limits.unit.rows,
            create=create,
        )

    @contextmanager
    def guard(self, *, create: bool = False, rows: PrivateRows | None = None) -> Iterator[Guard]:
        """Open the ledger and guard the rows with it. ``create`` begins a new ledger if there is none.

        ``rows`` are the encoded rows of the study to be enrolled, if the caller has them.
        """
        with self.open_ledger(create=create) as ledger:
            yield Guard(self.policy, ledger, self.open_rows if rows is None else lambda _: rows, self.key_of)

    def begin(self) -> None:
        """Begin the ledger; raise ``RefusalError`` if there is one, because a new one would lose the spent budget."""
        if (self.ledger / MARK).exists() and (self.ledger / MARK).stat().st_size:
            text = "it is not replaced, because a new one would lose the spent budget"
            raise RefusalError("ledger-exists", f"there is a ledger in {self.ledger}; {text}")
        with self.guard(create=True):
            pass

    def dry_run(self, study: Study, state: LedgerState) -> EnrolledStudy:
        """Return the result of ``enrol`` for a ledger in this state, or raise its error, without locks and records."""
        study.check_concrete()
        return Guard(self.policy, _DryRunLedger(state, self.policy), self.open_rows, self.key_of).enrol(study)

    @property
    def keys(self) -> Path:
        """The folder of private keys for secure aggregation, each named by its public key."""
        return self.path.parent / "keys"

    def make_key(self) -> bytes:
        """Make a key for one study with secure aggregation; return its public half, for the study's roster."""
        from dpadmm.trusted.masking import public_key  # needs cryptography

        private = os.urandom(32)
        public = public_key(private)
        self.keys.mkdir(mode=0o700, exist_ok=True)
        with atomic_file(self.keys / public.hex(), mode=0o600, replace=False) as out:
            out.write(private)
        return public

    def key_of(self, masking: MaskingTerms) -> bytes:
        """Return the private key of this site in a roster."""
        paths = [path for _, key in masking.roster if (path := self.keys / key.hex()).exists()]
        if len(paths) != 1:
            problem = "several of its keys are" if paths else "none of its keys is"
            text = f"a study's roster has one key of each site, and {problem} in {self.keys}"
            raise RefusalError("roster-not-mine", text)
        if paths[0].stat().st_mode & 0o077:
            text = f"others may read the secret {paths[0]}, so that its masks hide nothing: chmod 600 {paths[0]}"
            raise RefusalError("roster-not-mine", text)
        return paths[0].read_bytes()

    def warnings(self) -> list[str]:
        """Return warnings: files that others can change or read, and a program for events that cannot be started."""
        return [*self._open_files(), *(self.notify.warnings() if self.notify is not None else [])]

    def _open_files(self) -> list[str]:
        return [
            f"everyone on this machine may write to {path} and thus undo your limits: chmod o-w {path}"
            for path in (self.path, self.ledger)
            if path.exists() and path.stat().st_mode & stat.S_IWOTH
        ] + [
            f"others may read {path}, which is as sensitive as the table: chmod -R go-rwx {path}"
            for path in (self.ledger,)
            if path.exists() and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
        ]


class _DryRunLedger(Ledger):
    """A ledger without files: records are checked, but not written."""

    def __init__(self, state: LedgerState, policy: Policy) -> None:
        super().__init__(Path(), cast(Any, None), cast(Any, None), state)
        state.cap, state.collusion_cap = policy.cap, policy.collusion_cap

    def _append(self, record: Record, payload: bytes = b"") -> None:
        self.status().check(record, payload)


def counted(n: int, one: str, several: str) -> str:
    """Return a count with its noun: ``1 row``, ``2,000 rows``."""
    return f"{n:,} {one if n == 1 else several}"


def read_site(path: StrPath) -> Site:
    """Read a site from its ``site.toml``."""
    file = Path(path)
    return site_from(read_toml(file), file)


def site_from(table: Mapping[str, Any], path: Path) -> Site:
    """Return the site of a parsed TOML file at ``path``. Its paths are relative to that file."""
    check_names(table, ["format", "ledger", *SECTIONS], str(path))
    if table.get("format") != FORMAT:
        raise StudyError(f'{path}: format must be "{FORMAT}", not {table.get("format")!r}')
    here = path.parent
    data, person, limits = (_section(table, name, path) for name in ("data", "person", "limits"))
    entries = _Entries(path)
    label = entries.text("data.label", data["label"]) if "label" in data else None
    column = entries.text("person.column", person["column"]) if "column" in person else None
    if label is not None and label == column:
        raise StudyError(f"{path}: {label!r} cannot be both data.label and person.column")
    epsilon = entries.number("limits.epsilon", limits.get("epsilon"), 1e-6, 100.0)
    return Site(
        path=path,
        table=here / entries.path("data.table", data.get("table")),
        ledger=here / entries.path("ledger", table.get("ledger")),
        label=label,
        scheduler=entries.text("data.scheduler", data["scheduler"]) if "scheduler" in data else None,
        addresses=_addresses(entries, table, path),
        notify=notify_settings(_section(table, "notify", path), str(path)) if "notify" in table else None,
        policy=Policy(
            epsilon=epsilon,
            delta=entries.number("limits.delta", limits.get("delta"), 1e-100, 0.01),
            methods=entries.names("limits.methods", limits.get("methods"), (*CONCRETE_METHODS, *KINDS)),
            losses=entries.names("limits.losses", limits.get("losses"), tuple(LOSSES)),
            max_rounds=entries.whole("limits.max_rounds", limits.get("max_rounds"), 1),
            min_rows=entries.whole("limits.min_rows", limits.get("min_rows"), 2),
            unit=PrivacyUnit(entries.whole("person.rows", person.get("rows"), 1), column),
            masking=_masking(entries, table, path, epsilon),
        ),
    )


def _masking(entries: _Entries, table: Mapping[str, Any], path: Path, epsilon: float) -> MaskingLimits | None:
    """Return the limits of ``[secure_aggregation]``; None if it is missing or not allowed."""
    if (name := "secure_aggregation") not in table:
        return None
    section = _section(table, name, path)
    limits = MaskingLimits(
        entries.number(f"{name}.epsilon_if_others_collude", section.get("epsilon_if_others_collude"), epsilon, 100.0),
        entries.whole(f"{name}.min_honest_sites", section.get("min_honest_sites"), 2),
        entries.whole(f"{name}.min_withstood", section.get("min_withstood"), 1),
    )
    return limits if entries.boolean(f"{name}.allow", section.get("allow")) else None


def _addresses(entries: _Entries, table: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """Return the broker addresses of ``[server]``; none if it is missing."""
    if "server" not in table:
        return ()
    given = entries.texts("server.addresses", _section(table, "server", path).get("addresses"), "tls://host:port")
    try:
        check_urls(",".join(given))
    except StudyError as error:
        raise StudyError(f"{path}: server.addresses: {error}") from None
    return tuple(given)


def _section(table: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    section = table.get(name)
    if not isinstance(section, Mapping):
        problem = "is missing" if section is None else f"must be a section, not {section!r}"
        raise StudyError(f"{path}: [{name}] {problem}; it has {', '.join(SECTIONS[name])}")
    check_names(section, SECTIONS[name], f"{path}, [{name}]")
    return section


class _Entries:
    """Checked values of a ``site.toml``. None has a default; every error names the file and the key."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def text(self, name: str, value: object) -> str:
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise self._wrong(name, "a text of one line", value)
        return value

    def path(self, name: str, value: object) -> Path:
        return expanded(self.text(name, value), f"{self._path}: {name}")

    def number(self, name: str, value: object, minimum: float, maximum: float) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not minimum <= cast(float, value) <= maximum:  # also refuses NaN
            raise self._wrong(name, f"one number between {minimum:g} and {maximum:g}", value)
        return float(cast(float, value))

    def whole(self, name: str, value: object, minimum: int) -> int:
        if type(value) is not int or not minimum <= value <= MAX_LIMIT:
            raise self._wrong(name, f"a whole number between {minimum} and {MAX_LIMIT:,}", value)
        return value

    def boolean(self, name: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def texts(self, name: str, value: object, example: str) -> list[str]:
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, f'a list of texts, such as ["{example}"]', value)
        return value

    def names(self, name: str, value: object, known: Sequence[str]) -> frozenset[str]:
        if not isinstance(value, list) or not value:
            raise self._wrong(name, f"a list with some of {', '.join(known)}", value)
        for item in value:
            if item not in known:
                raise StudyError(f"{self._path}: {name} has the unknown value {item!r}; {nearest(item, known)}")
        return frozenset(value)

    def _wrong(self, name: str, wanted: str, value: object) -> StudyError:
        if value is None:
            return StudyError(f"{self._path}: {name} is missing; give {wanted}{_WHY.get(name, '')}")
        return StudyError(f"{self._path}: {name} must be {wanted}, not {value!r:.60}")


_WHY = {"person.rows": ": the maximum number of rows per person, all of which are charged"}
