"""Differences and cost ratios of every pair of methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from driftlab.platform.results import stats
from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import NO_CELL, Figure, FigureContent, Grid, GridCell, View
from driftlab.platform.results.relations.comparison import by_system, cost_ratios, costs_of
from driftlab.platform.results.tables.columns import LIVE_SCORE

if TYPE_CHECKING:
    import pandas as pd

NOTE = (
    "The method of the row minus that of the column, in {}: mean difference over paired seeds ± half of its 95 % CI, "
    "over all workloads that both ran. Bold: the interval excludes 0, so the row is better. Otherwise the run shows "
    "no difference, and the cheaper one is the better choice. Below: cost of the row "
    "as a multiple of the column's. Methods are sorted by score; bounds are left out."
)


def show(view: View) -> FigureContent | None:
    """Compare at least two methods that have scores in the same cells."""
    runs = view.runs[view.runs["bound"].isna()].dropna(subset=[LIVE_SCORE])
    scores, costs = by_system(runs, LIVE_SCORE), costs_of(runs)
    means = runs.astype({LIVE_SCORE: float}).groupby("system")[LIVE_SCORE].mean()
    order = list(means.sort_values(ascending=False, kind="stable").index)
    if len(order) < 2:
        return None

    def cell(ours: str, theirs: str) -> GridCell:
        both = scores[[ours, theirs]].dropna().set_axis(["ours", "theirs"], axis=1)
        return _cell(both, cost_ratios(costs, ours, theirs))

    rows = {
        ours: [NO_CELL if place <= k else cell(ours, theirs) for place, theirs in enumerate(order) if place]
        for k, ours in enumerate(order[:-1])
    }
    return FigureContent(NOTE.format(plots.live_measure(view.runs)), grids=[Grid("row − column", order[1:], rows)])


def _cell(scores: pd.DataFrame, ratios: Mapping[str, float]) -> GridCell:
    difference = stats.paired_difference(scores)
    if difference is None:
        return NO_CELL
    costs = ", ".join(f"{plots.factor(ratio)} {name}" for name, ratio in ratios.items())
    return GridCell(plots.difference(difference), costs, stats.verdict(difference) == "better")


FIGURE = Figure("duels", "Method against method", show)
