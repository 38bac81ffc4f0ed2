"""Scores by system and setting, as in Tables 1 and 2 of the AMS paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftlab.platform.results.figures.base import (
    Figure,
    FigureContent,
    Grid,
    GridCell,
    View,
    mean_cell,
    means_by_setting,
)
from driftlab.platform.results.tables.columns import LIVE_SCORE

if TYPE_CHECKING:
    import pandas as pd

NOTE = (
    "Mean live score over seeds ± half of the 95 % CI, in %. In bold the best method of a column, without bounds. The "
    "last column averages the others."
)
MAX_SETTINGS = 12  # settings that a reader can still compare in one table


def show(view: View) -> FigureContent | None:
    """Compare systems on several streets with one fleet; a mean over fleets has no meaning."""
    runs = view.runs.dropna(subset=[LIVE_SCORE]).assign(all="mean")
    settings = sorted(set(runs["setting"]))
    if runs["fleet"].nunique() > 1 or not 1 < len(settings) <= MAX_SETTINGS or runs["system"].nunique() < 2:
        return None
    found = means_by_setting(runs, LIVE_SCORE)
    columns = [*settings, "mean"]
    methods = set(runs[runs["bound"].isna()]["system"])
    best = {
        column: max((found[system, column]["mean"] for system in methods if (system, column) in found), default=0.0)
        for column in columns
    }
    rows = {
        system: [_entry(found.get((system, column)), best[column], system in methods) for column in columns]
        for system in view.styles
        if system in set(runs["system"])
    }
    return FigureContent(NOTE, grids=[Grid("", columns, rows)])


def _entry(found: pd.Series | None, best: float, method: bool) -> GridCell:
    strong = method and found is not None and found["mean"] == best
    return mean_cell(found, "{:.1f}", ".1f", 100, strong=strong)


FIGURE = Figure("per_workload", "Live score per workload", show)
