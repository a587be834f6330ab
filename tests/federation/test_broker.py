"""The broker process: start, adoption, move, reload, replacement and end, with the real nats-server."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap

import nats
import pytest
from brokers import connected, free_port, joined, new_authority

from dpadmm.errors import DPADMMError
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.joining import Identity, client_context
from dpadmm.federation.protocol import MissingPackagesError
from dpadmm.federation.transport import broker as broker_module
from dpadmm.federation.transport.broker import Broker

STARTER = """
import sys, time
from pathlib import Path
from dpadmm.federation.transport.broker import Broker
from dpadmm.federation.identity.authority import Authority
broker = Broker(Authority.open(Path(sys.argv[1])))
broker.start()
print("started", flush=True)
time.sleep(60)
"""


def test_broker_of_a_killed_server_is_adopted(tmp_path):
    authority = new_authority(tmp_path / "aggregator")
    broker = Broker(authority)
    command = [sys.executable, "-c", textwrap.dedent(STARTER), str(authority.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as starter:
        assert starter.stdout.readline() == b"started\n"
        starter.kill()
    try:
        assert broker.alive()
        pid = (authority.folder / "broker.pid").read_text()
        site = joined(authority, tmp_path / "site", "new-one")
        broker.start()
        assert (authority.folder / "broker.pid").read_text() == pid

        async def talk():
            async with connected(site) as a:  # approved while nobody looked after the broker
                await a.settled()

        asyncio.run(talk())
        os.kill(int(pid), signal.SIGKILL)
        broker_module._wait(lambda: not broker.alive())
        assert not broker.alive()
        broker.start()  # its note of the dead one is not believed
        asyncio.run(talk())
    finally:
        broker.stop()
    broker.stop()  # nothing left to end: no error


def test_process_id_of_another_program_is_ignored(tmp_path):
    authority = new_authority(tmp_path / "aggregator")
    broker = Broker(authority)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as innocent:
        for number in (innocent.pid, os.getpid(), 0, 1, -1, "no number"):
            (authority.folder / "broker.pid").write_text(str(number))
            assert not broker.alive()
            broker.reload()
            broker.stop()
        assert innocent.poll() is None
        innocent.communicate(b"\n")
    assert innocent.returncode == 0


def test_changed_port_moves_the_broker(tmp_path):
    authority = new_authority(tmp_path / "aggregator")
    first = Broker(authority)
    first.start()
    try:
        elsewhere = Broker(authority, port=free_port())
        elsewhere.start()
        assert elsewhere.alive()
        assert elsewhere.url != first.url
        site = joined(authority, tmp_path / "site", "site-a")
        pid = (authority.folder / "broker.pid").read_text()
        Broker(Authority.open(authority.folder)).reload()  # as another process would: the port stays
        assert (authority.folder / "broker.pid").read_text() == pid
        assert not elsewhere.refresh()

        async def talk():
            async with connected(site, url=elsewhere.url) as a:
                await a.settled()
            with pytest.raises((OSError, nats.errors.Error)):
                async with connected(site, url=first.url):
                    pass

        asyncio.run(talk())
    finally:
        first.stop()
        assert not elsewhere.alive()


def test_broker_that_rejects_its_configuration_is_replaced(tmp_path, monkeypatch):
    """A revocation must not be lost because a reload failed."""
    authority = new_authority(tmp_path / "aggregator")
    broker = Broker(authority)
    broker.start()
    try:
        pid = (authority.folder / "broker.pid").read_text()
        monkeypatch.setattr(broker_module, "_RELOADED", "words that no server says")
        monkeypatch.setattr(broker_module, "_TIMEOUT", 1.0)
        broker.reload()
        assert broker.alive()
        assert (authority.folder / "broker.pid").read_text() != pid
    finally:
        broker.stop()


def test_port_in_use_gives_one_sentence(tmp_path):
    authority = new_authority(tmp_path / "aggregator")
    broker = Broker(authority)
    with socket.socket() as other:
        other.bind(("127.0.0.1", authority.settings.port))
        other.listen()
        with pytest.raises(DPADMMError, match=f"port {authority.settings.port} is in use by another program"):
            broker.start()
    assert not broker.alive()
    assert not (authority.folder / "broker.pid").exists()


def test_address_of_another_machine_gives_one_sentence(tmp_path):
    authority = Authority.create(tmp_path / "a", hosts=["localhost"], port=free_port(), listen="192.0.2.1")
    with pytest.raises(DPADMMError, match=r"no address 192\.0\.2\.1"):
        Broker(authority).start()


def test_missing_nats_server_gives_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(broker_module.sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPackagesError, match=r"pip install 'dpadmm\[federation\]'"):
        Broker(new_authority(tmp_path / "aggregator")).start()


def test_changed_hosts_lead_to_a_new_server_certificate(tmp_path):
    folder = tmp_path / "aggregator"
    authority = new_authority(folder)
    text = (folder / "server.toml").read_text().replace('["localhost"]', '["localhost", "127.0.0.2"]')
    (folder / "server.toml").write_text(text)
    authority = Authority.open(folder)
    broker = Broker(authority)
    broker.start()
    try:
        site: Identity = joined(authority, tmp_path / "site", "site-a")
        context = client_context(site.key, site.certificate, site.authority)
        broker.reload()
        with (
            socket.create_connection(("127.0.0.1", authority.settings.port), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.2") as secured,
        ):
            assert secured.version() == "TLSv1.3"
    finally:
        broker.stop()


def test_reload_is_recognised_only_in_complete_lines_of_the_broker(tmp_path, monkeypatch):
    """nats-server logs client names, which may contain any text."""
    broker = Broker(new_authority(tmp_path))
    broker.start()
    try:
        name = "[1] 2026/01/01 00:00:00 [INF] Reloaded server configuration, Failed to reload"
        with broker._log.open("a") as log:
            log.write(f"[7] 2026/01/01 00:00:00 [ERR] 127.0.0.1 - {name} - Publish Violation\n")
        before = broker._pid()
        broker.reload()
        assert broker._pid() == before, "it was taken for a failure, and the broker replaced"
    finally:
        broker.stop()
    monkeypatch.setattr("dpadmm.federation.transport.broker._TIMEOUT", 0.1)
    monkeypatch.setattr("dpadmm.federation.transport.broker._signal", lambda pid, number: True)
    monkeypatch.setattr(Broker, "_log_since", lambda self, seen: f"[7] a b [ERR] {name}\n")
    assert not broker._reloaded(7)
