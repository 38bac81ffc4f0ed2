"""A thread for Ray's blocking calls, so that their callers can be interrupted or give up."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")
LOOK_S = 0.2  # interval at which a wait checks whether it still makes sense
OFTEN_S = 0.02  # interval of what is done beside a wait
ABANDONED = "ray, abandoned"  # name of a thread that did not return


class RayThread:
    """Runs calls one after another while the connection lasts.

    Ray's processes end with the thread that has started them, and Ray takes over the signals of the main thread.
    """

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look  # raises where waiting no longer makes sense
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self.busy = False
        self._thread = threading.Thread(target=self._serve, name="ray", daemon=True)
        self._thread.start()

    def run(
        self, function: Callable[[], T], within_s: float = float("inf"), beside: Callable[[], object] | None = None
    ) -> T:
        """Return the result of a call; TimeoutError if it takes too long. Meanwhile `beside` is called often."""
        answer, deadline = self.begin(function), time.monotonic() + within_s
        while not _wait(answer, beside):
            self._look()
            if not self._thread.is_alive():
                raise RuntimeError("this connection to Ray is closed")
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer within {within_s:g} s")
        return answer.result()

    def begin(self, function: Callable[[], T]) -> Future[T]:
        """Queue a call."""
        answer: Future[T] = Future()
        self._calls.put((answer, function))
        return answer

    def end(self, within_s: float) -> bool:
        """Stop after the queued calls; tell whether they returned in time."""
        self._calls.put(None)
        self._thread.join(within_s)
        if self._thread.is_alive():
            self._thread.name = ABANDONED
        return not self._thread.is_alive()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            answer, function = call
            self.busy = True
            try:
                answer.set_result(function())
            except BaseException as error:  # it is raised in the thread that waits for it
                answer.set_exception(error)
            self.busy = False


def _wait(answer: Future[Any], beside: Callable[[], object] | None) -> bool:
    """Wait for a while; tell whether the answer is there."""
    if beside is None:
        return bool(wait([answer], LOOK_S).done)
    until = time.monotonic() + LOOK_S
    while not (done := bool(wait([answer], OFTEN_S).done)) and time.monotonic() < until:
        beside()
    return done
