"""Errors of estimated accuracies over time and per application: Figure 11 of the ElasticDNN paper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Grid, GridCell, Panel, View, half_of
from driftlab.platform.results.relations.estimates import CONTROLS, phases, rounds
from driftlab.platform.results.stats import means

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "Error of an estimate: absolute difference from the accuracy on as many later frames of the domain as there are "
    "samples, for networks that were trained. Plots: error after adapting, over the phases of an application and its "
    "distribution. Tables: mean error in points, ± half of the 95 % CI over seeds, with controls on the same phases. "
    "Constant: the best one of each application, chosen afterwards. Source: accuracy of the network on the source. "
    "Observed (confident predictions) and agreement (AETTA) see the trained network, which estimates do not. Cost: "
    "time to estimate all configurations of an application once, and memory with the largest network."
)


def show(view: View) -> FigureContent | None:
    """Draw errors by phase and their distribution, and tabulate them with controls."""
    rows = phases(view.tables)
    rows = rows[rows["system"].isin(list(view.styles))]
    if rows.empty:
        return None
    rows = rows.assign(phase=rows.groupby(["cell", "device", "app"])["time_s"].rank(method="first"))
    styles = view.styles_of(rows)
    over_time = Panel("error after adapting, by phase", partial(_draw_phases, rows=rows, styles=styles))
    spread = Panel("errors of all phases", partial(_draw_spread, rows=rows, styles=styles))
    before = phases(view.tables, "before")
    grids = [_controls("error after adapting", rows, styles), _controls("error before adapting", before, styles)]
    return FigureContent(NOTE, [over_time, spread], [*grids, _by_app(rows, styles), _costs(view, styles)], styles)


def _draw_phases(axis: Axes, rows: pd.DataFrame, styles: plots.StyleMap) -> None:
    found = means(rows, ["system", "phase"], "error", least=0.0)
    for name, style in styles.items():
        plots.trend(axis, found[found["system"] == name], "phase", style)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("phase of an application")
    axis.set_ylabel("mean error")
    plots.tidy(axis)


def _draw_spread(axis: Axes, rows: pd.DataFrame, styles: plots.StyleMap) -> None:
    for name, style in styles.items():
        plots.cumulative(axis, rows[rows["system"] == name]["error"], style)
    axis.set_xlim(left=0)
    axis.set_xlabel("error")
    axis.set_ylabel("share of phases")
    plots.tidy(axis)


def _controls(title: str, rows: pd.DataFrame, styles: plots.StyleMap) -> Grid:
    """Tabulate the mean error of each system's estimates and of the controls."""
    columns: dict[str, str] = {"estimate": "error"}
    columns |= {name: f"{name}_error" for name in CONTROLS}
    return Grid(title, list(columns), {name: _cells(rows[rows["system"] == name], columns) for name in styles})


def _cells(own: pd.DataFrame, columns: dict[str, str]) -> list[GridCell]:
    return [_points(own, column) for column in columns.values()]


def _points(own: pd.DataFrame, column: str) -> GridCell:
    found = means(own.assign(all="all"), ["all"], column)
    if found.empty:
        return GridCell("–")
    return GridCell(f"{100 * found['mean'].iloc[0]:.1f}", half_of(found.iloc[0], ".1f", 100))


def _by_app(rows: pd.DataFrame, styles: plots.StyleMap) -> Grid:
    apps = sorted(set(rows["app"]))
    found = {
        name: [_points(rows[(rows["system"] == name) & (rows["app"] == app)], "error") for app in apps]
        for name in styles
    }
    return Grid("error after adapting, by application", apps, found)


def _costs(view: View, styles: plots.StyleMap) -> Grid:
    found = rounds(view.tables).groupby("system")[["isolated_s", "memory_bytes"]].mean()
    rows = {
        name: [GridCell(f"{found['isolated_s'][name]:.3g} s"), GridCell(f"{found['memory_bytes'][name] / 1e6:.3g} MB")]
        for name in styles
    }
    return Grid("cost of an estimate", ["time", "memory"], rows)


FIGURE = Figure("estimates", "Estimated accuracies", show)
