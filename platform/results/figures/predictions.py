"""Draw the error of predicted latencies over time.

The predictors are the member's, a theoretical model, a constant and a look-up.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Panel, View
from driftlab.platform.results.relations import predictions
from driftlab.platform.results.stats import means

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

BIN_S = 10.0
SYSTEMS = 3
NOTE = (
    "Mean relative error of the latency that a system predicts for its running network at each reading, from the load "
    "that it has sensed, against the measured latency. The theoretical model slows all networks alike by the CPU load; "
    "the constant is the mean slowdown so far; the look-up repeats the most similar measurement so far. Spans of 10 s, "
    "means over seeds and loads, 95 % CI."
)


def show(view: View) -> FigureContent | None:
    """Draw a panel per system, for a few systems, if the world has a law of operators."""
    if view.named("predictions").empty:
        return None
    found = view.tables.once(predictions.errors)
    names = list(view.styles_of(found))[:SYSTEMS]
    styles = plots.series(predictions.PREDICTORS)
    panels = [Panel(name, partial(_draw, rows=found[found["system"] == name], styles=styles)) for name in names]
    return FigureContent(NOTE, panels, [], styles)


def _draw(axis: Axes, rows: pd.DataFrame, styles: plots.StyleMap) -> None:
    spans = rows.assign(span_s=BIN_S * (rows["time_s"] // BIN_S + 0.5))
    for name, style in styles.items():
        by_cell = spans.groupby(["cell", "seed", "span_s"])[name].mean().reset_index()
        found = means(by_cell.assign(percent=100 * by_cell[name]), ["span_s"], "percent")
        plots.trend(axis, found, "span_s", style, ordered=True)
    axis.set_xlabel("time, s")
    axis.set_ylabel("error, %")
    axis.set_ylim(bottom=0)
    plots.tidy(axis)


FIGURE = Figure("predictions", "Error of predicted latency over time", show)
