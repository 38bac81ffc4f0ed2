"""The rule by which contracts are sampled: every member meets every property, each on a few of the columns.

A contract is a matrix of members, properties and columns (networks, sessions, sizes). All of it takes minutes and finds
what a part finds: a member goes through the columns that suit it from property to property, and members begin at
different ones, so each column meets each property too. A property that depends on the column asks for more of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Column = TypeVar("Column")
Test = TypeVar("Test", bound=Callable[..., object])
EVERY = 1000


def on_columns(count: int) -> Callable[[Test], Test]:
    """Let a property be met on so many columns instead of one."""

    def marked(test: Test) -> Test:
        test.columns = count  # type: ignore[attr-defined]
        return test

    return marked


def sampled(test: Callable[..., object], row: int, columns: Sequence[Column]) -> list[Column]:
    """Choose the columns of one row for a property: by its name and the row's number, the same ones every time."""
    first = sum(map(ord, test.__name__)) + row
    count = min(getattr(test, "columns", 1), len(columns))
    return [columns[(first + step) % len(columns)] for step in range(count)]
