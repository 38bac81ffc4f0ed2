"""Count operations that members report; mark functions of the lab, which are not charged."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_current = threading.local()  # `depth`: functions of the lab that run in this thread; `operations`: those reported


def of_the_lab(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function whose operations are the lab's in every system, such as decoding predictions."""

    @functools.wraps(function)
    def marked(*args: P.args, **kwargs: P.kwargs) -> R:
        _current.depth = getattr(_current, "depth", 0) + 1
        try:
            return function(*args, **kwargs)
        finally:
            _current.depth -= 1

    return marked


def in_the_lab() -> bool:
    """Return whether a function of the lab runs in this thread."""
    return bool(getattr(_current, "depth", 0))


def count(operations: int) -> None:
    """Charge the running call of a member for operations outside its network."""
    _current.operations = reported() + operations


def reported() -> int:
    """Return the operations that were reported in this thread."""
    return int(getattr(_current, "operations", 0))
