"""Results that a process has computed before, kept within a budget of memory."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

BUDGET_BYTES = 256 * 2**20  # in a process: ten streams of 240 s at 4 frames per second of 64 x 96 pixels
T = TypeVar("T")


class Kept:
    """Results by their inputs; beyond the budget the least recently used ones are dropped."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self.budget_bytes = budget_bytes
        self._used_bytes = 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        """Return a kept result, which must not be modified; None if there is none."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: Hashable, value: Any, size_bytes: int) -> None:
        """Keep a result, unless it alone exceeds the budget."""
        with self._lock:
            if size_bytes > self.budget_bytes or key in self._entries:
                return
            self._entries[key] = (value, size_bytes)
            self._used_bytes += size_bytes
            while self._used_bytes > self.budget_bytes:
                self._used_bytes -= self._entries.popitem(last=False)[1][1]

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return a kept array, or tuple of arrays; compute and keep it if there is none."""
        found = self.get(key)
        if found is None:
            found = compute()
            self.put(key, found, bytes_of(found))
        return found  # type: ignore[no-any-return]

    def clear(self) -> None:
        """Drop everything: files may have changed since the last run."""
        with self._lock:
            self._entries.clear()
            self._used_bytes = 0


@cache
def kept() -> Kept:
    """Return the results of this process."""
    return Kept()


def content_key(purpose: str, *arrays: npt.NDArray[Any]) -> tuple[str, bytes]:
    """Return a key from the contents of arrays."""
    hashed = hashlib.blake2b(digest_size=16)
    for array in arrays:
        hashed.update(f"{array.dtype.str}{array.shape}".encode())
        hashed.update(np.ascontiguousarray(array).data)
    return purpose, hashed.digest()


def bytes_of(value: Any) -> int:
    """Return the size of an array, or of the arrays that an array of objects or a tuple holds."""
    return int(value.nbytes) if isinstance(value, np.ndarray) and value.dtype != object else sum(map(bytes_of, value))
