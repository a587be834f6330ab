"""Joining with tokens, with real processes: lost answers, kills, restored backups, errors that write nothing."""

from __future__ import annotations

import shutil
import socket
import threading
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from federations import wait_for, write_rows
from joinings import Joining, files_of

from dpadmm.federation.identity.approvals import record_of
from dpadmm.federation.identity.tokens import read_token
from dpadmm.trusted.ledger import read_ledger

JOINED = [
    *("ledger/ledger.sqlite", "network/ca.pem", "network/certificate.pem", "network/invitation.json"),
    *("network/key.pem", "network/request.csr", "network/request.json", "site.toml", "table.csv"),
]


@contextmanager
def relay_that_loses_answers(port: int):
    """A relay to a port. From the second connection on, the answer to a request does not come back."""
    listening = socket.create_server(("127.0.0.1", 0))
    connections = []

    def carry(source: socket.socket, target: socket.socket, requests: list[int] | None, lost: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if requests is not None:
                    requests.append(len(data))
                    if len(connections) > 1 and len(requests) > 1:  # after the handshake: the request
                        lost.set()
                elif lost.is_set():
                    continue
                target.sendall(data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listening.accept()
                far = socket.create_connection(("127.0.0.1", port))
                connections.append((near, far))
                lost, requests = threading.Event(), list[int]()
                threading.Thread(target=carry, args=(near, far, requests, lost), daemon=True).start()
                threading.Thread(target=carry, args=(far, near, None, lost), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1], connections
    finally:
        listening.close()
        for pair in connections:
            for each in pair:
                each.close()


def test_a_server_killed_between_signing_and_answering(tmp_path: Path) -> None:
    """The site repeats its command, and receives the certificate that was signed before the kill."""
    with Joining(tmp_path) as here:
        server = here.start_server()
        token = read_token(here.token("ulm"))
        with relay_that_loses_answers(here.authority.settings.web_port) as (port, connections):
            through = token._replace(urls=(f"https://localhost:{port}",))
            (tmp_path / "ulm").mkdir()
            write_rows(tmp_path / "ulm" / "table.csv", 1)
            words = ["--table", tmp_path / "ulm" / "table.csv", "--label", "sick", "--rows-per-person", "1"]
            site, out = here.begin("site", "join", through.text, "--site", tmp_path / "ulm", *words)
            wait_for(lambda: record_of(here.hub, "ulm").token.used_at is not None or site.poll() is not None)
            server.kill()
            server.wait()
            for pair in connections:
                for each in pair:
                    each.shutdown(socket.SHUT_RDWR)
            assert site.wait(timeout=60) == 75, out.read_text()
        (signed,) = here.serials("ulm")
        pending = [f"joining/{name}" for name in ("key.pem", "request.csr", "request.json")]
        assert files_of(tmp_path / "ulm") == [*pending, "table.csv"]
        here.start_server()
        here.join("thief", token.text, code=2)
        text = here.ask("site", "join", token.text, "--site", tmp_path / "ulm", *words)
        assert "Connected to tls://localhost" in text
        assert here.serials("ulm") == [signed]
        assert set(files_of(tmp_path / "ulm")) >= set(JOINED)
        assert not (tmp_path / "thief" / "network").exists()


def test_thirty_sites_join_at_once(tmp_path: Path) -> None:
    names = [f"site-{i:02d}" for i in range(30)]
    with Joining(tmp_path) as here:
        here.start_server()
        tokens = {name: here.authority.create_token(name).text for name in names}
        running = {}
        for name in names:
            (tmp_path / name).mkdir()
            write_rows(tmp_path / name / "table.csv", 1)
            words = ("--table", tmp_path / name / "table.csv", "--label", "sick", "--rows-per-person", "1")
            running[name] = here.begin("site", "join", tokens[name], "--site", tmp_path / name, *words)
        for name, (program, out) in running.items():
            assert program.wait(timeout=180) == 0, (name, out.read_text())
        assert [site.name for site in here.authority.users()] == names
        listed = here.json("server", "sites", "--folder", here.hub)["sites"]
        assert [site["state"] for site in listed] == ["joined"] * 30
        assert len({site["fingerprint"] for site in listed}) == 30


def test_a_server_restored_from_a_backup_older_than_its_last_join(tmp_path: Path) -> None:
    """The restored server does not know the site: it is rejected, and joins again with the same key and ledger."""
    with Joining(tmp_path) as here:
        server = here.start_server()
        here.join("ulm")
        shutil.copytree(here.hub, tmp_path / "backup", ignore=shutil.ignore_patterns("*.pid", "*lock*", "serving"))
        here.join("bonn")
        sites = [here.run_site(name) for name in ("ulm", "bonn")]
        here.propose(rounds=6)
        for name in ("ulm", "bonn"):
            wait_for(lambda name=name: "study 'small' proposed" in here.log(name))
            if name == "ulm":
                here.ask("site", "accept", "small", "--site", tmp_path / name)
        server.send_signal(15)
        server.wait(timeout=30)
        shutil.rmtree(here.hub)
        shutil.move(tmp_path / "backup", here.hub)
        key, ledger = (
            (tmp_path / "bonn" / "network" / "key.pem").read_bytes(),
            read_ledger(tmp_path / "bonn" / "ledger"),
        )
        here.start_server()
        wait_for(lambda: "it rejected the certificate" in here.log("bonn"))
        wait_for(
            lambda: "not-connected" in here.ask("site", "status", "--site", tmp_path / "bonn", "--health", code=None)
        )
        here.join("bonn")  # with a new token
        assert (tmp_path / "bonn" / "network" / "key.pem").read_bytes() == key
        assert read_ledger(tmp_path / "bonn" / "ledger").fingerprint == ledger.fingerprint
        here.propose(rounds=6)  # the journal is lost, too; the same study has the same hash
        here.ask("site", "accept", "small", "--site", tmp_path / "bonn")
        assert "finished after 6 rounds" in here.ask("server", "run", "small", "--no-page", "--folder", here.hub)
        for name in ("ulm", "bonn"):
            wait_for(lambda name=name: read_ledger(tmp_path / name / "ledger").accounts)
            (account,) = read_ledger(tmp_path / name / "ledger").accounts.values()
            assert len(account.rounds) == 6
        assert all(site.poll() is None for site in sites)


def test_errors_are_one_sentence_and_nothing_is_written(tmp_path: Path) -> None:
    with Joining(tmp_path / "first") as here, Joining(tmp_path / "second") as other:
        here.start_server()
        token = here.token("ulm")
        used = here.token("bonn")
        here.join("bonn", used)
        expired = here.authority.create_token("old", now=datetime.now(UTC) - timedelta(days=10)).text
        foreign = read_token(other.authority.create_token("ulm").text)
        foreign = foreign._replace(urls=read_token(token).urls).text
        stopped = other.authority.create_token("ulm").text
        withdrawn = here.token("withdrawn")
        here.ask("server", "invite", "withdrawn", "--revoke", "--folder", here.hub)
        site = tmp_path / "site"
        site.mkdir()
        table = site / "table.csv"
        write_rows(table, 1)
        (site / "same.csv").write_text("age,sick\n1,yes\n2,yes\n")
        good = ["--table", table, "--label", "sick", "--rows-per-person", "1"]
        before = files_of(site)
        cases = [
            ([token[:-9], *good], 2, "the join token is damaged: copy the whole line again"),
            (["hello", *good], 2, "this is not a join token"),
            ([expired, *good], 2, "the join token expired at"),
            ([used, *good], 2, "the join token was used at"),
            ([foreign, *good], 2, "is not the one that made this join token"),
            ([withdrawn, *good], 2, "the join token was withdrawn"),
            ([stopped, *good], 75, "check that dpadmm server start is running there"),
            ([token], 2, "give --table"),
            ([token, "--table", table, "--label", "sick"], 2, "give --person COLUMN"),
            ([token, "--table", site / "missing.csv", *good[2:]], 2, "there is no such file"),
            ([token, *good[:2], "--label", "sik", *good[4:]], 2, "has no column 'sik': did you mean 'sick'?"),
            ([token, "--table", site / "same.csv", *good[2:]], 2, "has the same value in all rows"),
            ([token, *good[:2], "--label", "sik", "--person", "who"], 2, "2 problems: "),
            ([token, *good, "--epsilon", "-1"], 2, "limits.epsilon must be one number between"),
        ]
        for words, code, message in cases:
            text = here.ask("site", "join", *words, "--site", site, code=code)
            error = text[text.index("dpadmm: ") :].strip()
            assert message in error, text
            assert "\n" not in error, text
            assert files_of(site) == before
        new = tmp_path / "new"
        here.ask("site", "join", used, *good, "--site", new, code=2)
        assert not new.exists()
        assert record_of(here.hub, "ulm").token.used_at is None
        here.ask("site", "join", token, *good, "--site", site)


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with Joining(tmp_path) as here, socket.create_server(("127.0.0.1", here.authority.settings.web_port)):
        text = here.ask("server", "start", "--folder", here.hub, code=2)
        assert f"the web application cannot listen on 127.0.0.1:{here.authority.settings.web_port}" in text
        assert "web_port in server.toml" in text
        assert not (here.hub / "broker.pid").exists()


def test_a_site_with_a_wrong_clock_is_told_so_and_nothing_is_written(tmp_path: Path, monkeypatch) -> None:
    """The clock of a process cannot be set here, so the client's is."""
    from dpadmm.federation.identity import join_client

    with Joining(tmp_path) as here:
        here.start_server()
        token = read_token(here.token("ulm"))
        monkeypatch.setattr(join_client.certificates, "now_or", lambda moment: datetime.now(UTC) - timedelta(days=1))
        with pytest.raises(Exception, match=r"the clock of this machine shows .* correct the one that is wrong"):
            join_client.find_server(token)


def test_a_flooded_join_service_does_not_slow_a_study(tmp_path: Path) -> None:
    """One client per core asks as fast as it may; the median round takes at most a tenth, or 10 ms, longer."""
    with Joining(tmp_path) as here:
        here.start_server()
        for name in ("ulm", "bonn", "jena"):
            here.join(name)
            here.run_site(name)
        flooding = threading.Event()

        def flood() -> None:
            from http.client import HTTPSConnection
            from ssl import CERT_NONE, PROTOCOL_TLS_CLIENT, SSLContext

            context = SSLContext(PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, CERT_NONE
            while not flooding.wait(0.02):
                with suppress(OSError):
                    connection = HTTPSConnection(
                        "localhost", here.authority.settings.web_port, timeout=5, context=context
                    )
                    connection.request("POST", "/join", b"a" * 16000)
                    connection.getresponse().read()
                    connection.close()

        def median(name: str) -> float:
            here.propose(name, rounds=120, epsilon=0.3)
            for site in ("ulm", "bonn", "jena"):
                wait_for(lambda site=site: f"study '{name}' proposed" in here.log(site))
                here.ask("site", "accept", name, "--site", tmp_path / site)
            here.ask("server", "run", name, "--no-page", "--folder", here.hub)
            return float(here.json("server", "status", name, "--folder", here.hub)["median_seconds"])

        quiet = median("quiet")
        threads = [threading.Thread(target=flood, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            busy = median("busy")
        finally:
            flooding.set()
        assert busy <= max(1.1 * quiet, quiet + 0.01), (quiet, busy)
