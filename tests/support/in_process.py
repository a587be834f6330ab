"""A transport without a network, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

Answer = Callable[[bytes], bytes | None]
"""A site: its reply to a message, or None."""


class InProcess:
    """Sites in this process, which answer every message immediately, one after another."""

    def __init__(self, sites: Mapping[str, Answer]) -> None:
        self._sites = sites
        self._answers: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    async def send(self, data: bytes) -> None:
        for name, answer in self._sites.items():
            reply = answer(data)
            if reply is not None:
                self._answers.put_nowait((name, reply))

    async def receive(self, timeout: float) -> tuple[str, bytes] | None:
        try:
            return self._answers.get_nowait()
        except asyncio.QueueEmpty:
            await asyncio.sleep(min(timeout, 0.01))
            return None
