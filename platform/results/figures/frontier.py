"""Score over downlink traffic: Figure 4 of the AMS paper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Panel, View, common
from driftlab.platform.results.relations.traffic import DOWN, sweeps
from driftlab.platform.results.stats import means
from driftlab.platform.results.tables.columns import LIVE_SCORE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOTE = (
    "Live score over downlink traffic; the upper left is better. A line joins systems that differ in one parameter, "
    "whose value is printed at each point. Grey lines: bounds, drawn without traffic. Means over seeds; bars: 95 % CI "
    "of the score."
)
FEWEST = 3  # points that make a line


def show(view: View) -> FigureContent | None:
    """Draw score over downlink per setting, if one parameter of a method has several values."""
    lines = _lines(view)
    if max(map(len, lines.values()), default=0) < FEWEST:
        return None
    styles = {line: view.styles[next(iter(systems))] for line, systems in lines.items()}
    panels = [
        Panel(setting, partial(_draw, view=view, setting=setting, lines=lines, styles=styles))
        for setting in view.settings()
    ]
    bounds = {name: view.styles[name] for name in _bounds(view)}
    return FigureContent(NOTE, panels, legend={**styles, **bounds})


def _lines(view: View) -> dict[str, dict[str, float]]:
    """Name each group of systems by its common prefix, those of several systems first."""
    groups = sweeps(view.tables, view.styles)
    found = {common(list(group)) if len(group) > 1 else next(iter(group)): group for group in groups}
    return dict(sorted(found.items(), key=lambda line: len(line[1]) == 1))


def _bounds(view: View) -> list[str]:
    return list(view.runs.dropna(subset=["bound"])["system"].unique())


def _draw(axis: Axes, view: View, setting: str, lines: dict[str, dict[str, float]], styles: plots.StyleMap) -> None:
    runs = view.runs[view.runs["setting"] == setting]
    scores = means(runs, ["system"], LIVE_SCORE, least=0.0, most=1.0, others=[DOWN])
    for name in _bounds(view):
        for score in scores[scores["system"] == name]["mean"]:
            axis.axhline(
                score, color=view.styles[name].colour, linestyle=view.styles[name].dash, linewidth=1.2, zorder=0
            )
    for k, (line, values) in enumerate(lines.items()):
        points = scores[scores["system"].isin(list(values)) & (scores[DOWN] > 0)]
        plots.trend(axis, points, DOWN, styles[line])
        for system, kbps, mean in points[["system", DOWN, "mean"]].itertuples(index=False):
            plots.label_point(axis, f"{values[system]:g}" if len(values) > 1 else "", kbps, mean, above=k % 2 == 0)
    plots.scale(axis)
    axis.set_xlabel("downlink, kbit/s per device")
    axis.set_ylabel(plots.live_measure(view.runs))
    axis.margins(x=0.08, y=0.1)
    plots.tidy(axis)


FIGURE = Figure("frontier", "Live score over traffic", show)
