"""Strategies and fractions of weight selection: Table 3 of the AMS paper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import (
    NO_CELL,
    Figure,
    FigureContent,
    Grid,
    GridCell,
    Panel,
    View,
    half_of,
    inconclusive,
)
from driftlab.platform.results.stats import gains, means
from driftlab.platform.results.tables.columns import LIVE_SCORE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "Difference in live score to training and sending all weights, in points, paired by street and seed; ± half of the "
    "95 % CI. Last row: downlink traffic per device."
)


def show(view: View) -> FigureContent | None:
    """Compare strategies and fractions with full updates, if both vary."""
    members = view.members("adaptation", "distill")
    everything = [name for name, member in members.items() if member["fraction"] == 1 or member["strategy"] == "full"]
    parts = {
        name: (member["strategy"], member["fraction"]) for name, member in members.items() if name not in everything
    }
    if not everything or len({strategy for strategy, _ in parts.values()}) < 2:
        return None
    runs = view.runs
    full, sparse = runs[runs["system"] == everything[0]], runs[runs["system"].isin(list(parts))]
    both = gains(sparse, full, LIVE_SCORE, ["setting", "seed"])
    both = both.assign(
        strategy=[parts[name][0] for name in both["system"]],
        fraction=[parts[name][1] for name in both["system"]],
        points=100 * both["gain"],
    )
    points = means(both, ["strategy", "fraction"], "points")
    styles = plots.series(dict.fromkeys(strategy for strategy, _ in parts.values()))
    panel = Panel("against sending every weight", partial(_draw, points=points, styles=styles))
    return FigureContent(NOTE, [panel], [_grid(points, both, full["downlink_kbps"].mean(), styles)], styles)


def _grid(points: pd.DataFrame, cells: pd.DataFrame, full_kbps: float, styles: plots.StyleMap) -> Grid:
    fractions = sorted(set(points["fraction"]), reverse=True)
    by_setting = points.set_index(["strategy", "fraction"])
    rows = {
        strategy: [
            *(
                _entry(by_setting.loc[key]) if (key := (strategy, part)) in by_setting.index else NO_CELL
                for part in fractions
            ),
            GridCell(""),
        ]
        for strategy in styles
    }
    kbps = cells.groupby("fraction")["downlink_kbps"].mean()
    rows["kbit/s down"] = [GridCell(plots.short(value)) for value in (*(kbps[part] for part in fractions), full_kbps)]
    return Grid("points of live score", [*(f"{100 * part:g} %" for part in fractions), "all"], rows)


def _entry(found: pd.Series) -> GridCell:
    return GridCell(plots.signed(found["mean"]), ", ".join(filter(None, (half_of(found, ".1f"), inconclusive(found)))))


def _draw(axis: Axes, points: pd.DataFrame, styles: plots.StyleMap) -> None:
    axis.axhline(0, color=plots.QUIET, linewidth=0.8, zorder=0)
    shown = points.assign(percent=100 * points["fraction"])
    for name, style in styles.items():
        plots.trend(axis, shown[shown["strategy"] == name], "percent", style)
    plots.scale(axis, sorted(set(shown["percent"])))
    axis.set_xlabel("weights sent, %")
    axis.set_ylabel("points of live score")
    plots.tidy(axis)


FIGURE = Figure("strategies", "Weight selection: strategy and fraction", show)
