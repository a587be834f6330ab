"""The server's folder and its settings, ``server.toml``."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

from dpadmm.errors import StudyError
from dpadmm.federation.identity import private_files
from dpadmm.files.toml import read_toml
from dpadmm.sites.addresses import check_urls
from dpadmm.sites.notify_settings import NotifySettings, notify_settings

FILE, FORMAT = "server.toml", "dpadmm-server/1"
LOOPBACK = "127.0.0.1"
_LABEL = re.compile("(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
_TEXT = """\
# Settings of a dpadmm server. This folder contains private keys: keep it secret.
format = "{format}"

# Address on which the broker listens. 0.0.0.0 means all addresses of this machine.
listen = "{listen}"
port = {port}

# Port of the web application (HTTPS): joining, status page, health and metrics.
web_port = {web_port}

# Host names and addresses of this machine, as seen by sites. Invitations contain the first one. After a change,
# the broker gets a new certificate when it starts. If the first one changed, sites need a new invitation
# (dpadmm server invite).
hosts = [{hosts}]

# Port for WebSocket connections, for sites whose firewalls allow only outgoing HTTPS.
{websocket}

# Addresses of an existing NATS cluster, in place of the built-in broker. Sites and the server use the next address
# when one fails. See docs/how-to/networks-and-services.md for the cluster's configuration.
{brokers}

# Issuer of certificates: "built-in" (with authority/ca.key) or "external" (your own CA, with the certificate
# authority/ca.pem).
authority = "{authority}"

# Program that receives events (studies and alarms) as JSON on its standard input: docs/how-to/notifications.md
# [notify]
# command = ["/usr/local/bin/notify"]
"""
_NO_WEBSOCKET, _NO_BROKERS = "# websocket_port = 443", '# brokers = ["tls://nats-1.example.org:4222"]'


@dataclass(frozen=True)
class ServerSettings:
    """The contents of ``server.toml``."""

    listen: str
    port: int
    web_port: int
    """Port of the web application: joining, status page, health and metrics."""
    hosts: tuple[str, ...]
    websocket_port: int | None = None
    brokers: tuple[str, ...] = ()
    external: bool = False
    """Whether certificates come from an organisation's own CA."""
    notify: NotifySettings | None = None

    @property
    def urls(self) -> str:
        """The addresses to which sites connect, separated by commas."""
        own = [url_of(self.hosts[0], self.port)]
        if self.websocket_port is not None:
            own.append(url_of(self.hosts[0], self.websocket_port, "wss"))
        return ",".join(self.brokers or own)

    @property
    def web_url(self) -> str:
        """The address of the web application, as seen by sites."""
        return url_of(self.hosts[0], self.web_port, "https")

    @property
    def own_host(self) -> str:
        """The host to which the server itself connects. An external CA certifies host names, not 127.0.0.1."""
        if self.external:
            return self.hosts[0]
        address = ip_address(self.listen)
        if address.is_unspecified:
            return LOOPBACK if address.version == 4 else "::1"
        return self.listen


def url_of(host: str, port: int, scheme: str = "tls") -> str:
    """Return ``tls://host:port``, or ``tls://[2001:db8::1]:4222``."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def settings_of(
    hosts: Sequence[str], port: int, listen: str | None = None, *, websocket_port: int | None = None,
    brokers: Sequence[str] = (), authority: str = "built-in", web_port: int | None = None,
) -> ServerSettings:  # fmt: skip
    """Return checked settings.

    ``listen`` defaults to loopback if all hosts are local, else to all addresses, and ``web_port`` to the next port.
    """
    if isinstance(hosts, str) or not hosts:
        raise StudyError("hosts: give at least one host name or address under which sites reach this machine")
    checked = tuple(_host(host) for host in hosts)
    if listen is None:
        listen = LOOPBACK if all(host in ("localhost", LOOPBACK) for host in checked) else "0.0.0.0"
    try:
        if not isinstance(listen, str) or "%" in listen:  # 5 would be 0.0.0.5
            raise ValueError(listen)
        listen = str(ip_address(listen))
    except ValueError:
        raise StudyError(f"listen: {str(listen)[:60]!r} is not an IP address, such as 0.0.0.0") from None
    for key, number in (("port", port), ("web_port", web_port), ("websocket_port", websocket_port)):
        if number is None and key != "port":
            continue
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 65535:
            raise StudyError(f"{key}: {str(number)[:20]!r} is not a port number from 1 to 65535")
    if websocket_port == port:
        raise StudyError("websocket_port: must differ from port")
    if web_port is None:
        web_port = next(each for each in (port + 1, port + 2, port - 1) if each not in (websocket_port, 65536, 65537))
    if web_port in (port, websocket_port):
        raise StudyError("web_port: must differ from port and websocket_port")
    if authority not in ("built-in", "external"):
        raise StudyError(f'authority: must be "built-in" or "external", not {str(authority)[:40]!r}')
    if isinstance(brokers, str) or not all(isinstance(url, str) and "," not in url for url in brokers):
        raise StudyError('brokers: must be a list of addresses, such as ["tls://host:port"]')
    if brokers:
        check_urls(",".join(brokers))
    return ServerSettings(listen, port, web_port, checked, websocket_port, tuple(brokers), authority == "external")


def _host(host: object) -> str:
    text = str(host)
    try:
        if "%" not in text:  # the zone of a local interface is not valid at other machines
            return str(ip_address(text))
    except ValueError:
        pass
    labels = text.split(".")
    is_name = isinstance(host, str) and len(text) <= 253 and all(map(_LABEL.fullmatch, labels))
    if not is_name or labels[-1].isdigit():
        raise StudyError(f"hosts: {text[:60]!r} is not a host name or address, such as study.example.org or 192.0.2.7")
    return text.lower()


def read_settings(folder: Path) -> ServerSettings:
    """Read the settings of a folder that ``dpadmm server init`` created."""
    path = folder / FILE
    if not path.exists():
        raise StudyError(
            f"{folder}: not the folder of a server; check --folder, or create a server with dpadmm server init"
        )
    private_files.check_unchanged_by_others(folder)
    private_files.check_unchanged_by_others(path)
    table = read_toml(path)
    if table.get("format") != FORMAT:
        raise StudyError(f'{path}: format must be "{FORMAT}"')
    optional = {key: table[key] for key in ("web_port", "websocket_port", "brokers", "authority") if key in table}
    required = table.keys() - optional.keys() - {"notify"}
    if required != {"format", "listen", "port", "hosts"} or not isinstance(table["hosts"], list):
        raise StudyError(
            f"{path}: must have format, listen, port and a list of hosts, may have web_port, websocket_port, brokers, "
            "authority and [notify], and nothing else"
        )
    try:
        settings = settings_of(table["hosts"], table["port"], table["listen"], **optional)
    except StudyError as error:
        raise StudyError(f"{path}: {error}") from None
    if "notify" not in table:
        return settings
    if not isinstance(table["notify"], dict):
        raise StudyError(f"{path}: [notify] must be a section with command and, if you like, delay")
    return replace(settings, notify=notify_settings(table["notify"], str(path)))


def create_folder(folder: Path, settings: ServerSettings, files: dict[str, bytes]) -> None:
    """Create a server's folder with these files. ``server.toml`` is written last, so a folder with it is complete."""
    if (folder / FILE).exists():
        raise StudyError(
            f"{folder}: there is a server already, and a new authority would lock out its sites: choose another folder"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StudyError(f"{folder}: not empty; choose a new or an empty folder")
    is_new = not folder.exists()
    private_files.make_private_folder(folder)
    try:
        os.chmod(folder, 0o700)
        for name in ("authority", "sites", "studies"):
            private_files.make_private_folder(folder / name)
        for name, data in (*files.items(), (FILE, _toml(settings).encode())):
            private_files.write_private(folder / name, data)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if not is_new:
            folder.mkdir(mode=0o700, exist_ok=True)
        raise


def _toml(settings: ServerSettings) -> str:
    hosts, brokers = (", ".join(f'"{text}"' for text in texts) for texts in (settings.hosts, settings.brokers))
    return _TEXT.format(
        format=FORMAT,
        listen=settings.listen,
        port=settings.port,
        web_port=settings.web_port,
        hosts=hosts,
        websocket=f"websocket_port = {settings.websocket_port}" if settings.websocket_port else _NO_WEBSOCKET,
        brokers=f"brokers = [{brokers}]" if brokers else _NO_BROKERS,
        authority="external" if settings.external else "built-in",
    )
