"""What a summary is made of. One file per kind of part; `table.py` lists them.

A part looks at what a run holds, as figures do, and is left out where the run has nothing that it sums up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from driftlab.platform.results import stats
from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import View
from driftlab.platform.results.stats import Estimate

if TYPE_CHECKING:
    import pandas as pd

DASH = "–"
BOUNDS: Mapping[str, str] = {
    "do_nothing": "does nothing",
    "null_link": "over a link that takes no time",
    "best_static": "best static choice",
    "oracle": "per-window oracle",
}
TOLD = 3  # settings told in words; the table holds the others
T = TypeVar("T")


@dataclass(frozen=True)
class Column:
    """What stands above a column of numbers; `look` is strong, quiet or nothing."""

    title: str
    unit: str = ""
    look: str = ""

    @property
    def named(self) -> str:
        """Write title and unit in one line."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


@dataclass(frozen=True)
class Row:
    """One system in one setting: a text for each column."""

    setting: str
    system: str
    bound: str | None
    failed: int  # cells
    texts: Sequence[str]

    @property
    def named(self) -> str:
        """Write the system, and which bound it is."""
        return f"{self.system} ({BOUNDS[self.bound]})" if self.bound else self.system


@dataclass(frozen=True)
class Part:
    """One table of a summary, what is said of it, and how it is to be read."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    words: Sequence[str]
    note: str
    warnings: Sequence[str] = ()  # what a terminal says too


Kind = Callable[[View], Part | None]


def cells(view: View) -> pd.DataFrame:
    """List every cell with its setting, also those that failed."""
    return plots.with_settings(view.tables.frame("runs"))


def by_system(view: View, line: Callable[[str, str, pd.DataFrame], T]) -> list[T]:
    """Sum up each system in each setting from its cells, methods first and bounds last."""
    runs = cells(view)
    return [
        line(setting, system, own)
        for setting in sorted(set(runs["setting"]))
        for system in view.looks
        if len(own := runs[(runs["setting"] == setting) & (runs["system"] == system)])
    ]


def bound_of(runs: pd.DataFrame) -> str | None:
    """Tell which bound a system's cells are."""
    bounds = runs["bound"].dropna()
    return None if bounds.empty else str(bounds.iloc[0])


def failed(runs: pd.DataFrame) -> int:
    """Count the cells that did not come to their end."""
    return int((runs["status"] == "failed").sum())


def mean(values: Iterable[float]) -> float | None:
    """Average what was measured."""
    found = stats.mean(values)
    return None if found is None else found.mean


def score(found: Estimate | None) -> str:
    """Write a score with three decimals and half of its interval, or a dash."""
    return DASH if found is None else f"{found.mean:.3f}{half(found)}"


def half(found: Estimate, scale: float = 1.0, digits: int = 3) -> str:
    """Write half of an interval to stand beside its mean, or nothing where one value has none."""
    return "" if found.low is None else f" ± {scale * (found.mean - found.low):.{digits}f}"


def signed(value: float) -> str:
    """Write a difference with its sign."""
    return f"{value:+.3f}".replace("-", "\u2212")


def percent(found: Estimate | None) -> str:
    """Write a share of the whole in per cent and half of its interval, or a dash."""
    return DASH if found is None else f"{100 * found.mean:.1f}{half(found, 100, 1)}"


def number(value: float | None) -> str:
    """Write a plain number with three digits, or a dash."""
    return DASH if value is None else plots.short(value)


def count(number: int, noun: str) -> str:
    """Write so many of something."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
