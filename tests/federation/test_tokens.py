"""The text of a join token: it survives e-mail, damage is one sentence, and the secret is never stored or sent."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from join_services import new_server

from dpadmm.errors import StudyError
from dpadmm.federation.identity import certificates
from dpadmm.federation.identity.approvals import record_of
from dpadmm.federation.identity.authority import TokenRefusedError
from dpadmm.federation.identity.joining import make_request
from dpadmm.federation.identity.tokens import PREFIX, JoinToken, read_token

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
TOKEN = JoinToken(
    ("https://study.example.org:8443", "https://[2001:db8::1]:8443"), b"\x01" * 32, "ulm", "ab" * 8, b"s" * 16, NOW
)


@pytest.fixture
def server(tmp_path):
    return new_server(tmp_path / "server")


def refusal(action):
    with pytest.raises(TokenRefusedError) as refused:
        action()
    return refused.value.code


def test_a_token_is_one_url_safe_line_that_comes_back():
    text = TOKEN.text
    assert text.startswith(PREFIX)
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
    assert len(text) < 250
    assert read_token(text) == TOKEN
    assert read_token(f" {text[:40]}\r\n  {text[40:]}\n") == TOKEN


@given(st.integers(0, len(TOKEN.text) - 1), st.sampled_from("abcXYZ019-_"))
def test_a_damaged_token_is_refused_in_one_sentence(place, letter):
    text = TOKEN.text[:place] + letter + TOKEN.text[place + 1 :]
    if text != TOKEN.text:
        with pytest.raises(StudyError, match=r"damaged: copy the whole line again|not a join token"):
            read_token(text)


@pytest.mark.parametrize("length", [0, 5, len(PREFIX), len(PREFIX) + 1, 60, len(TOKEN.text) - 1])
def test_a_truncated_token_is_refused(length):
    with pytest.raises(StudyError, match=r"damaged: copy the whole line again|not a join token"):
        read_token(TOKEN.text[:length])


@pytest.mark.parametrize(
    "changed",
    [
        TOKEN._replace(urls=("http://study.example.org:80",)),
        TOKEN._replace(urls=("https://user@study.example.org:80",)),
        TOKEN._replace(urls=("https://study.example.org",)),
        TOKEN._replace(urls=("https://a.org:1",) * 9),
        TOKEN._replace(name="not a name"),
        TOKEN._replace(name="server"),
    ],
)
def test_contents_that_no_server_writes_are_refused(changed):
    with pytest.raises(StudyError, match="damaged"):
        read_token(changed.text)


def test_the_server_stores_no_secret(server):
    token = server.create_token("ulm")
    secret = token.secret
    for path in server.folder.rglob("*"):
        if path.is_file():
            assert secret not in path.read_bytes()
            assert secret.hex() not in path.read_text("latin-1")
    assert secret in urlsafe_b64decode(token.text.removeprefix(PREFIX) + "==="[: -len(token.text) % 4])
    assert (server.folder / "sites" / "ulm.json").stat().st_mode & 0o777 == 0o600


def test_a_token_joins_one_key_and_repeats_its_answer(server, tmp_path):
    token = server.create_token("ulm")
    request = make_request(tmp_path / "ulm", "ulm")
    first = server.redeem(token.id, token.proof(request.public_key), request)
    assert server.redeem(token.id, token.proof(request.public_key), request) == first
    assert [site.name for site in server.users()] == ["ulm"]
    other = make_request(tmp_path / "other", "ulm")
    assert refusal(lambda: server.redeem(token.id, token.proof(other.public_key), other)) == "used"


def test_a_proof_is_for_one_key(server, tmp_path):
    """Who records a request cannot have another key certified with it."""
    token = server.create_token("ulm")
    request, other = make_request(tmp_path / "ulm", "ulm"), make_request(tmp_path / "other", "ulm")
    assert refusal(lambda: server.redeem(token.id, token.proof(request.public_key), other)) == "unknown"
    assert server.users() == []


def test_a_token_for_another_name_or_server_is_unknown(server, tmp_path):
    token = server.create_token("ulm")
    server.create_token("bonn")
    request = make_request(tmp_path / "bonn", "bonn")
    assert refusal(lambda: server.redeem(token.id, token.proof(request.public_key), request)) == "unknown"
    elsewhere = new_server(tmp_path / "elsewhere").create_token("bonn")
    assert refusal(lambda: server.redeem(elsewhere.id, elsewhere.proof(request.public_key), request)) == "unknown"


def test_expired_withdrawn_and_replaced_tokens_are_refused(server, tmp_path):
    request = make_request(tmp_path / "ulm", "ulm")
    token = server.create_token("ulm", days=7)

    def use(moment=None):
        return server.redeem(token.id, token.proof(request.public_key), request, now=moment)

    assert refusal(lambda: use(token.expires)) == "expired"
    server.withdraw_token("ulm")
    assert refusal(use) == "withdrawn"
    with pytest.raises(StudyError, match="ulm has no open join token"):
        server.withdraw_token("ulm")
    server.create_token("ulm")
    assert refusal(use) == "unknown"
    assert server.users() == []


def test_a_revoked_site_does_not_join_again_with_its_token(server, tmp_path):
    token, request = server.create_token("ulm"), make_request(tmp_path / "ulm", "ulm")
    server.redeem(token.id, token.proof(request.public_key), request)
    server.revoke("ulm")
    assert refusal(lambda: server.redeem(token.id, token.proof(request.public_key), request)) == "revoked"
    again = server.create_token("ulm")
    assert refusal(lambda: server.redeem(again.id, again.proof(request.public_key), request)) == "refused"
    new_key = make_request(tmp_path / "new", "ulm")
    server.redeem(again.id, again.proof(new_key.public_key), new_key)
    assert len(server.users()) == 1


def test_a_refused_key_does_not_use_up_its_token(server, tmp_path):
    """A name with a certificate for another key: revoke it, and the same token works."""
    old, new = make_request(tmp_path / "old", "ulm"), make_request(tmp_path / "new", "ulm")
    server.approve(old)
    token = server.create_token("ulm")
    assert refusal(lambda: server.redeem(token.id, token.proof(new.public_key), new)) == "refused"
    assert server.redeem(token.id, token.proof(old.public_key), old).name == "ulm"  # a renewal


def test_the_use_of_a_token_and_the_certificate_are_one_write(server, tmp_path, monkeypatch):
    """A server that is killed while it writes has either both or neither."""
    from dpadmm.federation.identity import approvals

    token, request, writes = server.create_token("ulm"), make_request(tmp_path / "ulm", "ulm"), []
    write = approvals.write_private
    monkeypatch.setattr(approvals, "write_private", lambda path, data: (writes.append(path), write(path, data)))
    server.redeem(token.id, token.proof(request.public_key), request)
    assert len(writes) == 1
    record = record_of(server.folder, "ulm")
    assert record.token.used_at is not None
    assert record.token.fingerprint == record.certificates[0].fingerprint == request.fingerprint


def test_a_full_disk_leaves_the_token_open(server, tmp_path, monkeypatch):
    from dpadmm.federation.identity import approvals

    token, request = server.create_token("ulm"), make_request(tmp_path / "ulm", "ulm")

    def full(path, data):
        raise StudyError(f"{path}: cannot be written (No space left on device)")

    with monkeypatch.context() as patched:
        patched.setattr(approvals, "write_private", full)
        with pytest.raises(StudyError, match="No space left"):
            server.redeem(token.id, token.proof(request.public_key), request)
    assert server.users() == []
    server.redeem(token.id, token.proof(request.public_key), request)


def test_invited_names_are_listed_until_they_join(server, tmp_path):
    token = server.create_token("ulm")
    assert server.invited() == {"ulm": token.expires}
    assert server.sites() == []
    assert server.invited(now=token.expires + timedelta(seconds=1)) == {}
    request = make_request(tmp_path / "ulm", "ulm")
    server.redeem(token.id, token.proof(request.public_key), request)
    assert server.invited() == {}
    assert [site.name for site in server.sites()] == ["ulm"]


@pytest.mark.parametrize("days", [0, 91, True])
def test_a_token_is_valid_for_a_limited_time(server, days):
    with pytest.raises(StudyError, match="valid for 1 to 90 days"):
        server.create_token("ulm", days=days)


def test_the_digest_in_a_token_is_that_of_the_authority(server):
    token = server.create_token("ulm")
    assert token.ca_digest == certificates.digest_of(server.certificate)
    assert token.urls == (f"https://localhost:{server.settings.web_port}",)


def test_a_damaged_record_is_one_sentence(server):
    server.create_token("ulm")
    path = server.folder / "sites" / "ulm.json"
    table = json.loads(path.read_text())
    for change in ({"secret_hash": "zz"}, {"expires": "tomorrow"}, {"certificate": 5}):
        path.write_text(json.dumps({**table, "token": {**table["token"], **change}}))
        with pytest.raises(StudyError, match="damaged; it lists who may connect"):
            record_of(server.folder, "ulm")
