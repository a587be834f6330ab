"""``dpadmm version`` and ``dpadmm doctor``: what is installed, and whether this machine is ready for it. No network."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

import typer
from typer import Option

import dpadmm
from dpadmm.cli.console import AsJson, echo, echo_json, echo_path
from dpadmm.errors import DPADMMError

SITE_LEAVES_OUT = ("numba", "matplotlib", "jinja2")
"""Packages without which a site works: docs/decisions/0002-dependencies.md."""

FOR_DEVELOPERS = ("dev", "docs")
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
CLOCK_TOLERANCE = timedelta(minutes=1)


class Finding(NamedTuple):
    """The result of one check; ``cure`` says what to do about a warning or a problem."""

    check: str
    level: Literal["ok", "warning", "problem"]
    text: str
    cure: str = ""


class Requirement(NamedTuple):
    """A package that dpadmm or one of its extras requires."""

    package: str
    least: str
    """The oldest version that will do."""
    extra: str | None
    found: str | None
    """The installed version, or None."""

    @property
    def too_old(self) -> bool:
        return self.found is not None and _numbers(self.found) < _numbers(self.least)


def version(
    verbose: bool = Option(False, "--verbose", "-v", help="Also Python, system, packages and extras: for bug reports."),
    as_json: AsJson = False,
) -> None:
    """Show the version; with --verbose, also the environment.

    The long form names no person, machine or folder, so that it can be published.
    """
    about = {"dpadmm": dpadmm.__version__, **(installation() if verbose else {})}
    if as_json:
        return echo_json(about)
    if not verbose:
        return typer.echo(dpadmm.__version__)
    for name, value in about.items():
        listed = [f"  {key} {each}" for key, each in value.items()] if isinstance(value, dict) else []
        echo(f"{name}:" if listed else f"{name}: {value}", *listed)
    return None


def doctor(
    site_file: Path | None = Option(None, "--site", metavar="SITE", help="Also check a site: its site.toml."),
    ledger: Path | None = Option(None, "--ledger", metavar="FOLDER", help="Also check a ledger."),
    as_json: AsJson = False,
) -> None:
    """Check this installation and suggest fixes for problems.

    Checks packages, compiler cache, clock and disk; with --site also limits, table, ledger and certificate. Nothing is
    changed, and the network is not used. Exit code 1: there is a problem (warnings do not count).
    """
    found = [*_packages(), _compiler_cache(), *_clock(), *_disk(Path.cwd()), *_disk(Path(tempfile.gettempdir()))]
    if site_file is not None:
        found += _site(site_file)
    if ledger is not None:
        found += _ledger(ledger)
    found = list(dict.fromkeys(found))
    problems = sum(each.level == "problem" for each in found)
    if as_json:
        echo_json({"problems": problems, "findings": [each._asdict() for each in found]})
    else:
        for each in found:
            echo_path(f"{each.level:<9}{each.check}: {each.text}{f'. {each.cure}' if each.cure else ''}")
    if problems:
        raise typer.Exit(1)


def installation() -> dict[str, Any]:
    """What a bug report should say, without names of persons, machines and folders."""
    wanted = requirements()
    extras = dict.fromkeys(each.extra for each in wanted if each.extra is not None)
    return {
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": {name: os.environ[name] for name in THREADS if os.environ.get(name)} or "not limited",
        "blas": _blas(),
        "packages": {each.package: each.found or "missing" for each in wanted if each.extra is None},
        "extras": {str(extra): _presence([each for each in wanted if each.extra == extra]) for extra in extras},
    }


def requirements() -> list[Requirement]:
    """What the metadata of the installed dpadmm requires; empty if it runs from a folder of sources."""
    try:
        lines = metadata.requires("dpadmm") or []
    except metadata.PackageNotFoundError:
        return []
    pattern = re.compile(r"""([A-Za-z0-9._-]+)\s*(?:[>=]=\s*([0-9.]+))?[^;]*(?:;\s*extra\s*==\s*["'](\w+)["'])?""")
    parts = [match.groups() for line in lines if (match := pattern.fullmatch(line))]
    return [
        Requirement(package.lower(), least or "0", extra, _installed(package))
        for package, least, extra in parts
        if extra not in FOR_DEVELOPERS
    ]


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The release numbers of a version: ``(2, 0)`` of ``2.0.0rc1``; zeros at the end do not count.

    Examples
    --------
    >>> _numbers("2.10.0rc1") == _numbers("2.10") > _numbers("2.9.1")
    True
    """
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, re.sub(r"(\.0+)+$", "", found[0]).split("."))) if found else ()


def _presence(wanted: list[Requirement]) -> str:
    missing = [each.package for each in wanted if each.found is None]
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
    missing = [each.package for each in own if each.found is None]
    old = [f"{each.package} {each.found} (needs {each.least})" for each in wanted if each.too_old]
    if old:
        yield Finding("packages", "problem", f"too old: {', '.join(old)}", "Upgrade: pip install --upgrade dpadmm")
    if needed := [name for name in missing if name not in SITE_LEAVES_OUT]:
        yield Finding("packages", "problem", f"missing: {', '.join(needed)}", "Install dpadmm again with pip")
    elif missing:
        cure = "A site needs no more; for training, figures and reports: pip install dpadmm"
        yield Finding("packages", "warning", f"without {', '.join(missing)}", cure)
    elif not old:
        yield Finding("packages", "ok", f"all {len(own)} that are required, in versions that work")
    extras = {extra: _presence([each for each in wanted if each.extra == extra]) for _, _, extra, _ in wanted if extra}
    text = ", ".join(f"{extra} {state}" for extra, state in extras.items())
    yield Finding("extras", "ok", text or "unknown, since dpadmm runs from a folder of sources")


def _compiler_cache() -> Finding:
    """Compiled loops are kept beside the package or in NUMBA_CACHE_DIR; the compiler itself is not loaded."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(chosen) if chosen else Path(dpadmm.__file__).parent / "optim" / "kernels" / "__pycache__"
    where = "NUMBA_CACHE_DIR" if chosen else "the folder of the package"
    if _installed("numba") is None:
        return Finding("compiler", "ok", "not installed: NumPy sums the rows")
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        cure = "Set NUMBA_CACHE_DIR to a folder that you may write to"
        return Finding("compiler", "warning", f"compiled code cannot be kept in {where}", cure)
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    kept = sum(1 for _ in folder.rglob(f"*.{python}*.nbi"))
    state = f"{kept} compiled functions are kept" if kept else "nothing is compiled yet: the first run takes longer"
    return Finding("compiler", "ok", f"{where} is writable, and {state}")


def _clock(now: datetime | None = None) -> Iterator[Finding]:
    """Against the time at which this version was installed: no clock is ever right before that."""
    now = now or datetime.now(UTC)
    installed = datetime.fromtimestamp(Path(dpadmm.version.__file__).stat().st_mtime, UTC)
    if now + CLOCK_TOLERANCE < installed:
        text = f"it shows {_minute(now)}, and this version was installed at {_minute(installed)}"
        yield Finding("clock", "problem", text, "Set it: certificates and ledgers are dated by it")
    else:
        yield Finding("clock", "ok", f"{_minute(now)}; not compared with any other clock")


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
        yield Finding("site", "problem", _words(error), "dpadmm site join --request NAME writes a site.toml to fill in")
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
        yield Finding(
            "ledger", "warning", "not begun", f"dpadmm site join --request NAME --site {file} creates it, once"
        )
    yield from _disk(file.resolve().parent)
    yield from _certificate(file.parent)


def _ledger(folder: Path) -> Iterator[Finding]:
    from dpadmm.trusted.ledger import read_ledger

    try:
        state = read_ledger(folder)
    except (DPADMMError, OSError) as error:
        yield Finding(
            "ledger", "problem", _words(error), "docs/how-to/operations.md says what to do with a damaged ledger"
        )
        return
    yield Finding("ledger", "ok", f"intact: {state.seq} records, {len(state.accounts)} studies")
    last, now = datetime.fromisoformat(state.records[-1].at) if state.records else None, datetime.now(UTC)
    if last is not None and last > now + CLOCK_TOLERANCE:
        text = f"the last record of the ledger is of {_minute(last)}, and this clock shows {_minute(now)}"
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
        cure = "Ask the coordinator for a new invitation: dpadmm site join --invitation FILE"
        if days >= 0:  # one that is not valid yet tells of a wrong clock
            identity.check_dates()
    except (DPADMMError, OSError) as error:
        yield Finding("certificate", "problem", _words(error), "Check the clock, then join again")
        return
    if days < CERTIFICATE_DAYS:
        text = f"expires in {days} days" if days >= 0 else f"expired {-days} days ago"
        yield Finding("certificate", "warning" if days >= 0 else "problem", text, cure)
    else:
        yield Finding("certificate", "ok", f"valid for {days} more days")


def _words(error: DPADMMError | OSError) -> str:
    from dpadmm.cli import format_error

    return format_error(error)


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
