"""The join service over real TLS: pinned authority, constant answers, limits, lost answers, many sites at once."""

from __future__ import annotations

import json
import shutil
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.client import HTTPSConnection

import pytest
from join_services import join_service, join_with, new_server

from dpadmm.errors import ServiceUnavailableError, StudyError
from dpadmm.federation.identity import join_client
from dpadmm.federation.identity import join_service as service
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.join_client import JoinServer, TokenError, find_server
from dpadmm.federation.identity.join_service import ANSWER_SIZE, MAX_BODY, RateLimit, source_of
from dpadmm.federation.identity.joining import PendingJoin, make_request
from dpadmm.federation.identity.tokens import read_token


@pytest.fixture
def server(tmp_path):
    with join_service(new_server(tmp_path / "server")) as authority:
        yield authority


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def ask(server, body, headers=None, method="POST"):
    """(status, body) of one request, without checking the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = HTTPSConnection("localhost", server.settings.web_port, timeout=10, context=context)
    try:
        connection.request(method, "/join", body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def request_of(token, request, **changes):
    table = {"format": "dpadmm-join-request/1", "token": token.id, "proof": token.proof(request.public_key)}
    return json.dumps(table | {"name": token.name, "request": request.csr_pem} | changes).encode()


def test_a_site_joins_with_one_token_and_its_key_stays(server, tmp_path):
    token = read_token(server.create_token("ulm").text)
    identity = join_with(token, tmp_path / "ulm")
    assert identity.name == "ulm"
    assert identity.url == server.url
    assert files(tmp_path / "ulm") == [f"network/{name}" for name in (
        "ca.pem", "certificate.pem", "invitation.json", "key.pem", "request.csr", "request.json")]  # fmt: skip
    key = identity.key.read_bytes()
    assert not any(key in path.read_bytes() for path in server.folder.rglob("*") if path.is_file())


def test_a_lost_answer_is_repeated_to_the_same_key_only(server, tmp_path):
    token = server.create_token("ulm")
    pending = PendingJoin(tmp_path / "ulm")
    found = find_server(token)
    lost = found.redeem(token, pending.request("ulm"))
    assert files(tmp_path / "ulm") == ["joining/key.pem", "joining/request.csr", "joining/request.json"]
    identity = join_with(token, tmp_path / "ulm")
    assert identity.invitation == lost
    with pytest.raises(TokenError, match=r"used at .* with another key"):
        join_with(token, tmp_path / "thief")


def test_of_two_sites_with_one_token_one_joins_and_the_other_is_told(server, tmp_path):
    token = server.create_token("ulm")
    start = threading.Barrier(2)

    def attempt(name):
        pending = PendingJoin(tmp_path / name)
        request = pending.request("ulm")
        found = find_server(token)
        start.wait()
        try:
            return found.redeem(token, request)
        except TokenError as problem:
            return problem

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(attempt, ["one", "two"]))
    assert sorted(type(result).__name__ for result in results) == ["Invitation", "TokenError"]
    assert len(server.users()) == 1


def test_thirty_sites_join_at_once(server, tmp_path):
    tokens = [server.create_token(f"site-{i}") for i in range(30)]
    with ThreadPoolExecutor(30) as pool:
        identities = list(pool.map(lambda token: join_with(token, tmp_path / token.name), tokens))
    assert sorted(identity.name for identity in identities) == sorted(token.name for token in tokens)
    assert len(server.users()) == 30


def test_another_server_at_the_address_receives_nothing(server, tmp_path):
    """A foreign authority is noticed before the site sends anything."""
    token = server.create_token("ulm")
    foreign = new_server(tmp_path / "foreign")
    moved = token._replace(urls=(f"https://localhost:{foreign.settings.web_port}",))
    with (
        join_service(foreign),
        pytest.raises(TokenError, match=r"not the one that made this join token .* nothing was"),
    ):
        find_server(moved)


def test_a_relay_that_shows_the_right_authority_but_has_no_certificate_of_it_receives_nothing(server, tmp_path):
    """The digest authenticates the authority; the second connection requires a certificate of it."""
    token, foreign = server.create_token("ulm"), new_server(tmp_path / "foreign")
    relay = Authority(foreign.folder, foreign.settings, server.certificate)  # shows what it copied
    moved = token._replace(urls=(f"https://localhost:{foreign.settings.web_port}",))
    with join_service(relay):
        found = find_server(moved)
        with pytest.raises(ServiceUnavailableError, match="not from the authority"):
            found.redeem(moved, make_request(tmp_path / "ulm", "ulm"))


@pytest.mark.parametrize("days", [-1.0, 1.0])
def test_a_clock_that_is_off_by_a_day_is_one_sentence(server, days):
    token = server.create_token("ulm")
    with pytest.raises(
        StudyError, match=r"the clock of this machine shows .* but that of the server .* correct the one"
    ):
        find_server(token, now=datetime.now(UTC) + timedelta(days=days))


def test_an_expired_token_is_refused_before_anything_is_made(server, tmp_path):
    token = server.create_token("ulm", now=datetime.now(UTC) - timedelta(days=8))
    with pytest.raises(TokenError, match="expired at"):
        join_with(token, tmp_path / "ulm")
    assert not (tmp_path / "ulm").exists()


def test_a_withdrawn_token_is_refused_and_the_key_discarded(server, tmp_path):
    token = server.create_token("ulm")
    server.withdraw_token("ulm")
    pending = PendingJoin(tmp_path / "ulm")
    with pytest.raises(TokenError, match="was withdrawn"):
        find_server(token).redeem(token, pending.request("ulm"))
    pending.discard()
    assert files(tmp_path / "ulm") == []


def test_a_server_that_does_not_run_is_a_transient_error(tmp_path):
    token = new_server(tmp_path / "server").create_token("ulm")
    with pytest.raises(ServiceUnavailableError, match="check that dpadmm server start is running"):
        find_server(token)


def test_a_server_that_died_between_signing_and_answering_repeats_its_answer(tmp_path):
    """The certificate and the use of the token are on disk; a new process answers with them."""
    authority = new_server(tmp_path / "server")
    token, pending = authority.create_token("ulm"), PendingJoin(tmp_path / "ulm")
    request = pending.request("ulm")
    signed = authority.redeem(token.id, token.proof(request.public_key), request)  # then it died
    with join_service(Authority.open(authority.folder)):
        assert join_with(token, tmp_path / "ulm").invitation == signed


def test_a_server_restored_from_a_backup_before_the_join_takes_the_same_key_again(tmp_path):
    authority = new_server(tmp_path / "server")
    token = authority.create_token("ulm")
    shutil.copytree(authority.folder, tmp_path / "backup")
    with join_service(authority):
        before = join_with(token, tmp_path / "ulm")
    shutil.rmtree(authority.folder)
    shutil.move(tmp_path / "backup", authority.folder)
    restored = Authority.open(authority.folder)
    assert restored.users() == []
    with join_service(restored):
        again = join_with(restored.create_token("ulm"), tmp_path / "ulm")
    assert again.invitation.key_fingerprint == before.invitation.key_fingerprint
    assert [site.name for site in restored.users()] == ["ulm"]


def test_answers_without_a_proved_token_are_equal_and_of_constant_size(server, tmp_path):
    token, request = server.create_token("ulm"), make_request(tmp_path / "ulm", "ulm")
    elsewhere = new_server(tmp_path / "elsewhere").create_token("bonn")
    other = make_request(tmp_path / "bonn", "bonn")
    unknown = [
        ask(server, request_of(token, request, proof="00" * 32)),  # a known name and id
        ask(server, request_of(elsewhere, other)),  # neither
        ask(server, request_of(token, other, name="bonn")),
    ]
    texts = {(status, json.dumps({**json.loads(body), "now": ""})) for status, body in unknown}
    assert len(texts) == 1
    joined = ask(server, request_of(token, request))
    assert joined[0] == 200
    malformed = ask(server, b"{}")
    assert {len(body) for _, body in (*unknown, joined, malformed)} == {ANSWER_SIZE}


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff", b"[]", b"[" * 9000, b'{"format": 5}', json.dumps({"format": "dpadmm-join-request/1"}).encode()],
)
def test_a_malformed_request_changes_nothing(server, body):
    server.create_token("ulm")
    status, answer = ask(server, body)
    assert status == 400
    assert json.loads(answer)["status"] == "malformed"
    assert server.users() == []


def test_a_long_body_is_refused(server):
    assert ask(server, b"a" * (MAX_BODY + 1))[0] == 413
    assert ask(server, iter([b"a" * 9000] * 3))[0] == 413


def test_a_source_that_floods_is_limited_and_others_are_not():
    clock = [0.0]
    limit = RateLimit(lambda: clock[0])
    allowed = [limit.wait("192.0.2.1") == 0.0 for _ in range(service.BURST + 10)]
    assert allowed.count(True) == service.BURST
    assert limit.wait("192.0.2.2") == 0.0
    wait = limit.wait("192.0.2.1")
    assert 0.0 < wait <= 1.0 / service.PER_SECOND
    clock[0] += wait + 1e-9
    assert limit.wait("192.0.2.1") == 0.0


def test_the_memory_for_sources_is_limited():
    limit = RateLimit()
    for i in range(service.MAX_SOURCES + 100):
        limit.wait(str(i))
    assert len(limit._left) == service.MAX_SOURCES


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
    ],
)
def test_a_source_is_an_address_or_a_network_of_ipv6(one, other, same):
    assert (source_of(one) == source_of(other)) == same


def test_a_limited_site_waits_and_joins(server, tmp_path, monkeypatch):
    """Many sites behind one address: those above the limit wait for a moment."""
    token = server.create_token("ulm")
    monkeypatch.setattr(service, "BURST", 1)
    assert join_with(token, tmp_path / "ulm").name == "ulm"


def test_a_site_keeps_its_name_and_its_server(server, tmp_path):
    join_with(server.create_token("ulm"), tmp_path / "ulm")
    before = {path: path.read_bytes() for path in (tmp_path / "ulm").rglob("*") if path.is_file()}
    with pytest.raises(StudyError, match="the join token is for bonn, but this site joined as ulm"):
        join_with(server.create_token("bonn"), tmp_path / "ulm")
    with pytest.raises(StudyError, match="for another server than the one that this site joined"):
        join_with(new_server(tmp_path / "elsewhere").create_token("ulm"), tmp_path / "ulm")
    assert before == {path: path.read_bytes() for path in (tmp_path / "ulm").rglob("*") if path.is_file()}


def test_an_answer_for_another_site_is_refused(server, tmp_path):
    """Only a dishonest server gives one."""
    token, other = server.create_token("ulm"), server.create_token("bonn")
    found = find_server(token)
    request = make_request(tmp_path / "bonn", "bonn")
    answer = found.redeem(other, request)
    assert answer.name == "bonn"
    foreign = JoinServer(found.url, new_server(tmp_path / "elsewhere").certificate)
    with pytest.raises(ServiceUnavailableError, match="not from the authority"):
        foreign.redeem(other, request)


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([(503, b"Service Unavailable"), (429, b"")], None),
        ([(500, b"The server could not answer.")], "could not answer"),
        ([(200, b"<html>a captive portal</html>")], "is not the join service"),
        ([(200, b'{"format": "dpadmm-join-server/2"}')], "is not the join service"),
    ],
)
def test_a_busy_server_is_asked_again_and_others_are_one_sentence(server, answers, error, monkeypatch):
    token, exchange, left = server.create_token("ulm"), join_client._exchange, list(answers)

    def answered(url, context, body):
        return (
            (*left.pop(0)[:1], 0.01, answers[len(answers) - len(left) - 1][1]) if left else exchange(url, context, body)
        )

    monkeypatch.setattr(join_client, "_exchange", answered)
    if error is None:
        assert find_server(token).authority == server.certificate
        assert left == []
    else:
        with pytest.raises(ServiceUnavailableError, match=error):
            find_server(token)
