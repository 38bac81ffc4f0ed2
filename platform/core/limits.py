"""A limit to how long a call may take on this machine: for members that anybody may bring along."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


class TookTooLong(BaseException):
    """Raised inside a call that went on for longer than it may; no `except Exception` in the call keeps it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TookTooLong in this thread when the time is over.

    Python code is interrupted between two of its instructions, so that a loop without end is; a single call into
    compiled code is interrupted when it returns.
    """
    watch = _watch()
    call = watch.begin(time.monotonic() + seconds)
    try:
        yield
    finally:
        watch.end(call)


class _Watch:
    """One thread that interrupts every call whose time is over: a thread for each call took longer than the calls."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._calls: dict[int, tuple[float, int]] = {}  # until when, and in which thread
        self._sleeps_until = float("inf")
        threading.Thread(target=self._run, name="time limits", daemon=True).start()

    def begin(self, until: float) -> int:
        """Watch a call of this thread."""
        with self._changed:
            number = next(self._numbers)
            self._calls[number] = (until, threading.get_ident())
            if until < self._sleeps_until:
                self._changed.notify()
            return number

    def end(self, number: int) -> None:
        """Let a call go: from here on nothing is raised for it any more."""
        with self._changed:
            self._calls.pop(number, None)

    def _run(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for number, (until, thread) in list(self._calls.items()):
                    if until <= now:
                        del self._calls[number]
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(
                            ctypes.c_ulong(thread), ctypes.py_object(TookTooLong)
                        )
                self._sleeps_until = min((until for until, _ in self._calls.values()), default=float("inf"))
                wait_s = None if self._sleeps_until == float("inf") else max(0.0, self._sleeps_until - now)
                self._changed.wait(wait_s)


@cache
def _watch() -> _Watch:
    """Start the thread when the first call is limited."""
    return _Watch()
