"""A thread for Ray's blocking calls, so that the caller can be interrupted or time out."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")
POLL_INTERVAL_S = 0.2  # between checks of a waiting caller whether Ray still runs
MEANWHILE_INTERVAL_S = 0.02  # between calls of `meanwhile`
ABANDONED = "ray, abandoned"  # name of a thread whose call did not return


class RayThread:
    """Runs calls sequentially in one thread for as long as the connection exists.

    Ray's processes end with the thread that started them, and Ray replaces the signal handlers of the main thread.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check  # raises if Ray has ended, so that a caller stops waiting
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self.busy = False
        self._thread = threading.Thread(target=self._serve, name="ray", daemon=True)
        self._thread.start()

    def run(
        self, function: Callable[[], T], within_s: float = float("inf"), meanwhile: Callable[[], object] | None = None
    ) -> T:
        """Return the result of a call, or raise TimeoutError; call `meanwhile` repeatedly while waiting."""
        future, deadline = self.begin(function), time.monotonic() + within_s
        while not _wait(future, meanwhile):
            self._check()
            if not self._thread.is_alive():
                raise RuntimeError("this connection to Ray is closed")
            if time.monotonic() > deadline:
                raise TimeoutError(f"no reply within {within_s:g} s")
        return future.result()

    def begin(self, function: Callable[[], T]) -> Future[T]:
        """Queue a call and return its future."""
        future: Future[T] = Future()
        self._calls.put((future, function))
        return future

    def end(self, within_s: float) -> bool:
        """Stop after the queued calls; return whether they returned in time."""
        self._calls.put(None)
        self._thread.join(within_s)
        if self._thread.is_alive():
            self._thread.name = ABANDONED
        return not self._thread.is_alive()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            self.busy = True
            try:
                future.set_result(function())
            except BaseException as error:  # raised again in the thread that waits for the result
                future.set_exception(error)
            self.busy = False


def wait_for_abandoned(within_s: float) -> bool:
    """Return whether all abandoned threads end in time.

    Until then their calls may change the Ray of this process.
    """
    deadline = time.monotonic() + within_s
    abandoned = [thread for thread in threading.enumerate() if thread.name == ABANDONED]
    for thread in abandoned:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in abandoned)


def _wait(future: Future[Any], meanwhile: Callable[[], object] | None) -> bool:
    """Wait up to `POLL_INTERVAL_S`; return whether the future is done."""
    if meanwhile is None:
        return bool(wait([future], POLL_INTERVAL_S).done)
    until = time.monotonic() + POLL_INTERVAL_S
    while not (done := bool(wait([future], MEANWHILE_INTERVAL_S).done)) and time.monotonic() < until:
        meanwhile()
    return done
