"""Informs sites about studies that are over, finished or ended for good, so that they close them.

A site that was away at the end of a study learns of it from any process of the server that runs later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path

from dpadmm.errors import DPADMMError
from dpadmm.federation.protocol import Kind, Message, packed, requests_of
from dpadmm.federation.server.journal import Journal

ANNOUNCE_EVERY = 10.0
"""Seconds between messages about a study that is over."""

Publish = Callable[[str, bytes], Awaitable[bool]]


class Endings:
    """The message about the end of every study that is over. An end is final, so each journal is read until then."""

    def __init__(self, journals: Callable[[], Iterable[Path]]) -> None:
        self._journals = journals
        self._messages: dict[Path, tuple[str, bytes]] = {}

    def messages(self) -> list[tuple[str, bytes]]:
        """Subjects and messages."""
        for path in self._journals():
            if path not in self._messages:
                with suppress(DPADMMError), Journal.open(path, read_only=True) as journal:
                    if journal.is_over:
                        end = Message(Kind.END, journal.study.hash, journal.rounds_done)
                        self._messages[path] = requests_of(journal.study.hash), packed(end)
        return list(self._messages.values())


async def announce(journals: Callable[[], Iterable[Path]], publish: Publish) -> None:
    """Send what is over, again and again."""
    endings = Endings(journals)
    while True:
        for subject, message in await asyncio.to_thread(endings.messages):
            await publish(subject, message)
        await asyncio.sleep(ANNOUNCE_EVERY)
