"""Score difference between systems over one stream parameter."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Panel, View
from driftlab.platform.results.relations.base import CELL
from driftlab.platform.results.relations.scenery import swept
from driftlab.platform.results.stats import gains, means
from driftlab.platform.results.tables.columns import LIVE_SCORE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "Difference in live score to {against} in points, over one stream parameter; all other parameters are constant. "
    "Means over seeds, 95 % CI."
)


def show(view: View) -> FigureContent | None:
    """Draw differences to the first system, if the streams differ in exactly one parameter."""
    knobs = swept(view.tables)
    runs = view.runs[view.runs["bound"].isna()].dropna(subset=[LIVE_SCORE])
    names = list(view.styles_of(runs))
    if not knobs or len(names) < 2:
        return None
    against, *others = names
    both = gains(runs[runs["system"].isin(others)], runs[runs["system"] == against], LIVE_SCORE, CELL)
    both = both.assign(points=100 * both["gain"])
    styles = {name: view.styles[name] for name in others}
    panels = []
    for knob, values in knobs.items():
        own = both[both["workload"].isin(list(values))]
        found = means(own.assign(value=own["workload"].map(values)), ["system", "value"], "points")
        panels.append(Panel(f"by {knob}", partial(_draw, found=found, knob=knob, styles=styles)))
    return FigureContent(NOTE.format(against=against), panels, legend=styles)


def _draw(axis: Axes, found: pd.DataFrame, knob: str, styles: plots.StyleMap) -> None:
    axis.axhline(0, color=plots.QUIET, linewidth=0.8, zorder=0)
    for name, style in styles.items():
        plots.trend(axis, found[found["system"] == name], "value", style)
    plots.scale(axis, sorted(set(found["value"])))
    axis.set_xlabel(knob)
    axis.set_ylabel("points")
    plots.tidy(axis)


FIGURE = Figure("parameter_sweep", "Effect of one stream parameter", show)
