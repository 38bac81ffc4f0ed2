"""Isolation of a report's parts: one that raises an exception becomes a line of the report."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

FAILED = "could not be computed"
log = logging.getLogger(__name__)
T = TypeVar("T")


def attempt(part: str, compute: Callable[[], T], faults: list[str]) -> T | None:
    """Return the computed part; if that raises an exception, add a line to `faults` and return None."""
    try:
        return compute()
    except Exception as error:  # a run may have any combination of systems, and other parts do not depend on this one
        faults.append(f"{part} {describe(error)}")
        return None


def describe(error: Exception) -> str:
    """Return the end of the line about a part that raised an exception, and log its traceback."""
    log.debug("a part of a report %s", FAILED, exc_info=error)
    return f"{FAILED}: {type(error).__name__}: {error}"
