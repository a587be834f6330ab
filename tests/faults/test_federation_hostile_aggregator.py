"""A server with a valid certificate that sends arbitrary requests: the owner's limits hold."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import numpy as np
from brokers import connected
from federations import Federation, small_study
from nats.aio.msg import Msg

from dpadmm.federation.protocol import (
    CLAIMS,
    HEAD,
    Grant,
    Kind,
    LeaseReply,
    Mark,
    Message,
    digest_of,
    grants_of,
    packed,
    packed_grant,
    unpacked,
    unpacked_claim,
)
from dpadmm.trusted.ledger import read_ledger


def test_site_refuses_forks_skips_replays_other_studies_and_garbage(tmp_path: Path) -> None:
    study = small_study(4, allow_missed_rounds=False, quorum=None, deadline=None)
    other = small_study(4, name="other")
    zeros = np.zeros(study.shape)

    with Federation(tmp_path, study, ("a",)) as all:
        all.accept()
        all.begin()
        all.start()
        all.all_connected()

        async def talk() -> None:
            async with connected(all.authority, url=all.broker.url) as boss:
                await boss.hear(f"dpadmm.{study.hash}.up.*")

                async def grant(message: Msg) -> None:
                    claim = unpacked_claim(message.data)
                    grant = Grant(LeaseReply.GRANTED, claim.instance, claim.number, Mark())
                    await boss.client.publish(grants_of("a"), packed_grant(grant))

                await boss.client.subscribe(f"{CLAIMS}.a", cb=grant)

                async def ask(data: bytes, *, answered: bool = True) -> Message | None:
                    boss.heard.clear()
                    for turn in range(600 if answered else 30):
                        if turn % 50 == 0:  # like every server: lost messages are repeated
                            await boss.say(f"dpadmm.{study.hash}.down", data)
                        if boss.heard:
                            about = {"study": study.hash, "shape": study.upload_shape, "from_site": True}
                            answer = unpacked(boss.heard[0][1], **about)
                            assert answer.digest == digest_of(data)
                            return answer
                        await asyncio.sleep(0.02)
                    assert not answered, "no answer"
                    return None

                def request(round: int, values: np.ndarray = zeros) -> bytes:
                    return packed(Message(Kind.REQUEST, study.hash, round, values))

                async def refused(data: bytes, code: str) -> None:
                    answer = await ask(data)
                    assert answer is not None
                    assert (answer.kind, answer.code) == (Kind.REFUSED, code)

                async def upload(data: bytes) -> bytes:
                    answer = await ask(data)
                    assert answer is not None
                    assert answer.kind is Kind.UPLOAD, answer
                    return answer.values.tobytes()  # type: ignore[union-attr]

                present = await ask(packed(Message(Kind.CALL, study.hash)))
                assert present is not None
                assert present.kind is Kind.PRESENT
                await refused(request(2), "round-missed")
                first = await upload(request(1))
                assert await upload(request(1)) == first
                await refused(request(1, zeros + 1.0), "round-forked")
                await refused(request(3), "round-missed")
                await refused(b"\0" * 50, "request-malformed")
                await refused(b"x" * (8 * 2**20 - 1), "request-malformed")
                await refused(packed(Message(Kind.REQUEST, other.hash, 2, zeros)), "request-malformed")
                await refused(packed(Message(Kind.UPLOAD, study.hash, 2, zeros)), "request-malformed")
                await refused(request(2, np.zeros((study.shape[0] + 1, 1))), "request-malformed")
                nan = request(2)[: HEAD.size] + np.full(study.shape, math.nan).tobytes()
                await refused(nan, "request-malformed")
                second = await upload(request(2, zeros + 0.5))
                assert second != first
                assert await upload(request(1)) == first  # it only repeats earlier answers
                await refused(request(2, zeros - 0.5), "round-forked")
                await upload(request(3, np.full(study.shape, 1e308)))  # an extreme but harmless point
                await refused(request(5), "round-over")
                await ask(packed(Message(Kind.END, study.hash, 1)), answered=False)  # a false end message
                await refused(request(4), "study-closed")
                boss.heard.clear()
                await boss.say(f"dpadmm.{other.hash}.down", packed(Message(Kind.CALL, other.hash)))
                await asyncio.sleep(0.3)
                assert not boss.heard  # no reply at all for a study that was never accepted

        asyncio.run(talk())
        assert all.agents["a"].running()
        log = all.log("a")
        for words in ("round-missed", "round-forked", "round-over", "another study", "not finite", "of shape"):
            assert words in log, words
        all.agents["a"].end()
        state = read_ledger(all.sites["a"].ledger)
        assert len(state.accounts[study.hash].rounds) == 3
        assert state.accounts[study.hash].ending == "end"
        assert float(state.spent) <= state.cap
        assert list(state.accounts) == [study.hash]
