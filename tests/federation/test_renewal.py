"""Expiring certificates and wrong clocks: continuity, waiting and messages."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from brokers import free_port, joined, new_authority
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID
from federations import NAMES, Federation, small_study, wait_for

from dpadmm.errors import DPADMMError, StudyError
from dpadmm.federation import health
from dpadmm.federation.identity import certificates as forms
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.joining import make_request
from dpadmm.federation.server.process import begin
from dpadmm.federation.server.status import alarms_of
from dpadmm.federation.transport.broker import Broker

YEARS = timedelta(days=5 * 365)
WAITING = small_study(60, allow_missed_rounds=False, quorum=None, deadline=None)
"""It waits for all sites in every round."""


def test_timely_renewal_does_not_interrupt_and_late_renewal_is_waited_for(tmp_path: Path) -> None:
    authority, lifetime = new_authority(tmp_path / "hub"), 20.0
    with Federation(tmp_path, WAITING, authority=authority) as all:
        all.accept()
        all.keep_broker()
        end = datetime.now(UTC) + timedelta(seconds=lifetime)
        for name in NAMES:
            joined(authority, tmp_path / name, name, days=1, now=end - timedelta(days=1))
        for path in (authority.folder / "sites").glob("*.json"):  # what Federation approved does not count
            path.write_text(only_last(path.read_text()))
        assert sum("expires in 0 days" in alarm.text for alarm in alarms_of(authority, [])) == 3
        begin(authority, all.study, list(NAMES))
        all.start()
        all.all_connected()
        for name in "ab":
            joined(authority, tmp_path / name, name)
            wait_for(lambda name=name: "with the renewed certificate" in all.log(name))  # type: ignore[misc]
        assert datetime.now(UTC) < end, "this machine was too slow for the test"
        wait_for(lambda: "the certificate of this site expired at" in all.log("c"))
        assert f"the clock of this machine shows {end:%Y-%m-%d}" in all.log("c")
        all.serve()
        wait_for(lambda: "a: connected" in all.events() and "b: connected" in all.events())
        time.sleep(2.0)
        assert all.aggregator is not None
        assert all.aggregator.poll() is None, "it waits for c"
        assert "c: certificate expired; it cannot connect" in all.events()
        joined(authority, tmp_path / "c", "c")
        assert all.finished() == 0, all.output
        for name in "ab":
            assert "lost the connection" not in all.log(name)
        assert not [alarm for alarm in alarms_of(authority, []) if alarm.code == "certificate"]
        all.check()


def only_last(text: str) -> str:
    table = json.loads(text)
    table["certificates"] = table["certificates"][-1:]
    return json.dumps(table)


def test_certificates_created_with_a_fast_clock_are_valid_immediately(tmp_path: Path) -> None:
    ahead = Authority.create(tmp_path / "ahead", hosts=["localhost"], port=free_port(), now=datetime.now(UTC) + YEARS)
    joined(ahead, tmp_path / "b", "b")
    started(ahead)
    authority = new_authority(tmp_path / "hub")
    assert authority.renew_certificates(now=datetime.now(UTC) + YEARS)
    invitation = authority.approve(make_request(tmp_path / "a", "a"), now=datetime.now(UTC) + YEARS)
    for certificate in (invitation.certificate, *(read(authority, name) for name in ("broker", "server"))):
        assert certificate.not_valid_before_utc == authority.certificate.not_valid_before_utc
    started(authority)


def test_certificates_that_are_not_valid_yet_are_replaced(tmp_path: Path) -> None:
    """Earlier versions created them with a fast clock, and the broker could not start."""
    authority = new_authority(tmp_path / "hub")
    for name, usage in (
        ("broker", ExtendedKeyUsageOID.SERVER_AUTH),
        ("server", ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        before, (issuer, key) = read(authority, name), authority._signer()
        own = forms.read_key((authority.folder / f"{name}.key").read_bytes())
        assert own is not None
        late = (
            x509.CertificateBuilder(issuer.subject, before.subject, own.public_key(), before.serial_number)
            .not_valid_before(datetime.now(UTC) + YEARS)
            .not_valid_after(datetime.now(UTC) + 1.1 * YEARS)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
            .add_extension(x509.SubjectAlternativeName(forms.names_in(before)), critical=False)
            .sign(key, hashes.SHA256())
        )
        (authority.folder / f"{name}.pem").write_bytes(forms.pem(late))
    started(authority)
    assert read(authority, "broker").not_valid_before_utc < datetime.now(UTC)


def read(authority: Authority, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((authority.folder / f"{name}.pem").read_bytes())


def started(authority: Authority) -> None:
    broker = Broker(Authority.open(authority.folder))
    try:
        broker.start()
        assert broker.alive()
    finally:
        broker.stop()


def test_clock_outside_the_validity_of_the_authority_is_reported(tmp_path: Path) -> None:
    authority = new_authority(tmp_path / "hub")
    before = {path: path.read_bytes() for path in authority.folder.rglob("*") if path.is_file()}
    for days, text in (
        (
            4000,
            "the authority expired on .* .the clock of this machine shows 20.*: correct the clock if it is wrong; else",
        ),
        (
            -3000,
            "the authority is valid only from .* .the clock of this machine shows 20.*: correct the clock; if it was",
        ),
    ):
        wrong = datetime.now(UTC) + timedelta(days=days)
        for does in (
            lambda wrong=wrong: Authority.open(authority.folder, now=wrong),  # type: ignore[misc]
            lambda wrong=wrong: authority.renew_certificates(now=wrong),  # type: ignore[misc]
            lambda wrong=wrong: authority.approve(make_request(tmp_path / "a", "a"), now=wrong),  # type: ignore[misc]
        ):
            with pytest.raises(DPADMMError, match=text) as refused:
                does()
            assert f"shows {wrong:%Y-%m-%d}" in str(refused.value)
    assert {path: path.read_bytes() for path in before} == before
    started(authority)


def test_certificates_created_with_a_slow_clock_are_replaced(tmp_path: Path) -> None:
    made = datetime.now(UTC) - YEARS
    authority = Authority.create(tmp_path / "hub", hosts=["localhost"], port=free_port(), now=made)
    assert authority.renew_certificates(), "they ended long ago by the right clock"
    started(authority)


def test_site_with_a_wrong_clock_gets_a_message(tmp_path: Path) -> None:
    site = joined(new_authority(tmp_path / "hub"), tmp_path / "a", "a")
    for wrong, text in (
        (datetime.now(UTC) + YEARS, "expired at .* if the clock is right, a new one is needed"),
        (datetime.now(UTC) - YEARS, "is valid only from .* correct the clock"),
    ):
        with pytest.raises(StudyError, match=text) as refused:
            site.check_dates(wrong)
        assert f"the clock of this machine shows {wrong:%Y-%m-%d}" in str(refused.value)


def test_clock_jumps_are_detected_once_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1e9]
    monkeypatch.setattr(health.time, "time", lambda: now[0] + time.monotonic())
    clock = health.Clock()
    assert clock.jump() is None
    for by, text in ((86400.0, "jumped ahead by 86,400 seconds"), (-7200.0, "jumped back by 7,200 seconds")):
        now[0] += by
        assert text in (clock.jump() or "")
        assert clock.jump() is None
    now[0] += 59.0
    assert clock.jump() is None
