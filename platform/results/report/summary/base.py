"""Parts of a summary. One module per kind of part; `table.py` lists them.

A part reads the tables of a run and is omitted if the run lacks its data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from driftlab.platform.results import stats
from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import View
from driftlab.platform.results.figures.plots import decimals, margin
from driftlab.platform.results.stats import Estimate

if TYPE_CHECKING:
    import pandas as pd

DASH = "–"
BOUNDS: Mapping[str, str] = {
    "no_adaptation": "bound: no adaptation",
    "zero_delay_link": "bound: zero-delay link",
    "best_static": "bound: best static model",
    "oracle": "bound: per-window oracle",
    "true_load": "bound: true load",
    "true_gains": "bound: true gains",
}
MEANINGS: Mapping[str, str] = {
    "no_adaptation": "the network as it was delivered, which never changes",
    "zero_delay_link": "its method on a link without delay",
    "best_static": "the single best network for the whole session, which only hindsight can select",
    "oracle": "a network that is trained on each window before the window is scored",
    "true_load": "its method with the true load of the device in place of the measured one",
    "true_gains": "its scheduler with the accuracies on later frames in place of learned gains",
}
MEASURES: Mapping[str, str] = {
    "mIoU": "mean intersection over union of the classes",
    "accuracy": "share of right predictions",
    "F1": "harmonic mean of precision and recall of the boxes",
}
MAX_SENTENCES = 3  # settings described in sentences; the table holds all
T = TypeVar("T")


@dataclass(frozen=True)
class Column:
    """Heading of a column; `emphasis` is strong, quiet or empty."""

    title: str
    unit: str = ""
    emphasis: str = ""
    detail: bool = False  # on the page only, as a terminal has no room for it

    @property
    def named(self) -> str:
        """Return title and unit in one line."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


@dataclass(frozen=True)
class Row:
    """One system in one setting: a text for each column."""

    setting: str
    system: str
    bound: str | None
    failed: int  # cells
    texts: Sequence[str]
    best: bool = False  # of the methods in its setting

    @property
    def named(self) -> str:
        """Return the system, with the kind of bound if it is one."""
        return f"{self.system} ({BOUNDS[self.bound]})" if self.bound else self.system


@dataclass(frozen=True)
class Part:
    """One table of a summary with sentences, a note on reading it, and warnings."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    sentences: Sequence[str]
    note: str
    warnings: Sequence[str] = ()  # printed in the terminal too


Kind = Callable[[View], Part | None]


def cells(view: View) -> pd.DataFrame:
    """List every cell with its setting, including failed ones."""
    return plots.with_settings(view.tables.frame("runs"), view.tables.run.info)


def by_system(view: View, line: Callable[[str, str, pd.DataFrame], T]) -> list[T]:
    """Summarise each system per setting from its cells; bounds come last."""
    runs = cells(view)
    return [
        line(setting, system, own)
        for setting in sorted(set(runs["setting"]))
        for system in view.styles
        if len(own := runs[(runs["setting"] == setting) & (runs["system"] == system)])
    ]


def bound_of(runs: pd.DataFrame) -> str | None:
    """Return the kind of bound of a system's cells; None for a method."""
    bounds = runs["bound"].dropna()
    return None if bounds.empty else str(bounds.iloc[0])


def failed(runs: pd.DataFrame) -> int:
    """Count the failed cells."""
    return int((runs["status"] == "failed").sum())


def mean(values: Iterable[float]) -> float | None:
    """Return the mean of the measured values; None if there is none."""
    found = stats.mean(values)
    return None if found is None else found.mean


def score(found: Estimate | None) -> str:
    """Format a score with the decimals that its interval supports, and half of the interval; or a dash."""
    return DASH if found is None else f"{found.mean:.{decimals(found)}f}{margin(found)}"


def percent(found: Estimate | None) -> str:
    """Format a share in per cent and half of its interval, or a dash."""
    return DASH if found is None else f"{100 * found.mean:.{decimals(found, 1, 100)}f}{margin(found, 100, 1)}"


def number(value: float | None) -> str:
    """Format a number with three digits, or a dash."""
    return DASH if value is None else plots.short(value)


def count(number: int, noun: str) -> str:
    """Format a count with its noun in singular or plural."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
