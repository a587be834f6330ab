"""A site with a valid certificate that sends arbitrary answers: it is named, and the others continue."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from pathlib import Path

import nats
import numpy as np
from brokers import connected
from federations import Federation, small_study

from dpadmm.federation.identity.joining import site_identity
from dpadmm.federation.protocol import HEAD, Kind, Message, digest_of, packed, unpacked
from dpadmm.federation.server.journal import Journal
from dpadmm.federation.server.process import Server
from dpadmm.studies.study import Study


def upload(study: Study, asked: bytes, values: np.ndarray) -> Message:
    """Return the upload of an honest site with other numbers."""
    k = unpacked(asked, study=study.hash, shape=lambda _: study.broadcast_shape, from_site=False).round
    return Message(Kind.UPLOAD, study.hash, k, values, digest_of(asked), n_rows=60, rows_per_person=1)


def answers(study: Study, asked: bytes) -> dict[str, bytes]:
    """Return the answers to a request. Each is wrong in one way, which the journal records."""
    good = upload(study, asked, np.zeros(study.shape))
    k, digest, plain = good.round, good.digest, packed(good)
    nan = packed(good)[: HEAD.size] + np.full(study.shape, math.nan).tobytes()
    return {
        "unknown format or version": bytes(len(plain)),
        "invalid message size": b"hello",
        "are not finite": nan,
        "does not match the header": plain + b"more",
        "message of another study": packed(good._replace(study="cd" * 32)),
        "which was not requested": packed(good._replace(round=k + 1)),
        "answer to a different request": packed(good._replace(digest="ab" * 32)),
        "numbers of shape": packed(good._replace(values=np.zeros((study.shape[0] + 1, 1)))),
        "not allowed from this sender": packed(Message(Kind.END, study.hash, k)),
        "invalid number of rows": packed(good._replace(n_rows=0)),
        "number of rows changed": packed(good._replace(n_rows=61)),
        "invalid refusal code": packed(Message(Kind.REFUSED, study.hash, digest=digest, code="<script>")),
    }


def test_garbage_nan_huge_old_and_foreign_answers_are_rejected(tmp_path: Path) -> None:
    study = small_study(30, quorum=3, deadline=3.0)
    with Federation(tmp_path, study, ("a", "b", "c", "evil")) as all:
        all.accept("a", "b", "c")
        all.begin()
        all.start("a", "b", "c")
        all.all_connected("a", "b", "c")
        sent: dict[str, bytes] = {}
        first: list[bytes] = []

        async def attack() -> None:
            async with connected(site_identity(tmp_path / "evil")) as evil:
                down, up = f"dpadmm.{study.hash}.down", f"dpadmm.{study.hash}.up.evil"
                await evil.hear(down)
                listening.set()
                while True:
                    if evil.heard:
                        _, asked = evil.heard.pop()
                        evil.heard.clear()
                        kind = unpacked(
                            asked, study=study.hash, shape=lambda _: study.broadcast_shape, from_site=False
                        ).kind
                        if kind is Kind.CALL:  # so that the server waits for its false answer in round 1
                            present = Message(Kind.PRESENT, study.hash, 0, None, digest_of(asked), 60, 1)
                            await evil.say(up, packed(present))
                        elif kind is Kind.REQUEST:
                            first.append(asked)
                            if len(first) == 1:
                                sent.update(answers(study, asked))
                            for data in answers(study, asked).values() if len(first) == 1 else ():
                                await evil.say(up, data)
                                await asyncio.sleep(0.02)  # if there are too many, the oldest are dropped
                            if len(first) == 1:
                                await evil.say(up, os.urandom(8 * 2**20 - 1))  # the broker's maximum message size
                            await evil.say(f"dpadmm.{study.hash}.up.a", b"as another")
                            await evil.say(down, asked)
                            old = upload(study, first[0], np.ones(study.shape))
                            if asked != first[0]:  # which is requested repeatedly
                                await evil.say(up, packed(old._replace(digest=digest_of(asked))))
                            refused.extend(evil.refused)
                    await asyncio.sleep(0.005)

        refused: list[str] = []
        listening = asyncio.Event()

        async def both() -> None:
            log = logging.getLogger("test")
            attacking = asyncio.ensure_future(attack())
            await listening.wait()
            await asyncio.wait_for(Server(all.authority, all.journal, log).run(), 90)
            attacking.cancel()
            result = (await asyncio.gather(attacking, return_exceptions=True))[0]
            assert isinstance(result, asyncio.CancelledError | nats.errors.Error), result

        asyncio.run(both())
        events = [line for line in all.events().splitlines() if line.startswith("evil: ")]
        assert len(sent) == 12
        for words in sent:
            assert any(words in line for line in events), words
        assert any("invalid message size" in line for line in events)
        assert any("answer to a different request for round" in line for line in events)
        assert any("permissions violation" in text.lower() for text in refused), refused
        with Journal.open(all.journal, read_only=True) as journal:
            assert {name: len(journal.answered()[name]) for name in "abc"} == dict.fromkeys("abc", 30)
            assert "evil" not in journal.answered()
        all.check()
