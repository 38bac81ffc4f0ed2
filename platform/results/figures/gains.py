"""Gain per frame over no adaptation: Figure 5 of the AMS paper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from driftlab.platform.results import stats
from driftlab.platform.results.figures import plots
from driftlab.platform.results.figures.base import Figure, FigureContent, Grid, Panel, View, mean_cell, means_by_setting
from driftlab.platform.results.relations.base import FRAME

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NOTE = (
    "Gain per frame: {} minus that of the same frame without adaptation. Plot, in report.html: its cumulative "
    "distribution; frames left of 0 are worse than without adaptation. Table: share of frames with a gain above 0; "
    "means over seeds, ± half of the 95 % CI in points."
)


def show(view: View) -> FigureContent | None:
    """Draw the frames of all settings together, and tabulate the improved share per setting."""
    found = _gains(view)
    if found.empty:
        return None
    styles = view.styles_of(found)
    measure = plots.measure(view.runs)
    panel = Panel("gain of a frame, all settings", partial(_draw, found=found, styles=styles, measure=measure))
    improved = found.assign(better=found["gain"] > 0, all="all")
    columns = [*sorted(found["setting"].unique()), "all"] if found["setting"].nunique() > 1 else ["all"]
    shares = means_by_setting(improved, "better")
    rows = {
        name: [mean_cell(shares.get((name, column)), "{:.0f} %", ".0f", 100) for column in columns] for name in styles
    }
    return FigureContent(NOTE.format(measure), [panel], [Grid("frames improved", columns, rows)], styles)


def _gains(view: View) -> pd.DataFrame:
    """List the gain of every frame of every system over the same frame without adaptation."""
    runs = view.runs[["cell", "system", "setting", "bound", "workload", "fleet", "seed"]]
    frames = view.tables.frame("frames")[["cell", "device", "app", "frame", "score_frame"]]
    frames = frames.dropna(subset=["score_frame"]).merge(runs, on="cell")
    nothing = frames["bound"] == "no_adaptation"
    return stats.gains(frames[~nothing], frames[nothing], "score_frame", FRAME)


def _draw(axis: Axes, found: pd.DataFrame, styles: plots.StyleMap, measure: str) -> None:
    axis.axvline(0, color=plots.QUIET, linewidth=0.8, zorder=0)
    for name, style in styles.items():
        plots.cumulative(axis, found[found["system"] == name]["gain"], style)
    low, high = found["gain"].quantile([0.005, 0.995])
    if low < high:  # the rest are outliers
        axis.set_xlim(min(low, 0), max(high, 0))
    axis.set_xlabel(f"gain in {measure} over no adaptation")
    axis.set_ylabel("share of frames")
    plots.tidy(axis)


FIGURE = Figure("gains", "Gain per frame", show)
