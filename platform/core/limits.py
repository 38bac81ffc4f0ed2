"""A time limit for calls into members, which users can supply."""

from __future__ import annotations

import ctypes
import inspect
import itertools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from driftlab.errors import RunError
from driftlab.platform.core.registry import Member


class TookTooLong(BaseException):
    """Raised inside a call that exceeds its time limit; `except Exception` does not catch it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TookTooLong in this thread when the time is over.

    Python code is interrupted between two of its instructions, so that a loop without end is; a single call into
    compiled code is interrupted when it returns.
    """
    watch = _watch()
    call = watch.number()
    try:
        watch.begin(call, time.monotonic() + seconds)
        yield
    finally:
        watch.end(call)


class _Limited:
    """Proxy of a member that limits the duration of every call; attributes are unchanged."""

    def __init__(self, made: Any, name: str, seconds: float, but: tuple[str, ...]) -> None:
        self._made, self._name, self._seconds, self._but = made, name, seconds, but

    def __str__(self) -> str:
        return self._name

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):  # copying and pickling query these before the member is set
            raise AttributeError(key)
        value = getattr(self._made, key)
        if not inspect.ismethod(value) or key in self._but:
            return value

        def call(*args: Any, **named: Any) -> Any:
            try:
                with time_limit(self._seconds):
                    return value(*args, **named)
            except TookTooLong:
                raise RunError(
                    f"{self._name}: {key} did not return within {self._seconds:g} s of this machine's time; "
                    "let it end, or set limits.member_s higher"
                ) from None

        self.__dict__[key] = call  # found without coming here from now on
        return call

    def __reduce__(self) -> tuple[type[_Limited], tuple[Any, str, float, tuple[str, ...]]]:
        return type(self), (self._made, self._name, self._seconds, self._but)


def limited(member: Member, seconds: float, but: tuple[str, ...] = ()) -> Any:
    """Make a member whose calls raise RunError if they do not return within the limit.

    The verbs in `but` are limited by their caller.
    """
    return _Limited(member.make(), str(member), seconds, but)


class _Watch:
    """One thread that interrupts every call past its limit: a thread per call cost more than the calls.

    A call may be interrupted while it begins or ends another one. So it enters the lock itself, which an interruption
    cannot leave locked; the condition's own way in is Python code that it can.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._numbers = itertools.count()
        self._calls: dict[int, tuple[float, threading.Thread]] = {}  # until when, and in which thread
        self._sleeps_until = float("inf")
        threading.Thread(target=self._run, name="time limits", daemon=True).start()

    def number(self) -> int:
        """Return a number for a call."""
        return next(self._numbers)

    def begin(self, number: int, until: float) -> None:
        """Watch a call of this thread."""
        with self._lock:
            self._calls[number] = (until, threading.current_thread())
            if until < self._sleeps_until:
                self._changed.notify()

    def end(self, number: int) -> None:
        """Stop watching a call; nothing is raised for it afterwards."""
        with self._lock:
            self._calls.pop(number, None)

    def _run(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for number, (until, thread) in list(self._calls.items()):
                    if until <= now:
                        del self._calls[number]
                        if thread.is_alive():  # another thread may have the number of an ended one
                            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(TookTooLong)
                            )
                self._sleeps_until = min((until for until, _ in self._calls.values()), default=float("inf"))
                wait_s = None if self._sleeps_until == float("inf") else max(0.0, self._sleeps_until - now)
                self._changed.wait(wait_s)


@cache
def _watch() -> _Watch:
    """Start the thread at the first limited call."""
    return _Watch()


os.register_at_fork(after_in_child=_watch.cache_clear)  # a forked process has not the thread
