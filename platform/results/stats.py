"""Statistics of results: means with intervals, ratios, shares, slopes, ranks, pairs and verdicts.

Workloads are chosen and seeds are drawn: values are averaged over the cells of each seed first, and intervals are
Student's t at 95 % over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
ComparisonResult = Literal["better", "worse", "inconclusive"]
PLACES = ("workload", "fleet", "device", "app")  # equal within a pair, as is the seed
TAIL = 0.025  # of the distribution of the mean, outside the interval on each side


class Estimate(NamedTuple):
    """A mean with its 95 % interval; the interval of one value is None, not of width 0."""

    mean: float
    low: float | None
    high: float | None
    n: int

    def within(self, least: float = -math.inf, most: float = math.inf) -> Estimate:
        """Cut the interval to possible values, such as times from 0 on."""
        if self.low is None or self.high is None:
            return self
        return self._replace(low=max(self.low, least), high=min(self.high, most))

    def rescaled(self, scale: Callable[[float], float]) -> Estimate:
        """Return the mean and the ends of the interval on another scale, which must rise with this one."""
        low, high = (None if end is None else scale(end) for end in (self.low, self.high))
        return Estimate(scale(self.mean), low, high, self.n)

    def widened(self, comparisons: int) -> Estimate:
        """Widen the interval of a value that was selected from several (Bonferroni correction)."""
        if self.low is None:
            return self
        from scipy.special import stdtrit

        wider = float(stdtrit(self.n - 1, 1 - TAIL / comparisons) / stdtrit(self.n - 1, 1 - TAIL))
        half = (self.mean - self.low) * wider
        return self._replace(low=self.mean - half, high=self.mean + half)


def mean(values: Iterable[float | None]) -> Estimate | None:
    """Average the measured values with Student's t; None and NaN are left out, None if no value remains."""
    measured = np.array([value for value in values if value is not None and math.isfinite(value)], dtype=np.float64)
    if measured.size == 0:
        return None
    center = float(measured.mean())
    if measured.size == 1:
        return Estimate(center, None, None, 1)
    from scipy.special import stdtrit  # 0.2 s, and only a report needs it

    half = float(stdtrit(measured.size - 1, 1 - TAIL)) * float(measured.std(ddof=1)) / math.sqrt(measured.size)
    return Estimate(center, center - half, center + half, int(measured.size))


def ratio(logarithms: Iterable[float | None]) -> Estimate | None:
    """Return the geometric mean of factors, given their logarithms."""
    found = mean(logarithms)
    return None if found is None else found.rescaled(math.exp)


def share(holds: Iterable[bool]) -> Estimate:
    """Return the share of true cases, without an interval."""
    cases = np.array(list(holds), dtype=bool)
    return Estimate(float(cases.mean()), None, None, len(cases))


def slope(x: Iterable[float], y: Iterable[float]) -> float:
    """Fit a line and return its slope; NaN if all x are equal."""
    places, heights = (np.array(list(values), dtype=np.float64) for values in (x, y))
    return float(np.polyfit(places, heights, 1)[0]) if len(np.unique(places)) > 1 else math.nan


def rank_correlation(ours: Sequence[float] | Floats, theirs: Sequence[float] | Floats) -> float:
    """Return Spearman's rank correlation; equal values share a rank, NaN if a side is constant or has NaN."""
    ranks = np.array([_ranks(ours), _ranks(theirs)])
    return float(np.corrcoef(ranks)[0, 1]) if (np.ptp(ranks, axis=1) > 0).all() else math.nan


def _ranks(values: Sequence[float] | Floats) -> Floats:
    """Rank values from 1, equal ones by their mean place: those of `scipy.stats`, whose import takes .5 s."""
    numbers = np.asarray(values, dtype=np.float64)
    _, places, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    ranks: Floats = (counts.cumsum() - (counts - 1) / 2)[places]
    return np.full_like(ranks, math.nan) if np.isnan(numbers).any() else ranks


def over_seeds(values: pd.Series) -> pd.Series:
    """Average over the cells of each seed."""
    return values.groupby("seed").mean()


def means(
    rows: pd.DataFrame,
    by: Iterable[str],
    value: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    others: Sequence[str] = (),
) -> pd.DataFrame:
    """Average a column over the cells of each seed, then over seeds, by group.

    Columns are those of `by`, `mean`, `low` and `high` of the 95 % interval, and `n`. Intervals are cut at `least` and
    `most`. The columns `others` are averaged over all rows of a group, without intervals.
    """
    import pandas as pd

    by = list(by)
    seeds = rows.dropna(subset=[value]).groupby([*by, "seed"])[value].mean().reset_index()
    found = [
        (*key, *estimate.within(least, most)) for key, part in seeds.groupby(by) if (estimate := mean(part[value]))
    ]
    table = pd.DataFrame(found, columns=[*by, "mean", "low", "high", "n"])
    table = table.astype(dict.fromkeys(("mean", "low", "high"), float))
    return table.merge(rows.groupby(by)[list(others)].mean().reset_index(), on=by) if others else table


def lowest(values: pd.Series, by: str, *, chosen_after: bool) -> tuple[str, Estimate, int] | None:
    """Return the lowest group, its estimate and the number of groups; None without intervals.

    A claim about all groups takes the group with the lowest interval end. A claim about one group (`chosen_after`)
    takes the lowest mean and widens its interval, since the lowest of many is low by chance too.
    """
    estimates = {str(name): mean(part) for name, part in values.groupby(by)}
    bounded = {name: one for name, one in estimates.items() if one is not None and one.low is not None}
    if not bounded:
        return None
    by_end = "mean" if chosen_after else "low"
    name, found = min(bounded.items(), key=lambda item: float(getattr(item[1], by_end)))
    return name, found.widened(len(bounded) if chosen_after else 1), len(bounded)


def pairs(rows: pd.DataFrame, ours: object, theirs: object, of: str, by: Sequence[str], side: str) -> pd.DataFrame:
    """List the means of a column by place and seed as `ours` and `theirs`, where both were measured.

    The column `side` assigns rows to the two sides. Without a common place there are no rows.
    """
    return pair_of(sides(rows, of, by, side), ours, theirs)


def sides(rows: pd.DataFrame, of: str, by: Sequence[str], side: str) -> pd.Series:
    """Average a column by side, place and seed, for several calls of `pair_of`."""
    return rows.dropna(subset=[of]).astype({of: float}).groupby([side, *by])[of].mean()


def pair_of(means: pd.Series, ours: object, theirs: object) -> pd.DataFrame:
    """List the means of two sides as `ours` and `theirs`, where both were measured."""
    names = means.index.levels[0]
    left, right = (means.xs(name) if name in names else means.iloc[:0].droplevel(0) for name in (ours, theirs))
    return left.to_frame("ours").join(right.rename("theirs"), how="inner")


def gains(rows: pd.DataFrame, reference: pd.DataFrame, of: str, by: Sequence[str]) -> pd.DataFrame:
    """Join every row with the reference in the same place; `gain` is the difference of a column."""
    both = rows.merge(reference[[*by, of]], on=list(by), suffixes=("", "_reference"))
    return both.assign(gain=both[of] - both[f"{of}_reference"])


def paired_difference(both: pd.DataFrame) -> Estimate | None:
    """Average `ours` minus `theirs` within seeds and then over them."""
    sides = both.groupby("seed")[["ours", "theirs"]].mean()
    return mean(sides["ours"] - sides["theirs"])


def verdict(difference: Estimate | None, *, less_is_better: bool = False) -> ComparisonResult:
    """Judge a mean difference: better or worse where its interval excludes 0."""
    if difference is None or difference.low is None or difference.high is None:
        return "inconclusive"
    if difference.low <= 0 <= difference.high:
        return "inconclusive"
    return "better" if (difference.mean > 0) != less_is_better else "worse"
