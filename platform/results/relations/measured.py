"""What a measure gives: a value with its interval, or the reason why the tables cannot tell."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
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
    by_seed: Mapping[int, float] | None = None  # the averaged values; None if there is not one for each seed

    @classmethod
    def of(cls, found: Interval, note: str = "", by_seed: Mapping[int, float] | None = None) -> Measured:
        """Take a mean with its interval."""
        return cls(found.mean, found.low, found.high, found.n, note, by_seed)


@dataclass(frozen=True)
class Untestable:
    """Why these tables cannot say anything about a question."""

    reason: str
    elsewhere: bool = True  # whether another run may tell


def over_seeds(values: pd.Series, note: str = "") -> Measured | Untestable:
    """Average values over the cells of each seed, then over seeds: workloads are chosen, seeds are drawn."""
    seeds = values.groupby("seed").mean()
    found = interval(seeds)
    if found is None:
        return Untestable("nothing was measured")
    if found.n == 1:
        return Untestable(MORE_SEEDS)
    return Measured.of(found, re.sub(r"(?<!\w)-(?=\d)", "\u2212", note), values_by_seed(seeds))


def values_by_seed(values: pd.Series) -> dict[int, float] | None:
    """Map seeds to their measured values; None if a seed has several, or no seed is named."""
    if "seed" not in values.index.names:
        return None
    seeds = values.index.get_level_values("seed")
    found = zip(seeds, values, strict=True)
    return {int(seed): float(value) for seed, value in found if math.isfinite(value)} if seeds.is_unique else None


def ratio_over_seeds(ratios: pd.Series, note: str = "") -> Measured | Untestable:
    """Average factors as factors are averaged: by their logarithm."""
    found = over_seeds(ratios.map(math.log), note)
    if isinstance(found, Untestable) or found.low is None or found.high is None:
        return found
    seeds = {seed: math.exp(value) for seed, value in (found.by_seed or {}).items()}
    return Measured(math.exp(found.value), math.exp(found.low), math.exp(found.high), found.n, found.note, seeds)


def lowest(values: pd.Series, *, chosen_after: bool) -> Measured | Untestable:
    """Take the workload that is lowest over seeds: by its interval's lower end if all workloads have to hold.

    Where a claim needs only one workload, it is the one with the lowest mean. The worst of many is low by chance too:
    `chosen_after` divides the chance of an interval that misses by their number (Bonferroni).
    """
    from scipy.special import stdtrit

    parts = dict(list(values.groupby("workload")))
    found = {name: interval(part) for name, part in parts.items()}
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
    return Measured(least.mean, least.mean - half, least.mean + half, least.n, note, values_by_seed(parts[name]))


def means(
    rows: pd.DataFrame, by: Iterable[str], value: str, *, least: float = -math.inf, most: float = math.inf
) -> pd.DataFrame:
    """Average a column over the cells of each seed, then over seeds: `by`, `mean`, `low` and `high` of 95 %, `n`.

    Intervals end at the least and the most that is possible.
    """
    import pandas as pd

    by = list(by)
    seeds = rows.dropna(subset=[value]).groupby([*by, "seed"])[value].mean().reset_index()
    found = []
    for key, part in seeds.groupby(by):
        mean = interval(part[value])
        if mean is not None:
            found.append((*key, *mean.within(least, most)))
    table = pd.DataFrame(found, columns=[*by, "mean", "low", "high", "n"])
    return table.astype(dict.fromkeys(("mean", "low", "high"), float))
