"""Accuracy, memory and operations per network: Figures 6 and 7, Table 3 of the NestDNN paper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import NO_CELL, Figure, FigureContent, Grid, GridCell, Panel, View
from driftlab.platform.results.relations.networks import families, means_by_rank, memory_by_family, unscaled

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "Test accuracy over memory, per application. First table: mean over applications per network, smallest first; in "
    "bold the best of a column; below each value the operations in % of the {reference} network's. Nested networks "
    "are stored once, independent ones separately."
)
MAX_APPS = 6  # applications that a reader can still compare
MAX_NETWORKS = 20  # per application; a line of hundreds of paths is unreadable
HEIGHT = 200


def show(view: View) -> FigureContent | None:
    """Draw the applications with several networks, one line per scaling member."""
    sized = families(view.tables, view.styles).dropna(subset=["accuracy"])
    sized = sized[sized.groupby(["family", "place"])["variant"].transform("size").between(2, MAX_NETWORKS)]
    if sized.empty:
        return None
    styles = {row.family: view.styles[row.system] for row in sized.drop_duplicates("family").itertuples()}
    unit = plots.scaled(float(sized["memory_bytes"].max()), "B")
    panels = [
        Panel(place, partial(_draw, points=sized[sized["place"] == place], styles=styles, unit=unit), HEIGHT)
        for place in list(dict.fromkeys(sized["place"]))[:MAX_APPS]
    ]
    grids = [_by_rank(means_by_rank(view.tables, sized).unstack(), styles), *_memory_grids(sized, unit)]
    reference = "largest" if unscaled(view.tables).empty else "whole"
    return FigureContent(NOTE.format(reference=reference), panels, grids, styles)


def _draw(axis: Axes, points: pd.DataFrame, styles: plots.StyleMap, unit: tuple[float, str]) -> None:
    for name, style in styles.items():
        own = points[points["family"] == name].sort_values("memory_bytes")
        size = own["memory_bytes"] / unit[0]
        axis.plot(size, own["accuracy"], "o", color=style.colour, linestyle=style.dash, linewidth=1.5, markersize=4.5)
    plots.scale(axis)
    axis.set_xlabel(f"memory, {unit[1]}")
    axis.set_ylabel("accuracy")
    axis.margins(y=0.1)
    plots.tidy(axis)


def _by_rank(wide: pd.DataFrame, styles: plots.StyleMap) -> Grid:
    """Tabulate accuracy and operations by size rank of the network."""
    best = wide["accuracy"].max()
    rows = {
        name: [
            _entry(wide["accuracy"].loc[name, rank], wide["work"].loc[name, rank], best[rank]) for rank in best.index
        ]
        for name in styles
    }
    return Grid("accuracy, %", [f"network {rank + 1}" for rank in best.index], rows)


def _entry(accuracy: float, work: float, best: float) -> GridCell:
    if accuracy != accuracy:
        return NO_CELL
    return GridCell(f"{100 * accuracy:.1f}", "" if work != work else f"{100 * work:.0f} % of MACs", accuracy == best)


def _memory_grids(sized: pd.DataFrame, unit: tuple[float, str]) -> list[Grid]:
    """Compare the memory of all sizes, if a run has both nested and independent networks."""
    if sized["nested"].nunique() < 2:
        return []
    apart, wide = sized[~sized["nested"]]["family"].unique(), memory_by_family(sized)
    rows = {
        str(place): [_size(row[name], None if name in apart else row[apart[0]], unit[0]) for name in wide]
        for place, row in wide.iterrows()
    }
    return [Grid(f"memory of all sizes, {unit[1]}", list(wide), rows)]


def _size(memory_bytes: float, against: float | None, unit: float) -> GridCell:
    if memory_bytes != memory_bytes:
        return NO_CELL
    note = "" if against is None or against != against else f"{plots.signed(100 * (memory_bytes / against - 1), 0)} %"
    return GridCell(f"{memory_bytes / unit:.1f}", note)


FIGURE = Figure("capacity", "Accuracy and memory per network", show)
