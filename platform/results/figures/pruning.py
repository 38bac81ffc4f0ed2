"""Accuracy after pruning one layer without retraining: Figure 3 of the NestDNN paper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Grid, GridCell, Panel, View
from driftlab.platform.results.relations.networks import pruned_alone

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "Test accuracy after pruning one layer without retraining: filters that a ranking puts last are removed first. "
    "Layers are counted from the input. Means over applications. Table: mean over all pruned shares above 0; in bold "
    "the best of a column."
)


def show(view: View) -> FigureContent | None:
    """Draw each layer, if a run has several rankings."""
    found = pruned_alone(view.tables).dropna(subset=["accuracy"])
    if found["ranking"].nunique() < 2:
        return None
    points = found.groupby(["layer", "ranking", "share"])["accuracy"].mean().reset_index()
    ranking = dict(found[["system", "ranking"]].itertuples(index=False))
    styles = plots.series(dict.fromkeys(ranking[name] for name in view.styles if name in ranking))
    limits = _limits(points["accuracy"])
    panels = [
        Panel(f"layer {layer + 1:g}", partial(_draw, points=part, styles=styles, limits=limits))
        for layer, part in points.groupby("layer")
    ]
    return FigureContent(NOTE, panels, [_grid(points, styles)], styles)


def _limits(accuracy: pd.Series) -> tuple[float, float]:
    """Draw all layers on one scale, so that panels are comparable."""
    low, high = float(accuracy.min()), float(accuracy.max())
    room = 0.06 * max(high - low, 1e-3)
    return low - room, high + room


def _draw(axis: Axes, points: pd.DataFrame, styles: plots.StyleMap, limits: tuple[float, float]) -> None:
    for name, style in styles.items():
        own = points[points["ranking"] == name].sort_values("share")
        removed = 100 * (1 - own["share"])
        axis.plot(
            removed, own["accuracy"], "o", color=style.colour, linestyle=style.dash, linewidth=1.5, markersize=4.5
        )
    axis.set_ylim(*limits)
    axis.set_xlabel("filters removed, %")
    axis.set_ylabel("accuracy")
    plots.tidy(axis)


def _grid(points: pd.DataFrame, styles: plots.StyleMap) -> Grid:
    pruned = points[points["share"] < 1]
    by_layer = pruned.pivot_table("accuracy", "ranking", "layer").rename(columns=lambda layer: f"layer {layer + 1:g}")
    wide = by_layer.assign(all=pruned.groupby("ranking")["accuracy"].mean())
    rows = {
        name: [GridCell(f"{value:.3f}", strong=value == wide[column].max()) for column, value in wide.loc[name].items()]
        for name in styles
    }
    return Grid("mean accuracy", list(wide.columns), rows)


FIGURE = Figure("pruning", "Pruning of one layer", show)
