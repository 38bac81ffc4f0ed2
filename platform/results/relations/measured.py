"""What a measure gives: a value with its interval, or the reason why the tables cannot tell."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftlab.platform.results import stats
from driftlab.platform.results.stats import Estimate

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
    def of(cls, found: Estimate, note: str = "", by_seed: Mapping[int, float] | None = None) -> Measured:
        """Take a mean with its interval."""
        return cls(found.mean, found.low, found.high, found.n, note, by_seed)


@dataclass(frozen=True)
class Untestable:
    """Why these tables cannot say anything about a question."""

    reason: str
    elsewhere: bool = True  # whether another run may tell


def over_seeds(values: pd.Series, note: str = "") -> Measured | Untestable:
    """Average values over the cells of each seed, then over seeds: workloads are chosen, seeds are drawn."""
    seeds = stats.over_seeds(values)
    found = stats.mean(seeds)
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
    if isinstance(found, Untestable):
        return found
    seeds = {seed: math.exp(value) for seed, value in (found.by_seed or {}).items()}
    return Measured.of(Estimate(found.value, found.low, found.high, found.n).rescaled(math.exp), found.note, seeds)


def lowest(values: pd.Series, *, chosen_after: bool) -> Measured | Untestable:
    """Take the workload that is lowest over seeds."""
    found = stats.lowest(values, "workload", chosen_after=chosen_after)
    if found is None:
        return Untestable(MORE_SEEDS)
    name, estimate, count = found
    own = values[values.index.get_level_values("workload") == name]
    return Measured.of(estimate, f"on {name}, the lowest of {count}", values_by_seed(own))
