"""A limit to how long a call may take on this machine: for members that anybody may bring along."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TookTooLong(BaseException):
    """Raised inside a call that went on for longer than it may; no `except Exception` in the call keeps it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TookTooLong in this thread when the time is over.

    Python code is interrupted between two of its instructions, so that a loop without end is; a single call into
    compiled code is interrupted when it returns.
    """
    thread, over = ctypes.c_ulong(threading.get_ident()), threading.Event()
    lock = threading.Lock()

    def interrupt() -> None:
        with lock:
            if not over.is_set():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TookTooLong))

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:  # from here on nothing is raised any more
            over.set()
        timer.cancel()
