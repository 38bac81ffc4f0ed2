"""The statistics of claims: each reduces the rows of a relation to a number, most with an interval.

Rows have a column `value`, or `ours` and `theirs`; a statistic raises `Untestable` where there are too few of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from driftlab.platform.results import stats
from driftlab.platform.results.relations.base import Untestable
from driftlab.platform.results.stats import Estimate

if TYPE_CHECKING:
    import pandas as pd

MORE_SEEDS = "one seed has no interval; run it with more seeds"
Over = Literal["seeds", "trainings", "apps"]


@dataclass(frozen=True)
class Measured:
    """The measured value of a claim, with its interval if it has one."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 1
    note: str = ""
    by_seed: Mapping[int, float] | None = None  # the averaged values; None if there is not one for each seed

    @classmethod
    def of(cls, found: Estimate, note: str = "", by_seed: Mapping[int, float] | None = None) -> Measured:
        """Make a measured value of a mean with its interval."""
        return cls(found.mean, found.low, found.high, found.n, note, by_seed)


def value(rows: pd.DataFrame, over: Over = "seeds") -> Measured:
    """Average a value within each seed, then over seeds; `over` may also name trainings or applications."""
    return _averaged(rows["value"], rows, over)


def difference(rows: pd.DataFrame, over: Over = "seeds") -> Measured:
    """Average `ours` minus `theirs`; rows with `ranges` get a note with the range over workloads."""
    gains = rows["ours"] - rows["theirs"]
    found = _averaged(gains, rows, over)
    if not rows.attrs.get("ranges"):
        return found
    means = gains.groupby("workload").mean()
    note = f"{means.min():+.3f} on {means.idxmin()} to {means.max():+.3f} on {means.idxmax()}"
    return replace(found, note=_with_minus(note))


def ratio(rows: pd.DataFrame) -> Measured:
    """Return the geometric mean of a factor, or of `ours` over `theirs`."""
    factors = rows["value"] if "value" in rows else rows["ours"] / rows["theirs"]
    found = _averaged(factors.map(math.log), rows, "seeds")
    scaled = Estimate(found.value, found.low, found.high, found.n).rescaled(math.exp)
    return Measured.of(scaled, found.note, {seed: math.exp(value) for seed, value in (found.by_seed or {}).items()})


def saving(rows: pd.DataFrame, over: Over = "seeds") -> Measured:
    """Average the saving of `ours` as a share of `theirs`."""
    return _averaged((1 - rows["ours"] / rows["theirs"]).dropna(), rows, over)


def lowest(rows: pd.DataFrame, *, chosen_after: bool = False) -> Measured:
    """Return the mean of the workload with the lowest interval end or, `chosen_after`, the lowest mean."""
    values = rows["value"] if "value" in rows else rows["ours"] - rows["theirs"]
    found = stats.lowest(values, "workload", chosen_after=chosen_after)
    if found is None:
        raise Untestable(MORE_SEEDS)
    name, estimate, count = found
    own = values[values.index.get_level_values("workload") == name]
    return Measured.of(estimate, _note(rows) or f"on {name}, the lowest of {count}", _by_seed(own))


def distance(rows: pd.DataFrame) -> Measured:
    """Return the absolute mean difference; the interval ends at its end that is farther from 0."""
    found = _averaged(rows["ours"] - rows["theirs"], rows, "seeds")
    if found.low is None or found.high is None:
        return found
    note = _with_minus(f"{found.value:+.4f}, from {found.low:+.4f} to {found.high:+.4f}")
    seeds = {seed: math.copysign(value, value * found.value) for seed, value in (found.by_seed or {}).items()}
    return Measured(abs(found.value), 0.0, max(abs(found.low), abs(found.high)), found.n, note, seeds)


def rank(rows: pd.DataFrame, paper: Mapping[str, float]) -> Measured:
    """Average the rank correlation (Spearman) of each row with the paper's values of the same columns."""
    order = list(paper.values())
    agreement = rows[list(paper)].apply(lambda own: stats.rank_correlation(order, own.to_numpy()), axis=1)
    return _averaged(agreement, rows, "seeds")


def identity(rows: pd.DataFrame) -> Measured:
    """Average `ours` over `theirs`, whose bytes must be equal in every row."""
    ratios = (rows["ours"] / rows["theirs"]).tolist()
    note = f"{min(ratios):.5g} to {max(ratios):.5g} over {len(ratios)} families; {_note(rows)}"
    return Measured(sum(ratios) / len(ratios), n=len(ratios), note=note)


def share(rows: pd.DataFrame) -> Measured:
    """Return the share of the rows whose value is true."""
    return Measured.of(stats.share(rows["value"]), _note(rows))


def total(rows: pd.DataFrame) -> Measured:
    """Add up a value over all rows."""
    return Measured(float(rows["value"].sum()), n=len(rows), note=_note(rows))


def largest(rows: pd.DataFrame) -> Measured:
    """Return the largest value, or the largest distance of `ours` from `theirs`."""
    values = rows["value"] if "value" in rows else (rows["ours"] - rows["theirs"]).abs()
    return Measured(float(values.max()), n=rows.attrs.get("n", 1), note=_note(rows))


def best(rows: pd.DataFrame) -> Measured:
    """Return the setting, which is the index of the rows, with the largest value."""
    return Measured(float(rows["value"].idxmax()), note=_note(rows))


STATISTICS: Mapping[str, Callable[..., Measured]] = {
    one.__name__: one
    for one in (value, difference, ratio, saving, lowest, distance, rank, identity, share, total, largest, best)
}


def _averaged(values: pd.Series, rows: pd.DataFrame, over: Over) -> Measured:
    if rows.attrs.get("single"):
        return Measured(float(values.iloc[0]), note=_note(rows))
    if over != "seeds":
        return _over_networks(values, _note(rows), over)
    seeds = stats.over_seeds(values)
    found = stats.mean(seeds)
    if found is None:
        raise Untestable("nothing was measured")
    if found.n == 1:
        raise Untestable(MORE_SEEDS)
    return Measured.of(found, _with_minus(_note(rows)), _by_seed(seeds))


def _over_networks(values: pd.Series, note: str, over: Over) -> Measured:
    """Average over seeds that train all applications again; else over applications.

    Sizes of networks are equal under every seed, so they have no interval over seeds.
    """
    by_draw, by_app = values.groupby("draw").mean(), values.groupby(["workload", "app"]).mean()
    if over == "trainings" and len(by_draw) > 1:
        means, sample = by_draw.rename_axis("seed"), f"{len(by_draw)} seeds that train {len(by_app)} applications again"
    else:
        means, sample = by_app, f"{len(by_app)} applications" + (", a seed for each" if over == "trainings" else "")
    found = stats.mean(means)
    if found is None or found.n < 2:
        raise Untestable("needs two applications or more")
    return Measured.of(found, f"{note}, over {sample}" if note else f"over {sample}", _by_seed(means))


def _by_seed(values: pd.Series) -> dict[int, float] | None:
    """Map seeds to their measured values; None if a seed has several or there is no seed."""
    if "seed" not in values.index.names:
        return None
    seeds = values.index.get_level_values("seed")
    found = zip(seeds, values, strict=True)
    return {int(seed): float(value) for seed, value in found if math.isfinite(value)} if seeds.is_unique else None


def _note(rows: pd.DataFrame) -> str:
    return str(rows.attrs.get("note", ""))


def _with_minus(text: str) -> str:
    """Replace the hyphen of negative numbers by a minus sign."""
    return re.sub(r"(?<!\w)-(?=\d)", "\u2212", text)
