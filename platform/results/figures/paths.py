"""Accuracy over missed deadlines under each load: load-adaptive networks and fixed exits."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Grid, GridCell, Panel, View
from driftlab.platform.results.relations import paths
from driftlab.platform.results.relations.base import CELL, Untestable
from driftlab.platform.results.stats import means

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "Each point is one system: accuracy over missed deadlines; the upper left is better. Deadline: the latency goal of "
    "the application. Accuracy: of late predictions too; a skipped frame keeps the previous one. Dashed line: fixed "
    "exits of one network. Candidate networks: the Pareto front of each family at the lowest seed; systems with the "
    "same candidates share one line. Means over seeds, 95 % CI. Latency and energy are per frame."
)
COLUMNS = {"right": ("right in time", 100, "%"),
           "accuracy": ("accuracy", 100, "%"), "missed": ("later than the goal", 100, "%"),
           "latency_ms": ("latency", 1, "ms"), "energy_j": ("energy", 1e6, "µJ")}  # fmt: skip


def show(view: View) -> FigureContent | None:
    """Draw a panel and a table per setting, if a run has adaptive networks and fixed exits."""
    exits = [name for name in paths.fixed_exits(view.tables) if name in view.styles]
    others = [name for name in paths.choosers(view.tables) if name in view.styles]
    if not exits or not others:
        return None
    others += [name for name in paths.others(view.tables) if name in view.styles]
    try:
        found = paths.deadlines(view.tables).reset_index()
    except Untestable as reason:
        return FigureContent(f"Not drawn: {reason}.")
    rows = found.merge(view.runs[["system", *CELL, "setting"]], on=["system", *CELL])
    styles = {name: view.styles[name] for name in (*others, *exits)}
    settings = [(str(setting), here) for setting, here in rows.groupby("setting")]
    panels = [Panel(setting, partial(_draw, rows=here, exits=exits, styles=styles)) for setting, here in settings]
    panels += [
        Panel(f"networks to choose from, {workload}", partial(_draw_fronts, fronts=known, styles=styles))
        for workload, known in paths.fronts(view.tables).items()
    ]
    return FigureContent(NOTE, panels, [_grid(setting, here, [*others, *exits]) for setting, here in settings], styles)


def _draw(axis: Axes, rows: pd.DataFrame, exits: list[str], styles: plots.StyleMap) -> None:
    """Draw accuracy over missed frames, both in percent."""
    scaled = rows.assign(percent=100 * rows["accuracy"], missed=100 * rows["missed"])
    found = means(scaled, ["system"], "percent", others=["missed"]).set_index("system")
    line = found.reindex([name for name in exits if name in found.index])
    axis.plot(line["missed"], line["mean"], color=plots.QUIET, linestyle="--", linewidth=1.0, zorder=0)
    for name in found.index.intersection(list(styles)):
        plots.trend(axis, found.loc[[name]], "missed", styles[name])
    axis.set_xlabel("deadlines missed, % of the frames")
    axis.set_ylabel("accuracy, %")
    axis.margins(x=0.08, y=0.12)
    plots.tidy(axis)


def _draw_fronts(axis: Axes, fronts: dict[str, pd.DataFrame], styles: plots.StyleMap) -> None:
    """Draw the Pareto front of each family over latency on the idle device; one network is a point."""
    for name, front in fronts.items():
        style, percent = styles[name], 100 * front["accuracy"]
        line = {"color": style.colour, "linestyle": style.dash, "linewidth": 1.2, "gid": style.gid}
        axis.plot(front["latency_ms"], percent, style.marker, markersize=3.5, drawstyle="steps-post", **line)
    axis.set_xlabel("latency of a frame on the idle device, ms")
    axis.set_ylabel("accuracy on held-out data, %")
    axis.margins(x=0.08, y=0.12)
    plots.tidy(axis)


def _grid(setting: str, rows: pd.DataFrame, names: list[str]) -> Grid:
    averages = rows.groupby("system")[list(COLUMNS)].mean()
    cells = {
        name: [
            GridCell(plots.short(float(averages.loc[name, key]) * factor)) for key, (_, factor, _) in COLUMNS.items()
        ]
        for name in names
        if name in averages.index
    }
    return Grid(setting, [f"{label}, {unit}" for label, _, unit in COLUMNS.values()], cells)


FIGURE = Figure("paths", "Accuracy over missed deadlines", show)
