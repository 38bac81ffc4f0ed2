"""What is lost where one layer is pruned and nothing trained again: Figure 3 of the NestDNN paper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, Grid, GridCell, Panel, Shown, View
from driftlab.platform.results.relations.networks import pruned_alone

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "Accuracy on held-out data once those filters of one layer are gone that a ranking puts last, as means over "
    "applications; layers are counted from the input on. The table has the mean over all points at which something is "
    "gone; strong is the best of a column."
)


def show(view: View) -> Shown | None:
    """Draw each layer, where rankings differ."""
    found = pruned_alone(view.tables).dropna(subset=["accuracy"])
    if found["ranking"].nunique() < 2:
        return None
    points = found.groupby(["layer", "ranking", "share"])["accuracy"].mean().reset_index()
    ranking = dict(found[["system", "ranking"]].itertuples(index=False))
    looks = plots.series(dict.fromkeys(ranking[name] for name in view.looks if name in ranking))
    limits = _limits(points["accuracy"])
    panels = [
        Panel(f"layer {layer + 1:g}", partial(_draw, points=part, looks=looks, limits=limits))
        for layer, part in points.groupby("layer")
    ]
    return Shown(NOTE, panels, [_grid(points, looks)], looks)


def _limits(accuracy: pd.Series) -> tuple[float, float]:
    """Give all layers one scale, so that they can be compared."""
    low, high = float(accuracy.min()), float(accuracy.max())
    room = 0.06 * max(high - low, 1e-3)
    return low - room, high + room


def _draw(axis: Axes, points: pd.DataFrame, looks: plots.Looks, limits: tuple[float, float]) -> None:
    for name, look in looks.items():
        own = points[points["ranking"] == name].sort_values("share")
        gone = 100 * (1 - own["share"])
        axis.plot(gone, own["accuracy"], "o", color=look.colour, linestyle=look.dash, linewidth=1.5, markersize=4.5)
    axis.set_ylim(*limits)
    axis.set_xlabel("filters gone, %")
    axis.set_ylabel("accuracy")
    plots.tidy(axis)


def _grid(points: pd.DataFrame, looks: plots.Looks) -> Grid:
    pruned = points[points["share"] < 1]
    by_layer = pruned.pivot_table("accuracy", "ranking", "layer").rename(columns=lambda layer: f"layer {layer + 1:g}")
    wide = by_layer.assign(all=pruned.groupby("ranking")["accuracy"].mean())
    rows = {
        name: [GridCell(f"{value:.3f}", strong=value == wide[column].max()) for column, value in wide.loc[name].items()]
        for name in looks
    }
    return Grid("mean accuracy", list(wide.columns), rows)


FIGURE = Figure("pruning", "Pruning one layer", show)
