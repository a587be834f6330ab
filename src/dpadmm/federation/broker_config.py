"""``broker.conf``: mutual TLS 1.3 only, one user per certificate, and for every user the subjects it may use.

A certificate's e-mail names its user (``verify_and_map``); a user that is not listed cannot connect. Whoever
is listed may use the subjects of its name and nothing else: no inboxes, no requests to the broker itself.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from dpadmm.federation.certificates import Authority
from dpadmm.federation.names import AGGREGATOR, AGGREGATOR_USER, may_hear, may_publish

MAX_PAYLOAD = 8 * 2**20

_TEXT = """\
# Written by dpadmm, and written anew whenever sites are approved or revoked: changes here are lost.
listen: {listen}
pid_file: {pid}
log_file: {log}
logfile_size_limit: 10MB
logfile_max_num: 5

tls {{
  cert_file: {certificate}
  key_file: {key}
  ca_file: {ca}
  verify_and_map: true
  min_version: "1.3"
  handshake_first: true
  timeout: 5
}}

max_payload: {max_payload}
max_connections: 2000
max_subscriptions: 1000
max_control_line: 1KB
write_deadline: "10s"
ping_interval: "10s"
ping_max: 2
no_header_support: true

authorization {{
  timeout: 5
  users: [
{users}
  ]
}}
"""


def broker_config(
    authority: Authority, *, listen: str | None = None, port: int | None = None, now: datetime | None = None
) -> str:
    """The configuration of a folder's broker, with the sites that may connect at this moment."""
    folder, settings = authority.folder, authority.settings
    host = settings.listen if listen is None else listen
    address = f"[{host}]" if ":" in host else host
    users = [(AGGREGATOR_USER, AGGREGATOR), *((each.user, each.name) for each in authority.users(now=now))]
    return _TEXT.format(
        listen=_quoted(f"{address}:{port or settings.port}"),
        pid=_quoted(folder / "broker.pid"),
        log=_quoted(folder / "broker.log"),
        certificate=_quoted(folder / "server.pem"),
        key=_quoted(folder / "server.key"),
        ca=_quoted(folder / "authority" / "ca.pem"),
        max_payload=MAX_PAYLOAD,
        users="\n".join(_user(user, name) for user, name in users),
    )


def _user(user: str, name: str) -> str:
    return (
        f"    {{user: {_quoted(user)}, permissions: "
        f"{{publish: [{_quoted(may_publish(name))}], subscribe: [{_quoted(may_hear(name))}]}}}}"
    )


def _quoted(text: str | Path) -> str:
    return json.dumps(str(text), ensure_ascii=False)
