"""How an aggregator speaks to sites: all it needs of a network, and the one without any."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol


class Transport(Protocol):
    """Carries bytes; names of sites are vouched for by whoever carries them."""

    async def send(self, data: bytes) -> None:
        """To all sites of the study; some may not hear it."""

    async def receive(self, timeout: float) -> tuple[str, bytes] | None:
        """The next answer and its site; None when there was none for so many seconds."""


Answer = Callable[[bytes], bytes | None]
"""A site: what it says to a message, if anything."""


class InProcess:
    """All sites in this process: every message is answered at once, in the order of the sites."""

    def __init__(self, sites: Mapping[str, Answer]) -> None:
        self._sites = sites
        self._answers: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    async def send(self, data: bytes) -> None:
        for name, answer in self._sites.items():
            said = answer(data)
            if said is not None:
                self._answers.put_nowait((name, said))

    async def receive(self, timeout: float) -> tuple[str, bytes] | None:
        try:
            return self._answers.get_nowait()
        except asyncio.QueueEmpty:
            await asyncio.sleep(min(timeout, 0.01))
            return None
