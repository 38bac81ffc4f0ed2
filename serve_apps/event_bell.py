"""A bell that threads ring for coroutines which wait for something new."""

from __future__ import annotations

import asyncio
import contextlib
import threading


class News:
    """Counts what happened; a coroutine waits until there is more than it has seen."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()

    def tell(self) -> None:
        """Wake all that wait; from any thread."""
        with self._lock:
            self.count += 1
            waiting, self._waiting = self._waiting, set()
        for loop, future in waiting:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(_wake, future)

    async def wait(self, seen: int, most_s: float) -> None:
        """Wait until something happened after the seen count, or the time is over."""
        loop = asyncio.get_running_loop()
        one = (loop, loop.create_future())
        with self._lock:
            if self.count != seen:
                return
            self._waiting.add(one)
        try:
            await asyncio.wait_for(one[1], most_s)
        except TimeoutError:
            pass
        finally:
            with self._lock:
                self._waiting.discard(one)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
