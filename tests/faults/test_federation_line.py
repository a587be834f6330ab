"""Between sites and broker: an unreliable network, a broker that is down, wrong and expired certificates."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

from brokers import free_port
from federations import Federation, small_study, wait_for
from proxies import Faults, Proxy

from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.joining import join, make_request
from dpadmm.federation.identity.settings import url_of
from dpadmm.federation.local import invite
from dpadmm.federation.server.journal import Journal
from dpadmm.federation.server.process import Server

LOG = logging.getLogger("test")
BAD = Faults(delay=0.001, jitter=0.004, stall=0.02, stall_seconds=0.2, loss=0.005, cut=0.01)


def test_run_over_an_unreliable_network_has_the_same_result_and_no_plain_text(tmp_path: Path) -> None:
    study = small_study(60, quorum=1, deadline=0.5)
    authority = Authority.create(tmp_path / "aggregator", hosts=["localhost"], port=free_port())

    async def run() -> Proxy:
        async with Proxy("127.0.0.1", authority.settings.port, BAD) as proxy:
            with Federation(tmp_path, study, authority=authority, url=url_of("localhost", proxy.port)) as all:
                all.accept()
                all.begin()
                all.start()
                running = asyncio.ensure_future(Server(authority, all.journal, LOG).run())
                while all.rounds_done < 5:
                    assert not running.done(), running
                    await asyncio.sleep(0.05)
                proxy.cut_all()
                await asyncio.sleep(0.2)
                proxy.hold()  # the connection is not closed, so neither side notices
                await asyncio.sleep(0.7)
                proxy.release()
                await asyncio.wait_for(running, 120)
                found = await asyncio.to_thread(all.check)
                assert found is not None
            return proxy

    proxy = asyncio.run(run())
    assert proxy.cuts >= 3
    assert len(proxy.seen) > 10_000
    for secret in (b"dpAM", b"dpadmm", study.hash.encode(), b"PUB ", b"INFO", b"CONNECT"):
        assert secret not in proxy.seen


def test_run_survives_a_broker_that_is_down_for_a_while(tmp_path: Path) -> None:
    study = small_study(120, allow_missed_rounds=False, quorum=None, deadline=None)
    with Federation(tmp_path, study) as all:
        all.accept()
        all.begin()
        all.start()
        all.serve()
        all.after_round(3)
        pid = int((all.authority.folder / "broker.pid").read_text())
        all.aggregator.send_signal(signal.SIGSTOP)
        all.kill_broker()
        wait_for(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not _words(pid))
        with socket.socket() as other:  # another program uses the port
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            wait_for(lambda: _bound(other, all.authority.settings.port))
            other.listen()
            all.aggregator.send_signal(signal.SIGCONT)
            wait_for(lambda: "is in use by another program" in all.events())
        assert all.finished() == 0
        assert "broker stopped; restarting it" in all.events()
        all.check()


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _bound(other: socket.socket, port: int) -> bool:
    try:
        other.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


def test_other_authority_and_expired_certificate_are_refused(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    study = small_study(15, quorum=2, deadline=0.5)
    names = ("a", "b", "expired", "stranger")
    began = now - timedelta(days=30)
    port = free_port()
    authority = Authority.create(tmp_path / "aggregator", hosts=["localhost"], port=port, now=began)
    with Federation(tmp_path, study, names, authority=authority) as all:
        other = Authority.create(tmp_path / "other", hosts=["localhost"], port=port)
        for name in ("expired", "stranger"):
            for path in (tmp_path / name / "network").iterdir():
                path.unlink()
        all.authority.revoke("expired")
        folder = tmp_path / "expired"
        expired = all.authority.approve(make_request(folder, "expired"), days=1, now=began)
        join(folder, expired, now=began)
        invite(other, all.sites["stranger"], "stranger", url=all.authority.url)
        all.accept()
        all.broker.start()
        Journal.begin(all.journal, study, names)
        all.start()
        all.start_wait = 3.0  # for the site with the wrong certificate, which never connects
        all.serve()
        assert all.finished() == 0
        wait_for(lambda: "connection" in all.log("expired"))
        assert "the certificate of this site expired at" in all.log("expired")
        assert "is not from the authority of this study" in all.log("stranger")
        assert "expired: certificate expired; it cannot connect" in all.events()
        for name in ("expired", "stranger"):
            assert "connected to" not in all.log(name)
        all.check()
