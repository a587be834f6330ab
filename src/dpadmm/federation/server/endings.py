"""Messages about studies that are over, finished or ended for good, so that sites close them.

A site that was not connected at the end of a study is informed by any later process of the server.
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


async def announce(journals: Callable[[], Iterable[Path]], publish: Callable[[str, bytes], Awaitable[bool]]) -> None:
    """Send the ends of studies repeatedly. An end is final, so a journal is not read again after it."""
    messages: dict[Path, tuple[str, bytes]] = {}
    while True:
        await asyncio.to_thread(_add_endings, messages, journals())
        for subject, message in list(messages.values()):
            await publish(subject, message)
        await asyncio.sleep(ANNOUNCE_EVERY)


def _add_endings(messages: dict[Path, tuple[str, bytes]], journals: Iterable[Path]) -> None:
    """Add the subject and the message of every study that is over."""
    for path in journals:
        if path not in messages:
            with suppress(DPADMMError), Journal.open(path, read_only=True) as journal:
                if journal.is_over:
                    end = Message(Kind.END, journal.study.hash, journal.rounds_done)
                    messages[path] = requests_of(journal.study.hash), packed(end)
