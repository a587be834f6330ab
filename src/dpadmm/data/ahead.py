"""What comes next is made in a thread of its own while this is looked at."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterator[T], count: int = 2) -> Generator[T, None, None]:
    """The same items in the same order, up to ``count`` of them made beforehand; errors come in their place.

    Examples
    --------
    >>> list(ahead(iter("abc")))
    ['a', 'b', 'c']
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="ahead") as worker:
        coming: deque[Future[T]] = deque(worker.submit(next, items) for _ in range(count))
        try:
            while True:
                try:
                    item = coming.popleft().result()
                except StopIteration:
                    return
                coming.append(worker.submit(next, items))
                yield item
                del item
        finally:
            worker.shutdown(cancel_futures=True)
            if hasattr(items, "close"):
                items.close()
