"""``dpadmm version`` and ``dpadmm doctor``: versions, and checks of this machine without network access."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

import typer
from typer import Option

import dpadmm
from dpadmm.cli.console import AsJson, echo_json, show
from dpadmm.errors import DPADMMError
from dpadmm.rendering import Cell, Column, Fact, Facts, Paragraph, Rendering, Style, Table
from dpadmm.rendering.formats import plural

OPTIONAL_FOR_SITES = ("numba", "matplotlib", "jinja2")
"""Packages that a site does not need: docs/decisions/0002-dependencies.md."""

STYLE_OF_LEVEL: dict[str, Style] = {"ok": "", "warning": "warning", "problem": "bad"}

DEVELOPER_EXTRAS = ("dev", "docs")
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
CLOCK_TOLERANCE = timedelta(minutes=1)


class Finding(NamedTuple):
    """Result of one check, with a fix for a warning or problem."""

    check: str
    level: Literal["ok", "warning", "problem"]
    text: str
    fix: str = ""


class Requirement(NamedTuple):
    """A package that dpadmm or one of its extras requires."""

    package: str
    min_version: str
    """Oldest supported version."""
    extra: str | None
    installed: str | None
    """Installed version, or None."""

    @property
    def too_old(self) -> bool:
        return self.installed is not None and _numbers(self.installed) < _numbers(self.min_version)


def version(
    verbose: bool = Option(False, "--verbose", "-v", help="Also Python, system, packages and extras: for bug reports."),
    as_json: AsJson = False,
) -> None:
    """Show the version; with --verbose, also the environment.

    The long form contains no personal or host information; safe to paste in
    an issue.
    """
    if not verbose and not as_json:
        return typer.echo(dpadmm.__version__)
    values = {"dpadmm": dpadmm.__version__, **(installation() if verbose else {})}
    if as_json:
        return echo_json(values)
    groups = {name: group for name, group in values.items() if isinstance(group, dict)}
    single = [Fact("", name, value) for name, value in values.items() if name not in groups]
    listed = [Facts([Fact("", key, text) for key, text in group.items()], title=name) for name, group in groups.items()]
    return show(Rendering(body=[Facts(single), *listed]))


def doctor(
    site_file: Path | None = Option(None, "--site", metavar="SITE", help="Also check a site: its site.toml."),
    ledger: Path | None = Option(None, "--ledger", metavar="FOLDER", help="Also check a ledger."),
    as_json: AsJson = False,
) -> None:
    """Check this installation and suggest fixes for problems.

    Checks packages, compiler cache, clock and disk; with --site also limits,
    table, ledger and certificate. Nothing is changed, and the network is not
    used. The exit code is 1 if there is a problem.
    """
    findings = [*_packages(), _compiler_cache(), *_clock(), *_disk(Path.cwd()), *_disk(Path(tempfile.gettempdir()))]
    if site_file is not None:
        findings += _site(site_file)
    if ledger is not None:
        findings += _ledger(ledger)
    diagnosis = diagnose(list(dict.fromkeys(findings)))
    show(diagnosis, as_json=as_json)
    if diagnosis.data["problems"]:
        raise typer.Exit(1)


def diagnose(findings: Sequence[Finding]) -> Rendering:
    """Return all findings, and the number of problems."""
    columns = [Column("level", ""), Column("check", ""), Column("text"), Column("fix"), Column("", "")]
    rows = [
        (
            Cell(each.level, style=STYLE_OF_LEVEL[each.level]),
            each.check,
            each.text,
            each.fix,
            f"{each.text}{f'. {each.fix}' if each.fix else ''}",
        )
        for each in findings
    ]
    problems = sum(each.level == "problem" for each in findings)
    verdict = Paragraph(f"{plural(problems, 'problem')} found.", "bad" if problems else "good")
    return Rendering(body=[Table(columns, rows, key="findings")], verdict=verdict, data={"problems": problems})


def installation() -> dict[str, Any]:
    """Return the environment for a bug report, without names of persons, machines or folders."""
    wanted = requirements()
    extras = dict.fromkeys(each.extra for each in wanted if each.extra is not None)
    return {
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processors": len(os.sched_getaffinity(0)),
        "threads": {name: os.environ[name] for name in THREADS if os.environ.get(name)} or "not limited",
        "blas": _blas(),
        "packages": {each.package: each.installed or "missing" for each in wanted if each.extra is None},
        "extras": {str(extra): _presence([each for each in wanted if each.extra == extra]) for extra in extras},
    }


def requirements() -> list[Requirement]:
    """Return the requirements of the installed dpadmm; empty if it runs from a source folder."""
    try:
        lines = metadata.requires("dpadmm") or []
    except metadata.PackageNotFoundError:
        return []
    pattern = re.compile(r"""([A-Za-z0-9._-]+)\s*(?:[>=]=\s*([0-9.]+))?[^;]*(?:;\s*extra\s*==\s*["'](\w+)["'])?""")
    parts = [match.groups() for line in lines if (match := pattern.fullmatch(line))]
    return [
        Requirement(package.lower(), minimum or "0", extra, _installed(package))
        for package, minimum, extra in parts
        if extra not in DEVELOPER_EXTRAS
    ]


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """Return the release numbers of a version, without zeros at the end: ``(2,)`` for ``2.0.0rc1``.

    Examples
    --------
    >>> _numbers("2.10.0rc1") == _numbers("2.10") > _numbers("2.9.1")
    True
    """
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, re.sub(r"(\.0+)+$", "", match[0]).split("."))) if match else ()


def _presence(wanted: list[Requirement]) -> str:
    missing = [each.package for each in wanted if each.installed is None]
    if not missing:
        return "installed"
    return "missing" if len(missing) == len(wanted) else f"without {' and '.join(missing)}"


def _blas() -> str:
    import numpy as np

    found: Any = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    return " ".join(str(found[name]) for name in ("name", "version") if found.get(name)) or "unknown"


def _packages() -> Iterator[Finding]:
    running = f"dpadmm {dpadmm.__version__}, Python {platform.python_version()}, {platform.system()}"
    yield Finding("version", "ok", running)
    wanted = requirements()
    own = [each for each in wanted if each.extra is None]
    missing = [each.package for each in own if each.installed is None]
    old = [f"{each.package} {each.installed} (needs {each.min_version})" for each in wanted if each.too_old]
    if old:
        yield Finding("packages", "problem", f"too old: {', '.join(old)}", "Upgrade: pip install --upgrade dpadmm")
    if needed := [name for name in missing if name not in OPTIONAL_FOR_SITES]:
        yield Finding("packages", "problem", f"missing: {', '.join(needed)}", "Install dpadmm again with pip")
    elif missing:
        fix = "A site needs no more; for training and figures: pip install dpadmm"
        yield Finding("packages", "warning", f"without {', '.join(missing)}", fix)
    elif not old:
        yield Finding("packages", "ok", f"all {len(own)} required packages are installed")
    extras = {extra: _presence([each for each in wanted if each.extra == extra]) for _, _, extra, _ in wanted if extra}
    text = ", ".join(f"{extra} {state}" for extra, state in extras.items())
    yield Finding("extras", "ok", text or "unknown, because dpadmm runs from a source folder")


def _compiler_cache() -> Finding:
    """Check the folder of compiled kernels: that of the package, or NUMBA_CACHE_DIR. Does not load the compiler."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(chosen) if chosen else Path(dpadmm.__file__).parent / "kernels" / "__pycache__"
    where = "NUMBA_CACHE_DIR" if chosen else "the folder of the package"
    if _installed("numba") is None:
        return Finding("compiler", "ok", "not installed; NumPy is used instead")
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        fix = "Set NUMBA_CACHE_DIR to a writable folder"
        return Finding("compiler", "warning", f"compiled code cannot be stored in {where}", fix)
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    n_cached = sum(1 for _ in folder.rglob(f"*.{python}*.nbi"))
    state = f"has {plural(n_cached, 'compiled function')}" if n_cached else "is empty: the first run takes longer"
    return Finding("compiler", "ok", f"{where} is writable and {state}")


def _clock(now: datetime | None = None) -> Iterator[Finding]:
    """Check the clock against the time at which this version was installed."""
    now = now or datetime.now(UTC)
    installed = datetime.fromtimestamp(Path(dpadmm.version.__file__).stat().st_mtime, UTC)
    if now + CLOCK_TOLERANCE < installed:
        text = f"it shows {_minute(now)}, and this version was installed at {_minute(installed)}"
        yield Finding("clock", "problem", text, "Set the clock: certificates and ledgers depend on it")
    else:
        yield Finding("clock", "ok", f"{_minute(now)}; not compared with another clock")


def _disk(folder: Path) -> Iterator[Finding]:
    from dpadmm.federation.health import FULL_DISK, SMALL_DISK

    free = shutil.disk_usage(folder).free
    level: Literal["ok", "warning", "problem"] = "ok"
    if free < SMALL_DISK:
        level = "problem" if free < FULL_DISK else "warning"
    yield Finding("disk", level, f"{free / 2**30:,.1f} GB are free", "" if level == "ok" else f"Make room for {folder}")


def _site(file: Path) -> Iterator[Finding]:
    from dpadmm.sites.site import read_site

    try:
        site = read_site(file)
    except (DPADMMError, OSError) as error:
        yield Finding("site", "problem", _words(error), "dpadmm site join TOKEN creates a site")
        return
    yield Finding("site", "ok", f"{file} can be read")
    for warning in site.warnings():
        yield Finding("site", "warning", warning)
    if site.scheduler is None and not site.table.exists():
        yield Finding("table", "problem", f"there is no {site.table}", f"Correct data.table in {file}")
    else:
        yield Finding("table", "ok", "there (dpadmm site check reads it)")
    if site.ledger.exists():
        yield from _ledger(site.ledger)
    else:
        yield Finding("ledger", "warning", "not created", f"dpadmm site join TOKEN --site {file} creates it")
    yield from _disk(file.resolve().parent)
    yield from _certificate(file.parent)


def _ledger(folder: Path) -> Iterator[Finding]:
    from dpadmm.trusted.ledger import read_ledger

    try:
        state = read_ledger(folder)
    except (DPADMMError, OSError) as error:
        yield Finding("ledger", "problem", _words(error), "See docs/how-to/operations.md on damaged ledgers")
        return
    yield Finding("ledger", "ok", f"intact: {state.seq} records, {len(state.accounts)} studies")
    last, now = datetime.fromisoformat(state.records[-1].at) if state.records else None, datetime.now(UTC)
    if last is not None and last > now + CLOCK_TOLERANCE:
        text = f"the last record of the ledger is dated {_minute(last)}, but the clock shows {_minute(now)}"
        yield Finding("clock", "problem", text, "Set the clock before the agent runs again")


def _certificate(folder: Path) -> Iterator[Finding]:
    if not (folder / "network" / "invitation.json").exists():
        yield Finding("certificate", "ok", "none: this site has not joined a server")
        return
    try:
        from dpadmm.federation.health import CERTIFICATE_DAYS, days_left
        from dpadmm.federation.identity.joining import site_identity

        identity = site_identity(folder)
        days = days_left(identity.expires)
        fix = "Ask the study coordinators for a join token: dpadmm site join TOKEN"
        if days >= 0:  # a certificate that is not valid yet indicates a wrong clock
            identity.check_dates()
    except (DPADMMError, OSError) as error:
        yield Finding("certificate", "problem", _words(error), "Check the clock, then join again")
        return
    if days < CERTIFICATE_DAYS:
        text = f"expires in {days} days" if days >= 0 else f"expired {-days} days ago"
        yield Finding("certificate", "warning" if days >= 0 else "problem", text, fix)
    else:
        yield Finding("certificate", "ok", f"valid for {days} more days")


def _words(error: DPADMMError | OSError) -> str:
    from dpadmm.cli import format_error

    return format_error(error)


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
