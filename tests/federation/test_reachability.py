"""Getting through to a broker: clusters whose servers die, WebSocket, HTTP proxies; real servers and processes."""

from __future__ import annotations

from pathlib import Path

from brokers import Cluster, free_port
from federations import NAMES, Federation, small_study, wait_for
from proxies import ConnectProxy

from dpadmm.federation.aggregator.journal import Journal
from dpadmm.federation.aggregator.server import begin
from dpadmm.federation.demo import invite
from dpadmm.federation.pki.authority import Authority

ROUNDS = 400


def answered(all: Federation) -> dict[str, int]:
    with Journal.open(all.journal, read_only=True) as journal:
        return {name: len(rounds) for name, rounds in journal.answered().items()}


def test_each_server_of_a_cluster_is_killed_during_a_study_and_no_round_is_lost(tmp_path: Path) -> None:
    """The study waits for all sites in every round."""
    authority = Authority.create(tmp_path / "hub", hosts=["localhost"], port=free_port())
    cluster = Cluster(tmp_path / "cluster", authority)
    study = small_study(ROUNDS, allow_missed_rounds=False, quorum=None, deadline=None)
    with Federation(tmp_path, study, authority=authority, url=cluster.url) as all, cluster:
        all.accept()
        all.start()
        all.all_connected()
        begin(authority, all.study, list(NAMES))
        all.serve("--broker", cluster.url)
        for i in range(3):
            all.after_round(all.rounds_done + 20)
            cluster.kill(i)
            done = all.rounds_done
            all.after_round(done + 20)
            cluster.start(i)
            wait_for(lambda i=i: cluster.log(i).count("Route connection created") >= 2)  # type: ignore[misc]
        assert all.finished(180) == 0, all.said
        assert answered(all) == dict.fromkeys(NAMES, ROUNDS)
        for port in cluster.ports:
            for name in NAMES:
                assert f"the connection to tls://localhost:{port} was lost" in all.log(name), (name, port)
        all.check()


def test_a_whole_study_by_websocket_and_by_tls_through_an_http_proxy(tmp_path: Path) -> None:
    """The name of the broker means something to the proxy only, and the proxy wants a password."""
    web, host = free_port(), "study.example.org"
    authority = Authority.create(
        tmp_path / "hub", hosts=[host], port=free_port(), listen="127.0.0.1", websocket_port=web
    )
    tls, wss = f"tls://{host}:{authority.settings.port}", f"wss://{host}:{web}"
    assert authority.url == f"{tls},{wss}"
    study = small_study(150, allow_missed_rounds=False, quorum=None, deadline=None)
    with Federation(tmp_path, study, authority=authority, url=wss) as all, ConnectProxy("se:cr et") as proxy:
        invite(authority, all.sites["b"], "b", url=tls)
        invite(authority, all.sites["c"], "c", url=f"tls://{host}:1,{wss}")
        all.accept()
        all.begin()
        all.start(HTTPS_PROXY=proxy.url.replace("se:cr et", "se%3Acr%20et"))
        all.all_connected()
        all.serve()
        all.after_round(50)
        proxy.cut_all()
        assert all.finished(180) == 0, all.said
        assert answered(all) == dict.fromkeys(NAMES, 150)
        assert set(proxy.asked) == {f"{host}:{port}" for port in (authority.settings.port, web, 1)}
        assert proxy.asked.count(f"{host}:{web}") >= 4
        for text in (b"dpadmm", b"CONNECT", b"GET /", b"INFO", b"Upgrade"):
            assert text not in proxy.seen, "the proxy sees TLS only"
        assert f"no connection to tls://{host}:1: Tunnel connection failed: 502" in all.log("c")
        assert "se:cr et" not in "".join(map(all.log, NAMES))
        all.check()
