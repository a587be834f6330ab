"""The round loop of an aggregator, whatever carries its messages.

A request is repeated until its round is over: sites give the same answer to it again, so a message that is
lost, or a site that was away, costs time and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from statistics import median

from dpadmm.federation.coordinator import Coordinator
from dpadmm.federation.transport import Transport

FIRST_REPEAT, LAST_REPEAT = 0.5, 15.0
"""Seconds after which a request is repeated: four rounds' time, between these."""


def repeat_after(seconds: list[float]) -> float:
    """When to ask again, from how long the last rounds took."""
    return min(max(FIRST_REPEAT, 4.0 * median(seconds[-20:])) if seconds else FIRST_REPEAT, LAST_REPEAT)


async def conduct(
    coordinator: Coordinator,
    transport: Transport,
    *,
    between: Callable[[], None] = lambda: None,
) -> None:
    """Run the study to its end, from where its journal is; ``between`` is called now and then."""
    clock = asyncio.get_running_loop().time
    while not coordinator.done:
        opened = clock()
        await _gather(coordinator, transport, opened, between)
        if coordinator.called:
            coordinator.close_round(clock() - opened)
        else:
            coordinator.begin()
    await transport.send(coordinator.request)


async def _gather(
    coordinator: Coordinator, transport: Transport, opened: float, between: Callable[[], None]
) -> None:
    clock = asyncio.get_running_loop().time
    patience = repeat_after(coordinator.seconds)
    coordinator.opened = opened
    ask_at, asked = opened, 0
    while not coordinator.over(clock() - opened):
        now = clock()
        if now >= ask_at:
            if asked:
                coordinator.mark_late(coordinator.missing())
            between()
            await transport.send(coordinator.request)
            ask_at, asked = now + patience, asked + 1
        wait = ask_at - now
        if coordinator.study.deadline is not None:
            wait = min(wait, max(0.01, opened + coordinator.study.deadline - now))
        if (received := await transport.receive(wait)) is not None:
            coordinator.take(*received, now=clock())
    while (received := await transport.receive(0.0)) is not None:  # what is here already is in time
        coordinator.take(*received, now=clock())
