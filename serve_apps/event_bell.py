"""Wake coroutines from other threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading


class EventBell:
    """A counter of events; coroutines wait until it exceeds the count that they have seen."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()

    def ring(self) -> None:
        """Count an event and wake all waiting coroutines; may be called from any thread."""
        with self._lock:
            self.count += 1
            waiting, self._waiting = self._waiting, set()
        for loop, future in waiting:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_wake, future)

    async def wait(self, seen: int, max_s: float) -> None:
        """Wait until the count differs from `seen`, at most `max_s`."""
        loop = asyncio.get_running_loop()
        waiter = (loop, loop.create_future())
        with self._lock:
            if self.count != seen:
                return
            self._waiting.add(waiter)
        try:
            await asyncio.wait([waiter[1]], timeout=max_s)
        finally:
            with self._lock:
                self._waiting.discard(waiter)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
