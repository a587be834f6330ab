"""Ending tasks that may not hear it the first time."""

from __future__ import annotations

import asyncio
from typing import Any


async def ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until they have ended: nats-py swallows a cancellation that comes while it connects."""
    while waiting := [task for task in tasks if not task.done()]:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting, timeout=0.2)
