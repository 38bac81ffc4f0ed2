"""Score over training horizon and update interval: Figure 8 of the AMS paper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Panel, View
from driftlab.platform.results.relations.rates import fixed_schedules
from driftlab.platform.results.stats import means

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

ONE = {"": plots.Style(plots.INK)}
NOTE = (
    "By horizon: score at the shortest update interval. By interval: score over the update interval, per horizon. "
    "Means over streams and seeds, 95 % CI; each student has its own panels."
)


def show(view: View) -> FigureContent | None:
    """Draw the score over both, if both vary."""
    grid = fixed_schedules(view.tables)
    if grid["horizon_s"].nunique() < 2 or grid["interval_s"].nunique() < 2:
        return None
    horizons = {f"horizon {value:g} s": value for value in sorted(set(grid["horizon_s"]))}
    styles = plots.series(horizons)
    panels = []
    for student, own in grid.groupby("student"):
        suffix = f", student {student}" if grid["student"].nunique() > 1 else ""
        points = means(own, ["horizon_s", "interval_s"], "score", least=0.0, most=1.0)
        shortest = {"": points[points["interval_s"] == points["interval_s"].min()]}
        series = {name: points[points["horizon_s"] == value] for name, value in horizons.items()}
        panels += [
            Panel(f"by horizon{suffix}", partial(_draw, series=shortest, x="horizon_s", styles=ONE)),
            Panel(f"by interval{suffix}", partial(_draw, series=series, x="interval_s", styles=styles)),
        ]
    return FigureContent(NOTE, panels, legend=styles)


def _draw(axis: Axes, series: dict[str, pd.DataFrame], x: str, styles: plots.StyleMap) -> None:
    for name, points in series.items():
        plots.trend(axis, points, x, styles[name])
    plots.scale(axis, sorted({value for points in series.values() for value in points[x]}))
    axis.set_xlabel({"horizon_s": "training horizon, s", "interval_s": "interval between updates, s"}[x])
    axis.set_ylabel("score")
    plots.tidy(axis)


FIGURE = Figure("training_horizon", "Training horizon", show)
