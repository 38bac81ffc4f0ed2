"""What a measure gives: a value with its interval, or the reason why the tables cannot tell."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftlab.platform.core.metrics import Interval, interval

if TYPE_CHECKING:
    import pandas as pd

MORE_SEEDS = "one seed has no interval; run it with more seeds"


@dataclass(frozen=True)
class Measured:
    """What the tables say about a question."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 1
    note: str = ""

    @classmethod
    def of(cls, found: Interval, note: str = "") -> Measured:
        """Take a mean with its interval."""
        return cls(found.mean, found.low, found.high, found.n, note)


@dataclass(frozen=True)
class Untestable:
    """Why these tables cannot say anything about a question."""

    reason: str


def over_seeds(cells: pd.DataFrame, note: str = "") -> Measured | Untestable:
    """Average a `value` over the cells of each seed, then over seeds: workloads are chosen, seeds are drawn."""
    found = interval(cells.groupby("seed")["value"].mean())
    if found is None:
        return Untestable("nothing was measured")
    return Untestable(MORE_SEEDS) if found.n == 1 else Measured.of(found, re.sub(r"(?<!\w)-(?=\d)", "\u2212", note))


def ratio_over_seeds(cells: pd.DataFrame, note: str = "") -> Measured | Untestable:
    """Average a `value` as factors are averaged: by its logarithm."""
    found = over_seeds(cells.assign(value=cells["value"].map(math.log)), note)
    if isinstance(found, Untestable) or found.low is None or found.high is None:
        return found
    return Measured(math.exp(found.value), math.exp(found.low), math.exp(found.high), found.n, found.note)


def lowest(cells: pd.DataFrame, *, chosen_after: bool) -> Measured | Untestable:
    """Take the workload whose `value` is lowest over seeds: by its interval's lower end if all workloads have to hold.

    Where a claim needs only one workload, it is the one with the lowest mean. The worst of many is low by chance too:
    `chosen_after` divides the chance of an interval that misses by their number (Bonferroni).
    """
    from scipy.special import stdtrit

    found = {name: interval(part["value"]) for name, part in cells.groupby("workload")}
    known = {name: value for name, value in found.items() if value is not None and value.low is not None}
    if not known:
        return Untestable(MORE_SEEDS)
    by = "mean" if chosen_after else "low"
    name, least = min(known.items(), key=lambda item: float(getattr(item[1], by)))
    assert least.low is not None
    wider = 1.0
    if chosen_after:
        wider = float(stdtrit(least.n - 1, 1 - 0.025 / len(known)) / stdtrit(least.n - 1, 0.975))
    half = (least.mean - least.low) * wider
    note = f"on {name}, the lowest of {len(known)}"
    return Measured(least.mean, least.mean - half, least.mean + half, least.n, note)
