"""A site process that is suspended until the broker closes its connection leaves no pending task."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from brokers import DOWN, joined, new_authority
from federations import Federation, small_study, wait_for
from proxies import Proxy

from dpadmm.federation.transport import broker as nats_broker
from dpadmm.federation.transport.broker import Broker
from dpadmm.federation.transport.link import Link

COLLECTING = """
import gc, threading, time

def collect():
    while True:
        time.sleep(0.1)
        gc.collect()

threading.Thread(target=collect, daemon=True).start()
from dpadmm.cli import main
main()
"""
"""``dpadmm`` in a process that collects garbage all the time, so that a task without a reference is found at once."""


ESTABLISHED, CLOSE_WAIT, TIME_WAIT = "01", "08", "06"


def states_of(port: int) -> set[str]:
    """Return the states of connections to this port. CLOSE_WAIT: the other side has closed it."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {words[3] for words in lines if words[2].endswith(f":{port:04X}")} - {TIME_WAIT}


def test_connection_that_breaks_while_closing_leaves_no_task(tmp_path: Path) -> None:
    """nats-py aborts its clean-up if it cannot send its last bytes."""
    authority = new_authority(tmp_path / "hub")
    site = joined(authority, tmp_path / "site", "a")
    broker, problems = Broker(authority), list[dict[str, Any]]()

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        log, before = logging.getLogger("test"), asyncio.all_tasks()
        async with Proxy("localhost", authority.settings.port) as proxy:
            url = f"tls://localhost:{proxy.port}"
            async with Link(url, site.client_context, lambda *_: None, log, name="a") as link:
                await link.subscribe(DOWN)
                while not link.connected:
                    await asyncio.sleep(0.01)
                client = link._client
                assert client is not None
                client._pending.append(b"PING\r\n")
                client._pending_data_size = len(b"PING\r\n")
                proxy.cut_all()
                while link._client is client or not link.connected:
                    await asyncio.sleep(0.01)
                assert client._subs, "nats-py completed its own clean-up, so that this tests nothing"
        del client
        gc.collect()
        assert asyncio.all_tasks() == before

    broker.start()
    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        broker.stop()
    gc.collect()
    assert problems == []


def test_suspended_process_logs_no_lost_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it continues, pings of the broker, the end of the connection and its own heartbeat coincide."""
    text = nats_broker._TEXT.replace('ping_interval: "10s"', 'ping_interval: "100ms"')
    monkeypatch.setattr(nats_broker, "_TEXT", text)
    with Federation(tmp_path, small_study(), ("a",)) as all:
        all.accept()
        all.broker.start()
        port, status = all.authority.settings.port, tmp_path / "a" / "status.json"
        words = [sys.executable, "-c", COLLECTING, "site", "run", "--site", str(all.sites["a"].path)]
        with (tmp_path / "output.txt").open("wb") as out, subprocess.Popen(words, stdout=out, stderr=out) as agent:
            try:
                for _ in range(5):
                    wait_for(lambda: status.exists() and json.loads(status.read_text())["connected"])
                    wait_for(lambda: states_of(port) == {ESTABLISHED})
                    os.kill(agent.pid, signal.SIGSTOP)
                    wait_for(lambda: CLOSE_WAIT in states_of(port))
                    os.kill(agent.pid, signal.SIGCONT)
                    wait_for(lambda: CLOSE_WAIT not in states_of(port))
            finally:
                os.kill(agent.pid, signal.SIGCONT)
                agent.terminate()
                assert agent.wait(20) == 0
        said = (tmp_path / "output.txt").read_text()
        assert "lost the connection" in said
        assert "Task was destroyed" not in said
        assert "Traceback" not in said
