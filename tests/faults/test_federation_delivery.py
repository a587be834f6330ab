"""Proposals over the broker, with real processes: decisions, changed studies, rosters, void rounds, certificates."""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from brokers import joined
from federations import Federation, small_study, wait_for
from join_services import join_service, join_with, new_server
from joinings import MASKED, Joining

from dpadmm.federation.identity.approvals import record_of, write_record
from dpadmm.federation.protocol import HEAD, Kind, packed_document, packed_proposal, proposals_of
from dpadmm.federation.server.journal import Journal
from dpadmm.federation.server.leases import Leases
from dpadmm.federation.server.process import Server
from dpadmm.federation.transport.link import NatsTransport, ServerLink
from dpadmm.trusted.ledger import read_ledger

LOG = logging.getLogger("test")
SITES = ("ulm", "bonn", "jena")


def test_studies_reach_connected_and_later_sites_and_owners_decide(tmp_path: Path) -> None:
    """One owner declines, then accepts; one site connects late. The run waits for the quorum, and no longer."""
    with Joining(tmp_path) as here:
        here.start_server()
        for name in SITES:
            here.join(name)
        for name in ("ulm", "bonn"):
            here.run_site(name)
        here.propose(rounds=10)
        for name in ("ulm", "bonn"):
            wait_for(here.has(name, "small", "proposed"))
        here.ask("site", "decline", "small", "--site", tmp_path / "bonn")
        here.ask("site", "accept", "small", "--site", tmp_path / "ulm")
        running, out = here.begin("server", "run", "small", "--no-page", "--folder", here.hub)
        wait_for(lambda: "bonn: declined 'small'" in out.read_text() and "ulm: accepted" in out.read_text())
        here.run_site("jena")
        wait_for(here.has("jena", "small", "proposed"))
        assert running.poll() is None, "one of two"
        here.ask("site", "accept", "small", "--site", tmp_path / "bonn")
        wait_for(lambda: "bonn: accepted 'small'" in out.read_text())
        here.ask("site", "decline", "small", "--site", tmp_path / "jena")
        assert running.wait(timeout=60) == 0, out.read_text()  # not a minute for a site that declined
        assert "round 1 starts with 2 of 3 sites" in out.read_text()
        for name, n_accounts in {"ulm": 1, "bonn": 1, "jena": 0}.items():
            accounts = read_ledger(tmp_path / name / "ledger").accounts
            assert [len(account.rounds) for account in accounts.values()] == [10] * n_accounts
        assert not list((tmp_path / "ulm" / "proposals").glob("*")), "decided"


def test_a_study_that_was_changed_after_its_proposal_is_refused(tmp_path: Path) -> None:
    """A server that sends another study under the hash that it proposed."""
    study, changed = small_study(name="small"), small_study(name="small", rounds=61)
    with Federation(tmp_path, study, ("a",)) as all:
        all.broker.start()
        all.start("a")
        folder, context = all.authority.folder, all.authority.client_context

        async def cheat() -> None:
            with Leases(folder, lambda *_: None) as leases:
                async with ServerLink(all.authority.own_url(), context, lambda *_: None, LOG, leases) as link:
                    text = json.dumps(changed.as_json()).encode()
                    while "it was changed after its proposal" not in all.log("a"):
                        await link.publish(proposals_of("a"), packed_proposal(study.hash))
                        await asyncio.sleep(0.3)
                        await link.publish(proposals_of("a"), packed_document(study.hash, text))

        asyncio.run(asyncio.wait_for(cheat(), 60))
        assert not list((tmp_path / "a").glob("proposals/*"))
        assert changed.hash[:12] in all.log("a")


def test_a_changed_study_is_a_new_study(tmp_path: Path) -> None:
    """The name then means the new one; what was accepted before stays accepted under its hash."""
    with Joining(tmp_path) as here:
        here.start_server()
        for name in ("ulm", "bonn"):
            here.join(name)
            here.run_site(name)
        here.propose(rounds=5, epsilon=0.2)
        wait_for(here.has("ulm", "small", "proposed"))
        here.ask("site", "accept", "small", "--site", tmp_path / "ulm")
        here.propose(rounds=6, epsilon=0.2)
        wait_for(here.has("ulm", "small", "proposed"))
        listed = here.json("site", "studies", "--site", tmp_path / "ulm")["studies"]
        assert sorted((study["state"], study["of"]) for study in listed) == [("active", 5), ("proposed", 6)]
        reviewed = here.json("site", "review", "small", "--site", tmp_path / "ulm")
        assert {limit["limit"]: limit["asked"] for limit in reviewed["limits"]}["rounds"] == 6
        here.ask("site", "decline", "small", "--site", tmp_path / "ulm")
        text = here.ask("site", "review", "small", "--site", tmp_path / "ulm", code=2)
        assert "there are 2 studies 'small'; give one of the hashes" in text
        assert "no study with the name or hash 'smal'" in here.ask(
            "site", "accept", "smal", "--site", tmp_path / "ulm", code=2
        )


def test_a_roster_is_collected_over_the_broker(tmp_path: Path) -> None:
    """Each owner accepts twice: the draft, which offers a key, and the study with the keys of all sites."""
    with Joining(tmp_path) as here:
        here.start_server()
        for name in (*SITES, "late"):
            here.join(name)
            toml = tmp_path / name / "site.toml"
            toml.write_text(toml.read_text().replace("allow = false", "allow = true"))
        for name in SITES:
            here.run_site(name)
        draft = here.propose("masked", rounds=6, epsilon=0.4, **MASKED)
        for name in SITES:
            wait_for(here.has(name, "masked", "draft"))
            here.ask("site", "accept", "masked", "--site", tmp_path / name)
            here.ask("site", "accept", "masked", "--site", tmp_path / name)  # the same key again
            assert len(list((tmp_path / name / "keys").iterdir())) == 1
            assert read_ledger(tmp_path / name / "ledger").accounts == {}
        wait_for(lambda: here.json("server", "status", "--folder", here.hub)["drafts"][0]["offers"] == sorted(SITES))
        assert "waiting for late" in here.ask("server", "status", "--folder", here.hub)
        assert "no roster" in here.ask("server", "run", draft, "--folder", here.hub, code=2)
        here.run_site("late")  # whose owner declines: the roster is that of the others
        wait_for(here.has("late", "masked", "draft"))
        here.ask("site", "decline", "masked", "--site", tmp_path / "late")
        for name in SITES:
            wait_for(here.has(name, "masked", "proposed"))
            text = here.ask("site", "accept", "masked", "--site", tmp_path / name, code=2)
            assert "secure aggregation needs --hash HASH" in text
        (hash,) = {
            study["hash"]
            for name in SITES
            for study in here.json("site", "studies", "--site", tmp_path / name)["studies"]
            if study["state"] == "proposed"
        }
        for name in SITES:
            here.ask("site", "accept", "masked", "--hash", hash, "--site", tmp_path / name)
            assert not list((tmp_path / name / "offers").iterdir())
        text = here.ask("server", "run", "masked", "--no-page", "--folder", here.hub)
        assert "finished after 6 rounds" in text
        listed = here.json("server", "status", "masked", "--folder", here.hub)["sites"]
        assert [site["name"] for site in listed] == sorted(SITES)


def test_a_site_killed_between_key_agreement_and_masked_upload_voids_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its masks would not cancel: the round is aborted for all, each site is charged once, and the study goes on."""
    names = ("a", "b", "c", "d")
    with Federation(tmp_path, small_study(12, max_rows_per_site=60, quorum=3, deadline=2.0), names) as all:
        all.accept()
        all.begin()
        all.start()
        all.all_connected()
        send, killed = NatsTransport.send, []

        async def kill_before_masks(transport: NatsTransport, data: bytes) -> None:
            kind, round = data[5], struct.unpack_from("<I", data, HEAD.size - 32)[0]
            if kind == Kind.MASK and round == 5 and not killed:
                killed.append(round)
                all.agents["b"].kill()
            await send(transport, data)

        monkeypatch.setattr(NatsTransport, "send", kill_before_masks)

        async def run() -> None:
            running = asyncio.ensure_future(Server(all.authority, all.journal, LOG).run())
            while not killed:
                assert not running.done(), running
                await asyncio.sleep(0.02)
            all.start("b")
            await asyncio.wait_for(running, 120)

        asyncio.run(run())
        with Journal.open(all.journal, read_only=True) as journal:
            (aborted,) = journal.aborted_rounds()
            assert (aborted.round, aborted.reason, aborted.sites) == (5, "missing", ("b",))
            assert 5 not in journal.sums()
            assert journal.rounds_done == 12
        for name in names:
            rounds = read_ledger(all.sites[name].ledger).accounts[all.study.hash].rounds
            assert len(rounds) == len(set(rounds)), name
        assert 5 in read_ledger(all.sites["a"].ledger).accounts[all.study.hash].rounds
        all.check()


def test_a_certificate_that_expires_during_a_study_is_renewed_with_a_token(tmp_path: Path) -> None:
    """Rounds go on with the quorum, and the site returns without a restart."""
    authority = new_server(tmp_path / "hub")
    with (
        Federation(tmp_path, small_study(40_000, deadline=0.2, quorum=2), authority=authority) as all,
        join_service(authority),
    ):
        all.accept()
        end = datetime.now(UTC) + timedelta(seconds=25)
        joined(authority, tmp_path / "c", "c", days=1, now=end - timedelta(days=1))
        record = record_of(authority.folder, "c")
        write_record(authority.folder, type(record)("c", record.certificates[-1:]))
        all.begin()
        all.start()
        all.all_connected()
        all.serve()
        all.after_round(3)
        assert datetime.now(UTC) < end, "this machine was too slow for the test"
        wait_for(lambda: "c: certificate expired; it cannot connect" in all.events())
        wait_for(lambda: "the certificate of this site expired at" in all.log("c"))
        done = all.rounds_done
        all.after_round(done + 10)
        assert "c: reconnected" not in all.events()
        join_with(authority.create_token("c"), tmp_path / "c")
        wait_for(lambda: "c: reconnected" in all.events(), 150.0)  # it tries again after up to 45 seconds
        assert all.aggregator is not None
        all.kill_aggregator()
        all.check(rounds=all.rounds_done)
