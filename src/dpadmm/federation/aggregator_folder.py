"""An aggregator's folder: ``aggregator.toml``, and how a new folder comes to be, whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from dpadmm.errors import StudyError
from dpadmm.federation.private_files import check_unchanged_by_others, make_private_folder, write_private
from dpadmm.toml_file import read_toml

FORMAT = "dpadmm-aggregator/1"
LOOPBACK = "127.0.0.1"
_LABEL = re.compile("(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
_TEXT = """\
# An aggregator of dpadmm. Beside this file are its keys: keep the whole folder to yourself.
format = "{format}"

# The address that the broker listens at on this machine: 0.0.0.0 is all of its addresses.
listen = "{listen}"
port = {port}

# The names and addresses that sites know this machine by; invitations have the first. After a change here,
# the broker's certificate is made anew when the broker starts, and sites with another first name need
# a new invitation (dpadmm aggregator approve).
hosts = [{hosts}]
"""


@dataclass(frozen=True)
class Settings:
    """What ``aggregator.toml`` says."""

    listen: str
    port: int
    hosts: tuple[str, ...]

    @property
    def url(self) -> str:
        """Where sites connect to."""
        return url_of(self.hosts[0], self.port)

    @property
    def own_host(self) -> str:
        """Where this machine itself connects to."""
        address = ip_address(self.listen)
        if address.is_unspecified:
            return LOOPBACK if address.version == 4 else "::1"
        return self.listen

    @property
    def certified(self) -> list[str]:
        """All that the broker's certificate is for."""
        return list(dict.fromkeys([*self.hosts, self.own_host]))


def url_of(host: str, port: int) -> str:
    """``tls://host:port``.

    Examples
    --------
    >>> url_of("2001:db8::1", 4222)
    'tls://[2001:db8::1]:4222'
    """
    return f"tls://[{host}]:{port}" if ":" in host else f"tls://{host}:{port}"


def settings_of(hosts: Sequence[str], port: int, listen: str | None = None) -> Settings:
    """Settings that hold; without ``listen``, loopback where no host is another machine, else everywhere."""
    if isinstance(hosts, str) or not hosts:
        raise StudyError("hosts: give at least one name or address that sites know this machine by")
    checked = tuple(_host(host) for host in hosts)
    if listen is None:
        listen = LOOPBACK if all(host in ("localhost", LOOPBACK) for host in checked) else "0.0.0.0"
    try:
        if not isinstance(listen, str) or "%" in listen:  # 5 would be 0.0.0.5
            raise ValueError(listen)
        listen = str(ip_address(listen))
    except ValueError:
        raise StudyError(
            f"listen: {str(listen)[:60]!r} is no address of this machine, such as 0.0.0.0"
        ) from None
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise StudyError(f"port: {str(port)[:20]!r} is not one of 1 to 65535")
    return Settings(listen, port, checked)


def _host(host: object) -> str:
    text = str(host)
    try:
        if "%" not in text:  # an interface of this machine means nothing to sites
            return str(ip_address(text))
    except ValueError:
        pass
    labels = text.split(".")
    if (
        not isinstance(host, str)
        or len(text) > 253
        or not all(map(_LABEL.fullmatch, labels))
        or labels[-1].isdigit()
    ):
        raise StudyError(
            f"hosts: {text[:60]!r} is no name or address of a machine, such as study.example.org or 192.0.2.7"
        )
    return text.lower()


def read_settings(folder: Path) -> Settings:
    """The settings of a folder that ``dpadmm aggregator init`` made."""
    path = folder / "aggregator.toml"
    if not path.exists():
        raise StudyError(
            f"{folder}: is no aggregator's folder; is --folder right? (dpadmm aggregator init makes a new "
            "one, with other certificates)"
        )
    check_unchanged_by_others(folder)
    check_unchanged_by_others(path)
    table = read_toml(path)
    if table.get("format") != FORMAT:
        raise StudyError(f'{path}: format should be "{FORMAT}", which this version of dpadmm reads')
    if table.keys() != {"format", "listen", "port", "hosts"} or not isinstance(table["hosts"], list):
        raise StudyError(f"{path}: should have format, listen, port and a list of hosts, and nothing else")
    try:
        return settings_of(table["hosts"], table["port"], table["listen"])
    except StudyError as error:
        raise StudyError(f"{path}: {error}") from None


def begin_folder(folder: Path, settings: Settings, files: Mapping[str, bytes]) -> None:
    """Write a new folder; ``aggregator.toml`` comes last, so that a folder that has it is whole."""
    if (folder / "aggregator.toml").exists():
        raise StudyError(
            f"{folder}: there is an aggregator already, and a new authority would lock all its sites out: "
            "choose another folder"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StudyError(f"{folder}: is not empty: choose a new folder, or an empty one")
    new = not folder.exists()
    make_private_folder(folder)
    try:
        os.chmod(folder, 0o700)
        for name in ("authority", "sites", "studies"):
            make_private_folder(folder / name)
        for name, data in files.items():
            write_private(folder / name, data)
        hosts = ", ".join(f'"{host}"' for host in settings.hosts)
        text = _TEXT.format(format=FORMAT, listen=settings.listen, port=settings.port, hosts=hosts)
        write_private(folder / "aggregator.toml", text.encode())
    except BaseException:
        for entry in list(folder.iterdir()):
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        if new:
            folder.rmdir()
        raise
