"""Sampling of contract tests: every member is tested for every property, on a few of the columns.

A contract is a matrix of members, properties and columns (networks, sessions, sizes). The full matrix takes minutes and
finds no more faults than a part of it. A member's columns rotate from property to property, and members start at
different columns, so that each column is tested for each property. A property that depends on the column uses more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Column = TypeVar("Column")
Test = TypeVar("Test", bound=Callable[..., object])
EVERY = 1000


def on_columns(count: int) -> Callable[[Test], Test]:
    """Set the number of columns on which a property is tested."""

    def marked(test: Test) -> Test:
        test.columns = count  # type: ignore[attr-defined]
        return test

    return marked


def sampled(test: Callable[..., object], row: int, columns: Sequence[Column]) -> list[Column]:
    """Return the columns of one row for a property; they depend only on its name and the row's number."""
    first = sum(map(ord, test.__name__)) + row
    count = min(getattr(test, "columns", 1), len(columns))
    return [columns[(first + step) % len(columns)] for step in range(count)]
